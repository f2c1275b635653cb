//! The flags of a measurement.

use std::path::PathBuf;

use clap::{Args, ValueEnum, value_parser};
use packhorse_worker_agent::handoff::{Optimize, PipelineSettings};

const EXAMPLES: &str = "\
Examples:
  packhorse-worker bench --model resnet50.pt --signature model.json --batch-size 16 --cuda-device 0
      The pipeline under full load on the first GPU.
  packhorse-worker bench --model resnet50.pt --signature model.json --batch-size 16 --cuda-device 0 --tight
      libtorch alone with the same batch: the upper bound.
  packhorse-worker bench --model resnet50.pt --signature model.json --batch-size 16 --cuda-device 0 --turns 5 --seconds 1
      Both in turn, in one process: `turns` compares them, however fast this process happens to launch kernels.
  packhorse-worker bench --model resnet50.pt --signature model.json --streams off --in-flight 1
      One batch at a time, on the CPU.
  packhorse-worker bench --model resnet50.pt --signature model.json --tight --defaults
      libtorch alone, on the CPU, without what a worker does to be fast.";

/// The flags of a measurement.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "they are flags of a command line"
)]
pub(crate) struct BenchOptions {
    /// File with the TorchScript program or the package
    #[arg(long, value_name = "FILE")]
    pub(super) model: PathBuf,

    /// JSON file with the model's `inputs` and `outputs`, such as the file of its registration
    #[arg(long, value_name = "FILE")]
    pub(super) signature: PathBuf,

    /// File with another program that shares its backbone with the first; its batches are sent in turn (may be repeated)
    #[arg(long, value_name = "FILE", conflicts_with_all = ["tight", "defaults", "turns"])]
    pub(super) also: Vec<PathBuf>,

    /// Number of rows in a batch that is sent [default: those of --batch-size]
    #[arg(long, value_name = "ROWS", requires = "also", value_parser = value_parser!(u32).range(1..=65_536))]
    pub(super) rows: Option<u32>,

    /// Number of rows in a batch that is computed
    #[arg(long, value_name = "ROWS", default_value_t = 1, value_parser = value_parser!(u32).range(1..=65_536))]
    pub(super) batch_size: u32,

    /// Index of the GPU [default: the CPU]
    #[arg(long, value_name = "INDEX")]
    pub(super) cuda_device: Option<u32>,

    /// Number of threads that a batch may use on the CPU
    #[arg(long, default_value_t = 1, value_parser = value_parser!(u32).range(1..=1024))]
    pub(super) threads: u32,

    /// Duration of the measurement, in seconds
    #[arg(long, default_value_t = 5, value_parser = value_parser!(u64).range(1..=3600))]
    pub(super) seconds: u64,

    /// Number of batches in flight
    #[arg(long, value_name = "BATCHES", default_value_t = PipelineSettings::DEFAULT_IN_FLIGHT,
        value_parser = value_parser!(u32).range(1..=i64::from(PipelineSettings::MAX_IN_FLIGHT)))]
    pub(super) in_flight: u32,

    /// Overlap of copying one batch with computing another [default: on for a GPU]
    #[arg(long, value_enum)]
    pub(super) streams: Option<Switch>,

    /// Recording of the GPU's work, which is then replayed (CUDA graphs) [default: on for a GPU]
    #[arg(long, value_enum, conflicts_with = "defaults")]
    pub(super) graphs: Option<Switch>,

    /// Optimization of TorchScript programs: verified with random inputs, as an agent's workers do it, trusted, or none
    #[arg(long, value_enum, default_value_t, conflicts_with = "defaults")]
    pub(super) optimize: Optimize,

    /// Only compute, repeatedly, one batch that stays on the device
    #[arg(long)]
    pub(super) tight: bool,

    /// Number of turns in which first the loop of --tight is measured and then the pipeline, in the same process
    #[arg(long, value_name = "TURNS", conflicts_with = "tight", value_parser = value_parser!(u32).range(1..=1000))]
    pub(super) turns: Option<u32>,

    /// Run TorchScript as it is, in the environment of this command: neither optimised, nor with memory that is kept between batches
    #[arg(long)]
    pub(super) defaults: bool,

    /// When warm, write `warm` to standard error and wait for the end of standard input, so that several workers can begin together
    #[arg(long)]
    pub(super) wait: bool,

    /// The environment is already that of a worker
    #[arg(long, hide = true)]
    pub(super) prepared: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Switch {
    On,
    Off,
}
