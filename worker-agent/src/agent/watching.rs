//! The watch over one worker process: what it reports, how it ends, and whether MPS took effect for it.

use std::time::Duration;

use packhorse_cluster::ComputeShare;
use packhorse_reconcile::{Event, ExitCause, TaskId, WorkerReport};
use tokio::{
    sync::mpsc,
    time::{MissedTickBehavior, interval},
};

use super::{
    log::last_line,
    mps::{MpsDevice, Seen},
    process::{Process, ProcessFailure},
};
use crate::handoff::{Handoff, WorkerStatus};

/// How often a worker's status is looked at until it is ready.
const LOOK_WHILE_LOADING: Duration = Duration::from_millis(25);
/// And afterwards: what it then has to say, it mostly says by ending, which is noticed at once.
const LOOK_WHEN_READY: Duration = Duration::from_millis(250);

/// Follows one process and its status.
pub(super) struct Watch {
    pub(super) id: TaskId,
    pub(super) mps: Option<MpsDevice>,
    /// Of the device's multiprocessors.
    pub(super) share: Option<ComputeShare>,
    pub(super) multiprocessors: Option<u32>,
    pub(super) handoff: Handoff,
    pub(super) last: Option<WorkerStatus>,
    pub(super) events: mpsc::Sender<Event>,
}

impl Watch {
    /// Until the process has ended.
    pub(super) async fn run(mut self, mut process: Process) {
        let pid = process.pid();
        let mut looks = interval(LOOK_WHILE_LOADING);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let failure = loop {
            let was_ready = self.is_ready();
            tokio::select! {
                biased;
                failure = process.ended() => break failure,
                _ = looks.tick() => self.look(pid).await,
            }
            if self.is_ready() && !was_ready {
                looks = interval(LOOK_WHEN_READY);
                looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
                if let Some(mps) = self.mps.clone() {
                    let seen = Seen {
                        share: self.share,
                        of: self.multiprocessors,
                        usable: self.usable_multiprocessors(),
                    };
                    tokio::spawn(async move { mps.check(pid, seen).await });
                }
            }
        };
        // Its last word is often written just before the end.
        self.look(pid).await;
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
        let phase = self.last.as_ref().map(|status| &status.phase);
        matches!(phase, Some(WorkerReport::Ready { .. }))
    }

    fn usable_multiprocessors(&self) -> Option<u32> {
        match &self.last.as_ref()?.phase {
            WorkerReport::Ready { capacity, .. } => capacity.as_ref()?.multiprocessors,
            _ => None,
        }
    }

    /// Tells of the status if it has changed.
    async fn look(&mut self, pid: u32) {
        let Some(status) = current_status(&self.handoff, pid) else {
            return;
        };
        if self.last.as_ref() != Some(&status) {
            let event = Event::Reported(self.id.clone(), status.phase.clone());
            self.last = Some(status);
            // The receiver lives as long as the process does.
            let _ = self.events.send(event).await;
        }
    }
}

/// What the worker last said, if it was this process that said it.
pub(super) fn current_status(handoff: &Handoff, pid: u32) -> Option<WorkerStatus> {
    match handoff.read_status() {
        Ok(status) => status.filter(|status| status.process.pid == pid),
        Err(e) => {
            tracing::warn!(pid, error = %e, "status not read");
            None
        }
    }
}
