//! The identities of a new plan's replicas: replicas that exist already keep theirs.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
};

use packhorse_cluster::{
    DeviceId, Generation, Program, Replica, ReplicaId, ReplicaPhase, ReplicaSpec,
};

use super::observed::PlacedReplica;

/// Gives every replica of a plan an identity: that of an `existing` replica with the same program, device, batch size and compute
/// share, else a new one of this generation, numbered by its index in the plan. An existing replica is matched once, the oldest
/// first. Draining replicas must not be among `existing`, because draining is never revoked.
pub(crate) fn assign_ids<'a>(
    generation: Generation,
    plan: Vec<ReplicaSpec<Arc<Program>>>,
    existing: impl IntoIterator<Item = &'a PlacedReplica>,
) -> Vec<PlacedReplica> {
    let mut by_device: BTreeMap<&DeviceId, VecDeque<&PlacedReplica>> = BTreeMap::new();
    for replica in existing {
        let on_device = by_device.entry(&replica.spec.device).or_default();
        on_device.push_back(replica);
    }
    for replicas in by_device.values_mut() {
        replicas.make_contiguous().sort_by_key(|replica| replica.id);
    }
    plan.into_iter()
        .zip(0..)
        .map(|(spec, number)| {
            let kept = by_device.get_mut(&spec.device).and_then(|replicas| {
                let index = replicas.iter().position(|r| runs_as(&r.spec, &spec))?;
                replicas.remove(index)
            });
            Replica {
                id: kept.map_or(ReplicaId { generation, number }, |replica| replica.id),
                spec,
                phase: ReplicaPhase::Planned,
            }
        })
        .collect()
}

/// Returns true if a worker that runs one replica can run the other unchanged. Duty cycle and planned memory may differ.
fn runs_as(one: &ReplicaSpec<Arc<Program>>, other: &ReplicaSpec<Arc<Program>>) -> bool {
    one.model == other.model
        && one.device == other.device
        && one.batch_size == other.batch_size
        && one.compute_share == other.compute_share
}
