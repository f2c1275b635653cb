//! How an agent's workers pipeline their batches, and whether they keep to compute shares. What differs from the defaults is for
//! comparisons: of streams and shares, the four configurations in E. Elvinger, "Towards resource and interference-aware scheduling of
//! ML workloads", section 4.5.2.

use clap::{Args, ValueEnum, value_parser};

use crate::{devices::Backend, handoff::Pipeline};

/// On, off, or whatever is best on a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Streams {
    /// On for GPUs, off for CPUs.
    #[default]
    Auto,
    /// Copies and computing overlap.
    On,
    /// One thing after the other.
    Off,
}

/// On or off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Switch {
    /// On.
    On,
    /// Off.
    Off,
}

/// How workers pipeline.
#[derive(Clone, Copy, Debug, Args)]
pub struct PipelineOptions {
    /// Whether workers copy one batch in or out while they compute another: auto is on for GPUs
    #[arg(long, env = "PACKHORSE_STREAMS", value_enum, default_value_t)]
    pub streams: Streams,

    /// Whether replicas keep to the compute shares of the plan
    #[arg(long, env = "PACKHORSE_COMPUTE_SHARES", value_enum, default_value_t = Switch::On)]
    pub compute_shares: Switch,

    /// Batches that a worker takes before it has answered one
    #[arg(long, env = "PACKHORSE_IN_FLIGHT", value_name = "BATCHES", default_value_t = Pipeline::DEFAULT_IN_FLIGHT,
        value_parser = value_parser!(u32).range(1..=i64::from(Pipeline::MAX_IN_FLIGHT)))]
    pub in_flight: u32,

    /// Record what GPUs do for the usual batch sizes once, and play it again (CUDA graphs); models that cannot be recorded run as
    /// ever
    #[arg(long, env = "PACKHORSE_CUDA_GRAPHS")]
    pub cuda_graphs: bool,
}

impl PipelineOptions {
    /// On a device of this kind.
    pub fn of(&self, backend: Backend) -> Pipeline {
        let is_gpu = backend == Backend::Cuda;
        Pipeline {
            in_flight: self.in_flight,
            streams: match self.streams {
                Streams::Auto => is_gpu,
                Streams::On => true,
                Streams::Off => false,
            },
            graphs: self.cuda_graphs && is_gpu,
        }
    }
}
