//! What is wanted of a node and what it says of it: the two sides of the level-triggered loop between gateway and agent.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

use crate::{ByteCount, ComputeShare, DeviceKind, Program, ReplicaId};

/// A replica that a node shall run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct WantedReplica {
    /// Its identity for as long as it lives.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub id: ReplicaId,
    /// What it runs.
    pub program: Program,
    /// The device, by its name within the node.
    pub device: String,
    /// The most rows of one batch, at most what the program takes.
    pub batch_size: u32,
    /// The share of the multiprocessors it may use, in percent; none sets no limit.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<f64>))]
    pub compute_share_pct: Option<ComputeShare>,
    /// What it is to need of the device's memory, the device's own needs per process aside; none is not known.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<u64>))]
    pub memory_bytes: Option<ByteCount>,
}

impl WantedReplica {
    /// Whether a worker that runs one runs the other. A profile that was measured anew is no reason to stop one.
    pub fn runs_as(&self, other: &Self) -> bool {
        let memory_bytes = self.memory_bytes;
        *self
            == Self {
                memory_bytes,
                ..other.clone()
            }
    }
}

/// A measurement that a node shall make: the program's latency and memory for batch sizes 1, 2, 4, … on a device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct WantedProfile {
    /// What is measured.
    pub program: Program,
    /// The device, by its name within the node.
    pub device: String,
    /// The kind the device has.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub device_kind: DeviceKind,
    /// After this long no further batch size is begun.
    pub time_limit_ms: u64,
}

/// Everything wanted of a node. A later revision replaces an earlier one of the same epoch; a later epoch replaces all.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct WantedState {
    /// Counts the gateway's starts: a fencing token. An agent obeys nothing of an older epoch.
    pub epoch: u64,
    /// Counts the changes within an epoch.
    pub revision: u64,
    /// The replicas that shall run, and no others.
    pub replicas: Vec<WantedReplica>,
    /// The measurements that shall be made.
    pub profiles: Vec<WantedProfile>,
}

/// Where a replica is on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum ReplicaState {
    /// The agent fetches the artifact.
    Fetching,
    /// The worker process starts, loads the program and warms up.
    Loading,
    /// The worker takes batches at its address.
    Ready,
    /// The worker finishes what it has and ends.
    Draining,
    /// The worker died; the agent waits before it starts it again.
    BackingOff,
    /// The program cannot be served as it is registered; starting it again would not help.
    Failed,
}

/// What a node says of one replica.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ReplicaStatus {
    /// Which replica.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub id: ReplicaId,
    /// Where it is on its way.
    pub state: ReplicaState,
    /// Where its worker listens, once it does.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>))]
    pub address: Option<SocketAddr>,
    /// The worker's process, while there is one.
    pub pid: Option<u32>,
    /// How often the worker was started again.
    pub restarts: u32,
    /// Why it is not ready, for people.
    pub reason: Option<String>,
    /// Memory the replica needs, once it is known.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<u64>))]
    pub memory_bytes: Option<ByteCount>,
    /// What its worker is capable of, once it takes batches.
    #[serde(default)]
    pub capacity: Option<Capacity>,
}

/// What a worker found that it is capable of, on its device and in its memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Capacity {
    /// The most rows of one batch that there is memory for: the wanted batch size, or less.
    pub batch_size: u32,
    /// Batches that it takes before it has answered one.
    pub in_flight: u32,
    /// The multiprocessors of its device that it may use, where the device has such.
    pub multiprocessors: Option<u32>,
}

/// What a node says of one measurement.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ProfileProgress {
    /// What is measured.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub model: crate::ModelId,
    /// On what.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub device_kind: DeviceKind,
    /// Batch sizes measured so far.
    pub done: u32,
    /// Batch sizes to measure in all.
    pub total: u32,
    /// The finished measurement as CSV, in the profile contract.
    pub csv: Option<String>,
    /// The kernels that were recorded with it, as CSV; none on a device that runs none.
    #[serde(default)]
    pub kernels: Option<String>,
    /// Why there is none: the program cannot be served as it is registered.
    pub error: Option<String>,
}
