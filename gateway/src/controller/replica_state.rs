//! The replicas and devices of the cluster, for metrics.

use std::collections::BTreeMap;

use packhorse_cluster::{ByteCount, ModelId, ReplicaId};
use packhorse_control::{Controller, LinkState};

use crate::telemetry::{DeviceMemory, ReplicaState};

/// The restarts of workers, counted for their models: a replica that goes takes its own number with it.
#[derive(Debug, Default)]
pub(super) struct RestartCounts {
    /// The numbers that were last reported of the present replicas.
    seen: BTreeMap<ReplicaId, u32>,
    of_models: BTreeMap<ModelId, u64>,
}

impl RestartCounts {
    /// Returns the replicas and devices as they are now.
    pub(super) fn replica_state(&mut self, controller: &Controller) -> ReplicaState {
        let mut state = ReplicaState::default();
        let mut seen = BTreeMap::new();
        for (model, _) in controller.models() {
            let of_model = state.models.entry(model.clone()).or_default();
            for replica in controller.replicas_of(model) {
                of_model.planned += u64::from(replica.is_planned());
                let link = controller.link(replica.id);
                of_model.serving += u64::from(link == Some(&LinkState::Serving));
                let Some(status) = controller.replica_status(replica) else {
                    continue;
                };
                if let Some(bytes) = status.memory_bytes {
                    let place = (model.clone(), replica.spec.device.clone());
                    *state.memory.entry(place).or_default() += bytes.as_u64();
                }
                let before = self.seen.get(&replica.id).copied().unwrap_or_default();
                let more = u64::from(status.restarts.saturating_sub(before));
                *self.of_models.entry(model.clone()).or_default() += more;
                seen.insert(replica.id, status.restarts.max(before));
            }
            of_model.restarts = self.of_models.get(model).copied().unwrap_or_default();
        }
        self.seen = seen;
        self.of_models
            .retain(|model, _| state.models.contains_key(model));
        for (_, node) in controller.nodes() {
            for (id, device) in node.devices() {
                let needed = controller.replicas_on(&id);
                let needed = needed.filter_map(|replica| replica.spec.memory);
                let memory = DeviceMemory {
                    kind: device.kind.clone(),
                    total: device.memory_bytes.as_u64(),
                    planned: needed.map(ByteCount::as_u64).sum(),
                };
                state.devices.insert(id, memory);
            }
        }
        state
    }
}
