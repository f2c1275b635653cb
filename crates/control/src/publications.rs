//! The wanted states and the targets that were last published: only changes are published again.

use std::{collections::BTreeMap, sync::Arc};

use packhorse_cluster::{
    ModelId, NodeName, Program, ReplicaId, WantedProfile, WantedReplica, WantedState,
};

use crate::effect::{ServeChange, Target};

/// The wanted states of the nodes and the targets of the data plane, as they were last published.
#[derive(Clone, Debug, Default)]
pub(crate) struct Publications {
    wanted: BTreeMap<NodeName, Arc<WantedState>>,
    /// The last revision of any node. A node that was removed and comes back may remember those that it had.
    revision: u64,
    /// None for a target that the data plane has lost with its model.
    served: BTreeMap<ReplicaId, Option<Target>>,
}

impl Publications {
    /// Returns the next revision of a node's wanted state, if it has changed.
    pub(crate) fn publish(
        &mut self,
        epoch: u64,
        node: &NodeName,
        replicas: Vec<WantedReplica>,
        profiles: Vec<WantedProfile>,
        inspections: Vec<Program>,
    ) -> Option<Arc<WantedState>> {
        let before = self.wanted.get(node);
        if before.is_some_and(|old| {
            old.epoch == epoch
                && old.replicas == replicas
                && old.profiles == profiles
                && old.inspections == inspections
        }) {
            return None;
        }
        self.revision += 1;
        let state = Arc::new(WantedState {
            epoch,
            revision: self.revision,
            replicas,
            profiles,
            inspections,
        });
        self.wanted.insert(node.clone(), Arc::clone(&state));
        Some(state)
    }

    /// Returns the revision of a node's wanted state; `None` before the first.
    pub(crate) fn revision(&self, node: &NodeName) -> Option<u64> {
        Some(self.wanted.get(node)?.revision)
    }

    /// Forgets a node that was removed.
    pub(crate) fn remove_node(&mut self, node: &NodeName) {
        self.wanted.remove(node);
    }

    /// Forgets what was published of a model's replicas: the data plane loses them with the model, and gets them again if another one of the same name
    /// takes them over.
    pub(crate) fn remove_model(&mut self, model: &ModelId) {
        for served in self.served.values_mut() {
            if served
                .as_ref()
                .is_some_and(|target| target.replica.spec.model.model == *model)
            {
                *served = None;
            }
        }
    }

    /// Returns the change of the data plane for a replica with this target, if it has changed.
    pub(crate) fn serve(&mut self, id: ReplicaId, target: Option<Target>) -> Option<ServeChange> {
        match target {
            Some(target)
                if self
                    .served
                    .get(&id)
                    .is_some_and(|served| served.as_ref() == Some(&target)) =>
            {
                None
            }
            Some(target) => {
                self.served.insert(id, Some(target.clone()));
                Some(ServeChange::Replica(Box::new(target)))
            }
            None => {
                self.served.remove(&id)?;
                Some(ServeChange::RemoveReplica(id))
            }
        }
    }
}
