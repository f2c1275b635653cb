//! The devices of a scenario.

use packhorse_cluster::{ModelId, NodeName};
use serde::{Deserialize, Serialize};

use super::{pools::Pools, unknown::OrUnknown};

/// A group of equal devices.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeviceGroup {
    /// The kind of the devices, as profiles name it.
    pub kind: String,
    /// The number of devices.
    pub count: usize,
    /// The number of devices of each node; without it the group is one node. Not beside `node`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpus_per_node: Option<usize>,
    /// The node that has all of them; without it nodes are numbered.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<NodeName>,
    /// The names of the devices on their node; without them devices have their numbers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub names: Vec<String>,
    /// The memory of a device in MiB; built in for known kinds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_mib: Option<f64>,
    /// The streaming multiprocessors of a device; built in for known kinds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sm_count: Option<OrUnknown<u32>>,
    /// The price of a device in US dollars per hour; built in for known kinds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cost_per_hour: Option<OrUnknown<f64>>,
    /// The models that get no replica there, although they have a profile of the kind.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub excluded_models: Vec<ModelId>,
    /// Says if the devices may have pools; without it, the scenario's `pool` does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pool: Option<Pools>,
    /// The number of models of a device up to which each has a worker process of its own, even if the device may have a pool.
    #[serde(default, skip_serializing_if = "is_default")]
    pub own_workers: u32,
    /// The bandwidth from the node's memory to a device, in bytes per second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host_link_bytes_per_s: Option<f64>,
    /// The memory of a pool's process without models, in MiB.
    #[serde(default, skip_serializing_if = "is_default")]
    pub process_mib: f64,
}

/// Returns true if a value is the default of its key.
pub(super) fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// Devices that come and go.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AutoscaleEntry {
    /// The kind of the devices, which is that of one group.
    pub kind: String,
    /// The smallest number of devices.
    pub min: usize,
    /// The largest number of devices.
    pub max: usize,
    /// The time from when a node is asked for until it joins, in seconds.
    pub start_s: f64,
}
