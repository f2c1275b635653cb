//! The ready replicas of one model.

use std::{
    cell::Cell,
    collections::{BTreeMap, BTreeSet},
    ops::Bound::{Excluded, Unbounded},
    time::Duration,
};

use packhorse_cluster::Time;
use packhorse_contention::ServiceTimes;

use crate::{
    BatchKey, DeviceKey, ReplicaKey, ReplicaParameters,
    health::Health,
    replica::{HeldBatch, Replica, WorkerTimes},
};

/// The number of replicas of each group that are examined: those that should be done first. Bounds a decision.
const CANDIDATES: usize = 16;

/// The most groups. Replicas with further service times are examined with those of the last one.
const MAX_GROUPS: usize = 32;

/// The share of the replicas that get a batch before the capacity is counted again is one divided by this. A model with fewer
/// replicas counts every time.
const COUNT_SHARE: usize = 16;

/// The part by which a request's time may differ from that for which the capacity was counted, as a divisor.
const ALLOWED_PART: u32 = 4;

/// The rows that replicas can compute before a deadline, counted for one request and adapted to those that follow: later deadlines
/// leave more time, and what was dispatched since is no longer to be had.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CountedCapacity {
    deadline: Time,
    allowed: Duration,
    rows: f64,
    /// The rows per second of all replicas.
    rate: f64,
    /// The number of batches that may be dispatched until it is counted again.
    batches_left: usize,
}

impl CountedCapacity {
    pub(crate) fn new(now: Time, deadline: Time, rows: u64, rate: f64) -> Self {
        Self {
            deadline,
            allowed: deadline.saturating_since(now),
            rows: rows as f64,
            rate,
            batches_left: 0,
        }
    }

    /// Returns the capacity before a deadline; `None` if it must be counted.
    pub(crate) fn at(&self, now: Time, deadline: Time) -> Option<u64> {
        let allowed = deadline.saturating_since(now);
        let tolerance = self.allowed / ALLOWED_PART;
        if allowed.abs_diff(self.allowed) > tolerance {
            return None;
        }
        let later = deadline.saturating_since(self.deadline).as_secs_f64()
            - self.deadline.saturating_since(deadline).as_secs_f64();
        Some((self.rows + later * self.rate).max(0.0) as u64)
    }
}

/// The replicas of one model that are ready or draining.
#[derive(Clone, Debug, Default)]
pub(crate) struct ReplicaPool {
    replicas: BTreeMap<ReplicaKey, Replica>,
    /// The replicas with a free credit, by the time at which they should be done with the batches that they hold.
    with_free_credit: BTreeSet<(Time, ReplicaKey)>,
    /// All that take work, in the order of their groups, and in each by the time at which they should be done.
    by_free: BTreeSet<(usize, Time, ReplicaKey)>,
    /// The service times of each group.
    groups: Vec<ServiceTimes>,
    capacity: Cell<Option<CountedCapacity>>,
    /// The replicas that wait for a turn on their device.
    without_turn: BTreeSet<ReplicaKey>,
    /// The replica that got the last batch; it may be gone.
    last_dispatched: Option<ReplicaKey>,
    /// The number of batches that were dispatched.
    dispatched_batches: u64,
    /// The number of replicas in pools of devices.
    pooled: usize,
}

impl ReplicaPool {
    pub(crate) fn add(&mut self, now: Time, key: ReplicaKey, parameters: ReplicaParameters) {
        let group = self.group_of(&parameters.service);
        let replica = Replica::new(now, parameters, group);
        if replica.pool_member().is_some() {
            self.pooled += 1;
        } else {
            self.with_free_credit.insert((now, key));
        }
        self.by_free.insert((group, now, key));
        self.replicas.insert(key, replica);
        self.capacity.set(None);
    }

    pub(crate) fn remove(&mut self, key: ReplicaKey) -> Option<Replica> {
        let replica = self.replicas.remove(&key)?;
        self.pooled -= usize::from(replica.pool_member().is_some());
        self.without_turn.remove(&key);
        self.with_free_credit.remove(&(replica.free_at(), key));
        self.by_free
            .remove(&(replica.group, replica.free_at(), key));
        self.capacity.set(None);
        Some(replica)
    }

    pub(crate) fn get(&self, key: ReplicaKey) -> Option<&Replica> {
        self.replicas.get(&key)
    }

    /// Gives a replica no further batches.
    pub(crate) fn drain(&mut self, key: ReplicaKey) {
        self.without_turn.remove(&key);
        self.update(key, |replica| replica.draining = true);
    }

    /// Changes the health of a replica; returns `None` if there is no such replica.
    pub(crate) fn update_health<T>(
        &mut self,
        key: ReplicaKey,
        update: impl FnOnce(&mut Health) -> T,
    ) -> Option<T> {
        self.replicas
            .contains_key(&key)
            .then(|| self.update(key, |replica| update(&mut replica.health)))
    }

    /// Returns the replicas that were ejected.
    pub(crate) fn ejected(&self) -> impl Iterator<Item = ReplicaKey> {
        let ejected = |replica: &Replica| !replica.draining && replica.health.is_ejected();
        let ejected = self.replicas.iter().filter(move |entry| ejected(entry.1));
        ejected.map(|(key, _)| *key)
    }

    /// Lowers the most rows of a batch on a replica.
    pub(crate) fn lower_batch_limit(&mut self, key: ReplicaKey, rows: u32) {
        self.update(key, |replica| replica.lower_batch_limit(rows));
        self.capacity.set(None);
    }

    /// Takes note of a batch for which a replica had too little memory.
    pub(crate) fn report_shortage(
        &mut self,
        key: ReplicaKey,
        now: Time,
        rows: u32,
        bytes_per_row: u64,
    ) {
        self.update(key, |replica| {
            replica
                .memory_limits
                .report_shortage(now, rows, bytes_per_row);
        });
    }

    /// Returns the group of replicas with these service times.
    fn group_of(&mut self, service: &ServiceTimes) -> usize {
        let known = self.groups.iter().position(|group| group == service);
        known.unwrap_or_else(|| {
            if self.groups.len() < MAX_GROUPS {
                self.groups.push(service.clone());
            }
            self.groups.len() - 1
        })
    }

    /// Has a replica share its device in time, or not.
    pub(crate) fn set_time_shared(&mut self, key: ReplicaKey, time_shared: bool) {
        self.without_turn.remove(&key);
        self.update(key, |replica| replica.set_time_shared(time_shared));
    }

    /// Gives a replica the turn on its device, or takes it away.
    pub(crate) fn set_turn(&mut self, key: ReplicaKey, turn: bool) {
        if turn {
            self.without_turn.remove(&key);
        } else {
            self.without_turn.insert(key);
        }
        self.update(key, |replica| replica.set_turn(turn));
    }

    /// Sets the time at which the device of a replica should be done with the batches of those with which it is shared in time.
    pub(crate) fn set_device_busy_until(&mut self, key: ReplicaKey, until: Time) {
        self.update(key, |replica| replica.set_device_busy_until(until));
    }

    /// Adds a batch of `rows` rows to a replica and returns what is expected of it. Behind one that `is_risky` the replica takes none.
    pub(crate) fn add_batch(
        &mut self,
        now: Time,
        key: ReplicaKey,
        batch: BatchKey,
        rows: u32,
        is_risky: bool,
    ) -> HeldBatch {
        self.last_dispatched = Some(key);
        self.dispatched_batches += 1;
        self.capacity.set(self.capacity.get().and_then(|counted| {
            Some(CountedCapacity {
                rows: counted.rows - f64::from(rows),
                batches_left: counted.batches_left.checked_sub(1)?,
                ..counted
            })
        }));
        self.update(key, |replica| replica.add_batch(now, batch, rows, is_risky))
    }

    /// Removes a batch of `rows` rows from a replica; `times` are the worker's if it was computed.
    pub(crate) fn remove_batch(
        &mut self,
        now: Time,
        key: ReplicaKey,
        batch: BatchKey,
        rows: u32,
        dispatched: Time,
        times: Option<WorkerTimes>,
    ) {
        self.update(key, |replica| {
            replica.remove_batch(now, batch, rows, dispatched, times);
        });
    }

    /// Has a replica take note of a batch that was back within the objective of its requests, or late. It changes no order of the pool.
    pub(crate) fn adapt_batch(&mut self, key: ReplicaKey, rows: u32, in_time: bool) {
        let replica = self.replicas.get_mut(&key);
        let replica = replica.expect("the caller has looked the replica up");
        replica.adapt_batch(rows, in_time);
    }

    fn update<T>(&mut self, key: ReplicaKey, update: impl FnOnce(&mut Replica) -> T) -> T {
        let replica = self.replicas.get_mut(&key);
        let replica = replica.expect("the caller has looked the replica up");
        let before = (replica.free_at(), replica.is_serving());
        self.with_free_credit.remove(&(before.0, key));
        let result = update(replica);
        let after = (replica.free_at(), replica.is_serving());
        if replica.has_credit() {
            self.with_free_credit.insert((after.0, key));
        }
        if before != after {
            self.by_free.remove(&(replica.group, before.0, key));
            if after.1 {
                self.by_free.insert((replica.group, after.0, key));
            }
        }
        if before.1 != after.1 {
            self.capacity.set(None);
        }
        result
    }

    /// Returns the devices of the replicas that wait for a turn.
    pub(crate) fn without_turn(&self) -> impl Iterator<Item = DeviceKey> {
        self.without_turn
            .iter()
            .map(|key| self.replicas[key].device())
    }

    /// Returns the number of batches that were dispatched so far.
    pub(crate) fn dispatched_batches(&self) -> u64 {
        self.dispatched_batches
    }

    /// Returns true if all replicas are members of pools.
    pub(crate) fn is_pooled(&self) -> bool {
        self.pooled > 0 && self.pooled == self.replicas.len()
    }

    /// Returns true if replicas are members of pools.
    pub(crate) fn has_members(&self) -> bool {
        self.pooled > 0
    }

    /// Returns the members of pools that take work, with their devices.
    pub(crate) fn members(&self) -> impl Iterator<Item = (ReplicaKey, DeviceKey)> {
        let serving = self
            .serving()
            .take(if self.pooled > 0 { usize::MAX } else { 0 });
        let members = serving.filter(|(_, replica)| replica.pool_member().is_some());
        members.map(|(key, replica)| (key, replica.device()))
    }

    pub(crate) fn len(&self) -> usize {
        self.replicas.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.replicas.is_empty()
    }

    pub(crate) fn keys(&self) -> impl Iterator<Item = ReplicaKey> {
        self.replicas.keys().copied()
    }

    /// Returns all replicas, with their devices.
    pub(crate) fn placed(&self) -> impl Iterator<Item = (ReplicaKey, DeviceKey)> {
        let replicas = self.replicas.iter();
        replicas.map(|(key, replica)| (*key, replica.device()))
    }

    /// Returns the devices of all replicas; one with several is returned as often.
    pub(crate) fn devices(&self) -> impl Iterator<Item = DeviceKey> {
        self.replicas.values().map(Replica::device)
    }

    /// Returns the replicas that take work, now or once a credit is free.
    pub(crate) fn serving(&self) -> impl Iterator<Item = (ReplicaKey, &Replica)> {
        self.replicas
            .iter()
            .filter(|(_, replica)| replica.is_serving())
            .map(|(key, replica)| (*key, replica))
    }

    /// Returns true if a replica other than this one takes a request of so many rows.
    pub(crate) fn takes_elsewhere(&self, key: ReplicaKey, rows: u32) -> bool {
        let mut others = self.serving().filter(|(other, _)| *other != key);
        others.any(|(_, other)| rows <= other.rows_limit())
    }

    /// Returns the replicas that take work and should be done first, some of each group of equal service times.
    pub(crate) fn soonest(&self) -> impl Iterator<Item = (ReplicaKey, &Replica)> {
        (0..self.groups.len()).flat_map(|group| {
            let first = (group, Time::ZERO, ReplicaKey(0));
            let of_group = self.by_free.range(first..).take(CANDIDATES);
            let of_group = of_group.take_while(move |entry| entry.0 == group);
            of_group.map(|(_, _, key)| (*key, &self.replicas[key]))
        })
    }

    /// Returns true if the capacity is not counted for every request: there are many replicas.
    pub(crate) fn is_capacity_counted(&self) -> bool {
        self.replicas.len() >= COUNT_SHARE
    }

    /// Returns the capacity as it was counted, if it still holds.
    pub(crate) fn counted_capacity(&self) -> Option<CountedCapacity> {
        self.capacity.get()
    }

    pub(crate) fn set_counted_capacity(&self, counted: CountedCapacity) {
        let batches_left = self.replicas.len() / COUNT_SHARE;
        self.capacity.set(Some(CountedCapacity {
            batches_left,
            ..counted
        }));
    }

    /// Returns the replicas with a free credit; the one that should be done first comes first.
    pub(crate) fn with_free_credit(&self) -> impl Iterator<Item = (ReplicaKey, &Replica)> {
        self.with_free_credit
            .iter()
            .map(|(_, key)| (*key, &self.replicas[key]))
    }

    /// Returns the replicas that take work, however much they hold, beginning after the one that got the last batch.
    pub(crate) fn round_robin(&self) -> impl Iterator<Item = (ReplicaKey, &Replica)> {
        let after = self.last_dispatched.map_or(Unbounded, Excluded);
        self.replicas
            .range((after, Unbounded))
            .chain(&self.replicas)
            .filter(|(_, replica)| replica.is_serving() && !replica.is_being_probed())
            .filter(|(_, replica)| replica.pool_member().is_none())
            .map(|(key, replica)| (*key, replica))
    }
}
