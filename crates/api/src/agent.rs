//! The messages between an agent and the gateway. The wanted state and the statuses of replicas and measurements are types of
//! `cluster`.
//!
//! Gateway and agents are updated at different times. Therefore either side ignores fields that it does not know, new fields have
//! defaults, and each side names the versions of the protocol that it speaks ([`ProtocolRange`]).

mod validation;

use std::fmt;

use packhorse_cluster::{ClusterId, InspectionResult, ProfileProgress, ReplicaStatus};
pub use packhorse_cluster::{DeviceReport, WantedState};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

pub use validation::InvalidField;

/// The versions of the agent protocol that a side speaks: all from the first to the last. A message without a range is of version 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ProtocolRange {
    /// The oldest version.
    pub first: u32,
    /// The newest version.
    pub last: u32,
}

impl ProtocolRange {
    /// The versions that this build speaks.
    pub const SUPPORTED: Self = Self { first: 1, last: 1 };

    /// Returns the highest version that both sides speak; none if they have none in common.
    pub fn highest_common(self, other: Self) -> Option<u32> {
        let last = self.last.min(other.last);
        (last >= self.first.max(other.first)).then_some(last)
    }
}

impl Default for ProtocolRange {
    fn default() -> Self {
        Self { first: 1, last: 1 }
    }
}

impl fmt::Display for ProtocolRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.first == self.last {
            write!(f, "{}", self.last)
        } else {
            write!(f, "{} to {}", self.first, self.last)
        }
    }
}

/// Takes or renews the lease of a node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct LeaseRequest {
    /// A random identity of the agent's state folder. It distinguishes two agents that claim the same node.
    pub instance: String,
    /// The agent's version.
    pub agent_version: String,
    /// The version of libtorch of the node's workers, by which measurements are known again; null if devices are simulated.
    #[serde(default)]
    pub libtorch: Option<String>,
    /// The node's devices.
    pub devices: Vec<DeviceReport>,
    /// The versions of the agent protocol that the agent speaks.
    #[serde(default)]
    pub protocol: ProtocolRange,
    /// The cluster that the agent obeys; null before the first.
    #[serde(default)]
    #[schema(value_type = Option<String>)]
    pub cluster_id: Option<ClusterId>,
    /// The highest epoch of that cluster that the agent has seen. If it is not below the gateway's, the gateway's store is a
    /// restored one, and the gateway raises its epoch.
    #[serde(default)]
    pub highest_epoch: u64,
    /// Fresh random hexadecimal digits, over which the gateway of another cluster makes its proof.
    #[serde(default)]
    pub nonce: Option<String>,
}

/// The granted lease of a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LeaseGrant {
    /// The gateway's epoch. The agent ignores wanted states of older epochs.
    pub epoch: u64,
    /// The duration of the lease, in milliseconds. Agents renew it after a third of this time.
    pub lease_ms: u64,
    /// The versions of the agent protocol that the gateway speaks.
    #[serde(default)]
    pub protocol: ProtocolRange,
    /// The identity of the gateway's store; null from a gateway that has none yet.
    #[serde(default)]
    #[schema(value_type = Option<String>)]
    pub cluster_id: Option<ClusterId>,
    /// The proof that the gateway may change the agent's cluster, in hexadecimal digits: an HMAC-SHA256 over the agent's nonce and the
    /// cluster id, keyed with the link secret, or with the SHA-256 of the agent's token where there is none. Null if the agent's
    /// cluster is the gateway's.
    #[serde(default)]
    pub proof: Option<String>,
}

/// The whole state of a node, sent on every change and with every renewal of the lease.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
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
    /// The inspections that have ended and are still wanted; null from an agent that makes none, because it is of an earlier version or all its
    /// devices are simulated.
    #[serde(default)]
    pub inspections: Option<Vec<InspectionResult>>,
    /// The state of each GPU of the node.
    #[serde(default)]
    pub gpus: Vec<GpuStatus>,
}

/// The current state of a GPU. Values that its driver does not report are null.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
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
pub struct GpuProcess {
    /// The process id on the node.
    pub pid: u32,
    /// The GPU memory of the process, in bytes. The memory of an MPS client may be counted with the MPS server.
    pub memory_bytes: Option<u64>,
}
