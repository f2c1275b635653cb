//! One batch under libtorch's profiler (Kineto), or under a profiler around the process.

use std::path::Path;

use super::shim::{ProfilerRange, Recording};
use crate::executor::{PreparedBatch, recording::RecordError};

/// Runs a batch and writes what it ran to `trace`, in Chrome's trace format: a GPU's kernels, or a CPU's operators.
pub(in super::super) fn record(
    batch: Box<dyn PreparedBatch>,
    cuda: bool,
    trace: &Path,
) -> Result<(), RecordError> {
    let recording = Recording::begin(cuda).map_err(|e| RecordError::Profiler(e.summary()))?;
    batch.run()?;
    let saved = recording.save(trace);
    saved.map_err(|e| RecordError::Profiler(e.summary()))
}

/// Runs a batch as what a profiler around this process is to look at.
pub(in super::super) fn under_profiler(batch: Box<dyn PreparedBatch>) -> Result<(), RecordError> {
    let range = ProfilerRange::begin();
    batch.run()?;
    drop(range);
    Ok(())
}
