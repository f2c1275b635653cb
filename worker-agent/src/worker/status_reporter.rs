//! The worker's reports to the agent.

use std::{
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread,
    time::Duration,
};

use packhorse_worker_agent::handoff::{
    Handoff, ProcessIdentity, WorkerReport, WorkerStatus, exit_code,
};

use crate::executor;

/// The time between two attempts to write a status that could not be written.
const RETRY_INTERVAL: Duration = Duration::from_millis(200);

/// Writes the status of this process to the hand-over folder. A status that cannot be written, for instance because the disk is full, is written
/// as soon as it can be: the agent and the gateway would wait for it for ever.
#[derive(Clone)]
pub(crate) struct StatusReporter {
    shared: Arc<Shared>,
}

struct Shared {
    handoff: Handoff,
    process: ProcessIdentity,
    /// The newest status if it is not written yet.
    unwritten: Mutex<Option<WorkerReport>>,
    /// Notified when a status that could not be written is.
    written: Condvar,
}

impl StatusReporter {
    /// Creates a reporter, which also reports if libtorch terminates the process.
    pub(crate) fn new(handoff: &Handoff) -> Self {
        let reporter = Self::of(handoff);
        let on_terminate = reporter.clone();
        executor::on_terminate(
            move |error| on_terminate.report_failure(error.to_string(), false),
            exit_code::FAILED,
        );
        reporter
    }

    /// Creates a reporter of a replica in a process that has others, too.
    pub(crate) fn of(handoff: &Handoff) -> Self {
        let shared = Shared {
            handoff: handoff.clone(),
            process: ProcessIdentity::current(),
            unwritten: Mutex::default(),
            written: Condvar::new(),
        };
        Self {
            shared: Arc::new(shared),
        }
    }

    /// Writes a status, at once or as soon as it can be written.
    pub(crate) fn report(&self, phase: WorkerReport) {
        log(&phase);
        let mut unwritten = self.shared.lock();
        let is_retried = unwritten.is_some();
        *unwritten = Some(phase);
        let Err(error) = self.shared.write(&mut unwritten) else {
            return;
        };
        if !is_retried {
            tracing::error!(%error, "status not written; it is tried again");
            let shared = Arc::clone(&self.shared);
            thread::spawn(move || shared.retry());
        }
    }

    /// Writes the result of a process that ends afterwards, and returns once it is written. Until then the agent, which has a time limit,
    /// decides about the process.
    pub(crate) fn report_result(&self, phase: WorkerReport) {
        self.report(phase);
        let unwritten = self.shared.lock();
        let written = self.shared.written.wait_while(unwritten, |u| u.is_some());
        drop(written);
    }

    /// Reports a failure. It is permanent if a restart would fail again.
    pub(crate) fn report_failure(&self, reason: impl Into<String>, permanent: bool) {
        let reason = reason.into();
        self.report(WorkerReport::Failed { reason, permanent });
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Option<WorkerReport>> {
        self.unwritten
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes the newest status. The lock is held meanwhile, so that an older one never follows.
    fn write(
        &self,
        unwritten: &mut Option<WorkerReport>,
    ) -> Result<(), packhorse_worker_agent::handoff::HandoffError> {
        if let Some(phase) = unwritten.clone() {
            let process = self.process;
            self.handoff
                .write_status(&WorkerStatus { process, phase })?;
            *unwritten = None;
            self.written.notify_all();
        }
        Ok(())
    }

    /// Tries until the newest status is written.
    fn retry(&self) {
        loop {
            thread::sleep(RETRY_INTERVAL);
            let mut unwritten = self.lock();
            if self.write(&mut unwritten).is_ok() {
                tracing::info!("status written");
                return;
            }
        }
    }
}

/// Writes a report to the log, without the tables and operators that it contains.
fn log(phase: &WorkerReport) {
    match phase {
        WorkerReport::Measuring { done, total, .. } => tracing::info!(done, total, "measuring"),
        WorkerReport::Measured { done, total, .. } => tracing::info!(done, total, "measured"),
        WorkerReport::Inspected { .. } => tracing::info!("inspected"),
        phase => tracing::info!(?phase, "status"),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_status_that_cannot_be_written_is_written_once_it_can_be_and_only_the_newest() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("handoff");
        let handoff = Handoff::new(&folder);
        let reporter = StatusReporter::of(&handoff);
        // The folder is not there yet.
        reporter.report(WorkerReport::Loading);
        assert!(reporter.shared.lock().is_some());
        reporter.report_failure("newest", false);
        fs::create_dir(&folder).unwrap();
        let result = WorkerReport::Inspected {
            operators: "{}".to_owned(),
        };
        reporter.report_result(result.clone());
        let status = handoff.read_status().unwrap().unwrap();
        assert_eq!(status.phase, result);
        assert!(reporter.shared.lock().is_none());
    }

    #[test]
    fn a_result_is_waited_for_until_it_is_written() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("handoff");
        let handoff = Handoff::new(&folder);
        let reporter = StatusReporter::of(&handoff);
        let result = WorkerReport::Inspected {
            operators: "{}".to_owned(),
        };
        let waiting = thread::spawn({
            let (reporter, result) = (reporter.clone(), result.clone());
            move || reporter.report_result(result)
        });
        while reporter.shared.lock().is_none() {
            thread::yield_now();
        }
        assert!(!waiting.is_finished());
        fs::create_dir(&folder).unwrap();
        waiting.join().unwrap();
        assert_eq!(handoff.read_status().unwrap().unwrap().phase, result);
    }
}
