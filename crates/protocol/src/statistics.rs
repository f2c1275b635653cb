//! Statistics of models, as `GET /v2/models/{model}/stats` and `GET /v2/models/stats` answer them.

use serde::{Deserialize, Serialize};

/// Statistics of some models.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Statistics {
    /// One item per model version.
    pub model_stats: Vec<ModelStatistics>,
}

/// Statistics of one version of a model since the server started.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ModelStatistics {
    /// The model.
    pub name: String,
    /// Its version, in digits. Load generators give up without it.
    pub version: String,
    /// When the last request came, in milliseconds since 1970; 0 for never.
    #[serde(default)]
    pub last_inference: u64,
    /// Inferences: rows of answered requests.
    pub inference_count: u64,
    /// Batches that were executed.
    pub execution_count: u64,
    /// Where the requests' time went.
    pub inference_stats: InferenceStatistics,
    /// The same per batch size.
    #[serde(default)]
    pub batch_stats: Vec<BatchStatistics>,
}

/// Requests and their time, by outcome and stage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct InferenceStatistics {
    /// Answered requests, from arrival to answer.
    pub success: DurationStatistics,
    /// Failed requests, from arrival to failure.
    pub fail: DurationStatistics,
    /// Waiting in the queue.
    pub queue: DurationStatistics,
    /// Copying inputs to the device.
    pub compute_input: DurationStatistics,
    /// Computing.
    pub compute_infer: DurationStatistics,
    /// Copying outputs from the device.
    pub compute_output: DurationStatistics,
    /// Always zero: answers are not cached.
    pub cache_hit: DurationStatistics,
    /// Always zero: answers are not cached.
    pub cache_miss: DurationStatistics,
}

/// Executed batches of one size and their time, by stage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct BatchStatistics {
    /// Rows of the batch.
    pub batch_size: u64,
    /// Copying inputs to the device.
    pub compute_input: DurationStatistics,
    /// Computing.
    pub compute_infer: DurationStatistics,
    /// Copying outputs from the device.
    pub compute_output: DurationStatistics,
}

/// How often something happened and how long it took in total.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct DurationStatistics {
    /// How often.
    pub count: u64,
    /// How long, in nanoseconds.
    pub ns: u64,
}
