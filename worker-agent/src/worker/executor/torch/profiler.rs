//! One batch under libtorch's profiler (Kineto), or under a profiler around the process.

use std::{mem, path::Path};

use super::{
    error::TorchError,
    shim::{ProfilerRange, ProfilerRecording},
};
use crate::executor::{
    error::RecordError,
    stages::{PreparedBatch, RepeatedStage},
};

/// Runs a batch and writes its trace to a file, in Chrome's format: the kernels of a GPU, or the operators of a CPU.
pub(in crate::executor) fn write_trace(
    batch: Box<dyn PreparedBatch>,
    cuda: bool,
    trace: &Path,
) -> Result<(), RecordError> {
    let failed = |error: TorchError| RecordError::Profiler(error.summary());
    let loaded = batch.copy_in()?;
    ProfilerRecording::prepare(cuda).map_err(failed)?;
    // The profiler completes its set-up with the first work after it, which would be visible as pauses in the recording.
    let mut first = true;
    loaded.repeat(RepeatedStage::Compute, &mut || mem::take(&mut first))?;
    let recording = ProfilerRecording::start(cuda).map_err(failed)?;
    loaded.compute()?.copy_out()?;
    recording.save(trace).map_err(failed)
}

/// Runs a batch in the range that a profiler around this process measures.
pub(in crate::executor) fn run_under_profiler(
    batch: Box<dyn PreparedBatch>,
) -> Result<(), RecordError> {
    let range = ProfilerRange::begin();
    batch.run()?;
    drop(range);
    Ok(())
}
