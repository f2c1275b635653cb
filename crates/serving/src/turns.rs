//! The turns of replicas that share a device in time, as a plan with duty cycles requires it.
//!
//! Of the time-shared replicas of a device one has a batch at a time, and then it is the turn of the next of them, in the order of
//! their keys, that has something to send. A turn that no replica takes costs no time, so that a cycle lasts as long as its batches
//! and no longer; the backend of Nexus does the same: it goes through its models back to back and does not wait a duty cycle out
//! (uwsampl/nexus, the backend's GPU executor). Replicas without a duty cycle compute beside them on the same device.
//!
//! The device must not idle while a batch is on its way. So a turn is a reservation of the device's time, from a batch's arrival at
//! its worker to its expected end, and a batch is sent as soon as it finds the device free when it arrives: while another one
//! computes, or, where it travels long, several others. Reservations are made in the order of turns. A batch that is late keeps its
//! device until it is back.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use packhorse_cluster::Time;

use crate::{BatchKey, DeviceKey, ModelKey, ReplicaKey, replica::HeldBatch, wakes::Wakes};

/// The devices that replicas share in time.
#[derive(Debug, Default)]
pub(crate) struct Turns {
    devices: BTreeMap<DeviceKey, SharedDevice>,
    /// The times at which turns are to be given.
    wakes: Wakes<DeviceKey>,
}

/// A device with time-shared replicas.
#[derive(Debug, Default)]
pub(crate) struct SharedDevice {
    /// The replicas that take turns, with their models.
    members: BTreeMap<ReplicaKey, ModelKey>,
    /// The replica that had the last turn; it may be gone.
    last: Option<ReplicaKey>,
    /// The batches of its time-shared replicas that have not come back, in the order of dispatch.
    away: Vec<HeldBatch>,
    wake: Option<Time>,
}

impl SharedDevice {
    /// Returns the members in the order of their next turns.
    pub(crate) fn in_turn(&self) -> Vec<(ReplicaKey, ModelKey)> {
        let split = |(replica, model): (&ReplicaKey, &ModelKey)| (*replica, *model);
        let after = |replica: &ReplicaKey| self.last.is_none_or(|last| *replica > last);
        let later = self.members.iter().filter(|member| after(member.0));
        let earlier = self.members.iter().filter(|member| !after(member.0));
        later.chain(earlier).map(split).collect()
    }

    /// Returns true if the members take turns: a replica that has nobody to share its device with waits for nobody.
    pub(crate) fn is_contended(&self) -> bool {
        self.members.len() > 1
    }

    /// Returns the times that are reserved for the batches of the members that have not come back.
    pub(crate) fn timeline(&self, now: Time) -> Timeline {
        let reserved = self.away.iter().map(|held| {
            // The end of a batch that is late is unknown.
            let end = if held.due > now { held.due } else { Time::MAX };
            let start = held.due.saturating_sub(held.compute);
            (start, end)
        });
        let mut reserved: Vec<_> = reserved.collect();
        reserved.sort_unstable();
        Timeline { reserved }
    }
}

/// The reserved times of a device.
#[derive(Debug)]
pub(crate) struct Timeline {
    /// The reservations from their start to their end, by start.
    reserved: Vec<(Time, Time)>,
}

impl Timeline {
    pub(crate) fn is_empty(&self) -> bool {
        self.reserved.is_empty()
    }

    /// Returns the end of the last reservation, if it is known.
    pub(crate) fn end(&self) -> Option<Time> {
        let ends = self.reserved.iter().map(|reserved| reserved.1);
        ends.filter(|end| *end < Time::MAX).max()
    }

    /// Returns the earliest time from `from` on at which the device is free for so long; `None` if no such time is known.
    pub(crate) fn earliest(&self, from: Time, time: Duration) -> Option<Time> {
        let mut start = from;
        for (reserved, end) in &self.reserved {
            if start + time <= *reserved {
                break;
            }
            start = start.max(*end);
        }
        (start < Time::MAX).then_some(start)
    }

    /// Reserves a time that is free.
    pub(crate) fn reserve(&mut self, start: Time, time: Duration) {
        let place = self.reserved.partition_point(|reserved| reserved.0 < start);
        self.reserved.insert(place, (start, start + time));
    }
}

impl Turns {
    pub(crate) fn devices(&self) -> Vec<DeviceKey> {
        self.devices.keys().copied().collect()
    }

    pub(crate) fn device(&self, key: DeviceKey) -> Option<&SharedDevice> {
        self.devices.get(&key)
    }

    /// Takes the devices out on which models take turns. All members of a device are of these models, or none is.
    pub(crate) fn split_off(&mut self, models: &BTreeSet<ModelKey>) -> Self {
        let is_of_models =
            |shared: &SharedDevice| shared.members.values().any(|model| models.contains(model));
        let devices = self
            .devices
            .extract_if(.., |_, shared| is_of_models(shared));
        let devices: BTreeMap<_, _> = devices.collect();
        let wakes = self.wakes.split_off(|device| devices.contains_key(&device));
        Self { devices, wakes }
    }

    /// Takes over the devices of others.
    pub(crate) fn absorb(&mut self, mut others: Self) {
        self.devices.append(&mut others.devices);
        self.wakes.absorb(others.wakes);
    }

    /// Adds a replica, with the batches that it holds, to those that take turns on a device.
    pub(crate) fn join(
        &mut self,
        device: DeviceKey,
        replica: ReplicaKey,
        model: ModelKey,
        held: impl Iterator<Item = HeldBatch>,
    ) {
        let shared = self.devices.entry(device).or_default();
        shared.members.insert(replica, model);
        shared.away.extend(held);
        shared.away.sort_by_key(|held| (held.due, held.batch));
    }

    /// Removes a replica from those that take turns on a device. Its batches that are away still have theirs.
    pub(crate) fn leave(&mut self, device: DeviceKey, replica: ReplicaKey) {
        let Some(shared) = self.devices.get_mut(&device) else {
            return;
        };
        shared.members.remove(&replica);
        if shared.members.is_empty() {
            self.schedule(device, None);
            self.devices.remove(&device);
        }
    }

    /// Notes that a replica took the turn.
    pub(crate) fn take(&mut self, device: DeviceKey, replica: ReplicaKey, batch: HeldBatch) {
        if let Some(shared) = self.devices.get_mut(&device) {
            shared.last = Some(replica);
            shared.away.push(batch);
        }
    }

    /// Notes that a batch is no longer away. Returns true if it was one of the device's time-shared replicas.
    pub(crate) fn batch_ended(&mut self, device: DeviceKey, batch: BatchKey) -> bool {
        let Some(shared) = self.devices.get_mut(&device) else {
            return false;
        };
        let Some(place) = shared.away.iter().position(|held| held.batch == batch) else {
            return false;
        };
        shared.away.remove(place);
        true
    }

    /// Sets the time at which turns on a device are to be given next; `None` if only an event can change anything.
    pub(crate) fn schedule(&mut self, device: DeviceKey, wake: Option<Time>) {
        let Some(shared) = self.devices.get_mut(&device) else {
            return;
        };
        self.wakes.set(device, &mut shared.wake, wake);
    }

    /// Returns the times at which turns are to be given.
    pub(crate) fn wakes(&self) -> &Wakes<DeviceKey> {
        &self.wakes
    }
}
