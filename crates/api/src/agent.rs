//! What an agent and the gateway say to each other. The wanted state and the statuses themselves are nouns of `cluster`.

pub use packhorse_cluster::WantedState;
use packhorse_cluster::{ByteCount, DeviceKind, ProfileProgress, ReplicaStatus};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Takes or renews the lease of a node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct LeaseRequest {
    /// Random per state folder of an agent: two that claim one node are told apart by it.
    pub instance: String,
    /// The agent's version.
    pub agent_version: String,
    /// What the node has.
    pub devices: Vec<DeviceReport>,
}

/// A device as its agent sees it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct DeviceReport {
    /// Its name within the node: an NVIDIA UUID, `cpu0`, `sim0`.
    pub name: String,
    /// What it is, as profiles know it.
    #[schema(value_type = String)]
    pub kind: DeviceKind,
    /// Memory that replicas may use.
    #[schema(value_type = u64)]
    pub memory_bytes: ByteCount,
    /// Streaming multiprocessors of a GPU, threads of a CPU.
    pub multiprocessors: Option<u32>,
    /// What the driver or operating system calls it.
    pub description: String,
}

/// Grants the lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LeaseGrant {
    /// The gateway's epoch: nothing older is obeyed.
    pub epoch: u64,
    /// For how long, in milliseconds; renewed after a third of it.
    pub lease_ms: u64,
}

/// The full state of a node, sent on every change and with every renewal.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AgentStatus {
    /// The agent's instance, as in its lease.
    pub instance: String,
    /// The epoch of the wanted state it works on.
    pub epoch: u64,
    /// The revision of it.
    pub revision: u64,
    /// Every replica the node has, wanted or not.
    pub replicas: Vec<ReplicaStatus>,
    /// Every measurement under way or finished and still wanted.
    pub profiles: Vec<ProfileProgress>,
}
