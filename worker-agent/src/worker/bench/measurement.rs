//! The measurements of a warm program: the loop that only computes, and the pipeline.

use std::{
    io::{self, Write},
    iter,
    path::Path,
    sync::{Arc, mpsc},
    thread,
    time::{Duration, Instant},
};

use packhorse_cluster::{Program, Verification};
use packhorse_wire::{StageDurations, TensorHeader};
use packhorse_worker_agent::handoff::{Execution, ExecutorChoice};

use super::{options::BenchOptions, process_usage::ProcessUsage, report::Turn};
use crate::{
    clock::now,
    executor::{
        self, ExecutionError, Executor, Fill, LoadedBatch, OutputTensor, PreparedBatch,
        RepeatedStage, Started, WarmUpSizes, synthetic,
    },
    pipeline::{BatchReply, Pipeline, ReceivedBatch},
};

/// The time for which copies alone are measured with `--tight`.
const TIGHT_COPIES: Duration = Duration::from_secs(1);

/// The outcome of a measurement.
pub(super) struct Measurement {
    pub(super) took: Duration,
    pub(super) batches: u64,
    /// The stages of every batch.
    pub(super) stages: Vec<StageDurations>,
    /// The time of every batch from the end of the one before it.
    pub(super) periods: Vec<Duration>,
    /// The number of copies of the inputs to the device.
    pub(super) copies: u64,
    /// The total duration of these copies.
    pub(super) copying: Duration,
    /// The turns of `--turns`.
    pub(super) turns: Vec<Turn>,
    pub(super) usage: ProcessUsage,
}

/// A warm program, on the thread that computes its batches.
pub(super) struct Bench<'a> {
    options: &'a BenchOptions,
    execution: &'a Execution,
    pub(super) executor: Arc<dyn Executor>,
    /// The executors of the other programs.
    also: Vec<Arc<dyn Executor>>,
    /// The content of synthetic inputs that the program accepts.
    fill: Fill,
    /// The duration of the start.
    pub(super) start_took: Duration,
    /// The comparison with the program as it is.
    pub(super) verification: Option<Verification>,
}

/// The batches of one run of the pipeline.
struct PipelineRun {
    took: Duration,
    stages: Vec<StageDurations>,
    usage: ProcessUsage,
}

impl<'a> Bench<'a> {
    /// Starts the executor for batches of the requested size.
    pub(super) fn start(
        options: &'a BenchOptions,
        execution: &'a Execution,
    ) -> Result<Self, String> {
        let began = now();
        let also = options
            .also
            .iter()
            .map(|artifact| with_artifact(execution, artifact));
        let also: Vec<Execution> = also.collect();
        let started = if also.is_empty() {
            executor::start(execution, options.batch_size, WarmUpSizes::PowersOfTwo)
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
            verification,
            verified: _,
        } = started.next().expect("the first program has started");
        let start_took = now() - began;
        if batch_size < options.batch_size {
            return Err(format!(
                "--batch-size: {} does not fit into memory; {batch_size} does",
                options.batch_size
            ));
        }
        if options.wait {
            wait_for_stdin().map_err(|e| format!("--wait: {e}"))?;
        }
        Ok(Self {
            options,
            execution,
            executor,
            also: started.map(|started| started.executor).collect(),
            fill,
            start_took,
            verification,
        })
    }

    /// Measures libtorch alone, with one batch that stays on the device.
    pub(super) fn measure_tight(&self) -> Result<Measurement, String> {
        let batch = self.load_batch()?;
        let (copies, copying, _) = repeat(&*batch, RepeatedStage::CopyIn, TIGHT_COPIES)?;
        let before = ProcessUsage::so_far()?;
        let (batches, took, periods) = repeat(&*batch, RepeatedStage::Compute, self.time())?;
        Ok(Measurement {
            usage: before.until_now()?,
            took,
            batches,
            stages: Vec::new(),
            periods,
            copies,
            copying,
            turns: Vec::new(),
        })
    }

    /// Measures the pipeline.
    pub(super) fn measure_pipeline(&self, inputs: &[TensorHeader]) -> Result<Measurement, String> {
        Ok(of_pipeline(self.run_pipeline(inputs)?, Vec::new()))
    }

    /// Measures the tight loop and the pipeline in turn. The outcome is that of all runs of the pipeline.
    pub(super) fn measure_in_turn(
        &self,
        turns: u32,
        inputs: &[TensorHeader],
    ) -> Result<Measurement, String> {
        let rate = |batches: usize, took: Duration| {
            batches as f64 * f64::from(self.options.batch_size) / took.as_secs_f64()
        };
        let mut all = PipelineRun {
            took: Duration::ZERO,
            stages: Vec::new(),
            usage: ProcessUsage::default(),
        };
        let mut measured = Vec::new();
        for _ in 0..turns {
            let batch = self.load_batch()?;
            let (batches, took, _) = repeat(&*batch, RepeatedStage::Compute, self.time())?;
            drop(batch);
            let run = self.run_pipeline(inputs)?;
            measured.push(Turn {
                tight_requests_per_s: rate(batches as usize, took),
                requests_per_s: rate(run.stages.len(), run.took),
            });
            all.took += run.took;
            all.stages.extend(run.stages);
            all.usage.cpu += run.usage.cpu;
            all.usage.minor_faults += run.usage.minor_faults;
        }
        Ok(of_pipeline(all, measured))
    }

    fn time(&self) -> Duration {
        Duration::from_secs(self.options.seconds)
    }

    /// Returns a batch on the device.
    fn load_batch(&self) -> Result<Box<dyn LoadedBatch>, String> {
        let (program, rows) = (&self.execution.program, self.options.batch_size);
        let batch = synthetic::prepare_batch(&*self.executor, program, rows, self.fill);
        let loaded = batch.and_then(PreparedBatch::copy_in);
        loaded.map_err(|e| e.to_string())
    }

    /// Runs the pipeline, which gets another batch as soon as there is memory for it.
    fn run_pipeline(&self, inputs: &[TensorHeader]) -> Result<PipelineRun, String> {
        let pipeline = Pipeline::new(self.execution.pipeline, None);
        let (outcome_sender, outcomes) = mpsc::channel();
        let load = LoadGenerator {
            pipeline: &pipeline,
            executors: iter::once(&self.executor).chain(&self.also).collect(),
            inputs,
            program: &self.execution.program,
            fill: self.fill,
            rows: self.options.rows.unwrap_or(self.options.batch_size),
        };
        let before = ProcessUsage::so_far()?;
        let began = now();
        let (computed, generated, collected) = thread::scope(|scope| {
            let collector = scope.spawn(|| collect(outcomes));
            let generator = scope.spawn(|| {
                let outcome_sender = outcome_sender;
                let generated = load.run_until(began + self.time(), &outcome_sender);
                load.pipeline.close();
                generated
            });
            let computed = pipeline.run();
            let generated = generator.join().expect("the generator does not panic");
            let collected = collector.join().expect("the collector does not panic");
            (computed, generated, collected)
        });
        computed.map_err(|e| e.to_string())?;
        generated?;
        let (stages, last) = collected?;
        Ok(PipelineRun {
            took: last.unwrap_or(began) - began,
            stages,
            usage: before.until_now()?,
        })
    }
}

/// Returns the measurement of a run of the pipeline.
fn of_pipeline(run: PipelineRun, turns: Vec<Turn>) -> Measurement {
    let PipelineRun {
        took,
        stages,
        usage,
    } = run;
    Measurement {
        took,
        batches: stages.len() as u64,
        copies: stages.len() as u64,
        copying: stages.iter().map(|stages| stages.copy_in).sum(),
        stages,
        periods: Vec::new(),
        turns,
        usage,
    }
}

/// Repeats one stage of a batch. Returns the number of repetitions, the time of all and the time of each.
fn repeat(
    batch: &dyn LoadedBatch,
    stage: RepeatedStage,
    limit: Duration,
) -> Result<(u64, Duration, Vec<Duration>), String> {
    let started = now();
    let mut asked = vec![started];
    let times = batch.repeat(stage, &mut || {
        asked.push(now());
        asked.last().is_some_and(|now| *now < started + limit)
    });
    let times = times.map_err(|e| e.to_string())?;
    // It is asked before the first repetition and after each.
    let periods = asked.windows(2).skip(1).map(|pair| pair[1] - pair[0]);
    Ok((times, now() - started, periods.collect()))
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
                executor: Arc::clone(executor),
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
