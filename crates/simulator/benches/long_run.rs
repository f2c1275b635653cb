//! The goodput that the search of the policy `goodput` loses at its default effort, compared with a search that is many times as long.
//!
//! Each problem is solved with the default effort and with a large one. Both plans are evaluated by one estimate over the whole cluster,
//! and those of the smaller clusters also by simulated runs. One line per problem goes to `long-run.csv` in cargo's folder for such
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

use packhorse_cluster::{
    DemandedModel, Discipline, Effort, PlannedReplica, PolicyOptions, Problem,
};
use packhorse_contention::Interference;
use packhorse_placement::{Budget, estimate, policy};
use packhorse_simulator::{
    Arrivals, Links, PlanReport, PlanningContext, Rate, Scenario, SimulationSettings, Workload,
    simulate,
};

/// The devices, the models and the effort of the long search of each problem. All together take some minutes.
const SIZES: [(usize, usize, u32); 3] = [(24, 20, 50), (100, 100, 30), (6_000, 2_000, 20)];

/// The load of each problem: the time of its requests in full batches over the devices' time. The first is that of the other benchmark
/// and can be served; the second is an overload.
const LOADS: [f64; 2] = [0.9, 2.7];

/// The largest cluster that is simulated, in devices.
const MAX_SIMULATED: usize = 100;
/// The seeds of the simulated runs.
const SEEDS: std::ops::RangeInclusive<u64> = 1..=3;

/// One solve and its goodput.
struct Solve {
    seconds: f64,
    /// The estimated goodput over the offered rate.
    estimated: f64,
    /// The simulated goodput over the offered rate; `None` for large clusters.
    simulated: Option<f64>,
}

fn main() {
    let mut lines = "devices,models,load,effort,usual_s,usual_estimated,usual_simulated,long_s,long_estimated,long_simulated\n".to_owned();
    for (devices, models, effort) in SIZES {
        for load in LOADS {
            let problem = zoo::zoo(devices, models, load);
            let long = Effort::new(effort).expect("in range");
            let [usual, long] = [Effort::DEFAULT, long].map(|effort| solve(&problem, effort));
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
    let plan = entry.place_with(problem, &options.into(), &mut Budget::unlimited());
    let seconds = start.elapsed().as_secs_f64();
    let replicas = plan.expect("nothing ends the search").replicas;
    let offered: f64 = problem.models.iter().map(|model| model.rate.get()).sum();
    let goodputs = estimate(problem, &replicas);
    let goodput: f64 = goodputs.iter().map(|forecast| forecast.goodput.get()).sum();
    Solve {
        seconds,
        estimated: goodput / offered,
        simulated: (problem.devices.len() <= MAX_SIMULATED).then(|| simulated(problem, &replicas)),
    }
}

/// Returns the simulated goodput over the offered rate, in the mean over seeds.
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

/// Returns a scenario with the conditions of the problem.
fn scenario(problem: &Problem) -> Scenario {
    let conditions = problem.conditions;
    let workload = |model: &DemandedModel| Workload {
        requests: None,
        rate: Rate::constant(model.rate),
        latency_scale: model.latency_scale,
    };
    Scenario {
        families: Vec::new(),
        autoscale: None,
        host_links: Vec::new(),
        name: "long-run".to_owned(),
        problem: problem.clone(),
        workloads: problem.models.iter().map(workload).collect(),
        max_batch_wait: conditions.max_batch_wait,
        igniter_coefficients: None,
        context: PlanningContext::default(),
        simulation: SimulationSettings {
            warmup: Duration::from_secs(1),
            window: Duration::from_secs(4),
            client_overhead: conditions.client_overhead,
            router_overhead: conditions.router_overhead,
            network: problem.network,
            links: Links::Instant,
            return_time: conditions.return_time,
            interference: Interference::default(),
            arrivals: Arrivals::Poisson,
            faults: Vec::new(),
        },
    }
}
