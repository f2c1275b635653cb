use std::fmt::Write as _;

use packhorse_cluster::{BatchStep, LatencyModel, PolicyOptions, RequestsPerSecond};
use proptest::prelude::*;

use super::*;
use crate::{
    Budget, POLICIES, policy,
    tests::{device, model, properties},
};

fn bda() -> PlanningOptions {
    PolicyOptions {
        batch_step: BatchStep::Bda,
        ..PolicyOptions::default()
    }
    .into()
}

/// One device, and models of which a batch of `b` takes `b` ms plus 10 ms and 10 MiB a row.
fn problem(memory: u64, models: &[(&str, f64, u64)]) -> Problem {
    let mut rows = format!("{}\n", packhorse_cluster::ProfileTable::CSV_HEADER);
    for (name, ..) in models {
        for batch in [1, 100] {
            let (ms, mib) = (10 + batch, 10 * batch);
            writeln!(rows, "{name},k,{batch},,{ms},,{mib},,,").unwrap();
        }
    }
    Problem {
        devices: vec![device("k", memory)],
        models: models
            .iter()
            .map(|&(name, rate, slo)| model(name, rate, slo))
            .collect(),
        profiles: packhorse_cluster::ProfileTable::from_csv(&rows).unwrap(),
        ..Problem::default()
    }
}

/// Returns the batch sizes of a plan of replicas on the only device, with the batch step.
fn decided(problem: &Problem, replicas: Vec<PlannedReplica>) -> Vec<u32> {
    let mut plan = Plan::empty("nexus", problem, &Shortfall::NoDeviceLeft);
    plan.replicas = replicas;
    decide_batches(problem, &bda(), &mut plan);
    plan.replicas
        .iter()
        .map(|replica| replica.batch_size)
        .collect()
}

fn replica(model: usize, batch: u32) -> PlannedReplica {
    PlannedReplica::new(packhorse_cluster::ModelIndex(model), DeviceIndex(0), batch)
}

#[test]
fn half_of_the_slo_leaves_the_filling_out_of_account() {
    // 2 (b + 10) <= 200 up to b = 90 at any rate, with time for 64 to fill. Memory for 50 rows is for 50 rows.
    for (memory, expected) in [(10_000, 90), (500, 50)] {
        let problem = problem(memory, &[("m", 500.0, 200)]);
        let mut plan = Plan::empty("gpulet", &problem, &Shortfall::NoDeviceLeft);
        plan.replicas = vec![replica(0, 1)];
        batches_within_half_slo(&problem, &PlanningOptions::default(), &mut plan);
        assert_eq!(plan.replicas[0].batch_size, expected);
    }
}

#[test]
fn the_largest_batch_that_fills_in_time_is_chosen() {
    // At 500/s the wait (b − 1) · 2 ms is longer than a batch from 12 on: 2 (b − 1) + b + 10 <= 200 up to b = 64.
    let filling = problem(10_000, &[("m", 500.0, 200)]);
    assert_eq!(decided(&filling, vec![replica(0, 1)]), [64]);
    // At 5000/s the batch before it takes longer than filling: 2 (b + 10) <= 200 up to b = 90.
    let busy = problem(10_000, &[("m", 5_000.0, 200)]);
    assert_eq!(decided(&busy, vec![replica(0, 1)]), [90]);
    // Requests that come every 10 s never wait for each other.
    let rare = problem(10_000, &[("m", 0.1, 200)]);
    assert_eq!(decided(&rare, vec![replica(0, 50)]), [1]);
}

#[test]
fn memory_and_the_model_limit_the_batch_and_none_in_time_changes_nothing() {
    let small = problem(300, &[("m", 5_000.0, 200), ("n", 5_000.0, 200)]);
    // The neighbour's batch of 10 leaves 200 MiB, which is a batch of 20.
    assert_eq!(
        decided(&small, vec![replica(0, 1), replica(1, 10)]),
        [20, 10]
    );
    let mut limited = problem(10_000, &[("m", 5_000.0, 200)]);
    limited.models[0].max_batch_size = 7;
    assert_eq!(decided(&limited, vec![replica(0, 1)]), [7]);
    // Two batches of one take 22 ms.
    let tight = problem(10_000, &[("m", 5_000.0, 20)]);
    assert_eq!(decided(&tight, vec![replica(0, 3)]), [3]);
}

#[test]
fn replicas_that_take_turns_wait_for_each_other() {
    let shared = problem(10_000, &[("m", 5_000.0, 200), ("n", 5_000.0, 200)]);
    let in_turn = |model, batch| PlannedReplica {
        duty_cycle: Some(std::time::Duration::from_millis(100)),
        ..replica(model, batch)
    };
    // The neighbour's 40 ms, its own batch before, and its own: 40 + 2 (b + 10) <= 200 up to b = 70. Then n waits for 80 ms of m:
    // 80 + 2 (b + 10) <= 200 up to b = 50.
    assert_eq!(
        decided(&shared, vec![in_turn(0, 1), in_turn(1, 30)]),
        [70, 50]
    );
}

#[test]
fn the_rate_is_divided_over_replicas_by_what_they_carry() {
    let mut two = problem(10_000, &[("m", 1_000.0, 200)]);
    two.devices.push(device("k", 10_000));
    let mut second = replica(0, 1);
    second.device = DeviceIndex(1);
    // 500/s each.
    assert_eq!(decided(&two, vec![replica(0, 1), second]), [64, 64]);
}

#[test]
fn the_forecast_is_what_the_new_batches_carry() {
    let busy = problem(10_000, &[("m", 5_000.0, 200)]);
    let plan = policy("first-fit")
        .unwrap()
        .place_with(&busy, &bda(), &mut Budget::unlimited())
        .unwrap();
    // 90 rows in 100 ms.
    assert!((plan.models[0].goodput.get() - 900.0).abs() < 1e-6);
    assert!(plan.models[0].shortfall.is_some());
}

#[test]
fn bisection_finds_the_largest() {
    for limit in 0..40 {
        let expected = (limit > 0).then_some(limit);
        assert_eq!(largest(39, |n| n <= limit), expected);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn no_policy_breaks_a_rule_with_the_batch_step(problem in properties::problem(), model in 0_usize..2) {
        let mut options = bda();
        options.policy.latency_model = LatencyModel::ALL[model];
        for entry in POLICIES {
            let plan = entry.place_with(&problem, &options, &mut Budget::unlimited()).unwrap();
            prop_assert_eq!(plan.violations(&problem), [], "{}", entry.name);
            for (model, demanded) in problem.models() {
                let forecast = &plan.models[model.0];
                prop_assert!(forecast.goodput <= demanded.rate);
                let served = plan.replicas.iter().any(|replica| replica.model == model);
                let short = !served || forecast.goodput.get() < demanded.rate.get() * (1.0 - 1e-6);
                prop_assert_eq!(forecast.shortfall.is_some(), short, "{}: {:?}", entry.name, forecast);
            }
            let again = entry.place_with(&problem, &options, &mut Budget::unlimited()).unwrap();
            prop_assert_eq!(plan, again);
        }
    }

    #[test]
    fn a_decided_batch_meets_the_objective(rate in 0.1_f64..3_000.0, slo in 25_u64..400) {
        let problem = problem(10_000, &[("m", rate, slo)]);
        let batch = f64::from(decided(&problem, vec![replica(0, 1)])[0]);
        let seconds = (batch + 10.0) / 1e3;
        let rate = RequestsPerSecond::new(rate).unwrap().get();
        let in_time = |batch: f64, seconds: f64| f64::max(seconds, (batch - 1.0) / rate) + seconds <= slo as f64 / 1e3 + 1e-9;
        prop_assert!(in_time(batch, seconds));
        prop_assert!(batch >= 100.0 || !in_time(batch + 1.0, seconds + 1e-3));
    }
}
