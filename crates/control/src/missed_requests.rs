//! The requests of a model that missed their SLO: how they ended, where their time went, and where they ran.

use std::{collections::BTreeMap, time::Duration};

use packhorse_cluster::DeviceId;

/// A part of a request's time between its arrival and its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RequestStage {
    /// The time until the request was complete and valid.
    Receive,
    /// The time until the weights of its model were on the device.
    Load,
    /// The time until the last request of its batch arrived.
    Batch,
    /// The time until its batch was sent, or until it ended without one.
    Queue,
    /// The time after it was sent in a batch that was not computed.
    Uncomputed,
    /// The transmission to the worker and back.
    Network,
    /// The time in the worker before its batch was handled.
    WorkerQueue,
    /// The copy into the device's memory.
    CopyIn,
    /// The computation.
    Compute,
    /// The copy out of the device's memory.
    CopyOut,
}

/// The way in which a request missed its SLO.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum MissCause {
    /// It was answered late.
    Late,
    /// It was refused on its arrival.
    Refused,
    /// Its deadline passed in the queue.
    Expired,
    /// Its worker was lost.
    Lost,
    /// Its batch failed.
    Failed,
}

/// The requests of a model that missed their SLO. All counts only grow; if one is lower than before, it has begun again from zero.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MissedRequests {
    /// The number of them by the way in which they missed it.
    pub causes: BTreeMap<MissCause, u64>,
    /// The sum of their times in each stage. Those that were refused spent none.
    pub stages: BTreeMap<RequestStage, Duration>,
    /// The number of them by the device of their last batch. Those without a batch have none.
    pub devices: BTreeMap<DeviceId, u64>,
}

impl MissedRequests {
    /// Adds a request that ended so, with its time in each stage and the device of its last batch.
    pub fn add(
        &mut self,
        cause: MissCause,
        stages: impl IntoIterator<Item = (RequestStage, Duration)>,
        device: Option<&DeviceId>,
    ) {
        *self.causes.entry(cause).or_default() += 1;
        if cause != MissCause::Refused {
            for (stage, time) in stages {
                let sum = self.stages.entry(stage).or_default();
                *sum = sum.saturating_add(time);
            }
        }
        if let Some(device) = device {
            match self.devices.get_mut(device) {
                Some(count) => *count += 1,
                None => {
                    self.devices.insert(device.clone(), 1);
                }
            }
        }
    }

    /// Returns the requests since an earlier reading. If a count is lower than before, counting has begun again, and all of it is new.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        let since = || {
            Some(Self {
                causes: difference(&self.causes, &before.causes, |a, b| a.checked_sub(*b))?,
                stages: difference(&self.stages, &before.stages, |a, b| a.checked_sub(*b))?,
                devices: difference(&self.devices, &before.devices, |a, b| a.checked_sub(*b))?,
            })
        };
        since().unwrap_or_else(|| self.clone())
    }

    /// Adds the requests of another period.
    pub(crate) fn merge(&mut self, other: &Self) {
        for (cause, count) in &other.causes {
            *self.causes.entry(*cause).or_default() += count;
        }
        for (stage, time) in &other.stages {
            *self.stages.entry(*stage).or_default() += *time;
        }
        for (device, count) in &other.devices {
            *self.devices.entry(device.clone()).or_default() += count;
        }
    }

    /// Returns the stage in which these requests spent most of their time, with its part of it, from 0 to 1.
    pub(crate) fn longest_stage(&self) -> Option<(RequestStage, f64)> {
        let total: Duration = self.stages.values().sum();
        let (stage, time) = self.stages.iter().max_by_key(|(_, time)| **time)?;
        (!total.is_zero()).then(|| (*stage, time.as_secs_f64() / total.as_secs_f64()))
    }

    /// Returns the device on which most of those ran that ran at all, with its part of them, from 0 to 1.
    pub(crate) fn main_device(&self) -> Option<(&DeviceId, f64)> {
        let total: u64 = self.devices.values().sum();
        let (device, count) = self.devices.iter().max_by_key(|(_, count)| **count)?;
        (total > 0).then(|| (device, *count as f64 / total as f64))
    }

    /// Returns the most frequent way in which they missed it, with its part of them, from 0 to 1.
    pub(crate) fn main_cause(&self) -> Option<(MissCause, f64)> {
        let total: u64 = self.causes.values().sum();
        let (cause, count) = self.causes.iter().max_by_key(|(_, count)| **count)?;
        (total > 0).then(|| (*cause, *count as f64 / total as f64))
    }
}

/// Returns the differences of all values; `None` if one is lower than before or no longer there. Values that have not changed are left out.
fn difference<K: Ord + Clone, V: Default + PartialEq>(
    now: &BTreeMap<K, V>,
    before: &BTreeMap<K, V>,
    subtract: impl Fn(&V, &V) -> Option<V>,
) -> Option<BTreeMap<K, V>> {
    if before.keys().any(|key| !now.contains_key(key)) {
        return None;
    }
    let zero = V::default();
    let mut changed = BTreeMap::new();
    for (key, value) in now {
        let difference = subtract(value, before.get(key).unwrap_or(&zero))?;
        if difference != zero {
            changed.insert(key.clone(), difference);
        }
    }
    Some(changed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_counted_by_cause_stage_and_device_and_a_new_count_is_all_new() {
        let device: DeviceId = "n/sim0".parse().unwrap();
        let ms = Duration::from_millis;
        let mut before = MissedRequests::default();
        before.add(
            MissCause::Late,
            [
                (RequestStage::Queue, ms(90)),
                (RequestStage::Compute, ms(10)),
            ],
            Some(&device),
        );
        let mut now = before.clone();
        now.add(MissCause::Refused, [(RequestStage::Receive, ms(1))], None);
        now.add(MissCause::Expired, [(RequestStage::Queue, ms(50))], None);
        let new = now.since(&before);
        let expected = [(MissCause::Refused, 1), (MissCause::Expired, 1)];
        assert_eq!(new.causes, BTreeMap::from(expected));
        assert_eq!(new.stages, BTreeMap::from([(RequestStage::Queue, ms(50))]));
        assert!(new.devices.is_empty());
        let (stage, part) = now.longest_stage().unwrap();
        assert_eq!(stage, RequestStage::Queue);
        assert!((part - 140.0 / 150.0).abs() < 1e-9);
        assert_eq!(now.main_device().unwrap().0, &device);
        assert_eq!(before.since(&now), before);
    }
}
