//! Runs whose plan changes.

use packhorse_cluster::{ModelForecast, Plan, Problem, RequestsPerSecond};
use proptest::prelude::*;

use super::*;

fn at(seconds: f64) -> Time {
    Time::ZERO + Duration::from_secs_f64(seconds)
}

fn plan_with(problem: &Problem, replicas: Vec<PlannedReplica>) -> Plan {
    let forecast = ModelForecast {
        goodput: RequestsPerSecond::ZERO,
        latency: None,
        shortfall: None,
    };
    Plan {
        policy: "test",
        replicas,
        models: vec![forecast; problem.models.len()],
    }
}

/// Runs a simulation that calls `policy` every second.
fn run_replanning(
    scenario: &Scenario,
    replicas: &[PlannedReplica],
    discipline: Discipline,
    policy: &mut dyn FnMut(&Problem) -> Option<Plan>,
) -> Report {
    let plan = PlanReport::from_replicas(scenario, replicas);
    let replanning = Replanning::new(Duration::from_secs(1), None, policy);
    let progress = &mut |_| {};
    simulate_replanning(
        scenario, plan, replicas, discipline, 1, replanning, progress,
    )
    .unwrap()
}

fn counts(report: &Report) -> (u64, u64, u64, u64, u64) {
    let replanning = report.replanning.unwrap();
    (
        replanning.asked,
        replanning.unanswered,
        replanning.changed,
        replanning.started,
        replanning.stopped,
    )
}

/// Returns a scenario of the first model alone, with a warm-up of one second and a window of eight.
fn alexnet_only(devices: usize, rate: f64) -> Scenario {
    let mut scenario = vision(devices, rate, 200);
    scenario.problem.models.truncate(1);
    scenario.workloads.truncate(1);
    scenario
}

#[test]
fn a_policy_that_always_returns_the_current_plan_changes_nothing() {
    let scenario = vision(2, 300.0, 200);
    let replicas = plan(
        &scenario,
        &[("alexnet", 0, 16), ("resnet50", 0, 8), ("vgg19", 1, 16)],
    );
    for discipline in Discipline::LIVE {
        let without_replanning = run(&scenario, &replicas, discipline, 1);
        let mut policy = |problem: &Problem| Some(plan_with(problem, problem.current.clone()));
        let mut report = run_replanning(&scenario, &replicas, discipline, &mut policy);
        assert_eq!(counts(&report), (8, 0, 0, 0, 0));
        report.replanning = None;
        assert_eq!(report, without_replanning);
    }
}

#[test]
fn a_plan_that_moves_a_model_loses_no_request() {
    let mut scenario = alexnet_only(2, 200.0);
    scenario.problem.models[0].load_time = Duration::from_millis(600);
    let replicas = plan(&scenario, &[("alexnet", 0, 16)]);
    for discipline in Discipline::LIVE {
        // The model moves to the other device at every second call.
        let mut calls = 0;
        let mut policy = |problem: &Problem| {
            calls += 1;
            let mut replicas = problem.current.clone();
            replicas[0].device = DeviceIndex(calls / 2 % 2);
            Some(plan_with(problem, replicas))
        };
        let report = run_replanning(&scenario, &replicas, discipline, &mut policy);
        assert_eq!(counts(&report), (8, 0, 4, 4, 4));
        let without_replanning = run(&scenario, &replicas, discipline, 1);
        assert_eq!(
            report.totals.offered_rps.to_bits(),
            without_replanning.totals.offered_rps.to_bits()
        );
        assert_eq!((report.totals.dropped, report.totals.lost), (0, 0));
        assert!(report.totals.goodput_rps > 0.99 * without_replanning.totals.goodput_rps);
    }
}

#[test]
fn a_new_replica_serves_after_its_load_time_and_without_memory_for_both_after_the_old_one_stopped()
{
    // `memory` is that of the device over that of the replicas with batch sizes 8 and 16 together.
    let device = DeviceIndex(0);
    let goodput = |load_ms: u64, memory: f64| {
        let mut scenario = alexnet_only(1, 200.0);
        scenario.problem.models[0].load_time = Duration::from_millis(load_ms);
        let profile = scenario.problem.profile(ModelIndex(0), device).unwrap();
        let needed: u64 = [8, 16]
            .map(|batch| profile.memory(batch).unwrap().as_u64())
            .iter()
            .sum();
        let bytes = (needed as f64 * memory) as u64;
        scenario.problem.devices[0].memory = packhorse_cluster::ByteCount::new(bytes);
        let replicas = plan(&scenario, &[("alexnet", 0, 8)]);
        let mut policy = |problem: &Problem| {
            let mut replicas = problem.current.clone();
            replicas[0].batch_size = 16;
            Some(plan_with(problem, replicas))
        };
        let report = run_replanning(&scenario, &replicas, Discipline::Deadline, &mut policy);
        assert_eq!(counts(&report), (8, 0, 1, 1, 1));
        assert_eq!(report.totals.lost, 0);
        (report.totals.goodput_rps, report.totals.dropped)
    };
    let (make_before_break, dropped) = goodput(2000, 1.0);
    assert_eq!(dropped, 0);
    let (break_before_make, dropped) = goodput(2000, 0.9);
    // No replica serves for two of the eight seconds.
    let served = break_before_make / make_before_break;
    assert!(
        (served - 0.75).abs() < 0.03,
        "{served} with {dropped} dropped"
    );
    let (without_load_time, _) = goodput(0, 0.9);
    assert!(
        without_load_time / make_before_break > 0.99,
        "{without_load_time}"
    );
}

#[test]
fn the_problem_of_the_policy_has_measured_rates_and_observations() {
    let mut scenario = alexnet_only(2, 100.0);
    let mut rate = Rate::constant(RequestsPerSecond::new(100.0).unwrap());
    assert!(rate.append_change(
        at(4.0),
        Duration::ZERO,
        RequestsPerSecond::new(400.0).unwrap()
    ));
    scenario.workloads[0].rate = rate;
    scenario.simulation.client_overhead = Duration::ZERO;
    let replicas = plan(&scenario, &[("alexnet", 0, 16)]);
    let mut rates = Vec::new();
    let mut observed = Vec::new();
    let mut policy = |problem: &Problem| {
        rates.push(problem.models[0].rate.get());
        observed.clone_from(&problem.observations);
        None
    };
    let report = run_replanning(&scenario, &replicas, Discipline::Deadline, &mut policy);
    assert_eq!(counts(&report), (8, 8, 0, 0, 0));
    let steady = rates[..4].iter().all(|rates| (95.0..120.0).contains(rates));
    assert!(steady, "{rates:?}");
    assert!((370.0..430.0).contains(&rates[7]), "{rates:?}");
    assert_eq!(observed.len(), 8, "one device was busy in every second");
    let last = &observed[7].replicas[0];
    assert_eq!(last.model, scenario.problem.models[0].id);
    // The model is alone on its device.
    assert!((last.slowdown - 1.0).abs() < 1e-6, "{last:?}");
    assert!(last.busy > 0.0 && last.busy < 1.0, "{last:?}");
    assert!(
        (last.mean_rows * last.batches as f64 / 400.0 - 1.0).abs() < 0.2,
        "{last:?}"
    );
}

#[test]
fn a_plan_with_violations_is_not_rolled_out() {
    let scenario = alexnet_only(1, 100.0);
    let replicas = plan(&scenario, &[("alexnet", 0, 16)]);
    let mut policy = |problem: &Problem| {
        let mut replicas = problem.current.clone();
        replicas[0].batch_size = 4000;
        Some(plan_with(problem, replicas))
    };
    let report = run_replanning(&scenario, &replicas, Discipline::Deadline, &mut policy);
    assert_eq!(counts(&report), (8, 8, 0, 0, 0));
}

/// One of two nodes is lost at second 2. Its lease, renewed at 1.7, ends at 6.7: the plan made then moves its model to the other node.
/// It is back at 8.5, and the plan made then moves the model back.
#[test]
fn a_lost_node_is_left_out_of_the_problem_when_its_lease_has_ended() {
    let mut scenario = alexnet_only(2, 200.0);
    for (i, device) in scenario.problem.devices.iter_mut().enumerate() {
        device.node = format!("node{i}").parse().unwrap();
    }
    scenario.simulation.window = Duration::from_secs(10);
    scenario.simulation.faults = vec![Fault {
        at: at(2.0),
        duration: Duration::from_millis(6500),
        kind: FaultKind::NodeLost(0),
    }];
    let replicas = plan(&scenario, &[("alexnet", 0, 16)]);
    for discipline in Discipline::LIVE {
        let mut seen = Vec::new();
        let mut policy = |problem: &Problem| {
            seen.push((problem.devices.len(), problem.current.len()));
            // One device is always there.
            let device = DeviceIndex(0);
            let replicas = plan(&scenario, &[("alexnet", device.0, 16)]);
            Some(plan_with(problem, replicas))
        };
        let report = run_replanning(&scenario, &replicas, discipline, &mut policy);
        let mut expected = vec![(2, 1); 6];
        expected.extend([(1, 0), (1, 1), (1, 1)]);
        expected.extend([(2, 1); 3]);
        assert_eq!(seen, expected, "{discipline}");
        // To the second node, and back to the first, where the old worker is stopped.
        let (asked, unanswered, changed, started, stopped) = counts(&report);
        assert_eq!((asked, unanswered, changed), (12, 0, 2));
        assert_eq!((started, stopped), (2, 2));
        let served = report.totals.goodput_rps / report.totals.offered_rps;
        assert!(
            (0.51..0.58).contains(&served),
            "{served}: 4.7 of ten seconds are lost"
        );
    }
}

#[test]
fn replanning_is_deterministic_under_faults() {
    let mut scenario = vision(3, 300.0, 200);
    scenario.problem.models[1].load_time = Duration::from_millis(700);
    scenario.simulation.faults = vec![
        Fault {
            at: at(1.5),
            duration: Duration::from_secs(2),
            kind: FaultKind::WorkerDies(DeviceIndex(0)),
        },
        Fault {
            at: at(3.2),
            duration: Duration::from_millis(1400),
            kind: FaultKind::NodeLost(0),
        },
    ];
    let replicas = plan(&scenario, &[("alexnet", 0, 16), ("densenet121", 1, 8)]);
    let run = |discipline| {
        let mut calls = 0_usize;
        // A different plan each time, with replicas that are added, removed, and changed in batch size.
        let mut policy = |problem: &Problem| {
            calls += 1;
            let size = 4 << (calls % 3);
            let mut chosen = vec![("alexnet", calls % 3, size), ("densenet121", 1, 8)];
            chosen.extend((calls.is_multiple_of(2)).then_some(("vgg19", (calls + 1) % 3, 8)));
            Some(plan_with(problem, plan(&scenario, &chosen)))
        };
        run_replanning(&scenario, &replicas, discipline, &mut policy)
    };
    for discipline in Discipline::LIVE {
        let report = run(discipline);
        assert_eq!(report, run(discipline));
        assert!(report.replanning.unwrap().changed > 4);
        assert!(model(&report, "vgg19").goodput_rps > 0.0);
    }
}

/// A time within the first five seconds.
fn time() -> impl Strategy<Value = Time> {
    (0_u64..5_000).prop_map(|millis| Time::ZERO + Duration::from_millis(millis))
}

fn fault() -> impl Strategy<Value = Fault> {
    let kind = prop_oneof![
        (0_usize..3).prop_map(|device| FaultKind::WorkerDies(DeviceIndex(device))),
        (0_usize..2).prop_map(FaultKind::NodeLost),
        (0_usize..2).prop_map(FaultKind::AgentDies),
        (0_usize..2).prop_map(FaultKind::NodeDrained),
        Just(FaultKind::GatewayDies),
        (0_usize..3).prop_map(|device| FaultKind::SlowWorker(DeviceIndex(device), 2.0)),
    ];
    // Some are longer than a lease, most shorter.
    let millis = prop_oneof![3 => 1_u64..2_000, 1 => 5_001_u64..7_000];
    (time(), millis, kind).prop_map(|(at, millis, kind)| Fault {
        at,
        duration: Duration::from_millis(millis),
        kind,
    })
}

/// Plans with replicas of the first three models, each with its model, device and batch size.
fn plans() -> impl Strategy<Value = Vec<Vec<(usize, usize, u32)>>> {
    let replica = (
        0_usize..3,
        0_usize..3,
        prop_oneof![Just(4), Just(8), Just(16)],
    );
    let plan = proptest::collection::vec(replica, 0..5);
    proptest::collection::vec(plan, 1..6)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    /// The simulation itself asserts that every request ends once and that no replica is stopped while it serves.
    #[test]
    fn with_any_plans_and_faults_every_request_ends(
        plans in plans(),
        faults in proptest::collection::vec(fault(), 0..4),
        load_ms in 0_u64..1_500,
        memory_share in 0.3_f64..1.0,
        every_ms in 200_u64..1_500,
        fixed_wait: bool,
    ) {
        let mut scenario = vision(3, 60.0, 200);
        scenario.problem.models.truncate(3);
        scenario.workloads.truncate(3);
        scenario.simulation.window = Duration::from_secs(4);
        scenario.simulation.faults = faults;
        for (i, device) in scenario.problem.devices.iter_mut().enumerate() {
            device.node = format!("node{}", i / 2).parse().unwrap();
            let memory = device.memory.as_u64() as f64 * memory_share;
            device.memory = packhorse_cluster::ByteCount::new(memory as u64);
        }
        for model in &mut scenario.problem.models {
            model.load_time = Duration::from_millis(load_ms);
        }
        let discipline = if fixed_wait { Discipline::FixedWait } else { Discipline::Deadline };
        let initial = plan(&scenario, &[("alexnet", 0, 8), ("densenet121", 1, 4)]);
        let run = || {
            let mut calls = 0;
            let mut policy = |problem: &Problem| {
                calls += 1;
                let chosen = plans[calls % plans.len()].iter();
                let there = problem.devices.len();
                let replicas = chosen.map(|&(model, device, batch_size)| PlannedReplica::new(ModelIndex(model), DeviceIndex(device % there), batch_size));
                Some(plan_with(problem, replicas.collect()))
            };
            let replanning = Replanning::new(Duration::from_millis(every_ms), None, &mut policy);
            let report = PlanReport::from_replicas(&scenario, &initial);
            let progress = &mut |_| {};
            simulate_replanning(&scenario, report, &initial, discipline, 1, replanning, progress)
        };
        let report = run().unwrap();
        prop_assert_eq!(&report, &run().unwrap());
        prop_assert!(report.totals.goodput_rps <= report.totals.offered_rps + 1e-9);
    }
}
