//! The devices of models that are overloaded.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use packhorse_cluster::Time;
use rustc_hash::FxHashMap;

use crate::{DeviceKey, ModelKey};

/// The time for which a model counts as overloaded after it was marked.
const OVERLOAD_TIME: Duration = Duration::from_secs(1);

/// The overloaded models that have replicas on each device.
#[derive(Clone, Debug, Default)]
pub(crate) struct OverloadedModels {
    by_device: BTreeMap<DeviceKey, OnDevice>,
}

/// The overloaded models of a device, of which there may be very many.
#[derive(Clone, Debug, Default)]
struct OnDevice {
    /// The time until which each counts as overloaded.
    until: FxHashMap<ModelKey, Time>,
    /// The same, by time.
    by_time: BTreeSet<(Time, ModelKey)>,
}

impl OnDevice {
    fn mark(&mut self, model: ModelKey, until: Time) {
        self.remove(model);
        self.until.insert(model, until);
        self.by_time.insert((until, model));
    }

    fn remove(&mut self, model: ModelKey) {
        if let Some(until) = self.until.remove(&model) {
            self.by_time.remove(&(until, model));
        }
    }

    /// Removes the models whose time has passed.
    fn forget(&mut self, now: Time) {
        while let Some(&(_, model)) = self.by_time.first().filter(|first| first.0 <= now) {
            self.remove(model);
        }
    }
}

impl OverloadedModels {
    /// Marks a model with replicas on these devices as overloaded. Returns the time at which the mark ends.
    pub(crate) fn mark(
        &mut self,
        now: Time,
        model: ModelKey,
        devices: impl Iterator<Item = DeviceKey>,
    ) -> Time {
        let until = now + OVERLOAD_TIME;
        for device in devices {
            let overloaded = self.by_device.entry(device).or_default();
            overloaded.forget(now);
            overloaded.mark(model, until);
        }
        until
    }

    /// Returns true if a mark that ends at this time is to be made again, so that there is no gap while an overload lasts.
    pub(crate) fn is_due(now: Time, until: Time) -> bool {
        until.saturating_since(now) <= OVERLOAD_TIME / 2
    }

    /// Removes the mark of a model from a device on which it has no replica any more.
    pub(crate) fn leave(&mut self, model: ModelKey, device: DeviceKey) {
        if let Some(overloaded) = self.by_device.get_mut(&device) {
            overloaded.remove(model);
            if overloaded.until.is_empty() {
                self.by_device.remove(&device);
            }
        }
    }

    /// Takes the devices out on which models are marked. All models that are marked on a device are of these, or none is.
    pub(crate) fn split_off(&mut self, models: &BTreeSet<ModelKey>) -> Self {
        let is_of_models = |overloaded: &OnDevice| {
            let mut marked = overloaded.until.keys();
            marked.any(|model| models.contains(model))
        };
        let by_device = self
            .by_device
            .extract_if(.., |_, overloaded| is_of_models(overloaded));
        Self {
            by_device: by_device.collect(),
        }
    }

    /// Takes over the devices of others.
    pub(crate) fn absorb(&mut self, mut others: Self) {
        self.by_device.append(&mut others.by_device);
    }

    /// Returns true if a model other than this one is overloaded on the device.
    pub(crate) fn shares_device_with_overloaded(
        &self,
        now: Time,
        model: ModelKey,
        device: DeviceKey,
    ) -> bool {
        self.by_device.get(&device).is_some_and(|overloaded| {
            let last = overloaded.by_time.iter().rev();
            let mut others = last.filter(|(_, other)| *other != model);
            others.next().is_some_and(|(until, _)| *until > now)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEVICE: DeviceKey = DeviceKey(0);

    #[test]
    fn a_model_counts_as_overloaded_on_its_devices_to_others_and_for_a_while() {
        let mut models = OverloadedModels::default();
        let (overloaded, other) = (ModelKey(0), ModelKey(1));
        models.mark(Time::ZERO, overloaded, [DEVICE, DeviceKey(2)].into_iter());
        assert!(models.shares_device_with_overloaded(Time::ZERO, other, DEVICE));
        assert!(
            !models.shares_device_with_overloaded(Time::ZERO, overloaded, DEVICE),
            "it is itself"
        );
        assert!(!models.shares_device_with_overloaded(Time::ZERO, other, DeviceKey(1)));
        assert!(
            !models.shares_device_with_overloaded(Time::ZERO + OVERLOAD_TIME, other, DEVICE),
            "long ago"
        );
    }
}
