//! Nodes and their devices.

pub use packhorse_cluster::NodeState;
use packhorse_cluster::{ByteCount, DeviceId, DeviceKind, NodeName, ReplicaId};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::agent::GpuStatus;

/// A machine with an agent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct NodeView {
    /// The node's name.
    #[schema(value_type = String)]
    pub name: NodeName,
    /// The node's state.
    pub state: NodeState,
    /// The agent's version.
    pub agent_version: String,
    /// The time since the agent's last message, in milliseconds; null if there was none since the gateway started.
    pub last_seen_ms: Option<u64>,
    /// The node's devices.
    pub devices: Vec<DeviceView>,
}

/// A node that was removed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RemovedNode {
    /// The node's name.
    #[schema(value_type = String)]
    pub removed: NodeName,
}

/// A new token of a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct NodeTokenView {
    /// The node's name.
    #[schema(value_type = String)]
    pub node: NodeName,
    /// The bearer token, for the agent's `--token-file`. It is not shown again.
    pub token: String,
}

/// A device of a node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct DeviceView {
    /// The device's identity, as NODE/DEVICE.
    #[schema(value_type = String)]
    pub id: DeviceId,
    /// The kind of device, as in profiles.
    #[schema(value_type = String)]
    pub kind: DeviceKind,
    /// The device's name in its driver or the operating system.
    pub description: String,
    /// The memory that replicas may use, in bytes.
    #[schema(value_type = u64)]
    pub memory_bytes: ByteCount,
    /// The number of streaming multiprocessors of a GPU, or of threads of a CPU; null if unknown.
    pub multiprocessors: Option<u32>,
    /// The state of the GPU; null for other devices and before the agent's first report.
    pub gpu: Option<GpuStatus>,
    /// The replicas on the device.
    #[schema(value_type = Vec<String>)]
    pub replicas: Vec<ReplicaId>,
}
