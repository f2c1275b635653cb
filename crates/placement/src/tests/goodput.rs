//! The policy `goodput` and its estimate.

use packhorse_cluster::{Conditions, Discipline};
use proptest::{collection::vec, prelude::*};

use super::*;
use crate::estimate;
use packhorse_cluster::{Effort, Objective, PolicyOptions};

/// Returns the fraction of each model's requests in time by the estimate.
pub(super) fn estimated_fractions(problem: &Problem, replicas: &[PlannedReplica]) -> Vec<f64> {
    let inputs = estimate::EstimateInputs::new(problem);
    let estimate = estimate::PlacementEstimate::from_replicas(&inputs, replicas);
    let models = estimate.models().iter();
    models.map(|model| model.in_time).collect()
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
fn an_unneeded_replica_is_not_planned() {
    let problem = v100s(3, &[("alexnet", 10.0, 200)]);
    assert_eq!(place("goodput", &problem).replicas.len(), 1);
}

/// The requests of a seldom used model are worth less than the start of a replica.
#[test]
fn a_model_with_few_requests_gets_a_replica_beside_busy_ones() {
    for rate in [1.0, 0.01] {
        let models = [
            ("alexnet", 800.0, 200),
            ("resnet50", 400.0, 200),
            ("bert", rate, 300),
        ];
        let mut problem = v100s(2, &models);
        let busy = v100s(2, &models[..2]);
        problem.current = place("goodput", &busy).replicas;
        let plan = place("goodput", &problem);
        let of_bert = plan.replicas.iter().filter(|replica| replica.model.0 == 2);
        assert_eq!(of_bert.count(), 1, "at {rate}/s: {:?}", plan.replicas);
        assert_eq!(shortfall(&plan, 2), None);
        let others: Vec<_> = plan
            .replicas
            .iter()
            .filter(|replica| replica.model.0 < 2)
            .collect();
        assert_eq!(
            others,
            problem.current.iter().collect::<Vec<_>>(),
            "none moved"
        );
        // The plan stays as it is.
        problem.current.clone_from(&plan.replicas);
        assert_eq!(place("goodput", &problem).replicas, plan.replicas);
    }
}

#[test]
fn scarce_devices_are_divided_by_the_objective() {
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
fn current_replicas_move_only_for_a_sufficient_gain() {
    let mut problem = v100s(2, &[("alexnet", 300.0, 200), ("bert", 60.0, 300)]);
    // A plan for an empty cluster would be different, but these replicas serve everything.
    let with_memory = |replica: PlannedReplica| PlannedReplica {
        memory: problem
            .profile(replica.model, replica.device)
            .unwrap()
            .memory(replica.batch_size),
        ..replica
    };
    problem.current = [replica(0, 1, 16), replica(1, 0, 8)]
        .map(with_memory)
        .to_vec();
    assert_eq!(place("goodput", &problem).replicas, problem.current);
    // Four times the rate needs a further replica, and the current ones stay.
    problem.models[1].rate = RequestsPerSecond::new(200.0).unwrap();
    let plan = place("goodput", &problem);
    assert!(
        plan.replicas.len() > 2 && plan.replicas.contains(&problem.current[0]),
        "{:?}",
        plan.replicas
    );
}

#[test]
fn heterogeneous_devices_get_the_models_that_are_fast_on_them() {
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
fn observed_slowdowns_lower_the_estimate() {
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

/// Measured on an H200 (`docs/benchmarks/gpu.md`): small batches of three models slowed each other by half, although they left multiprocessors
/// free. In large batches the five models need 56 % of its time, and six replicas with small and large ones answered 2,333 requests/s in time.
#[test]
fn slowdowns_of_small_batches_do_not_rule_out_large_ones() {
    use packhorse_cluster::{DeviceObservation, ReplicaObservation};
    let names = [
        "alexnet",
        "densenet121",
        "efficientnet_b7",
        "resnet50",
        "vgg19",
    ];
    let profiles = include_str!("../../../../profiles/h200.csv");
    let mut problem = equal_devices(
        device("H200", 143_771),
        1,
        &names.map(|name| (name, 500.0, 200)),
        ProfileTable::from_csv(profiles).unwrap(),
    );
    let seen = |model: &str, rows: f64, batches, busy, slowdown| ReplicaObservation {
        model: model.parse().unwrap(),
        compute_share: None,
        batches,
        mean_rows: rows,
        busy,
        slowdown,
    };
    let observation = DeviceObservation {
        kind: "H200".parse().unwrap(),
        replicas: vec![
            seen("densenet121", 2.0, 1_250, 0.99, 1.52),
            seen("efficientnet_b7", 2.0, 800, 1.0, 1.47),
            seen("resnet50", 1.0, 2_600, 0.75, 1.47),
        ],
    };
    problem.observations = vec![observation; 2];
    problem.current = vec![replica(1, 0, 2), replica(2, 0, 2), replica(3, 0, 1)];
    let measured = [
        replica(0, 0, 32),
        replica(1, 0, 2),
        replica(1, 0, 2),
        replica(2, 0, 2),
        replica(3, 0, 128),
        replica(4, 0, 128),
    ];
    let estimated = estimated_fractions(&problem, &measured).iter().sum::<f64>() * 500.0;
    assert!((estimated / 2_333.0 - 1.0).abs() < 0.05, "{estimated}");
    let plan = place("goodput", &problem);
    let planned: f64 = plan.models.iter().map(|model| model.goodput.get()).sum();
    assert!(planned > 2_400.0, "{}", picture(&problem, &plan));
}

#[test]
fn the_network_bounds_the_capacity_of_a_replica() {
    // 602,112 bytes per request take 0.53 ms on the network: two batches at a time give at most 3750/s, however fast the device.
    let problem = v100s(1, &[("alexnet", 6_000.0, 200)]);
    let one = estimated_fractions(&problem, &[replica(0, 0, 128)])[0];
    assert!(one < 0.63, "{one}");
}

/// Returns profiles whose latencies grow with the batch, by less than in proportion, and whose utilisations grow too.
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
    fn no_larger_fraction_of_more_requests_is_in_time(
        rows in profiled(), rate in 1.0..3_000.0, more in 1.01..3.0, slo in 20_u64..500, burstiness in 0.5..4.0, batch in 0_u32..6,
    ) {
        let batch = 1 << batch;
        let in_time = |rate| {
            let problem = one_model(rate, slo, burstiness, &rows);
            let inputs = estimate::EstimateInputs::new(&problem);
            let estimate = estimate::PlacementEstimate::from_replicas(&inputs, &[replica(0, 0, batch)]);
            (estimate.models()[0].in_time, estimate.replicas().first().map(|replica| replica.backlog_rows))
        };
        let ((fewer, few_rows), (many, many_rows)) = (in_time(rate), in_time(rate * more));
        // More requests gather faster. Where they make larger batches possible, the capacity has a step.
        prop_assume!(few_rows == many_rows);
        prop_assert!(many <= fewer + 1e-9, "{fewer} at {rate}, {many} at {}", rate * more);
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

/// Returns a CPU's profile of one model: latencies with a relative error up to `noise`, a tail of the same size, and no utilisation.
fn noisy_profile(true_ms: impl Fn(u32) -> f64, noise: f64, errors: &[f64]) -> String {
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
        base in 0.3..300.0, fixed in 0.05..0.9, load in 0.02..0.4, slack in 4.0..40.0, noise in 0.0..0.25, errors in vec(-1.0..1.0, 6),
    ) {
        // The fraction `fixed` of a batch's time is the same for all sizes.
        let true_ms = |size: u32| base * (fixed + (1.0 - fixed) * f64::from(size));
        let rows = noisy_profile(true_ms, noise, &errors);
        let slo = f64::max(20.0, base * slack);
        let mut problem = v100s(0, &[("m", load * 1e3 / base, slo.ceil() as u64)]);
        problem.models[0].payload = ByteCount::new(4_096);
        problem.devices = vec![device("cpu", 8_192)];
        problem.profiles = profiles(&rows);
        let plan = place("goodput", &problem);
        prop_assert_eq!(plan.replicas.len(), 1, "{:?}", plan.replicas);
        // The batches of which two are within the SLO.
        let carried = |size: u32| f64::from(size) / true_ms(size);
        let fast = [1, 2, 4, 8, 16, 32].into_iter().filter(|size| 2.2 * (1.0 + noise) * true_ms(*size) <= slo);
        let most = fast.map(carried).fold(0.0, f64::max);
        // No choice can be better than one between two sizes with the largest errors.
        let worst = 0.95 * (1.0 - noise) / (1.0 + noise);
        prop_assert!(carried(plan.replicas[0].batch_size) >= worst * most, "{:?}\n{rows}", plan.replicas);
    }
}

#[test]
fn a_long_measured_tail_lowers_the_estimate() {
    let in_time = |tail: u32| {
        let mut problem = v100s(1, &[("m", 1.0, 100)]);
        problem.profiles = profiles(&format!("m,V100,1,,80,{tail},100,,,\n"));
        estimated_fractions(&problem, &[replica(0, 0, 1)])[0]
    };
    assert!(
        in_time(81) > 0.5 && in_time(140) < 0.8 * in_time(81),
        "{} {}",
        in_time(81),
        in_time(140)
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(20))]

    #[test]
    fn the_forecast_is_at_most_the_compute_of_the_devices(
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

    /// The search starts from the placement of `first-fit` or a better one; the replicas for surges may cost as much as a surge counts.
    #[test]
    fn the_value_of_the_plan_is_at_least_that_of_first_fit(
        rates in vec(1.0..3_000.0, 3), slo in 60_u64..400, devices in 1_usize..4,
    ) {
        let names = ["alexnet", "bert", "densenet121"];
        let models: Vec<(&str, f64, u64)> = names.iter().zip(&rates).map(|(name, rate)| (*name, *rate, slo)).collect();
        let problem = v100s(devices, &models);
        let value = |policy: &str| crate::goodput::value(&problem, &place(policy, &problem).replicas, Objective::Goodput);
        prop_assert!(value("goodput") >= value("first-fit") - crate::goodput::SURGE);
    }
}

#[test]
fn the_estimate_depends_on_the_discipline() {
    // A batch of 128 does not fill in 100 ms at 100/s: every request of `fixed-wait` waits until the batch is sent.
    let mut problem = v100s(1, &[("alexnet", 100.0, 90)]);
    let plan = [replica(0, 0, 128)];
    let deadline = estimated_fractions(&problem, &plan)[0];
    problem.discipline = Discipline::FixedWait;
    let fixed = estimated_fractions(&problem, &plan)[0];
    assert!(deadline > 0.99 && fixed < 0.9, "{deadline} {fixed}");
}

#[test]
fn the_cells_of_a_large_cluster_serve_everything_together() {
    // Two kinds of devices, models larger than a cell and small ones, one that runs on one kind only, and one without requests.
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
fn a_budget_that_ends_in_the_second_search_leaves_the_default_plan() {
    // Twelve overloaded devices.
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
