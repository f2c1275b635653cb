//! The watch over one worker process: it passes on the worker's reports and its end, and checks that MPS took effect.

use std::time::Duration;

use packhorse_cluster::ComputeShare;
use packhorse_reconcile::{Event, ExitCause, TaskId, WorkerReport};
use packhorse_worker_agent::handoff::{Handoff, WorkerStatus};
use tokio::{
    sync::mpsc,
    time::{Instant, MissedTickBehavior, interval, interval_at},
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
/// The interval between two looks at whether a worker that is not ready could say so.
const INTERVAL_OF_PROBES: Duration = Duration::from_secs(1);

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
    /// The reason why the worker cannot report, if it cannot.
    pub(super) obstacle: Option<String>,
}

impl WorkerWatch {
    /// Watches the process until it has ended.
    pub(super) async fn run(mut self, mut process: Process) {
        let pid = process.pid();
        let mut ticks = interval(INTERVAL_WHILE_LOADING);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut probes = interval_at(Instant::now() + INTERVAL_OF_PROBES, INTERVAL_OF_PROBES);
        probes.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let failure = loop {
            let was_ready = self.is_ready();
            tokio::select! {
                biased;
                failure = process.wait() => break failure,
                _ = ticks.tick() => self.read_status(pid).await,
                _ = probes.tick(), if !was_ready => self.probe().await,
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

    /// Finds out whether the worker could report, which it cannot say itself.
    async fn probe(&mut self) {
        let obstacle = self.handoff.status_obstacle();
        self.set_obstacle(obstacle.map(|error| error.to_string()))
            .await;
    }

    async fn set_obstacle(&mut self, obstacle: Option<String>) {
        if self.obstacle == obstacle {
            return;
        }
        if let Some(obstacle) = &obstacle {
            tracing::warn!(error = obstacle, "a worker cannot write its status");
        }
        self.obstacle.clone_from(&obstacle);
        let event = Event::ReportsFail(self.id.clone(), obstacle);
        let _ = self.events.send(event).await;
    }

    /// Passes on the status if it has changed.
    async fn read_status(&mut self, pid: u32) {
        let Some(status) = current_status(&self.handoff, pid) else {
            return;
        };
        if self.last_status.as_ref() != Some(&status) {
            self.set_obstacle(None).await;
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

#[cfg(test)]
mod tests {
    use std::{fs, process::Command};

    use super::*;

    #[tokio::test]
    async fn a_worker_that_cannot_write_its_status_is_noticed_and_heard_once_it_can() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("handoff");
        let handoff = Handoff::new(&folder);
        let process = Process::spawn(Command::new("sleep").arg("60")).unwrap();
        let (pid, signaller) = (process.pid(), process.signaller());
        let id = TaskId::Replica("1-0".parse().unwrap());
        let (sender, mut events) = mpsc::channel(8);
        let watch = WorkerWatch {
            id: id.clone(),
            mps: None,
            share: None,
            multiprocessors: None,
            handoff: handoff.clone(),
            last_status: None,
            events: sender,
            obstacle: None,
        };
        let watch = tokio::spawn(watch.run(process));
        // The folder is not there, so that nobody can write there.
        let Some(Event::ReportsFail(task, Some(obstacle))) = events.recv().await else {
            panic!("the obstacle is told first")
        };
        assert_eq!(task, id);
        assert!(obstacle.starts_with("status.json: "), "{obstacle}");

        fs::create_dir(&folder).unwrap();
        assert_eq!(
            events.recv().await,
            Some(Event::ReportsFail(id.clone(), None))
        );
        let process = packhorse_worker_agent::handoff::ProcessIdentity {
            pid,
            ..packhorse_worker_agent::handoff::ProcessIdentity::current()
        };
        let phase = WorkerReport::Loading;
        let status = WorkerStatus {
            process,
            phase: phase.clone(),
        };
        handoff.write_status(&status).unwrap();
        assert_eq!(events.recv().await, Some(Event::Reported(id, phase)));
        let left: Vec<_> = fs::read_dir(&folder).unwrap().collect();
        assert_eq!(left.len(), 1, "{left:?}");
        signaller.kill();
        watch.await.unwrap();
    }
}
