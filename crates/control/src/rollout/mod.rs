//! The rollout of a plan: from the plan to the wanted state of every node and the replicas that the data plane serves, with new
//! replicas made before old ones are broken.
//!
//! A replica of an earlier plan continues to serve until all replicas of its model in the newest plan serve. Then the data plane
//! drains it, and only when it is drained it is no longer wanted. New replicas start beside it if the device's memory holds both.
//! Otherwise they wait until the earlier replicas have gone. Only if replicas would wait for each other forever, an earlier
//! replica is broken before its successor is made.
//!
//! Replicas that the new plan keeps are not touched. A new replica that fails takes no earlier one down. If the nodes cannot
//! execute a plan any more, because a node is lost or a program fails, the planner makes a plan without them, as it does for
//! cordoned and draining nodes.
//!
//! The wanted replicas of a device never exceed its memory if each plan alone does not. A replica that an agent
//! is still stopping counts as gone here, because agents start nothing on a device until its unwanted processes have ended.

mod deadlock;
mod identity;

use std::{
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
    sync::Arc,
};

use packhorse_cluster::{
    ByteCount, Capacity, ComputeShare, DeviceId, ModelId, NodeName, Program, ReplicaId,
    ReplicaState, ReplicaStatus, WantedProfile, WantedReplica, WantedState,
};

pub use identity::{Placement, assign_ids, replan};

/// A replica with its identity and the parameters that its node needs.
#[derive(Clone, Debug, PartialEq)]
pub struct PlacedReplica {
    /// The replica's identity while it exists.
    pub id: ReplicaId,
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

/// A replica of an earlier plan that the newest plan does not have, while it is still wanted.
#[derive(Clone, Debug, PartialEq)]
pub struct EarlierReplica {
    /// The replica.
    pub replica: PlacedReplica,
    /// True once the replica was told to drain, which is never revoked.
    pub draining: bool,
}

/// The state of a node as the control plane observes it.
#[derive(Clone, Debug, PartialEq)]
pub enum ObservedNode {
    /// The node has not reported since the gateway started, and its lease has not expired: its replicas are unknown.
    Awaited,
    /// The node holds its lease; with the replicas of its last report.
    Reporting(BTreeMap<ReplicaId, ReplicaStatus>),
    /// The node's lease has expired. Nodes without an entry count as lost.
    Lost,
}

/// The phase of the data plane's link to a replica that it was told to serve.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LinkPhase {
    /// There is no connection.
    Connecting,
    /// The replica gets batches.
    Serving,
    /// The replica gets no further batches, and has not answered all it got.
    Draining,
    /// The replica has answered all batches and gets no further ones.
    Drained,
}

/// The input of a rollout step.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RolloutInput {
    /// The replicas of the newest plan.
    pub plan: Vec<PlacedReplica>,
    /// The remaining replicas of earlier plans: [`RolloutOutcome::earlier`] of the step before, or the result of [`replan`] when
    /// the plan changes. After a start of the gateway: the replicas of stored plans that the newest does not have, not draining;
    /// the next step removes those that no node reports as ready.
    pub earlier: Vec<EarlierReplica>,
    /// The nodes, by name.
    pub nodes: BTreeMap<NodeName, ObservedNode>,
    /// The data plane's links; a replica that it was not told to serve yet has none.
    pub links: BTreeMap<ReplicaId, LinkPhase>,
    /// The measurements to make, by node name.
    pub profiles: BTreeMap<NodeName, Vec<WantedProfile>>,
}

/// The result of a rollout step.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RolloutOutcome {
    /// The wanted state of every node that reports. A node without an entry must report before it gets one.
    pub nodes: BTreeMap<NodeName, NodeWanted>,
    /// The replicas that the data plane connects to.
    pub serve: BTreeMap<ReplicaId, ServedReplica>,
    /// The remaining replicas of earlier plans, for the next [`RolloutInput`]. Empty once the rollout is complete.
    pub earlier: Vec<EarlierReplica>,
    /// The replicas of the plan that wait for memory which replicas of earlier plans hold.
    pub waiting: BTreeSet<ReplicaId>,
}

/// The replicas and measurements that are wanted of one node.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NodeWanted {
    /// The replicas that shall run, and no others, ordered by identity.
    pub replicas: Vec<WantedReplica>,
    /// The measurements that shall be made.
    pub profiles: Vec<WantedProfile>,
}

/// A replica whose worker accepts batches.
#[derive(Clone, Debug, PartialEq)]
pub struct ServedReplica {
    /// The replica.
    pub replica: PlacedReplica,
    /// The address on which the replica's worker listens.
    pub address: SocketAddr,
    /// The limits that the worker reported; none if it has not.
    pub capacity: Option<Capacity>,
    /// True if the replica gets no further batches.
    pub draining: bool,
}

impl NodeWanted {
    /// Converts this into the message to the node.
    pub fn into_state(self, epoch: u64, revision: u64) -> WantedState {
        WantedState {
            epoch,
            revision,
            replicas: self.replicas,
            profiles: self.profiles,
        }
    }
}

impl PlacedReplica {
    fn wanted(&self) -> WantedReplica {
        WantedReplica {
            id: self.id,
            program: Program::clone(&self.program),
            device: self.device.local().to_owned(),
            batch_size: self.batch_size,
            compute_share_pct: self.compute_share,
            memory_bytes: (self.memory > ByteCount::ZERO).then_some(self.memory),
            attempt: 0,
        }
    }

    fn model(&self) -> &ModelId {
        &self.program.model
    }
}

impl RolloutInput {
    /// Computes the next step. Equal input gives equal output, and a second step with [`RolloutOutcome::earlier`] as its only
    /// change of input gives the same output.
    pub fn step(&self) -> RolloutOutcome {
        let mut earlier = self.earlier.clone();
        earlier.retain(|e| self.plan.iter().all(|p| p.id != e.replica.id));
        earlier.sort_by_key(|e| e.replica.id);
        let started = loop {
            earlier.retain(|e| self.still_needed(e));
            let started = self.started(&earlier, &BTreeSet::new());
            let mut leaving = self.superseded(&earlier);
            leaving.extend(deadlock::victims(self, &earlier, &started));
            let mut changed = false;
            for e in &mut earlier {
                if leaving.contains(&e.replica.id) && !e.draining {
                    e.draining = true;
                    changed = true;
                }
            }
            if !changed {
                break started;
            }
        };
        RolloutOutcome {
            nodes: self.wanted(&earlier, &started),
            serve: self.serve(&earlier),
            waiting: self
                .plan
                .iter()
                .map(|p| p.id)
                .filter(|id| !started.contains(id))
                .collect(),
            earlier,
        }
    }

    /// Returns the status that the replica's node reported, if it did.
    fn status(&self, replica: &PlacedReplica) -> Option<&ReplicaStatus> {
        match self.nodes.get(replica.device.node())? {
            ObservedNode::Reporting(replicas) => replicas.get(&replica.id),
            ObservedNode::Awaited | ObservedNode::Lost => None,
        }
    }

    /// Returns the address on which the replica accepts batches, if it does.
    fn ready_address(&self, replica: &PlacedReplica) -> Option<SocketAddr> {
        let status = self.status(replica)?;
        status
            .address
            .filter(|_| status.state == ReplicaState::Ready)
    }

    /// Returns true if the replica gets batches.
    fn serves(&self, replica: &PlacedReplica) -> bool {
        self.ready_address(replica).is_some()
            && self.links.get(&replica.id) == Some(&LinkPhase::Serving)
    }

    /// Returns true if an earlier replica is still wanted. It is kept only while it answers requests; one that is not ready is
    /// not waited for.
    fn still_needed(&self, earlier: &EarlierReplica) -> bool {
        let replica = &earlier.replica;
        if self.nodes.get(replica.device.node()) == Some(&ObservedNode::Awaited) {
            return true;
        }
        let link = self.links.get(&replica.id);
        let computes = matches!(link, Some(LinkPhase::Serving | LinkPhase::Draining));
        self.ready_address(replica).is_some() && (computes || !earlier.draining)
    }

    /// Returns the earlier replicas of the models whose replicas in the plan all serve, and of those without a replica in the plan.
    fn superseded(&self, earlier: &[EarlierReplica]) -> BTreeSet<ReplicaId> {
        let incomplete: BTreeSet<&ModelId> = self
            .plan
            .iter()
            .filter(|p| !self.serves(p))
            .map(PlacedReplica::model)
            .collect();
        earlier
            .iter()
            .filter(|e| !incomplete.contains(e.replica.model()))
            .map(|e| e.replica.id)
            .collect()
    }

    /// Returns the replicas of the plan that may run beside the earlier ones without `gone`. Each device starts its replicas in a
    /// fixed order, first those that run already, then the others by identity, so that a started replica stays started.
    fn started(
        &self,
        earlier: &[EarlierReplica],
        gone: &BTreeSet<ReplicaId>,
    ) -> BTreeSet<ReplicaId> {
        let mut held: BTreeMap<&DeviceId, ByteCount> = BTreeMap::new();
        for e in earlier.iter().filter(|e| !gone.contains(&e.replica.id)) {
            let sum = held.entry(&e.replica.device).or_default();
            *sum = sum.saturating_add(e.replica.memory);
        }
        let mut order: Vec<&PlacedReplica> = self.plan.iter().collect();
        order.sort_by_key(|p| (self.status(p).is_none(), p.id));
        let mut full: BTreeSet<&DeviceId> = BTreeSet::new();
        let mut started = BTreeSet::new();
        for p in order {
            // Without earlier replicas no memory comes free later, and the plan itself keeps to the device's memory.
            if let Some(sum) = held.get_mut(&p.device) {
                let with = sum.saturating_add(p.memory);
                let fits = with <= p.device_memory && !full.contains(&p.device);
                if self.status(p).is_none() && !fits {
                    full.insert(&p.device);
                    continue;
                }
                *sum = with;
            }
            started.insert(p.id);
        }
        started
    }

    /// Returns the wanted state of each reporting node.
    fn wanted(
        &self,
        earlier: &[EarlierReplica],
        started: &BTreeSet<ReplicaId>,
    ) -> BTreeMap<NodeName, NodeWanted> {
        let mut nodes: BTreeMap<NodeName, NodeWanted> = self
            .nodes
            .iter()
            .filter(|(_, view)| matches!(view, ObservedNode::Reporting(_)))
            .map(|(name, _)| {
                let profiles = self.profiles.get(name).cloned().unwrap_or_default();
                let replicas = Vec::new();
                (name.clone(), NodeWanted { replicas, profiles })
            })
            .collect();
        let new = self.plan.iter().filter(|p| started.contains(&p.id));
        for replica in new.chain(earlier.iter().map(|e| &e.replica)) {
            if let Some(node) = nodes.get_mut(replica.device.node()) {
                node.replicas.push(replica.wanted());
            }
        }
        for node in nodes.values_mut() {
            node.replicas.sort_by_key(|replica| replica.id);
        }
        nodes
    }

    /// Returns the replicas that the data plane serves.
    fn serve(&self, earlier: &[EarlierReplica]) -> BTreeMap<ReplicaId, ServedReplica> {
        let new = self.plan.iter().map(|p| (p, false));
        let old = earlier.iter().map(|e| (&e.replica, e.draining));
        new.chain(old)
            .filter_map(|(replica, draining)| {
                let served = ServedReplica {
                    replica: replica.clone(),
                    address: self.ready_address(replica)?,
                    capacity: self.status(replica).and_then(|status| status.capacity),
                    draining,
                };
                Some((replica.id, served))
            })
            .collect()
    }
}

#[cfg(test)]
mod tests;
