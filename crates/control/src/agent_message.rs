//! The messages of agents.

use std::collections::BTreeMap;

use packhorse_cluster::{
    ClusterId, DeviceReport, InspectionResult, ProfileProgress, ReplicaId, ReplicaStatus,
};

/// The claim of an agent to the lease of a node.
#[derive(Clone, Debug, PartialEq)]
pub struct LeaseClaim {
    /// The identity of the agent's state folder. It distinguishes two agents that claim the same node.
    pub instance: String,
    /// The version of the agent.
    pub agent_version: String,
    /// The version of libtorch of its workers; none if it is unknown, or if they have none.
    pub libtorch: Option<String>,
    /// The devices of the node.
    pub devices: Vec<DeviceReport>,
    /// The cluster that the agent obeys; none before the first.
    pub cluster_id: Option<ClusterId>,
    /// The highest epoch of that cluster that the agent has seen.
    pub highest_epoch: u64,
}

/// The report of an agent.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NodeReport {
    /// The agent's instance, as in its claim to the lease.
    pub instance: String,
    /// The epoch of the wanted state that the agent last received.
    pub epoch: u64,
    /// The revision of that wanted state.
    pub revision: u64,
    /// The replicas on the node, wanted or not.
    pub replicas: BTreeMap<ReplicaId, ReplicaStatus>,
    /// The measurements that are running, or finished and still wanted.
    pub profiles: Vec<ProfileProgress>,
    /// The inspections that have ended and are still wanted; none from an agent that makes none.
    pub inspections: Option<Vec<InspectionResult>>,
}

impl NodeReport {
    /// Returns true if there may be results of measurements or inspections.
    pub(crate) fn has_results(&self) -> bool {
        let inspections = self.inspections.as_ref();
        !self.profiles.is_empty() || inspections.is_some_and(|results| !results.is_empty())
    }
}
