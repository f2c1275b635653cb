//! The bodies of the platforms' routes in the API's document.

use serde::Serialize;
use utoipa::ToSchema;

/// A request of rows: `instances`, or `inputs`.
#[derive(Serialize, ToSchema)]
pub(super) struct PredictRequest {
    /// At most 65536 rows: the value of the only input, or an object of values by the inputs' names.
    #[schema(nullable = false)]
    instances: Option<Vec<serde_json::Value>>,
    /// The rows of each input by its name, or a list as `instances`.
    #[schema(value_type = Option<serde_json::Value>)]
    inputs: Option<serde_json::Value>,
    /// `timeout` in microseconds, `priority` and `non_finite_as_null`, as in the Open Inference Protocol.
    #[schema(value_type = Option<serde_json::Value>)]
    parameters: Option<serde_json::Value>,
}

/// The answer to rows.
#[derive(Serialize, ToSchema)]
pub(super) struct PredictAnswer {
    /// For each row the value of the only output, or an object of values by the outputs' names. For pictures and texts classes with their scores or an
    /// embedding, where the model declares them.
    predictions: Vec<serde_json::Value>,
}
