//! The messages of the admin API (`/v1`) between gateway, client, CLI and agent, as JSON.
//!
//! Field names carry their unit: `_ms` for milliseconds, `_rps` for requests per second. The body of every error is
//! [`ErrorBody`]. Requests of people with unknown fields are refused, so that a misspelt field is not silently ignored; messages
//! between agents and gateway ([`agent`]) may have fields that the other side does not know.

pub mod agent;
mod audit;
mod consequence;
pub mod events;
mod history;
mod key;
pub mod local_worker;
mod model;
mod node;
mod plan;
mod profile;
mod repository;
mod requests;
mod server_timing;
mod session;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

pub use audit::{AuditActor, AuditEntry};
pub use consequence::{ChangeAnswer, Changed, Consequence, Consequences, DryRunAnswer};
pub use history::{DevicePoint, HistoryMark, HistoryMarkKind, HistoryView, RequestPoint};
pub use key::{
    CreatedKey, KeyChange, KeyModelLimit, KeyRequest, KeyRotation, KeyView, Scope, UnknownScope,
};
pub use model::{
    ArtifactView, FamilyGoodput, MeasuredRateView, ModelChange, ModelGoodput, ModelRegistration,
    ModelState, ModelView, PredictedGoodputView, ProfilingView, Promotion, RemovedModel,
    ReplicaView, TotalGoodput, WeightsView,
};
pub use node::{DeviceView, NodeState, NodeTokenView, NodeView, RemovedNode};
pub use plan::{
    DisciplineInfo, ForecastView, GoodputView, PlacementView, PlanDiff, PlanOutcome, PlanPreview,
    PlanPreviewRequest, PlanSummary, PlanView, PolicyChange, PolicyInfo, PolicyView,
    PreviewDevices, PreviewModel,
};
pub use profile::{BatchTimeView, ImportedProfiles, LearnedTimeView};
pub use repository::{RepositoryProblem, RepositoryProblems};
pub use requests::{
    BatchView, CacheUse, EndOfRequest, RequestFilter, RequestStages, RequestView, TryView,
    UnknownFilter,
};
pub use server_timing::{
    CACHE_HEADER, MODEL_HEADER, SERVER_TIMING_HEADER, STAGES_HEADER, ServerTiming, UnknownTiming,
};
pub use session::{
    CSRF_HEADER, SESSION_COOKIE, SessionCode, SessionRequest, SessionScope, SessionView,
};

/// The body of every response that is not a success.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ErrorBody {
    /// The error message. It names the field and its limit.
    pub error: String,
}
