//! The replicas of a scenario's current plan.

use packhorse_cluster::{ComputeShare, DeviceId, DeviceKind, ModelId, Residency};
use serde::{Deserialize, Serialize};

/// A replica of the current plan.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReplicaEntry {
    /// The model.
    pub model: ModelId,
    /// The device, as NODE/NAME.
    pub device: DeviceId,
    /// The largest number of rows in one batch.
    pub batch_size: u32,
    /// The share of the multiprocessors in percent; without it there is no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub compute_share_pct: Option<ComputeShare>,
    /// The period in which the replica gets one turn on a time-shared device, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub duty_cycle_ms: Option<f64>,
    /// The identity of the worker that it shares with other models of a backbone, in hexadecimal digits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backbone: Option<String>,
    /// The condition under which every plan has the replica; without it a plan may leave it out. Its device takes no other replicas.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kept: Option<Kept>,
    /// The kind of the device, if the replica is kept.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device_kind: Option<DeviceKind>,
    /// The memory of the replica in MiB, if it is kept.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_mib: Option<f64>,
    /// Its place in the device's pool, if it is a member.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pool: Option<PoolEntry>,
}

/// The condition under which every plan has a replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kept {
    /// Every plan has it: its node is cordoned.
    Always,
    /// Plans that place its model nowhere else have it: its node is drained, or lost and still serves.
    UnlessPlaced,
}

/// The place of a replica in the pool of its device.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PoolEntry {
    /// The weights of the replica, in MiB.
    pub weights_mib: f64,
    /// The memory of the device that the weights of all members may take together, in MiB.
    pub memory_mib: f64,
    /// The time to copy the weights to the device, in milliseconds.
    pub load_ms: f64,
    /// The place of the weights at the start.
    pub residency: Residency,
}
