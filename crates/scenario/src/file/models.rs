//! The models of a scenario, and their families and backbones.

use packhorse_cluster::{
    ArtifactDigest, MinReplicas, ModelId, ModelName, Percent, Priority, RequestsPerSecond,
};
use serde::{Deserialize, Serialize};

use super::devices::is_default;

/// A model.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelEntry {
    /// The name, or NAME:VERSION.
    pub name: String,
    /// The rate to plan for, in requests/s: of a simulation that at its start.
    pub rate_rps: f64,
    /// The part of the rate that is measured, which no plan for others may take from the model; without it nothing is measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub need_rps: Option<RequestsPerSecond>,
    /// The priority, from 0 to 9; 5 without it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority: Option<Priority>,
    /// The least number of devices with replicas, from 1 to 16; 1 without it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_replicas: Option<MinReplicas>,
    /// The latency objective in milliseconds.
    pub slo_ms: f64,
    /// The largest number of rows in one batch; without it the largest one in the model's profiles.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_batch_size: Option<u32>,
    /// The number of requests that a benchmark sends.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub requests: Option<u64>,
    /// The bytes of one request's inputs.
    #[serde(default)]
    pub payload_bytes: u64,
    /// The real inference time over the profile's; without it that of the simulation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub latency_scale: Option<f64>,
    /// The name in the profiles, if it is not the model's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub profile: Option<String>,
    /// The memory of the weights, in MiB.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weights_mib: Option<f64>,
    /// The name that the models share which answer the same requests.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub family: Option<String>,
    /// The percentage of right answers of a model of a family.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub accuracy: Option<f64>,
    /// The time from a replica's start until it is ready, in milliseconds.
    #[serde(default, skip_serializing_if = "is_default")]
    pub load_ms: f64,
    /// The second at which each change of the rate begins, the new rate, and, unless it is a step, its duration in seconds.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rate_steps: Vec<Vec<f64>>,
}

/// A family whose rate a plan may spread over its variants.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FamilyEntry {
    /// The name.
    pub name: ModelName,
    /// The rate of the requests that any variant may answer, in requests/s.
    pub rate_rps: RequestsPerSecond,
    /// The variants, the most accurate first.
    pub variants: Vec<VariantEntry>,
}

/// A variant of a family.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VariantEntry {
    /// The percentage of right answers.
    pub accuracy: Percent,
    /// The rate of the requests for this variant alone, in requests/s.
    pub rate_rps: RequestsPerSecond,
    /// The versions of the variant that have a share of its requests.
    pub versions: Vec<ShareEntry>,
}

/// The share of a version in the requests of its model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ShareEntry {
    /// The version.
    pub model: ModelId,
    /// The share, of 1.
    pub share: f64,
}

/// Models whose programs share a backbone.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BackboneEntry {
    /// The models.
    pub members: Vec<BackboneMemberEntry>,
}

/// A model that shares its backbone.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BackboneMemberEntry {
    /// The model.
    pub model: ModelId,
    /// The digest of its file.
    pub artifact: ArtifactDigest,
    /// The memory of the weights that it does not share, in MiB.
    pub own_mib: f64,
}
