//! `packhorse-worker profile`: measures a program's latency and memory for batch sizes 1, 2, 4, … up to its limit.

use std::{
    thread,
    time::{Duration, Instant},
};

use packhorse_cluster::{
    ComputeShare, DeviceKind, ModelId, Profile, ProfileRow, ProfileTable, Program,
};

use packhorse_worker_agent::handoff::{Handoff, ProfileTask, WorkerReport, exit_code};

use crate::executor::{
    self, ExecutionError, Executor, Sizes, StartError,
    sample::{self, Fill},
};
use crate::{Reporter, kernels::Recorder, now, serve::LOAD_LIMIT};

/// Batches of one size that are measured at least, the time limit notwithstanding.
const MIN_RUNS: usize = 3;
/// Batches of one size that are measured at most.
const MAX_RUNS: usize = 200;
/// Time spent on one size, where the minimum of runs does not take longer.
const TIME_PER_SIZE: Duration = Duration::from_secs(1);

/// Runs the measurement to its end: the code to exit with. The caller exits at once.
pub(crate) fn profile(handoff: &Handoff) -> u8 {
    let reporter = Reporter::new(handoff);
    reporter.on_terminate();
    match run(handoff, &reporter) {
        Ok(()) => exit_code::DONE,
        Err(StartError { reason, permanent }) => {
            reporter.failed(reason, permanent);
            exit_code::FAILED
        }
    }
}

fn run(handoff: &Handoff, reporter: &Reporter<'_>) -> Result<(), StartError> {
    let task: ProfileTask = handoff.read_task().map_err(|e| StartError {
        reason: e.to_string(),
        permanent: true,
    })?;
    reporter.report(WorkerReport::Loading);
    let program = &task.execution.program;
    if let Some(known) = executor::known_profile(&task.execution)? {
        let total = u32::try_from(known.rows().len()).unwrap_or(u32::MAX);
        report_measured(
            reporter,
            &program.model,
            &task.device_kind,
            known,
            total,
            None,
        );
        return Ok(());
    }
    let time_limit = Duration::from_millis(task.time_limit_ms);
    spawn_watchdog(handoff.clone(), time_limit + LOAD_LIMIT);
    let executor = executor::start(&task.execution, 1, Sizes::Doubling)?.executor;
    let sizes = sample::batch_sizes(program.rows_limit());
    let total = u32::try_from(sizes.len()).unwrap_or(u32::MAX);
    let progress = |done| reporter.report(WorkerReport::Measuring { done, total });
    let mut recorder = Recorder::new(&task.execution.executor, handoff);
    let deadline = now() + time_limit;
    let rows = measure(
        &*executor,
        program,
        &sizes,
        deadline,
        &mut recorder,
        progress,
    )?;
    let profile = Profile::new(rows).expect("every size once, and time passed");
    let (model, kind) = (&program.model, &task.device_kind);
    let kernels = recorder.into_csv(model, kind);
    report_measured(reporter, model, kind, profile, total, kernels);
    Ok(())
}

fn report_measured(
    reporter: &Reporter<'_>,
    model: &ModelId,
    device_kind: &DeviceKind,
    profile: Profile,
    total: u32,
    kernels: Option<String>,
) {
    let done = u32::try_from(profile.rows().len()).unwrap_or(u32::MAX);
    let mut table = ProfileTable::default();
    table.insert(model.clone(), device_kind.clone(), profile);
    let csv = table.to_csv();
    reporter.report(WorkerReport::Measured {
        done,
        total,
        csv,
        kernels,
    });
}

/// Ends a measurement whose program does not come back.
fn spawn_watchdog(handoff: Handoff, limit: Duration) {
    thread::spawn(move || {
        thread::sleep(limit);
        let reason = format!("the measurement was not done after {} s", limit.as_secs());
        Reporter::new(&handoff).failed(reason, true);
        executor::exit_now(exit_code::FAILED);
    });
}

/// Measures the sizes in ascending order, so that the largest memory so far is that of the size just measured. Begins no
/// size after `deadline`, apart from the first; stops without an error where memory ends.
fn measure(
    executor: &dyn Executor,
    program: &Program,
    sizes: &[u32],
    deadline: Instant,
    recorder: &mut Recorder<'_>,
    progress: impl Fn(u32),
) -> Result<Vec<ProfileRow>, ExecutionError> {
    progress(0);
    let (fill, _) = sample::warm_up(executor, program, &sizes[..1])?;
    let mut rows = Vec::new();
    for &size in sizes {
        if !rows.is_empty() && now() >= deadline {
            break;
        }
        match measure_size(executor, program, size, fill) {
            Ok(row) => rows.push(row),
            Err(ExecutionError::OutOfMemory(_)) if !rows.is_empty() => break,
            Err(error) => return Err(at_size(error, size)),
        }
        progress(rows.len() as u32);
    }
    // At the end: what the profiler attaches to stays slower.
    for row in &mut rows {
        if recorder.wants_batches() {
            recorder.record(sample::batch(executor, program, row.batch_size, fill)?, row);
        }
    }
    Ok(rows)
}

fn measure_size(
    executor: &dyn Executor,
    program: &Program,
    size: u32,
    fill: Fill,
) -> Result<ProfileRow, ExecutionError> {
    // The first run of a size allocates what the others use again.
    sample::run(executor, program, size, fill)?;
    let end = now() + TIME_PER_SIZE;
    let mut latencies = Vec::new();
    while latencies.len() < MIN_RUNS || (latencies.len() < MAX_RUNS && now() < end) {
        let batch = sample::batch(executor, program, size, fill)?;
        let started = now();
        batch.run()?;
        latencies.push(now() - started);
    }
    latencies.sort_unstable();
    let quantile = |percent: usize| latencies[percent * latencies.len() / 100];
    Ok(ProfileRow {
        batch_size: size,
        compute_share: ComputeShare::WHOLE,
        // A clock may be too coarse for a program that does nothing.
        latency: quantile(50).max(Duration::from_nanos(1)),
        latency_p99: Some(quantile(99).max(Duration::from_nanos(1))),
        memory: executor.memory(size),
        achieved_occupancy: None,
        mean_occupancy: None,
        sm_utilization: None,
    })
}

fn at_size(error: ExecutionError, size: u32) -> ExecutionError {
    let at = |text: String| format!("{text} (batch size {size})");
    match error {
        ExecutionError::ModuleThrew(text) => ExecutionError::ModuleThrew(at(text)),
        ExecutionError::WrongOutput(text) => ExecutionError::WrongOutput(at(text)),
        ExecutionError::OutOfMemory(text) => ExecutionError::OutOfMemory(at(text)),
        ExecutionError::DeviceFailed(text) => ExecutionError::DeviceFailed(at(text)),
    }
}
