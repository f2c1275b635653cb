//! Which of a new plan's replicas are replicas that there are already.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
};

use packhorse_cluster::{ByteCount, ComputeShare, DeviceId, Generation, Program, ReplicaId};

use super::{EarlierReplica, PlacedReplica};

/// A replica of a plan before it has an identity.
#[derive(Clone, Debug, PartialEq)]
pub struct Placement {
    /// What it runs.
    pub program: Arc<Program>,
    /// Where.
    pub device: DeviceId,
    /// All memory of that device.
    pub device_memory: ByteCount,
    /// The most rows of one batch.
    pub batch_size: u32,
    /// The share of the multiprocessors it may use; `None` sets no limit.
    pub compute_share: Option<ComputeShare>,
    /// What it needs of the device's memory, by its profile; zero where that is not known.
    pub memory: ByteCount,
}

/// Gives every replica of a plan its identity: that of an `existing` one if program, device, batch size and share are the same,
/// else a new one of this generation, numbered by its place in the plan. An existing replica is matched once, the oldest first.
/// Replicas that drain must not be among `existing`: draining is never taken back.
pub fn place_ids<'a>(
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
                let index = replicas.iter().position(|r| placement.is_served_by(r))?;
                replicas.remove(index)
            });
            let id = kept.map_or(ReplicaId { generation, number }, |replica| replica.id);
            placement.with_id(id)
        })
        .collect()
}

/// The step from one plan to the next: the new plan with its identities, and what is left of the plans before it. Both go into
/// the next [`Situation`](super::Situation).
pub fn replan(
    generation: Generation,
    placements: &[Placement],
    plan: &[PlacedReplica],
    earlier: &[EarlierReplica],
) -> (Vec<PlacedReplica>, Vec<EarlierReplica>) {
    let undrained = earlier.iter().filter(|e| !e.draining).map(|e| &e.replica);
    let next = place_ids(generation, placements, plan.iter().chain(undrained));
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
    fn is_served_by(&self, replica: &PlacedReplica) -> bool {
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
