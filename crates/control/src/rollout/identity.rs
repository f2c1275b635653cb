//! The identities of a new plan's replicas: replicas that exist already keep theirs.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
};

use packhorse_cluster::{ByteCount, ComputeShare, DeviceId, Generation, Program, ReplicaId};

use super::{EarlierReplica, PlacedReplica};

/// A replica of a plan without an identity.
#[derive(Clone, Debug, PartialEq)]
pub struct Placement {
    /// The program that the replica runs.
    pub program: Arc<Program>,
    /// The device that the replica runs on.
    pub device: DeviceId,
    /// The total memory of the device.
    pub device_memory: ByteCount,
    /// The largest number of rows in one batch.
    pub batch_size: u32,
    /// The share of the multiprocessors that the replica may use; `None` sets no limit.
    pub compute_share: Option<ComputeShare>,
    /// The device memory that the replica needs according to its profile; zero if unknown.
    pub memory: ByteCount,
}

/// Gives every replica of a plan an identity: that of an `existing` replica with the same program, device, batch size and compute
/// share, else a new one of this generation, numbered by its index in the plan. An existing replica is matched once, the oldest
/// first. Draining replicas must not be among `existing`, because draining is never revoked.
pub fn assign_ids<'a>(
    generation: Generation,
    plan: &[Placement],
    existing: impl IntoIterator<Item = &'a PlacedReplica>,
) -> Vec<PlacedReplica> {
    let mut by_device: BTreeMap<&DeviceId, VecDeque<&PlacedReplica>> = BTreeMap::new();
    for replica in existing {
        by_device
            .entry(&replica.device)
            .or_default()
            .push_back(replica);
    }
    for replicas in by_device.values_mut() {
        replicas.make_contiguous().sort_by_key(|replica| replica.id);
    }
    plan.iter()
        .zip(0..)
        .map(|(placement, number)| {
            let kept = by_device.get_mut(&placement.device).and_then(|replicas| {
                let index = replicas.iter().position(|r| placement.matches(r))?;
                replicas.remove(index)
            });
            let id = kept.map_or(ReplicaId { generation, number }, |replica| replica.id);
            placement.with_id(id)
        })
        .collect()
}

/// Replaces a plan by the next. Returns the new plan with its identities and the remaining replicas of earlier plans, for the next
/// [`RolloutInput`](super::RolloutInput).
pub fn replan(
    generation: Generation,
    placements: &[Placement],
    plan: &[PlacedReplica],
    earlier: &[EarlierReplica],
) -> (Vec<PlacedReplica>, Vec<EarlierReplica>) {
    let undrained = earlier.iter().filter(|e| !e.draining).map(|e| &e.replica);
    let next = assign_ids(generation, placements, plan.iter().chain(undrained));
    let kept: BTreeSet<ReplicaId> = next.iter().map(|replica| replica.id).collect();
    let left = plan.iter().map(|replica| EarlierReplica {
        replica: replica.clone(),
        draining: false,
    });
    let left = earlier
        .iter()
        .cloned()
        .chain(left)
        .filter(|e| !kept.contains(&e.replica.id))
        .collect();
    (next, left)
}

impl Placement {
    /// Returns true if an existing replica can take this placement unchanged.
    fn matches(&self, replica: &PlacedReplica) -> bool {
        self.program == replica.program
            && self.device == replica.device
            && self.batch_size == replica.batch_size
            && self.compute_share == replica.compute_share
    }

    fn with_id(&self, id: ReplicaId) -> PlacedReplica {
        PlacedReplica {
            id,
            program: Arc::clone(&self.program),
            device: self.device.clone(),
            device_memory: self.device_memory,
            batch_size: self.batch_size,
            compute_share: self.compute_share,
            memory: self.memory,
        }
    }
}
