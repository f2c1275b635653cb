//! Runs whose plan changes under way.

use packhorse_cluster::{ModelForecast, Plan, Problem, RequestsPerSecond};
use proptest::prelude::*;

use super::*;

fn at(seconds: f64) -> Time {
    Time::ZERO + Duration::from_secs_f64(seconds)
}

fn answer(problem: &Problem, replicas: Vec<PlannedReplica>) -> Plan {
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

/// A run that asks `policy` every second.
fn replanned(
    scenario: &Scenario,
    replicas: &[PlannedReplica],
    discipline: Discipline,
    policy: &mut dyn FnMut(&Problem) -> Option<Plan>,
) -> Report {
    let plan = PlanReport::from_replicas(scenario, replicas);
    let replanning = Replanning {
        every: Duration::from_secs(1),
        policy,
    };
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

/// Only the first model, so that nothing else plays in; one second of warm-up and eight of window.
fn alexnet_only(devices: usize, rate: f64) -> Scenario {
    let mut scenario = vision(devices, rate, 200);
    scenario.problem.models.truncate(1);
    scenario.workloads.truncate(1);
    scenario
}

#[test]
fn a_policy_that_answers_the_same_disturbs_nothing() {
    let scenario = vision(2, 300.0, 200);
    let replicas = plan(
        &scenario,
        &[("alexnet", 0, 16), ("resnet50", 0, 8), ("vgg19", 1, 16)],
    );
    for discipline in Discipline::ALL {
        let calm = run(&scenario, &replicas, discipline, 1);
        let mut policy = |problem: &Problem| Some(answer(problem, problem.current.clone()));
        let mut report = replanned(&scenario, &replicas, discipline, &mut policy);
        assert_eq!(counts(&report), (8, 0, 0, 0, 0));
        report.replanning = None;
        assert_eq!(report, calm);
    }
}

#[test]
fn a_plan_that_moves_a_model_loses_no_request() {
    let mut scenario = alexnet_only(2, 200.0);
    scenario.problem.models[0].load_time = Duration::from_millis(600);
    let replicas = plan(&scenario, &[("alexnet", 0, 16)]);
    for discipline in Discipline::ALL {
        // To the other device at every second question.
        let mut asked = 0;
        let mut policy = |problem: &Problem| {
            asked += 1;
            let mut replicas = problem.current.clone();
            replicas[0].device = DeviceIndex(asked / 2 % 2);
            Some(answer(problem, replicas))
        };
        let report = replanned(&scenario, &replicas, discipline, &mut policy);
        assert_eq!(counts(&report), (8, 0, 4, 4, 4));
        let calm = run(&scenario, &replicas, discipline, 1);
        assert_eq!(
            report.totals.offered_rps.to_bits(),
            calm.totals.offered_rps.to_bits()
        );
        assert_eq!((report.totals.dropped, report.totals.lost), (0, 0));
        assert!(report.totals.goodput_rps > 0.99 * calm.totals.goodput_rps);
    }
}

#[test]
fn a_new_replica_waits_for_its_load_time_and_one_without_room_for_the_old_one() {
    // Its bigger batches do not fit beside its smaller ones.
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
            Some(answer(problem, replicas))
        };
        let report = replanned(&scenario, &replicas, Discipline::Deadline, &mut policy);
        assert_eq!(counts(&report), (8, 0, 1, 1, 1));
        assert_eq!(report.totals.lost, 0);
        (report.totals.goodput_rps, report.totals.dropped)
    };
    let (made_before_broken, dropped) = goodput(2000, 1.0);
    assert_eq!(dropped, 0);
    let (broken_before_made, dropped) = goodput(2000, 0.9);
    // Nobody serves for two of the eight seconds.
    let served = broken_before_made / made_before_broken;
    assert!(
        (served - 0.75).abs() < 0.03,
        "{served} with {dropped} dropped"
    );
    let (at_once, _) = goodput(0, 0.9);
    assert!(at_once / made_before_broken > 0.99, "{at_once}");
}

#[test]
fn the_policy_is_told_the_rate_that_is_measured_and_what_devices_did() {
    let mut scenario = alexnet_only(2, 100.0);
    let mut rate = Rate::constant(RequestsPerSecond::new(100.0).unwrap());
    assert!(rate.change(
        at(4.0),
        Duration::ZERO,
        RequestsPerSecond::new(400.0).unwrap()
    ));
    scenario.workloads[0].rate = rate;
    scenario.simulation.client_overhead = Duration::ZERO;
    let replicas = plan(&scenario, &[("alexnet", 0, 16)]);
    let mut told = Vec::new();
    let mut observed = Vec::new();
    let mut policy = |problem: &Problem| {
        told.push(problem.models[0].rate.get());
        observed.clone_from(&problem.observations);
        None
    };
    let report = replanned(&scenario, &replicas, Discipline::Deadline, &mut policy);
    assert_eq!(counts(&report), (8, 8, 0, 0, 0));
    let steady = told[..4]
        .iter()
        .all(|told| (told - 100.0).abs() < f64::EPSILON);
    assert!(steady, "{told:?}");
    assert!((told[7] / 400.0 - 1.0).abs() < 0.15, "{told:?}");
    assert_eq!(observed.len(), 8, "one device worked in every second");
    let last = &observed[7].replicas[0];
    assert_eq!(last.model, scenario.problem.models[0].id);
    // Alone on its device, as slow as it always is.
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
        Some(answer(problem, replicas))
    };
    let report = replanned(&scenario, &replicas, Discipline::Deadline, &mut policy);
    assert_eq!(counts(&report), (8, 8, 0, 0, 0));
}

/// A node of two is lost at second 2, given up at 7, and back at 8.5: at 7 its model is planned on the other one, at 9 back.
#[test]
fn planning_sees_a_lost_node_once_its_lease_has_ended() {
    let mut scenario = alexnet_only(2, 200.0);
    for (i, device) in scenario.problem.devices.iter_mut().enumerate() {
        device.node = format!("node{i}").parse().unwrap();
    }
    scenario.simulation.window = Duration::from_secs(10);
    scenario.simulation.faults = vec![Fault {
        at: at(2.0),
        lasts: Duration::from_millis(6500),
        kind: FaultKind::NodeLost(0),
    }];
    let replicas = plan(&scenario, &[("alexnet", 0, 16)]);
    for discipline in Discipline::ALL {
        let mut seen = Vec::new();
        let mut policy = |problem: &Problem| {
            seen.push((problem.devices.len(), problem.current.len()));
            // The device that there is at least.
            let device = DeviceIndex(0);
            let replicas = plan(&scenario, &[("alexnet", device.0, 16)]);
            Some(answer(problem, replicas))
        };
        let report = replanned(&scenario, &replicas, discipline, &mut policy);
        let mut expected = vec![(2, 1); 10];
        // At 7 the lease ends first: it was foreseen before.
        expected[6] = (1, 0);
        expected[7] = (1, 1);
        assert_eq!(seen, expected, "{discipline}");
        // To the second node, and back to the first, where the old worker was not wanted any more.
        let (asked, unanswered, changed, started, stopped) = counts(&report);
        assert_eq!((asked, unanswered, changed), (10, 0, 2));
        assert_eq!((started, stopped), (2, 2));
        let served = report.totals.goodput_rps / report.totals.offered_rps;
        assert!(
            (served - 0.5).abs() < 0.05,
            "{served}: five of ten seconds are lost"
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
            lasts: Duration::from_secs(2),
            kind: FaultKind::WorkerDies(DeviceIndex(0)),
        },
        Fault {
            at: at(3.2),
            lasts: Duration::from_millis(1400),
            kind: FaultKind::NodeLost(0),
        },
    ];
    let replicas = plan(&scenario, &[("alexnet", 0, 16), ("densenet121", 1, 8)]);
    let run = |discipline| {
        let mut asked = 0_usize;
        // Something else each time, with replicas that come, go, and change their size.
        let mut policy = |problem: &Problem| {
            asked += 1;
            let size = 4 << (asked % 3);
            let mut chosen = vec![("alexnet", asked % 3, size), ("densenet121", 1, 8)];
            chosen.extend((asked.is_multiple_of(2)).then_some(("vgg19", (asked + 1) % 3, 8)));
            Some(answer(problem, plan(&scenario, &chosen)))
        };
        replanned(&scenario, &replicas, discipline, &mut policy)
    };
    for discipline in Discipline::ALL {
        let report = run(discipline);
        assert_eq!(report, run(discipline));
        assert!(report.replanning.unwrap().changed > 4);
        assert!(model(&report, "vgg19").goodput_rps > 0.0);
    }
}

/// A moment within the first five seconds.
fn moment() -> impl Strategy<Value = Time> {
    (0_u64..5_000).prop_map(|millis| Time::ZERO + Duration::from_millis(millis))
}

fn fault() -> impl Strategy<Value = Fault> {
    let kind = prop_oneof![
        (0_usize..3).prop_map(|device| FaultKind::WorkerDies(DeviceIndex(device))),
        (0_usize..2).prop_map(FaultKind::NodeLost),
        (0_usize..3).prop_map(|device| FaultKind::SlowWorker(DeviceIndex(device), 2.0)),
    ];
    // Some longer than a lease, most shorter.
    let lasts = prop_oneof![3 => 1_u64..2_000, 1 => 5_001_u64..7_000];
    (moment(), lasts, kind).prop_map(|(at, lasts, kind)| Fault {
        at,
        lasts: Duration::from_millis(lasts),
        kind,
    })
}

/// Replicas of the first three models: on which device, with which batch size.
fn answers() -> impl Strategy<Value = Vec<Vec<(usize, usize, u32)>>> {
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

    /// The run itself asserts that every request ends once and that nothing is stopped while it serves.
    #[test]
    fn whatever_is_planned_and_breaks_every_request_ends(
        answers in answers(),
        faults in proptest::collection::vec(fault(), 0..4),
        load_ms in 0_u64..1_500,
        room in 0.3_f64..1.0,
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
            let memory = device.memory.as_u64() as f64 * room;
            device.memory = packhorse_cluster::ByteCount::new(memory as u64);
        }
        for model in &mut scenario.problem.models {
            model.load_time = Duration::from_millis(load_ms);
        }
        let discipline = if fixed_wait { Discipline::FixedWait } else { Discipline::Deadline };
        let initial = plan(&scenario, &[("alexnet", 0, 8), ("densenet121", 1, 4)]);
        let run = || {
            let mut asked = 0;
            let mut policy = |problem: &Problem| {
                asked += 1;
                let chosen = answers[asked % answers.len()].iter();
                let there = problem.devices.len();
                let replicas = chosen.map(|&(model, device, batch_size)| PlannedReplica {
                    model: ModelIndex(model),
                    device: DeviceIndex(device % there),
                    batch_size,
                    compute_share: None,
                    duty_cycle: None,
                });
                Some(answer(problem, replicas.collect()))
            };
            let replanning = Replanning {
                every: Duration::from_millis(every_ms),
                policy: &mut policy,
            };
            let report = PlanReport::from_replicas(&scenario, &initial);
            let progress = &mut |_| {};
            simulate_replanning(&scenario, report, &initial, discipline, 1, replanning, progress)
        };
        let report = run().unwrap();
        prop_assert_eq!(&report, &run().unwrap());
        prop_assert!(report.totals.goodput_rps <= report.totals.offered_rps + 1e-9);
    }
}
