//! Observations of devices: kept for the policies that learn from them, and compared with the assumptions of the current plan.
//!
//! The observations are a cache: nothing is stored, and after a restart of the gateway the workers' answers restore them within
//! some periods.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    time::Duration,
};

use packhorse_cluster::{
    ComputeShare, DeviceId, DeviceKind, DeviceObservation, ModelId, ProfileTable, ReplicaId,
    ReplicaObservation, Time,
};
use packhorse_contention::{Slowdown, SlowdownModel};

use crate::{
    device_speeds::{DeviceSpeeds, NEIGHBOUR_BUSY},
    event::ComputedWork,
    plan_reason::PlanReason,
};

/// The largest number of observations that are kept, each of a device over a period. A policy reads all of them within its time
/// limit.
const MAX_HISTORY: usize = 256;
/// The number of batches in a period below which a model's observed speed is ignored.
const MIN_BATCHES: u64 = 10;
/// The deviation from the assumed batch time, relative to it, above which a model drifts.
const DRIFT_THRESHOLD: f64 = 0.15;
/// The number of successive periods of drift after which a new plan is requested.
const DRIFT_PERIODS: u32 = 2;
/// The deviation to which a model that was planned for must return before another plan is requested for it, because a policy that
/// does not learn would make the same plan again and again.
const RECOVERY_THRESHOLD: f64 = 0.05;

/// Collects observations of devices, and detects models that deviate from the assumptions of the current plan.
#[derive(Clone, Debug)]
pub(crate) struct DeviceObserver {
    /// The begin of the current period.
    period_start: Time,
    /// The work of each replica at the begin of the period.
    counted: BTreeMap<ReplicaId, ComputedWork>,
    /// The observations with the ends of their periods, the oldest first.
    history: VecDeque<(Time, DeviceObservation)>,
    /// The slowdowns learned from all observations.
    learned: SlowdownModel,
    /// The slowdowns that were learned when the current plan was requested.
    assumed: SlowdownModel,
    /// The models that deviate, or deviated when they were planned for.
    drift: BTreeMap<ModelId, DriftState>,
    /// The models whose profiles on kinds of device have changed within the current period.
    changed: BTreeSet<(ModelId, DeviceKind)>,
    /// The batches of the last seconds by device.
    pub(crate) speeds: DeviceSpeeds,
}

/// The batches of a device's replicas in one period.
struct DevicePeriod<'a> {
    observation: DeviceObservation,
    /// The replicas in the order of the observation, with their work.
    work: Vec<(&'a ObservedReplica, ComputedWork)>,
    /// The slowdowns that the current plan assumes, in this order.
    expected: Vec<Slowdown>,
}

/// A replica that is observed.
pub(crate) struct ObservedReplica {
    /// The replica's identity.
    pub(crate) id: ReplicaId,
    /// The model that the replica serves.
    pub(crate) model: ModelId,
    /// The device that the replica runs on.
    pub(crate) device: DeviceId,
    /// The kind of the device.
    pub(crate) kind: DeviceKind,
    /// The share of the multiprocessors that the replica may use; none sets no limit.
    pub(crate) compute_share: Option<ComputeShare>,
}

/// The drift of a model from the assumptions of the current plan.
#[derive(Clone, Copy, Debug, PartialEq)]
enum DriftState {
    /// The model has drifted for this number of successive periods.
    Drifting(u32),
    /// The model has drifted, and a plan was requested for it.
    PlanRequested,
}

impl DeviceObserver {
    /// Creates an observer without observations, whose first period begins now.
    pub(crate) fn new(now: Time) -> Self {
        Self {
            period_start: now,
            counted: BTreeMap::new(),
            history: VecDeque::new(),
            learned: SlowdownModel::default(),
            assumed: SlowdownModel::default(),
            drift: BTreeMap::new(),
            changed: BTreeSet::new(),
            speeds: DeviceSpeeds::default(),
        }
    }

    /// Returns the observations, the oldest first.
    pub(crate) fn history(&self) -> Vec<DeviceObservation> {
        let history = self.history.iter();
        history.map(|(_, device)| device.clone()).collect()
    }

    /// Returns the observations with the ends of their periods, the oldest first.
    pub(crate) fn observations(&self) -> impl Iterator<Item = (Time, &DeviceObservation)> {
        self.history.iter().map(|(at, device)| (*at, device))
    }

    /// Learns the slowdowns again, first from measurements of pairs, then from the observations.
    pub(crate) fn relearn(&mut self, measured: &[DeviceObservation], profiles: &ProfileTable) {
        self.learned = SlowdownModel::default();
        let observed = self.history.iter().map(|(_, device)| device);
        for device in measured.iter().chain(observed) {
            self.learned.observe(device, profiles);
        }
    }

    /// Forgets what was observed of a model on a kind of device beside the profile that it had before. What of the current period was computed
    /// before the change cannot be told apart, so that it is not observed. Returns true if something is forgotten, so that slowdowns are to be learned
    /// again.
    pub(crate) fn profile_changed(&mut self, model: &ModelId, kind: &DeviceKind) -> bool {
        self.changed.insert((model.clone(), kind.clone()));
        let is_of = |device: &DeviceObservation| {
            let mut replicas = device.replicas.iter();
            device.kind == *kind && replicas.any(|replica| replica.model == *model)
        };
        let before = self.history.len();
        self.history.retain(|(_, device)| !is_of(device));
        let forgets = self.history.len() < before;
        if forgets {
            self.drift.remove(model);
        }
        forgets
    }

    /// Notes that a plan is requested now, which assumes the slowdowns learned so far.
    pub(crate) fn plan_requested(&mut self) {
        self.assumed.clone_from(&self.learned);
    }

    /// Ends the current period, after which the replicas had computed `work` in total. Returns the reasons for a new plan.
    pub(crate) fn end_period(
        &mut self,
        now: Time,
        replicas: &[ObservedReplica],
        work: &BTreeMap<ReplicaId, ComputedWork>,
        profiles: &ProfileTable,
    ) -> Vec<PlanReason> {
        let period = now.saturating_since(self.period_start);
        if period.is_zero() {
            return Vec::new();
        }
        let changed = std::mem::take(&mut self.changed);
        let is_of_changed = |replica: &&ObservedReplica| {
            changed.contains(&(replica.model.clone(), replica.kind.clone()))
        };
        let of_changed: BTreeSet<&DeviceId> = if changed.is_empty() {
            BTreeSet::new()
        } else {
            let replicas = replicas.iter().filter(is_of_changed);
            replicas.map(|replica| &replica.device).collect()
        };
        let mut devices: BTreeMap<&DeviceId, DevicePeriod<'_>> = BTreeMap::new();
        for replica in replicas {
            if of_changed.contains(&replica.device) {
                continue;
            }
            let now = work.get(&replica.id).copied().unwrap_or_default();
            let before = self.counted.get(&replica.id).copied().unwrap_or_default();
            let work = now.since(before);
            if work.batches > 0 {
                let device = devices.entry(&replica.device);
                let device = device.or_insert_with(|| DevicePeriod::new(&replica.kind));
                let observed = replica.observation(work, period);
                device.observation.replicas.push(observed);
                device.work.push((replica, work));
            }
        }
        (self.period_start, self.counted) = (now, work.clone());
        let mut devices: Vec<DevicePeriod<'_>> = devices.into_values().collect();
        for device in &mut devices {
            device.expected = self.assumed.predict_observed(&device.observation, profiles);
            device.add_to(&mut self.speeds, now);
        }
        let has_replica = |model: &ModelId| replicas.iter().any(|replica| replica.model == *model);
        self.drift.retain(|model, _| has_replica(model));
        let reasons = self.detect_drift(&devices);
        for device in devices {
            self.learned.observe(&device.observation, profiles);
            self.history.push_back((now, device.observation));
        }
        let surplus = self.history.len().saturating_sub(MAX_HISTORY);
        self.history.drain(..surplus);
        reasons
    }

    /// Compares the observed batch times of each model with the assumed ones. Returns a reason for a new plan per model that has
    /// drifted for long enough.
    fn detect_drift(&mut self, devices: &[DevicePeriod<'_>]) -> Vec<PlanReason> {
        let mut comparisons: BTreeMap<&ModelId, Comparison> = BTreeMap::new();
        for device in devices {
            let replicas = device.observation.replicas.iter();
            let compared = replicas.zip(&device.expected);
            // A worker that reports a time of zero cannot be compared.
            for (replica, expected) in compared.filter(|(replica, _)| replica.slowdown > 0.0) {
                let weight = replica.busy / replica.slowdown;
                let comparison = comparisons.entry(&replica.model).or_default();
                comparison.batches += replica.batches;
                comparison.observed += replica.slowdown * weight;
                comparison.assumed += expected.mean * weight;
            }
        }
        let mut reasons = Vec::new();
        for (model, comparison) in comparisons {
            if comparison.batches < MIN_BATCHES {
                continue;
            }
            let ratio = comparison.observed / comparison.assumed;
            let deviation = (ratio - 1.0).abs();
            match self.drift.get_mut(model) {
                Some(DriftState::PlanRequested) if deviation > RECOVERY_THRESHOLD => {}
                _ if deviation <= DRIFT_THRESHOLD => {
                    self.drift.remove(model);
                }
                Some(DriftState::Drifting(periods)) if *periods + 1 < DRIFT_PERIODS => {
                    *periods += 1;
                }
                Some(drift) => {
                    *drift = DriftState::PlanRequested;
                    let model = model.clone();
                    reasons.push(PlanReason::Drift { model, ratio });
                }
                None => {
                    self.drift.insert(model.clone(), DriftState::Drifting(1));
                }
            }
        }
        reasons
    }
}

/// The observed and the assumed slowdown of a model over all its replicas.
#[derive(Default)]
struct Comparison {
    /// The number of batches.
    batches: u64,
    /// The sum of the observed slowdowns, weighted by the work.
    observed: f64,
    /// The sum of the assumed slowdowns, weighted by the work.
    assumed: f64,
}

impl DevicePeriod<'_> {
    fn new(kind: &DeviceKind) -> Self {
        Self {
            observation: DeviceObservation {
                kind: kind.clone(),
                replicas: Vec::new(),
            },
            work: Vec::new(),
            expected: Vec::new(),
        }
    }

    /// Adds the batches to those of the last seconds.
    fn add_to(&self, speeds: &mut DeviceSpeeds, now: Time) {
        let is_active = |replica: &ReplicaObservation| replica.busy > NEIGHBOUR_BUSY;
        let replicas = &self.observation.replicas;
        let active = replicas.iter().filter(|other| is_active(other)).count();
        let all = self.work.iter().zip(replicas).zip(&self.expected);
        for (((replica, work), observed), expected) in all {
            let is_alone = active == usize::from(is_active(observed));
            let device = (&replica.device, &replica.kind);
            let compared = (expected.mean, is_alone);
            speeds.add(now, device, &replica.model, *work, compared);
        }
    }
}

impl ObservedReplica {
    /// Returns the observation of the replica over a period in which it computed `work`.
    fn observation(&self, work: ComputedWork, period: Duration) -> ReplicaObservation {
        let (compute, alone) = (work.compute.as_secs_f64(), work.alone.as_secs_f64());
        ReplicaObservation {
            model: self.model.clone(),
            compute_share: self.compute_share,
            batches: work.batches,
            mean_rows: work.rows as f64 / work.batches as f64,
            // A batch counts in the period in which it ended, and may have begun before it.
            busy: (compute / period.as_secs_f64()).min(1.0),
            slowdown: compute / alone,
        }
    }
}

#[cfg(test)]
mod tests {
    use packhorse_cluster::Generation;

    use super::*;

    /// The length of a period.
    const PERIOD: Duration = Duration::from_secs(5);

    /// Two models on one device whose batches of 8 rows take 10 ms and half of its multiprocessors.
    struct ObservedDevice {
        observer: DeviceObserver,
        now: Time,
        work: BTreeMap<ReplicaId, ComputedWork>,
        replicas: Vec<ObservedReplica>,
        profiles: ProfileTable,
    }

    impl ObservedDevice {
        fn new() -> Self {
            let csv = "\na,T4,8,,10,,100,,,50\nb,T4,8,,10,,100,,,50\n";
            let csv = format!("{}{csv}", ProfileTable::CSV_HEADER);
            let replica = |(number, model): (u32, &str)| ObservedReplica {
                id: ReplicaId {
                    generation: Generation(1),
                    number,
                },
                model: model.parse().unwrap(),
                device: "n/sim0".parse().unwrap(),
                kind: "T4".parse().unwrap(),
                compute_share: None,
            };
            let observer = DeviceObserver::new(Time::ZERO);
            Self {
                now: observer.period_start,
                observer,
                work: BTreeMap::new(),
                replicas: [(0, "a:1"), (1, "b:1")].map(replica).into(),
                profiles: ProfileTable::from_csv(&csv).unwrap(),
            }
        }

        /// Lets a period pass in which both compute 200 batches, `a` with this slowdown.
        fn pass_period(&mut self, slowdown: f64) -> Vec<PlanReason> {
            self.now += PERIOD;
            for (replica, slowdown) in self.replicas.iter().zip([slowdown, 1.0]) {
                let work = self.work.entry(replica.id).or_default();
                let alone = Duration::from_secs(2);
                work.batches += 200;
                work.rows += 1600;
                work.compute += alone.mul_f64(slowdown);
                work.alone += alone;
            }
            let (replicas, profiles) = (&self.replicas, &self.profiles);
            self.observer
                .end_period(self.now, replicas, &self.work, profiles)
        }
    }

    #[test]
    fn a_period_becomes_one_observation_of_each_device() {
        let mut device = ObservedDevice::new();
        device.pass_period(1.2);
        device.pass_period(1.5);
        let history = device.observer.history();
        assert_eq!(history.len(), 2);
        let [a, b] = history[1].replicas.as_slice() else {
            panic!("{history:?}");
        };
        assert_eq!((a.batches, b.batches), (200, 200));
        assert!((a.busy - 0.6).abs() < 1e-9 && (b.busy - 0.4).abs() < 1e-9);
        assert!((a.slowdown - 1.5).abs() < 1e-9 && (b.slowdown - 1.0).abs() < 1e-9);
        assert!((a.mean_rows - 8.0).abs() < 1e-9);
        // A restarted worker counts from zero.
        device.work.clear();
        device.pass_period(1.1);
        let last = &device.observer.history()[2].replicas[0];
        assert!(last.batches == 200 && (last.slowdown - 1.1).abs() < 1e-9);
        // An idle replica is not observed, and the history is bounded.
        device.replicas.truncate(1);
        for _ in 0..MAX_HISTORY {
            device.pass_period(1.0);
        }
        let history = device.observer.history();
        assert_eq!(history.len(), MAX_HISTORY);
        assert!(history.iter().all(|device| device.replicas.len() == 1));
    }

    #[test]
    fn what_was_observed_beside_another_profile_is_forgotten() {
        let mut device = ObservedDevice::new();
        for _ in 0..5 {
            device.pass_period(1.5);
        }
        let (a, kind) = ("a:1".parse().unwrap(), "T4".parse().unwrap());
        let ObservedDevice {
            observer, profiles, ..
        } = &mut device;
        assert!(observer.profile_changed(&a, &kind));
        observer.relearn(&[], profiles);
        observer.plan_requested();
        assert!(observer.history().is_empty());
        // The period in which it changed is of both profiles.
        assert_eq!(device.pass_period(1.3), []);
        assert!(device.observer.history().is_empty());
        for _ in 0..5 {
            assert_eq!(device.pass_period(1.0), [], "the new profile is right");
        }
        assert_eq!(device.observer.history().len(), 5);
        let other = "V100".parse().unwrap();
        assert!(!device.observer.profile_changed(&a, &other));
        assert_eq!(device.observer.history().len(), 5);
    }

    #[test]
    fn a_model_slower_than_assumed_is_planned_for_once() {
        let mut device = ObservedDevice::new();
        assert_eq!(device.pass_period(1.05), []);
        // One bad period is no reason, and neither are two with a good one between them.
        assert_eq!(device.pass_period(1.5), []);
        assert_eq!(device.pass_period(1.0), []);
        assert_eq!(device.pass_period(1.5), []);
        let reasons = device.pass_period(1.5);
        assert!(
            matches!(
                reasons.as_slice(),
                [PlanReason::Drift { model, ratio }] if model.to_string() == "a:1" && (ratio - 1.5).abs() < 1e-6
            ),
            "{reasons:?}"
        );
        // No plan is requested again while the model drifts, even if it drifts less for a while.
        for slowdown in [1.5, 1.5, 1.1, 1.5, 1.5] {
            assert_eq!(device.pass_period(slowdown), []);
        }
        // The model recovered and drifts again.
        device.pass_period(1.0);
        device.pass_period(1.5);
        assert_eq!(device.pass_period(1.5).len(), 1);
    }

    #[test]
    fn what_is_learned_is_assumed_by_the_next_plan_and_going_back_is_news() {
        let mut device = ObservedDevice::new();
        for _ in 0..5 {
            device.pass_period(1.5);
        }
        device.observer.plan_requested();
        for _ in 0..5 {
            assert_eq!(device.pass_period(1.5), []);
        }
        device.pass_period(1.0);
        let reasons = device.pass_period(1.0);
        assert!(
            matches!(reasons.as_slice(), [PlanReason::Drift { ratio, .. }] if *ratio < 1.0),
            "{reasons:?}"
        );
    }

    #[test]
    fn what_was_measured_is_assumed_until_other_measurements_take_its_place() {
        let mut elsewhere = ObservedDevice::new();
        for _ in 0..5 {
            elsewhere.pass_period(1.5);
        }
        let measured = elsewhere.observer.history();
        let mut device = ObservedDevice::new();
        device.observer.relearn(&measured, &device.profiles);
        device.observer.plan_requested();
        assert_eq!(device.pass_period(1.5), []);
        assert_eq!(device.pass_period(1.5), []);

        let mut device = ObservedDevice::new();
        device.observer.relearn(&measured, &device.profiles);
        device.observer.relearn(&[], &device.profiles);
        device.observer.plan_requested();
        device.pass_period(1.5);
        assert_eq!(device.pass_period(1.5).len(), 1);
    }
}
