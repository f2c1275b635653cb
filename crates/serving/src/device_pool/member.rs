//! A replica in a pool, and the order in which those that are not needed leave the device.

use std::{collections::BTreeSet, time::Duration};

use packhorse_cluster::{Priority, Time};

use crate::{ModelKey, ReplicaKey};

/// A replica in a pool.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Member {
    pub(crate) model: ModelKey,
    pub(super) priority: Priority,
    /// The bytes of its weights.
    pub(super) weights: u64,
    /// The time to bring them to the device.
    pub(super) load: Duration,
    /// True if they are in a file only, or come from there.
    pub(super) on_disk: bool,
    pub(crate) residency: Residency,
    /// The time at which it last got a batch, or its weights.
    pub(super) used: Time,
    /// The number of its batches that are away.
    pub(super) away: u32,
    /// True if it got a batch since its weights came.
    pub(super) served: bool,
    /// True if its weights left for others before it got a batch.
    pub(super) left_in_vain: bool,
    /// The time until which it is not copied, because its worker had no room for it.
    pub(super) refused_until: Time,
    /// The time at which its weights should be there, if they come from a file.
    pub(super) due: Time,
    /// Its place among those that may make room.
    pub(super) evictable: Option<Evictable>,
}

/// The place of a member's weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Residency {
    /// In the memory of the node, or in a file.
    Away,
    /// On their way to the device.
    Loading,
    /// On the device.
    Resident,
}

/// The place of a member among those that may make room: those leave first for which nothing waits, and among them those of the lowest priority, and then the
/// one that was not used for the longest time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Evictable {
    pub(super) waits: bool,
    pub(super) priority: Priority,
    pub(super) used: Time,
    pub(super) replica: ReplicaKey,
}

/// The members of a pool that may make room, in order.
#[derive(Debug, Default)]
pub(super) struct EvictableMembers {
    order: BTreeSet<Evictable>,
    /// The bytes of their weights.
    bytes: u64,
}

impl EvictableMembers {
    /// Changes the place of a member with so many bytes of weights; `None` if it makes no room.
    pub(super) fn set(
        &mut self,
        own: &mut Option<Evictable>,
        place: Option<Evictable>,
        weights: u64,
    ) {
        if let Some(before) = std::mem::replace(own, place) {
            self.order.remove(&before);
            self.bytes -= weights;
        }
        if let Some(place) = place {
            self.order.insert(place);
            self.bytes += weights;
        }
    }

    /// Returns the bytes of the weights of all of them.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns the one that makes room first.
    pub(super) fn first(&self) -> Option<ReplicaKey> {
        self.order.first().map(|first| first.replica)
    }

    /// Returns those for which nothing waits.
    pub(super) fn waited_for_by_none(&self) -> impl Iterator<Item = &Evictable> {
        self.order.iter().take_while(|evictable| !evictable.waits)
    }
}
