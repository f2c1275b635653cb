//! The watch over one worker process: it passes on the worker's reports and its end, and checks that MPS took effect.

use std::{path::Path, time::Duration};

use packhorse_cluster::ComputeShare;
use packhorse_reconcile::{Event, ExitCause, WorkerReport};
use tokio::time::{Instant, MissedTickBehavior, interval, interval_at};

use crate::{
    log_tail::last_line,
    mps::{MpsDevice, ObservedShare},
    process::{Process, ProcessFailure},
    status_watch::StatusWatch,
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
    /// The watch over the worker's hand-over folder.
    pub(super) status: StatusWatch,
    /// MPS on the worker's GPU.
    pub(super) mps: Option<MpsDevice>,
    /// The worker's share of the device's multiprocessors.
    pub(super) share: Option<ComputeShare>,
    /// The number of the device's multiprocessors.
    pub(super) multiprocessors: Option<u32>,
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
            let was_ready = self.status.is_ready();
            tokio::select! {
                biased;
                failure = process.wait() => break failure,
                _ = ticks.tick() => self.status.read(pid).await,
                _ = probes.tick(), if !was_ready => self.status.probe().await,
            }
            if self.status.is_ready() && !was_ready {
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
        self.status.read(pid).await;
        let cause = exit_cause(failure, &self.status.handoff.log_path());
        tracing::info!(pid, %cause, "worker ended");
        let id = self.status.id.clone();
        self.status.send(Event::Exited(id, cause)).await;
    }

    fn usable_multiprocessors(&self) -> Option<u32> {
        match self.status.report()? {
            WorkerReport::Ready { capacity, .. } => capacity.as_ref()?.multiprocessors,
            _ => None,
        }
    }
}

/// Watches a task that a process does beside or after others, until it has ended, or the process has, which `ended` waits for.
pub(super) async fn watch_shared(
    mut status: StatusWatch,
    pid: u32,
    ended: impl Future<Output = ExitCause>,
) {
    let mut ended = std::pin::pin!(ended);
    let mut ticks = interval(INTERVAL_WHILE_LOADING);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut probes = interval_at(Instant::now() + INTERVAL_OF_PROBES, INTERVAL_OF_PROBES);
    probes.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let cause = loop {
        let was_ready = status.is_ready();
        tokio::select! {
            biased;
            cause = &mut ended => {
                // The last status is often written just before the end.
                status.read(pid).await;
                break cause;
            }
            _ = ticks.tick() => {
                status.read(pid).await;
                if status.report().is_some_and(WorkerReport::is_final) {
                    break ExitCause::Ended;
                }
            }
            _ = probes.tick(), if !was_ready => status.probe().await,
        }
        if status.is_ready() != was_ready {
            ticks = interval(if was_ready {
                INTERVAL_WHILE_LOADING
            } else {
                INTERVAL_WHEN_READY
            });
            ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        }
    };
    let id = status.id.clone();
    status.send(Event::Exited(id, cause)).await;
}

/// Returns the cause of a process's end, with the last line of its log.
pub(super) fn exit_cause(failure: Option<ProcessFailure>, log: &Path) -> ExitCause {
    match failure {
        None => ExitCause::Ended,
        Some(ProcessFailure::Signal(signal)) => ExitCause::Signal(signal),
        Some(ProcessFailure::BatchTimedOut) => ExitCause::BatchTimedOut {
            last_line: last_line(log),
        },
        Some(ProcessFailure::Status(code)) => ExitCause::Status {
            code,
            last_line: last_line(log),
        },
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, process::Command};

    use packhorse_reconcile::TaskId;
    use packhorse_worker_agent::handoff::{Handoff, WorkerStatus};
    use tokio::sync::mpsc;

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
            status: StatusWatch {
                id: id.clone(),
                handoff: handoff.clone(),
                last_status: None,
                events: sender,
                obstacle: None,
                seen: None,
            },
            mps: None,
            share: None,
            multiprocessors: None,
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
