//! Models that are learned from observations whose ground truth is known.

use packhorse_cluster::{Percent, Profile, ProfileRow};
use proptest::{
    prelude::*,
    strategy::ValueTree as _,
    test_runner::{Config, RngAlgorithm, TestRng, TestRunner},
};

use super::*;
use crate::Interference;

fn kind() -> DeviceKind {
    "T4".parse().unwrap()
}

fn model(name: &str) -> ModelId {
    format!("{name}:1").parse().unwrap()
}

/// Profiles of models with one batch size, by name and SM utilisation.
fn profiles(models: &[(&str, f64)]) -> ProfileTable {
    let mut table = ProfileTable::default();
    for (name, utilization) in models {
        let row = ProfileRow {
            batch_size: 8,
            compute_share: packhorse_cluster::ComputeShare::WHOLE,
            latency: std::time::Duration::from_millis(10),
            latency_p99: None,
            memory: None,
            achieved_occupancy: None,
            mean_occupancy: None,
            sm_utilization: Some(Percent::new(*utilization).unwrap()),
        };
        table.insert(model(name), kind(), Profile::new(vec![row]).unwrap());
    }
    table
}

/// Devices that behave as in the simulator: the true slowdowns are those of an [`Interference`].
struct GroundTruth {
    interference: Interference,
    profiles: ProfileTable,
}

impl GroundTruth {
    fn new(extra_slowdown: f64, models: &[(&str, f64)]) -> Self {
        Self {
            interference: Interference::new(1.6, extra_slowdown).unwrap(),
            profiles: profiles(models),
        }
    }

    /// The mean slowdown of replica `subject` of a device, over all sets of neighbours that may be active.
    fn slowdown(&self, device: &[(&str, f64)], subject: usize) -> f64 {
        let demand = |name: &str| {
            let profile = self.profiles.get(&model(name), &kind()).unwrap();
            ComputeDemand::new(profile, 8, None)
        };
        let mut rate = 0.0;
        for set in (0..1_u32 << device.len()).filter(|set| set >> subject & 1 == 1) {
            let is_active = |i: usize| set >> i & 1 == 1;
            let active: Vec<ComputeDemand> = (0..device.len())
                .filter(|i| is_active(*i))
                .map(|i| demand(device[i].0))
                .collect();
            let index = (0..subject).filter(|i| is_active(*i)).count();
            let probability: f64 = (0..device.len())
                .filter(|i| *i != subject)
                .map(|i| {
                    if is_active(i) {
                        device[i].1
                    } else {
                        1.0 - device[i].1
                    }
                })
                .product();
            rate += probability * self.interference.rates(&active).nth(index).unwrap();
        }
        1.0 / rate
    }

    /// An observation of models, given with their busy fractions, on one device.
    fn observe(&self, device: &[(&str, f64)]) -> DeviceObservation {
        let replica = |subject: usize| ReplicaObservation {
            model: model(device[subject].0),
            compute_share: None,
            batches: 200,
            mean_rows: 8.0,
            busy: device[subject].1,
            slowdown: self.slowdown(device, subject),
        };
        DeviceObservation {
            kind: kind(),
            replicas: (0..device.len()).map(replica).collect(),
        }
    }

    /// Returns the learned sensitivity of a model while it and one neighbour are active.
    fn sensitivity(&self, learned: &SlowdownModel, subject: &str, neighbour: &str) -> Sensitivity {
        let ids = [subject, neighbour].map(model);
        let utilization = |id| {
            let profile = self.profiles.get(id, &kind());
            ComputeDemand::with_optional_profile(profile, 8, None).effective_utilization()
        };
        let total: f64 = ids.iter().map(utilization).sum();
        let found = learned.sensitivity(&kind(), &ids[0], &ids[1]);
        if total > 100.0 {
            found.saturated
        } else {
            found.unsaturated
        }
    }

    fn predict(&self, learned: &SlowdownModel, device: &[(&str, f64)], subject: usize) -> Slowdown {
        let names: Vec<ModelId> = device.iter().map(|(name, _)| model(name)).collect();
        let replica = |i: usize| {
            let profile = self.profiles.get(&names[i], &kind());
            ColocatedReplica::new(&names[i], profile, 8, None, device[i].1)
        };
        let mut neighbours: Vec<ColocatedReplica<'_>> = (0..device.len()).map(replica).collect();
        let subject = neighbours.remove(subject);
        learned.predict(&kind(), &subject, &neighbours)
    }
}

const MODELS: [(&str, f64); 5] = [
    ("a", 90.0),
    ("b", 60.0),
    ("c", 40.0),
    ("d", 20.0),
    ("e", 75.0),
];

#[test]
fn without_observations_the_prediction_is_that_of_interference_with_a_large_standard_error() {
    let truth = GroundTruth::new(0.0, &MODELS);
    let learned = SlowdownModel::default();
    let device = [("a", 0.7), ("b", 0.5), ("c", 0.3)];
    for subject in 0..3 {
        let predicted = truth.predict(&learned, &device, subject);
        assert!((predicted.mean - truth.slowdown(&device, subject)).abs() < 1e-9);
        assert!(predicted.std_error > 0.05, "{predicted:?}");
    }
    let alone = truth.predict(&learned, &device[..1], 0);
    assert!((alone.mean - 1.0).abs() < 1e-12);
    let bound = alone.upper_confidence_bound(2.0);
    assert!((bound - alone.mean - 2.0 * alone.std_error).abs() < 1e-12);
}

#[test]
fn a_hidden_slowdown_is_found_within_a_few_periods_and_holds_for_pairs_never_seen_together() {
    for extra_slowdown in [0.0, 0.3, 0.6] {
        let truth = GroundTruth::new(extra_slowdown, &MODELS);
        let observed = [
            truth.observe(&[("a", 0.5), ("b", 0.4)]),
            truth.observe(&[("c", 0.6), ("d", 0.5), ("b", 0.3)]),
            truth.observe(&[("a", 0.4), ("b", 0.5)]),
            truth.observe(&[("c", 0.5), ("d", 0.6)]),
            truth.observe(&[("a", 0.8), ("d", 0.7)]),
            truth.observe(&[("b", 0.7), ("d", 0.9), ("c", 0.9)]),
        ];
        let learned = SlowdownModel::from_observations(&observed, &truth.profiles);
        // Observed together; observed, but never together; and a model without observations.
        for (subject, neighbour) in [("a", "b"), ("a", "c"), ("e", "c")] {
            let found = truth.sensitivity(&learned, subject, neighbour);
            assert!(
                (found.mean - extra_slowdown).abs() < 0.15,
                "{extra_slowdown}: {subject} beside {neighbour}: {found:?}"
            );
        }
        let device = [("a", 0.6), ("c", 0.7), ("d", 0.4)];
        for subject in 0..3 {
            let predicted = truth.predict(&learned, &device, subject);
            let slowdown = truth.slowdown(&device, subject);
            assert!(
                (predicted.mean / slowdown - 1.0).abs() < 0.04,
                "{extra_slowdown}: {predicted:?}, {slowdown}"
            );
        }
    }
}

#[test]
fn the_standard_error_falls_with_observations_of_the_pair_and_less_with_those_of_others() {
    let truth = GroundTruth::new(0.3, &MODELS);
    let mut learned = SlowdownModel::default();
    let std_error = |learned: &SlowdownModel, subject, neighbour| {
        truth.sensitivity(learned, subject, neighbour).std_error
    };
    let mut before = std_error(&learned, "a", "b");
    for _ in 0..5 {
        learned.observe(&truth.observe(&[("a", 0.6), ("b", 0.6)]), &truth.profiles);
        let now = std_error(&learned, "a", "b");
        assert!(now < before, "{now} after {before}");
        before = now;
    }
    let (observed, one_observed, unobserved) = (
        std_error(&learned, "a", "b"),
        std_error(&learned, "a", "c"),
        std_error(&learned, "c", "e"),
    );
    assert!(
        observed < one_observed && one_observed < unobserved,
        "{observed} {one_observed} {unobserved}"
    );
    let prior = std_error(&SlowdownModel::default(), "c", "e");
    assert!(unobserved < prior, "{unobserved} {prior}");
    // Observations of one kind of device change nothing for another.
    let elsewhere = learned.sensitivity(&"A100".parse().unwrap(), &model("a"), &model("b"));
    assert_eq!(
        elsewhere,
        SlowdownModel::default().sensitivity(&kind(), &model("a"), &model("b"))
    );
}

#[test]
fn a_changed_ground_truth_is_learned_anew() {
    let before = GroundTruth::new(0.0, &MODELS);
    let after = GroundTruth::new(0.6, &MODELS);
    let device = [("a", 0.6), ("b", 0.5)];
    let mut learned = SlowdownModel::default();
    for _ in 0..500 {
        learned.observe(&before.observe(&device), &before.profiles);
    }
    let error = |learned: &SlowdownModel, truth: &GroundTruth| {
        let predicted = truth.predict(learned, &device, 0).mean;
        (predicted / truth.slowdown(&device, 0) - 1.0).abs()
    };
    assert!(error(&learned, &before) < 0.01);
    assert!(error(&learned, &after) > 0.1);
    for _ in 0..10 {
        learned.observe(&after.observe(&device), &after.profiles);
    }
    assert!(
        error(&learned, &after) < 0.02,
        "{}",
        error(&learned, &after)
    );
}

#[test]
fn a_profile_error_is_not_mistaken_for_interference() {
    let truth = GroundTruth::new(0.0, &MODELS);
    let mut learned = SlowdownModel::default();
    for device in [
        &[("a", 0.6)][..],
        &[("a", 0.6), ("d", 0.5)],
        &[("a", 0.3), ("d", 0.2)],
    ]
    .repeat(5)
    {
        let mut observed = truth.observe(device);
        // The profile of `a` is 20 % too fast.
        observed.replicas[0].slowdown *= 1.2;
        learned.observe(&observed, &truth.profiles);
    }
    let sensitivity = truth.sensitivity(&learned, "a", "d");
    assert!(sensitivity.mean.abs() < 0.1, "{sensitivity:?}");
    let alone = truth.predict(&learned, &[("a", 0.6)], 0);
    assert!((alone.mean - 1.2).abs() < 0.03, "{alone:?}");
}

#[test]
fn one_outlier_does_not_outweigh_many_observations() {
    let truth = GroundTruth::new(0.3, &MODELS);
    let device = [("a", 0.6), ("b", 0.5)];
    let mut learned = SlowdownModel::default();
    for _ in 0..20 {
        learned.observe(&truth.observe(&device), &truth.profiles);
    }
    let mut outlier = truth.observe(&device);
    outlier.replicas[0].slowdown *= 20.0;
    learned.observe(&outlier, &truth.profiles);
    let after = truth.sensitivity(&learned, "a", "b").mean;
    assert!((after - 0.3).abs() < 0.1, "{after}");
}

#[test]
fn memory_stays_bounded_however_many_models_are_observed() {
    let names: Vec<String> = (0..200).map(|i| format!("m{i}")).collect();
    let models: Vec<(&str, f64)> = names.iter().map(|name| (name.as_str(), 50.0)).collect();
    let truth = GroundTruth::new(0.3, &models);
    let mut learned = SlowdownModel::default();
    for (i, three) in models.windows(3).enumerate() {
        // Two of them leave multiprocessors free, and three do not.
        let active = &three[..2 + i % 2];
        let device: Vec<(&str, f64)> = active.iter().map(|(name, _)| (*name, 0.5)).collect();
        learned.observe(&truth.observe(&device), &truth.profiles);
    }
    let posterior = &learned.kinds[&kind()];
    assert!(posterior.len() <= 256);
    // The common effects are not forgotten.
    let unobserved = learned.sensitivity(&kind(), &model("x"), &model("y"));
    for found in [unobserved.unsaturated, unobserved.saturated] {
        assert!((found.mean - 0.3).abs() < 0.05, "{found:?}");
    }
    for i in 0..100 {
        let mut observed = truth.observe(&[("m0", 0.5), ("m1", 0.5)]);
        observed.kind = format!("kind{i}").parse().unwrap();
        learned.observe(&observed, &truth.profiles);
    }
    assert!(learned.kinds.len() <= MAX_KINDS);
}

#[test]
fn a_device_with_thousands_of_replicas_teaches_the_effects_of_the_busiest() {
    let names: Vec<String> = (0..3_000).map(|number| format!("m{number}")).collect();
    let models: Vec<(&str, f64)> = names.iter().map(|name| (&**name, 20.0)).collect();
    let profiles = profiles(&models);
    let replica = |(number, name): (usize, &String)| ReplicaObservation {
        model: model(name),
        compute_share: None,
        batches: 200,
        mean_rows: 8.0,
        // The first two compute, beside many that hardly do.
        busy: if number < 2 { 0.8 } else { 1e-6 },
        slowdown: if number < 2 { 1.5 } else { 1.0 },
    };
    let observation = DeviceObservation {
        kind: kind(),
        replicas: names.iter().enumerate().map(replica).collect(),
    };
    let mut learned = SlowdownModel::default();
    for _ in 0..5 {
        // With an effect for each pair, the covariance of one observation would have gigabytes.
        learned.observe(&observation, &profiles);
    }
    let device: Vec<ColocatedReplica<'_>> = colocated_replicas(&observation, &profiles);
    let beside = |subject: usize, neighbour: usize| {
        let neighbour = ColocatedReplica {
            busy: 1.0,
            ..device[neighbour]
        };
        learned
            .predict(&kind(), &device[subject], &[neighbour])
            .mean
    };
    assert!(beside(0, 1) > 1.2, "{}", beside(0, 1));
    // Of one that hardly computed nothing was learned but what holds for all.
    assert!(beside(0, 2_999) < beside(0, 1));
}

fn busy() -> impl Strategy<Value = f64> {
    0.05..1.0_f64
}

/// Known effects of four models, no two of which oversubscribe the device.
struct KnownEffects {
    names: Vec<ModelId>,
    common: f64,
    /// Each model's sensitivity, and its pressure on others.
    effects: Vec<(f64, f64)>,
}

impl KnownEffects {
    const UTILIZATION: [f64; 4] = [50.0, 40.0, 45.0, 30.0];

    fn replica(&self, model: usize, busy: f64) -> ColocatedReplica<'_> {
        let sm_utilization = Percent::new(Self::UTILIZATION[model]).unwrap();
        ColocatedReplica {
            model: &self.names[model],
            demand: ComputeDemand {
                sm_utilization,
                compute_share: None,
            },
            rows: 8,
            busy,
        }
    }

    fn sensitivity(&self, model: usize, neighbour: usize) -> f64 {
        self.common + self.effects[model].0 + self.effects[neighbour].1
    }

    fn slowdown(&self, model: usize, neighbour: usize, busy: f64) -> f64 {
        let together = self.sensitivity(model, neighbour) * Self::UTILIZATION[neighbour] / 100.0;
        1.0 / (1.0 - busy + busy / (1.0 + together))
    }
}

/// A period in which two of four models share a device: one model, the offset of the other, their busy fractions, and the relative
/// errors of their measurements.
type Period = (usize, usize, f64, f64, f64, f64);

/// The effects of each model, the common effect, and periods.
fn noisy_periods() -> impl Strategy<Value = (Vec<(f64, f64)>, f64, Vec<Period>)> {
    let effect = -0.1..0.25_f64;
    let effects = proptest::collection::vec((effect.clone(), effect), 4);
    let noise = -0.04..0.04_f64;
    let period = (0_usize..4, 1_usize..4, busy(), busy(), noise.clone(), noise);
    let periods = proptest::collection::vec(period, 200);
    (effects, 0.1..0.6_f64, periods)
}

/// The cases are the same in each run, because the bounds hold for the distribution over many cases and not for every case.
#[test]
fn known_effects_are_recovered_from_noisy_periods() {
    let random = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
    let mut runner = TestRunner::new_with_rng(Config::default(), random);
    let (mut errors, mut standardized_errors) = (Vec::new(), Vec::new());
    for _ in 0..200 {
        let drawn = noisy_periods().new_tree(&mut runner).unwrap();
        let (effects, common, periods) = drawn.current();
        let truth = KnownEffects {
            names: ["a", "b", "c", "d"].map(model).to_vec(),
            common,
            effects,
        };
        let mut learned = SlowdownModel::default();
        for (i, step, busy_i, busy_j, noise_i, noise_j) in periods {
            let j = (i + step) % 4;
            let measured = |slowdown: f64, noise: f64| MeasuredSlowdown {
                batches: 100,
                slowdown: slowdown * (1.0 + noise),
            };
            let measured_i = measured(truth.slowdown(i, j, busy_j), noise_i);
            let measured_j = measured(truth.slowdown(j, i, busy_i), noise_j);
            let device = [
                (truth.replica(i, busy_i), measured_i),
                (truth.replica(j, busy_j), measured_j),
            ];
            learned.update(&kind(), &device);
        }
        for i in 0..4 {
            for j in (0..4).filter(|j| *j != i) {
                let neighbour = [truth.replica(j, 0.7)];
                let predicted = learned.predict(&kind(), &truth.replica(i, 1.0), &neighbour);
                errors.push((predicted.mean / truth.slowdown(i, j, 0.7) - 1.0).abs());
                let found = learned.sensitivity(&kind(), &truth.names[i], &truth.names[j]);
                let found = found.unsaturated;
                let error = (found.mean - truth.sensitivity(i, j)).abs();
                standardized_errors.push(error / found.std_error);
            }
        }
    }
    // Over 2,400 pairs. The error of a measurement is up to 4 %; its root mean square is 2.3 %.
    let quantile = |p: f64, sorted: &[f64]| sorted[(sorted.len() as f64 * p) as usize - 1];
    errors.sort_by(f64::total_cmp);
    let [median, p99, max] = [0.5, 0.99, 1.0].map(|p| quantile(p, &errors));
    assert!(median < 0.0115, "{median}");
    assert!(p99 < 0.04, "{p99}");
    assert!(max < 0.06, "{max}");
    // The standard error covers the error, and is not much larger.
    standardized_errors.sort_by(f64::total_cmp);
    let [median, p95] = [0.5, 0.95].map(|p| quantile(p, &standardized_errors));
    assert!(median > 0.2, "{median}");
    assert!(p95 < 2.0, "{p95}");
}

proptest! {
    #[test]
    fn the_order_of_replicas_in_a_period_does_not_matter(
        device in proptest::collection::vec((0_usize..5, busy(), 0.8..3.0_f64, 1_u64..500), 1..6).prop_shuffle(),
        rotation in 0_usize..6,
    ) {
        let truth = GroundTruth::new(0.0, &MODELS);
        let replicas: Vec<_> = device
            .iter()
            .map(|(i, busy, slowdown, batches)| ReplicaObservation {
                model: model(MODELS[*i].0),
                compute_share: None,
                batches: *batches,
                mean_rows: 8.0,
                busy: *busy,
                slowdown: *slowdown,
            })
            .collect();
        let mut rotated = replicas.clone();
        rotated.rotate_left(rotation % device.len());
        let learned = |replicas| {
            let observation = DeviceObservation { kind: kind(), replicas };
            SlowdownModel::from_observations(&[observation], &truth.profiles)
        };
        prop_assert_eq!(learned(replicas), learned(rotated));
    }

    #[test]
    fn no_observations_make_a_predicted_slowdown_less_than_one(
        periods in proptest::collection::vec(
            proptest::collection::vec(
                (0_usize..5, 0_u64..1000, prop_oneof![0.0..1.0_f64, Just(1.0)], 0.0..200.0_f64, 0.5..100.0_f64),
                0..5,
            ),
            0..12,
        ),
        asked in proptest::collection::vec((0_usize..5, 0.0..=1.0_f64), 1..5),
    ) {
        let truth = GroundTruth::new(0.0, &MODELS);
        let mut learned = SlowdownModel::default();
        for period in periods {
            let replica = |(i, batches, busy, slowdown, mean_rows): (usize, u64, f64, f64, f64)| ReplicaObservation {
                model: model(MODELS[i].0), compute_share: None, batches, mean_rows, busy, slowdown,
            };
            let replicas = period.into_iter().map(replica).collect();
            learned.observe(&DeviceObservation { kind: kind(), replicas }, &truth.profiles);
        }
        let device: Vec<(&str, f64)> = asked.iter().map(|(i, busy)| (MODELS[*i].0, *busy)).collect();
        for subject in 0..device.len() {
            let predicted = truth.predict(&learned, &device, subject);
            prop_assert!(predicted.mean >= 1.0 && predicted.mean.is_finite(), "{predicted:?}");
            prop_assert!(predicted.std_error >= 0.0 && predicted.std_error.is_finite(), "{predicted:?}");
        }
    }

    #[test]
    fn impossible_values_are_not_learned_from(
        bad in prop_oneof![Just(f64::NAN), Just(f64::INFINITY), Just(-1.0), Just(1.1)],
        which in 0_usize..4,
    ) {
        let truth = GroundTruth::new(0.3, &MODELS);
        let mut observed = truth.observe(&[("a", 0.5), ("b", 0.5)]);
        let mut before = SlowdownModel::default();
        before.observe(&observed, &truth.profiles);
        for replica in &mut observed.replicas {
            match which {
                0 => replica.busy = bad,
                1 if bad < 1.05 || bad.is_nan() || bad.is_infinite() => replica.slowdown = bad,
                2 if bad <= 0.0 || !bad.is_finite() => replica.mean_rows = bad,
                _ => replica.batches = 0,
            }
        }
        let mut after = before.clone();
        after.observe(&observed, &truth.profiles);
        prop_assert_eq!(before, after);
    }
}
