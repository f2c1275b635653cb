//! The replicas of the stored plans, after a start of the gateway.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use packhorse_cluster::{Generation, ModelId, Program, Replica, ReplicaPhase};

use crate::{
    record::{PlanRecord, StoredCluster},
    rollout::{PlacedReplica, Rollout},
};

/// Returns the rollout of the newest plan, with the replicas of earlier plans that may still run.
pub(crate) fn restored_rollout(stored: &StoredCluster) -> Rollout {
    let models: BTreeMap<&ModelId, (Arc<Program>, Generation)> = stored
        .models
        .iter()
        .map(|record| {
            let program = Arc::new(record.spec.program.clone());
            (&record.spec.program.model, (program, record.after_plan))
        })
        .collect();
    let mut known = BTreeSet::new();
    let mut replicas = Vec::new();
    for (age, plan) in stored.plans.iter().enumerate() {
        let phase = if age == 0 {
            ReplicaPhase::Planned
        } else {
            ReplicaPhase::Superseded
        };
        for replica in &plan.replicas {
            // A model that was removed and registered again is another model of the same name.
            let Some((program, after_plan)) = models.get(&replica.spec.model) else {
                continue;
            };
            if *after_plan < plan.generation && known.insert(replica.id) {
                replicas.push(placed(stored, plan, replica, Arc::clone(program), phase));
            }
        }
    }
    Rollout::restore(replicas)
}

fn placed(
    stored: &StoredCluster,
    plan: &PlanRecord,
    replica: &Replica,
    program: Arc<Program>,
    phase: ReplicaPhase,
) -> PlacedReplica {
    let kind = plan.device_kinds.get(&replica.spec.device);
    let profile = kind.and_then(|kind| stored.profiles.get(&replica.spec.model, kind));
    let mut spec = replica.spec.with_model(program);
    // The memory of replicas that share a worker does not follow from their profiles.
    if spec.backbone.is_none() {
        spec.memory = profile.and_then(|profile| profile.memory(spec.batch_size));
    }
    Replica {
        id: replica.id,
        spec,
        phase,
        worker: replica.worker,
    }
}
