//! Devices by what is left of them, so that a search need not look at every one: on a large cluster most are untouched or full, and
//! those that look alike are one choice.

use std::collections::{BTreeMap, BTreeSet};

use packhorse_cluster::{ByteCount, DeviceIndex};

/// What tells a device from others, the least busy first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Look {
    /// The bits of a share that is not negative: in its order.
    busy: u64,
    memory: ByteCount,
    kind: usize,
}

impl Look {
    /// Of a device that is busy for this share of its time, with so much memory left, of the kind with this number.
    pub(super) fn new(busy: f64, memory: ByteCount, kind: usize) -> Self {
        Self {
            busy: busy.to_bits(),
            memory,
            kind,
        }
    }
}

/// The devices by their looks.
#[derive(Default)]
pub(super) struct Piles(BTreeMap<Look, BTreeSet<DeviceIndex>>);

impl Piles {
    pub(super) fn add(&mut self, look: Look, device: DeviceIndex) {
        self.0.entry(look).or_default().insert(device);
    }

    pub(super) fn remove(&mut self, look: Look, device: DeviceIndex) {
        let pile = self.0.get_mut(&look).expect("every device is in its pile");
        pile.remove(&device);
        if pile.is_empty() {
            self.0.remove(&look);
        }
    }

    /// How many piles there are.
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Of the piles that are at most so busy the devices, by index.
    pub(super) fn up_to(
        &self,
        busy: f64,
    ) -> impl Iterator<Item = impl Iterator<Item = DeviceIndex>> {
        let piles = self.0.iter();
        piles
            .take_while(move |(look, _)| f64::from_bits(look.busy) <= busy)
            .map(|(_, devices)| devices.iter().copied())
    }
}
