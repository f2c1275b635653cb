//! The messages between an agent and the gateway. The wanted state and the statuses of replicas and measurements are types of
//! `cluster`.

pub use packhorse_cluster::{DeviceReport, WantedState};
use packhorse_cluster::{ProfileProgress, ReplicaStatus};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Takes or renews the lease of a node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct LeaseRequest {
    /// A random identity of the agent's state folder. It distinguishes two agents that claim the same node.
    pub instance: String,
    /// The agent's version.
    pub agent_version: String,
    /// The node's devices.
    pub devices: Vec<DeviceReport>,
}

/// The granted lease of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LeaseGrant {
    /// The gateway's epoch. The agent ignores wanted states of older epochs.
    pub epoch: u64,
    /// The duration of the lease, in milliseconds. Agents renew it after a third of this time.
    pub lease_ms: u64,
}

/// The whole state of a node, sent on every change and with every renewal of the lease.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AgentStatus {
    /// The agent's instance, as in its lease request.
    pub instance: String,
    /// The epoch of the wanted state that the agent last received.
    pub epoch: u64,
    /// The revision of that wanted state.
    pub revision: u64,
    /// The replicas on the node, wanted or not.
    pub replicas: Vec<ReplicaStatus>,
    /// The measurements that are running, or finished and still wanted.
    pub profiles: Vec<ProfileProgress>,
    /// The state of each GPU of the node.
    #[serde(default)]
    pub gpus: Vec<GpuStatus>,
}

/// The current state of a GPU. Values that its driver does not report are null.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct GpuStatus {
    /// The device's name within the node, which is the GPU's UUID.
    pub device: String,
    /// True if the GPU's replicas share it through MPS and compute at the same time; otherwise they are time-sliced.
    pub mps: bool,
    /// The reason why MPS could not be used, if it was tried.
    pub mps_reason: Option<String>,
    /// The share of time in which the GPU computed, in percent.
    pub utilization_pct: Option<f64>,
    /// The total memory, in bytes.
    pub memory_total_bytes: Option<u64>,
    /// The memory in use by all processes, in bytes.
    pub memory_used_bytes: Option<u64>,
    /// The power draw, in watts.
    pub power_watts: Option<f64>,
    /// The limit of the power draw, in watts.
    pub power_limit_watts: Option<f64>,
    /// The energy used since the driver was loaded, in joules.
    pub energy_joules: Option<f64>,
    /// The temperature, in degrees Celsius.
    pub temperature_celsius: Option<u32>,
    /// The clock of the multiprocessors, in MHz.
    pub sm_clock_mhz: Option<u32>,
    /// The clock of the memory, in MHz.
    pub memory_clock_mhz: Option<u32>,
    /// The reasons why the clocks are reduced; empty if they are not.
    pub throttle_reasons: Vec<String>,
    /// The number of corrected memory errors since the driver was loaded.
    pub ecc_corrected_errors: Option<u64>,
    /// The number of uncorrected memory errors since the driver was loaded.
    pub ecc_uncorrected_errors: Option<u64>,
    /// The processes that compute on the GPU.
    pub processes: Vec<GpuProcess>,
}

/// A process that computes on a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct GpuProcess {
    /// The process id on the node.
    pub pid: u32,
    /// The GPU memory of the process, in bytes. The memory of an MPS client may be counted with the MPS server.
    pub memory_bytes: Option<u64>,
}
