//! The watch over one worker process: it passes on the worker's reports and its end, and checks that MPS took effect.

use std::time::Duration;

use packhorse_cluster::ComputeShare;
use packhorse_reconcile::{Event, ExitCause, TaskId, WorkerReport};
use packhorse_worker_agent::handoff::{Handoff, WorkerStatus};
use tokio::{
    sync::mpsc,
    time::{MissedTickBehavior, interval},
};

use crate::{
    log_tail::last_line,
    mps::{MpsDevice, ObservedShare},
    process::{Process, ProcessFailure},
};

/// The interval between two reads of a worker's status until it is ready.
const INTERVAL_WHILE_LOADING: Duration = Duration::from_millis(25);
/// The interval between two reads of the status of a worker that is ready. Such a worker mostly changes its status by ending, which is
/// noticed at once.
const INTERVAL_WHEN_READY: Duration = Duration::from_millis(250);

/// The watch over one worker process.
pub(super) struct WorkerWatch {
    /// The worker's task.
    pub(super) id: TaskId,
    /// MPS on the worker's GPU.
    pub(super) mps: Option<MpsDevice>,
    /// The worker's share of the device's multiprocessors.
    pub(super) share: Option<ComputeShare>,
    /// The number of the device's multiprocessors.
    pub(super) multiprocessors: Option<u32>,
    /// The worker's hand-over folder.
    pub(super) handoff: Handoff,
    /// The last status that was passed on.
    pub(super) last_status: Option<WorkerStatus>,
    /// The receiver of the worker's reports and its end.
    pub(super) events: mpsc::Sender<Event>,
}

impl WorkerWatch {
    /// Watches the process until it has ended.
    pub(super) async fn run(mut self, mut process: Process) {
        let pid = process.pid();
        let mut ticks = interval(INTERVAL_WHILE_LOADING);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let failure = loop {
            let was_ready = self.is_ready();
            tokio::select! {
                biased;
                failure = process.wait() => break failure,
                _ = ticks.tick() => self.read_status(pid).await,
            }
            if self.is_ready() && !was_ready {
                ticks = interval(INTERVAL_WHEN_READY);
                ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
                if let Some(mps) = self.mps.clone() {
                    let observed = ObservedShare {
                        share: self.share,
                        multiprocessors: self.multiprocessors,
                        usable: self.usable_multiprocessors(),
                    };
                    tokio::spawn(async move { mps.check(pid, observed).await });
                }
            }
        };
        // The last status is often written just before the end.
        self.read_status(pid).await;
        let last_line = || last_line(&self.handoff.log_path());
        let cause = match failure {
            None => ExitCause::Ended,
            Some(ProcessFailure::Signal(signal)) => ExitCause::Signal(signal),
            Some(ProcessFailure::BatchTimedOut) => ExitCause::BatchTimedOut {
                last_line: last_line(),
            },
            Some(ProcessFailure::Status(code)) => ExitCause::Status {
                code,
                last_line: last_line(),
            },
        };
        tracing::info!(pid, %cause, "worker ended");
        let _ = self.events.send(Event::Exited(self.id, cause)).await;
    }

    fn is_ready(&self) -> bool {
        let phase = self.last_status.as_ref().map(|status| &status.phase);
        matches!(phase, Some(WorkerReport::Ready { .. }))
    }

    fn usable_multiprocessors(&self) -> Option<u32> {
        match &self.last_status.as_ref()?.phase {
            WorkerReport::Ready { capacity, .. } => capacity.as_ref()?.multiprocessors,
            _ => None,
        }
    }

    /// Passes on the status if it has changed.
    async fn read_status(&mut self, pid: u32) {
        let Some(status) = current_status(&self.handoff, pid) else {
            return;
        };
        if self.last_status.as_ref() != Some(&status) {
            let event = Event::Reported(self.id.clone(), status.phase.clone());
            self.last_status = Some(status);
            // The receiver lives as long as the process.
            let _ = self.events.send(event).await;
        }
    }
}

/// Returns the status in the hand-over folder if this process wrote it.
pub(super) fn current_status(handoff: &Handoff, pid: u32) -> Option<WorkerStatus> {
    match handoff.read_status() {
        Ok(status) => status.filter(|status| status.process.pid == pid),
        Err(e) => {
            tracing::warn!(pid, error = %e, "status of a worker not read");

            None
        }
    }
}
