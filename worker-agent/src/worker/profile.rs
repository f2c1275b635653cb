//! `packhorse-worker profile`: measures a program's latency and memory for batch sizes 1, 2, 4, … up to its limit.

use std::{
    sync::mpsc::{self, RecvTimeoutError, Sender},
    thread,
    time::{Duration, Instant},
};

use packhorse_cluster::{ComputeShare, InputShapes, Profile, ProfileRow, ProfileTable, Program};
use packhorse_worker_agent::handoff::{Execution, Handoff, ProfileTask, WorkerReport, exit_code};

use crate::{
    clock::now,
    confinement::Confinement,
    device_turns::DeviceTurns,
    executor::{
        self, ExecutionError, Executor, Fill, LOAD_LIMIT, StartError, WarmUpSizes, synthetic,
    },
    inspect,
    kernel_recorder::KernelRecorder,
    process_memory,
    run_delay::run_delay,
    status_reporter::StatusReporter,
};

/// The least number of measured batches of a size, even if they exceed the time limit.
const MIN_RUNS: usize = 3;
/// The largest number of measured batches of a size.
const MAX_RUNS: usize = 100;
/// The measuring time of a size, unless the least number of batches takes longer.
const TIME_PER_SIZE: Duration = Duration::from_secs(1);

/// A way to find the operators of a program as JSON; the error is a text for people.
type FindOperators = fn(&Execution, &Handoff) -> Result<String, String>;

/// Runs the measurement to its end, and returns the exit code. The caller must exit at once.
pub(crate) fn profile(handoff: &Handoff, confine: bool) -> u8 {
    let reporter = StatusReporter::new(handoff);
    handoff.limit_log();
    let outcome = read_task(handoff).and_then(|task| {
        if confine {
            Confinement::new(handoff, [&task.execution]).enter();
        }
        run(&task, handoff, &reporter, inspect::in_own_process)
    });
    match outcome {
        Ok(()) => exit_code::DONE,
        Err(StartError { reason, permanent }) => {
            reporter.report_failure(reason, permanent);
            exit_code::FAILED
        }
    }
}

/// Makes one measurement of a process that makes others, too. If the program ends the process, it is measured again in one of its own, so that its
/// operators are looked for here.
///
/// # Errors
/// The reason why the program cannot be measured.
pub(crate) fn run_reused(handoff: &Handoff, reporter: &StatusReporter) -> Result<(), StartError> {
    run(&read_task(handoff)?, handoff, reporter, inspect::here)
}

fn read_task(handoff: &Handoff) -> Result<ProfileTask, StartError> {
    let task = handoff.read_task();
    task.map_err(|e| StartError::permanent(e.to_string()))
}

fn run(
    task: &ProfileTask,
    handoff: &Handoff,
    reporter: &StatusReporter,
    find_operators: FindOperators,
) -> Result<(), StartError> {
    reporter.report(WorkerReport::Loading);
    let program = &task.execution.program;
    if let Some(known) = executor::known_profile(&task.execution)? {
        let total = u32::try_from(known.rows().len()).unwrap_or(u32::MAX);
        report_measured(reporter, task, known, total, ByProducts::default());
        return Ok(());
    }
    let time_limit = Duration::from_millis(task.time_limit_ms);
    let mut turns = DeviceTurns::new(task.execution.device_lock.as_deref());
    let limit = LOAD_LIMIT + DeviceTurns::MEASUREMENT_LIMIT + time_limit;
    let watchdog = spawn_watchdog(reporter.clone(), limit);
    let operators = operators(task, handoff, find_operators);
    if operators.is_some() {
        // Loading may take minutes, in which the gateway can plan for the model.
        reporter.report(WorkerReport::Measuring {
            done: 0,
            total: 0,
            operators: operators.clone(),
        });
    }
    // What earlier programs of this process needed is not this one's.
    executor::release_free_memory();
    process_memory::begin_new_peak();
    let executor = executor::start(&task.execution, 1, WarmUpSizes::PowersOfTwo)?.executor;
    let sizes = synthetic::batch_sizes(program.rows_limit());
    let total = u32::try_from(sizes.len()).unwrap_or(u32::MAX);
    let progress = |done| {
        reporter.report(WorkerReport::Measuring {
            done,
            total,
            operators: operators.clone(),
        });
    };
    let mut recorder = KernelRecorder::new(&task.execution.executor, handoff);
    let deadline = now() + time_limit;
    let rows = measure(
        &*executor,
        program,
        &sizes,
        deadline,
        &mut turns,
        &mut recorder,
        progress,
    )?;
    let profile = Profile::new(rows).expect("every size once, and time passed");
    drop(watchdog);
    let by_products = ByProducts {
        kernels: recorder.into_csv(&program.model, &task.device_kind),
        operators,
    };
    report_measured(reporter, task, profile, total, by_products);
    Ok(())
}

/// Returns the operators of the program, as JSON, if they are wanted. Without them the program is measured all the same.
fn operators(
    task: &ProfileTask,
    handoff: &Handoff,
    find_operators: FindOperators,
) -> Option<String> {
    if !task.inspect {
        return None;
    }
    match find_operators(&task.execution, handoff) {
        Ok(operators) => Some(operators),
        Err(reason) => {
            tracing::info!(reason, "the operators are not known");
            None
        }
    }
}

/// The findings beside a measurement.
#[derive(Default)]
struct ByProducts {
    /// The recorded kernels, as CSV.
    kernels: Option<String>,
    /// The operators, as JSON.
    operators: Option<String>,
}

fn report_measured(
    reporter: &StatusReporter,
    task: &ProfileTask,
    profile: Profile,
    total: u32,
    by_products: ByProducts,
) {
    let program = &task.execution.program;
    let profile = if program.has_variable_inputs() {
        profile.with_input_shapes(InputShapes::tried(program))
    } else {
        profile
    };
    let done = u32::try_from(profile.rows().len()).unwrap_or(u32::MAX);
    let mut table = ProfileTable::default();
    table.insert(program.model.clone(), task.device_kind.clone(), profile);
    let csv = table.to_csv();
    reporter.report_result(WorkerReport::Measured {
        done,
        total,
        csv,
        kernels: by_products.kernels,
        operators: by_products.operators,
    });
}

/// Starts a thread that ends the process if what this returns is not dropped in time.
fn spawn_watchdog(reporter: StatusReporter, limit: Duration) -> Sender<()> {
    let (measuring, measured) = mpsc::channel();
    thread::spawn(move || {
        if measured.recv_timeout(limit) == Err(RecvTimeoutError::Timeout) {
            let reason = format!("the measurement did not end within {} s", limit.as_secs());
            reporter.report_failure(reason, true);
            executor::exit_now(exit_code::FAILED);
        }
    });
    measuring
}

/// Measures the batch sizes in ascending order, so that the peak memory so far belongs to the size just measured. Begins no size after
/// `deadline`, except the first, and ends without an error at a size that does not fit into memory. The time that it waits for its turns does
/// not count.
fn measure(
    executor: &dyn Executor,
    program: &Program,
    sizes: &[u32],
    deadline: Instant,
    turns: &mut DeviceTurns,
    recorder: &mut KernelRecorder<'_>,
    progress: impl Fn(u32),
) -> Result<Vec<ProfileRow>, ExecutionError> {
    progress(0);
    let (fill, _) = synthetic::warm_up(executor, program, &sizes[..1])?;
    let cases = synthetic::usual_cases(program);
    let mut rows = Vec::new();
    for &size in sizes {
        if !rows.is_empty() && now() >= deadline + turns.waited() {
            break;
        }
        match measure_size(executor, &cases, size, fill, turns) {
            Ok(row) => rows.push(row),
            Err(ExecutionError::OutOfMemory(_)) if !rows.is_empty() => break,
            Err(error) => return Err(error.at_batch_size(size)),
        }
        progress(rows.len() as u32);
    }
    // The kernels are recorded after all measurements, because the profiler slows the process down for good.
    for row in &mut rows {
        if recorder.is_active() {
            let _turn = turns.measure();
            synthetic::warm_up_only(executor, program, row.batch_size, fill)?;
            let batch = synthetic::prepare_batch(executor, program, row.batch_size, fill)?;
            recorder.record(batch, row);
        }
    }
    Ok(rows)
}

/// Measures a batch size. With several usual shapes its time is the mean of their times by weight, and its 99th percentile the largest of theirs.
fn measure_size(
    executor: &dyn Executor,
    cases: &[(u32, Program)],
    size: u32,
    fill: Fill,
    turns: &mut DeviceTurns,
) -> Result<ProfileRow, ExecutionError> {
    let (mut sum, mut weights, mut longest) = (Duration::ZERO, 0, Duration::ZERO);
    for (weight, program) in cases {
        let _turn = turns.measure();
        let (median, p99) = measure_shape(executor, program, size, fill)?;
        sum += median * *weight;
        weights += weight;
        longest = longest.max(p99);
    }
    Ok(ProfileRow {
        batch_size: size,
        compute_share: ComputeShare::WHOLE,
        // The clock may be too coarse for an empty program.
        latency: (sum / weights.max(1)).max(Duration::from_nanos(1)),
        latency_p99: Some(longest.max(Duration::from_nanos(1))),
        memory: executor.memory(size),
        achieved_occupancy: None,
        mean_occupancy: None,
        sm_utilization: None,
    })
}

/// Returns the median and the 99th percentile of the times of a batch size with one shape.
fn measure_shape(
    executor: &dyn Executor,
    program: &Program,
    size: u32,
    fill: Fill,
) -> Result<(Duration, Duration), ExecutionError> {
    // The first run of a size allocates memory that the others reuse.
    synthetic::warm_up_only(executor, program, size, fill)?;
    let end = now() + TIME_PER_SIZE;
    let mut latencies = Vec::new();
    while latencies.len() < MIN_RUNS || (latencies.len() < MAX_RUNS && now() < end) {
        let batch = synthetic::prepare_batch(executor, program, size, fill)?;
        let (delayed, started) = (run_delay(), now());
        batch.run()?;
        let took = now() - started;
        // A neighbour's batches are none of this program's time. With several threads only this one's delay is known.
        let delay = run_delay().saturating_sub(delayed);
        latencies.push(took.saturating_sub(delay));
    }
    latencies.sort_unstable();
    let quantile = |percent: usize| latencies[percent * latencies.len() / 100];
    Ok((quantile(50), quantile(99)))
}
