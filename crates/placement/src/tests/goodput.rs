//! The policy `goodput` and its estimate.

use packhorse_cluster::{Conditions, Discipline};
use proptest::{collection::vec, prelude::*};

use super::*;
use crate::estimate;
use packhorse_cluster::{Effort, Objective, PolicyOptions};

pub(super) fn estimated_fractions(problem: &Problem, replicas: &[PlannedReplica]) -> Vec<f64> {
    let inputs = estimate::EstimateInputs::new(problem);
    let estimate = estimate::PlacementEstimate::from_replicas(&inputs, replicas);
    estimate.models().iter().map(|fate| fate.in_time).collect()
}

fn replica(model: usize, device: usize, batch_size: u32) -> PlannedReplica {
    PlannedReplica {
        model: ModelIndex(model),
        device: DeviceIndex(device),
        batch_size,
        compute_share: None,
        duty_cycle: None,
    }
}

fn place_for(problem: &Problem, objective: Objective) -> Plan {
    let options = PolicyOptions {
        objective,
        ..PolicyOptions::default()
    };
    place_with("goodput", problem, options)
}

#[test]
fn small_batches_that_leave_multiprocessors_idle_run_beside_each_other() {
    // densenet121 at 8 uses 21 % of the device: one replica gives 473/s, and more run beside it without loss.
    let problem = v100s(1, &[("densenet121", 1_200.0, 200)]);
    let plan = place("goodput", &problem);
    assert!(plan.replicas.len() > 2, "{:?}", plan.replicas);
    assert_eq!(shortfall(&plan, 0), None);
    // In large batches the device carries 1064/s.
    assert!(plan.models[0].goodput.get() > 1_190.0);
}

#[test]
fn a_replica_that_no_request_needs_is_not_planned() {
    let problem = v100s(3, &[("alexnet", 10.0, 200)]);
    assert_eq!(place("goodput", &problem).replicas.len(), 1);
}

#[test]
fn what_cannot_all_be_served_is_shared_out_as_the_objective_says() {
    // bert takes about 8 ms of a device per request, alexnet 0.15 ms, of which one has 1000 per second.
    let problem = v100s(1, &[("bert", 120.0, 300), ("densenet121", 1_500.0, 300)]);
    let least = |plan: &Plan| {
        let served = plan.models.iter().zip(&problem.models);
        served
            .map(|(forecast, model)| forecast.goodput.get() / model.rate.get())
            .fold(1.0, f64::min)
    };
    let sum = |plan: &Plan| -> f64 {
        plan.models
            .iter()
            .map(|forecast| forecast.goodput.get())
            .sum()
    };
    let [most, fairest, between] =
        [Objective::Goodput, Objective::MaxMin, Objective::Blend].map(|o| place_for(&problem, o));
    assert!(
        sum(&most) > sum(&fairest),
        "{} {}",
        sum(&most),
        sum(&fairest)
    );
    assert!(
        least(&fairest) > least(&most),
        "{} {}",
        least(&fairest),
        least(&most)
    );
    assert!(least(&between) >= least(&most) && sum(&between) >= sum(&fairest));
}

#[test]
fn what_runs_moves_only_for_what_that_is_worth() {
    let mut problem = v100s(2, &[("alexnet", 300.0, 200), ("bert", 60.0, 300)]);
    // Not what would be planned on an empty cluster, but good enough.
    problem.current = vec![replica(0, 1, 16), replica(1, 0, 8)];
    assert_eq!(place("goodput", &problem).replicas, problem.current);
    // Four times the rate is worth a further replica, and what runs stays.
    problem.models[1].rate = RequestsPerSecond::new(200.0).unwrap();
    let plan = place("goodput", &problem);
    assert!(
        plan.replicas.len() > 2 && plan.replicas.contains(&problem.current[0]),
        "{:?}",
        plan.replicas
    );
}

#[test]
fn heterogeneous_devices_take_what_suits_them() {
    let mut problem = v100s(2, &[("a", 90.0, 100), ("b", 90.0, 100)]);
    problem.devices[1] = device("T4", 16_384);
    // `b` is slow on the T4, `a` is not.
    problem.profiles = profiles(
        "a,V100,4,,30,,100,,,95\na,T4,4,,32,,100,,,95\nb,V100,4,,30,,100,,,95\nb,T4,4,,95,,100,,,95\n",
    );
    let plan = place("goodput", &problem);
    assert!(devices_of(&plan, 0).iter().all(|device| *device == 1));
    assert!(devices_of(&plan, 1).iter().all(|device| *device == 0));
    assert_eq!((shortfall(&plan, 0), shortfall(&plan, 1)), (None, None));
}

#[test]
fn what_was_seen_of_neighbours_keeps_models_apart() {
    use packhorse_cluster::{DeviceObservation, ReplicaObservation};
    let mut problem = v100s(1, &[("densenet121", 200.0, 200), ("alexnet", 200.0, 200)]);
    let plan = [replica(0, 0, 8), replica(1, 0, 16)];
    let before = estimated_fractions(&problem, &plan);
    let seen = |model: &str, slowdown| ReplicaObservation {
        model: model.parse().unwrap(),
        compute_share: None,
        batches: 500,
        mean_rows: 8.0,
        busy: 0.6,
        slowdown,
    };
    let observation = DeviceObservation {
        kind: "V100".parse().unwrap(),
        replicas: vec![seen("densenet121", 6.0), seen("alexnet", 1.2)],
    };
    problem.observations = vec![observation; 5];
    let after = estimated_fractions(&problem, &plan);
    assert!(
        before[0] > 0.99 && after[0] < before[0],
        "{before:?} {after:?}"
    );
}

#[test]
fn the_way_bounds_what_a_replica_carries() {
    // 602,112 bytes per request take 0.53 ms on the way: two batches at a time give at most 3750/s, however fast the device.
    let problem = v100s(1, &[("alexnet", 6_000.0, 200)]);
    let one = estimated_fractions(&problem, &[replica(0, 0, 128)])[0];
    assert!(one < 0.63, "{one}");
}

/// Latencies that grow with the batch, by less than in proportion; utilisations that grow with it too.
fn profiled() -> impl Strategy<Value = String> {
    (1.0..40.0, 0.02..1.0, 5.0..60.0).prop_map(|(base, per_row, used): (f64, f64, f64)| {
        let mut rows = String::new();
        for size in [1_u32, 2, 4, 8, 16, 32] {
            let latency = base * (1.0 + per_row * f64::from(size));
            let used = f64::min(100.0, used * f64::from(size).sqrt());
            writeln!(rows, "m,V100,{size},,{latency},,100,,,{used}").unwrap();
        }
        rows
    })
}

fn one_model(rate: f64, slo_ms: u64, burstiness: f64, rows: &str) -> Problem {
    Problem {
        profiles: profiles(rows),
        conditions: Conditions {
            burstiness,
            ..Conditions::default()
        },
        ..v100s(4, &[("m", rate, slo_ms)])
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn of_more_requests_no_larger_part_is_in_time(
        rows in profiled(), rate in 1.0..3_000.0, more in 1.01..3.0, slo in 20_u64..500, burstiness in 0.5..4.0, batch in 0_u32..6,
    ) {
        let batch = 1 << batch;
        let of = |rate| estimated_fractions(&one_model(rate, slo, burstiness, &rows), &[replica(0, 0, batch)])[0];
        prop_assert!(of(rate * more) <= of(rate) + 1e-9, "{} at {rate}, {} at {}", of(rate), of(rate * more), rate * more);
    }

    #[test]
    fn a_replica_more_on_an_empty_device_is_never_worse(
        rows in profiled(), rate in 1.0..3_000.0, slo in 20_u64..500, burstiness in 0.5..4.0, batch in 0_u32..6, replicas in 1_usize..4,
    ) {
        let problem = one_model(rate, slo, burstiness, &rows);
        let all: Vec<PlannedReplica> = (0..4).map(|device| replica(0, device, 1 << batch)).collect();
        let fewer = estimated_fractions(&problem, &all[..replicas])[0];
        let more = estimated_fractions(&problem, &all[..=replicas])[0];
        prop_assert!(more >= fewer - 1e-9, "{more} of {}, {fewer} of {replicas}", replicas + 1);
    }
}

/// A CPU's profile of one model: latencies measured up to `noise` wrong, with a tail as heavy, and no utilisation.
fn measured(true_ms: impl Fn(u32) -> f64, noise: f64, errors: &[f64]) -> String {
    let mut rows = String::new();
    for (size, error) in [1_u32, 2, 4, 8, 16, 32].into_iter().zip(errors) {
        let latency = true_ms(size) * (1.0 + noise * error);
        let tail = latency * (1.0 + noise);
        writeln!(
            rows,
            "m,cpu,{size},100,{latency},{tail},{},,,",
            300 + 5 * size
        )
        .unwrap();
    }
    rows
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn a_noisy_profile_gets_one_replica_of_an_efficient_batch(
        base in 0.3..300.0, once in 0.05..0.9, load in 0.02..0.4, slack in 4.0..40.0, noise in 0.0..0.25, errors in vec(-1.0..1.0, 6),
    ) {
        // So much of a batch's time is the same for all sizes.
        let true_ms = |size: u32| base * (once + (1.0 - once) * f64::from(size));
        let rows = measured(true_ms, noise, &errors);
        let slo = f64::max(20.0, base * slack);
        let mut problem = v100s(0, &[("m", load * 1e3 / base, slo.ceil() as u64)]);
        problem.models[0].payload = ByteCount::new(4_096);
        problem.devices = vec![device("cpu", 8_192)];
        problem.profiles = profiles(&rows);
        let plan = place("goodput", &problem);
        prop_assert_eq!(plan.replicas.len(), 1, "{:?}", plan.replicas);
        // Of the batches that are computed while another is waited for.
        let carried = |size: u32| f64::from(size) / true_ms(size);
        let quick = [1, 2, 4, 8, 16, 32].into_iter().filter(|size| 2.2 * (1.0 + noise) * true_ms(*size) <= slo);
        let most = quick.map(carried).fold(0.0, f64::max);
        // Nobody can do better than to be wrong about two sizes by as much as they were measured wrong.
        let worst = 0.95 * (1.0 - noise) / (1.0 + noise);
        prop_assert!(carried(plan.replicas[0].batch_size) >= worst * most, "{:?}\n{rows}", plan.replicas);
    }
}

#[test]
fn a_model_whose_batches_sometimes_take_long_is_promised_less() {
    let of = |tail: u32| {
        let mut problem = v100s(1, &[("m", 1.0, 100)]);
        problem.profiles = profiles(&format!("m,V100,1,,80,{tail},100,,,\n"));
        estimated_fractions(&problem, &[replica(0, 0, 1)])[0]
    };
    assert!(
        of(81) > 0.5 && of(140) < 0.8 * of(81),
        "{} {}",
        of(81),
        of(140)
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(20))]

    #[test]
    fn no_more_is_promised_than_devices_can_compute(
        rates in vec(1.0..4_000.0, 3), slo in 100_u64..400, devices in 1_usize..4, fair in any::<bool>(),
    ) {
        let names = ["alexnet", "bert", "densenet121"];
        let models: Vec<(&str, f64, u64)> = names.iter().zip(&rates).map(|(name, rate)| (*name, *rate, slo)).collect();
        let problem = v100s(devices, &models);
        let plan = place_for(&problem, if fair { Objective::MaxMin } else { Objective::Goodput });
        let mut device_seconds = 0.0;
        for ((model, _), forecast) in problem.models().zip(&plan.models) {
            prop_assert!(forecast.goodput <= problem.models[model.0].rate);
            let profile = problem.profile(model, DeviceIndex(0)).unwrap();
            let cost = |size: u32| profile.latency(size).as_secs_f64() * profile.sm_utilization(size).unwrap().get() / 100.0 / f64::from(size);
            let least = (1..=128).map(cost).fold(f64::INFINITY, f64::min);
            device_seconds += forecast.goodput.get() * least;
        }
        prop_assert!(device_seconds <= devices as f64 * 1.001, "{device_seconds} of {devices}");
    }

    #[test]
    fn the_plan_is_never_worth_less_than_first_fit_s(
        rates in vec(1.0..3_000.0, 3), slo in 60_u64..400, devices in 1_usize..4,
    ) {
        let names = ["alexnet", "bert", "densenet121"];
        let models: Vec<(&str, f64, u64)> = names.iter().zip(&rates).map(|(name, rate)| (*name, *rate, slo)).collect();
        let problem = v100s(devices, &models);
        let value = |policy: &str| crate::goodput::value(&problem, &place(policy, &problem).replicas, Objective::Goodput);
        prop_assert!(value("goodput") >= value("first-fit") - 1e-6);
    }
}

#[test]
fn the_estimate_is_one_for_the_discipline() {
    // A batch of 128 does not fill in 100 ms at 100/s: `fixed-wait` sends what is there, and everybody waits for that.
    let mut problem = v100s(1, &[("alexnet", 100.0, 90)]);
    let plan = [replica(0, 0, 128)];
    let deadline = estimated_fractions(&problem, &plan)[0];
    problem.discipline = Discipline::FixedWait;
    let fixed = estimated_fractions(&problem, &plan)[0];
    assert!(deadline > 0.99 && fixed < 0.9, "{deadline} {fixed}");
}

#[test]
fn a_large_cluster_is_cut_into_cells_that_serve_all_together() {
    // Two kinds, models larger than a cell and small ones, one that runs on one kind only, and one that nobody asks for.
    let mut problem = v100s(
        20,
        &[
            ("alexnet", 9_000.0, 200),
            ("bert", 500.0, 300),
            ("densenet121", 6_000.0, 200),
            ("bert:2", 40.0, 300),
            ("alexnet:2", 0.0, 200),
        ],
    );
    for index in 15..20 {
        problem.devices[index] = device("T4", 16_384);
    }
    let text = V100
        .replace("bert,", "bert:2,")
        .replace("alexnet,", "alexnet:2,")
        .replace("densenet121,V100", "alexnet,T4");
    let text = text
        .lines()
        .filter(|line| !line.is_empty())
        .collect::<Vec<_>>()
        .join("\n");
    problem.profiles = profiles(&format!("{V100}{text}\n"));
    let plan = place("goodput", &problem);
    for (model, forecast) in plan.models.iter().enumerate() {
        assert_eq!(forecast.shortfall, None, "{model}");
        assert!(!devices_of(&plan, model).is_empty());
    }
    assert_eq!(plan, place("goodput", &problem));
    problem.current.clone_from(&plan.replicas);
    assert_eq!(place("goodput", &problem).replicas, plan.replicas);
}

#[test]
fn more_effort_that_the_budget_ends_leaves_the_usual_plan() {
    // Twelve devices that have too much to do.
    let models = [
        ("alexnet", 30_000.0, 200),
        ("bert", 900.0, 200),
        ("densenet121", 9_000.0, 200),
    ];
    let problem = v100s(12, &models);
    let place = |effort, steps| {
        let options = PolicyOptions {
            effort: Effort::new(effort).unwrap(),
            ..PolicyOptions::default()
        };
        let taken = std::cell::Cell::new(0);
        let stop = || {
            taken.set(taken.get() + 1);
            false
        };
        let mut budget = Budget::new(steps, &stop);
        let entry = policy("goodput").unwrap();
        let plan = entry
            .place_with(&problem, &options.into(), &mut budget)
            .unwrap();
        (plan, taken.get())
    };
    let (usual, steps) = place(1, u64::MAX);
    assert_eq!(place(4, steps + 1_000).0, usual);
    let (whole, more) = place(4, u64::MAX);
    assert!(more > 3 * steps, "{more} after {steps}");
    let value = |plan: &Plan| crate::goodput::value(&problem, &plan.replicas, Objective::Goodput);
    assert!(value(&whole) >= value(&usual));
}

#[test]
fn an_effort_is_a_number_of_times() {
    let read = |text: &str| text.parse::<Effort>().ok().map(Effort::get);
    assert_eq!((read("1"), read("1000")), (Some(1), Some(1_000)));
    for wrong in ["0", "1001", "-1", "much"] {
        assert_eq!(read(wrong), None, "{wrong}");
    }
    let message = Effort::new(0).unwrap_err().to_string();
    assert_eq!(
        message,
        "an effort must be a whole number from 1 to 1000, not \"0\""
    );
}
