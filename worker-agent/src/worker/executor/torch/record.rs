//! One batch under libtorch's profiler (Kineto), or under a profiler around the process.

use std::{mem, path::Path};

use super::shim::{ProfilerRange, Recording, Thrown};
use crate::executor::{PreparedBatch, Repeated, recording::RecordError};

/// Runs a batch and writes what it ran to `trace`, in Chrome's trace format: a GPU's kernels, or a CPU's operators.
pub(in super::super) fn record(
    batch: Box<dyn PreparedBatch>,
    cuda: bool,
    trace: &Path,
) -> Result<(), RecordError> {
    let profiler = |thrown: Thrown| RecordError::Profiler(thrown.summary());
    let loaded = batch.copy_in()?;
    Recording::prepare(cuda).map_err(profiler)?;
    // What the profiler sets up with the first work it sees would be pauses in the recording.
    let mut first = true;
    loaded.repeat(Repeated::Compute, &mut || mem::take(&mut first))?;
    let recording = Recording::begin(cuda).map_err(profiler)?;
    loaded.compute()?.copy_out()?;
    recording.save(trace).map_err(profiler)
}

/// Runs a batch as what a profiler around this process is to look at.
pub(in super::super) fn under_profiler(batch: Box<dyn PreparedBatch>) -> Result<(), RecordError> {
    let range = ProfilerRange::begin();
    batch.run()?;
    drop(range);
    Ok(())
}
