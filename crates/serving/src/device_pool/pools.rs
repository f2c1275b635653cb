//! The pools of all devices, and what concerns several of them: when to decide for which, and the models that wait for weights.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
};

use packhorse_cluster::{Priority, Time};

use super::{CopyPlace, DevicePool};
use crate::{
    BatchKey, DeviceKey, ModelKey, PoolMember, ReplicaKey, replica::HeldBatch, wakes::Wakes,
};

/// The pools of all devices.
#[derive(Debug, Default)]
pub(crate) struct DevicePools {
    pools: BTreeMap<DeviceKey, DevicePool>,
    /// The times at which to decide for devices.
    wakes: Wakes<DeviceKey>,
    /// The times at which copies that workers had no room for are tried again, with their devices.
    retries: BTreeSet<(Time, DeviceKey)>,
    /// The models with waiting requests whose weights no device has or gets, in the order in which they are copied.
    cold: BTreeSet<(ColdRank, ModelKey)>,
    /// The models in files only that are loaded for those who come later, with the times since which they are asked for.
    asked_for: BTreeSet<(Time, ModelKey)>,
    /// The models that devices are reserved for.
    reserved: BTreeSet<ModelKey>,
    /// The devices at which requests wait of which none would be in time, or for which others are reserved.
    unattended: BTreeSet<DeviceKey>,
}

/// The place of a model among those that wait for weights: the highest priority comes first, and then the one whose first request is due first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ColdRank {
    pub(crate) priority: Reverse<Priority>,
    pub(crate) due: Time,
}

impl DevicePools {
    pub(crate) fn get(&self, device: DeviceKey) -> Option<&DevicePool> {
        self.pools.get(&device)
    }

    pub(crate) fn get_mut(&mut self, device: DeviceKey) -> Option<&mut DevicePool> {
        self.pools.get_mut(&device)
    }

    /// Returns the devices with members.
    pub(crate) fn devices(&self) -> Vec<DeviceKey> {
        self.pools.keys().copied().collect()
    }

    /// Adds a member to the pool of a device. Returns false if its weights are not there, also where it was thought that they are: there is no room.
    pub(crate) fn join(
        &mut self,
        now: Time,
        device: DeviceKey,
        replica: ReplicaKey,
        model: (ModelKey, Priority),
        parameters: &PoolMember,
    ) -> bool {
        let pool = self.pools.entry(device).or_default();
        pool.join(now, replica, model, parameters)
    }

    /// Gives a member no further batches. Its weights stay where they are.
    pub(crate) fn withdraw(&mut self, device: DeviceKey, replica: ReplicaKey) {
        let Some(pool) = self.pools.get_mut(&device) else {
            return;
        };
        pool.wait_no_longer(replica);
        if pool.reserved() == Some(replica) {
            self.reserve(device, None);
        }
    }

    /// Removes a member, whose weights leave the device. Its batches that are away still have their room.
    pub(crate) fn leave(&mut self, device: DeviceKey, replica: ReplicaKey) {
        self.withdraw(device, replica);
        let Some(pool) = self.pools.get_mut(&device) else {
            return;
        };
        pool.leave(replica);
        if pool.members.is_empty() {
            self.schedule(device, None);
            self.pools.remove(&device);
        }
    }

    /// Reserves a device for a member, or for none.
    pub(crate) fn reserve(&mut self, device: DeviceKey, member: Option<(ReplicaKey, ModelKey)>) {
        let Some(pool) = self.pools.get_mut(&device) else {
            return;
        };
        if let Some((_, model)) = pool.reserve(member) {
            self.reserved.remove(&model);
        }
        if let Some((_, model)) = member {
            self.reserved.insert(model);
        }
    }

    /// Returns true if a device is reserved for a model.
    pub(crate) fn is_reserved(&self, model: ModelKey) -> bool {
        self.reserved.contains(&model)
    }

    /// Notes that a member got a batch that uses so much of the device.
    pub(crate) fn take(
        &mut self,
        now: Time,
        device: DeviceKey,
        replica: ReplicaKey,
        held: HeldBatch,
        utilization: f64,
    ) {
        if let Some(pool) = self.pools.get_mut(&device) {
            pool.take(now, replica, held, utilization);
        }
    }

    /// Notes that a batch is no longer away. Returns true if it was one of the device's pool.
    pub(crate) fn batch_ended(&mut self, device: DeviceKey, batch: BatchKey) -> bool {
        let pool = self.pools.get_mut(&device);
        pool.is_some_and(|pool| pool.batch_ended(batch))
    }

    /// Begins to decide for a device.
    pub(crate) fn begin_decision(&mut self, device: DeviceKey) {
        self.schedule(device, None);
        if let Some(pool) = self.pools.get_mut(&device) {
            (pool.is_deciding, pool.is_blocked) = (true, false);
        }
    }

    /// Ends it, and sets the time at which to decide for the device next.
    pub(crate) fn end_decision(&mut self, now: Time, device: DeviceKey, wake: Option<Time>) {
        self.schedule(device, wake);
        let Some(pool) = self.pools.get_mut(&device) else {
            return;
        };
        (pool.is_deciding, pool.is_blocked) = (false, pool.is_full(now));
        if !pool.is_attended() && !pool.waiting.is_empty() {
            self.unattended.insert(device);
        }
    }

    /// Returns true if requests wait at a device that will not be decided for until an event comes.
    pub(crate) fn has_unattended(&self) -> bool {
        !self.unattended.is_empty()
    }

    /// Returns true if requests wait at this device, and it will not be decided for until an event comes.
    pub(crate) fn is_unattended(&self, device: DeviceKey) -> bool {
        self.unattended.contains(&device)
    }

    /// Sets the time at which to decide for a device next; `None` if only an event can change anything.
    pub(crate) fn schedule(&mut self, device: DeviceKey, wake: Option<Time>) {
        let Some(pool) = self.pools.get_mut(&device) else {
            return;
        };
        self.unattended.remove(&device);
        self.wakes.set(device, &mut pool.wake, wake);
    }

    /// Notes that a copy for which a device had no room is tried again at this time.
    pub(crate) fn retry_at(&mut self, at: Time, device: DeviceKey) {
        self.retries.insert((at, device));
    }

    /// Returns the time at which the next copy is tried again.
    pub(crate) fn next_retry(&self) -> Option<Time> {
        self.retries.first().map(|first| first.0)
    }

    /// Forgets the times to try copies again that have come. Returns true if there are any.
    pub(crate) fn take_due_retries(&mut self, now: Time) -> bool {
        let mut is_due = false;
        while self.next_retry().is_some_and(|at| at <= now) {
            self.retries.pop_first();
            is_due = true;
        }
        is_due
    }

    /// Returns the times at which to decide for devices.
    pub(crate) fn wakes(&self) -> &Wakes<DeviceKey> {
        &self.wakes
    }

    /// Returns the devices on which fewer members are on their way from memory, or from files, with what a further one finds there.
    pub(crate) fn places_for_copies(
        &self,
        now: Time,
        fewer_than: usize,
    ) -> BTreeMap<DeviceKey, CopyPlace> {
        let asked_for = !self.asked_for.is_empty();
        let place = |(device, pool): (&DeviceKey, &DevicePool)| {
            Some((*device, pool.place_for_copy(now, fewer_than, asked_for)?))
        };
        self.pools.iter().filter_map(place).collect()
    }

    /// Returns the models with waiting requests whose weights no device has or gets, in the order in which they are copied.
    pub(crate) fn cold(&self) -> impl Iterator<Item = (ColdRank, ModelKey)> {
        self.cold.iter().copied()
    }

    /// Returns true if a model waits for weights, or was asked for in vain.
    pub(crate) fn is_load_wanted(&self) -> bool {
        !(self.cold.is_empty() && self.asked_for.is_empty())
    }

    /// Sets the place of a model among those that wait for weights, which has `own` until now; `None` if it waits for none.
    pub(crate) fn set_cold(
        &mut self,
        model: ModelKey,
        own: &mut Option<ColdRank>,
        rank: Option<ColdRank>,
    ) {
        let before = std::mem::replace(own, rank);
        if before != rank {
            before.map(|before| self.cold.remove(&(before, model)));
            rank.map(|rank| self.cold.insert((rank, model)));
        }
    }

    /// Returns the models that are loaded for those who come later, the one that is asked for since the longest time first.
    pub(crate) fn asked_for(&self) -> &BTreeSet<(Time, ModelKey)> {
        &self.asked_for
    }

    /// Notes that a model is asked for since a time, or no longer.
    pub(crate) fn set_asked_for(&mut self, since: Time, model: ModelKey, is_asked_for: bool) {
        if is_asked_for {
            self.asked_for.insert((since, model));
        } else {
            self.asked_for.remove(&(since, model));
        }
    }

    /// Takes the pools out whose members are of these models: all members of a pool are, or none is.
    pub(crate) fn split_off(&mut self, models: &BTreeSet<ModelKey>) -> Self {
        let is_of_models = |pool: &DevicePool| {
            let mut members = pool.members.values();
            members.any(|member| models.contains(&member.model))
        };
        let pools = self.pools.extract_if(.., |_, pool| is_of_models(pool));
        let pools: BTreeMap<_, _> = pools.collect();
        let wakes = self.wakes.split_off(|device| pools.contains_key(&device));
        let retries = { &mut self.retries }.extract_if(.., |(_, key)| pools.contains_key(key));
        let retries = retries.collect();
        let cold = { &mut self.cold }.extract_if(.., |(_, key)| models.contains(key));
        let cold = cold.collect();
        let asked_for = { &mut self.asked_for }.extract_if(.., |(_, key)| models.contains(key));
        let asked_for = asked_for.collect();
        let reserved = { &mut self.reserved }.extract_if(.., |model| models.contains(model));
        let reserved = reserved.collect();
        let unattended = { &mut self.unattended }.extract_if(.., |key| pools.contains_key(key));
        let unattended = unattended.collect();
        Self {
            pools,
            wakes,
            retries,
            cold,
            asked_for,
            reserved,
            unattended,
        }
    }

    /// Takes over the pools of others.
    pub(crate) fn absorb(&mut self, mut others: Self) {
        self.pools.append(&mut others.pools);
        self.wakes.absorb(others.wakes);
        self.retries.append(&mut others.retries);
        self.cold.append(&mut others.cold);
        self.asked_for.append(&mut others.asked_for);
        self.reserved.append(&mut others.reserved);
        self.unattended.append(&mut others.unattended);
    }
}
