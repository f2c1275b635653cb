//! The measurements of models: their assignment to devices, and their results.
//!
//! Every model is measured once on every kind of device that accepts replicas. A device measures one model at a time, because
//! simultaneous measurements would slow each other. Each step costs time in proportion to the models and devices that it names.

use std::collections::{BTreeMap, BTreeSet};

use packhorse_cluster::{
    DeviceId, DeviceKind, ModelId, NodeName, ProfileError, ProfileProgress, ProfileTable,
};

/// The measurements that are missing, assigned to a device, or impossible.
#[derive(Clone, Debug, Default)]
pub(crate) struct Measurements {
    kinds: BTreeMap<DeviceKind, Kind>,
    /// The devices of each node that accept replicas.
    nodes: BTreeMap<NodeName, BTreeMap<DeviceId, DeviceKind>>,
    assigned: BTreeMap<ModelId, BTreeMap<DeviceKind, Assignment>>,
    unmeasurable: BTreeMap<ModelId, BTreeSet<DeviceKind>>,
    /// The nodes whose assigned measurements have changed since they were taken.
    touched: BTreeSet<NodeName>,
    /// The models whose measurements have begun to wait for a device since they were taken.
    waiting: BTreeSet<ModelId>,
}

/// The devices of a kind that accept replicas, and the models that they must measure. There is at least one device.
#[derive(Clone, Debug, Default)]
struct Kind {
    /// The devices without a measurement.
    idle: BTreeSet<DeviceId>,
    /// The devices with a measurement.
    busy: BTreeMap<DeviceId, ModelId>,
    /// The models without a profile whose measurement waits for a device.
    missing: BTreeSet<ModelId>,
}

/// The assignment of a measurement to a device.
#[derive(Clone, Debug)]
struct Assignment {
    /// The device that measures.
    device: DeviceId,
    /// The first revision of the node's wanted state that contains the measurement; none before it is published. Results for older
    /// revisions are of an earlier model of the same name.
    since: Option<u64>,
    /// True while the result is being stored.
    storing: bool,
}

/// The result of a measurement.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Measurement {
    /// The measured profile.
    pub(crate) profile: ProfileTable,
    /// The recorded kernels, as CSV.
    pub(crate) kernels: Option<String>,
}

/// The reason why there is no result of a measurement.
#[derive(Debug, thiserror::Error)]
pub(crate) enum MeasurementError {
    /// The node reported that the measurement failed; with the node's text.
    #[error("{0}")]
    Reported(String),
    /// The profile cannot be parsed.
    #[error("the measurement cannot be read: {0}")]
    Unreadable(#[source] ProfileError),
    /// The profile is of another model or kind of device.
    #[error("the measurement is of another model or device")]
    OtherSubject,
}

impl Measurements {
    /// Replaces the devices of a node that accept replicas. For a kind of device that is new, `missing` returns the models without a
    /// profile.
    pub(crate) fn set_devices(
        &mut self,
        node: &NodeName,
        devices: BTreeMap<DeviceId, DeviceKind>,
        missing: impl Fn(&DeviceKind) -> BTreeSet<ModelId>,
    ) {
        let before = self.nodes.remove(node).unwrap_or_default();
        for (device, kind) in &before {
            if devices.get(device) != Some(kind) {
                self.remove_device(device, kind);
            }
        }
        for (device, kind) in &devices {
            if before.get(device) == Some(kind) {
                continue;
            }
            if !self.kinds.contains_key(kind) {
                let mut missing = missing(kind);
                missing.retain(|model| !self.is_unmeasurable(model, kind));
                self.waiting.extend(missing.iter().cloned());
                let kind_state = Kind {
                    missing,
                    ..Kind::default()
                };
                self.kinds.insert(kind.clone(), kind_state);
            }
            if let Some(kind) = self.kinds.get_mut(kind) {
                kind.idle.insert(device.clone());
            }
        }
        if !devices.is_empty() {
            self.nodes.insert(node.clone(), devices);
        }
    }

    fn remove_device(&mut self, device: &DeviceId, kind: &DeviceKind) {
        let Some(state) = self.kinds.get_mut(kind) else {
            return;
        };
        state.idle.remove(device);
        if let Some(model) = state.busy.remove(device) {
            self.touched.insert(device.node().clone());
            if let Some(kinds) = self.assigned.get_mut(&model) {
                kinds.remove(kind);
            }
            self.waiting.insert(model.clone());
            state.missing.insert(model);
        }
        if state.idle.is_empty() && state.busy.is_empty() {
            self.kinds.remove(kind);
        }
    }

    /// Returns true if measuring the model on this kind of device failed.
    pub(crate) fn is_unmeasurable(&self, model: &ModelId, kind: &DeviceKind) -> bool {
        let kinds = self.unmeasurable.get(model);
        kinds.is_some_and(|kinds| kinds.contains(kind))
    }

    /// Returns the kinds of device on which measuring the model failed.
    pub(crate) fn failed_on(&self, model: &ModelId) -> impl Iterator<Item = &DeviceKind> {
        self.unmeasurable.get(model).into_iter().flatten()
    }

    /// Adds a model that can be measured; `profiled` returns true for the kinds of device for which it has a profile.
    pub(crate) fn add_model(&mut self, model: &ModelId, profiled: impl Fn(&DeviceKind) -> bool) {
        let unmeasurable = self.unmeasurable.get(model);
        for (kind, state) in &mut self.kinds {
            if !profiled(kind) && !unmeasurable.is_some_and(|kinds| kinds.contains(kind)) {
                state.missing.insert(model.clone());
                self.waiting.insert(model.clone());
            }
        }
    }

    /// Removes a model that was removed, or cannot be served.
    pub(crate) fn remove_model(&mut self, model: &ModelId) {
        let kinds: Vec<DeviceKind> = self.kinds.keys().cloned().collect();
        for kind in kinds {
            self.remove(model, &kind);
        }
        self.assigned.remove(model);
        self.unmeasurable.remove(model);
    }

    /// Removes a measurement, because there is a profile now.
    pub(crate) fn remove(&mut self, model: &ModelId, kind: &DeviceKind) {
        if let Some(kinds) = self.unmeasurable.get_mut(model) {
            kinds.remove(kind);
        }
        self.free(model, kind);
        if let Some(state) = self.kinds.get_mut(kind) {
            state.missing.remove(model);
        }
    }

    /// Notes that a measurement is impossible.
    pub(crate) fn fail(&mut self, model: &ModelId, kind: &DeviceKind) {
        self.remove(model, kind);
        let kinds = self.unmeasurable.entry(model.clone()).or_default();
        kinds.insert(kind.clone());
    }

    /// Ends the assignment of a measurement.
    fn free(&mut self, model: &ModelId, kind: &DeviceKind) {
        let kinds = self.assigned.get_mut(model);
        let Some(assignment) = kinds.and_then(|kinds| kinds.remove(kind)) else {
            return;
        };
        self.touched.insert(assignment.device.node().clone());
        if let Some(state) = self.kinds.get_mut(kind) {
            state.busy.remove(&assignment.device);
            state.idle.insert(assignment.device);
        }
    }

    /// Assigns the missing measurements to devices, as far as there are devices without one: first to those without a replica of the model,
    /// and among them to those with the fewest replicas. `replicas` returns both for a device.
    pub(crate) fn assign(&mut self, replicas: impl Fn(&ModelId, &DeviceId) -> (bool, usize)) {
        for (name, kind) in &mut self.kinds {
            while !kind.idle.is_empty()
                && let Some(model) = kind.missing.pop_first()
            {
                let idle = kind.idle.iter();
                let device = idle.min_by_key(|device| replicas(&model, device));
                let device = device.expect("it is not empty").clone();
                kind.idle.remove(&device);
                kind.busy.insert(device.clone(), model.clone());
                self.touched.insert(device.node().clone());
                let assignment = Assignment {
                    device,
                    since: None,
                    storing: false,
                };
                let kinds = self.assigned.entry(model).or_default();
                kinds.insert(name.clone(), assignment);
            }
        }
    }

    /// Returns the nodes whose assigned measurements have changed since the last call.
    pub(crate) fn take_touched(&mut self) -> BTreeSet<NodeName> {
        std::mem::take(&mut self.touched)
    }

    /// Returns the models whose measurements have begun to wait for a device since the last call. Some have got one already.
    pub(crate) fn take_waiting(&mut self) -> BTreeSet<ModelId> {
        std::mem::take(&mut self.waiting)
    }

    /// Returns the measurements that are assigned to the devices of a node.
    pub(crate) fn of_node(
        &self,
        node: &NodeName,
    ) -> impl Iterator<Item = (&ModelId, &DeviceKind, &DeviceId)> {
        let devices = self.nodes.get(node).into_iter().flatten();
        devices.filter_map(|(device, kind)| {
            let model = self.kinds.get(kind)?.busy.get(device)?;
            Some((model, kind, device))
        })
    }

    /// Returns the model that a device of this kind measures.
    pub(crate) fn measured_on(&self, device: &DeviceId, kind: &DeviceKind) -> Option<&ModelId> {
        self.kinds.get(kind)?.busy.get(device)
    }

    /// Notes that a revision of a node's wanted state with its assigned measurements was published.
    pub(crate) fn published(&mut self, node: &NodeName, revision: u64) {
        let keys: Vec<(ModelId, DeviceKind)> = self
            .of_node(node)
            .map(|(model, kind, _)| (model.clone(), kind.clone()))
            .collect();
        for (model, kind) in keys {
            if let Some(assignment) = self.assignment_mut(&model, &kind) {
                assignment.since.get_or_insert(revision);
            }
        }
    }

    fn assignment(&self, model: &ModelId, kind: &DeviceKind) -> Option<&Assignment> {
        self.assigned.get(model)?.get(kind)
    }

    fn assignment_mut(&mut self, model: &ModelId, kind: &DeviceKind) -> Option<&mut Assignment> {
        self.assigned.get_mut(model)?.get_mut(kind)
    }

    /// Returns true if a node's report on a revision of its wanted state is of this assigned measurement, whose result is not known
    /// yet.
    pub(crate) fn awaits(
        &self,
        model: &ModelId,
        kind: &DeviceKind,
        node: &NodeName,
        revision: u64,
    ) -> bool {
        self.assignment(model, kind).is_some_and(|assignment| {
            !assignment.storing
                && assignment.device.node() == node
                && assignment.since.is_some_and(|since| since <= revision)
        })
    }

    /// Notes that the result of a measurement is being stored.
    pub(crate) fn storing(&mut self, model: &ModelId, kind: &DeviceKind) {
        if let Some(assignment) = self.assignment_mut(model, kind) {
            assignment.storing = true;
        }
    }

    /// Notes that the result of a measurement could not be stored. Returns the node that has it.
    pub(crate) fn not_stored(&mut self, model: &ModelId, kind: &DeviceKind) -> Option<NodeName> {
        let assignment = self.assignment_mut(model, kind)?;
        assignment.storing = false;
        Some(assignment.device.node().clone())
    }

    /// Returns the assigned measurements of a model: the kind of device, and the device.
    pub(crate) fn of_model(
        &self,
        model: &ModelId,
    ) -> impl Iterator<Item = (&DeviceKind, &DeviceId)> {
        let kinds = self.assigned.get(model).into_iter().flatten();
        kinds.map(|(kind, assignment)| (kind, &assignment.device))
    }

    /// Returns true if a measurement of the model waits for a device.
    pub(crate) fn waits(&self, model: &ModelId) -> bool {
        self.kinds.values().any(|kind| kind.missing.contains(model))
    }

    /// Returns true if the measurement of the model on this kind of device waits for one.
    pub(crate) fn waits_for(&self, model: &ModelId, kind: &DeviceKind) -> bool {
        let state = self.kinds.get(kind);
        state.is_some_and(|state| state.missing.contains(model))
    }

    /// Returns the measurements that wait for a device, each with a device of its kind.
    pub(crate) fn all_waiting(&self) -> impl Iterator<Item = (&ModelId, &DeviceKind, &DeviceId)> {
        self.kinds.iter().flat_map(|(kind, state)| {
            let device = state.busy.keys().chain(&state.idle).next();
            let waiting = state.missing.iter();
            waiting.filter_map(move |model| Some((model, kind, device?)))
        })
    }

    /// Returns the kinds of the devices that accept replicas.
    pub(crate) fn kinds(&self) -> impl Iterator<Item = &DeviceKind> {
        self.kinds.keys()
    }

    /// Returns the number of devices that accept replicas.
    pub(crate) fn device_count(&self) -> usize {
        let kinds = self.kinds.values();
        kinds.map(|kind| kind.idle.len() + kind.busy.len()).sum()
    }

    /// Returns the number of measurements that are assigned, and of those that wait for a device.
    pub(crate) fn counts(&self) -> (usize, usize) {
        let waiting = self.kinds.values().map(|kind| kind.missing.len()).sum();
        let assigned = self.assigned.values().map(BTreeMap::len).sum();
        (assigned, waiting)
    }
}

/// Returns the result of a measurement; `None` while it has not ended.
pub(crate) fn result(progress: &ProfileProgress) -> Option<Result<Measurement, MeasurementError>> {
    if let Some(reason) = &progress.error {
        return Some(Err(MeasurementError::Reported(reason.clone())));
    }
    let profile = match ProfileTable::from_csv(progress.csv.as_ref()?) {
        Ok(profile) => profile,
        Err(e) => return Some(Err(MeasurementError::Unreadable(e))),
    };
    let of_subject = profile.get(&progress.model, &progress.device_kind);
    if of_subject.is_none() || profile.len() != 1 {
        return Some(Err(MeasurementError::OtherSubject));
    }
    Some(Ok(Measurement {
        kernels: progress.kernels.clone(),
        profile,
    }))
}
