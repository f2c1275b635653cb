//! The settings of a simulation.

use serde::{Deserialize, Serialize};

use super::links::Links;

/// The settings of a simulation. Plans assume its overheads and its network.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SimulationEntry {
    /// The second at which the window begins.
    pub warmup_s: f64,
    /// The length of the window in seconds.
    pub window_s: f64,
    /// The real inference time over the profile's.
    pub latency_scale: f64,
    /// A client's own work per request, in milliseconds.
    pub client_overhead_ms: f64,
    /// The time to hand over a batch, in milliseconds.
    pub router_overhead_ms: f64,
    /// The time of a batch without bytes on the network, in milliseconds.
    pub network_base_ms: f64,
    /// The bandwidth of the network, in bytes per second.
    pub network_bytes_per_s: f64,
    /// The way in which the batches of a device share its link.
    pub links: Links,
    /// The time from a worker to the client, in milliseconds.
    pub return_ms: f64,
    /// The exponent by which a replica slows under a compute share.
    pub mps_exponent: f64,
    /// The slowdown per 100 % of utilisation beside a batch, which no policy is told of.
    pub extra_slowdown: f64,
    /// The pattern of arrivals.
    pub arrivals: ArrivalsEntry,
    /// The faults.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub faults: Vec<FaultEntry>,
}

impl Default for SimulationEntry {
    /// The defaults of the scenario format.
    fn default() -> Self {
        Self {
            warmup_s: 1.0,
            window_s: 8.0,
            latency_scale: 1.0,
            client_overhead_ms: 0.0,
            router_overhead_ms: 0.5,
            network_base_ms: 0.161,
            network_bytes_per_s: 1.128e9,
            links: Links::Instant,
            return_ms: 0.361,
            mps_exponent: 1.6,
            extra_slowdown: 0.0,
            arrivals: ArrivalsEntry::Poisson,
            faults: Vec::new(),
        }
    }
}

/// The pattern of arrivals: `"poisson"`, `{ gamma_cv = 2.0 }`, `{ trace = "file.csv" }` or `{ counts = "file.csv" }`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum ArrivalsEntry {
    /// Gaps are exponential.
    Poisson,
    /// Gaps have a gamma distribution with this coefficient of variation.
    GammaCv(f64),
    /// The arrivals are in this file.
    Trace(String),
    /// The requests of each minute are in this file.
    Counts(String),
}

/// A fault.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FaultEntry {
    /// The second at which it begins.
    pub at_s: f64,
    /// The kind of the fault.
    pub kind: FaultKindEntry,
    /// The seconds after which it ends.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub for_s: Option<f64>,
    /// The device, counted from 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device: Option<usize>,
    /// The node, counted from 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<usize>,
    /// The model.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// The time of a batch over its usual time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub factor: Option<f64>,
    /// The delay of every message, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delay_ms: Option<f64>,
}

/// The kind of a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FaultKindEntry {
    /// The workers of a device die.
    WorkerDies,
    /// Batches on a device take longer.
    SlowWorker,
    /// Messages take longer.
    NetworkDelay,
    /// The network of a node is cut.
    NodeLost,
    /// The agent of a node dies.
    AgentDies,
    /// The gateway dies.
    GatewayDies,
    /// A node is drained.
    NodeDrained,
    /// A model is registered.
    ModelAdded,
    /// A model is removed.
    ModelRemoved,
}
