//! The pools of devices: in each, many models share one device, and the engine decides which of them computes and whose weights the device holds.
//!
//! A member is a replica whose weights are *resident*, on the device, *warm*, in the memory of its node, *cold*, in a file only, or on their way. What
//! comes from files takes long, and keeps no copy from memory waiting. The device
//! is one server: the batches of all members that are away are counted together. Two of them compute side by side where the parts of
//! the multiprocessors that they use leave room for both, and one after the other otherwise.

mod copies;
mod for_refused;
mod member;
pub(crate) mod pools;
mod room;

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use packhorse_cluster::{Priority, Time};
use rustc_hash::FxHashMap;

pub(crate) use self::{copies::CopyPlace, member::Residency, room::Room};
use self::{
    copies::Lanes,
    member::{Evictable, EvictableMembers, Member},
    room::MOST_AWAY,
};
use crate::{
    BatchKey, ModelKey, PoolMember, ReplicaKey,
    replica::HeldBatch,
    waiting_members::{NextBatch, WaitingMembers, WaitingWork},
};

/// The most batches of a device that are away while one is late: the next one is there when it ends.
const MOST_AWAY_WHEN_LATE: usize = 2;

/// The time after which a member is copied again whose worker had no room for it.
const RETRY_AFTER: Duration = Duration::from_millis(50);

/// The pool of a device.
#[derive(Debug, Default)]
pub(crate) struct DevicePool {
    /// The bytes that the weights of its members may have together.
    memory: u64,
    /// The bytes of those that are there, or on their way.
    used: u64,
    /// The bytes of the weights of all members, wherever they are.
    wanted: u64,
    /// The members. Nothing depends on the order of an iteration: it would depend on the hash.
    members: FxHashMap<ReplicaKey, Member>,
    /// The members that may make room; none while there is memory for all members.
    evictable: EvictableMembers,
    /// The number of members of each priority.
    priorities: BTreeMap<Priority, usize>,
    /// The resident members with waiting requests.
    waiting: WaitingMembers,
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

#[derive(Clone, Copy, Debug)]
struct AwayBatch {
    held: HeldBatch,
    replica: ReplicaKey,
    utilization: f64,
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
        self.wait_no_longer(replica);
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
        let batches = self.away.iter();
        Room::new(now, batches.map(|away| (away.held.due, away.utilization)))
    }

    /// Returns true if a member's weights came and left before it got a batch. They come again for the same requests only elsewhere: otherwise members for
    /// whose requests the device is too busy would take the room from each other until these expire.
    pub(crate) fn left_in_vain(&self, replica: ReplicaKey) -> bool {
        let member = self.members.get(&replica);
        member.is_some_and(|member| member.left_in_vain)
    }

    /// Returns the time at which a member's weights should be there, if they were brought next; `None` if there is no room for them.
    pub(crate) fn loaded_at(&self, replica: ReplicaKey, place: &CopyPlace) -> Option<Time> {
        let member = self.members.get(&replica)?;
        let fits = member.residency == Residency::Away && member.weights <= place.bytes;
        let fits = fits && member.refused_until <= place.now;
        let free_at = (*place.free_at.of(member.on_disk))?;
        fits.then(|| free_at + member.load)
    }

    /// Returns the place of a member among those that may make room; `None` if it makes none: it computes something, or waits for a first batch that it could
    /// compute. So members that take the room from each other all get something done.
    fn evictable_now(&self, replica: ReplicaKey, member: &Member) -> Option<Evictable> {
        let is_idle = member.residency == Residency::Resident && member.away == 0;
        let is_next = self.reserved() == Some(replica);
        let makes_room = self.is_short() && is_idle && !is_next && member.weights > 0;
        let may_leave = makes_room && (member.served || !self.waiting.contains_hopeful(replica));
        may_leave.then(|| Evictable {
            waits: self.waiting.contains(replica),
            priority: member.priority,
            used: member.used,
            replica,
        })
    }

    /// Takes note of a member that something happened to on which its place among those that may make room depends.
    fn note_evictable(&mut self, replica: ReplicaKey) {
        let Some(member) = self.members.get(&replica) else {
            return;
        };
        let place = self.evictable_now(replica, member);
        if place != member.evictable {
            let member = self.members.get_mut(&replica).expect("just seen");
            self.evictable
                .set(&mut member.evictable, place, member.weights);
        }
    }

    /// Returns true if not all members have memory at a time.
    fn is_short(&self) -> bool {
        self.wanted > self.memory
    }

    /// Changes the memory, or what members want of it, and looks for those that may make room where that has begun or ended to matter.
    fn change_memory(&mut self, change: impl FnOnce(&mut Self)) {
        let was_short = self.is_short();
        change(self);
        if self.is_short() != was_short {
            let members: Vec<ReplicaKey> = self.members.keys().copied().collect();
            for replica in members {
                self.note_evictable(replica);
            }
        }
    }

    /// Adds a member. Returns false if its weights are not there, also where it was thought that they are: there is no room.
    fn join(
        &mut self,
        now: Time,
        replica: ReplicaKey,
        (model, priority): (ModelKey, Priority),
        parameters: &PoolMember,
    ) -> bool {
        self.change_memory(|pool| {
            pool.memory = parameters.memory;
            pool.wanted = pool.wanted.saturating_add(parameters.weights);
        });
        let resident =
            parameters.resident && self.used.saturating_add(parameters.weights) <= self.memory;
        self.used += if resident { parameters.weights } else { 0 };
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
            left_in_vain: false,
            refused_until: Time::ZERO,
            due: Time::ZERO,
            evictable: None,
        };
        self.members.insert(replica, member);
        self.add_priority(priority);
        self.note_evictable(replica);
        resident
    }

    /// Removes a member, whose weights leave the device.
    fn leave(&mut self, replica: ReplicaKey) {
        let Some(mut member) = self.members.remove(&replica) else {
            return;
        };
        self.evictable
            .set(&mut member.evictable, None, member.weights);
        self.remove_priority(member.priority);
        if member.residency != Residency::Away {
            self.used -= member.weights;
        }
        self.copies.retain(|copied| *copied != replica);
        self.change_memory(|pool| pool.wanted = pool.wanted.saturating_sub(member.weights));
    }

    /// Notes that requests wait for a member that is there, and what is estimated of them.
    pub(crate) fn wait(
        &mut self,
        replica: ReplicaKey,
        priority: Priority,
        next: NextBatch,
        work: Option<WaitingWork>,
    ) {
        self.waiting.insert(replica, priority, next, work);
        self.note_evictable(replica);
    }

    /// Notes that no request waits for a member, or none that it may take.
    pub(crate) fn wait_no_longer(&mut self, replica: ReplicaKey) {
        self.waiting.remove(replica);
        self.note_evictable(replica);
    }

    /// Puts a member behind all others that wait. Returns false if it was behind those that have something already.
    pub(crate) fn put_last(&mut self, replica: ReplicaKey) -> bool {
        let was_before = self.waiting.put_last(replica);
        self.note_evictable(replica);
        was_before
    }

    /// Has the waiting members become urgent whose time has come.
    pub(crate) fn become_urgent(&mut self, now: Time) {
        self.waiting.become_urgent(now);
    }

    /// Returns the resident members with waiting requests.
    pub(crate) fn waiting(&self) -> &WaitingMembers {
        &self.waiting
    }

    /// Reserves the device for a member, or for none. Returns the one that it was reserved for.
    fn reserve(
        &mut self,
        member: Option<(ReplicaKey, ModelKey)>,
    ) -> Option<(ReplicaKey, ModelKey)> {
        let before = std::mem::replace(&mut self.reserved, member);
        for (replica, _) in before.into_iter().chain(member) {
            self.note_evictable(replica);
        }
        before
    }

    /// Notes that a member got a batch that uses so much of the device.
    fn take(&mut self, now: Time, replica: ReplicaKey, held: HeldBatch, utilization: f64) {
        if let Some(member) = self.members.get_mut(&replica) {
            (member.used, member.away, member.served) = (now, member.away + 1, true);
        }
        self.note_evictable(replica);
        self.away.push(AwayBatch {
            held,
            replica,
            utilization,
        });
    }

    /// Notes that a batch is no longer away. Returns true if it was one of the device's pool.
    fn batch_ended(&mut self, batch: BatchKey) -> bool {
        let Some(place) = { self.away.iter() }.position(|away| away.held.batch == batch) else {
            return false;
        };
        let AwayBatch { replica, .. } = self.away.remove(place);
        if let Some(member) = self.members.get_mut(&replica) {
            member.away -= 1;
        }
        self.note_evictable(replica);
        true
    }

    /// Returns the bytes that are free, and these.
    fn free_beside(&self, evictable: u64) -> u64 {
        let memory = self.memory.saturating_add(evictable);
        memory.saturating_sub(self.used)
    }

    /// Returns what a member that is copied next finds, if fewer are on their way from memory, or from files; `None` if there are not.
    fn place_for_copy(&self, now: Time, fewer_than: usize, asked_for: bool) -> Option<CopyPlace> {
        let mut on_way = Lanes::<usize>::default();
        for copied in &self.copies {
            *on_way.of_mut(self.members[copied].on_disk) += 1;
        }
        let free_at = |on_disk: bool| {
            let is_open = *on_way.of(on_disk) < fewer_than;
            is_open.then(|| (*self.copied.of(on_disk)).max(now))
        };
        let free_at = Lanes {
            memory: free_at(false),
            disk: free_at(true),
        };
        free_at.memory.or(free_at.disk)?;
        let spare = asked_for.then(|| self.spare_room(now));
        Some(CopyPlace {
            now,
            bytes: self.free_beside(self.evictable.bytes()),
            spare: spare.unwrap_or_default(),
            free_at,
            is_busy: !self.away.is_empty(),
        })
    }

    /// Begins to bring a member's weights, for which there is room. Returns the members that make room.
    pub(crate) fn load(&mut self, now: Time, replica: ReplicaKey) -> Vec<ReplicaKey> {
        debug_assert!(
            { self.members.iter() }
                .all(|(key, member)| self.evictable_now(*key, member) == member.evictable),
            "something happened to a member that was not noted"
        );
        let weights = self.members[&replica].weights;
        let evicted = self.make_room(weights);
        let member = self.members.get_mut(&replica).expect("just seen");
        (member.residency, member.left_in_vain) = (Residency::Loading, false);
        self.used += weights;
        let copied = self.copied.of_mut(member.on_disk);
        *copied = (*copied).max(now) + member.load;
        member.due = *copied;
        self.copies.push(replica);
        self.note_evictable(replica);
        evicted
    }

    /// Has members leave the device until so many bytes fit; [`Evictable`] says in which order.
    fn make_room(&mut self, bytes: u64) -> Vec<ReplicaKey> {
        let mut evicted = Vec::new();
        while self.used.saturating_add(bytes) > self.memory
            && let Some(replica) = self.evictable.first()
        {
            let member = self.members.get_mut(&replica).expect("it is a member");
            (member.residency, member.left_in_vain) = (Residency::Away, !member.served);
            self.used -= member.weights;
            self.wait_no_longer(replica);
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
        self.note_evictable(replica);
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
        self.note_evictable(replica);
        Some(retry)
    }

    /// Sets the bytes that the weights of the members may have together. Returns the members that leave the device.
    pub(crate) fn set_memory(&mut self, memory: u64) -> Vec<ReplicaKey> {
        self.change_memory(|pool| pool.memory = memory);
        self.make_room(0)
    }
}
