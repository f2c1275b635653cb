//! Moves what runs towards the plan: tells nodes what is wanted of them and the data plane what to serve, as `control` decides.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use packhorse_cluster::{NodeName, ReplicaId, WantedState};
use packhorse_control::rollout::{LinkPhase, ObservedNode, NodeWanted, ServedReplica, RolloutInput};

use super::{
    cluster::Cluster,
    nodes::{Lease, Node},
};
use crate::{
    driver::{LinkState, Target, TargetReplica},
    store::StoredReplica,
};

/// What the data plane was told last.
pub(super) struct Published {
    serve: BTreeMap<ReplicaId, ServedReplica>,
    /// Models, profiles or the discipline are others than it was told.
    pub(super) outdated: bool,
}

impl Default for Published {
    fn default() -> Self {
        Self {
            serve: BTreeMap::new(),
            outdated: true,
        }
    }
}

impl Cluster {
    /// Takes one step of the rollout.
    pub(super) fn roll(&mut self) {
        let situation = RolloutInput {
            plan: self.plan.replicas.clone(),
            earlier: std::mem::take(&mut self.earlier),
            nodes: self
                .nodes
                .iter()
                .map(|(name, node)| (name.clone(), self.seen(node)))
                .collect(),
            links: self.links.iter().map(|(id, s)| (*id, link(s))).collect(),
            profiles: self.wanted_profiles(),
        };
        let rollout = situation.step();
        self.earlier = rollout.earlier;
        self.waiting = rollout.waiting;
        for (name, wanted) in rollout.nodes {
            self.publish_wanted(&name, wanted);
        }
        self.publish_target(rollout.serve);
    }

    /// How a node looks to the rollout. Where an agent is silent, its workers may well go on: as long as they answer, they are
    /// taken at their last word.
    fn seen(&self, node: &Node) -> ObservedNode {
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
            self.measuring.published(name, revision);
        }
    }

    fn publish_target(&mut self, mut serve: BTreeMap<ReplicaId, ServedReplica>) {
        // A model that was removed, or registered anew as another, is not what these replicas serve.
        serve.retain(|_, served| {
            let program = &served.replica.program;
            let model = self.models.get(&program.model);
            model.is_some_and(|model| model.program == *program)
        });
        if serve == self.published.serve && !self.published.outdated {
            return;
        }
        let stored = self.plan.stored.iter().flat_map(|plan| &plan.replicas);
        let shared_in_time = |replica: &&StoredReplica| replica.duty_cycle_ms.is_some();
        let shared_in_time: BTreeSet<_> = stored.filter(shared_in_time).map(|r| r.id).collect();
        let target_replica = |id: &ReplicaId, served: &ServedReplica| {
            let replica = self.target_replica(served, shared_in_time.contains(id))?;
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
        self.published = Published {
            serve,
            outdated: false,
        };
    }

    fn target_replica(&self, served: &ServedReplica, takes_turns: bool) -> Option<TargetReplica> {
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
            takes_turns,
            profile: Arc::new(profile.clone()),
            draining: served.draining,
        })
    }
}

fn link(state: &LinkState) -> LinkPhase {
    match state {
        LinkState::Connecting { .. } => LinkPhase::Connecting,
        LinkState::Serving => LinkPhase::Serving,
        LinkState::Draining => LinkPhase::Draining,
        LinkState::Drained => LinkPhase::Drained,
    }
}
