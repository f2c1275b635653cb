//! The decision of one step of a rollout, as a pure function of replicas and what is observed of them.

use std::collections::{BTreeMap, BTreeSet};

use packhorse_cluster::{ModelId, ReplicaId};

use super::{
    deadlock,
    observed::{EarlierReplica, ObservedReplica, StepInput},
};

/// The result of a step.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct StepOutcome {
    /// The replicas of the plan that shall run. The others wait for memory which replicas of earlier plans hold.
    pub(super) started: BTreeSet<ReplicaId>,
    /// The remaining replicas of earlier plans; the value is true if they drain.
    pub(super) earlier: BTreeMap<ReplicaId, bool>,
    /// The replicas of earlier plans that drain although their successors do not serve yet.
    pub(super) broken: BTreeSet<ReplicaId>,
}

impl StepInput<'_> {
    /// Computes the step. Equal input gives equal output, and a second step with the phases of the first as its only change of input
    /// gives the same output.
    pub(super) fn step(&self) -> StepOutcome {
        let mut earlier = self.earlier.clone();
        let mut broken = BTreeSet::new();
        let started = loop {
            // The replicas of a worker leave together, with its memory.
            let needed = earlier.iter().filter(|e| e.still_needed());
            let workers: BTreeSet<ReplicaId> = needed.map(EarlierReplica::worker).collect();
            earlier.retain(|e| workers.contains(&e.worker()));
            let started = self.started(&earlier, &BTreeSet::new());
            let superseded = self.superseded(&earlier);
            let victims = deadlock::victims(self, &earlier, &started);
            let mut changed = false;
            for e in &mut earlier {
                let leaves = superseded.contains(&e.id()) || victims.contains(&e.id());
                if leaves && !e.draining && !e.kept {
                    e.draining = true;
                    changed = true;
                    if !superseded.contains(&e.id()) {
                        broken.insert(e.id());
                    }
                }
            }
            if !changed {
                break started;
            }
        };
        StepOutcome {
            started,
            earlier: earlier.iter().map(|e| (e.id(), e.draining)).collect(),
            broken,
        }
    }

    /// Returns the earlier replicas of the models whose replicas in the plan all serve, and of those without a replica in the plan.
    /// Those of a version that hands its requests over stay.
    fn superseded(&self, earlier: &[EarlierReplica<'_>]) -> BTreeSet<ReplicaId> {
        let incomplete: BTreeSet<&ModelId> = self
            .planned
            .iter()
            .filter(|p| !p.serves())
            .map(ObservedReplica::model)
            .collect();
        earlier
            .iter()
            .filter(|e| !incomplete.contains(e.observed.model()))
            .filter(|e| !self.successors.contains_key(e.observed.model()))
            .map(EarlierReplica::id)
            .collect()
    }
}
