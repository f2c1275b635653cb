//! The search for devices whose batches take longer than those of their siblings.
//!
//! A batch is compared with what it should take beside its neighbours, and that with the same of the model's batches on the other devices of
//! the kind: a wrong profile or longer inputs slow all of them, a device that throttles slows its own. A device without such siblings
//! is compared with the profiles of its models, while they are alone on it.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    time::Duration,
};

use packhorse_cluster::{DeviceId, DeviceKind, ModelId, Time};

use crate::event::ComputedWork;

/// The time that is looked at.
const WINDOW: Duration = Duration::from_secs(20);
/// The part of a device's time above which another replica counts as a neighbour.
pub(crate) const NEIGHBOUR_BUSY: f64 = 0.05;
/// The least number of batches of a model on a device that are compared.
const MIN_BATCHES: u64 = 20;
/// The factor above which a device is slow.
const SLOW: f64 = 1.3;
/// The factor below which a slow device is no longer slow.
const RECOVERED: f64 = 1.15;
/// The largest ratio of the mean rows of batches that are compared.
const MAX_ROWS_RATIO: f64 = 2.0;

/// The batches of the last seconds by device and model.
#[derive(Clone, Debug, Default)]
pub(crate) struct DeviceSpeeds {
    devices: BTreeMap<DeviceId, ObservedDevice>,
    /// The devices that are slow, with the begin of what was looked at when that was found.
    slow: BTreeMap<DeviceId, Time>,
}

#[derive(Clone, Debug)]
struct ObservedDevice {
    kind: DeviceKind,
    models: BTreeMap<ModelId, VecDeque<Period>>,
}

/// The batches of a model on a device in one period.
#[derive(Clone, Copy, Debug)]
struct Period {
    end: Time,
    work: ComputedWork,
    /// The expected slowdown beside the neighbours.
    expected: f64,
    /// True if no other model was active on the device.
    is_alone: bool,
}

/// The sums over the periods of a model on a device.
#[derive(Clone, Copy, Debug, Default)]
struct Sums {
    batches: u64,
    rows: u64,
    /// The compute time, in seconds.
    compute: f64,
    /// The time that it should have taken, in seconds.
    expected: f64,
}

impl Sums {
    fn add(&mut self, work: ComputedWork, expected: f64) {
        self.batches += work.batches;
        self.rows += work.rows;
        self.compute += work.compute.as_secs_f64();
        self.expected += work.alone.as_secs_f64() * expected;
    }

    fn is_enough(self) -> bool {
        self.batches >= MIN_BATCHES && self.expected > 0.0 && self.compute > 0.0
    }

    fn ratio(self) -> f64 {
        self.compute / self.expected
    }

    fn mean_rows(self) -> f64 {
        self.rows as f64 / self.batches.max(1) as f64
    }

    fn batch_time(self) -> Duration {
        Duration::try_from_secs_f64(self.compute / self.batches.max(1) as f64).unwrap_or_default()
    }
}

/// A device whose batches take longer than they should.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct SlowDevice {
    /// The device.
    pub(crate) device: DeviceId,
    /// The kind of the device.
    pub(crate) kind: DeviceKind,
    /// The time at which it became slow at the earliest.
    pub(crate) since: Time,
    /// The time of its batches over that on its siblings, or by the profiles.
    pub(crate) factor: f64,
    /// The models whose batches take longer, the most slowed first.
    pub(crate) models: Vec<SlowedModel>,
    /// The models whose batches were compared and take no longer.
    pub(crate) spared: BTreeSet<ModelId>,
}

/// A model whose batches take longer on a device.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct SlowedModel {
    /// The model.
    pub(crate) model: ModelId,
    /// The time of its batches over that on the siblings, or by the profile.
    pub(crate) factor: f64,
    /// The number of its batches on the device.
    pub(crate) batches: u64,
    /// The mean time of a batch.
    pub(crate) batch_time: Duration,
    /// The number of siblings that it was compared with; 0 if with the profile.
    pub(crate) siblings: usize,
}

impl DeviceSpeeds {
    /// Adds the batches of a replica in a period.
    pub(crate) fn add(
        &mut self,
        now: Time,
        (device, kind): (&DeviceId, &DeviceKind),
        model: &ModelId,
        work: ComputedWork,
        (expected, is_alone): (f64, bool),
    ) {
        let period = Period {
            end: now,
            work,
            expected,
            is_alone,
        };
        let observed = self.devices.entry(device.clone());
        let observed = observed.or_insert_with(|| ObservedDevice {
            kind: kind.clone(),
            models: BTreeMap::new(),
        });
        let periods = observed.models.entry(model.clone()).or_default();
        periods.push_back(period);
    }

    /// Ends a period: forgets what is too old, and finds the devices that are slow now. `trusts` says whether the profile of a model on a kind of
    /// device is of the inputs that come.
    pub(crate) fn end_period(
        &mut self,
        now: Time,
        trusts: impl Fn(&ModelId, &DeviceKind) -> bool,
    ) -> Vec<SlowDevice> {
        let is_old = |period: &mut Period| now.saturating_since(period.end) >= WINDOW;
        for device in self.devices.values_mut() {
            for periods in device.models.values_mut() {
                while periods.pop_front_if(is_old).is_some() {}
            }
            device.models.retain(|_, periods| !periods.is_empty());
        }
        self.devices.retain(|_, device| !device.models.is_empty());
        let by_model = self.by_model();
        let mut slow = Vec::new();
        for (id, device) in &self.devices {
            let compared = compare(id, device, &by_model, &trusts);
            // Models that are not slowed count as well: one slow model alone is no slow device.
            let (mut compute, mut reference) = (0.0, 0.0);
            for (model, seconds) in &compared {
                compute += seconds;
                reference += seconds / model.factor;
            }
            let limit = if self.slow.contains_key(id) {
                RECOVERED
            } else {
                SLOW
            };
            if reference <= 0.0 || compute / reference < limit {
                continue;
            }
            let compared = compared.into_iter().map(|(model, _)| model);
            let (mut models, spared): (Vec<SlowedModel>, Vec<SlowedModel>) =
                compared.partition(|model| model.factor >= RECOVERED);
            models.sort_by(|a, b| b.factor.total_cmp(&a.factor));
            slow.push(SlowDevice {
                device: id.clone(),
                kind: device.kind.clone(),
                since: self.slow.get(id).copied().unwrap_or_else(|| before(now)),
                factor: compute / reference,
                models,
                spared: spared.into_iter().map(|one| one.model).collect(),
            });
        }
        let dated = slow.iter().map(|slow| (slow.device.clone(), slow.since));
        self.slow = dated.collect();
        slow
    }

    /// Returns the batches of each model by kind of device and device, as far as there are enough.
    fn by_model(&self) -> BTreeMap<(ModelId, DeviceKind), Vec<(DeviceId, Sums)>> {
        let mut all: BTreeMap<_, Vec<(DeviceId, Sums)>> = BTreeMap::new();
        for (id, device) in &self.devices {
            for (model, periods) in &device.models {
                let sums = sums(periods);
                if sums.is_enough() {
                    let key = (model.clone(), device.kind.clone());
                    all.entry(key).or_default().push((id.clone(), sums));
                }
            }
        }
        all
    }
}

/// Compares the models of a device with their batches on siblings, or with their profiles. Returns each with its compute time in seconds.
fn compare(
    id: &DeviceId,
    device: &ObservedDevice,
    by_model: &BTreeMap<(ModelId, DeviceKind), Vec<(DeviceId, Sums)>>,
    trusts: impl Fn(&ModelId, &DeviceKind) -> bool,
) -> Vec<(SlowedModel, f64)> {
    let compared = device.models.iter().filter_map(|(model, periods)| {
        let all = sums(periods);
        if !all.is_enough() {
            return None;
        }
        let key = (model.clone(), device.kind.clone());
        let siblings = by_model.get(&key).into_iter().flatten();
        let is_like = |other: &Sums| {
            let ratio = other.mean_rows() / all.mean_rows();
            (1.0 / MAX_ROWS_RATIO..=MAX_ROWS_RATIO).contains(&ratio)
        };
        let siblings = siblings.filter(|(other, sums)| other != id && is_like(sums));
        let mut ratios: Vec<f64> = siblings.map(|(_, sums)| sums.ratio()).collect();
        ratios.sort_by(f64::total_cmp);
        let (sums, factor) = match ratios.len() {
            0 => {
                let alone = alone(periods);
                if !alone.is_enough() || !trusts(model, &device.kind) {
                    return None;
                }
                (alone, alone.ratio())
            }
            // The median, the slower one of two in the middle.
            count => (all, all.ratio() / ratios[count / 2]),
        };
        let slowed = SlowedModel {
            model: model.clone(),
            factor,
            batches: sums.batches,
            batch_time: sums.batch_time(),
            siblings: ratios.len(),
        };
        Some((slowed, sums.compute))
    });
    compared.collect()
}

/// Returns the begin of what is looked at.
fn before(now: Time) -> Time {
    Time::ZERO + now.saturating_since(Time::ZERO).saturating_sub(WINDOW)
}

fn sums(periods: &VecDeque<Period>) -> Sums {
    let mut sums = Sums::default();
    for period in periods {
        sums.add(period.work, period.expected);
    }
    sums
}

fn alone(periods: &VecDeque<Period>) -> Sums {
    let mut sums = Sums::default();
    for period in periods.iter().filter(|period| period.is_alone) {
        sums.add(period.work, 1.0);
    }
    sums
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Devices of one kind.
    #[derive(Default)]
    struct Observed {
        speeds: DeviceSpeeds,
        now: Time,
    }

    impl Observed {
        /// Lets five seconds pass in which each of these has 50 batches of 4 rows, with its slowdown and the one that is expected.
        fn pass(&mut self, all: &[(&str, &str, f64, f64)], trusts: bool) -> Vec<SlowDevice> {
            self.now += Duration::from_secs(5);
            let kind = "T4".parse().unwrap();
            for (device, model, slowdown, expected) in all {
                let alone = Duration::from_millis(500);
                let work = ComputedWork {
                    batches: 50,
                    rows: 200,
                    compute: alone.mul_f64(*slowdown),
                    alone,
                };
                let device = device.parse().unwrap();
                let is_alone = all.iter().filter(|other| other.0 == all[0].0).count() == 1;
                self.speeds.add(
                    self.now,
                    (&device, &kind),
                    &model.parse().unwrap(),
                    work,
                    (*expected, is_alone),
                );
            }
            self.speeds.end_period(self.now, |_, _| trusts)
        }

        fn pass_often(&mut self, all: &[(&str, &str, f64, f64)], trusts: bool) -> Vec<SlowDevice> {
            for _ in 0..4 {
                self.pass(all, trusts);
            }
            self.pass(all, trusts)
        }
    }

    #[test]
    fn a_device_that_is_slower_than_its_siblings_is_found_with_its_models_until_it_recovers() {
        let mut observed = Observed::default();
        let with = |factor: f64| {
            [
                ("n/0", "a", 1.0, 1.0),
                ("n/1", "a", factor, 1.0),
                ("n/1", "b", factor, 1.0),
                ("m/0", "b", 1.0, 1.0),
            ]
        };
        assert_eq!(observed.pass_often(&with(1.05), true), []);
        let slow = observed.pass_often(&with(1.5), true);
        assert_eq!(slow.len(), 1);
        assert_eq!(slow[0].device, "n/1".parse().unwrap());
        assert!((slow[0].factor - 1.5).abs() < 1e-6, "{slow:?}");
        let models: Vec<String> = slow[0].models.iter().map(|m| m.model.to_string()).collect();
        assert_eq!(models, ["a:1", "b:1"]);
        assert_eq!(slow[0].models[0].siblings, 1);
        assert_eq!(slow[0].models[0].batch_time, Duration::from_millis(15));
        // It does not flap around the limit.
        assert_eq!(observed.pass_often(&with(1.25), true).len(), 1);
        assert_eq!(observed.pass_often(&with(1.1), true), []);
        assert_eq!(observed.pass_often(&with(1.25), true), []);
    }

    #[test]
    fn a_wrong_profile_a_neighbour_and_one_slow_model_of_several_are_no_slow_device() {
        let mut observed = Observed::default();
        let wrong = [("n/0", "a", 2.0, 1.0), ("n/1", "a", 2.1, 1.0)];
        assert_eq!(observed.pass_often(&wrong, true), []);
        let mut observed = Observed::default();
        let beside = [("n/0", "a", 1.0, 1.0), ("n/1", "a", 1.6, 1.6)];
        assert_eq!(observed.pass_often(&beside, true), []);
        let mut observed = Observed::default();
        let one = [
            ("n/0", "a", 1.0, 1.0),
            ("n/0", "b", 1.0, 1.0),
            ("n/1", "a", 1.4, 1.0),
            ("n/1", "b", 1.0, 1.0),
        ];
        assert_eq!(observed.pass_often(&one, true), []);
    }

    #[test]
    fn a_device_without_siblings_is_compared_with_profiles_that_are_trusted() {
        let mut observed = Observed::default();
        let single = [("n/0", "a", 1.5, 1.0)];
        assert_eq!(observed.pass_often(&single, false), []);
        let slow = observed.pass_often(&single, true);
        assert_eq!(slow[0].models[0].siblings, 0);
        // Once nothing runs, nothing is known.
        assert_eq!(observed.pass_often(&[], true), []);
        assert!(observed.speeds.devices.is_empty());
    }

    #[test]
    fn few_batches_say_nothing() {
        let mut observed = Observed::default();
        observed.now += Duration::from_secs(5);
        let kind = "T4".parse().unwrap();
        for (device, compute) in [("n/0", 10), ("n/1", 30)] {
            let work = ComputedWork {
                batches: 19,
                rows: 19,
                compute: Duration::from_millis(compute),
                alone: Duration::from_millis(10),
            };
            let (device, model) = (device.parse().unwrap(), "a".parse().unwrap());
            let speeds = &mut observed.speeds;
            speeds.add(observed.now, (&device, &kind), &model, work, (1.0, true));
        }
        assert_eq!(observed.speeds.end_period(observed.now, |_, _| true), []);
    }
}
