//! The worker's reports to the agent.

use packhorse_worker_agent::handoff::{
    Handoff, ProcessIdentity, WorkerReport, WorkerStatus, exit_code,
};

use crate::executor;

/// Writes the status of this process to the hand-over folder.
#[derive(Clone)]
pub(crate) struct StatusReporter {
    handoff: Handoff,
    process: ProcessIdentity,
}

impl StatusReporter {
    /// Creates a reporter, which also reports if libtorch terminates the process.
    pub(crate) fn new(handoff: &Handoff) -> Self {
        let reporter = Self {
            handoff: handoff.clone(),
            process: ProcessIdentity::current(),
        };
        let on_terminate = reporter.clone();
        executor::on_terminate(
            move |error| on_terminate.report_failure(error.to_string(), false),
            exit_code::FAILED,
        );
        reporter
    }

    /// Writes a status.
    pub(crate) fn report(&self, phase: WorkerReport) {
        log(&phase);
        let process = self.process;
        if let Err(error) = self.handoff.write_status(&WorkerStatus { process, phase }) {
            tracing::error!(%error, "status not written");
        }
    }

    /// Reports a failure. It is permanent if a restart would fail again.
    pub(crate) fn report_failure(&self, reason: impl Into<String>, permanent: bool) {
        let reason = reason.into();
        self.report(WorkerReport::Failed { reason, permanent });
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
