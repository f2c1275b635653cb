//! `packhorse-worker bench`: measures the throughput of a worker that always has another batch, without a gateway and its network.

mod process_usage;
mod report;

use std::{
    env, fs,
    io::{self, Write},
    iter,
    os::unix::process::CommandExt as _,
    path::{Path, PathBuf},
    process::Command,
    sync::{Arc, mpsc},
    thread,
    time::{Duration, Instant},
};

use clap::{Args, ValueEnum, value_parser};
use packhorse_cluster::{ArtifactDigest, ByteCount, Program, TensorSpec};
use packhorse_wire::{StageDurations, TensorHeader};
use packhorse_worker_agent::handoff::{
    Execution, ExecutorChoice, PipelineSettings, worker_environment,
};
use serde::Deserialize;

use crate::{
    clock::now,
    executor::{
        self, ExecutionError, Executor, OutputTensor, Preparation, RepeatedStage, Started,
        WarmUpSizes,
        synthetic::{self, Fill},
    },
    pipeline::{BatchReply, Pipeline, ReceivedBatch},
};
use process_usage::ProcessUsage;
use report::{Report, Stages, Summary};

const EXAMPLES: &str = "\
Examples:
  packhorse-worker bench --model resnet50.pt --signature model.json --batch-size 16 --cuda-device 0
      The pipeline under full load on the first GPU.
  packhorse-worker bench --model resnet50.pt --signature model.json --batch-size 16 --cuda-device 0 --tight
      libtorch alone with the same batch: the upper bound.
  packhorse-worker bench --model resnet50.pt --signature model.json --streams off --in-flight 1
      One batch at a time, on the CPU.
  packhorse-worker bench --model resnet50.pt --signature model.json --tight --defaults
      libtorch alone, on the CPU, without what a worker does to be fast.";

/// The time for which copies alone are measured with `--tight`.
const TIGHT_COPIES: Duration = Duration::from_secs(1);

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
    #[arg(long, value_name = "FILE", conflicts_with_all = ["tight", "defaults", "graphs"])]
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

    /// Record the GPU's work once and replay it (CUDA graphs)
    #[arg(long)]
    graphs: bool,

    /// Only compute, repeatedly, one batch that stays on the device
    #[arg(long)]
    tight: bool,

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
    let measurement = if options.tight {
        measure_tight(options, &execution)?
    } else {
        measure_pipeline(options, &execution, &inputs)?
    };
    let Measurement {
        executor,
        start_took,
        took,
        batches,
        stages,
        periods,
        copies,
        copying,
        usage,
    } = measurement;
    let seconds = took.as_secs_f64();
    let input_bytes: u64 = inputs.iter().map(TensorHeader::byte_len).sum();
    let copied = input_bytes as f64 * copies as f64;
    let graphs = executor.graphs();
    Ok(Report {
        mode: if options.tight { "tight" } else { "pipeline" },
        cuda_device: options.cuda_device,
        batch_size: options.batch_size,
        in_flight: execution.pipeline.in_flight,
        streams: execution.pipeline.streams,
        without_graphs: graphs.clone().err(),
        graphs: graphs.unwrap_or_default(),
        start_s: start_took.as_secs_f64(),
        batches,
        seconds,
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
            graphs: options.graphs,
        },
    })
}

struct Measurement {
    executor: Arc<dyn Executor>,
    /// The duration of the start.
    start_took: Duration,
    took: Duration,
    batches: u64,
    /// The stages of every batch.
    stages: Vec<StageDurations>,
    /// The time of every batch from the end of the one before it.
    periods: Vec<Duration>,
    /// The number of copies of the inputs to the device.
    copies: u64,
    /// The total duration of these copies.
    copying: Duration,
    usage: ProcessUsage,
}

/// A warm executor.
#[derive(Clone)]
struct Ready {
    executor: Arc<dyn Executor>,
    /// The executors of the other programs.
    also: Vec<Arc<dyn Executor>>,
    /// The content of synthetic inputs that the program accepts.
    fill: Fill,
    /// The duration of the start.
    took: Duration,
}

/// Starts the executor for batches of the requested size.
fn start(options: &BenchOptions, execution: &Execution) -> Result<Ready, String> {
    let began = now();
    let preparation = if options.defaults {
        Preparation::AsIs
    } else {
        Preparation::Optimized
    };
    let also = options
        .also
        .iter()
        .map(|artifact| with_artifact(execution, artifact));
    let also: Vec<Execution> = also.collect();
    let started = if also.is_empty() {
        executor::start(
            execution,
            options.batch_size,
            WarmUpSizes::PowersOfTwo,
            preparation,
        )
        .map(|started| vec![started])
    } else {
        let all: Vec<&Execution> = iter::once(execution).chain(&also).collect();
        executor::start_together(&all, options.batch_size)
    };
    let mut started = started.map_err(|e| e.to_string())?.into_iter();
    let Started {
        executor,
        batch_size,
        fill,
    } = started.next().expect("the first program has started");
    let took = now() - began;
    if batch_size < options.batch_size {
        return Err(format!(
            "--batch-size: {} does not fit into memory; {batch_size} does",
            options.batch_size
        ));
    }
    if options.wait {
        wait_for_stdin().map_err(|e| format!("--wait: {e}"))?;
    }
    Ok(Ready {
        executor,
        also: started.map(|started| started.executor).collect(),
        fill,
        took,
    })
}

/// Returns the execution of a program with the same signature in another file.
fn with_artifact(execution: &Execution, artifact: &Path) -> Execution {
    let mut other = execution.clone();
    if let ExecutorChoice::Torch {
        artifact: of_other, ..
    } = &mut other.executor
    {
        artifact.clone_into(of_other);
    }
    other
}

/// Waits for the end of standard input.
fn wait_for_stdin() -> io::Result<()> {
    writeln!(io::stderr(), "warm")?;
    io::copy(&mut io::stdin().lock(), &mut io::sink()).map(drop)
}

/// Measures libtorch alone, with one batch that stays on the device.
fn measure_tight(options: &BenchOptions, execution: &Execution) -> Result<Measurement, String> {
    let Ready {
        executor,
        fill,
        took: start_took,
        ..
    } = start(options, execution)?;
    let (program, rows) = (&execution.program, options.batch_size);
    let text = |e: ExecutionError| e.to_string();
    let batch = synthetic::prepare_batch(&*executor, program, rows, fill).map_err(text)?;
    let loaded = batch.copy_in().map_err(text)?;
    let measure = |stage, limit: Duration| {
        let started = now();
        let mut asked = vec![started];
        let times = loaded.repeat(stage, &mut || {
            asked.push(now());
            asked.last().is_some_and(|now| *now < started + limit)
        })?;
        // It is asked before the first repetition and after each.
        let periods = asked.windows(2).skip(1).map(|pair| pair[1] - pair[0]);
        Ok((times, now() - started, periods.collect::<Vec<_>>()))
    };
    let (copies, copying, _) = measure(RepeatedStage::CopyIn, TIGHT_COPIES).map_err(text)?;
    let seconds = Duration::from_secs(options.seconds);
    let before = ProcessUsage::so_far()?;
    let (batches, took, periods) = measure(RepeatedStage::Compute, seconds).map_err(text)?;
    Ok(Measurement {
        usage: before.until_now()?,
        executor,
        start_took,
        took,
        batches,
        stages: Vec::new(),
        periods,
        copies,
        copying,
    })
}

/// Measures the pipeline, which gets another batch as soon as there is memory for it.
fn measure_pipeline(
    options: &BenchOptions,
    execution: &Execution,
    inputs: &[TensorHeader],
) -> Result<Measurement, String> {
    let pipeline = Pipeline::new(execution.pipeline);
    let (ready, started) = mpsc::channel();
    let (outcome_sender, outcomes) = mpsc::channel();
    thread::scope(|scope| {
        let compute = scope.spawn(|| {
            let started = start(options, execution);
            let _ = ready.send(started.clone());
            let Ok(ready) = started else {
                return Ok(());
            };
            pipeline.run(&*ready.executor)
        });
        let Ready {
            executor,
            also,
            fill,
            took: start_took,
        } = started.recv().expect("the thread sends the outcome")?;
        let collector = scope.spawn(|| collect(outcomes));
        let load = LoadGenerator {
            pipeline: &pipeline,
            executors: iter::once(&executor).chain(&also).collect(),
            inputs,
            program: &execution.program,
            fill,
            rows: options.rows.unwrap_or(options.batch_size),
        };
        let usage = ProcessUsage::so_far();
        let began = now();
        let end = began + Duration::from_secs(options.seconds);
        let generated = load.run_until(end, &outcome_sender);
        pipeline.close();
        drop(outcome_sender);
        let computed = compute
            .join()
            .expect("a stage that panics ends the process");
        let collected = collector.join().expect("the collector does not panic");
        computed.map_err(|e| e.to_string())?;
        generated?;
        let (stages, last) = collected?;
        Ok(Measurement {
            executor: Arc::clone(&executor),
            start_took,
            took: last.unwrap_or(began) - began,
            batches: stages.len() as u64,
            copies: stages.len() as u64,
            copying: stages.iter().map(|stages| stages.copy_in).sum(),
            stages,
            periods: Vec::new(),
            usage: usage.and_then(|before| before.until_now())?,
        })
    })
}

/// Produces batches, in place of the receiving threads.
struct LoadGenerator<'a> {
    pipeline: &'a Pipeline,
    executors: Vec<&'a Arc<dyn Executor>>,
    inputs: &'a [TensorHeader],
    program: &'a Program,
    fill: Fill,
    rows: u32,
}

impl LoadGenerator<'_> {
    fn run_until(&self, end: Instant, outcomes: &mpsc::Sender<Outcome>) -> Result<(), String> {
        let text = |e: ExecutionError| e.to_string();
        // The inputs are copied into every batch, like bytes from a socket.
        let mut source = self.executors[0].prepare(self.inputs).map_err(text)?;
        synthetic::fill_inputs(&mut *source, self.program, self.fill);
        let bytes: Vec<Vec<u8>> = (0..self.inputs.len())
            .map(|i| source.input_mut(i).to_vec())
            .collect();
        drop(source);
        let program = Arc::new(self.program.clone());
        let mut executors = self.executors.iter().cycle();
        while now() < end {
            let executor = executors.next().expect("there is one");
            let mut batch = executor.prepare(self.inputs).map_err(text)?;
            let started = now();
            for (i, bytes) in bytes.iter().enumerate() {
                batch.input_mut(i).copy_from_slice(bytes);
            }
            let received_at = now();
            self.pipeline.push(ReceivedBatch {
                batch,
                rows: self.rows,
                program: Arc::clone(&program),
                receive: received_at - started,
                received_at,
                reply: Box::new(BenchReply(outcomes.clone())),
            });
        }
        Ok(())
    }
}

/// The stages of a batch and the time of its end, or the text of its failure.
type Outcome = Result<(StageDurations, Instant), String>;

/// The reply to a batch, in place of a connection.
struct BenchReply(mpsc::Sender<Outcome>);

impl BatchReply for BenchReply {
    fn is_wanted(&self) -> bool {
        true
    }

    fn send_result(self: Box<Self>, outputs: Vec<OutputTensor>, stages: StageDurations) {
        // The memory of the outputs is free for the next batch, as after they were sent.
        drop(outputs);
        let _ = self.0.send(Ok((stages, now())));
    }

    fn send_failure(self: Box<Self>, error: ExecutionError) {
        let _ = self.0.send(Err(error.to_string()));
    }
}

/// Collects the stages of all batches and the end of the last, or the first failure.
fn collect(
    outcomes: mpsc::Receiver<Outcome>,
) -> Result<(Vec<StageDurations>, Option<Instant>), String> {
    let (mut all, mut last, mut failure) = (Vec::new(), None, None);
    for outcome in outcomes {
        match outcome {
            Ok((stages, at)) => {
                all.push(stages);
                last = Some(at);
            }
            Err(reason) => failure = failure.or(Some(reason)),
        }
    }
    failure.map_or(Ok((all, last)), Err)
}
