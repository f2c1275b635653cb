//! The engine's ejection of replicas on which batches fail while others compute them, and the probes that let them back.

use packhorse_cluster::Time;

use super::Engine;
use crate::{Action, ModelKey, ReplicaKey, health::Health, replica::Replica};

impl Engine {
    /// Counts a batch that the model failed on, and ejects the replica if others compute batches meanwhile.
    pub(super) fn count_failure(&mut self, now: Time, model_key: ModelKey, key: ReplicaKey) {
        let pool = &mut self.model_mut(model_key).pool;
        let Some(health) = pool.update_health(key, |health| {
            health.failed(now);
            health.clone()
        }) else {
            return;
        };
        let refutes = |(other, replica): (ReplicaKey, &Replica)| {
            other != key && health.is_refuted_by(&replica.health)
        };
        if !health.should_be_ejected() || !pool.serving().any(refutes) {
            return;
        }
        self.eject(now, model_key, key);
    }

    /// Ejects a replica that holds a batch for too long: its worker ends.
    pub(super) fn eject_hung(&mut self, now: Time, model_key: ModelKey, key: ReplicaKey) {
        let replica = self.models[&model_key].pool.get(key);
        if replica.is_some_and(|replica| !replica.health.is_ejected()) {
            self.eject(now, model_key, key);
        }
    }

    fn eject(&mut self, now: Time, model: ModelKey, key: ReplicaKey) {
        let pool = &mut self.model_mut(model).pool;
        let ejected = pool.update_health(key, |health| {
            let was_healthy = health.is_healthy();
            (health.eject(now), was_healthy, health.failures())
        });
        let Some((probe, was_healthy, failures)) = ejected else {
            return;
        };
        self.probes.insert((probe, key));
        // A failed probe is no news.
        if was_healthy {
            self.actions.push_back(Action::ReplicaEjected {
                replica: key,
                failures,
            });
        }
    }

    /// Notes that a replica has computed a batch: it is healthy.
    pub(super) fn count_computed(&mut self, now: Time, model: ModelKey, key: ReplicaKey) {
        let pool = &mut self.model_mut(model).pool;
        if pool.update_health(key, |health| health.computed(now)) == Some(true) {
            self.probes.retain(|probe| probe.1 != key);
            self.actions
                .push_back(Action::ReplicaRestored { replica: key });
        }
    }

    /// Lets an ejected replica take one batch.
    pub(super) fn probe(&mut self, now: Time, key: ReplicaKey) {
        let Some(&model) = self.replicas.get(&key) else {
            return;
        };
        let pool = &mut self.model_mut(model).pool;
        pool.update_health(key, Health::probe);
        self.schedule_decision(now, model);
    }

    /// Probes the ejected replicas of a model at once if it has no other that takes work.
    pub(super) fn probe_if_none_is_left(&mut self, now: Time, model_key: ModelKey) {
        let Some(model) = self.models.get(&model_key) else {
            return;
        };
        if model.pool.serving().next().is_some() {
            return;
        }
        let ejected: Vec<ReplicaKey> = model.pool.ejected().collect();
        for key in ejected {
            self.probes.retain(|probe| probe.1 != key);
            self.probe(now, key);
        }
    }
}
