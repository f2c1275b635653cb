//! The weights of models on devices with a pool: the engine says whose come and go, and their workers are told.

use std::sync::Arc;

use packhorse_cluster::{ByteCount, PoolPlace, Residency, Time};
use packhorse_links::Effect;
use packhorse_serving::{Event, ReplicaKey};
use packhorse_wire::{ToWorker, WeightsReport};

use super::Driver;
use crate::driver::served_model::ServedModel;

impl Driver {
    /// Has the weights of a replica copied to its device.
    pub(super) fn load_weights(&mut self, now: Time, replica: ReplicaKey) {
        self.order(replica, &ToWorker::Load);
        self.copies.insert(replica, now);
    }

    /// Has the weights of a replica leave its device.
    pub(super) fn unload_weights(&mut self, replica: ReplicaKey) {
        self.order(replica, &ToWorker::Unload);
        if let Some(model) = self.served_model(replica) {
            model.telemetry.count_weights_eviction();
        }
    }

    /// Handles a worker's report on the place of its weights.
    pub(super) fn weights_reported(
        &mut self,
        now: Time,
        replica: ReplicaKey,
        report: WeightsReport,
    ) {
        let (place, orders) = (pool_place(report), report.orders);
        let effects = self.links.weights_reported(replica, place, orders);
        for effect in &effects {
            if let Effect::Event(Event::WeightsLoaded { .. }) = effect
                && let Some(since) = self.copies.remove(&replica)
                && let Some(model) = self.served_model(replica)
            {
                let time = now.saturating_since(since);
                model.telemetry.count_weights_load(time);
            }
        }
        self.apply_all(now, effects);
    }

    fn served_model(&self, replica: ReplicaKey) -> Option<&Arc<ServedModel>> {
        self.models.get(&self.links.model(replica)?)
    }

    /// Sends a worker an order about its weights. If its connection has just broken, the next one begins with where they are.
    fn order(&mut self, replica: ReplicaKey, order: &ToWorker) {
        if let Some(batches) = self.links.order(replica) {
            batches.order(order);
        }
    }
}

/// Returns the place in its device's pool that a worker reports.
pub(super) fn pool_place(report: WeightsReport) -> PoolPlace {
    PoolPlace {
        weights: ByteCount::new(report.bytes),
        memory: ByteCount::new(report.memory),
        load: report.load,
        residency: if report.resident {
            Residency::Resident
        } else {
            Residency::Warm
        },
    }
}
