//! The engine's ejection of replicas on which batches fail while others compute them, and the probes that let them back.

use packhorse_cluster::Time;

use super::Engine;
use crate::{Action, BatchKey, ModelKey, ReplicaKey, health::Health, replica::Replica};

impl Engine {
    /// Judges the replica of a batch on which the model failed. A batch of requests that never failed before speaks against the replica. Where they
    /// fail again, on a healthy one, it was not the first replica's fault.
    pub(super) fn judge_failure(&mut self, now: Time, batch: BatchKey) {
        let batch = &self.batches[&batch];
        let (model, replica) = (batch.model, batch.replica);
        let first = batch.requests.first().expect("a batch has requests");
        match (first.failures, first.failed_on) {
            (0, _) => self.count_failure(now, model, replica),
            (1, Some(accused)) if accused != replica => {
                let pool = &mut self.model_mut(model).pool;
                let is_witness = pool
                    .get(replica)
                    .is_some_and(|witness| witness.health.failures() == 0);
                if is_witness && pool.update_health(accused, Health::acquit) == Some(true) {
                    self.report_restored(accused);
                    self.tell_pools(now, model);
                    self.schedule_decision(now, model);
                }
            }
            _ => {}
        }
    }

    /// Counts a batch that the model failed on, and ejects the replica if others compute batches meanwhile.
    fn count_failure(&mut self, now: Time, model_key: ModelKey, key: ReplicaKey) {
        let pool = &mut self.model_mut(model_key).pool;
        pool.update_health(key, |health| health.failed(now));
        if self.is_refuted(model_key, key) {
            self.eject(now, model_key, key);
        }
    }

    /// Returns true if a replica failed so often that it should be ejected, while others computed batches.
    fn is_refuted(&self, model: ModelKey, key: ReplicaKey) -> bool {
        let pool = &self.models[&model].pool;
        let Some(replica) = pool.get(key) else {
            return false;
        };
        let refutes = |(other, witness): (ReplicaKey, &Replica)| {
            other != key && replica.health.is_refuted_by(&witness.health)
        };
        replica.health.should_be_ejected() && pool.serving().any(refutes)
    }

    /// Judges a replica that was lost and is back, by what it did before: a loss with batches counts like a batch that the model failed on.
    pub(super) fn came_back(
        &mut self,
        now: Time,
        model: ModelKey,
        key: ReplicaKey,
        health: Health,
    ) {
        let was_healthy = health.is_healthy();
        let pool = &mut self.model_mut(model).pool;
        pool.update_health(key, |present| *present = health);
        if was_healthy {
            if self.is_refuted(model, key) {
                self.eject(now, model, key);
            }
            return;
        }
        // The driver has it as one that serves.
        let failures = self.eject_for(now, model, key);
        self.actions.push_back(Action::ReplicaEjected {
            replica: key,
            failures,
        });
        self.probe_if_none_is_left(now, model);
    }

    /// Ejects a replica that holds a batch for too long: its worker ends.
    pub(super) fn eject_hung(&mut self, now: Time, model_key: ModelKey, key: ReplicaKey) {
        let replica = self.models[&model_key].pool.get(key);
        if replica.is_some_and(|replica| !replica.health.is_ejected()) {
            self.eject(now, model_key, key);
        }
    }

    fn eject(&mut self, now: Time, model: ModelKey, key: ReplicaKey) {
        let replica = self.models[&model].pool.get(key);
        let was_healthy = replica.is_some_and(|replica| replica.health.is_healthy());
        let failures = self.eject_for(now, model, key);
        // A failed probe is no news.
        if was_healthy {
            self.actions.push_back(Action::ReplicaEjected {
                replica: key,
                failures,
            });
        }
    }

    /// Ejects a replica until its next probe. Returns the number of batches that failed on it in a row.
    fn eject_for(&mut self, now: Time, model: ModelKey, key: ReplicaKey) -> u32 {
        let pool = &mut self.model_mut(model).pool;
        let ejected = pool.update_health(key, |health| (health.eject(now), health.failures()));
        let (probe, failures) = ejected.expect("the caller has looked the replica up");
        let device = pool.get(key).map(Replica::device);
        if let Some(device) = device {
            self.pools.withdraw(device, key);
            self.tell_pools(now, model);
        }
        self.probes.insert((probe, key));
        failures
    }

    /// Notes that a replica has computed a batch: it is healthy.
    pub(super) fn count_computed(&mut self, now: Time, model: ModelKey, key: ReplicaKey) {
        let pool = &mut self.model_mut(model).pool;
        if pool.update_health(key, |health| health.computed(now)) == Some(true) {
            self.report_restored(key);
            self.tell_pools(now, model);
        }
    }

    fn report_restored(&mut self, key: ReplicaKey) {
        self.probes.retain(|probe| probe.1 != key);
        self.actions
            .push_back(Action::ReplicaRestored { replica: key });
    }

    /// Lets an ejected replica take one batch.
    pub(super) fn probe(&mut self, now: Time, key: ReplicaKey) {
        let Some(&model) = self.replicas.get(&key) else {
            return;
        };
        let pool = &mut self.model_mut(model).pool;
        pool.update_health(key, Health::probe);
        self.tell_pools(now, model);
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
