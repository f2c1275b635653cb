//! The models that are given a known measurement of their program, and the measurements that are forgotten because batches contradict them.

use std::{collections::BTreeSet, sync::Arc};

use packhorse_cluster::{DeviceKind, ModelId, Profile, ProfileTable, Program, Time};

use crate::{
    controller::Controller,
    effect::Write,
    known_measurements::MeasurementKey,
    learned_times::sightings,
    measurements::Measurement,
    models::Model,
    pending::{Behind, Pending},
    plan_reason::PlanReason,
    state::State,
};

impl Controller {
    /// Gives a model the known measurement of its program on a kind of device, if there is one. Returns true if it need not be measured.
    pub(crate) fn take_known_measurement(
        &mut self,
        now: Time,
        id: &ModelId,
        kind: &DeviceKind,
    ) -> bool {
        let model = self.state.models.get(id);
        let model = model.filter(|model| model.failure.is_none());
        let Some(profile) = model.and_then(|model| self.state.known_measurement(model, kind))
        else {
            return false;
        };
        let mut table = ProfileTable::default();
        table.insert(id.clone(), kind.clone(), Arc::clone(&profile));
        // Until it is stored it is taken again after a restart.
        let write = Write::UpsertProfiles(table, None);
        self.store(write, Pending::Behind(Behind::Measurement));
        let profiles = &mut self.state.profiles;
        profiles.insert(id.clone(), kind.clone(), profile);
        self.profile_changed(id, kind);
        let reason = PlanReason::ModelMeasured(id.clone(), kind.clone());
        self.request_plan(now, reason);
        true
    }

    /// Takes the known measurements of a new model.
    pub(crate) fn take_known_measurements(&mut self, now: Time, id: &ModelId) {
        if self.state.known_measurements.is_empty() {
            return;
        }
        let kinds: Vec<DeviceKind> = self.state.measurements.kinds().cloned().collect();
        for kind in kinds {
            if !self.state.profiles.is_measured(id, &kind) {
                self.take_known_measurement(now, id, &kind);
            }
        }
    }

    /// Takes the known measurements of all models on the kinds of a node's devices, if it takes replicas.
    pub(crate) fn take_known_of_kinds(&mut self, now: Time, kinds: &BTreeSet<DeviceKind>) {
        if self.state.known_measurements.is_empty() {
            return;
        }
        for kind in kinds {
            if self.state.measurements.kinds().any(|other| other == kind) {
                continue;
            }
            let models = self.state.models.iter().map(|(id, _)| id);
            let missing = models.filter(|id| !self.state.profiles.is_measured(id, kind));
            for id in missing.cloned().collect::<Vec<_>>() {
                self.take_known_measurement(now, &id, kind);
            }
        }
    }

    /// Forgets the measurements of a model whose batches take another time than they say, so that a registration in its place is measured.
    pub(crate) fn forget_contradicted(&mut self, now: Time, id: &ModelId, model: &Model) {
        if self.state.known_measurements.is_empty() {
            return;
        }
        let all = sightings(self.state.observer.observations());
        let Some(sightings) = all.get(id) else {
            return;
        };
        let times = self.state.batch_times(now, id, sightings);
        let contradicted = times.iter().filter(|time| {
            let cause = time.contradiction_cause(&model.program);
            cause.is_some_and(|cause| !cause.is_by_neighbours())
        });
        let program = self.state.measured_program(model);
        let keys = contradicted.flat_map(|time| self.state.keys(&program, &time.kind));
        for key in keys.collect::<Vec<_>>() {
            if self.state.known_measurements.remove(&key) {
                let write = Write::DeleteMeasurement(Box::new(key));
                self.store(write, Pending::Behind(Behind::Measurement));
            }
        }
    }
}

impl State {
    /// Returns the identity of a measurement of a program that has ended; `None` if the version of libtorch is unknown.
    pub(crate) fn key_of_measurement(
        &self,
        program: &Program,
        kind: &DeviceKind,
        measurement: &Measurement,
    ) -> Option<MeasurementKey> {
        let device = self.measurements.device(&program.model, kind)?;
        let libtorch = self.nodes.get(device.node())?.libtorch.as_deref()?;
        let measured = measurement.profile.get(&program.model, kind)?;
        // The worker knows best with which shapes it has measured, and says one of several.
        let program = match measured.input_shapes() {
            Some(shapes) if !program.says_typical_shapes() => shapes.as_typical_of(program),
            _ => program.clone(),
        };
        Some(MeasurementKey::new(&program, kind, libtorch))
    }

    /// Keeps a measurement that is stored.
    pub(crate) fn remember(&mut self, measurement: &Measurement) {
        if let Some(key) = &measurement.key {
            for (_, _, profile) in measurement.profile.iter() {
                let profile = Arc::new(profile.clone());
                self.known_measurements.insert(key.clone(), profile);
            }
        }
    }

    /// Returns the identities of the measurements of a program on a kind of device: one for each version of libtorch on its nodes.
    fn keys(&self, program: &Program, kind: &DeviceKind) -> Vec<MeasurementKey> {
        let nodes = self.nodes.iter().map(|(_, node)| node);
        let nodes = nodes.filter(|node| {
            let mut devices = node.record.devices.iter();
            node.takes_replicas() && devices.any(|device| device.kind == *kind)
        });
        let versions = nodes.filter_map(|node| node.libtorch.as_deref());
        let versions: BTreeSet<&str> = versions.collect();
        let keys = versions.into_iter();
        keys.map(|libtorch| MeasurementKey::new(program, kind, libtorch))
            .collect()
    }

    /// Returns the known measurement of a model on a kind of device, with the shapes that it would be measured with now.
    fn known_measurement(&self, model: &Model, kind: &DeviceKind) -> Option<Arc<Profile>> {
        if self.known_measurements.is_empty() {
            return None;
        }
        let keys = self.keys(&self.measured_program(model), kind);
        let mut known = keys
            .iter()
            .filter_map(|key| self.known_measurements.get(key));
        known.next().cloned()
    }
}
