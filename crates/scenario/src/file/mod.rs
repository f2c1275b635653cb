//! The TOML of a scenario. The names of the keys contain their units; unknown keys are errors.

mod devices;
mod links;
mod models;
mod pools;
mod replicas;
mod simulation;
mod unknown;

use std::collections::BTreeMap;

use packhorse_cluster::{Discipline, ModelId, PolicyOptions, RequestsPerSecond};
use serde::{Deserialize, Serialize};

pub use devices::{AutoscaleEntry, DeviceGroup};
pub use links::Links;
pub use models::{
    BackboneEntry, BackboneMemberEntry, FamilyEntry, ModelEntry, ShareEntry, VariantEntry,
};
pub use pools::Pools;
pub use replicas::{Kept, PoolEntry, ReplicaEntry};
pub use simulation::{ArrivalsEntry, FaultEntry, FaultKindEntry, SimulationEntry};
pub use unknown::{OrUnknown, Unknown};

/// The keys of a scenario.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ScenarioFile {
    /// The name in reports.
    pub name: String,
    /// The policy to plan with if none is given elsewhere.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub policy: Option<String>,
    /// The dispatch discipline, if none is given elsewhere.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub discipline: Option<Discipline>,
    /// The files with profiles.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub profiles: Vec<String>,
    /// The time for which `fixed-wait` holds an open batch, in milliseconds.
    #[serde(default = "defaults::max_batch_wait_ms")]
    pub max_batch_wait_ms: f64,
    /// The file with the coefficients of the policy `igniter`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub igniter_coefficients: Option<String>,
    /// The files with pairs that were measured on the first device's kind.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub measured_pairs: Vec<String>,
    /// Says if the devices may have pools.
    #[serde(default, skip_serializing_if = "devices::is_default")]
    pub pool: Pools,
    /// The options of the policy, if none are given elsewhere.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub options: Option<PolicyOptions>,
    /// The groups of devices, required. A scenario without devices has an empty list.
    pub devices: Option<Vec<DeviceGroup>>,
    /// The devices that come and go.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub autoscale: Option<AutoscaleEntry>,
    /// The models, required. A scenario without models has an empty list.
    pub models: Option<Vec<ModelEntry>>,
    /// The whole rates of the models of which replicas that are kept serve a part, in requests/s. The rate of their entry is the rest.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub whole_rates_rps: BTreeMap<ModelId, RequestsPerSecond>,
    /// The families whose rates a plan may spread over their variants.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub families: Vec<FamilyEntry>,
    /// The models that share backbones.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub backbones: Vec<BackboneEntry>,
    /// The replicas of the current plan.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub replicas: Vec<ReplicaEntry>,
    /// The settings of the simulation.
    #[serde(default)]
    pub simulation: SimulationEntry,
    /// The measurements that are part of the file.
    #[serde(default, skip_serializing_if = "devices::is_default")]
    pub learned: LearnedEntry,
}

/// The measurements that are part of a scenario.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LearnedEntry {
    /// The profiles, in the CSV format of files with profiles. They replace those of the files.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub profiles: Option<String>,
    /// The observations of devices, the oldest first, as CSV.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observations: Option<String>,
}

mod defaults {
    pub(super) fn max_batch_wait_ms() -> f64 {
        100.0
    }
}
