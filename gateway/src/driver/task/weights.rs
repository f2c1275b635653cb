//! The weights of models on devices with a pool: the engine says whose come and go, and their workers are told.

use std::sync::Arc;

use packhorse_cluster::{ByteCount, PoolPlace, Residency, Time};
use packhorse_links::Effect;
use packhorse_serving::{Event, ReplicaKey};
use packhorse_wire::{ToWorker, WeightsPlace, WeightsReport};

use super::Driver;
use crate::driver::served_model::ServedModel;

impl Driver {
    /// Has the weights of a replica copied to its device.
    pub(super) fn load_weights(&mut self, now: Time, replica: ReplicaKey) {
        self.order(replica, &ToWorker::Load);
        if let Some((id, _)) = self.names(replica) {
            self.weights.begin_load(now, id);
        }
    }

    /// Has the weights of a replica leave its device, for those of a wanted one if there is any.
    pub(super) fn unload_weights(&mut self, replica: ReplicaKey, wanted: Option<ReplicaKey>) {
        let wanted = wanted.and_then(|wanted| self.names(wanted));
        let unload = ToWorker::Unload(wanted.map(|(id, _)| id));
        self.order(replica, &unload);
        self.count_eviction(replica);
    }

    /// Handles a worker's report on the place of its weights.
    pub(super) fn weights_reported(
        &mut self,
        now: Time,
        replica: ReplicaKey,
        report: WeightsReport,
    ) {
        let (place, orders) = (pool_place(report), report.orders);
        if let Some((id, _)) = self.names(replica) {
            self.weights.set_cold_load(id, report.cold_load);
        }
        let effects = self.links.weights_reported(replica, place, orders);
        if let Some(target) = self.links.target(replica) {
            let device = &target.replica.spec.device;
            self.weights.set_memory(device, place.memory);
        }
        for effect in &effects {
            match effect {
                Effect::Event(Event::WeightsLoaded { .. }) => {
                    self.note_weights(replica, Some(place));
                    self.count_copy(now, replica);
                }
                Effect::Event(Event::WeightsUnloaded { .. }) => {
                    let id = self.names(replica).map(|(id, _)| id);
                    // The worker gave them up by itself. Those that it was told to are counted.
                    if id.is_some_and(|id| self.weights.is_resident(id)) {
                        self.count_eviction(replica);
                    }
                    self.note_weights(replica, Some(place));
                }
                _ => {}
            }
        }
        self.apply_all(now, effects);
    }

    fn count_eviction(&self, replica: ReplicaKey) {
        if let Some(model) = self.served_model(replica) {
            model.telemetry.count_weights_eviction();
        }
        if let Some((id, _)) = self.names(replica) {
            self.weights.count_eviction(id);
        }
    }

    fn count_copy(&mut self, now: Time, replica: ReplicaKey) {
        self.loaded.insert(replica, now);
        let id = self.names(replica).map(|(id, _)| id);
        let time = id.and_then(|id| self.weights.end_load(now, id));
        if let (Some((time, from_file)), Some(model)) = (time, self.served_model(replica)) {
            model.telemetry.count_weights_load(time, from_file);
        }
    }

    /// Tells people where the weights of a replica are, if it is in a pool.
    pub(super) fn note_weights(&self, replica: ReplicaKey, place: Option<PoolPlace>) {
        if let (Some(place), Some(target)) = (place, self.links.target(replica)) {
            let replica = &target.replica;
            self.weights.set(replica.id, &replica.spec.device, place);
        }
    }

    /// Forgets the weights of a replica that is no longer connected.
    pub(super) fn forget_weights(&mut self, replica: ReplicaKey) {
        self.loaded.remove(&replica);
        if let Some((id, _)) = self.names(replica) {
            self.weights.remove(id);
        }
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
        load: match report.place {
            WeightsPlace::Resident | WeightsPlace::Warm => report.load,
            WeightsPlace::Cold => report.cold_load,
        },
        residency: match report.place {
            WeightsPlace::Resident => Residency::Resident,
            WeightsPlace::Warm => Residency::Warm,
            WeightsPlace::Cold => Residency::Cold,
        },
    }
}
