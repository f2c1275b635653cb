//! The engine's turns: which of the replicas that share a device in time may take a batch.

use std::time::Duration;

use packhorse_cluster::Time;

use super::{Engine, Model};
use crate::{
    BatchKey, DeviceKey, ModelKey, ReplicaKey,
    replica::{HeldBatch, Replica},
    turns::SharedDevice,
};

/// The time until a turn that is short enough for its batch not to grow much. Up to then the turn is looked at again after half of
/// the time that is left: a larger batch travels longer and is sent earlier.
const GROWTH_TIME: Duration = Duration::from_millis(1);

/// The most devices on which a request that finds its queue empty looks for a turn. Bounds an arrival.
const CANDIDATES: usize = 16;

impl Engine {
    /// Has a replica share its device in time, or not.
    pub(super) fn time_sharing_changed(&mut self, now: Time, key: ReplicaKey, time_shared: bool) {
        let Some(&model) = self.replicas.get(&key) else {
            return;
        };
        let pool = &mut self.model_mut(model).pool;
        let replica = pool.get(key).expect("a replica is in its model's pool");
        if replica.is_time_shared() == time_shared || replica.pool_member().is_some() {
            return;
        }
        let (device, draining) = (replica.device(), replica.draining);
        let held: Vec<BatchKey> = replica.held().collect();
        pool.set_time_shared(key, time_shared);
        if draining {
            return;
        }
        if time_shared {
            self.join_turns(now, key, model);
        } else {
            self.leave_turns(now, device, key);
            for batch in held {
                self.turn_ended(now, device, batch);
            }
        }
        self.schedule_decision(now, model);
    }

    /// Adds a replica to those that take turns on its device.
    pub(super) fn join_turns(&mut self, now: Time, key: ReplicaKey, model: ModelKey) {
        let pool = &self.models[&model].pool;
        let replica = pool.get(key).expect("a replica is in its model's pool");
        let device = replica.device();
        self.turns.join(device, key, model, replica.held_batches());
        self.members_changed(now, device);
    }

    /// Removes a replica from those that take turns on a device, if it is one of them.
    pub(super) fn leave_turns(&mut self, now: Time, device: DeviceKey, replica: ReplicaKey) {
        self.turns.leave(device, replica);
        self.members_changed(now, device);
    }

    fn members_changed(&mut self, now: Time, device: DeviceKey) {
        let Some(shared) = self.turns.device(device) else {
            return;
        };
        if shared.is_contended() {
            self.close_turn(device);
        } else {
            for (replica, model) in shared.in_turn() {
                let pool = &mut self.model_mut(model).pool;
                pool.set_turn(replica, true);
                pool.set_device_busy_until(replica, Time::ZERO);
                self.schedule_decision(now, model);
            }
        }
        self.schedule_turns(now, device);
    }

    /// Has turns on a device be given in the next poll.
    pub(super) fn schedule_turns(&mut self, now: Time, device: DeviceKey) {
        let contended = self
            .turns
            .device(device)
            .is_some_and(SharedDevice::is_contended);
        let wake = (contended && self.discipline.binds_late()).then_some(now);
        self.turns.schedule(device, wake);
    }

    /// Takes the turn for a batch that was given to a replica, if the replica takes turns.
    pub(super) fn take_turn(
        &mut self,
        now: Time,
        device: DeviceKey,
        replica: ReplicaKey,
        batch: HeldBatch,
    ) {
        self.turns.take(device, replica, batch);
        self.close_turn(device);
        self.schedule_turns(now, device);
    }

    /// Has no replica of a device take a batch until a turn is given.
    fn close_turn(&mut self, device: DeviceKey) {
        let Some(shared) = self.turns.device(device).filter(|d| d.is_contended()) else {
            return;
        };
        for (replica, model) in shared.in_turn() {
            self.model_mut(model).pool.set_turn(replica, false);
        }
    }

    /// Notes that a batch of a time-shared replica is no longer away.
    pub(super) fn turn_ended(&mut self, now: Time, device: DeviceKey, batch: BatchKey) {
        if self.turns.batch_ended(device, batch) {
            self.close_turn(device);
            self.schedule_turns(now, device);
        }
    }

    /// Looks for turns for a model's request that found its queue empty.
    pub(super) fn look_for_turns(&mut self, now: Time, model: ModelKey) {
        let waiting = self.models[&model].pool.without_turn();
        let devices: Vec<DeviceKey> = waiting.take(CANDIDATES).collect();
        for device in devices {
            self.schedule_turns(now, device);
        }
    }

    /// Gives the turns on a device that begin now, each to the first replica in turn that has something to send. If no batch is
    /// away and no replica has something to send, whichever is first to have it takes the turn.
    pub(super) fn give_turns(&mut self, now: Time, device: DeviceKey) {
        self.close_turn(device);
        self.turns.schedule(device, None);
        let Some(shared) = self.turns.device(device).filter(|d| d.is_contended()) else {
            return;
        };
        let mut timeline = shared.timeline(now);
        let mut wake: Option<Time> = None;
        for (key, model_key) in shared.in_turn() {
            let Model { queue, pool, .. } = self.model_mut(model_key);
            let replica = pool.get(key).expect("it takes turns");
            let waits = queue.rows() > 0;
            if waits && replica.is_full() {
                continue;
            }
            let rows = queue.rows().clamp(1, u64::from(replica.batch_size()));
            let rows = u32::try_from(rows).expect("no more than the batch size");
            let (overhead, compute) = replica.overhead_and_compute(now, rows);
            let Some(start) = timeline.earliest(now + overhead, compute) else {
                pool.set_device_busy_until(key, timeline.end().unwrap_or(now));
                continue;
            };
            pool.set_device_busy_until(key, start);
            if timeline.is_empty() || waits && start <= now + overhead {
                pool.set_turn(key, true);
                while waits && self.has_turn(model_key, key) && self.decide_for(now, model_key) {}
                if waits && !self.has_turn(model_key, key) {
                    // It was taken, and what comes next is scheduled.
                    return;
                }
                if !timeline.is_empty() {
                    // The discipline waits. What it waits for may come when the device is in use.
                    let Model { pool, wake: at, .. } = self.model_mut(model_key);
                    pool.set_turn(key, false);
                    wake = wake.into_iter().chain(*at).min();
                }
            } else if waits {
                timeline.reserve(start, compute);
                let left = start.saturating_since(now + overhead);
                let look = if left > GROWTH_TIME { left / 2 } else { left };
                wake = wake.into_iter().chain(Some(now + look)).min();
            }
        }
        self.turns.schedule(device, wake);
    }

    fn has_turn(&self, model: ModelKey, replica: ReplicaKey) -> bool {
        let pool = self.models.get(&model).map(|model| &model.pool);
        pool.and_then(|pool| pool.get(replica))
            .is_some_and(Replica::has_turn)
    }
}
