//! `packhorse-worker measure`: runs batches of one program by commands on its standard input. It is for measurements by hand, in which
//! several programs may share a device: the CLI starts a worker for each, and lets them run at the same time.

use std::{
    fs,
    io::{self, BufRead, Write},
    num::NonZero,
    os::unix::process::CommandExt,
    path::Path,
    process::Command,
    sync::Arc,
    thread,
    time::Duration,
};

use packhorse_api::local_worker::{MeasureCommand, MeasureReply, MeasureTask};
use packhorse_worker_agent::handoff::{
    Execution, ExecutorChoice, Optimize, PipelineSettings, exit_code, worker_environment,
};

use crate::{
    clock::now,
    executor::{
        self, ExecutionError, Executor, Fill, PreparedBatch, WarmUpSizes, recording, synthetic,
    },
};

/// The longest time for which a command runs batches.
const LONGEST_RUN: Duration = Duration::from_mins(10);

/// Executes commands until the end of the input, and returns the exit code. The caller must exit at once.
pub(crate) fn measure(task_file: &Path, prepared: bool) -> u8 {
    executor::on_terminate(|error| reply_failure(error.to_string()), exit_code::FAILED);
    let outcome = read_task(task_file).and_then(|task| {
        if prepared {
            run(&task)
        } else {
            Err(restart_prepared(&task, task_file))
        }
    });
    match outcome {
        Ok(()) => exit_code::DONE,
        Err(reason) => {
            reply_failure(reason);
            exit_code::FAILED
        }
    }
}

fn reply_failure(reason: String) {
    let _ = send_reply(&MeasureReply::Failed { reason });
}

fn read_task(task_file: &Path) -> Result<MeasureTask, String> {
    let text = fs::read(task_file).map_err(|e| format!("--task: {e}"))?;
    serde_json::from_slice(&text).map_err(|e| format!("--task: {e}"))
}

/// Restarts this program with the environment that an agent gives to workers, much of which has an effect only when a process starts.
/// Returns only if that fails, with the reason.
fn restart_prepared(task: &MeasureTask, task_file: &Path) -> String {
    let folder = task_file.parent().unwrap_or(Path::new("."));
    let mut command = Command::new("/proc/self/exe");
    command
        .args(["measure", "--prepared", "--task"])
        .arg(task_file)
        .envs(worker_environment(threads(task)))
        .env("TMPDIR", folder);
    if let Some(device) = &task.cuda_device {
        let share = task.compute_share_pct.to_string();
        command
            .env("CUDA_VISIBLE_DEVICES", device)
            .env("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", share);
    }
    format!("the worker cannot be restarted: {}", command.exec())
}

/// Returns the number of CPU threads: on the CPU the share of its threads, at least one; on a GPU one.
fn threads(task: &MeasureTask) -> u32 {
    if task.cuda_device.is_some() {
        return 1;
    }
    let all = thread::available_parallelism().map_or(1, NonZero::get);
    ((all as f64 * task.compute_share_pct.get() / 100.0).floor() as u32).max(1)
}

fn run(task: &MeasureTask) -> Result<(), String> {
    let program = LoadedProgram::load(task)?;
    send_reply(&MeasureReply::Ready)?;
    for line in io::stdin().lock().lines() {
        let line = line.map_err(|e| format!("standard input: {e}"))?;
        let command = serde_json::from_str(&line).map_err(|e| format!("{line:?}: {e}"))?;
        send_reply(&program.execute(&command)?)?;
    }
    Ok(())
}

fn send_reply(reply: &MeasureReply) -> Result<(), String> {
    let mut line = serde_json::to_vec(reply).expect("replies are JSON");
    line.push(b'\n');
    let mut out = io::stdout().lock();
    let written = out.write_all(&line).and_then(|()| out.flush());
    written.map_err(|e| format!("standard output: {e}"))
}

/// The program of the task, loaded and warm.
struct LoadedProgram {
    execution: Execution,
    batch_size: u32,
    executor: Arc<dyn Executor>,
    fill: Fill,
}

impl LoadedProgram {
    fn load(task: &MeasureTask) -> Result<Self, String> {
        let limit = task.program.rows_limit();
        if !(1..=limit).contains(&task.batch_size) {
            return Err(format!(
                "batch_size: expected 1 to {limit}, not {}",
                task.batch_size
            ));
        }
        let execution = Execution {
            program: task.program.clone(),
            executor: ExecutorChoice::Torch {
                artifact: task.artifact.clone(),
                // The environment contains this device only.
                cuda_device: task.cuda_device.as_ref().map(|_| 0),
            },
            device_lock: None,
            threads: threads(task),
            pipeline: PipelineSettings {
                graphs: task.cuda_device.is_some(),
                ..PipelineSettings::default()
            },
            optimize: Optimize::default(),
            parks: false,
        };
        let started = executor::start(&execution, task.batch_size, WarmUpSizes::PowersOfTwo)
            .map_err(|e| e.reason)?;
        if started.batch_size < task.batch_size {
            return Err(format!(
                "out of memory at batch size {}; batch size {} fits",
                task.batch_size, started.batch_size
            ));
        }
        Ok(Self {
            execution,
            batch_size: task.batch_size,
            executor: started.executor,
            fill: started.fill,
        })
    }

    fn prepare_batch(&self) -> Result<Box<dyn PreparedBatch>, ExecutionError> {
        let program = &self.execution.program;
        synthetic::prepare_batch(&*self.executor, program, self.batch_size, self.fill)
    }

    fn execute(&self, command: &MeasureCommand) -> Result<MeasureReply, String> {
        let executor = &self.execution.executor;
        match command {
            MeasureCommand::Run {
                before_ms,
                window_ms,
                after_ms,
            } => {
                let [before, window, after] =
                    [before_ms, window_ms, after_ms].map(|ms| Duration::from_millis(*ms));
                if before.saturating_add(window).saturating_add(after) > LONGEST_RUN {
                    let limit = LONGEST_RUN.as_millis();
                    return Err(format!(
                        "before_ms, window_ms and after_ms add up to more than the limit of {limit} ms"
                    ));
                }
                let latencies = self.run_batches(before, window, after);
                Ok(summarize(latencies.map_err(|e| e.to_string())?))
            }
            MeasureCommand::Record { trace } => {
                let batch = self.prepare_batch().map_err(|e| e.to_string())?;
                recording::write_trace(executor, batch, trace).map_err(|e| e.to_string())?;
                Ok(MeasureReply::Done)
            }
            MeasureCommand::UnderProfiler => {
                let batch = self.prepare_batch().map_err(|e| e.to_string())?;
                recording::run_under_profiler(executor, batch).map_err(|e| e.to_string())?;
                Ok(MeasureReply::Done)
            }
        }
    }

    /// Runs batches, and returns the latencies of those that begin in the window.
    fn run_batches(
        &self,
        before: Duration,
        window: Duration,
        after: Duration,
    ) -> Result<Vec<Duration>, ExecutionError> {
        let begin = now();
        let mut latencies = Vec::new();
        loop {
            let batch = self.prepare_batch()?;
            let started = now();
            let since = started - begin;
            if since >= before + window + after {
                return Ok(latencies);
            }
            batch.run()?;
            if (before..before + window).contains(&since) {
                latencies.push(now() - started);
            }
        }
    }
}

fn summarize(mut latencies: Vec<Duration>) -> MeasureReply {
    latencies.sort_unstable();
    let count = latencies.len();
    let millis = |latency: &Duration| latency.as_secs_f64() * 1e3;
    let mean = latencies.iter().map(millis).sum::<f64>() / count.max(1) as f64;
    let squares = latencies
        .iter()
        .map(|latency| (millis(latency) - mean).powi(2));
    MeasureReply::Ran {
        batches: u32::try_from(count).unwrap_or(u32::MAX),
        median_ms: latencies.get(count / 2).map_or(0.0, millis),
        std_ms: (squares.sum::<f64>() / count.max(1) as f64).sqrt(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_is_summarized_by_median_and_standard_deviation() {
        let millis = |values: &[u64]| values.iter().map(|ms| Duration::from_millis(*ms)).collect();
        let summary = |values: &[u64]| summarize(millis(values));
        let ran = |batches, median_ms, std_ms| MeasureReply::Ran {
            batches,
            median_ms,
            std_ms,
        };
        assert_eq!(summary(&[]), ran(0, 0.0, 0.0));
        assert_eq!(summary(&[3]), ran(1, 3.0, 0.0));
        assert_eq!(summary(&[6, 2, 4, 4]), ran(4, 4.0, 2.0_f64.sqrt()));
    }
}
