//! The flags of the benchmark, and its measurements.

use std::path::PathBuf;

/// The images of a batch at saturation.
pub(super) const BATCH: u32 = 8;
/// The clients that keep batches of [`BATCH`] images full: one batch computes while the next is complete and another fills.
pub(super) const CLIENTS: u32 = 3 * BATCH;

/// The flags of the benchmark.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Time of one measurement, in seconds
    #[arg(long, default_value_t = 5)]
    pub(super) seconds: u64,
    /// Number of measurements of each, of which the median counts
    #[arg(long, default_value_t = 3)]
    pub(super) rounds: usize,
    /// Use the programs beside this one, which are those of the profile `dev` and slower, instead of building release programs
    #[arg(long)]
    pub(super) dev: bool,
    /// Leave out the package, whose compilation takes minutes
    #[arg(long)]
    pub(super) without_package: bool,
    /// File of the report
    #[arg(long, default_value = "docs/benchmarks/cpu-inference.md")]
    pub(super) report: PathBuf,
}

/// The ways to run the network that are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// libtorch with the module as it is, and memory as glibc has it.
    Defaults,
    /// The same with memory that is kept.
    KeptMemory,
    /// The module as a worker prepares it, with memory that is kept.
    Optimised,
    /// A package that was compiled ahead of time, with memory that is kept.
    Package,
    /// The pipeline of a worker, without gateway and network.
    Pipeline,
    /// Client, gateway, agent and worker.
    Packhorse,
}

pub(super) const WAYS: [Way; 6] = [
    Way::Defaults,
    Way::KeptMemory,
    Way::Optimised,
    Way::Package,
    Way::Pipeline,
    Way::Packhorse,
];

/// The ways that have a latency: batches of the pipeline do not wait for each other.
pub(super) const SINGLE_WAYS: [Way; 5] = [
    Way::Defaults,
    Way::KeptMemory,
    Way::Optimised,
    Way::Package,
    Way::Packhorse,
];

/// The measurements of a way, one for each round.
pub(super) struct Rounds {
    pub(super) way: Way,
    pub(super) rounds: Vec<Measured>,
}

/// A measurement of a way.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Measured {
    pub(super) images_per_s: f64,
    /// The median latency of a batch, or of a request; not known of a pipeline.
    pub(super) p50_ms: Option<f64>,
    /// The CPU time of all serving processes per image.
    pub(super) cpu_ms: f64,
    /// The minor page faults of all serving processes per image.
    pub(super) faults: f64,
    /// The time for loading, optimising and warming up; not measured of Packhorse.
    pub(super) start_s: Option<f64>,
}
