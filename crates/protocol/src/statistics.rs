//! Statistics of models: the response to `GET /v2/models/{model}/stats` and `GET /v2/models/stats`.

use serde::{Deserialize, Serialize};

/// The response with the statistics of models.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Statistics {
    /// The statistics, one item per model version.
    pub model_stats: Vec<ModelStatistics>,
}

/// Statistics of one version of a model since the server started.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ModelStatistics {
    /// The model.
    pub name: String,
    /// The model's version, as a decimal number. Load generators require it.
    pub version: String,
    /// The arrival time of the last request, in milliseconds since 1970; 0 if there was none.
    #[serde(default)]
    pub last_inference: u64,
    /// The number of inferences, which are rows of answered requests.
    pub inference_count: u64,
    /// The number of executed batches.
    pub execution_count: u64,
    /// The time of requests, by outcome and stage.
    pub inference_stats: InferenceStatistics,
    /// The time of batches, per batch size.
    #[serde(default)]
    pub batch_stats: Vec<BatchStatistics>,
}

impl ModelStatistics {
    /// Returns the sum of the statistics of two models, without those per batch size, under the name of the first.
    #[must_use]
    pub fn plus(self, other: &Self) -> Self {
        let (mine, theirs) = (self.inference_stats, other.inference_stats);
        Self {
            last_inference: self.last_inference.max(other.last_inference),
            inference_count: self.inference_count + other.inference_count,
            execution_count: self.execution_count + other.execution_count,
            inference_stats: InferenceStatistics {
                success: mine.success.plus(theirs.success),
                fail: mine.fail.plus(theirs.fail),
                queue: mine.queue.plus(theirs.queue),
                compute_input: mine.compute_input.plus(theirs.compute_input),
                compute_infer: mine.compute_infer.plus(theirs.compute_infer),
                compute_output: mine.compute_output.plus(theirs.compute_output),
                cache_hit: mine.cache_hit.plus(theirs.cache_hit),
                cache_miss: mine.cache_miss.plus(theirs.cache_miss),
            },
            batch_stats: Vec::new(),
            ..self
        }
    }
}

impl DurationStatistics {
    fn plus(self, other: Self) -> Self {
        Self {
            count: self.count + other.count,
            ns: self.ns + other.ns,
        }
    }
}

/// The number of requests and their time, by outcome and stage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct InferenceStatistics {
    /// The time of answered requests, from arrival to answer.
    pub success: DurationStatistics,
    /// The time of failed requests, from arrival to failure.
    pub fail: DurationStatistics,
    /// The time in the queue.
    pub queue: DurationStatistics,
    /// The time of copying inputs to the device.
    pub compute_input: DurationStatistics,
    /// The time of computing.
    pub compute_infer: DurationStatistics,
    /// The time of copying outputs from the device.
    pub compute_output: DurationStatistics,
    /// Cache hits: always zero, as responses are not cached.
    pub cache_hit: DurationStatistics,
    /// Cache misses: always zero, as responses are not cached.
    pub cache_miss: DurationStatistics,
}

/// The number of executed batches of one size and their time, by stage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct BatchStatistics {
    /// The number of rows in the batch.
    pub batch_size: u64,
    /// The time of copying inputs to the device.
    pub compute_input: DurationStatistics,
    /// The time of computing.
    pub compute_infer: DurationStatistics,
    /// The time of copying outputs from the device.
    pub compute_output: DurationStatistics,
}

/// The number of events and their total duration.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct DurationStatistics {
    /// The number of events.
    pub count: u64,
    /// The total duration, in nanoseconds.
    pub ns: u64,
}
