//! The state of a model between registration and serving.

use serde::{Deserialize, Serialize};

/// The state of a model between registration and serving.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum ModelState {
    /// The model is stored, and no node is available yet.
    Registered,
    /// An agent is fetching the model's artifact.
    Fetching,
    /// The model is being measured, or waits to be, on a kind of device for which it has no profile.
    Profiling,
    /// The placement policy is making a plan.
    Planning,
    /// The model's replicas are starting.
    Loading,
    /// At least one replica serves requests.
    Ready,
    /// The plan has no replica of the model.
    Unplaced,
    /// The model cannot be served as it is registered.
    Failed,
}
