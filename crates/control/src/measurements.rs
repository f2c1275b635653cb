//! The measurements of models: their assignment to devices, and their results.
//!
//! Every model is measured once on every kind of device that accepts replicas. A device measures one model at a time, because
//! simultaneous measurements would slow each other, and knows the next one, which waits there, so that it need not wait for the gateway. Each step
//! costs time in proportion to the models and devices that it names.

use std::collections::{BTreeMap, BTreeSet};

use packhorse_cluster::{
    DeviceId, DeviceKind, InputShapes, ModelId, NodeName, ProfileError, ProfileProgress,
    ProfileTable, Program,
};

use crate::known_measurements::MeasurementKey;

/// The most measurements that a device is assigned: the one that it makes and the next.
const MOST_ASSIGNED: usize = 2;

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
    /// The devices, with the models that they are to measure, in this order.
    devices: BTreeMap<DeviceId, Vec<ModelId>>,
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
    /// The identity of the measurement; none if the version of libtorch is unknown.
    pub(crate) key: Option<MeasurementKey>,
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

impl Measurement {
    /// Adds the shapes of the inputs of the program that was measured, if they vary and the worker does not say them.
    pub(crate) fn add_input_shapes(&mut self, program: &Program) {
        let unknown =
            { self.profile.iter() }.find(|(_, _, profile)| profile.input_shapes().is_none());
        if program.has_variable_inputs()
            && let Some((model, kind, profile)) = unknown
        {
            let (model, kind) = (model.clone(), kind.clone());
            let shapes = InputShapes::tried(program);
            let profile = profile.clone().with_input_shapes(shapes);
            self.profile.insert(model, kind, profile);
        }
    }
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
                kind.devices.entry(device.clone()).or_default();
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
        for model in state.devices.remove(device).unwrap_or_default() {
            self.touched.insert(device.node().clone());
            if let Some(kinds) = self.assigned.get_mut(&model) {
                kinds.remove(kind);
            }
            self.waiting.insert(model.clone());
            state.missing.insert(model);
        }
        if state.devices.is_empty() {
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

    /// Has a model measured again on a kind of device for which it has a profile. Does nothing if no such device accepts replicas.
    pub(crate) fn measure_again(&mut self, model: &ModelId, kind: &DeviceKind) {
        if self.assignment(model, kind).is_none()
            && let Some(state) = self.kinds.get_mut(kind)
        {
            state.missing.insert(model.clone());
        }
    }

    /// Returns true if a measurement of the model is made or waits for a device.
    pub(crate) fn is_awaited(&self, model: &ModelId) -> bool {
        self.waits(model) || self.of_model(model).next().is_some()
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
        let devices = self.kinds.get_mut(kind).map(|state| &mut state.devices);
        if let Some(models) = devices.and_then(|devices| devices.get_mut(&assignment.device)) {
            models.retain(|other| other != model);
        }
    }

    /// Assigns the missing measurements to devices, as far as devices take more: to those with the fewest, among these to those without a
    /// replica of the model, and then to those with the fewest replicas. `replicas` returns both for a device.
    pub(crate) fn assign(&mut self, replicas: impl Fn(&ModelId, &DeviceId) -> (bool, usize)) {
        for (name, kind) in &mut self.kinds {
            while let Some(model) = kind.missing.first() {
                let devices = kind.devices.iter();
                let open = devices.filter(|(_, models)| models.len() < MOST_ASSIGNED);
                let best =
                    open.min_by_key(|(device, models)| (models.len(), replicas(model, device)));
                let Some(device) = best.map(|(device, _)| device.clone()) else {
                    break;
                };
                let model = kind.missing.pop_first().expect("it is not empty");
                kind.devices
                    .get_mut(&device)
                    .expect("it was found there")
                    .push(model.clone());
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
        devices.flat_map(|(device, kind)| {
            let models = self.assigned_to(device, kind);
            models.iter().map(move |model| (model, kind, device))
        })
    }

    /// Returns the models that a device of this kind is to measure, in this order.
    fn assigned_to(&self, device: &DeviceId, kind: &DeviceKind) -> &[ModelId] {
        let devices = self.kinds.get(kind).map(|state| &state.devices);
        let models = devices.and_then(|devices| devices.get(device));
        models.map_or(&[], Vec::as_slice)
    }

    /// Returns the model that a device of this kind measures.
    pub(crate) fn measured_on(&self, device: &DeviceId, kind: &DeviceKind) -> Option<&ModelId> {
        self.assigned_to(device, kind).first()
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

    /// Returns the device that measures a model on this kind of device, or will.
    pub(crate) fn device(&self, model: &ModelId, kind: &DeviceKind) -> Option<&DeviceId> {
        Some(&self.assignment(model, kind)?.device)
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

    /// Returns the measurements of a model that devices make: the kind of device, and the device.
    pub(crate) fn of_model(
        &self,
        model: &ModelId,
    ) -> impl Iterator<Item = (&DeviceKind, &DeviceId)> {
        let kinds = self.assigned.get(model).into_iter().flatten();
        let made = kinds.map(|(kind, assignment)| (kind, &assignment.device));
        made.filter(move |(kind, device)| self.measured_on(device, kind) == Some(model))
    }

    /// Returns true if a measurement of the model waits for a device.
    pub(crate) fn waits(&self, model: &ModelId) -> bool {
        self.kinds.keys().any(|kind| self.waits_for(model, kind))
    }

    /// Returns true if the measurement of the model on this kind of device waits for one, perhaps as the next there.
    pub(crate) fn waits_for(&self, model: &ModelId, kind: &DeviceKind) -> bool {
        let state = self.kinds.get(kind);
        let next = self.assignment(model, kind);
        state.is_some_and(|state| state.missing.contains(model))
            || next.is_some_and(|next| self.measured_on(&next.device, kind) != Some(model))
    }

    /// Returns the measurements that wait for a device, each with a device of its kind.
    pub(crate) fn all_waiting(&self) -> impl Iterator<Item = (&ModelId, &DeviceKind, &DeviceId)> {
        self.kinds.iter().flat_map(|(kind, state)| {
            let next = state.devices.iter().flat_map(|(device, models)| {
                let next = models.iter().skip(1);
                next.map(move |model| (model, device))
            });
            let device = state.devices.keys().next();
            let missing = state.missing.iter();
            let missing = missing.filter_map(move |model| Some((model, device?)));
            let waiting = next.chain(missing);
            waiting.map(move |(model, device)| (model, kind, device))
        })
    }

    /// Returns the kinds of the devices that accept replicas.
    pub(crate) fn kinds(&self) -> impl Iterator<Item = &DeviceKind> {
        self.kinds.keys()
    }

    /// Returns the number of devices that accept replicas.
    pub(crate) fn device_count(&self) -> usize {
        let kinds = self.kinds.values();
        kinds.map(|kind| kind.devices.len()).sum()
    }

    /// Returns the number of measurements that devices make, and of those that wait for one.
    pub(crate) fn counts(&self) -> (usize, usize) {
        let devices = self.kinds.values().flat_map(|kind| kind.devices.values());
        let made = devices.filter(|models| !models.is_empty()).count();
        (made, self.all_waiting().count())
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
        key: None,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn models(names: &[&str]) -> BTreeSet<ModelId> {
        names.iter().map(|name| name.parse().unwrap()).collect()
    }

    #[test]
    fn a_device_makes_one_measurement_and_knows_the_next_which_waits() {
        let mut measurements = Measurements::default();
        let (node, kind) = ("n".parse::<NodeName>().unwrap(), "T4".parse().unwrap());
        let devices: Vec<DeviceId> = ["n/0", "n/1"].map(|id| id.parse().unwrap()).into();
        let all = devices
            .iter()
            .map(|id| (id.clone(), DeviceKind::clone(&kind)));
        measurements.set_devices(&node, all.collect(), |_| models(&["a:1", "b:1", "c:1"]));
        measurements.assign(|_, _| (false, 0));
        // Each device gets one before one gets two.
        let made = |measurements: &Measurements| -> Vec<Option<String>> {
            let made = { devices.iter() }.map(|device| measurements.measured_on(device, &kind));
            made.map(|model| model.map(ToString::to_string)).collect()
        };
        let some = |name: &str| Some(name.to_owned());
        assert_eq!(made(&measurements), [some("a:1"), some("b:1")]);
        assert_eq!(measurements.counts(), (2, 1));
        let [a, c] = ["a:1", "c:1"].map(|name| name.parse::<ModelId>().unwrap());
        assert!(measurements.waits(&c) && !measurements.waits(&a));
        let wanted = measurements.of_node(&node).map(|(model, ..)| model.clone());
        assert_eq!(
            wanted.collect::<BTreeSet<_>>(),
            models(&["a:1", "b:1", "c:1"])
        );
        measurements.published(&node, 7);
        assert!(
            measurements.awaits(&c, &kind, &node, 7),
            "it may be made by now"
        );

        measurements.remove(&a, &kind);
        assert_eq!(made(&measurements), [some("c:1"), some("b:1")]);
        assert_eq!(measurements.counts(), (2, 0));
        // Those of a device that goes wait for another.
        let left = BTreeMap::from([(devices[1].clone(), kind.clone())]);
        measurements.set_devices(&node, left, |_| BTreeSet::new());
        assert!(measurements.waits(&c));
        measurements.assign(|_, _| (false, 0));
        assert_eq!(made(&measurements), [None, some("b:1")]);
        assert_eq!(measurements.counts(), (1, 1));
    }
}
