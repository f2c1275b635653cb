//! The executors, which run programs: one trait ([`Executor`]), one folder or file per implementation.
//!
//! The worker's receiving threads get a [`PreparedBatch`] from an [`Executor`] and fill its inputs straight from the socket. The batch then
//! goes through three stages, each of which may run on its own thread: copy in ([`LoadedBatch`]), compute ([`ComputedBatch`]) and copy
//! out ([`Executed`]). On a device that works asynchronously, the first two stages only enqueue work, and the third waits for it.

mod error;
mod fill;
mod pieces;
mod pool;
pub(crate) mod recording;
mod signature;
mod simulated;
mod stages;
mod start;
mod started;
pub(crate) mod synthetic;
#[cfg(feature = "torch")]
mod torch;
#[cfg(feature = "torch")]
mod verification;

pub(crate) use error::{ExecutionError, StartError};
pub(crate) use fill::Fill;
pub(crate) use pieces::pieces;
pub(crate) use signature::{check_batch, check_outputs};
pub(crate) use stages::{
    ComputedBatch, Executed, Executor, InputMemory, LoadedBatch, OutputTensor, PreparedBatch,
    RepeatedStage, Weights,
};
pub(crate) use start::{
    LOAD_LIMIT, cuda_memory, exit_now, inspect, known_profile, on_terminate, prepare_parking,
    release_cuda_memory, release_free_memory, start, start_together, try_outputs,
};
pub(crate) use started::{Started, Verified, WarmUpSizes};
