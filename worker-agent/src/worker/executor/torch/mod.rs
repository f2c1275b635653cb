//! The executor of libtorch: TorchScript programs, and packages that were compiled ahead of time, on the CPU or on a CUDA device.

mod attempt;
mod backbone;
mod batch;
mod device;
mod error;
mod executor;
mod graphs;
mod inspect;
#[cfg(test)]
mod networks;
mod options;
mod package;
mod profiler;
mod programs;
mod record_graphs;
mod row_padding;
mod seal_weights;
mod shim;
mod start;
mod together;
mod trial;
mod verified;
mod verify;
mod verify_recordings;
mod warm_up;
mod weights;

use super::error::ExecutionError;
pub(super) use backbone::start_together;
pub(super) use inspect::inspect;
pub(super) use options::StartOptions;
pub(super) use profiler::{run_under_profiler, write_trace};
pub(super) use shim::{
    cuda_memory, exit_now, prepare_regions, release_cuda_memory, release_free_memory,
};
pub(super) use start::start;
pub(super) use trial::try_outputs;

/// Sets a function that is called with the cause if libtorch terminates the process.
pub(super) fn on_terminate(report: impl Fn(ExecutionError) + Send + Sync + 'static, code: u8) {
    shim::on_terminate(Box::new(move |error| report(error.into())), code);
}
