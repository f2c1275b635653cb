//! The identities of a new plan's replicas: replicas that exist already keep theirs.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
};

use packhorse_cluster::{
    BackboneId, DeviceId, Generation, Program, Replica, ReplicaId, ReplicaPhase, ReplicaSpec,
};

use super::observed::PlacedReplica;

/// Gives every replica of a plan an identity: that of an `existing` replica with the same program, device, batch size and compute
/// share, else a new one of this generation, numbered by its index in the plan. An existing replica is matched once, the oldest
/// first. Replicas that share a worker keep their identities only together. Draining replicas must not be among `existing`, because draining is never revoked.
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
    let mut replicas: Vec<PlacedReplica> = Vec::new();
    let mut new_workers: BTreeSet<(DeviceId, BackboneId)> = BTreeSet::new();
    for (spec, number) in plan.into_iter().zip(0..) {
        let kept = by_device.get_mut(&spec.device).and_then(|replicas| {
            let index = replicas.iter().position(|r| runs_as(&r.spec, &spec))?;
            replicas.remove(index)
        });
        if let (None, Some(backbone)) = (kept, spec.backbone) {
            new_workers.insert((spec.device.clone(), backbone));
        }
        replicas.push(Replica {
            id: kept.map_or(ReplicaId { generation, number }, |replica| replica.id),
            spec,
            phase: ReplicaPhase::Planned,
            worker: kept.and_then(|replica| replica.worker),
        });
    }
    begin_workers(generation, &mut replicas, &new_workers);
    replicas
}

/// Gives the replicas of these shared workers new identities, and that of the first to each worker. A worker cannot begin to run one more
/// replica.
fn begin_workers(
    generation: Generation,
    replicas: &mut [PlacedReplica],
    new_workers: &BTreeSet<(DeviceId, BackboneId)>,
) {
    let mut workers: BTreeMap<(DeviceId, BackboneId), ReplicaId> = BTreeMap::new();
    for (replica, number) in replicas.iter_mut().zip(0..) {
        let Some(backbone) = replica.spec.backbone else {
            continue;
        };
        let key = (replica.spec.device.clone(), backbone);
        if new_workers.contains(&key) {
            replica.id = ReplicaId { generation, number };
            replica.worker = Some(*workers.entry(key).or_insert(replica.id));
        }
    }
}

/// Returns true if a worker that runs one replica can run the other unchanged. Duty cycle, planned memory and the place of weights may differ.
fn runs_as(one: &ReplicaSpec<Arc<Program>>, other: &ReplicaSpec<Arc<Program>>) -> bool {
    one.model == other.model
        && one.device == other.device
        && one.batch_size == other.batch_size
        && one.compute_share == other.compute_share
        && one.backbone == other.backbone
        && one.pool.is_some() == other.pool.is_some()
}
