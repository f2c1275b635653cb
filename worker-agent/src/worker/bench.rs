//! `packhorse-worker bench`: measures the throughput of a worker that always has another batch, without a gateway and its network.

mod measurement;
mod process_usage;
mod report;

use std::{
    env, fs,
    io::{self, Write},
    os::unix::process::CommandExt as _,
    path::{Path, PathBuf},
    process::Command,
};

use clap::{Args, ValueEnum, value_parser};
use packhorse_cluster::{ArtifactDigest, ByteCount, Program, TensorSpec};
use packhorse_wire::TensorHeader;
use packhorse_worker_agent::handoff::{
    Execution, ExecutorChoice, PipelineSettings, worker_environment,
};
use serde::Deserialize;

use crate::executor::{self, synthetic};
use measurement::{Bench, Measurement};
use report::{Report, Stages, Summary};

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

/// The exit code of a failed measurement.
const FAILED: u8 = 1;

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
    model: PathBuf,

    /// JSON file with the model's `inputs` and `outputs`, such as the file of its registration
    #[arg(long, value_name = "FILE")]
    signature: PathBuf,

    /// File with another program that shares its backbone with the first; its batches are sent in turn (may be repeated)
    #[arg(long, value_name = "FILE", conflicts_with_all = ["tight", "defaults", "turns"])]
    also: Vec<PathBuf>,

    /// Number of rows in a batch that is sent [default: those of --batch-size]
    #[arg(long, value_name = "ROWS", requires = "also", value_parser = value_parser!(u32).range(1..=65_536))]
    rows: Option<u32>,

    /// Number of rows in a batch that is computed
    #[arg(long, value_name = "ROWS", default_value_t = 1, value_parser = value_parser!(u32).range(1..=65_536))]
    batch_size: u32,

    /// Index of the GPU [default: the CPU]
    #[arg(long, value_name = "INDEX")]
    cuda_device: Option<u32>,

    /// Number of threads that a batch may use on the CPU
    #[arg(long, default_value_t = 1, value_parser = value_parser!(u32).range(1..=1024))]
    threads: u32,

    /// Duration of the measurement, in seconds
    #[arg(long, default_value_t = 5, value_parser = value_parser!(u64).range(1..=3600))]
    seconds: u64,

    /// Number of batches in flight
    #[arg(long, value_name = "BATCHES", default_value_t = PipelineSettings::DEFAULT_IN_FLIGHT,
        value_parser = value_parser!(u32).range(1..=i64::from(PipelineSettings::MAX_IN_FLIGHT)))]
    in_flight: u32,

    /// Overlap of copying one batch with computing another [default: on for a GPU]
    #[arg(long, value_enum)]
    streams: Option<Switch>,

    /// Recording of the GPU's work, which is then replayed (CUDA graphs) [default: on for a GPU]
    #[arg(long, value_enum, conflicts_with = "defaults")]
    graphs: Option<Switch>,

    /// Only compute, repeatedly, one batch that stays on the device
    #[arg(long)]
    tight: bool,

    /// Number of turns in which first the loop of --tight is measured and then the pipeline, in the same process
    #[arg(long, value_name = "TURNS", conflicts_with = "tight", value_parser = value_parser!(u32).range(1..=1000))]
    turns: Option<u32>,

    /// Run TorchScript as it is, in the environment of this command: neither optimised, nor with memory that is kept between batches
    #[arg(long)]
    defaults: bool,

    /// When warm, write `warm` to standard error and wait for the end of standard input, so that several workers can begin together
    #[arg(long)]
    wait: bool,

    /// The environment is already that of a worker
    #[arg(long, hide = true)]
    prepared: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Switch {
    On,
    Off,
}

/// The part of a registration that is needed here.
#[derive(Deserialize)]
struct Signature {
    inputs: Vec<TensorSpec>,
    outputs: Vec<TensorSpec>,
}

/// Measures, prints the outcome and returns the exit code.
pub(crate) fn bench(options: &BenchOptions) -> u8 {
    executor::on_terminate(|error| print_error(&error.to_string()), FAILED);
    if !options.defaults && !options.prepared {
        print_error(&restart_prepared(options));
        return FAILED;
    }
    let outcome = run(options).and_then(|report| {
        let json = serde_json::to_string_pretty(&report).expect("the report is JSON");
        writeln!(io::stdout(), "{json}").map_err(|e| e.to_string())
    });
    match outcome {
        Ok(()) => 0,
        Err(reason) => {
            print_error(&reason);
            FAILED
        }
    }
}

/// Restarts this program in the environment that an agent gives to workers, much of which has an effect only when a process starts.
/// Returns only if that fails, with the reason.
fn restart_prepared(options: &BenchOptions) -> String {
    let error = Command::new("/proc/self/exe")
        .args(env::args_os().skip(1))
        .arg("--prepared")
        .envs(worker_environment(options.threads))
        .exec();
    format!("the worker cannot be restarted: {error}")
}

fn print_error(reason: &str) {
    let _ = writeln!(io::stderr(), "packhorse-worker bench: {reason}");
}

fn run(options: &BenchOptions) -> Result<Report, String> {
    let execution = execution(options)?;
    let program = &execution.program;
    let rows = options.rows.unwrap_or(options.batch_size);
    let inputs = synthetic::input_headers(program, rows).map_err(|e| e.to_string())?;
    let bench = Bench::start(options, &execution)?;
    let measured = match options.turns {
        Some(turns) => bench.measure_in_turn(turns, &inputs),
        None if options.tight => bench.measure_tight(),
        None => bench.measure_pipeline(&inputs),
    };
    let Measurement {
        took,
        batches,
        stages,
        periods,
        copies,
        copying,
        turns,
        usage,
    } = measured?;
    let executor = &bench.executor;
    let seconds = took.as_secs_f64();
    let input_bytes: u64 = inputs.iter().map(TensorHeader::byte_len).sum();
    let copied = input_bytes as f64 * copies as f64;
    let graphs = executor.recorded_sizes();
    Ok(Report {
        mode: if options.tight { "tight" } else { "pipeline" },
        cuda_device: options.cuda_device,
        batch_size: options.batch_size,
        in_flight: execution.pipeline.in_flight,
        streams: execution.pipeline.streams,
        without_graphs: graphs.clone().err(),
        graphs: graphs.unwrap_or_default(),
        start_s: bench.start_took.as_secs_f64(),
        batches,
        seconds,
        turns,
        batches_per_s: batches as f64 / seconds,
        requests_per_s: batches as f64 * f64::from(rows) / seconds,
        input_bytes,
        stages_ms: (!stages.is_empty()).then(|| Stages::summarize(&stages)),
        batch_ms: (!periods.is_empty()).then(|| Summary::of(periods.iter().copied())),
        cpu_ms_per_batch: usage.cpu.as_secs_f64() * 1e3 / batches as f64,
        minor_faults_per_batch: usage.minor_faults as f64 / batches as f64,
        h2d_bytes_per_s: (options.cuda_device.is_some() && !copying.is_zero())
            .then(|| copied / copying.as_secs_f64()),
        memory_bytes: executor.memory(options.batch_size).map(ByteCount::as_u64),
        multiprocessors: executor.multiprocessors(),
    })
}

fn execution(options: &BenchOptions) -> Result<Execution, String> {
    let at_path =
        |path: &Path, error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
    let text = fs::read(&options.signature).map_err(|e| at_path(&options.signature, &e))?;
    let signature: Signature =
        serde_json::from_slice(&text).map_err(|e| at_path(&options.signature, &e))?;
    let program = Program {
        model: "bench:1".parse().expect("a model's name"),
        // The digest is not used here.
        artifact: ArtifactDigest::from_sha256([0; 32]),
        max_batch_size: options.batch_size,
        inputs: signature.inputs,
        outputs: signature.outputs,
    };
    let streams = options.streams.map(|streams| streams == Switch::On);
    Ok(Execution {
        program,
        executor: ExecutorChoice::Torch {
            artifact: options.model.clone(),
            cuda_device: options.cuda_device,
        },
        threads: options.threads,
        pipeline: PipelineSettings {
            in_flight: options.in_flight,
            streams: streams.unwrap_or(options.cuda_device.is_some()),
            graphs: match options.graphs {
                Some(graphs) => graphs == Switch::On,
                None => options.cuda_device.is_some() && !options.defaults,
            },
        },
    })
}
