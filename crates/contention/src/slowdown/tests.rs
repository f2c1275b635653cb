//! What is learned of worlds whose truth is known.

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

/// Models of one batch size, by name and SM utilisation.
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

/// A world that does what the simulator does: the hidden truth is the one of [`Interference`].
struct World {
    truth: Interference,
    profiles: ProfileTable,
}

impl World {
    fn new(kappa: f64, models: &[(&str, f64)]) -> Self {
        Self {
            truth: Interference::new(1.6, kappa).unwrap(),
            profiles: profiles(models),
        }
    }

    /// What replica `subject` of a device comes to, by every set of neighbours that may be active.
    fn slowdown(&self, device: &[(&str, f64)], subject: usize) -> f64 {
        let active = |name: &str| {
            let profile = self.profiles.get(&model(name), &kind()).unwrap();
            Active::new(profile, 8, None)
        };
        let mut rate = 0.0;
        for set in (0..1_u32 << device.len()).filter(|set| set >> subject & 1 == 1) {
            let of = |i: usize| set >> i & 1 == 1;
            let inside: Vec<Active> = (0..device.len())
                .filter(|i| of(*i))
                .map(|i| active(device[i].0))
                .collect();
            let at = (0..subject).filter(|i| of(*i)).count();
            let probability: f64 = (0..device.len())
                .filter(|i| *i != subject)
                .map(|i| {
                    if of(i) {
                        device[i].1
                    } else {
                        1.0 - device[i].1
                    }
                })
                .product();
            rate += probability * self.truth.rates(&inside).nth(at).unwrap();
        }
        1.0 / rate
    }

    /// Models with their busy fractions on one device.
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

    fn expected(
        &self,
        learned: &SlowdownModel,
        device: &[(&str, f64)],
        subject: usize,
    ) -> Slowdown {
        let names: Vec<ModelId> = device.iter().map(|(name, _)| model(name)).collect();
        let tenant = |i: usize| {
            let profile = self.profiles.get(&names[i], &kind());
            Tenant::new(&names[i], profile, 8, None, device[i].1)
        };
        let mut neighbours: Vec<Tenant<'_>> = (0..device.len()).map(tenant).collect();
        let subject = neighbours.remove(subject);
        learned.expected(&kind(), &subject, &neighbours)
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
fn where_nothing_was_observed_the_physics_is_expected_and_little_is_certain() {
    let world = World::new(0.0, &MODELS);
    let learned = SlowdownModel::default();
    let device = [("a", 0.7), ("b", 0.5), ("c", 0.3)];
    for subject in 0..3 {
        let expected = world.expected(&learned, &device, subject);
        assert!((expected.mean - world.slowdown(&device, subject)).abs() < 1e-9);
        assert!(expected.std > 0.05, "{expected:?}");
    }
    let alone = world.expected(&learned, &device[..1], 0);
    assert!((alone.mean - 1.0).abs() < 1e-12);
    assert!((alone.cautious(2.0) - alone.mean - 2.0 * alone.std).abs() < 1e-12);
}

#[test]
fn a_hidden_slowdown_is_found_within_a_few_periods_and_holds_for_pairs_never_seen_together() {
    for kappa in [0.0, 0.3, 0.6] {
        let world = World::new(kappa, &MODELS);
        let seen = [
            world.observe(&[("a", 0.5), ("b", 0.4)]),
            world.observe(&[("c", 0.6), ("d", 0.5), ("b", 0.3)]),
            world.observe(&[("a", 0.4), ("b", 0.5)]),
            world.observe(&[("c", 0.5), ("d", 0.6)]),
        ];
        let learned = SlowdownModel::learned(&seen, &world.profiles);
        let of =
            |subject, neighbour| learned.sensitivity(&kind(), &model(subject), &model(neighbour));
        // Seen together; known apart, never together; and one that nothing is known of at all.
        for (subject, neighbour) in [("a", "b"), ("a", "c"), ("e", "c")] {
            let found = of(subject, neighbour);
            assert!((found.mean - kappa).abs() < 0.15, "{kappa}: {found:?}");
        }
        let device = [("a", 0.6), ("c", 0.7), ("d", 0.4)];
        for subject in 0..3 {
            let expected = world.expected(&learned, &device, subject);
            let truth = world.slowdown(&device, subject);
            assert!(
                (expected.mean / truth - 1.0).abs() < 0.04,
                "{kappa}: {expected:?}, {truth}"
            );
        }
    }
}

#[test]
fn certainty_comes_with_what_is_seen_and_ends_with_what_is_not() {
    let world = World::new(0.3, &MODELS);
    let mut learned = SlowdownModel::default();
    let std = |learned: &SlowdownModel, subject, neighbour| {
        learned
            .sensitivity(&kind(), &model(subject), &model(neighbour))
            .std
    };
    let mut before = std(&learned, "a", "b");
    for _ in 0..5 {
        learned.observe(&world.observe(&[("a", 0.6), ("b", 0.6)]), &world.profiles);
        let now = std(&learned, "a", "b");
        assert!(now < before, "{now} after {before}");
        before = now;
    }
    let (seen, half_seen, unseen) = (
        std(&learned, "a", "b"),
        std(&learned, "a", "c"),
        std(&learned, "c", "d"),
    );
    assert!(
        seen < half_seen && half_seen < unseen,
        "{seen} {half_seen} {unseen}"
    );
    let untouched = std(&SlowdownModel::default(), "c", "d");
    assert!(unseen < untouched, "{unseen} {untouched}");
    // What is learned of one kind of device says nothing of another.
    let elsewhere = learned.sensitivity(&"A100".parse().unwrap(), &model("a"), &model("b"));
    assert_eq!(
        elsewhere,
        SlowdownModel::default().sensitivity(&kind(), &model("a"), &model("b"))
    );
}

#[test]
fn a_world_that_changes_is_learned_anew() {
    let before = World::new(0.0, &MODELS);
    let after = World::new(0.6, &MODELS);
    let device = [("a", 0.6), ("b", 0.5)];
    let mut learned = SlowdownModel::default();
    for _ in 0..500 {
        learned.observe(&before.observe(&device), &before.profiles);
    }
    let off = |learned: &SlowdownModel, world: &World| {
        let expected = world.expected(learned, &device, 0).mean;
        (expected / world.slowdown(&device, 0) - 1.0).abs()
    };
    assert!(off(&learned, &before) < 0.01);
    assert!(off(&learned, &after) > 0.1);
    for _ in 0..10 {
        learned.observe(&after.observe(&device), &after.profiles);
    }
    assert!(off(&learned, &after) < 0.02, "{}", off(&learned, &after));
}

#[test]
fn a_profile_that_is_off_is_no_interference() {
    let world = World::new(0.0, &MODELS);
    let mut learned = SlowdownModel::default();
    for device in [
        &[("a", 0.6)][..],
        &[("a", 0.6), ("d", 0.5)],
        &[("a", 0.3), ("d", 0.2)],
    ]
    .repeat(5)
    {
        let mut seen = world.observe(device);
        // The profile of `a` is 20 % too fast.
        seen.replicas[0].slowdown *= 1.2;
        learned.observe(&seen, &world.profiles);
    }
    let beside = learned.sensitivity(&kind(), &model("a"), &model("d"));
    assert!(beside.mean.abs() < 0.1, "{beside:?}");
    let alone = world.expected(&learned, &[("a", 0.6)], 0);
    assert!((alone.mean - 1.2).abs() < 0.03, "{alone:?}");
}

#[test]
fn one_wild_period_does_not_undo_many() {
    let world = World::new(0.3, &MODELS);
    let device = [("a", 0.6), ("b", 0.5)];
    let mut learned = SlowdownModel::default();
    for _ in 0..20 {
        learned.observe(&world.observe(&device), &world.profiles);
    }
    let mut wild = world.observe(&device);
    wild.replicas[0].slowdown *= 20.0;
    learned.observe(&wild, &world.profiles);
    let after = learned.sensitivity(&kind(), &model("a"), &model("b")).mean;
    assert!((after - 0.3).abs() < 0.1, "{after}");
}

#[test]
fn however_many_models_come_by_memory_stays_bounded() {
    let names: Vec<String> = (0..200).map(|i| format!("m{i}")).collect();
    let models: Vec<(&str, f64)> = names.iter().map(|name| (name.as_str(), 50.0)).collect();
    let world = World::new(0.3, &models);
    let mut learned = SlowdownModel::default();
    for pair in models.windows(3) {
        let device: Vec<(&str, f64)> = pair.iter().map(|(name, _)| (*name, 0.5)).collect();
        learned.observe(&world.observe(&device), &world.profiles);
    }
    let belief = &learned.kinds[&kind()];
    assert!(belief.len() <= 256);
    // What all have in common is not forgotten.
    let strangers = learned.sensitivity(&kind(), &model("x"), &model("y"));
    assert!((strangers.mean - 0.3).abs() < 0.05, "{strangers:?}");
    for i in 0..100 {
        let mut seen = world.observe(&[("m0", 0.5), ("m1", 0.5)]);
        seen.kind = format!("kind{i}").parse().unwrap();
        learned.observe(&seen, &world.profiles);
    }
    assert!(learned.kinds.len() <= KINDS);
}

fn busy() -> impl Strategy<Value = f64> {
    0.05..1.0_f64
}

/// A world of four models, no two of which oversubscribe the device.
struct Four {
    names: Vec<ModelId>,
    everyone: f64,
    /// By model: its sensitivity, and its pressure on others.
    effects: Vec<(f64, f64)>,
}

impl Four {
    const UTILIZATION: [f64; 4] = [50.0, 40.0, 45.0, 30.0];

    fn tenant(&self, model: usize, busy: f64) -> Tenant<'_> {
        let sm_utilization = Percent::new(Self::UTILIZATION[model]).unwrap();
        Tenant {
            model: &self.names[model],
            active: Active {
                sm_utilization,
                compute_share: None,
            },
            rows: 8,
            busy,
        }
    }

    fn sensitivity(&self, model: usize, neighbour: usize) -> f64 {
        self.everyone + self.effects[model].0 + self.effects[neighbour].1
    }

    fn slowdown(&self, model: usize, neighbour: usize, busy: f64) -> f64 {
        let together = self.sensitivity(model, neighbour) * Self::UTILIZATION[neighbour] / 100.0;
        1.0 / (1.0 - busy + busy / (1.0 + together))
    }
}

/// A period in which two of four models share a device: one, how many further the other, how busy both, how wrong both are measured.
type Period = (usize, usize, f64, f64, f64, f64);

/// Effects, and periods.
fn noisy_periods() -> impl Strategy<Value = (Vec<(f64, f64)>, f64, Vec<Period>)> {
    let effect = -0.1..0.25_f64;
    let effects = proptest::collection::vec((effect.clone(), effect), 4);
    let noise = -0.04..0.04_f64;
    let period = (0_usize..4, 1_usize..4, busy(), busy(), noise.clone(), noise);
    let periods = proptest::collection::vec(period, 200);
    (effects, 0.1..0.6_f64, periods)
}

/// The worlds are the same each time: what is known of many is not true of each.
#[test]
fn a_planted_truth_is_recovered_from_noisy_periods() {
    let random = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
    let mut runner = TestRunner::new_with_rng(Config::default(), random);
    let (mut errors, mut doubts) = (Vec::new(), Vec::new());
    for _ in 0..200 {
        let drawn = noisy_periods().new_tree(&mut runner).unwrap();
        let (effects, everyone, periods) = drawn.current();
        let world = Four {
            names: ["a", "b", "c", "d"].map(model).to_vec(),
            everyone,
            effects,
        };
        let mut learned = SlowdownModel::default();
        for (i, step, busy_i, busy_j, noise_i, noise_j) in periods {
            let j = (i + step) % 4;
            let measured = |slowdown: f64, noise: f64| Measured {
                batches: 100,
                slowdown: slowdown * (1.0 + noise),
            };
            let of_i = measured(world.slowdown(i, j, busy_j), noise_i);
            let of_j = measured(world.slowdown(j, i, busy_i), noise_j);
            let device = [
                (world.tenant(i, busy_i), of_i),
                (world.tenant(j, busy_j), of_j),
            ];
            learned.measure(&kind(), &device);
        }
        for i in 0..4 {
            for j in (0..4).filter(|j| *j != i) {
                let neighbour = [world.tenant(j, 0.7)];
                let expected = learned.expected(&kind(), &world.tenant(i, 1.0), &neighbour);
                errors.push((expected.mean / world.slowdown(i, j, 0.7) - 1.0).abs());
                let found = learned.sensitivity(&kind(), &world.names[i], &world.names[j]);
                doubts.push((found.mean - world.sensitivity(i, j)).abs() / found.std);
            }
        }
    }
    // Of 2,400 pairs; a period is off by up to 4 %, by 2.3 % in the root of the mean square.
    let most_of = |part: f64, sorted: &[f64]| sorted[(sorted.len() as f64 * part) as usize - 1];
    errors.sort_by(f64::total_cmp);
    let [usual, nearly_all, worst] = [0.5, 0.99, 1.0].map(|part| most_of(part, &errors));
    assert!(usual < 0.0115, "{usual}");
    assert!(nearly_all < 0.04, "{nearly_all}");
    assert!(worst < 0.06, "{worst}");
    // What it says of its own doubt covers it, and says something.
    doubts.sort_by(f64::total_cmp);
    let [usual, nearly_all] = [0.5, 0.95].map(|part| most_of(part, &doubts));
    assert!(usual > 0.2, "{usual}");
    assert!(nearly_all < 2.0, "{nearly_all}");
}

proptest! {
    #[test]
    fn the_order_of_replicas_in_a_period_does_not_matter(
        device in proptest::collection::vec((0_usize..5, busy(), 0.8..3.0_f64, 1_u64..500), 1..6).prop_shuffle(),
        turn in 0_usize..6,
    ) {
        let world = World::new(0.0, &MODELS);
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
        let mut turned = replicas.clone();
        turned.rotate_left(turn % device.len());
        let learned = |replicas| {
            SlowdownModel::learned(&[DeviceObservation { kind: kind(), replicas }], &world.profiles)
        };
        prop_assert_eq!(learned(replicas), learned(turned));
    }

    #[test]
    fn whatever_is_observed_nothing_is_expected_to_be_faster_than_alone(
        periods in proptest::collection::vec(
            proptest::collection::vec(
                (0_usize..5, 0_u64..1000, prop_oneof![0.0..1.0_f64, Just(1.0)], 0.0..200.0_f64, 0.5..100.0_f64),
                0..5,
            ),
            0..12,
        ),
        asked in proptest::collection::vec((0_usize..5, 0.0..=1.0_f64), 1..5),
    ) {
        let world = World::new(0.0, &MODELS);
        let mut learned = SlowdownModel::default();
        for period in periods {
            let replica = |(i, batches, busy, slowdown, mean_rows): (usize, u64, f64, f64, f64)| ReplicaObservation {
                model: model(MODELS[i].0), compute_share: None, batches, mean_rows, busy, slowdown,
            };
            let replicas = period.into_iter().map(replica).collect();
            learned.observe(&DeviceObservation { kind: kind(), replicas }, &world.profiles);
        }
        let device: Vec<(&str, f64)> = asked.iter().map(|(i, busy)| (MODELS[*i].0, *busy)).collect();
        for subject in 0..device.len() {
            let expected = world.expected(&learned, &device, subject);
            prop_assert!(expected.mean >= 1.0 && expected.mean.is_finite(), "{expected:?}");
            prop_assert!(expected.std >= 0.0 && expected.std.is_finite(), "{expected:?}");
        }
    }

    #[test]
    fn nonsense_teaches_nothing(
        bad in prop_oneof![Just(f64::NAN), Just(f64::INFINITY), Just(-1.0), Just(1.1)],
        which in 0_usize..4,
    ) {
        let world = World::new(0.3, &MODELS);
        let sense = world.observe(&[("a", 0.5), ("b", 0.5)]);
        let mut before = SlowdownModel::default();
        before.observe(&sense, &world.profiles);
        let mut seen = sense;
        for replica in &mut seen.replicas {
            match which {
                0 => replica.busy = bad,
                1 if bad < 1.05 || bad.is_nan() || bad.is_infinite() => replica.slowdown = bad,
                2 if bad <= 0.0 || !bad.is_finite() => replica.mean_rows = bad,
                _ => replica.batches = 0,
            }
        }
        let mut after = before.clone();
        after.observe(&seen, &world.profiles);
        prop_assert_eq!(before, after);
    }
}
