//! Nodes and their devices.

use packhorse_cluster::{ByteCount, DeviceId, DeviceKind, NodeName, ReplicaId};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::agent::GpuStatus;

/// How a node stands with the gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum NodeState {
    /// Its agent holds the lease; replicas are placed on it.
    Ready,
    /// It serves what it has, but gets nothing new.
    Cordoned,
    /// Its replicas move elsewhere.
    Draining,
    /// Its agent has lost the lease; nothing is placed on it.
    Lost,
}

/// A machine with an agent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct NodeView {
    /// Its name.
    #[schema(value_type = String)]
    pub name: NodeName,
    /// How it stands.
    pub state: NodeState,
    /// The agent's version.
    pub agent_version: String,
    /// Milliseconds since the agent was last heard; null if not since the gateway started.
    pub last_seen_ms: Option<u64>,
    /// What it has.
    pub devices: Vec<DeviceView>,
}

/// A device of a node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct DeviceView {
    /// As NODE/DEVICE.
    #[schema(value_type = String)]
    pub id: DeviceId,
    /// What it is, as profiles know it.
    #[schema(value_type = String)]
    pub kind: DeviceKind,
    /// What the driver or operating system calls it.
    pub description: String,
    /// Memory that replicas may use.
    #[schema(value_type = u64)]
    pub memory_bytes: ByteCount,
    /// Streaming multiprocessors of a GPU, threads of a CPU.
    pub multiprocessors: Option<u32>,
    /// How it is, of a GPU whose agent has reported.
    pub gpu: Option<GpuStatus>,
    /// The replicas on it.
    #[schema(value_type = Vec<String>)]
    pub replicas: Vec<ReplicaId>,
}
