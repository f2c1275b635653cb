//! Which devices serve a model that is short.

use std::{collections::BTreeMap, time::Duration};

use packhorse_cluster::Time;

use crate::{DeviceKey, ModelKey};

/// So long a model counts as short after it was.
const LASTS: Duration = Duration::from_secs(1);

/// By device, the models that have replicas there and are short, and until when they count as short.
#[derive(Clone, Debug, Default)]
pub(crate) struct Shortages {
    by_device: BTreeMap<DeviceKey, BTreeMap<ModelKey, Time>>,
}

impl Shortages {
    /// A model with replicas on these devices is short. Says from when on it is time to note it again: before what is noted ends,
    /// so that there is no gap.
    pub(crate) fn note(
        &mut self,
        now: Time,
        model: ModelKey,
        devices: impl Iterator<Item = DeviceKey>,
    ) -> Time {
        let until = now + LASTS;
        for device in devices {
            let short = self.by_device.entry(device).or_default();
            short.retain(|_, until| *until > now);
            short.insert(model, until);
        }
        now + LASTS / 2
    }

    /// Whether another model than this one is short on the device.
    pub(crate) fn beside(&self, now: Time, model: ModelKey, device: DeviceKey) -> bool {
        self.by_device.get(&device).is_some_and(|short| {
            let mut others = short.iter().filter(|(other, _)| **other != model);
            others.any(|(_, until)| *until > now)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: DeviceKey = DeviceKey(0);

    #[test]
    fn a_model_is_short_on_its_devices_beside_others_and_for_a_while() {
        let mut shortages = Shortages::default();
        let (short, other) = (ModelKey(0), ModelKey(1));
        shortages.note(Time::ZERO, short, [HERE, DeviceKey(2)].into_iter());
        assert!(shortages.beside(Time::ZERO, other, HERE));
        assert!(!shortages.beside(Time::ZERO, short, HERE), "it is itself");
        assert!(!shortages.beside(Time::ZERO, other, DeviceKey(1)));
        assert!(
            !shortages.beside(Time::ZERO + LASTS, other, HERE),
            "long ago"
        );
    }
}
