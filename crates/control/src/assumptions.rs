//! The assumptions of planning that no one measures.

use std::{collections::BTreeMap, time::Duration};

use packhorse_cluster::{ByteCount, Conditions, ModelId, NetworkModel};

/// The assumptions of planning that no one measures.
#[derive(Clone, Debug, PartialEq)]
pub struct Assumptions {
    /// The network from the gateway to the workers.
    pub network: NetworkModel,
    /// The arrivals, and the overheads besides the profiled times.
    pub conditions: Conditions,
    /// The time from a replica's start until it is ready, for models without an entry in `load_times`.
    pub default_load_time: Duration,
    /// The time from a replica's start until it is ready, by model.
    pub load_times: BTreeMap<ModelId, Duration>,
    /// The real compute time over the profile's, by model; 1 for models without an entry.
    pub latency_scales: BTreeMap<ModelId, f64>,
    /// The size of one request's inputs, by model; for models without an entry it follows from the declared inputs.
    pub payloads: BTreeMap<ModelId, ByteCount>,
}

impl Default for Assumptions {
    fn default() -> Self {
        Self {
            network: NetworkModel::default(),
            conditions: Conditions::default(),
            default_load_time: Duration::from_secs(2),
            load_times: BTreeMap::new(),
            latency_scales: BTreeMap::new(),
            payloads: BTreeMap::new(),
        }
    }
}

impl Assumptions {
    /// Returns the time from a replica's start until it is ready.
    pub(crate) fn load_time(&self, model: &ModelId) -> Duration {
        let measured = self.load_times.get(model).copied();
        measured.unwrap_or(self.default_load_time)
    }
}
