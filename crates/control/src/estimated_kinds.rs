//! The kinds of device for which profiles can be estimated, and the estimates of models on them.

use std::collections::BTreeMap;

use packhorse_cluster::{ByteCount, DeviceKind, Profile, ProfileTable};
use packhorse_estimator::{Coefficients, DeviceSheet, batch_sizes};

use crate::{
    models::{Model, Models},
    nodes::{Node, Nodes},
};

/// Returns the profile of a model on a kind of device with this memory, as far as it can be estimated.
fn estimate(model: &Model, kind: &DeviceKind, memory: ByteCount) -> Option<Profile> {
    if model.failure.is_some() {
        return None;
    }
    let (operators, sheet) = (model.operators.as_deref()?, DeviceSheet::of(kind)?);
    let sizes = batch_sizes(&model.program);
    Coefficients::libtorch().profile(operators, &sheet, memory, &sizes)
}

/// The kinds of device for which profiles can be estimated and of which a node has, or had, a device; with the largest memory of one.
#[derive(Clone, Debug, Default)]
pub(crate) struct EstimatedKinds(BTreeMap<DeviceKind, ByteCount>);

impl EstimatedKinds {
    /// Adds the kinds of a node's devices. Returns those that are new.
    pub(crate) fn add(&mut self, node: &Node) -> Vec<DeviceKind> {
        let mut new = Vec::new();
        for device in &node.record.devices {
            let memory = device.memory_bytes;
            if let Some(largest) = self.0.get_mut(&device.kind) {
                *largest = memory.max(*largest);
            } else if DeviceSheet::of(&device.kind).is_some() {
                self.0.insert(device.kind.clone(), memory);
                new.push(device.kind.clone());
            }
        }
        new
    }

    /// Adds the kinds of all nodes' devices, and the estimates for them where there is no profile, after a start of the gateway.
    pub(crate) fn restore(models: &Models, nodes: &Nodes, profiles: &mut ProfileTable) -> Self {
        let mut kinds = Self::default();
        for (_, node) in nodes.iter() {
            kinds.add(node);
        }
        for (kind, memory) in &kinds.0 {
            for (id, model) in models.iter() {
                if profiles.get(id, kind).is_none()
                    && let Some(profile) = estimate(model, kind, *memory)
                {
                    profiles.insert(id.clone(), kind.clone(), profile);
                }
            }
        }
        kinds
    }

    /// Returns the kinds.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &DeviceKind> {
        self.0.keys()
    }

    /// Returns the profile of a model on one of these kinds, as far as it can be estimated.
    pub(crate) fn estimate(&self, model: &Model, kind: &DeviceKind) -> Option<Profile> {
        estimate(model, kind, *self.0.get(kind)?)
    }
}
