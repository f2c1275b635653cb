use std::{fmt::Write, time::Duration};

use packhorse_cluster::{ComputeShare, DeviceIndex, Discipline, ModelIndex};
use packhorse_virtual::Jitter;

use super::*;

const THESIS: &str = include_str!("../../../profiles/v100-thesis.csv");

/// The five vision models of the thesis' chapter 6 on V100s, with the calibration that reproduces its figures.
fn vision(devices: usize, rate: f64, slo_ms: u32) -> Scenario {
    let mut text = format!(
        "name = \"vision\"\nprofiles = [\"thesis\"]\n[simulation]\nlatency_scale = 1.22\nclient_overhead_ms = 0.308\n\
         [[devices]]\nkind = \"V100-SXM2-16GB\"\ncount = {devices}\n"
    );
    for name in MODELS {
        writeln!(
            text,
            "[[models]]\nname = \"{name}\"\nrate_rps = {rate}\nslo_ms = {slo_ms}\npayload_bytes = 602112"
        )
        .unwrap();
    }
    Scenario::parse(&text, &mut |_| Ok(THESIS.to_owned())).unwrap()
}

const MODELS: [&str; 5] = [
    "alexnet",
    "densenet121",
    "efficientnet_b7",
    "resnet50",
    "vgg19",
];

fn plan(scenario: &Scenario, replicas: &[(&str, usize, u32)]) -> Vec<PlannedReplica> {
    let index = |name: &str| {
        scenario
            .problem
            .models
            .iter()
            .position(|model| model.id.name.as_str() == name)
            .unwrap()
    };
    let planned = |&(name, device, batch_size): &(&str, usize, u32)| {
        PlannedReplica::new(ModelIndex(index(name)), DeviceIndex(device), batch_size)
    };
    replicas.iter().map(planned).collect()
}

fn run(
    scenario: &Scenario,
    replicas: &[PlannedReplica],
    discipline: Discipline,
    seed: u64,
) -> Report {
    let plan = PlanReport::from_replicas(scenario, replicas);
    simulate(scenario, plan, replicas, discipline, seed, &mut |_| {}).unwrap()
}

fn model<'a>(report: &'a Report, name: &str) -> &'a ModelReport {
    report
        .models
        .iter()
        .find(|model| model.name == name)
        .unwrap()
}

/// The mean throughput and goodput of `efficientnet_b7` over five seeds, with the thesis' router.
fn efficientnet(scenario: &Scenario, replicas: &[(&str, usize, u32)]) -> (f64, f64) {
    let plan = plan(scenario, replicas);
    let sums = (1..=5).map(|seed| {
        let report = run(scenario, &plan, Discipline::FixedWait, seed);
        let model = model(&report, "efficientnet_b7");
        (model.throughput_rps, model.goodput_rps)
    });
    let (throughput, goodput) = sums.fold((0.0, 0.0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
    (throughput / 5.0, goodput / 5.0)
}

/// Figure 6.6: two replicas on GPUs of their own, batches of 8 under Usher and of 64 under AO-MILP.
#[test]
fn large_batches_keep_throughput_and_lose_goodput_as_measured_in_the_thesis() {
    let scenario = vision(6, 500.0, 200);
    for (batch, throughput, goodput) in [(8, 419.0, 367.0), (64, 421.0, 142.0)] {
        let found = efficientnet(
            &scenario,
            &[("efficientnet_b7", 0, batch), ("efficientnet_b7", 1, batch)],
        );
        assert!(
            (found.0 / throughput - 1.0).abs() < 0.03,
            "{batch}: {found:?}"
        );
        assert!(
            (found.1 / goodput - 1.0_f64).abs() < 0.10,
            "{batch}: {found:?}"
        );
    }
}

#[test]
fn equal_seeds_give_equal_reports_and_different_seeds_different_ones() {
    let scenario = vision(2, 300.0, 200);
    let plan = plan(
        &scenario,
        &[("alexnet", 0, 16), ("resnet50", 0, 8), ("vgg19", 1, 16)],
    );
    for discipline in Discipline::ALL {
        let first = run(&scenario, &plan, discipline, 3);
        assert_eq!(first, run(&scenario, &plan, discipline, 3));
        assert_ne!(first.totals, run(&scenario, &plan, discipline, 4).totals);
        assert_eq!(first.plan.unserved, ["densenet121", "efficientnet_b7"]);
        assert_eq!(first.plan.devices_used, 2);
    }
}

/// Runs three models that fit on one device, and a fourth at the rate `vgg19_rate`. `extra_slowdown` is hidden from the engine.
fn shared_device(extra_slowdown: f64, vgg19_rate: f64) -> Report {
    let models = [
        ("resnet50", 200.0),
        ("alexnet", 300.0),
        ("densenet121", 150.0),
        ("vgg19", vgg19_rate),
    ];
    let mut text = format!(
        "name = \"shared\"\nprofiles = [\"thesis\"]\n[simulation]\nlatency_scale = 1.22\nextra_slowdown = {extra_slowdown}\n\
         [[devices]]\nkind = \"V100-SXM2-16GB\"\ncount = 1\n"
    );
    for (name, rate) in models {
        writeln!(
            text,
            "[[models]]\nname = \"{name}\"\nrate_rps = {rate}\nslo_ms = 200\npayload_bytes = 602112"
        )
        .unwrap();
    }
    let scenario = Scenario::parse(&text, &mut |_| Ok(THESIS.to_owned())).unwrap();
    let replicas = plan(&scenario, &models.map(|(name, _)| (name, 0, 16)));
    run(&scenario, &replicas, Discipline::Deadline, 1)
}

#[test]
fn an_overloaded_model_does_not_starve_its_neighbours_on_the_device() {
    let report = shared_device(0.0, 4000.0);
    for neighbour in ["resnet50", "alexnet", "densenet121"] {
        let neighbour = model(&report, neighbour);
        assert!(
            neighbour.goodput_rps > 0.99 * neighbour.offered_rps,
            "{neighbour:?}"
        );
    }
}

/// Batches take up to seven times as long as profiled. If the engine's estimated slowdown is limited to four, all requests are
/// computed too late, and only a tenth of resnet50's are in time.
#[test]
fn under_hidden_interference_requests_are_dropped_and_goodput_does_not_collapse() {
    let report = shared_device(0.5, 1000.0);
    for (name, share) in [("resnet50", 0.7), ("alexnet", 0.9)] {
        let model = model(&report, name);
        assert!(model.goodput_rps > share * model.offered_rps, "{model:?}");
    }
}

/// The mean latency in ms of one replica with batches of one row and 10 ms, without network times, at 70 requests/s.
fn single_server(batch_times: Jitter) -> f64 {
    let csv = "a,V100-SXM2-16GB,1,,10,,1,,,100\n";
    let text = "name = \"single\"\nprofiles = [\"p\"]\n[simulation]\nwindow_s = 20000\nrouter_overhead_ms = 0\n\
        network_base_ms = 0\nreturn_ms = 0\n[[devices]]\nkind = \"V100-SXM2-16GB\"\ncount = 1\n\
        [[models]]\nname = \"a\"\nrate_rps = 70\nslo_ms = 10000\n";
    let table = format!("{}\n{csv}", packhorse_cluster::ProfileTable::CSV_HEADER);
    let scenario = Scenario::parse(text, &mut |_| Ok(table.clone())).unwrap();
    let replicas = plan(&scenario, &[("a", 0, 1)]);
    let options = RunOptions {
        dispatch: Discipline::FixedWait.into(),
        ..RunOptions::default()
    };
    let simulation = simulation::Simulation::new(&scenario, &replicas, 1, options);
    let mut simulation = simulation.unwrap();
    simulation.cluster.settings.jitter = batch_times;
    let (counters, ..) = simulation.run(&mut |_| {}).unwrap();
    let latency = &counters.models[0].latency;
    latency.iter().sum::<f64>() / latency.len() as f64
}

fn check_mean(mean: f64, expected: f64) {
    assert!(
        (mean / expected - 1.0).abs() < 0.02,
        "{mean} ms, expected {expected} ms"
    );
}

/// M/D/1, by Pollaczek and Khinchine: s + ρ·s / (2·(1 − ρ)) with s = 10 ms and ρ = 0.7.
#[test]
fn the_mean_latency_of_a_single_server_with_constant_times_is_that_of_the_formula() {
    check_mean(single_server(Jitter::None), 10.0 + 0.7 * 10.0 / (2.0 * 0.3));
}

/// M/M/1: s / (1 − ρ).
#[test]
fn the_mean_latency_of_a_single_server_with_exponential_times_is_that_of_the_formula() {
    check_mean(single_server(Jitter::Exponential), 10.0 / 0.3);
}

/// Random faults of every kind that overlap: the simulation itself asserts that every request ends, and replicas serve again afterwards.
#[test]
fn after_random_faults_every_request_ends_and_replicas_serve_again() {
    let without_faults = Scenario {
        simulation: SimulationSettings {
            warmup: Duration::ZERO,
            window: Duration::from_secs(4),
            ..vision(2, 100.0, 200).simulation
        },
        ..vision(2, 100.0, 200)
    };
    let replicas = plan(
        &without_faults,
        &[("alexnet", 0, 16), ("alexnet", 1, 16), ("resnet50", 1, 16)],
    );
    let mut random = random::Generator::new(7, 0);
    for seed in 0..40 {
        let mut scenario = without_faults.clone();
        for number in 0..4 {
            let kind = match (seed + number) % 4 {
                0 => FaultKind::WorkerDies(DeviceIndex(0)),
                1 => FaultKind::SlowWorker(DeviceIndex(1), 1.0 + 5.0 * random.exponential()),
                2 => {
                    FaultKind::NetworkDelay(Duration::from_millis(30).mul_f64(random.exponential()))
                }
                _ => FaultKind::NodeLost(0),
            };
            let at = Duration::from_millis(700).mul_f64(random.exponential().min(2.0));
            let duration = Duration::from_millis(300).mul_f64(random.exponential().min(2.0));
            scenario.simulation.faults.push(Fault {
                at: Time::ZERO + at,
                duration,
                kind,
            });
        }
        for discipline in Discipline::LIVE {
            let report = run(&scenario, &replicas, discipline, seed);
            let served = model(&report, "alexnet");
            // All faults end within two of the four seconds.
            assert!(
                served.goodput_rps > 0.3 * served.offered_rps,
                "{discipline:?} {:?}: {served:?}",
                scenario.simulation.faults
            );
        }
    }
}

#[test]
fn after_faults_every_request_ends_and_replicas_serve_again() {
    let mut scenario = vision(2, 200.0, 200);
    let fault = |at, seconds, kind| Fault {
        at: Time::ZERO + Duration::from_secs(at),
        duration: Duration::from_secs(seconds),
        kind,
    };
    scenario.simulation.faults = vec![
        fault(2, 2, FaultKind::WorkerDies(DeviceIndex(0))),
        fault(3, 3, FaultKind::SlowWorker(DeviceIndex(1), 3.0)),
        fault(3, 2, FaultKind::NetworkDelay(Duration::from_millis(20))),
    ];
    let node_lost = |seconds| {
        vec![
            fault(2, seconds, FaultKind::NodeLost(0)),
            fault(3, 1, FaultKind::WorkerDies(DeviceIndex(1))),
        ]
    };
    let replicas = plan(
        &scenario,
        &[("alexnet", 0, 16), ("alexnet", 1, 16), ("resnet50", 1, 16)],
    );
    for discipline in Discipline::LIVE {
        for faults in [
            scenario.simulation.faults.clone(),
            node_lost(2),
            node_lost(6),
        ] {
            let scenario = Scenario {
                simulation: SimulationSettings {
                    faults,
                    ..scenario.simulation.clone()
                },
                ..scenario.clone()
            };
            let report = run(&scenario, &replicas, discipline, 1);
            let without_faults = Scenario {
                simulation: SimulationSettings {
                    faults: Vec::new(),
                    ..scenario.simulation.clone()
                },
                ..scenario.clone()
            };
            let without_faults = run(&without_faults, &replicas, discipline, 1);
            assert_ne!(
                report.models, without_faults.models,
                "the faults change the report"
            );
            assert!(report.totals.goodput_rps <= without_faults.totals.goodput_rps);
            assert!(
                report.totals.goodput_rps > 0.1 * without_faults.totals.goodput_rps,
                "{:?}",
                report.totals
            );
        }
    }
}

#[test]
fn replicas_that_do_not_fit_the_scenario_are_refused() {
    let scenario = vision(1, 100.0, 200);
    let check = |change: fn(&mut PlannedReplica), message: &str| {
        let mut replicas = plan(&scenario, &[("alexnet", 0, 16)]);
        change(&mut replicas[0]);
        let simulation =
            simulation::Simulation::new(&scenario, &replicas, 1, RunOptions::default());
        let error = simulation.err().unwrap();
        assert!(error.to_string().contains(message), "{error}");
    };
    check(
        |replica| replica.device = DeviceIndex(1),
        "replica 0 of the plan names",
    );
    check(
        |replica| replica.model = ModelIndex(9),
        "replica 0 of the plan names",
    );
    check(
        |replica| replica.batch_size = 0,
        "batch size 0 is not between",
    );
}

#[test]
fn the_predicted_goodput_of_an_empty_plan_is_zero_without_a_sign() {
    let scenario = vision(2, 100.0, 200);
    let report = PlanReport::from_replicas(&scenario, &[]);
    assert_eq!(report.predicted_goodput_rps.to_string(), "0");
    assert_eq!(report.models[0].predicted_goodput_rps.to_string(), "0");
}

#[test]
fn a_plan_file_is_read_back_and_replicas_that_do_not_fit_are_refused() {
    let scenario = vision(2, 100.0, 200);
    let replicas = plan(&scenario, &[("alexnet", 0, 16), ("vgg19", 1, 32)]);
    let report = PlanReport::from_replicas(&scenario, &replicas);
    assert_eq!(scenario.replicas(&report.replicas).unwrap(), replicas);
    let check = |change: fn(&mut ReplicaReport), problem: PlanFileProblem| {
        let mut replicas = report.replicas.clone();
        change(&mut replicas[0]);
        let expected = PlanFileError {
            replica: 0,
            problem,
        };
        assert_eq!(scenario.replicas(&replicas), Err(expected));
    };
    check(
        |replica| replica.device = 2,
        PlanFileProblem::UnknownDevice {
            device: 2,
            devices: 2,
        },
    );
    check(
        |replica| replica.model = "bert".to_owned(),
        PlanFileProblem::UnknownModel("bert".to_owned()),
    );
    check(
        |replica| replica.batch_size = 0,
        PlanFileProblem::BatchSize(0),
    );
    check(
        |replica| replica.compute_share_pct = Some(0.0),
        PlanFileProblem::ComputeShare(ComputeShare::new(0.0).unwrap_err()),
    );
}

#[test]
fn the_problems_of_a_plan_file_have_sentences() {
    let check = |problem: PlanFileProblem, text: &str| {
        let error = PlanFileError {
            replica: 3,
            problem,
        };
        assert_eq!(error.to_string(), format!("replicas[3].{text}"));
    };
    check(
        PlanFileProblem::UnknownDevice {
            device: 2,
            devices: 2,
        },
        "device: the scenario has no device 2, but 2 devices, counted from 0",
    );
    check(
        PlanFileProblem::UnknownModel("bert".to_owned()),
        "model: the scenario has no model \"bert\"",
    );
    check(
        PlanFileProblem::MissingProfile {
            model: "bert".to_owned(),
            kind: "T4".parse().unwrap(),
        },
        "device: \"bert\" has no profile on T4",
    );
    check(
        PlanFileProblem::BatchSize(0),
        "batch_size: expected between 1 and 4096, not 0",
    );
    let share = ComputeShare::new(0.0).unwrap_err();
    check(
        PlanFileProblem::ComputeShare(share.clone()),
        &format!("compute_share_pct: {share}"),
    );
}

#[test]
fn requests_lost_with_a_worker_are_not_counted_as_dropped() {
    let mut scenario = vision(1, 100.0, 200);
    scenario.problem.models.truncate(1);
    scenario.workloads.truncate(1);
    scenario.simulation.warmup = Duration::ZERO;
    scenario.simulation.window = Duration::from_millis(500);
    // All requests arrive at once. The worker dies while it has some of them, and is not back before their deadlines.
    let arrivals = vec![vec![Time::from_nanos(1); 10]];
    scenario.simulation.arrivals = Arrivals::Trace(arrivals);
    scenario.simulation.faults = vec![Fault {
        at: Time::from_nanos(1_000_000),
        duration: Duration::from_secs(2),
        kind: FaultKind::WorkerDies(DeviceIndex(0)),
    }];
    let replicas = plan(&scenario, &[("alexnet", 0, 64)]);
    let report = run(&scenario, &replicas, Discipline::Deadline, 1);
    // Those that had been sent to the worker are lost; those that waited are dropped when they expire.
    assert_eq!(report.totals.dropped + report.totals.lost, 10);
    assert!(report.totals.lost > 0, "{:?}", report.totals);
    let json = serde_json::to_value(&report).unwrap();
    assert_eq!(json["totals"]["dropped"], report.totals.dropped);
    assert!(json["totals"].get("lost").is_none());
}

#[test]
fn csv_has_a_row_per_model_and_run_and_one_for_the_totals() {
    let scenario = vision(2, 200.0, 200);
    let replicas = plan(&scenario, &[("alexnet", 0, 16), ("vgg19", 1, 32)]);
    let reports = [1, 2].map(|seed| run(&scenario, &replicas, Discipline::Deadline, seed));
    let text = reports_to_csv(&reports);
    let rows: Vec<Vec<&str>> = text.lines().map(|line| line.split(',').collect()).collect();
    assert_eq!(rows.len(), 1 + 2 * (MODELS.len() + 1));
    assert!(rows.iter().all(|row| row.len() == rows[0].len()), "{text}");
    let cell = |row: usize, column: &str| {
        let index = rows[0].iter().position(|name| *name == column).unwrap();
        rows[row][index]
    };
    assert_eq!(
        (cell(1, "policy"), cell(1, "seed"), cell(1, "model")),
        ("file", "1", "alexnet")
    );
    assert_eq!(
        cell(1, "latency_p95_ms").parse::<f64>().ok(),
        reports[0].models[0].latency_ms.p95
    );
    // densenet121 has no replica.
    assert_eq!(
        (
            cell(2, "goodput_rps"),
            cell(2, "latency_p50_ms"),
            cell(2, "mean_batch")
        ),
        ("0", "", "")
    );
    assert_eq!((cell(12, "seed"), cell(12, "model")), ("2", "(total)"));
    assert_eq!(
        cell(12, "goodput_rps").parse::<f64>().ok(),
        Some(reports[1].totals.goodput_rps)
    );
}

/// Two replicas that each use the whole device: at the same time their batches take twice as long, one after the other as long as alone.
#[test]
fn a_plan_with_duty_cycles_computes_one_batch_of_a_device_at_a_time() {
    let scenario = vision(1, 100.0, 200);
    let shared = plan(&scenario, &[("efficientnet_b7", 0, 4), ("vgg19", 0, 4)]);
    let mut time_shared = shared.clone();
    for replica in &mut time_shared {
        replica.duty_cycle = Some(Duration::from_millis(50));
    }
    let compute = |replicas: &[PlannedReplica]| {
        let report = run(&scenario, replicas, Discipline::Deadline, 1);
        model(&report, "efficientnet_b7")
            .stages_ms_p95
            .compute
            .unwrap()
    };
    let profile = scenario
        .problem
        .profile(ModelIndex(2), DeviceIndex(0))
        .unwrap();
    let solo_ms = profile.latency(4).as_secs_f64() * 1e3 * 1.22;
    assert!(
        compute(&time_shared) <= solo_ms * 1.02,
        "{} over {solo_ms}",
        compute(&time_shared)
    );
    assert!(
        compute(&shared) > solo_ms * 1.1,
        "{} near {solo_ms}",
        compute(&shared)
    );
}

mod autoscale;
mod benchmark;
mod learning;
mod links;
mod living;
mod pools;
mod replanning;
mod shares;
mod traces;
mod variants;
