//! Recordings of the kernels that a batch runs.

use std::{fs, path::Path};

use packhorse_kernels::KinetoTrace;
use packhorse_worker_agent::handoff::ExecutorChoice;

use super::{error::RecordError, stages::PreparedBatch};

/// The most bytes of a trace. The trace of a single batch is smaller.
const MAX_TRACE_BYTES: u64 = 256 << 20;

/// Runs a batch and writes its trace to a file, in Chrome's format as Kineto writes it: the kernels of a GPU, or the operators of a CPU.
pub(crate) fn write_trace(
    executor: &ExecutorChoice,
    batch: Box<dyn PreparedBatch>,
    trace: &Path,
) -> Result<(), RecordError> {
    match executor {
        #[cfg(feature = "torch")]
        ExecutorChoice::Torch { cuda_device, .. } => {
            super::torch::write_trace(batch, cuda_device.is_some(), trace)
        }
        _ => {
            let _ = (batch, trace);
            Err(RecordError::Simulated)
        }
    }
}

/// Runs a batch and returns its trace, through a temporary file.
pub(crate) fn record(
    executor: &ExecutorChoice,
    batch: Box<dyn PreparedBatch>,
    trace: &Path,
) -> Result<KinetoTrace, RecordError> {
    let recorded = write_trace(executor, batch, trace).and_then(|()| read_trace(trace));
    let _ = fs::remove_file(trace);
    recorded
}

fn read_trace(trace: &Path) -> Result<KinetoTrace, RecordError> {
    let unreadable = |e: &dyn std::fmt::Display| RecordError::Trace(e.to_string());
    let length = fs::metadata(trace).map_err(|e| unreadable(&e))?.len();
    if length > MAX_TRACE_BYTES {
        return Err(unreadable(&format!(
            "{length} bytes are more than the limit of {MAX_TRACE_BYTES}"
        )));
    }
    let text = fs::read_to_string(trace).map_err(|e| unreadable(&e))?;
    KinetoTrace::from_json(&text).map_err(|e| unreadable(&e))
}

/// Runs a batch in the range that a profiler around this process, such as ncu, measures.
pub(crate) fn run_under_profiler(
    executor: &ExecutorChoice,
    batch: Box<dyn PreparedBatch>,
) -> Result<(), RecordError> {
    match executor {
        #[cfg(feature = "torch")]
        ExecutorChoice::Torch { .. } => super::torch::run_under_profiler(batch),

        _ => {
            drop(batch);
            Err(RecordError::Simulated)
        }
    }
}
