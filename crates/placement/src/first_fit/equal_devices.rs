//! Sets of equal devices, so that a search need not consider every device: on a large cluster most devices are unused or full.

use std::collections::{BTreeMap, BTreeSet};

use packhorse_cluster::{ByteCount, DeviceIndex};

/// The state by which devices are equal, ordered by the busy fraction of their time.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct DeviceState {
    /// The bits of the busy fraction, which have the order of the fraction because it is not negative.
    busy: u64,
    memory: ByteCount,
    kind: usize,
}

impl DeviceState {
    /// Creates the state from the busy fraction of the time, the free memory and the index of the device's kind.
    pub(super) fn new(busy: f64, memory: ByteCount, kind: usize) -> Self {
        Self {
            busy: busy.to_bits(),
            memory,
            kind,
        }
    }
}

/// The devices by their state.
#[derive(Default)]
pub(super) struct EqualDevices(BTreeMap<DeviceState, BTreeSet<DeviceIndex>>);

impl EqualDevices {
    /// Adds a device.
    pub(super) fn insert(&mut self, state: DeviceState, device: DeviceIndex) {
        self.0.entry(state).or_default().insert(device);
    }

    /// Removes a device.
    pub(super) fn remove(&mut self, state: DeviceState, device: DeviceIndex) {
        let set = self.0.get_mut(&state);
        let set = set.expect("every device is in the set of its state");
        set.remove(&device);
        if set.is_empty() {
            self.0.remove(&state);
        }
    }

    /// Returns the number of sets.
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns the devices of each set that is at most `busy`, by index.
    pub(super) fn up_to(
        &self,
        busy: f64,
    ) -> impl Iterator<Item = impl Iterator<Item = DeviceIndex>> {
        let sets = self.0.iter();
        sets.take_while(move |(state, _)| f64::from_bits(state.busy) <= busy)
            .map(|(_, devices)| devices.iter().copied())
    }
}
