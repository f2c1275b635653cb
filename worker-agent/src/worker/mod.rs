//! The worker process: one replica, or one measurement, until it is told to stop.
//!
//! Blocking threads and no runtime: per connection one thread that receives batches straight into the memory of their inputs
//! and one that answers; between them the stages of the pipeline. While one batch computes the next is received and the last is
//! answered. A watchdog ends the process when a program does not come back.

mod bench;
mod connection;
mod drive;
mod fitting;
mod gate;
mod kernels;
mod pipeline;
mod profile;
mod serve;

use std::time::Instant;

pub(crate) use bench::{BenchOptions, bench};
pub(crate) use drive::drive;
pub(crate) use profile::profile;
pub(crate) use serve::serve;

use packhorse_worker_agent::handoff::{
    Handoff, ProcessIdentity, WorkerReport, WorkerStatus, exit_code,
};

use crate::executor::{self, ExecutionError};

#[expect(
    clippy::disallowed_methods,
    reason = "a worker measures the stages of its batches and watches over their limits"
)]
fn now() -> Instant {
    Instant::now()
}

/// Tells the agent where this process is.
struct Reporter<'a> {
    handoff: &'a Handoff,
    process: ProcessIdentity,
}

impl<'a> Reporter<'a> {
    fn new(handoff: &'a Handoff) -> Self {
        let process = ProcessIdentity::current();
        Self { handoff, process }
    }

    fn report(&self, phase: WorkerReport) {
        tracing::info!(?phase, "status");
        let process = self.process;
        if let Err(error) = self.handoff.write_status(&WorkerStatus { process, phase }) {
            tracing::error!(%error, "the agent cannot be told");
        }
    }

    /// Has the agent told why, where libtorch ends the process.
    fn on_terminate(&self) {
        let handoff = self.handoff.clone();
        let last_words = move |error: ExecutionError| {
            Reporter::new(&handoff).failed(error.to_string(), false);
        };
        executor::on_terminate(last_words, exit_code::FAILED);
    }

    fn failed(&self, reason: impl Into<String>, permanent: bool) {
        let reason = reason.into();
        self.report(WorkerReport::Failed { reason, permanent });
    }
}
