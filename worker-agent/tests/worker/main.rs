//! The real worker process, over real sockets and a real hand-over folder.
#![expect(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "the helpers of a test may panic like the test itself, and wait by the clock"
)]

#[cfg(feature = "torch")]
mod answers;
#[cfg(feature = "torch")]
mod backbone;
#[cfg(feature = "torch")]
mod cold;
#[cfg(feature = "torch")]
mod confinement;
#[cfg(feature = "torch")]
mod cuda;
#[cfg(feature = "torch")]
mod cuda_memory;
#[cfg(feature = "torch")]
mod cuda_pool;
#[cfg(feature = "torch")]
mod detection;
mod gateway;
#[cfg(feature = "torch")]
mod inspect;
#[cfg(feature = "torch")]
mod kernels;
mod local;
#[cfg(feature = "torch")]
mod package;
#[cfg(feature = "torch")]
mod parking;
#[cfg(feature = "torch")]
mod pipeline;
#[cfg(feature = "torch")]
mod pool;
mod process;
#[cfg(feature = "torch")]
mod reused;
mod simulated;
#[cfg(feature = "torch")]
mod simulated_pool;
#[cfg(feature = "torch")]
mod torch;
#[cfg(feature = "torch")]
mod trial;
#[cfg(feature = "torch")]
mod turns;
