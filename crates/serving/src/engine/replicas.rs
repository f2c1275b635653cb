//! The replicas: how they come and go, and their models with them.

use std::mem;

use packhorse_cluster::Time;

use super::Engine;
use crate::{Action, ModelKey, Outcome, ReplicaKey, ReplicaSpec};

impl Engine {
    pub(super) fn model_gone(&mut self, now: Time, key: ModelKey) {
        let Some(model) = self.models.get_mut(&key) else {
            return;
        };
        model.limits = None;
        let replicas: Vec<ReplicaKey> = model.fleet.keys().collect();
        for waiting in mem::take(&mut model.queue).iter() {
            self.books.queued -= 1;
            self.finish(waiting, Outcome::Lost);
        }
        for replica in replicas {
            self.replica_draining(now, replica);
        }
        self.forget_if_over(key);
    }

    pub(super) fn replica_up(&mut self, now: Time, key: ReplicaKey, spec: ReplicaSpec) {
        assert!(!self.replicas.contains_key(&key), "{key:?} is in use");
        assert!(
            (1..=spec.service.largest()).contains(&spec.batch_size),
            "{key:?} has no time for its batch size"
        );
        assert!(spec.credits > 0, "{key:?} has no credits");
        let model_key = spec.model;
        match self.models.get_mut(&model_key) {
            Some(model) if model.limits.is_some() => {
                model.fleet.add(now, key, spec);
                self.replicas.insert(key, model_key);
                self.wake(now, model_key);
            }
            _ => self.actions.push_back(Action::Drained { replica: key }),
        }
    }

    pub(super) fn replica_draining(&mut self, now: Time, key: ReplicaKey) {
        let Some(&model) = self.replicas.get(&key) else {
            return;
        };
        self.model_mut(model).fleet.drain(key);
        self.drained_if_idle(model, key);
        self.wake(now, model);
    }

    pub(super) fn drained_if_idle(&mut self, model_key: ModelKey, key: ReplicaKey) {
        let fleet = &mut self.model_mut(model_key).fleet;
        if fleet
            .get(key)
            .is_some_and(|replica| replica.draining && replica.is_idle())
        {
            fleet.remove(key);
            self.replicas.remove(&key);
            self.actions.push_back(Action::Drained { replica: key });
            self.forget_if_over(model_key);
        }
    }

    pub(super) fn replica_lost(&mut self, now: Time, key: ReplicaKey) {
        let Some(model_key) = self.replicas.remove(&key) else {
            return;
        };
        let replica = self
            .model_mut(model_key)
            .fleet
            .remove(key)
            .expect("replicas are where they say");
        for id in replica.held() {
            let batch = self
                .batches
                .remove(&id)
                .expect("a replica holds batches that there are");
            for waiting in &batch.requests {
                if self.comes_back(id, waiting) {
                    self.retry(now, waiting);
                }
            }
        }
        self.wake(now, model_key);
        self.forget_if_over(model_key);
    }

    pub(super) fn replica_fits(&mut self, now: Time, key: ReplicaKey, rows: u32) {
        assert!(rows > 0, "{key:?} takes no rows");
        let Some(&model) = self.replicas.get(&key) else {
            return;
        };
        self.model_mut(model).fleet.fits(key, rows);
        self.wake(now, model);
    }
}
