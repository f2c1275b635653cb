//! The keys of models and replicas in the engine.

use packhorse_serving::{ModelKey, ReplicaKey};

/// Returns the key of the model with this index in the scenario.
pub(super) fn model_key(model: usize) -> ModelKey {
    ModelKey(u32::try_from(model).expect("a scenario's models are limited"))
}

/// Returns the key of the replica with this index in the simulation.
pub(super) fn replica_key(replica: usize) -> ReplicaKey {
    ReplicaKey(u32::try_from(replica).expect("a plan's replicas are limited"))
}
