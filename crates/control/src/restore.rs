//! The replicas of the stored plans, after a start of the gateway.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use packhorse_cluster::{
    ByteCount, Generation, ModelId, Program, Replica, ReplicaId, ReplicaPhase,
};

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
    let mut replicas: Vec<PlacedReplica> = Vec::new();
    // The memory of workers whose replica that stands for it is one of a model that was removed.
    let mut held: BTreeMap<ReplicaId, ByteCount> = BTreeMap::new();
    for (age, plan) in stored.plans.iter().enumerate() {
        let phase = if age == 0 {
            ReplicaPhase::Planned
        } else {
            ReplicaPhase::Superseded
        };
        for replica in &plan.replicas {
            // A model that was removed and registered again is another model of the same name.
            let model = models.get(&replica.spec.model);
            match model.filter(|(_, after_plan)| *after_plan < plan.generation) {
                Some((program, _)) if known.insert(replica.id) => {
                    replicas.push(placed(stored, plan, replica, Arc::clone(program), phase));
                }
                Some(_) => {}
                None => {
                    let memory = replica.spec.memory.unwrap_or_default();
                    let most = held.entry(replica.worker()).or_default();
                    *most = memory.max(*most);
                }
            }
        }
    }
    for replica in &mut replicas {
        if let Some(memory) = held.remove(&replica.worker()) {
            let own = replica.spec.memory.unwrap_or_default();
            replica.spec.memory = Some(own.saturating_add(memory));
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
