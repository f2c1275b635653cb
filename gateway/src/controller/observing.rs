//! What is observed of devices: kept for the policies that learn from it, and compared with what the plan assumed.
//!
//! All of it is a cache. Nothing is stored; after a restart the workers' answers give it back within some periods.

use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

use packhorse_cluster::{
    ComputeShare, DeviceId, DeviceKind, DeviceObservation, ModelId, ProfileTable, ReplicaId,
    ReplicaObservation,
};
use packhorse_contention::SlowdownModel;
use tokio::time::Instant;

use super::{cluster::Cluster, spoken};
use crate::driver::Work;

/// How long a period is.
const PERIOD: Duration = Duration::from_secs(5);
/// How many observations of a device over a period are kept: a policy reads all of them within its time.
const HISTORY: usize = 256;
/// A model of which fewer batches were computed in a period says nothing of its speed.
const LEAST_BATCHES: u64 = 10;
/// So far from what the plan assumed, relative to it, a model is away from it ...
const AWAY: f64 = 0.15;
/// ... for so many periods before there is a new plan for it. Once it was planned for, it must come back ...
const PERIODS_AWAY: u32 = 2;
/// ... as close as this before it is planned for again: where a policy does not learn, planning again and again helps nobody.
const BACK: f64 = 0.05;

/// See the module.
pub(super) struct Observing {
    /// When the period began.
    since: Instant,
    /// What replicas had computed then.
    counted: BTreeMap<ReplicaId, Work>,
    /// The oldest first.
    history: VecDeque<DeviceObservation>,
    learned: SlowdownModel,
    /// What was learned when the last plan was asked for.
    assumed: SlowdownModel,
    standings: BTreeMap<ModelId, Standing>,
}

/// A replica as it is observed.
pub(super) struct Observed {
    id: ReplicaId,
    model: ModelId,
    device: DeviceId,
    kind: DeviceKind,
    compute_share: Option<ComputeShare>,
}

/// How a model stands to what the plan assumed of it.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Standing {
    /// Away from it for so many periods.
    Away(u32),
    /// Away from it, and planned for.
    PlannedFor,
}

impl Observing {
    pub(super) fn new() -> Self {
        Self {
            since: Instant::now(),
            counted: BTreeMap::new(),
            history: VecDeque::new(),
            learned: SlowdownModel::default(),
            assumed: SlowdownModel::default(),
            standings: BTreeMap::new(),
        }
    }

    /// When the period ends.
    pub(super) fn due(&self) -> Instant {
        self.since + PERIOD
    }

    /// What policies may learn from, the oldest first.
    pub(super) fn history(&self) -> Vec<DeviceObservation> {
        self.history.iter().cloned().collect()
    }

    /// Learns anew: from what was measured elsewhere, then from what was observed.
    pub(super) fn learn_anew(&mut self, measured: &[DeviceObservation], profiles: &ProfileTable) {
        self.learned = SlowdownModel::default();
        for device in measured.iter().chain(&self.history) {
            self.learned.observe(device, profiles);
        }
    }

    /// A plan is asked for: it can know all that is known now.
    pub(super) fn plan_asked(&mut self) {
        self.assumed.clone_from(&self.learned);
    }

    /// A period has ended, after which replicas had computed `work`. Returns why there should be a new plan.
    fn period_ended(
        &mut self,
        now: Instant,
        replicas: &[Observed],
        work: BTreeMap<ReplicaId, Work>,
        profiles: &ProfileTable,
    ) -> Vec<String> {
        let period = now.saturating_duration_since(self.since);
        let mut devices: BTreeMap<&DeviceId, DeviceObservation> = BTreeMap::new();
        for replica in replicas {
            let now = work.get(&replica.id).copied().unwrap_or_default();
            let before = self.counted.get(&replica.id).copied().unwrap_or_default();
            let work = now.since(before);
            if work.batches > 0 {
                let device = devices.entry(&replica.device);
                let device = device.or_insert_with(|| DeviceObservation {
                    kind: replica.kind.clone(),
                    replicas: Vec::new(),
                });
                device.replicas.push(replica.observation(work, period));
            }
        }
        (self.since, self.counted) = (now, work);
        let devices: Vec<DeviceObservation> = devices.into_values().collect();
        let there = |model: &ModelId| replicas.iter().any(|replica| replica.model == *model);
        self.standings.retain(|model, _| there(model));
        let reasons = self.judge(&devices, profiles);
        for device in devices {
            self.learned.observe(&device, profiles);
            self.history.push_back(device);
        }
        let surplus = self.history.len().saturating_sub(HISTORY);
        self.history.drain(..surplus);
        reasons
    }

    /// Compares what was observed with what the plan assumed, model by model.
    fn judge(&mut self, devices: &[DeviceObservation], profiles: &ProfileTable) -> Vec<String> {
        let mut seen: BTreeMap<&ModelId, Comparison> = BTreeMap::new();
        for device in devices {
            let expected = self.assumed.predict_observed(device, profiles);
            let compared = device.replicas.iter().zip(expected);
            // Of a worker that says it needed no time at all there is nothing to compare.
            for (replica, expected) in compared.filter(|(replica, _)| replica.slowdown > 0.0) {
                let weight = replica.busy / replica.slowdown;
                let comparison = seen.entry(&replica.model).or_default();
                comparison.batches += replica.batches;
                comparison.observed += replica.slowdown * weight;
                comparison.assumed += expected.mean * weight;
            }
        }
        let mut reasons = Vec::new();
        for (model, comparison) in seen {
            if comparison.batches < LEAST_BATCHES {
                continue;
            }
            let times = comparison.observed / comparison.assumed;
            let off = (times - 1.0).abs();
            match self.standings.get_mut(model) {
                Some(Standing::PlannedFor) if off > BACK => {}
                _ if off <= AWAY => {
                    self.standings.remove(model);
                }
                Some(Standing::Away(periods)) if *periods + 1 < PERIODS_AWAY => *periods += 1,
                Some(standing) => {
                    *standing = Standing::PlannedFor;
                    let model = spoken(model);
                    reasons.push(format!("{model} takes {times:.2} times as long as assumed"));
                }
                None => {
                    self.standings.insert(model.clone(), Standing::Away(1));
                }
            }
        }
        reasons
    }
}

/// A model over all of its replicas.
#[derive(Default)]
struct Comparison {
    batches: u64,
    /// Sums of slowdowns, weighted by the work.
    observed: f64,
    assumed: f64,
}

impl Observed {
    fn observation(&self, work: Work, period: Duration) -> ReplicaObservation {
        let (compute, alone) = (work.compute.as_secs_f64(), work.alone.as_secs_f64());
        ReplicaObservation {
            model: self.model.clone(),
            compute_share: self.compute_share,
            batches: work.batches,
            mean_rows: work.rows as f64 / work.batches as f64,
            // A batch counts in the period that it ended in, and may have begun before.
            busy: (compute / period.as_secs_f64()).min(1.0),
            slowdown: compute / alone,
        }
    }
}

impl Cluster {
    /// Takes what the replicas have computed in the period that has ended.
    pub(super) async fn observe(&mut self) {
        let work = self.data_plane.work().await;
        let earlier = self.earlier.iter().map(|earlier| &earlier.replica);
        let placed = self.plan.replicas.iter().chain(earlier);
        let observed = placed.filter_map(|replica| {
            let node = self.nodes.get(replica.device.node())?;
            Some(Observed {
                id: replica.id,
                model: replica.program.model.clone(),
                device: replica.device.clone(),
                kind: node.device(replica.device.local())?.kind.clone(),
                compute_share: replica.compute_share,
            })
        });
        let replicas: Vec<Observed> = observed.collect();
        let now = Instant::now();
        let reasons = self
            .observing
            .period_ended(now, &replicas, work, &self.profiles);
        for reason in reasons {
            self.request_plan(reason);
        }
    }
}

#[cfg(test)]
mod tests {
    use packhorse_cluster::Generation;

    use super::*;

    /// Two models on one device whose batches of 8 rows take 10 ms and half of its multiprocessors.
    struct World {
        observing: Observing,
        now: Instant,
        work: BTreeMap<ReplicaId, Work>,
        replicas: Vec<Observed>,
        profiles: ProfileTable,
    }

    impl World {
        fn new() -> Self {
            let csv = "\na,T4,8,,10,,100,,,50\nb,T4,8,,10,,100,,,50\n";
            let csv = format!("{}{csv}", ProfileTable::CSV_HEADER);
            let replica = |(number, model): (u32, &str)| Observed {
                id: ReplicaId {
                    generation: Generation(1),
                    number,
                },
                model: model.parse().unwrap(),
                device: "n/sim0".parse().unwrap(),
                kind: "T4".parse().unwrap(),
                compute_share: None,
            };
            let observing = Observing::new();
            Self {
                now: observing.since,
                observing,
                work: BTreeMap::new(),
                replicas: [(0, "a:1"), (1, "b:1")].map(replica).into(),
                profiles: ProfileTable::from_csv(&csv).unwrap(),
            }
        }

        /// A period in which both compute 200 batches, `a` so many times as slowly as alone.
        fn period(&mut self, slowdown: f64) -> Vec<String> {
            self.now += PERIOD;
            for (replica, slowdown) in self.replicas.iter().zip([slowdown, 1.0]) {
                let work = self.work.entry(replica.id).or_default();
                let alone = Duration::from_secs(2);
                work.batches += 200;
                work.rows += 1600;
                work.compute += alone.mul_f64(slowdown);
                work.alone += alone;
            }
            let work = self.work.clone();
            let (replicas, profiles) = (&self.replicas, &self.profiles);
            self.observing
                .period_ended(self.now, replicas, work, profiles)
        }
    }

    #[test]
    fn a_period_becomes_one_observation_of_each_device() {
        let mut world = World::new();
        world.period(1.2);
        world.period(1.5);
        let history = world.observing.history();
        assert_eq!(history.len(), 2);
        let [a, b] = history[1].replicas.as_slice() else {
            panic!("{history:?}");
        };
        assert_eq!((a.batches, b.batches), (200, 200));
        assert!((a.busy - 0.6).abs() < 1e-9 && (b.busy - 0.4).abs() < 1e-9);
        assert!((a.slowdown - 1.5).abs() < 1e-9 && (b.slowdown - 1.0).abs() < 1e-9);
        assert!((a.mean_rows - 8.0).abs() < 1e-9);
        // A worker that begins anew counts from zero.
        world.work.clear();
        world.period(1.1);
        let last = &world.observing.history()[2].replicas[0];
        assert!(last.batches == 200 && (last.slowdown - 1.1).abs() < 1e-9);
        // Whoever does nothing is not observed, and history is bounded.
        world.replicas.truncate(1);
        for _ in 0..HISTORY {
            world.period(1.0);
        }
        let history = world.observing.history();
        assert_eq!(history.len(), HISTORY);
        assert!(history.iter().all(|device| device.replicas.len() == 1));
    }

    #[test]
    fn a_model_slower_than_assumed_is_planned_for_once() {
        let mut world = World::new();
        assert_eq!(world.period(1.05), [""; 0]);
        // One bad period is no reason, and neither are two with a good one between them.
        assert_eq!(world.period(1.5), [""; 0]);
        assert_eq!(world.period(1.0), [""; 0]);
        assert_eq!(world.period(1.5), [""; 0]);
        let reasons = world.period(1.5);
        assert_eq!(reasons, ["model a:1 takes 1.50 times as long as assumed"]);
        // A policy that does not get it better cannot be made to by asking again, not even where it seems better for a while.
        for slowdown in [1.5, 1.5, 1.1, 1.5, 1.5] {
            assert_eq!(world.period(slowdown), [""; 0]);
        }
        // It came back, and went away again.
        world.period(1.0);
        world.period(1.5);
        assert_eq!(world.period(1.5).len(), 1);
    }

    #[test]
    fn what_is_learned_is_assumed_by_the_next_plan_and_going_back_is_news() {
        let mut world = World::new();
        for _ in 0..5 {
            world.period(1.5);
        }
        world.observing.plan_asked();
        for _ in 0..5 {
            assert_eq!(world.period(1.5), [""; 0]);
        }
        world.period(1.0);
        let reasons = world.period(1.0);
        assert_eq!(reasons.len(), 1, "{reasons:?}");
        assert!(reasons[0].contains("takes 0."), "{reasons:?}");
    }

    #[test]
    fn what_was_measured_is_assumed_until_other_measurements_take_its_place() {
        let mut elsewhere = World::new();
        for _ in 0..5 {
            elsewhere.period(1.5);
        }
        let measured = elsewhere.observing.history();
        let mut world = World::new();
        world.observing.learn_anew(&measured, &world.profiles);
        world.observing.plan_asked();
        assert_eq!(world.period(1.5), [""; 0]);
        assert_eq!(world.period(1.5), [""; 0]);

        let mut world = World::new();
        world.observing.learn_anew(&measured, &world.profiles);
        world.observing.learn_anew(&[], &world.profiles);
        world.observing.plan_asked();
        world.period(1.5);
        assert_eq!(world.period(1.5).len(), 1);
    }
}
