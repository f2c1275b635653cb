//! `packhorse-worker bench`: how much a worker computes when there is always another batch, without a gateway and its network.

use std::{
    fs,
    io::{self, Write},
    path::{Path, PathBuf},
    sync::{Arc, mpsc},
    thread,
    time::{Duration, Instant},
};

use clap::{Args, ValueEnum, value_parser};
use packhorse_cluster::{ArtifactDigest, ByteCount, Program, TensorSpec};
use packhorse_wire::{FailureKind, StageDurations, TensorHeader};
use packhorse_worker_agent::handoff::{Execution, ExecutorChoice, PipelineSettings as Options};
use serde::{Deserialize, Serialize};

use super::{
    now,
    pipeline::{DeviceFailed, Job, Pipeline, Sender},
};
use crate::executor::{
    self, Executor, OutputTensor, Repeated, Sizes, Started,
    sample::{self, Fill},
};

const EXAMPLES: &str = "\
Examples:
  packhorse-worker bench --model resnet50.pt --signature model.json --batch-size 16 --cuda-device 0
      The pipeline, saturated, on the first GPU.
  packhorse-worker bench --model resnet50.pt --signature model.json --batch-size 16 --cuda-device 0 --tight
      What libtorch does with the same batch when it is given nothing else to do: the most there is.
  packhorse-worker bench --model resnet50.pt --signature model.json --streams off --in-flight 1
      One batch at a time, on the CPU.";

/// How long copies alone are measured beside a tight loop.
const TIGHT_COPIES: Duration = Duration::from_secs(1);

/// The code to exit with where nothing was measured.
const FAILED: u8 = 1;

/// What is measured, and how.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct BenchOptions {
    /// The TorchScript program, or the package
    #[arg(long, value_name = "FILE")]
    model: PathBuf,

    /// JSON with the model's `inputs` and `outputs`; the file it is registered with will do
    #[arg(long, value_name = "FILE")]
    signature: PathBuf,

    /// Rows of a batch
    #[arg(long, value_name = "ROWS", default_value_t = 1, value_parser = value_parser!(u32).range(1..=65_536))]
    batch_size: u32,

    /// The GPU's index [default: the CPU]
    #[arg(long, value_name = "INDEX")]
    cuda_device: Option<u32>,

    /// Threads that a batch may use on the CPU
    #[arg(long, default_value_t = 1, value_parser = value_parser!(u32).range(1..=1024))]
    threads: u32,

    /// How long is measured, in seconds
    #[arg(long, default_value_t = 5, value_parser = value_parser!(u64).range(1..=3600))]
    seconds: u64,

    /// Batches in flight
    #[arg(long, value_name = "BATCHES", default_value_t = Options::DEFAULT_IN_FLIGHT,
        value_parser = value_parser!(u32).range(1..=i64::from(Options::MAX_IN_FLIGHT)))]
    in_flight: u32,

    /// Whether one batch is copied in or out while another is computed [default: on for a GPU]
    #[arg(long, value_enum)]
    streams: Option<Switch>,

    /// Record what a GPU does once, and play it again
    #[arg(long)]
    graphs: bool,

    /// Only compute, again and again, one batch that stays on the device
    #[arg(long)]
    tight: bool,

    /// Once warm, write `warm` to standard error, and begin when standard input ends: so several begin at the same time
    #[arg(long)]
    wait: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Switch {
    On,
    Off,
}

/// The part of a model's description that is needed here.
#[derive(Deserialize)]
struct Signature {
    inputs: Vec<TensorSpec>,
    outputs: Vec<TensorSpec>,
}

/// What is printed, as one JSON object.
#[derive(Debug, Serialize)]
struct Report {
    /// `pipeline` or `tight`.
    mode: &'static str,
    /// The GPU's index; null is the CPU.
    cuda_device: Option<u32>,
    batch_size: u32,
    in_flight: u32,
    streams: bool,
    /// The batch sizes of recorded runs.
    graphs: Vec<u32>,
    /// Why there are none.
    without_graphs: Option<String>,
    batches: u64,
    seconds: f64,
    batches_per_s: f64,
    /// Requests of one row.
    requests_per_s: f64,
    input_bytes: u64,
    /// The stages of a batch, in milliseconds; null in a tight loop, which has none.
    stages_ms: Option<Stages>,
    /// While it copies in; beside a tight loop, of the same copies one after the other.
    h2d_bytes_per_s: Option<f64>,
    memory_bytes: Option<u64>,
    /// Multiprocessors of the GPU that this process may use.
    multiprocessors: Option<u32>,
}

#[derive(Debug, Serialize)]
struct Stages {
    receive: Summary,
    queue_wait: Summary,
    copy_in: Summary,
    compute: Summary,
    copy_out: Summary,
}

#[derive(Debug, Serialize)]
struct Summary {
    mean: f64,
    p50: f64,
    p99: f64,
}

/// Measures and prints the outcome: the code to exit with.
pub(crate) fn bench(options: &BenchOptions) -> u8 {
    executor::on_terminate(|error| say_why(&error.to_string()), FAILED);
    let outcome = run(options).and_then(|report| {
        let json = serde_json::to_string_pretty(&report).expect("the report is JSON");
        writeln!(io::stdout(), "{json}").map_err(|e| e.to_string())
    });
    match outcome {
        Ok(()) => 0,
        Err(reason) => {
            say_why(&reason);
            FAILED
        }
    }
}

fn say_why(reason: &str) {
    let _ = writeln!(io::stderr(), "packhorse-worker bench: {reason}");
}

fn run(options: &BenchOptions) -> Result<Report, String> {
    let execution = execution(options)?;
    let program = &execution.program;
    let inputs = sample::inputs(program, options.batch_size).map_err(|e| e.to_string())?;
    let measured = if options.tight {
        tight(options, &execution)?
    } else {
        saturated(options, &execution, &inputs)?
    };
    let Measured {
        executor,
        took,
        batches,
        stages,
        copies,
        copying,
    } = measured;
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
        batches,
        seconds,
        batches_per_s: batches as f64 / seconds,
        requests_per_s: batches as f64 * f64::from(options.batch_size) / seconds,
        input_bytes,
        stages_ms: (!stages.is_empty()).then(|| Stages::of(&stages)),
        h2d_bytes_per_s: (options.cuda_device.is_some() && !copying.is_zero())
            .then(|| copied / copying.as_secs_f64()),
        memory_bytes: executor.memory(options.batch_size).map(ByteCount::as_u64),
        multiprocessors: executor.multiprocessors(),
    })
}

fn execution(options: &BenchOptions) -> Result<Execution, String> {
    let named = |path: &Path, error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
    let text = fs::read(&options.signature).map_err(|e| named(&options.signature, &e))?;
    let signature: Signature =
        serde_json::from_slice(&text).map_err(|e| named(&options.signature, &e))?;
    let program = Program {
        model: "bench:1".parse().expect("a model's name"),
        // Nobody asks for it here.
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
        pipeline: Options {
            in_flight: options.in_flight,
            streams: streams.unwrap_or(options.cuda_device.is_some()),
            graphs: options.graphs,
        },
    })
}

struct Measured {
    executor: Arc<dyn Executor>,
    took: Duration,
    batches: u64,
    /// Of every batch.
    stages: Vec<StageDurations>,
    /// How often the inputs were copied in.
    copies: u64,
    /// And how long that took.
    copying: Duration,
}

/// The executor, with room for batches of the size that is measured, and what its inputs may be.
fn start(
    options: &BenchOptions,
    execution: &Execution,
) -> Result<(Arc<dyn Executor>, Fill), String> {
    let Started {
        executor,
        batch_size,
        fill,
    } = executor::start(execution, options.batch_size, Sizes::Doubling)
        .map_err(|e| e.to_string())?;
    if batch_size < options.batch_size {
        return Err(format!(
            "--batch-size: {} do not fit into memory; {batch_size} do",
            options.batch_size
        ));
    }
    if options.wait {
        wait_to_begin().map_err(|e| format!("--wait: {e}"))?;
    }
    Ok((executor, fill))
}

/// Until standard input ends.
fn wait_to_begin() -> io::Result<()> {
    writeln!(io::stderr(), "warm")?;
    io::copy(&mut io::stdin().lock(), &mut io::sink()).map(drop)
}

fn tight(options: &BenchOptions, execution: &Execution) -> Result<Measured, String> {
    let (executor, fill) = start(options, execution)?;
    let (program, rows) = (&execution.program, options.batch_size);
    let say = |e: executor::ExecutionError| e.to_string();
    let batch = sample::batch(&*executor, program, rows, fill).map_err(say)?;
    let loaded = batch.copy_in().map_err(say)?;
    let measure = |what, limit: Duration| {
        let started = now();
        let end = started + limit;
        let times = loaded.repeat(what, &mut || now() < end)?;
        Ok((times, now() - started))
    };
    let (copies, copying) = measure(Repeated::CopyIn, TIGHT_COPIES).map_err(say)?;
    let (batches, took) =
        measure(Repeated::Compute, Duration::from_secs(options.seconds)).map_err(say)?;
    Ok(Measured {
        executor,
        took,
        batches,
        stages: Vec::new(),
        copies,
        copying,
    })
}

/// Gives the pipeline another batch as soon as there is memory for it.
fn saturated(
    options: &BenchOptions,
    execution: &Execution,
    inputs: &[TensorHeader],
) -> Result<Measured, String> {
    let pipeline = Pipeline::new(execution.pipeline);
    let (ready, started) = mpsc::channel();
    let (done, answers) = mpsc::channel();
    thread::scope(|scope| {
        let compute = scope.spawn(|| {
            let started = start(options, execution);
            let _ = ready.send(started.clone());
            let Ok((executor, _)) = started else {
                return Ok(());
            };
            pipeline.run(&*executor, &execution.program)
        });
        let (executor, fill) = started.recv().expect("the thread says how it went")?;
        let collector = scope.spawn(|| collect(answers));
        let load = Feed {
            pipeline: &pipeline,
            executor: &*executor,
            inputs,
            program: &execution.program,
            fill,
            rows: options.batch_size,
        };
        let began = now();
        let fed = load.until(began + Duration::from_secs(options.seconds), &done);
        pipeline.close();
        drop(done);
        let computed = compute
            .join()
            .expect("a stage that panics ends the process");
        let collected = collector.join().expect("it only collects");
        computed.map_err(|DeviceFailed(reason)| format!("the device failed: {reason}"))?;
        fed?;
        let (stages, last) = collected?;
        Ok(Measured {
            executor: Arc::clone(&executor),
            took: last.unwrap_or(began) - began,
            batches: stages.len() as u64,
            copies: stages.len() as u64,
            copying: stages.iter().map(|stages| stages.copy_in).sum(),
            stages,
        })
    })
}

/// In place of the threads that receive.
struct Feed<'a> {
    pipeline: &'a Pipeline,
    executor: &'a dyn Executor,
    inputs: &'a [TensorHeader],
    program: &'a Program,
    fill: Fill,
    rows: u32,
}

impl Feed<'_> {
    fn until(&self, end: Instant, done: &mpsc::Sender<Answer>) -> Result<(), String> {
        let say = |e: executor::ExecutionError| e.to_string();
        // Like bytes from a socket, they are copied into every batch.
        let mut source = self.executor.prepare(self.inputs).map_err(say)?;
        sample::fill_inputs(&mut *source, self.program, self.fill);
        let bytes: Vec<Vec<u8>> = (0..self.inputs.len())
            .map(|i| source.input_mut(i).to_vec())
            .collect();
        drop(source);
        while now() < end {
            let mut batch = self.executor.prepare(self.inputs).map_err(say)?;
            let started = now();
            for (i, bytes) in bytes.iter().enumerate() {
                batch.input_mut(i).copy_from_slice(bytes);
            }
            let received_at = now();
            self.pipeline.push(Job {
                batch,
                rows: self.rows,
                receive: received_at - started,
                received_at,
                sender: Box::new(Collector(done.clone())),
            });
        }
        Ok(())
    }
}

type Answer = Result<(StageDurations, Instant), String>;

/// In place of a connection.
struct Collector(mpsc::Sender<Answer>);

impl Sender for Collector {
    fn is_there(&self) -> bool {
        true
    }

    fn result(self: Box<Self>, outputs: Vec<OutputTensor>, stages: StageDurations) {
        // Their memory goes to the next batch, as when they were sent.
        drop(outputs);
        let _ = self.0.send(Ok((stages, now())));
    }

    fn failure(self: Box<Self>, _kind: FailureKind, message: &str) {
        let _ = self.0.send(Err(message.to_owned()));
    }
}

/// All stages, and when the last batch was done; the first failure.
fn collect(
    answers: mpsc::Receiver<Answer>,
) -> Result<(Vec<StageDurations>, Option<Instant>), String> {
    let (mut all, mut last, mut failure) = (Vec::new(), None, None);
    for answer in answers {
        match answer {
            Ok((stages, at)) => {
                all.push(stages);
                last = Some(at);
            }
            Err(reason) => failure = failure.or(Some(reason)),
        }
    }
    failure.map_or(Ok((all, last)), Err)
}

impl Stages {
    fn of(all: &[StageDurations]) -> Self {
        let summary = |stage: fn(&StageDurations) -> Duration| {
            let mut ms: Vec<f64> = all.iter().map(|s| stage(s).as_secs_f64() * 1e3).collect();
            ms.sort_by(f64::total_cmp);
            Summary {
                mean: ms.iter().sum::<f64>() / ms.len() as f64,
                p50: ms[ms.len() / 2],
                p99: ms[99 * ms.len() / 100],
            }
        };
        Self {
            receive: summary(|s| s.receive),
            queue_wait: summary(|s| s.queue_wait),
            copy_in: summary(|s| s.copy_in),
            compute: summary(|s| s.compute),
            copy_out: summary(|s| s.copy_out),
        }
    }
}
