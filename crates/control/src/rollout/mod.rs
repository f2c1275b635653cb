//! From a plan to what is wanted of every node and what the data plane shall serve: make before break.
//!
//! A replica of an earlier plan goes on serving until all replicas of its model that the newest plan has are serving; then the
//! data plane drains it, and only when it is drained it is no longer wanted. New replicas start beside it if the device's memory
//! holds both. Where it does not, they wait until the earlier ones have gone by themselves; only where all would wait for each
//! other an earlier replica is broken before the new one is made.
//!
//! What the plan leaves alone is never touched. A new replica that fails takes no earlier one down. A plan that the nodes cannot
//! follow any more, because a node is lost or a program fails, is the planner's business, as are cordoned and draining nodes: it
//! makes a plan without them.
//!
//! A device never has more wanted of it than its memory holds, provided that each plan alone keeps to that. What an agent still
//! stops counts as gone here, because agents start nothing on a device until what is not wanted there has ended.

mod place;
mod stuck;

use std::{
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
    sync::Arc,
};

use packhorse_cluster::{
    ByteCount, Capacity, ComputeShare, DeviceId, ModelId, NodeName, Program, ReplicaId,
    ReplicaState, ReplicaStatus, WantedProfile, WantedReplica, WantedState,
};

pub use place::{Placement, place_ids, replan};

/// A replica with its identity and all that its node needs to know of it.
#[derive(Clone, Debug, PartialEq)]
pub struct PlacedReplica {
    /// Its identity for as long as it lives.
    pub id: ReplicaId,
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

/// A replica that an earlier plan had and the newest has not, while it is still wanted.
#[derive(Clone, Debug, PartialEq)]
pub struct EarlierReplica {
    /// The replica.
    pub replica: PlacedReplica,
    /// It was told to drain. That is never taken back.
    pub draining: bool,
}

/// How the control plane stands with a node.
#[derive(Clone, Debug, PartialEq)]
pub enum NodeView {
    /// It has not reported since the gateway started, and its lease has not run out: nothing is known of it, nothing concluded.
    Awaited,
    /// It holds its lease; this is its last report.
    Reporting(BTreeMap<ReplicaId, ReplicaStatus>),
    /// Its lease has run out. Nodes that are not mentioned count as lost.
    Lost,
}

/// How the data plane stands with a replica it was told to serve.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Link {
    /// There is no connection now.
    Connecting,
    /// It gets batches.
    Serving,
    /// It gets no further batches and still computes.
    Draining,
    /// It has answered everything and gets nothing more.
    Drained,
}

/// Everything a rollout step looks at.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Situation {
    /// The replicas of the newest plan.
    pub plan: Vec<PlacedReplica>,
    /// What is left of earlier plans: [`Rollout::earlier`] of the step before, or what [`replan`] gives when the plan changes.
    /// After a start of the gateway: the replicas of stored plans that the newest has not, not draining; those that no node
    /// reports as ready fall away by themselves.
    pub earlier: Vec<EarlierReplica>,
    /// The nodes.
    pub nodes: BTreeMap<NodeName, NodeView>,
    /// The data plane's connections; a replica that it does not know yet has none.
    pub links: BTreeMap<ReplicaId, Link>,
    /// The measurements to make, by node.
    pub profiles: BTreeMap<NodeName, Vec<WantedProfile>>,
}

/// What shall be now.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Rollout {
    /// What is wanted of every node that reports. A node that is not here is told nothing yet: it must report first.
    pub nodes: BTreeMap<NodeName, NodeWanted>,
    /// The replicas that the data plane shall connect to.
    pub serve: BTreeMap<ReplicaId, ServedReplica>,
    /// What is left of earlier plans: goes into the next [`Situation`]. Empty once the rollout is complete.
    pub earlier: Vec<EarlierReplica>,
    /// Replicas of the plan that wait for memory which earlier ones still hold.
    pub waiting: BTreeSet<ReplicaId>,
}

/// What is wanted of one node.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NodeWanted {
    /// The replicas that shall run, by identity, and no others.
    pub replicas: Vec<WantedReplica>,
    /// The measurements that shall be made.
    pub profiles: Vec<WantedProfile>,
}

/// A replica whose worker takes batches.
#[derive(Clone, Debug, PartialEq)]
pub struct ServedReplica {
    /// The replica.
    pub replica: PlacedReplica,
    /// Where its worker listens.
    pub address: SocketAddr,
    /// What its worker is capable of, where it says so.
    pub capacity: Option<Capacity>,
    /// It gets no further batch.
    pub draining: bool,
}

impl NodeWanted {
    /// The message to the node.
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
        }
    }

    fn model(&self) -> &ModelId {
        &self.program.model
    }
}

impl Situation {
    /// What shall be now. The same situation gives the same answer, and with [`Rollout::earlier`] fed back but nothing else
    /// changed it stays the same.
    pub fn step(&self) -> Rollout {
        let mut earlier = self.earlier.clone();
        earlier.retain(|e| self.plan.iter().all(|p| p.id != e.replica.id));
        earlier.sort_by_key(|e| e.replica.id);
        let started = loop {
            earlier.retain(|e| self.still_needed(e));
            let started = self.started(&earlier, &BTreeSet::new());
            let mut leaving = self.superseded(&earlier);
            leaving.extend(stuck::victims(self, &earlier, &started));
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
        Rollout {
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

    fn status(&self, replica: &PlacedReplica) -> Option<&ReplicaStatus> {
        match self.nodes.get(replica.device.node())? {
            NodeView::Reporting(replicas) => replicas.get(&replica.id),
            NodeView::Awaited | NodeView::Lost => None,
        }
    }

    /// Where a replica takes batches, if it does.
    fn ready_at(&self, replica: &PlacedReplica) -> Option<SocketAddr> {
        let status = self.status(replica)?;
        status
            .address
            .filter(|_| status.state == ReplicaState::Ready)
    }

    fn serves(&self, replica: &PlacedReplica) -> bool {
        self.ready_at(replica).is_some() && self.links.get(&replica.id) == Some(&Link::Serving)
    }

    /// An earlier replica is kept only for the requests it answers: one that is not ready is not worth waiting for.
    fn still_needed(&self, earlier: &EarlierReplica) -> bool {
        let replica = &earlier.replica;
        if self.nodes.get(replica.device.node()) == Some(&NodeView::Awaited) {
            return true;
        }
        let link = self.links.get(&replica.id);
        let computes = matches!(link, Some(Link::Serving | Link::Draining));
        self.ready_at(replica).is_some() && (computes || !earlier.draining)
    }

    /// Earlier replicas of models whose replicas in the plan all serve, or that have none there.
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

    /// The replicas of the plan that may run beside the earlier ones, `gone` aside. On each device they start in a fixed order,
    /// what runs already first and the rest by identity, so that what was started once stays started.
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
            // Without earlier replicas there is nothing to wait for: the plan answers for its own sum.
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

    fn wanted(
        &self,
        earlier: &[EarlierReplica],
        started: &BTreeSet<ReplicaId>,
    ) -> BTreeMap<NodeName, NodeWanted> {
        let mut nodes: BTreeMap<NodeName, NodeWanted> = self
            .nodes
            .iter()
            .filter(|(_, view)| matches!(view, NodeView::Reporting(_)))
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

    fn serve(&self, earlier: &[EarlierReplica]) -> BTreeMap<ReplicaId, ServedReplica> {
        let new = self.plan.iter().map(|p| (p, false));
        let old = earlier.iter().map(|e| (&e.replica, e.draining));
        new.chain(old)
            .filter_map(|(replica, draining)| {
                let served = ServedReplica {
                    replica: replica.clone(),
                    address: self.ready_at(replica)?,
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
