//! Replicas, and what is observed of them.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
    sync::Arc,
};

use packhorse_cluster::{
    ByteCount, DeviceId, ModelId, Program, Replica, ReplicaId, ReplicaState, ReplicaStatus,
};

/// A replica with the program that it runs.
pub(crate) type PlacedReplica = Replica<Arc<Program>>;

/// The phase of a node, as far as its replicas are concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NodePhase {
    /// The node has not reported since the gateway started, and its lease has not expired: its replicas are unknown.
    Awaited,
    /// The last report of the node counts.
    Reporting,
    /// The node's lease has expired, and its last report does not count.
    Lost,
}

/// The phase of the data plane's link to a replica that it was told to serve.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum LinkPhase {
    /// There is no connection.
    Connecting,
    /// The replica gets batches.
    Serving,
    /// The replica gets no further batches, and has not answered all it got.
    Draining,
    /// The replica has answered all batches and gets no further ones.
    Drained,
}

/// A replica, and what is observed of it.
#[derive(Clone, Copy, Debug)]
pub(super) struct ObservedReplica<'a> {
    /// The replica.
    pub(super) replica: &'a PlacedReplica,
    /// The phase of the replica's node.
    pub(super) node: NodePhase,
    /// The status that the node reported, if it did.
    pub(super) status: Option<&'a ReplicaStatus>,
    /// The phase of the data plane's link to the replica; none if it was not told to serve it.
    pub(super) link: Option<LinkPhase>,
}

/// A replica that the newest plan does not have, while it is still wanted.
#[derive(Clone, Copy, Debug)]
pub(super) struct EarlierReplica<'a> {
    /// The replica.
    pub(super) observed: ObservedReplica<'a>,
    /// True if a plan that is being stored has the replica.
    pub(super) kept: bool,
    /// True once the replica was told to drain, which is never revoked.
    pub(super) draining: bool,
}

/// The input of a step: replicas that may depend on each other.
#[derive(Clone, Debug, Default)]
pub(super) struct StepInput<'a> {
    /// The replicas of the newest plan.
    pub(super) planned: Vec<ObservedReplica<'a>>,
    /// The remaining replicas of earlier plans, ordered by identity.
    pub(super) earlier: Vec<EarlierReplica<'a>>,
    /// The memory of the replicas' devices.
    pub(super) memory: BTreeMap<&'a DeviceId, ByteCount>,
    /// The requests per second that a model loses with one of its replicas, in thousandths; those without an entry lose nothing.
    pub(super) losses: BTreeMap<&'a ModelId, u64>,
    /// The versions that a version hands its requests over to, of the models of earlier replicas.
    pub(super) successors: BTreeMap<&'a ModelId, Vec<ModelId>>,
}

impl ObservedReplica<'_> {
    /// Returns the identity of the model.
    pub(super) fn model(&self) -> &ModelId {
        &self.replica.spec.model.model
    }

    /// Returns the device that the replica runs on.
    pub(super) fn device(&self) -> &DeviceId {
        &self.replica.spec.device
    }

    /// Returns the device memory that the replica needs; zero if unknown.
    fn memory(&self) -> ByteCount {
        self.replica.spec.memory.unwrap_or_default()
    }

    /// Returns the status, as far as the node's report counts.
    pub(super) fn status(&self) -> Option<&ReplicaStatus> {
        self.status.filter(|_| self.node == NodePhase::Reporting)
    }

    /// Returns the address on which the replica accepts batches, if it does.
    pub(super) fn ready_address(&self) -> Option<SocketAddr> {
        let status = self.status()?;
        status
            .address
            .filter(|_| status.state == ReplicaState::Ready)
    }

    /// Returns true if the replica gets batches.
    pub(super) fn serves(&self) -> bool {
        self.ready_address().is_some() && self.link == Some(LinkPhase::Serving)
    }
}

impl EarlierReplica<'_> {
    /// Returns true if the replica is still wanted. It is kept only while it answers requests; one that is not ready is not waited
    /// for.
    pub(super) fn still_needed(&self) -> bool {
        if self.observed.node == NodePhase::Awaited {
            return true;
        }
        let link = self.observed.link;
        let computes = matches!(link, Some(LinkPhase::Serving | LinkPhase::Draining));
        self.observed.ready_address().is_some() && (computes || !self.draining)
    }

    pub(super) fn id(&self) -> ReplicaId {
        self.observed.replica.id
    }

    pub(super) fn worker(&self) -> ReplicaId {
        self.observed.replica.worker()
    }
}

impl StepInput<'_> {
    /// Returns the replicas of the plan that may run beside the earlier ones without `gone`. Each device starts its replicas in a
    /// fixed order, first those that run already, then the others by identity, so that a started replica stays started.
    pub(super) fn started(
        &self,
        earlier: &[EarlierReplica<'_>],
        gone: &BTreeSet<ReplicaId>,
    ) -> BTreeSet<ReplicaId> {
        let mut held: BTreeMap<&DeviceId, ByteCount> = BTreeMap::new();
        for e in earlier.iter().filter(|e| !gone.contains(&e.id())) {
            let sum = held.entry(e.observed.device()).or_default();
            *sum = sum.saturating_add(e.observed.memory());
        }
        let mut order: Vec<&ObservedReplica<'_>> = self.planned.iter().collect();
        order.sort_by_key(|p| (p.status().is_none(), p.replica.worker(), p.replica.id));
        let mut full: BTreeSet<&DeviceId> = BTreeSet::new();
        let mut started = BTreeSet::new();
        // The replicas of a worker start together, with the first of them.
        let mut first: BTreeMap<ReplicaId, ReplicaId> = BTreeMap::new();
        for p in order {
            let first = *first.entry(p.replica.worker()).or_insert(p.replica.id);
            if first != p.replica.id {
                if started.contains(&first) {
                    started.insert(p.replica.id);
                }
                continue;
            }
            // Without earlier replicas no memory comes free later, and the plan itself keeps to the device's memory.
            if let Some(sum) = held.get_mut(p.device()) {
                let with = sum.saturating_add(p.memory());
                let capacity = self.memory.get(p.device()).copied().unwrap_or_default();
                let fits = with <= capacity && !full.contains(p.device());
                if p.status().is_none() && !fits {
                    full.insert(p.device());
                    continue;
                }
                *sum = with;
            }
            started.insert(p.replica.id);
        }
        started
    }
}
