//! The solve time of each policy, and the goodput of its plan beside the fluid bound.
//!
//! Groups: `thesis`, the settings of Elvinger's thesis; `scale`, heuristics from 4 to 6,000 devices and 20 to 2,000 models. A solve
//! that takes longer than [`MAX_SAMPLED`] is timed once, the others by criterion, both in processor time. Criterion's estimates are in `target/criterion`; in
//! addition, one line per solve is written to `solve-times.csv` in cargo's temporary folder. `cargo xtask bench placement` makes a report of
//! both.
#![expect(clippy::print_stdout, reason = "progress, for people at a terminal")]

mod problems;
mod processor_time;
mod zoo;

use std::{fmt::Write as _, fs, path::Path, time::Duration};

use criterion::{BenchmarkId, Criterion};
use packhorse_cluster::{Plan, Problem};
use packhorse_placement::{Budget, POLICIES, PlanningOptions, PolicyEntry};

use problems::{Setting, fluid_bound};
use processor_time::ProcessorTime;

/// The longest solve that is run several times, of which criterion takes the median.
const MAX_SAMPLED: Duration = Duration::from_millis(200);

/// The time limit of a solve, in processor time.
const LIMIT: Duration = Duration::from_secs(5);

/// The time limit of the solver of linear programs, which goes by the clock: more, since the machine also does other work.
const SOLVER_LIMIT: Duration = Duration::from_secs(20);

/// The largest problem, in devices times models, for the linear programs.
const MAX_PROGRAM: usize = 100;

/// The most models for the policies that match models: matching takes time in the third power of their number, and cannot be stopped.
const MAX_MATCHED: usize = 200;

fn main() {
    let mut criterion = Criterion::default()
        .with_measurement(ProcessorTime)
        .sample_size(10)
        .warm_up_time(Duration::from_millis(50))
        .measurement_time(Duration::from_millis(200))
        .without_plots()
        .configure_from_args();
    let mut lines =
        "group,policy,setting,devices,models,once_ms,goodput_rps,offered_rps,bound_rps\n"
            .to_owned();
    for (group, settings) in [("thesis", problems::thesis()), ("scale", problems::scale())] {
        for setting in &settings {
            for entry in POLICIES {
                if is_measured(entry, setting) {
                    measure(&mut criterion, group, setting, entry, &mut lines);
                }
            }
        }
    }
    criterion.final_summary();
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("solve-times.csv");
    fs::write(&path, lines).expect("cargo makes the folder");
}

/// Returns true if the policy is measured with a setting: the linear programs only with small problems and with `HiGHS`, and iGniter
/// only with coefficients.
fn is_measured(entry: &PolicyEntry, setting: &Setting) -> bool {
    let size = setting.problem.devices.len() * setting.problem.models.len();
    match entry.name {
        "ao-milp" | "wsm-milp" => cfg!(feature = "highs") && size <= MAX_PROGRAM,
        "usher" | "wao-usher" => setting.problem.models.len() <= MAX_MATCHED,
        "igniter" => setting.coefficients.is_some(),
        _ => true,
    }
}

fn measure(
    criterion: &mut Criterion<ProcessorTime>,
    group: &str,
    setting: &Setting,
    entry: &PolicyEntry,
    lines: &mut String,
) {
    let options = PlanningOptions {
        igniter_coefficients: setting.coefficients.clone(),
        ..PlanningOptions::default()
    };
    let (elapsed, plan) = solve_once(entry, &setting.problem, &options);
    let goodput: f64 = plan
        .iter()
        .flat_map(|plan| &plan.models)
        .map(|model| model.goodput.get())
        .sum::<f64>()
        + 0.0;
    let offered: f64 = setting
        .problem
        .models
        .iter()
        .map(|model| model.rate.get())
        .sum();
    let bound = fluid_bound(&setting.problem);
    let once_ms = elapsed.as_secs_f64() * 1e3;
    let (name, devices, models) = (
        entry.name,
        setting.problem.devices.len(),
        setting.problem.models.len(),
    );
    println!(
        "{group}/{name}/{}: once {once_ms:.3} ms, {goodput:.1} of {bound:.1} requests/s",
        setting.name
    );
    writeln!(
        lines,
        "{group},{name},{},{devices},{models},{once_ms},{},{offered},{bound}",
        setting.name,
        plan.as_ref()
            .map_or_else(String::new, |_| goodput.to_string()),
    )
    .expect("writing to memory cannot fail");
    if plan.is_none() || elapsed > MAX_SAMPLED {
        return;
    }
    let mut group = criterion.benchmark_group(group);
    group.bench_function(BenchmarkId::new(name, &setting.name), |bencher| {
        bencher.iter(|| solve_once(entry, &setting.problem, &options).1);
    });
    group.finish();
}

/// Returns the plan and the processor time that it took.
fn solve_once(
    entry: &PolicyEntry,
    problem: &Problem,
    options: &PlanningOptions,
) -> (Duration, Option<Plan>) {
    let start = processor_time::now();
    let elapsed = || processor_time::now().saturating_sub(start);
    let is_late = || elapsed() > LIMIT;
    let mut budget = Budget::new(u64::MAX, &is_late).with_time_limit(SOLVER_LIMIT);
    let plan = entry.place_with(problem, options, &mut budget).ok();
    (elapsed(), plan)
}
