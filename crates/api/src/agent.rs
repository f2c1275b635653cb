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
    /// How the node's GPUs are; none where it has none.
    #[serde(default)]
    pub gpus: Vec<GpuStatus>,
}

/// How a GPU is at the moment. What its driver does not tell is null.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct GpuStatus {
    /// The device, by its name within the node: its UUID.
    pub device: String,
    /// Whether its replicas compute at the same time, through MPS; otherwise they take turns.
    pub mps: bool,
    /// Why they take turns, where MPS was tried in vain.
    pub mps_reason: Option<String>,
    /// Time in which it computed, in percent.
    pub utilization_pct: Option<f64>,
    /// All its memory.
    pub memory_total_bytes: Option<u64>,
    /// Its memory in use, by whomever.
    pub memory_used_bytes: Option<u64>,
    /// The power it takes.
    pub power_watts: Option<f64>,
    /// The power it may take.
    pub power_limit_watts: Option<f64>,
    /// The energy it took since its driver was loaded.
    pub energy_joules: Option<f64>,
    /// Its temperature.
    pub temperature_celsius: Option<u32>,
    /// The clock of its multiprocessors.
    pub sm_clock_mhz: Option<u32>,
    /// The clock of its memory.
    pub memory_clock_mhz: Option<u32>,
    /// What keeps its clocks down, in words; nothing mostly.
    pub throttle_reasons: Vec<String>,
    /// Memory errors since its driver was loaded that were corrected.
    pub ecc_corrected_errors: Option<u64>,
    /// Memory errors since its driver was loaded that could not be corrected.
    pub ecc_uncorrected_errors: Option<u64>,
    /// The processes that compute on it.
    pub processes: Vec<GpuProcess>,
}

/// A process that computes on a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct GpuProcess {
    /// Its number on its node.
    pub pid: u32,
    /// Its memory on the GPU; that of an MPS client may be counted with the server.
    pub memory_bytes: Option<u64>,
}
