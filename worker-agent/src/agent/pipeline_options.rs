//! The flags of the workers' pipelines and of compute shares. Settings other than the defaults are for comparisons. Streams and shares
//! together give the four configurations in E. Elvinger, "Towards resource and interference-aware scheduling of ML workloads", section
//! 4.5.2.

use clap::{Args, ValueEnum, value_parser};
use packhorse_worker_agent::{
    devices::Backend,
    handoff::{Optimize, PipelineSettings},
};

/// On, off, or the best setting for the device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(super) enum Streams {
    /// On for GPUs, off for CPUs
    #[default]
    Auto,
    /// Copies and computing overlap
    On,
    /// The stages run one after the other
    Off,
}

/// The workers that are confined.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Confined {
    /// Those without a GPU
    Cpu,
    /// All
    All,
    /// None
    Off,
}

impl Confined {
    /// Returns true if a worker is confined that has a GPU, or has none.
    pub(super) fn includes(self, has_gpu: bool) -> bool {
        match self {
            Self::Cpu => !has_gpu,
            Self::All => true,
            Self::Off => false,
        }
    }
}

/// On or off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Switch {
    On,
    Off,
}

/// The flags of the workers' pipelines.
#[derive(Clone, Copy, Debug, Args)]
pub(super) struct PipelineOptions {
    /// Overlap of copying one batch with computing another; auto is on for GPUs
    #[arg(long, env = "PACKHORSE_STREAMS", value_enum, default_value_t)]
    pub(super) streams: Streams,

    /// Limit replicas to the compute shares of the plan
    #[arg(long, env = "PACKHORSE_COMPUTE_SHARES", value_enum, default_value_t = Switch::On)]
    pub(super) compute_shares: Switch,

    /// Number of batches that a worker accepts before it has answered one
    #[arg(long, env = "PACKHORSE_IN_FLIGHT", value_name = "BATCHES", default_value_t = PipelineSettings::DEFAULT_IN_FLIGHT,
        value_parser = value_parser!(u32).range(1..=i64::from(PipelineSettings::MAX_IN_FLIGHT)))]
    pub(super) in_flight: u32,

    /// Record a GPU's work for each batch size once and replay it (CUDA graphs); models that cannot be recorded run without
    #[arg(long, env = "PACKHORSE_CUDA_GRAPHS", value_enum, default_value_t = Switch::On)]
    pub(super) cuda_graphs: Switch,

    /// Optimization of TorchScript programs when they are loaded
    #[arg(long, env = "PACKHORSE_OPTIMIZE", value_enum, default_value_t)]
    pub(super) optimize: Optimize,
}

impl PipelineOptions {
    /// Returns the settings of a pipeline on a device with this backend.
    pub(super) fn for_backend(self, backend: Backend) -> PipelineSettings {
        let is_gpu = backend == Backend::Cuda;
        PipelineSettings {
            in_flight: self.in_flight,
            streams: match self.streams {
                Streams::Auto => is_gpu,
                Streams::On => true,
                Streams::Off => false,
            },
            graphs: self.cuda_graphs == Switch::On && is_gpu,
        }
    }
}
