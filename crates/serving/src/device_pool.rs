//! The pools of devices: in each, many models share one device, and the engine decides which of them computes and whose weights the device holds.
//!
//! A member is a replica whose weights are *resident*, on the device, *warm*, in the memory of its node, *cold*, in a file only, or on their way. What
//! comes from files takes long, and keeps no copy from memory waiting. The device
//! is one server: the batches of all members that are away are counted together. Two of them compute side by side where the parts of
//! the multiprocessors that they use leave room for both, and one after the other otherwise.

mod for_refused;

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use packhorse_cluster::{Priority, Time};

use crate::{
    BatchKey, DeviceKey, ModelKey, PoolMember, ReplicaKey, refused_loads::SpareRoom,
    replica::HeldBatch, waiting_members::WaitingMembers, wakes::Wakes,
};

/// The most batches of a device that are away. More are on their way only where batches travel much longer than they compute.
const MOST_AWAY: usize = 16;

/// The most batches of a device that are away while one is late: the next one is there when it ends.
const MOST_AWAY_WHEN_LATE: usize = 2;

/// The time after which a member is copied again whose worker had no room for it.
const RETRY_AFTER: Duration = Duration::from_millis(50);

/// The sum of the used parts of the multiprocessors up to which batches compute side by side. Parts are measured, and sums of them round.
const WHOLE_DEVICE: f64 = 1.0 + 1e-9;

/// The pools of all devices.
#[derive(Debug, Default)]
pub(crate) struct DevicePools {
    pools: BTreeMap<DeviceKey, DevicePool>,
    /// The times at which to decide for devices.
    wakes: Wakes<DeviceKey>,
    /// The times at which copies that workers had no room for are tried again, with their devices.
    retries: BTreeSet<(Time, DeviceKey)>,
    /// The models with waiting requests whose weights no device has or gets.
    cold: BTreeSet<ModelKey>,
    /// The models in files only that are loaded for those who come later, with the times since which they are asked for.
    asked_for: BTreeSet<(Time, ModelKey)>,
    /// The models that devices are reserved for.
    reserved: BTreeSet<ModelKey>,
    /// The devices at which requests wait of which none would be in time, or for which others are reserved.
    unattended: BTreeSet<DeviceKey>,
}

/// The pool of a device.
#[derive(Debug, Default)]
pub(crate) struct DevicePool {
    /// The bytes that the weights of its members may have together.
    memory: u64,
    /// The bytes of those that are there, or on their way.
    used: u64,
    members: BTreeMap<ReplicaKey, Member>,
    /// The number of members of each priority.
    priorities: BTreeMap<Priority, usize>,
    /// The resident members with waiting requests.
    pub(crate) waiting: WaitingMembers,
    away: Vec<AwayBatch>,
    /// The members whose weights are on their way, in the order in which they were asked for.
    copies: Vec<ReplicaKey>,
    /// The times at which the last copy from memory, and the last load from a file, should be done.
    copied: Lanes<Time>,
    /// The time until which no member in use gives its room to a load for requests that were refused.
    paused_until: Time,
    wake: Option<Time>,
    /// True while the engine decides for the device.
    is_deciding: bool,
    /// True if no further batch may be sent before one is back.
    is_blocked: bool,
    /// The member whose batch the device gets next, with its model.
    reserved: Option<(ReplicaKey, ModelKey)>,
}

/// A replica in a pool.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Member {
    pub(crate) model: ModelKey,
    priority: Priority,
    /// The bytes of its weights.
    weights: u64,
    /// The time to bring them to the device.
    load: Duration,
    /// True if they are in a file only, or come from there.
    on_disk: bool,
    pub(crate) residency: Residency,
    /// The time at which it last got a batch, or its weights.
    used: Time,
    /// The number of its batches that are away.
    away: u32,
    /// True if it got a batch since its weights came.
    served: bool,
    /// The time until which it is not copied, because its worker had no room for it.
    refused_until: Time,
    /// The time at which its weights should be there, if they come from a file.
    due: Time,
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

/// The room and the time that a member which is copied next finds at a device.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CopyPlace {
    /// The present.
    now: Time,
    /// The bytes that are free, or can be made so.
    bytes: u64,
    /// The part of them for a load for requests that were refused.
    spare: SpareRoom,
    /// The times at which what comes before it from memory, and from files, should be there; `None` where too many wait.
    free_at: Lanes<Option<Time>>,
    /// True if the device has batches.
    pub(crate) is_busy: bool,
}

/// Something of each of the two ways on which weights come to a device. What takes long on one keeps nothing on the other waiting.
#[derive(Clone, Copy, Debug, Default)]
struct Lanes<T> {
    memory: T,
    disk: T,
}

impl<T> Lanes<T> {
    fn of(&self, on_disk: bool) -> &T {
        if on_disk { &self.disk } else { &self.memory }
    }

    fn of_mut(&mut self, on_disk: bool) -> &mut T {
        if on_disk {
            &mut self.disk
        } else {
            &mut self.memory
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct AwayBatch {
    held: HeldBatch,
    replica: ReplicaKey,
    utilization: f64,
}

/// The used part of a device's multiprocessors from each time on, ascending by time; the first is the present.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Room {
    used: [(Time, f64); MOST_AWAY + 1],
    len: usize,
}

impl Room {
    /// Returns the time from which on there is room for a batch that uses a part of the multiprocessors.
    pub(crate) fn from(&self, utilization: f64) -> Time {
        let fits = |&&(_, used): &&(Time, f64)| used == 0.0 || used + utilization <= WHOLE_DEVICE;
        let found = self.used[..self.len].iter().find(fits);
        found
            .map(|(at, _)| *at)
            .expect("nothing is used in the end")
    }

    /// Returns the room that is left beside one more batch, which uses a part of the multiprocessors until a time after the present.
    pub(crate) fn beside(&self, until: Time, utilization: f64) -> Self {
        let mut room = *self;
        let place = room.used[..room.len].partition_point(|(at, _)| *at < until);
        for (_, used) in &mut room.used[..place] {
            *used += utilization;
        }
        room.used.copy_within(place..room.len, place + 1);
        room.used[place] = (until, self.used[place - 1].1);
        room.len += 1;
        room
    }
}

impl DevicePool {
    pub(crate) fn member(&self, replica: ReplicaKey) -> Option<&Member> {
        self.members.get(&replica)
    }

    /// Returns the models of the members.
    pub(crate) fn models(&self) -> BTreeSet<ModelKey> {
        self.members.values().map(|member| member.model).collect()
    }

    #[cfg(test)]
    pub(crate) fn is_away(&self, replica: ReplicaKey) -> bool {
        self.members[&replica].residency == Residency::Away
    }

    /// Returns the member whose batch the device gets next.
    pub(crate) fn reserved(&self) -> Option<ReplicaKey> {
        self.reserved.map(|(replica, _)| replica)
    }

    /// Returns true if a decision is under way or scheduled, or none can be made before a batch is back.
    pub(crate) fn is_attended(&self) -> bool {
        self.is_deciding || self.wake.is_some() || self.is_blocked
    }

    /// Counts a member of a priority.
    fn add_priority(&mut self, priority: Priority) {
        *self.priorities.entry(priority).or_default() += 1;
        self.note_lowest();
    }

    /// Counts a member of a priority no longer.
    fn remove_priority(&mut self, priority: Priority) {
        let members = self.priorities.get_mut(&priority);
        let members = members.expect("members are counted");
        *members -= 1;
        if *members == 0 {
            self.priorities.remove(&priority);
        }
        self.note_lowest();
    }

    fn note_lowest(&mut self) {
        let lowest = self.priorities.first_key_value();
        self.waiting
            .set_lowest(lowest.map(|(priority, _)| *priority));
    }

    /// Changes the priority of a member, which waits no longer until it is told anew that requests of it wait.
    pub(crate) fn set_priority(&mut self, replica: ReplicaKey, priority: Priority) {
        let Some(member) = self.members.get_mut(&replica) else {
            return;
        };
        let before = std::mem::replace(&mut member.priority, priority);
        self.waiting.remove(replica);
        self.add_priority(priority);
        self.remove_priority(before);
    }

    fn is_full(&self, now: Time) -> bool {
        let late = self.away.iter().any(|away| away.held.due <= now);
        let most = if late { MOST_AWAY_WHEN_LATE } else { MOST_AWAY };
        self.away.len() >= most
    }

    /// Returns true if a further batch may be sent before one is back.
    pub(crate) fn has_room(&self, now: Time) -> bool {
        !self.waiting.is_empty() && !self.is_full(now)
    }

    /// Returns the times from which on there is room for a further batch.
    pub(crate) fn room(&self, now: Time) -> Room {
        let mut used = [(now, 0.0); MOST_AWAY + 1];
        let len = 1 + self.away.len();
        for (at, away) in used[1..len].iter_mut().zip(&self.away) {
            *at = (away.held.due.max(now), away.utilization);
        }
        used[1..len].sort_unstable_by_key(|(due, _)| *due);
        // From parts that end to parts that are left.
        let mut left = 0.0;
        for place in (1..len).rev() {
            let part = std::mem::replace(&mut used[place].1, left);
            left += part;
        }
        used[0].1 = left;
        Room { used, len }
    }

    /// Returns the time at which a member's weights should be there, if they were brought next; `None` if there is no room for them.
    pub(crate) fn loaded_at(&self, replica: ReplicaKey, place: &CopyPlace) -> Option<Time> {
        let member = self.members.get(&replica)?;
        let fits = member.residency == Residency::Away && member.weights <= place.bytes;
        let fits = fits && member.refused_until <= place.now;
        let free_at = (*place.free_at.of(member.on_disk))?;
        fits.then(|| free_at + member.load)
    }

    /// Returns the members that may make room, with their weights, if they have any: those that compute nothing and do not wait for a first batch that they could compute. So members that
    /// take the room from each other all get something done.
    fn evictable(&self) -> impl Iterator<Item = (ReplicaKey, u64)> {
        let members = self.members.iter();
        let idle = members.filter(|(replica, member)| {
            let is_there = member.residency == Residency::Resident && member.away == 0;
            let is_next = self.reserved() == Some(**replica);
            let makes_room = is_there && !is_next && member.weights > 0;
            makes_room && (member.served || !self.waiting.contains_hopeful(**replica))
        });
        idle.map(|(replica, member)| (*replica, member.weights))
    }

    /// Returns the bytes that are free, and these.
    fn free_beside(&self, evictable: u64) -> u64 {
        let memory = self.memory.saturating_add(evictable);
        memory.saturating_sub(self.used)
    }

    /// Begins to bring a member's weights, for which there is room. Returns the members that make room.
    pub(crate) fn load(&mut self, now: Time, replica: ReplicaKey) -> Vec<ReplicaKey> {
        let weights = self.members[&replica].weights;
        let evicted = self.make_room(weights);
        let member = self.members.get_mut(&replica).expect("just seen");
        member.residency = Residency::Loading;
        self.used += weights;
        let copied = self.copied.of_mut(member.on_disk);
        *copied = (*copied).max(now) + member.load;
        member.due = *copied;
        self.copies.push(replica);
        evicted
    }

    /// Has the members leave the device that were not used for the longest time, those without waiting requests and of the lowest priority first, until so many
    /// bytes fit.
    fn make_room(&mut self, bytes: u64) -> Vec<ReplicaKey> {
        let mut evicted = Vec::new();
        if self.used.saturating_add(bytes) <= self.memory {
            return evicted;
        }
        let order = |(replica, _): &(ReplicaKey, u64)| {
            let waits = self.waiting.contains(*replica);
            let Member { priority, used, .. } = self.members[replica];
            (waits, priority, used, *replica)
        };
        let mut idle: Vec<(ReplicaKey, u64)> = self.evictable().collect();
        idle.sort_by_key(order);
        for (replica, weights) in idle {
            if self.used.saturating_add(bytes) <= self.memory {
                break;
            }
            self.used -= weights;
            let member = self.members.get_mut(&replica).expect("it is a member");
            member.residency = Residency::Away;
            self.waiting.remove(replica);
            evicted.push(replica);
        }
        evicted
    }

    /// Notes that the weights of a member are there. Returns false if they were not asked for.
    pub(crate) fn loaded(&mut self, now: Time, replica: ReplicaKey) -> bool {
        let Some(place) = self.copies.iter().position(|copied| *copied == replica) else {
            return false;
        };
        self.copies.remove(place);
        let member = self.members.get_mut(&replica).expect("it is copied");
        (member.residency, member.used) = (Residency::Resident, now);
        (member.served, member.on_disk) = (false, false);
        self.forecast_disk(now);
        true
    }

    /// Notes where the weights of a member come from, and how long that takes.
    pub(crate) fn stored(&mut self, now: Time, replica: ReplicaKey, on_disk: bool, load: Duration) {
        let Some(member) = self.members.get_mut(&replica) else {
            return;
        };
        let is_coming = member.residency == Residency::Loading;
        (member.on_disk, member.load) = (on_disk, load);
        if is_coming {
            self.forecast_disk(now);
        }
    }

    /// Expects what is loaded from files anew, from now on: a load ends sooner or later than the last one of the same model.
    fn forecast_disk(&mut self, now: Time) {
        let mut at = now;
        for replica in &self.copies {
            let member = self.members.get_mut(replica).expect("it is copied");
            if member.on_disk {
                at += member.load;
                member.due = at;
            }
        }
        self.copied.disk = at;
    }

    /// Returns the time at which a member that is in a file only should be there, if it is loaded next, or is being loaded; `None` if it is elsewhere.
    pub(crate) fn due_from_disk(&self, now: Time, replica: ReplicaKey) -> Option<Time> {
        let member = self.members.get(&replica)?;
        match member.residency {
            Residency::Away if member.on_disk => Some(self.copied.disk.max(now) + member.load),
            Residency::Loading if member.on_disk => Some(member.due.max(now)),
            Residency::Away | Residency::Loading | Residency::Resident => None,
        }
    }

    /// Notes that the weights of a member are not there. Returns the time from which on they may be copied; `None` if that was known.
    pub(crate) fn unloaded(&mut self, now: Time, replica: ReplicaKey) -> Option<Time> {
        let member = self.members.get_mut(&replica)?;
        if member.residency == Residency::Away {
            return None;
        }
        // What left to make room for others may come back at once.
        let was_refused = member.residency == Residency::Loading;
        let wait = if member.on_disk {
            // Files are read for no more than half of the time in vain.
            RETRY_AFTER.max(member.load)
        } else {
            RETRY_AFTER
        };
        member.refused_until = if was_refused { now + wait } else { now };
        member.residency = Residency::Away;
        let retry = member.refused_until;
        self.used -= member.weights;
        self.copies.retain(|copied| *copied != replica);
        self.forecast_disk(now);
        Some(retry)
    }

    /// Sets the bytes that the weights of the members may have together. Returns the members that leave the device.
    pub(crate) fn set_memory(&mut self, memory: u64) -> Vec<ReplicaKey> {
        self.memory = memory;
        self.make_room(0)
    }
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
        (model, priority): (ModelKey, Priority),
        parameters: &PoolMember,
    ) -> bool {
        let pool = self.pools.entry(device).or_default();
        pool.memory = parameters.memory;
        let resident =
            parameters.resident && pool.used.saturating_add(parameters.weights) <= pool.memory;
        pool.used += if resident { parameters.weights } else { 0 };
        let member = Member {
            model,
            priority,
            weights: parameters.weights,
            load: parameters.load,
            on_disk: parameters.on_disk && !resident,
            residency: if resident {
                Residency::Resident
            } else {
                Residency::Away
            },
            used: now,
            away: 0,
            served: false,
            refused_until: Time::ZERO,
            due: Time::ZERO,
        };
        pool.members.insert(replica, member);
        pool.add_priority(priority);
        resident
    }

    /// Gives a member no further batches. Its weights stay where they are.
    pub(crate) fn withdraw(&mut self, device: DeviceKey, replica: ReplicaKey) {
        let Some(pool) = self.pools.get_mut(&device) else {
            return;
        };
        pool.waiting.remove(replica);
        if let Some((_, model)) = pool.reserved.take_if(|reserved| reserved.0 == replica) {
            self.reserved.remove(&model);
        }
    }

    /// Removes a member, whose weights leave the device. Its batches that are away still have their room.
    pub(crate) fn leave(&mut self, device: DeviceKey, replica: ReplicaKey) {
        self.withdraw(device, replica);
        let Some(pool) = self.pools.get_mut(&device) else {
            return;
        };
        let Some(member) = pool.members.remove(&replica) else {
            return;
        };
        pool.remove_priority(member.priority);
        if member.residency != Residency::Away {
            pool.used -= member.weights;
        }
        pool.copies.retain(|copied| *copied != replica);
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
        if let Some((_, model)) = std::mem::replace(&mut pool.reserved, member) {
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
        let Some(pool) = self.pools.get_mut(&device) else {
            return;
        };
        if let Some(member) = pool.members.get_mut(&replica) {
            (member.used, member.away, member.served) = (now, member.away + 1, true);
        }
        pool.away.push(AwayBatch {
            held,
            replica,
            utilization,
        });
    }

    /// Notes that a batch is no longer away. Returns true if it was one of the device's pool.
    pub(crate) fn batch_ended(&mut self, device: DeviceKey, batch: BatchKey) -> bool {
        let Some(pool) = self.pools.get_mut(&device) else {
            return false;
        };
        let Some(place) = { pool.away.iter() }.position(|away| away.held.batch == batch) else {
            return false;
        };
        let AwayBatch { replica, .. } = pool.away.remove(place);
        if let Some(member) = pool.members.get_mut(&replica) {
            member.away -= 1;
        }
        true
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
        let is_asked_for = !self.asked_for.is_empty();
        let on_way = |pool: &DevicePool, on_disk: bool| {
            let copies = pool.copies.iter();
            let same = copies.filter(|copied| pool.members[copied].on_disk == on_disk);
            same.count()
        };
        let free_at = |pool: &DevicePool, on_disk: bool| {
            let is_open = on_way(pool, on_disk) < fewer_than;
            is_open.then(|| (*pool.copied.of(on_disk)).max(now))
        };
        let place = |(device, pool): (&DeviceKey, &DevicePool)| {
            let evictable: u64 = pool.evictable().map(|(_, weights)| weights).sum();
            let spare = if is_asked_for {
                pool.spare_room(now)
            } else {
                SpareRoom::default()
            };
            let place = CopyPlace {
                now,
                bytes: pool.free_beside(evictable),
                spare,
                free_at: Lanes {
                    memory: free_at(pool, false),
                    disk: free_at(pool, true),
                },
                is_busy: !pool.away.is_empty(),
            };
            (*device, place)
        };
        let places = self.pools.iter().map(place);
        places
            .filter(|(_, place)| place.free_at.memory.or(place.free_at.disk).is_some())
            .collect()
    }

    pub(crate) fn cold(&self) -> &BTreeSet<ModelKey> {
        &self.cold
    }

    /// Notes that a model waits for weights, or no longer does.
    pub(crate) fn set_cold(&mut self, model: ModelKey, is_cold: bool) {
        if is_cold {
            self.cold.insert(model);
        } else {
            self.cold.remove(&model);
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
        let cold = self.cold.extract_if(.., |model| models.contains(model));
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
