//! Measurements for the requests that come: with the shapes that the inputs of clients have.

use std::collections::BTreeMap;

use packhorse_cluster::{DeviceKind, InputShapes, ModelId, Profile, ProfileSource, Program, Time};

use crate::{
    controller::Controller,
    learned_shapes::is_learned_for,
    models::Model,
    nodes::Node,
    notice::{Drift, Notice},
    shape_counts::ShapeCounts,
    state::State,
};

impl Controller {
    /// Takes the counted shapes of a sample, and has the models measured again whose requests are of another size than their profiles.
    pub(crate) fn learn_shapes(&mut self, now: Time, shapes: &BTreeMap<ModelId, ShapeCounts>) {
        for (id, counts) in shapes {
            let Some(model) = self.state.models.get(id) else {
                continue;
            };
            if model.failure.is_some() || self.state.measurements.is_awaited(id) {
                continue;
            }
            let again = self.state.kinds_to_measure_again(id);
            let shapes = again.iter().map(|(_, shapes)| shapes);
            let learned = &mut self.state.learned_shapes;
            if !learned.sample(now, id, &model.program, counts, shapes) {
                continue;
            }
            let Some(learned) = learned.get(id).cloned() else {
                continue;
            };
            for (kind, measured) in again {
                if measured == learned {
                    continue;
                }
                let text = format!(
                    "requests of model {id} have inputs of {learned}, and its profile on {kind} is of {measured}: it is measured again"
                );
                self.tell(Notice::Drift(id.clone(), Drift::InputShapes, text));
                if !self.take_known_measurement(now, id, &kind) {
                    self.state.measurements.measure_again(id, &kind);
                }
            }
        }
    }
}

impl State {
    /// Returns the program of a model with the shapes that it is measured with.
    pub(crate) fn measured_program(&self, model: &Model) -> Program {
        let learned = self.learned_shapes.get(&model.program.model);
        learned.map_or_else(
            || Program::clone(&model.program),
            |shapes| shapes.as_typical_of(&model.program),
        )
    }

    /// Returns true if a model is measured again on a kind of device once its requests have inputs of another size than its profile.
    pub(crate) fn is_measured_again(
        &self,
        id: &ModelId,
        program: &Program,
        kind: &DeviceKind,
    ) -> bool {
        let again = || self.kinds_to_measure_again(id);
        is_learned_for(program) && again().iter().any(|(other, _)| other == kind)
    }

    /// Returns true if the requests of a model are known to have inputs of the size of its profile on a kind of device.
    pub(crate) fn has_measured_inputs(
        &self,
        id: &ModelId,
        program: &Program,
        kind: &DeviceKind,
    ) -> bool {
        let profile = self.profiles.get(id, kind);
        let shapes = profile.and_then(Profile::input_shapes);
        shapes.is_some_and(|shapes| self.learned_shapes.agrees(id, program, shapes))
    }

    /// Returns the kinds of device on which a model was measured and can be measured again, with the shapes of the profiles. What was imported
    /// without its shapes stays.
    fn kinds_to_measure_again(&self, id: &ModelId) -> Vec<(DeviceKind, InputShapes)> {
        let profiles = self.profiles.of_model(id);
        let again = profiles.filter_map(|(kind, profile)| {
            let shapes = profile.input_shapes()?;
            let is_possible = profile.source() == ProfileSource::Measured
                && self.measurements.kinds().any(|other| other == kind)
                && self.hold_both(kind, profile);
            is_possible.then(|| (kind.clone(), shapes.clone()))
        });
        again.collect()
    }

    /// Returns true if all devices of a kind have memory for a replica and a measurement at the same time. A measurement that found no
    /// memory for the larger batches would make the plan worse.
    fn hold_both(&self, kind: &DeviceKind, profile: &Profile) -> bool {
        let nodes = self.nodes.iter().map(|(_, node)| node);
        let devices = nodes.filter(|node| node.takes_replicas());
        let mut devices = devices.flat_map(Node::devices);
        devices.all(|(id, device)| device.kind != *kind || self.holds_both(&id, profile))
    }

    /// Restores the shapes that models were measured with.
    pub(crate) fn restore_learned_shapes(&mut self) {
        for (id, model) in self.models.iter() {
            let profiles = self.profiles.of_model(id).map(|(_, profile)| profile);
            let measured = profiles.filter(|profile| profile.source() == ProfileSource::Measured);
            let shapes = measured.filter_map(|profile| profile.input_shapes());
            self.learned_shapes.restore(id, &model.program, shapes);
        }
    }
}
