//! The messages of the admin API (`/v1`): what gateway, client, CLI and agent say to each other, as JSON.
//!
//! Times are milliseconds and rates are requests per second, as the field names say. Every error body is
//! [`ErrorBody`]. Unknown fields in requests are refused, so that a misspelt one is not silently ignored.

pub mod agent;
pub mod local_worker;
mod model;
mod node;
mod plan;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

pub use model::{
    ArtifactView, ModelChange, ModelGoodput, ModelRegistration, ModelState, ModelView,
    ProfilingView, ReplicaView,
};
pub use node::{DeviceView, NodeState, NodeView};
pub use plan::{
    ForecastView, GoodputView, PlacementView, PlanDiff, PlanPreview, PlanPreviewRequest, PlanView,
    PolicyChange, PolicyInfo, PolicyOptions, PolicyView, PreviewDevices, PreviewModel,
};

/// The body of every answer that is no success.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ErrorBody {
    /// What went wrong, naming the field and its limit.
    pub error: String,
}
