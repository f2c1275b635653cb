//! `packhorse-worker bench`: measures the throughput of a worker that always has another batch, without a gateway and its network.

mod measurement;
mod options;
mod process_usage;
mod report;

use std::{
    env, fs,
    io::{self, Write},
    os::unix::process::CommandExt as _,
    path::Path,
    process::Command,
};

use packhorse_cluster::{ArtifactDigest, ByteCount, Program, TensorSpec};
use packhorse_wire::TensorHeader;
use packhorse_worker_agent::handoff::{
    Execution, ExecutorChoice, Optimize, PipelineSettings, worker_environment,
};
use serde::Deserialize;

use crate::executor::{self, synthetic};
use measurement::{Bench, Measurement};
pub(crate) use options::BenchOptions;
use options::Switch;
use report::{Report, Stages, Summary};

/// The exit code of a failed measurement.
const FAILED: u8 = 1;

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
        verification: bench.verification.clone(),
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
        device_lock: None,
        threads: options.threads,
        pipeline: PipelineSettings {
            in_flight: options.in_flight,
            streams: streams.unwrap_or(options.cuda_device.is_some()),
            graphs: match options.graphs {
                Some(graphs) => graphs == Switch::On,
                None => options.cuda_device.is_some() && !options.defaults,
            },
        },
        parks: false,
        optimize: if options.defaults {
            Optimize::Off
        } else {
            options.optimize
        },
    })
}
