//! The TOML of a scenario. The names of the keys contain their units; unknown keys are errors.

use serde::Deserialize;

use super::{links::Links, pools::Pools};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ScenarioFile {
    pub(super) name: String,
    #[serde(default)]
    pub(super) profiles: Vec<String>,
    #[serde(default = "defaults::max_batch_wait_ms")]
    pub(super) max_batch_wait_ms: f64,
    pub(super) igniter_coefficients: Option<String>,
    #[serde(default)]
    pub(super) measured_pairs: Vec<String>,
    #[serde(default)]
    pub(super) pool: Pools,
    #[serde(default)]
    pub(super) devices: Vec<DeviceGroup>,
    pub(super) autoscale: Option<AutoscaleEntry>,
    #[serde(default)]
    pub(super) models: Vec<ModelEntry>,
    #[serde(default)]
    pub(super) simulation: SimulationEntry,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct DeviceGroup {
    pub(super) kind: String,
    pub(super) count: usize,
    pub(super) gpus_per_node: Option<usize>,
    pub(super) memory_mib: Option<f64>,
    pub(super) sm_count: Option<u32>,
    pub(super) cost_per_hour: Option<f64>,
    pub(super) host_link_bytes_per_s: Option<f64>,
    #[serde(default)]
    pub(super) process_mib: f64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct AutoscaleEntry {
    pub(super) kind: String,
    pub(super) min: usize,
    pub(super) max: usize,
    pub(super) start_s: f64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ModelEntry {
    pub(super) name: String,
    pub(super) rate_rps: f64,
    pub(super) slo_ms: f64,
    pub(super) requests: Option<u64>,
    #[serde(default)]
    pub(super) payload_bytes: u64,
    pub(super) latency_scale: Option<f64>,
    /// The name in the profiles, if it is not the model's.
    pub(super) profile: Option<String>,
    pub(super) weights_mib: Option<f64>,
    /// The name that the models share which answer the same requests, and the percentage of right answers of this one.
    pub(super) family: Option<String>,
    pub(super) accuracy: Option<f64>,
    #[serde(default)]
    pub(super) load_ms: f64,
    /// The second at which each change of the rate begins, the new rate, and, unless it is a step, its duration in seconds.
    #[serde(default)]
    pub(super) rate_steps: Vec<Vec<f64>>,
}

#[derive(Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct SimulationEntry {
    pub(super) warmup_s: f64,
    pub(super) window_s: f64,
    pub(super) latency_scale: f64,
    pub(super) client_overhead_ms: f64,
    pub(super) router_overhead_ms: f64,
    pub(super) network_base_ms: f64,
    pub(super) network_bytes_per_s: f64,
    pub(super) links: Links,
    pub(super) return_ms: f64,
    pub(super) mps_exponent: f64,
    pub(super) extra_slowdown: f64,
    pub(super) arrivals: ArrivalsEntry,
    pub(super) faults: Vec<FaultEntry>,
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

/// `"poisson"`, `{ gamma_cv = 2.0 }`, `{ trace = "file.csv" }` or `{ counts = "file.csv" }`.
#[derive(Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(super) enum ArrivalsEntry {
    Poisson,
    GammaCv(f64),
    Trace(String),
    Counts(String),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct FaultEntry {
    pub(super) at_s: f64,
    pub(super) kind: FaultKindEntry,
    pub(super) for_s: Option<f64>,
    pub(super) device: Option<usize>,
    pub(super) node: Option<usize>,
    pub(super) model: Option<String>,
    pub(super) factor: Option<f64>,
    pub(super) delay_ms: Option<f64>,
}

#[derive(Clone, Copy, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub(super) enum FaultKindEntry {
    WorkerDies,
    SlowWorker,
    NetworkDelay,
    NodeLost,
    AgentDies,
    GatewayDies,
    NodeDrained,
    ModelAdded,
    ModelRemoved,
}

mod defaults {
    pub(super) fn max_batch_wait_ms() -> f64 {
        100.0
    }
}
