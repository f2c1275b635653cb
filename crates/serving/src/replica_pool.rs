//! The ready replicas of one model.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Bound::{Excluded, Unbounded},
};

use packhorse_cluster::Time;

use crate::{
    BatchKey, DeviceKey, ReplicaKey, ReplicaParameters,
    replica::{HeldBatch, Replica, WorkerTimes},
};

/// The replicas of one model that are ready or draining.
#[derive(Clone, Debug, Default)]
pub(crate) struct ReplicaPool {
    replicas: BTreeMap<ReplicaKey, Replica>,
    /// The replicas with a free credit, by the time at which they should be done with the batches that they hold.
    with_free_credit: BTreeSet<(Time, ReplicaKey)>,
    /// The replicas that wait for a turn on their device.
    without_turn: BTreeSet<ReplicaKey>,
    /// The replica that got the last batch; it may be gone.
    last_dispatched: Option<ReplicaKey>,
    /// The number of batches that were dispatched.
    dispatched_batches: u64,
}

impl ReplicaPool {
    pub(crate) fn add(&mut self, now: Time, key: ReplicaKey, parameters: ReplicaParameters) {
        self.replicas.insert(key, Replica::new(now, parameters));
        self.with_free_credit.insert((now, key));
    }

    pub(crate) fn remove(&mut self, key: ReplicaKey) -> Option<Replica> {
        let replica = self.replicas.remove(&key)?;
        self.without_turn.remove(&key);
        self.with_free_credit.remove(&(replica.free_at(), key));
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

    /// Lowers the most rows of a batch on a replica.
    pub(crate) fn lower_batch_limit(&mut self, key: ReplicaKey, rows: u32) {
        self.update(key, |replica| replica.lower_batch_limit(rows));
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

    /// Adds a batch of `rows` rows to a replica and returns what is expected of it.
    pub(crate) fn add_batch(
        &mut self,
        now: Time,
        key: ReplicaKey,
        batch: BatchKey,
        rows: u32,
    ) -> HeldBatch {
        self.last_dispatched = Some(key);
        self.dispatched_batches += 1;
        self.update(key, |replica| replica.add_batch(now, batch, rows))
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

    fn update<T>(&mut self, key: ReplicaKey, update: impl FnOnce(&mut Replica) -> T) -> T {
        let replica = self.replicas.get_mut(&key);
        let replica = replica.expect("the caller has looked the replica up");
        self.with_free_credit.remove(&(replica.free_at(), key));
        let result = update(replica);
        if replica.has_credit() {
            self.with_free_credit.insert((replica.free_at(), key));
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

    pub(crate) fn is_empty(&self) -> bool {
        self.replicas.is_empty()
    }

    pub(crate) fn keys(&self) -> impl Iterator<Item = ReplicaKey> {
        self.replicas.keys().copied()
    }

    /// Returns the replicas that take work, now or once a credit is free.
    pub(crate) fn serving(&self) -> impl Iterator<Item = (ReplicaKey, &Replica)> {
        self.replicas
            .iter()
            .filter(|(_, replica)| !replica.draining)
            .map(|(key, replica)| (*key, replica))
    }

    /// Returns the replicas with a free credit; the one that should be done first comes first.
    pub(crate) fn with_free_credit(&self) -> impl Iterator<Item = (ReplicaKey, &Replica)> {
        self.with_free_credit
            .iter()
            .map(|(_, key)| (*key, &self.replicas[key]))
    }

    /// Returns all replicas that take work, beginning after the one that got the last batch.
    pub(crate) fn round_robin(&self) -> impl Iterator<Item = (ReplicaKey, &Replica)> {
        let after = self.last_dispatched.map_or(Unbounded, Excluded);
        self.replicas
            .range((after, Unbounded))
            .chain(&self.replicas)
            .filter(|(_, replica)| !replica.draining)
            .map(|(key, replica)| (*key, replica))
    }
}
