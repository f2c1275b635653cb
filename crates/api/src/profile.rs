//! The times of batches, in profiles and as they were observed.

use packhorse_cluster::{DeviceKind, ModelName, ModelVersion, ProfileSource};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The outcome of an import of profiles.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ImportedProfiles {
    /// The number of profiles that were imported.
    pub imported: usize,
    /// The number of estimates that were left out, because a measured profile is there.
    pub left_out: usize,
}

/// The time of a batch of a model on a kind of device, in its profile and as it was observed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct BatchTimeView {
    /// The name of the model.
    #[schema(value_type = String)]
    pub model: ModelName,
    /// The version of the model.
    #[schema(value_type = u32)]
    pub version: ModelVersion,
    /// The kind of device.
    #[schema(value_type = String)]
    pub device_kind: DeviceKind,
    /// The rows of the batch.
    pub batch_size: u32,
    /// The time in the profile, in milliseconds.
    pub profile_ms: f64,
    /// The source of the profile.
    pub source: ProfileSource,
    /// The observed time; null if no batch of about this size was observed.
    pub learned: Option<LearnedTimeView>,
}

/// The observed batches of a model of about one size on a kind of device.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct LearnedTimeView {
    /// The time of a batch, neighbours on the device included, in milliseconds.
    pub latency_ms: f64,
    /// The time of a batch without an active neighbour, in milliseconds; null if there was none.
    pub alone_ms: Option<f64>,
    /// The number of batches.
    pub batches: u64,
    /// The time since the last of them was counted, in seconds.
    pub age_s: f64,
    /// True if the time contradicts the profile: it is more than a quarter away from it, and known well enough.
    pub contradicts_profile: bool,
}
