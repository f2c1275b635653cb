//! The engine's reactions to events about replicas and models.

use std::mem;

use packhorse_cluster::{Priority, Time};

use super::{Engine, Model};
use crate::{
    Action, DeviceKey, DeviceSharing, ModelKey, ModelLimits, ReplicaKey, ReplicaParameters,
    RequestOutcome,
};

impl Engine {
    pub(super) fn model_updated(
        &mut self,
        now: Time,
        key: ModelKey,
        limits: ModelLimits,
        priority: Priority,
    ) {
        let model = self.models.entry(key).or_default();
        model.limits = Some(limits);
        if mem::replace(&mut model.priority, priority) != priority {
            let members: Vec<_> = model.pool.placed().collect();
            for (replica, device) in members {
                let lowest = self.lowest_priority(device);
                if let Some(pool) = self.pools.get_mut(device) {
                    pool.set_priority(replica, priority);
                }
                self.priorities_changed(now, device, lowest);
            }
        }
        self.schedule_decision(now, key);
        self.tell_pools(now, key);
    }

    pub(super) fn model_removed(&mut self, now: Time, key: ModelKey) {
        let Some(model) = self.models.get_mut(&key) else {
            return;
        };
        model.limits = None;
        let replicas: Vec<ReplicaKey> = model.pool.keys().collect();
        for waiting in mem::take(&mut model.queue).iter() {
            self.books.queued -= 1;
            if waiting.attempts > 0 || !self.fall_back(now, waiting) {
                self.finish(waiting.request.id, RequestOutcome::Lost);
            }
        }
        for replica in replicas {
            self.replica_draining(now, replica);
        }
        self.remove_model_if_unused(key);
    }

    pub(super) fn replica_ready(
        &mut self,
        now: Time,
        key: ReplicaKey,
        parameters: ReplicaParameters,
    ) {
        assert!(!self.replicas.contains_key(&key), "{key:?} is in use");
        assert!(
            (1..=parameters.service.max_rows()).contains(&parameters.batch_size),
            "{key:?} has no time for its batch size"
        );
        assert!(parameters.in_flight > 0, "{key:?} takes no batches");
        let model_key = parameters.model;
        match self.models.get_mut(&model_key) {
            Some(model) if model.limits.is_some() => {
                let (sharing, device) = (parameters.sharing.clone(), parameters.device);
                model.pool.add(now, key, parameters);
                let health = model.lost.take(key);
                self.replicas.insert(key, model_key);
                match sharing {
                    DeviceSharing::Concurrent => {}
                    DeviceSharing::Turns => self.join_turns(now, key, model_key),
                    DeviceSharing::Pool(member) => {
                        self.join_pool(now, key, model_key, device, &member);
                    }
                }
                if let Some(health) = health {
                    self.came_back(now, model_key, key, health);
                }
                self.schedule_decision(now, model_key);
            }
            _ => self
                .actions
                .push_back(Action::ReplicaDrained { replica: key }),
        }
    }

    pub(super) fn replica_draining(&mut self, now: Time, key: ReplicaKey) {
        let Some(&model) = self.replicas.get(&key) else {
            return;
        };
        let pool = &mut self.model_mut(model).pool;
        pool.drain(key);
        let device = pool.get(key).expect("just drained").device();
        self.leave_turns(now, device, key);
        self.pools.withdraw(device, key);
        self.tell_pools(now, model);
        self.probe_if_none_is_left(now, model);
        self.remove_replica_if_drained(now, model, key);
        self.schedule_decision(now, model);
    }

    pub(super) fn remove_replica_if_drained(
        &mut self,
        now: Time,
        model_key: ModelKey,
        key: ReplicaKey,
    ) {
        let pool = &mut self.model_mut(model_key).pool;
        if pool
            .get(key)
            .is_some_and(|replica| replica.draining && replica.is_idle())
        {
            let replica = pool.remove(key).expect("just seen");
            self.replicas.remove(&key);
            self.pools.leave(replica.device(), key);
            self.leave_device(model_key, replica.device());
            self.actions
                .push_back(Action::ReplicaDrained { replica: key });
            // Others may have its room.
            self.load_cold(now);
            self.remove_model_if_unused(model_key);
        }
    }

    pub(super) fn replica_lost(&mut self, now: Time, key: ReplicaKey) {
        let Some(model_key) = self.replicas.remove(&key) else {
            return;
        };
        let Model { pool, lost, .. } = self.model_mut(model_key);
        let replica = pool.remove(key).expect("a replica is in its model's pool");
        let mut health = replica.health.clone();
        if !replica.is_idle() {
            health.failed(now);
        }
        lost.remember(now, key, health);
        self.leave_turns(now, replica.device(), key);
        self.pools.leave(replica.device(), key);
        self.tell_pools(now, model_key);
        // Others may have its room.
        self.load_cold(now);
        self.leave_device(model_key, replica.device());
        self.probes.retain(|probe| probe.1 != key);
        for (place, id) in replica.held().enumerate() {
            self.turn_ended(now, replica.device(), id);
            self.pool_batch_ended(now, replica.device(), id);
            let batch = self
                .batches
                .remove(&id)
                .expect("the batches that a replica holds exist");
            if place == 0 {
                self.blame_for_loss(now, model_key, key, batch.dispatched, &batch.requests);
            }
            for waiting in &batch.requests {
                if !self.leave_flight(id, waiting) {
                } else if place == 0 {
                    self.retry_alone(now, *waiting, RequestOutcome::Lost);
                } else {
                    self.retry(now, *waiting, RequestOutcome::Lost);
                }
            }
        }
        self.probe_if_none_is_left(now, model_key);
        self.schedule_decision(now, model_key);
        self.remove_model_if_unused(model_key);
    }

    /// Notes that a replica of a model is gone from a device, and perhaps the last one there.
    fn leave_device(&mut self, model: ModelKey, device: DeviceKey) {
        let mut devices = self.models[&model].pool.devices();
        if !devices.any(|other| other == device) {
            self.overloaded.leave(model, device);
        }
    }

    pub(super) fn batch_limit_lowered(&mut self, now: Time, key: ReplicaKey, rows: u32) {
        assert!(rows > 0, "{key:?} takes no rows");
        let Some(&model) = self.replicas.get(&key) else {
            return;
        };
        self.model_mut(model).pool.lower_batch_limit(key, rows);
        self.schedule_decision(now, model);
    }
}
