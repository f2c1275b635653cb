//! The kinds of device for which profiles can be estimated, and the estimates of models on them.

use std::collections::BTreeMap;

use packhorse_cluster::{ByteCount, DeviceKind, Profile, ProfileTable, Program};
use packhorse_estimator::{Coefficients, DeviceSheet};

use crate::{
    models::{Model, Models},
    nodes::{Node, Nodes},
};

/// Returns the batch sizes of an estimated profile, which are those of a measured one.
fn batch_sizes(program: &Program) -> Vec<u32> {
    let limit = program.rows_limit().max(1);
    let doubled = (0..32).map(|exponent| 1_u32 << exponent);
    let mut sizes: Vec<u32> = doubled.take_while(|size| *size < limit).collect();
    sizes.push(limit);
    sizes
}

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

#[cfg(test)]
mod tests {
    use packhorse_cluster::ArtifactDigest;

    use super::*;

    #[test]
    fn an_estimate_has_the_batch_sizes_of_a_measurement() {
        let program = |rows: u32| Program {
            model: "m".parse().unwrap(),
            artifact: ArtifactDigest::from_sha256([0; 32]),
            max_batch_size: rows,
            inputs: Vec::new(),
            outputs: Vec::new(),
        };
        assert_eq!(batch_sizes(&program(1)), [1]);
        assert_eq!(batch_sizes(&program(8)), [1, 2, 4, 8]);
        assert_eq!(batch_sizes(&program(12)), [1, 2, 4, 8, 12]);
    }
}
