//! What a batch runs on its device, kernel by kernel.

use std::{fs, path::Path};

use packhorse_kernels::KinetoTrace;

use super::{ExecutionError, PreparedBatch};
use packhorse_worker_agent::handoff::ExecutorChoice;

/// A trace that is larger is of something else than one batch.
const MAX_TRACE_BYTES: u64 = 256 << 20;

/// Why a batch could not be recorded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum RecordError {
    /// The batch failed.
    #[error(transparent)]
    Execution(#[from] ExecutionError),
    /// The profiler does not work here.
    #[cfg_attr(
        not(feature = "torch"),
        expect(dead_code, reason = "a simulation has no profiler")
    )]
    #[error("the profiler failed: {0}")]
    Profiler(String),
    /// The profiler's file cannot be read.
    #[error("the profiler's trace cannot be read: {0}")]
    Trace(String),
    /// There is nothing to record.
    #[error("a simulation runs nothing that could be recorded")]
    Simulated,
}

/// Runs a batch and writes what it ran to a file, in Chrome's trace format, as Kineto writes it: a GPU's kernels, or a CPU's operators.
pub(crate) fn write_trace(
    on: &ExecutorChoice,
    batch: Box<dyn PreparedBatch>,
    trace: &Path,
) -> Result<(), RecordError> {
    match on {
        #[cfg(feature = "torch")]
        ExecutorChoice::Torch { cuda_device, .. } => {
            super::torch::record(batch, cuda_device.is_some(), trace)
        }
        _ => {
            let _ = (batch, trace);
            Err(RecordError::Simulated)
        }
    }
}

/// Runs a batch and reads which kernels it ran, by way of a file that is gone afterwards.
pub(crate) fn kernels(
    on: &ExecutorChoice,
    batch: Box<dyn PreparedBatch>,
    trace: &Path,
) -> Result<KinetoTrace, RecordError> {
    let read = write_trace(on, batch, trace).and_then(|()| read(trace));
    let _ = fs::remove_file(trace);
    read
}

fn read(trace: &Path) -> Result<KinetoTrace, RecordError> {
    let unreadable = |e: &dyn std::fmt::Display| RecordError::Trace(e.to_string());
    let length = fs::metadata(trace).map_err(|e| unreadable(&e))?.len();
    if length > MAX_TRACE_BYTES {
        return Err(unreadable(&format!(
            "{length} bytes are over the limit of {MAX_TRACE_BYTES}"
        )));
    }
    let text = fs::read_to_string(trace).map_err(|e| unreadable(&e))?;
    KinetoTrace::from_json(&text).map_err(|e| unreadable(&e))
}

/// Runs a batch as what a profiler around this process, ncu say, is to look at.
pub(crate) fn under_profiler(
    on: &ExecutorChoice,
    batch: Box<dyn PreparedBatch>,
) -> Result<(), RecordError> {
    match on {
        #[cfg(feature = "torch")]
        ExecutorChoice::Torch { .. } => super::torch::under_profiler(batch),
        _ => {
            drop(batch);
            Err(RecordError::Simulated)
        }
    }
}
