//! The rollout of the current plan: publishes the wanted states of the nodes and the target of the data plane, as `control`
//! decides.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use packhorse_cluster::{NodeName, ReplicaId, WantedState};
use packhorse_control::rollout::{
    LinkPhase, NodeWanted, ObservedNode, RolloutInput, ServedReplica,
};

use super::{
    cluster::Cluster,
    nodes::{Lease, Node},
};
use crate::{
    driver::{LinkState, Target, TargetReplica},
    store::StoredReplica,
};

/// The target that was last published to the data plane.
pub(super) struct PublishedTarget {
    /// The replicas in the target.
    serve: BTreeMap<ReplicaId, ServedReplica>,
    /// True if models, profiles or the discipline have changed since.
    pub(super) outdated: bool,
}

impl Default for PublishedTarget {
    fn default() -> Self {
        Self {
            serve: BTreeMap::new(),
            outdated: true,
        }
    }
}

impl Cluster {
    /// Takes one step of the rollout.
    pub(super) fn advance_rollout(&mut self) {
        let input = RolloutInput {
            plan: self.plan.replicas.clone(),
            earlier: std::mem::take(&mut self.earlier),
            nodes: self
                .nodes
                .iter()
                .map(|(name, node)| (name.clone(), self.observed(node)))
                .collect(),
            links: self
                .links
                .iter()
                .map(|(id, s)| (*id, link_phase(s)))
                .collect(),
            profiles: self.wanted_profiles(),
        };
        let outcome = input.step();
        self.earlier = outcome.earlier;
        self.waiting = outcome.waiting;
        for (name, wanted) in outcome.nodes {
            self.publish_wanted(&name, wanted);
        }
        self.publish_target(outcome.serve);
    }

    /// Returns the state of a node for the rollout. The workers of a node whose lease has expired may still run: as long as they
    /// answer, the last report counts.
    fn observed(&self, node: &Node) -> ObservedNode {
        match (&node.lease, &node.report) {
            (Lease::Held { .. }, Some(report)) => ObservedNode::Reporting(report.replicas.clone()),
            (Lease::Held { .. } | Lease::Awaited { .. }, _) => ObservedNode::Awaited,
            (Lease::Lost, report) => {
                let mut last = report
                    .as_ref()
                    .map(|report| report.replicas.clone())
                    .unwrap_or_default();
                last.retain(|id, _| {
                    matches!(
                        self.links.get(id),
                        Some(LinkState::Serving | LinkState::Draining)
                    )
                });
                if last.is_empty() {
                    ObservedNode::Lost
                } else {
                    ObservedNode::Reporting(last)
                }
            }
        }
    }

    /// Publishes the wanted state of a node as a new revision, if it has changed.
    fn publish_wanted(&mut self, name: &NodeName, wanted: NodeWanted) {
        let Some(node) = self.nodes.get(name) else {
            return;
        };
        let epoch = self.epoch;
        node.wanted.send_if_modified(|state| {
            let same = |old: &WantedState| {
                old.replicas == wanted.replicas && old.profiles == wanted.profiles
            };
            if state.as_ref().is_some_and(same) {
                return false;
            }
            let revision = state.as_ref().map_or(1, |old| old.revision + 1);
            *state = Some(wanted.into_state(epoch, revision));
            true
        });
        let revision = node.wanted.borrow().as_ref().map(|state| state.revision);
        if let Some(revision) = revision {
            self.measurements.published(name, revision);
        }
    }

    /// Publishes the target of the data plane, if it has changed.
    fn publish_target(&mut self, mut serve: BTreeMap<ReplicaId, ServedReplica>) {
        // Replicas of a model that was removed, or registered again with another program, no longer serve a model.
        serve.retain(|_, served| {
            let program = &served.replica.program;
            let model = self.models.get(&program.model);
            model.is_some_and(|model| model.program == *program)
        });
        if serve == self.published.serve && !self.published.outdated {
            return;
        }
        let stored = self.plan.stored.iter().flat_map(|plan| &plan.replicas);
        let is_time_shared = |replica: &&StoredReplica| replica.duty_cycle_ms.is_some();
        let time_shared: BTreeSet<_> = stored.filter(is_time_shared).map(|r| r.id).collect();
        let target_replica = |id: &ReplicaId, served: &ServedReplica| {
            let replica = self.target_replica(served, time_shared.contains(id))?;
            Some((*id, replica))
        };
        let target = Target {
            models: self
                .models
                .iter()
                .map(|(id, model)| (id.clone(), Arc::clone(&model.spec)))
                .collect(),
            replicas: serve
                .iter()
                .filter_map(|(id, served)| target_replica(id, served))
                .collect(),
            discipline: self.discipline,
        };
        self.data_plane.set_target(target);
        self.published = PublishedTarget {
            serve,
            outdated: false,
        };
    }

    /// Converts a served replica into one of the target; `None` if its node, device or profile is unknown.
    fn target_replica(&self, served: &ServedReplica, time_shared: bool) -> Option<TargetReplica> {
        let replica = &served.replica;
        let node = self.nodes.get(replica.device.node())?;
        let kind = &node.device(replica.device.local())?.kind;
        let profile = self.profiles.get(&replica.program.model, kind)?;
        Some(TargetReplica {
            model: replica.program.model.clone(),
            address: served.address,
            batch_size: replica.batch_size,
            capacity: served.capacity,
            compute_share: replica.compute_share,
            device: replica.device.clone(),
            time_shared,
            profile: Arc::new(profile.clone()),
            draining: served.draining,
        })
    }
}

/// Returns the phase of a link for the rollout.
fn link_phase(state: &LinkState) -> LinkPhase {
    match state {
        LinkState::Connecting { .. } => LinkPhase::Connecting,
        LinkState::Serving | LinkState::Ejected { .. } => LinkPhase::Serving,
        LinkState::Draining => LinkPhase::Draining,
        LinkState::Drained => LinkPhase::Drained,
    }
}
