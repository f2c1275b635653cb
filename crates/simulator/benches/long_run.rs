//! What the usual search of `goodput` loses against one that is many times as long.
//!
//! Each problem is solved with the usual effort and with a large one. Both plans are judged by one estimate over the whole cluster, and
//! those of the smaller clusters by simulated runs, too. One line per problem goes to `long-run.csv` in cargo's folder for such
//! files, for `cargo xtask bench placement`.
#![expect(clippy::print_stdout, reason = "progress, for people at a terminal")]

#[path = "../../placement/benches/solve_times/zoo.rs"]
mod zoo;

use std::{
    fmt::Write as _,
    fs,
    path::Path,
    time::{Duration, Instant},
};

use packhorse_cluster::{DemandedModel, Discipline, PlannedReplica, Problem};
use packhorse_contention::Interference;
use packhorse_placement::{Budget, Effort, PolicyOptions, estimate, policy};
use packhorse_simulator::{Arrivals, PlanReport, Rate, Scenario, Simulation, Workload, simulate};

/// Devices, models and the effort of the long run: what some minutes allow.
const SIZES: [(usize, usize, u32); 3] = [(24, 20, 50), (100, 100, 30), (6_000, 2_000, 20)];

/// Rates that want this much of the devices' time in full batches: what the other benchmark has, which is served, and too much.
const LOADS: [f64; 2] = [0.9, 2.7];

/// Clusters of so many devices are simulated.
const SIMULATED: usize = 100;
const SEEDS: std::ops::RangeInclusive<u64> = 1..=3;

/// One solve, and what it comes to.
struct Solve {
    seconds: f64,
    /// The part of the requests that is in time by the estimate.
    estimated: f64,
    /// The same in simulated runs.
    simulated: Option<f64>,
}

fn main() {
    let mut lines = "devices,models,load,effort,usual_s,usual_estimated,usual_simulated,long_s,long_estimated,long_simulated\n".to_owned();
    for (devices, models, effort) in SIZES {
        for load in LOADS {
            let problem = zoo::zoo(devices, models, load);
            let long = Effort::new(effort).expect("in range");
            let [usual, long] = [Effort::USUAL, long].map(|effort| solve(&problem, effort));
            let mut line = format!("{devices},{models},{load},{effort}");
            for solve in [usual, long] {
                let simulated = solve
                    .simulated
                    .map_or_else(String::new, |part| part.to_string());
                write!(line, ",{},{},{simulated}", solve.seconds, solve.estimated)
                    .expect("writing to memory cannot fail");
            }
            println!("{line}");
            lines += &line;
            lines.push('\n');
        }
    }
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("long-run.csv");
    fs::write(&path, lines).expect("cargo makes the folder");
}

#[expect(clippy::disallowed_methods, reason = "a benchmark measures time")]
fn solve(problem: &Problem, effort: Effort) -> Solve {
    let options = PolicyOptions {
        effort,
        ..PolicyOptions::default()
    };
    let entry = policy("goodput").expect("it is in the table");
    let start = Instant::now();
    let plan = entry.place_with(problem, &options, &mut Budget::unlimited());
    let seconds = start.elapsed().as_secs_f64();
    let replicas = plan.expect("nothing ends the search").replicas;
    let offered: f64 = problem.models.iter().map(|model| model.rate.get()).sum();
    let goodputs = estimate(problem, &replicas);
    let goodput: f64 = goodputs.iter().map(|forecast| forecast.goodput.get()).sum();
    Solve {
        seconds,
        estimated: goodput / offered,
        simulated: (problem.devices.len() <= SIMULATED).then(|| simulated(problem, &replicas)),
    }
}

/// The part of the requests that is in time, in the mean over seeds.
fn simulated(problem: &Problem, replicas: &[PlannedReplica]) -> f64 {
    let scenario = scenario(problem);
    let mut sum = 0.0;
    for seed in SEEDS {
        let plan = PlanReport::from_replicas(&scenario, replicas);
        let report = simulate(
            &scenario,
            plan,
            replicas,
            Discipline::Deadline,
            seed,
            &mut |_| {},
        );
        let totals = report.expect("the plan fits").totals;
        sum += totals.goodput_rps / totals.offered_rps;
    }
    sum / SEEDS.count() as f64
}

/// The world that the problem speaks of.
fn scenario(problem: &Problem) -> Scenario {
    let conditions = problem.conditions;
    let workload = |model: &DemandedModel| Workload {
        requests: None,
        rate: Rate::constant(model.rate),
        latency_scale: model.latency_scale,
    };
    Scenario {
        name: "long-run".to_owned(),
        problem: problem.clone(),
        workloads: problem.models.iter().map(workload).collect(),
        max_batch_wait: conditions.max_batch_wait,
        igniter_coefficients: None,
        simulation: Simulation {
            warmup: Duration::from_secs(1),
            window: Duration::from_secs(4),
            client_overhead: conditions.client_overhead,
            router_overhead: conditions.router_overhead,
            network: problem.network,
            return_time: conditions.return_time,
            interference: Interference::default(),
            arrivals: Arrivals::Poisson,
            faults: Vec::new(),
        },
    }
}
