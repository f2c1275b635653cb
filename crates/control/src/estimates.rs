//! The profiles that are estimated from the operators of a program, with which a model is planned until it is measured.
//!
//! Operators belong to the program and not to a kind of device: those that one measurement or inspection reports give an estimate for every kind of
//! device in the cluster. They are stored with the model. The estimates follow from them, and are made again at a start of the gateway
//! and for every new kind of device.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use packhorse_cluster::{
    ByteCount, DeviceId, DeviceKind, ModelId, NodeName, Profile, ProfileSource, ProfileTable, Time,
};
use packhorse_estimator::OperatorGraph;

use crate::{controller::Controller, nodes::Node, plan_reason::PlanReason, state::State};

impl Controller {
    /// Takes the operators of a model's program, which a node has found, and estimates the model's profiles. Returns without effect if
    /// they are known already or cannot be read.
    pub(crate) fn take_operators(&mut self, now: Time, id: &ModelId, operators: &str) {
        let model = self.state.models.get(id);
        if model.is_none_or(|model| model.operators.is_some()) {
            return;
        }
        let Ok(operators) = OperatorGraph::from_json(operators) else {
            return;
        };
        self.state.models.set_operators(id, Arc::new(operators));
        self.state.inspections.end(id);
        self.store_operators(id);
        let kinds: Vec<DeviceKind> = self.state.estimated_kinds.iter().cloned().collect();
        let estimated = kinds.iter().filter(|kind| self.estimate(id, kind)).count();
        if estimated > 0 {
            self.request_plan(now, PlanReason::ModelEstimated(id.clone()));
        }
    }

    /// Takes the result of the inspection that a node has made. `applied` is the epoch and revision that the node reports on.
    pub(crate) fn collect_inspection(&mut self, now: Time, name: &NodeName, applied: (u64, u64)) {
        let (epoch, revision) = applied;
        let node = self.state.nodes.get(name);
        let report = node.and_then(|node| node.report.as_ref());
        let Some(awaited) = self.state.inspections.awaited(name, revision) else {
            return;
        };
        let mut results = report.iter().flat_map(|r| r.inspections.iter().flatten());
        let Some(result) = results.find(|result| result.model == *awaited).cloned() else {
            return;
        };
        if epoch != self.fence.epoch() {
            return;
        }
        if let Some(operators) = &result.operators {
            self.take_operators(now, &result.model, operators);
        }
        if self.state.models.needs_operators(&result.model) {
            let unreadable = || "the operators that were found cannot be read".to_owned();
            let reason = result.error.unwrap_or_else(unreadable);
            self.state.inspections.fail(&result.model, reason);
        }
    }

    /// Estimates the profiles of all models for the kinds of a node's devices that are new.
    pub(crate) fn estimate_for_node(&mut self, name: &NodeName) {
        let Some(node) = self.state.nodes.get(name) else {
            return;
        };
        let new = self.state.estimated_kinds.add(node);
        if new.is_empty() {
            return;
        }
        let models = self.state.models.iter();
        let with_operators = models.filter(|(_, model)| model.operators.is_some());
        let ids: Vec<ModelId> = with_operators.map(|(id, _)| id.clone()).collect();
        for (kind, id) in new
            .iter()
            .flat_map(|kind| ids.iter().map(move |id| (kind, id)))
        {
            self.estimate(id, kind);
        }
    }

    /// Estimates the profile of a model on a kind of device, if there is none and it can be measured. Returns true if there is one now.
    fn estimate(&mut self, id: &ModelId, kind: &DeviceKind) -> bool {
        let is_known = self.state.profiles.get(id, kind).is_some();
        if is_known || self.state.measurements.is_unmeasurable(id, kind) {
            return false;
        }
        let (kinds, model) = (&self.state.estimated_kinds, self.state.models.get(id));
        let Some(profile) = model.and_then(|model| kinds.estimate(model, kind)) else {
            return false;
        };
        let table = &mut self.state.profiles;
        table.insert(id.clone(), kind.clone(), profile);
        self.state.rollout.touch_model(id);
        self.announcements.model(id);
        true
    }

    /// Removes the estimate of a model on a kind of device on which measuring it failed, unless it serves there, which shows that it can.
    /// Returns true if an estimate is left.
    pub(crate) fn withdraw_estimate(&mut self, now: Time, id: &ModelId, kind: &DeviceKind) -> bool {
        let profile = self.state.profiles.get(id, kind);
        if profile.is_none_or(|profile| profile.source() == ProfileSource::Measured) {
            return false;
        }
        if self.state.serves_on(id, kind) {
            return true;
        }
        self.state.profiles.remove(id, kind);
        self.state.rollout.touch_model(id);
        let (id, kind) = (id.clone(), kind.clone());
        self.request_plan(now, PlanReason::MeasurementFailed(id, kind));
        false
    }
}

impl State {
    /// Returns the profiles without the estimates of models that were measured on that kind of device.
    pub(crate) fn without_worse_estimates(&self, profiles: &ProfileTable) -> ProfileTable {
        let mut kept = ProfileTable::default();
        for (id, kind, profile) in profiles.iter() {
            let is_estimate = profile.source() == ProfileSource::Estimated;
            if !(is_estimate && self.profiles.is_measured(id, kind)) {
                kept.insert(id.clone(), kind.clone(), profile.clone());
            }
        }
        kept
    }

    /// Updates whether a node can inspect.
    pub(crate) fn set_inspecting_node(&mut self, name: &NodeName) {
        let inspects = self.nodes.get(name).is_some_and(Node::inspects);
        self.inspections.set_node(name, inspects);
    }

    /// Assigns inspections to nodes.
    pub(crate) fn assign_inspections(&mut self) {
        let waiting = self.measurements.take_waiting();
        let (models, measurements) = (&self.models, &self.measurements);
        let kinds = &self.estimated_kinds;
        // A measurement that is assigned looks for the operators itself. Without an estimate they are not urgent.
        let needs = |id: &ModelId| {
            models.needs_operators(id)
                && measurements.of_model(id).next().is_none()
                && kinds.iter().any(|kind| measurements.waits_for(id, kind))
        };
        self.inspections.assign(waiting, needs);
    }

    /// Returns true if the model serves on a device of this kind.
    fn serves_on(&self, model: &ModelId, kind: &DeviceKind) -> bool {
        let mut replicas = self.rollout.of_model(model);
        replicas.any(|r| self.serves(r.id) && self.kind(&r.spec.device) == Some(kind))
    }

    /// Returns the devices with a replica whose profile is an estimate. There the slowdown of a batch is not known.
    pub(crate) fn estimated_devices(&self) -> BTreeSet<DeviceId> {
        let replicas = self.rollout.iter().filter(|replica| {
            let kind = self.kind(&replica.spec.device);
            let model = &replica.spec.model.model;
            kind.is_some_and(|kind| !self.profiles.is_measured(model, kind))
        });
        replicas
            .map(|replica| replica.spec.device.clone())
            .collect()
    }

    /// Returns true if the plan has a replica of the model on a device of this kind.
    pub(crate) fn is_planned_on(&self, model: &ModelId, kind: &DeviceKind) -> bool {
        let mut replicas = self.rollout.of_model(model);
        replicas.any(|r| r.is_planned() && self.kind(&r.spec.device) == Some(kind))
    }

    /// Returns the devices that take replicas and measure a model of which they shall get none meanwhile, with the model.
    pub(crate) fn all_measured_alone(&self) -> BTreeMap<DeviceId, ModelId> {
        let nodes = self.nodes.iter().map(|(_, node)| node);
        let devices = nodes
            .filter(|node| node.takes_replicas())
            .flat_map(Node::devices);
        let alone = devices.filter_map(|(id, device)| {
            let model = self.measured_alone(&id, &device.kind)?.clone();
            Some((id, model))
        });
        alone.collect()
    }

    /// Returns the model that a device measures and of which it shall get no replica meanwhile, though there is an estimate. A replica
    /// would slow the measurement down, or take memory that it needs. Where no other device can run the model and there is memory for
    /// both, a replica is worth more; one that runs already stays.
    fn measured_alone(&self, device: &DeviceId, kind: &DeviceKind) -> Option<&ModelId> {
        let model = self.measurements.measured_on(device, kind)?;
        // A model that is measured again has its replicas meanwhile.
        let estimate = self.estimate_of(model, kind)?;
        let alone = !self.is_planned_at(model, device)
            && (!self.holds_both(device, estimate) || self.runs_elsewhere(model, device));
        alone.then_some(model)
    }

    /// Returns the models with an estimate that get no replica on a kind of device before they are measured there, though their measurement
    /// still waits: those whose only device has no memory for both. A replica that it has already stays.
    pub(crate) fn measured_first(&self) -> Vec<(ModelId, DeviceKind)> {
        let waiting = self.measurements.all_waiting();
        let first = waiting.filter(|(model, kind, device)| {
            let estimate = self.estimate_of(model, kind);
            estimate.is_some_and(|estimate| !self.holds_both(device, estimate))
                && !self.is_planned_at(model, device)
                && !self.runs_elsewhere(model, device)
        });
        first
            .map(|(model, kind, _)| (model.clone(), kind.clone()))
            .collect()
    }

    /// Returns the estimated profile of a model on a kind of device; `None` if it is measured, or there is none.
    fn estimate_of(&self, model: &ModelId, kind: &DeviceKind) -> Option<&Profile> {
        let profile = self.profiles.get(model, kind);
        profile.filter(|profile| profile.source() == ProfileSource::Estimated)
    }

    /// Returns true if a device has memory for a replica and a measurement at the same time.
    pub(crate) fn holds_both(&self, device: &DeviceId, estimate: &Profile) -> bool {
        let largest = estimate.whole().last().and_then(|row| row.memory);
        let both = largest.map_or(ByteCount::ZERO, |memory| memory.saturating_add(memory));
        let device = self.nodes.device(device);
        device.is_none_or(|device| both <= device.memory_bytes)
    }

    /// Returns true if the plan has a replica of the model on the device.
    fn is_planned_at(&self, model: &ModelId, device: &DeviceId) -> bool {
        let mut here = self.rollout.on_device(device);
        here.any(|r| r.is_planned() && r.spec.model.model == *model)
    }

    /// Returns true if another device than this one can run the model and does not measure it.
    fn runs_elsewhere(&self, model: &ModelId, device: &DeviceId) -> bool {
        let nodes = self.nodes.iter().map(|(_, node)| node);
        let mut others = nodes
            .filter(|node| node.takes_replicas())
            .flat_map(Node::devices);
        others.any(|(id, other)| {
            id != *device
                && self.profiles.get(model, &other.kind).is_some()
                && self.measurements.measured_on(&id, &other.kind) != Some(model)
                && !self.exclusions.of_device(&id).contains(model)
        })
    }
}
