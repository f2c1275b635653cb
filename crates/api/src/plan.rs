//! Plans, policies and goodput.

use packhorse_cluster::{
    ComputeShare, DeviceId, DeviceKind, Discipline, Explanation, Generation, ModelId, ModelName,
    ModelVersion, ReplicaId, RequestsPerSecond,
};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::ModelGoodput;

/// A plan: which replicas shall run, and what the policy expects of them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct PlanView {
    /// Its number; null for a plan that was not stored.
    #[schema(value_type = Option<u64>)]
    pub generation: Option<Generation>,
    /// The policy that made it.
    pub policy: String,
    /// When it was stored, in milliseconds since 1970; null for a plan that was not.
    pub created_unix_ms: Option<i64>,
    /// Why it was made.
    pub reason: String,
    /// How long the policy took, in milliseconds.
    pub solve_ms: f64,
    /// The sum over models.
    pub predicted_goodput_rps: f64,
    /// The replicas.
    pub replicas: Vec<PlacementView>,
    /// What is expected per model.
    pub models: Vec<ForecastView>,
    /// Models without a replica.
    pub unserved: Vec<String>,
    /// Devices with at least one replica.
    pub devices_used: usize,
}

/// A planned replica.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct PlacementView {
    /// Its identity; null in a plan that was not stored.
    #[schema(value_type = Option<String>)]
    pub id: Option<ReplicaId>,
    /// What it serves.
    #[schema(value_type = String)]
    pub model: ModelName,
    /// Which version.
    #[schema(value_type = u32)]
    pub version: ModelVersion,
    /// Where, as NODE/DEVICE.
    #[schema(value_type = String)]
    pub device: DeviceId,
    /// What that device is.
    #[schema(value_type = String)]
    pub device_kind: DeviceKind,
    /// The most rows of one batch.
    pub batch_size: u32,
    /// The share of the multiprocessors it may use; null sets no limit.
    #[schema(value_type = Option<f64>)]
    pub compute_share_pct: Option<ComputeShare>,
    /// Where it shares the device in time: how often it has its turn, in milliseconds. Those of a device that have one compute one
    /// batch at a time, in turn.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub duty_cycle_ms: Option<f64>,
}

/// What a plan expects for a model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ForecastView {
    /// The model.
    #[schema(value_type = String)]
    pub name: ModelName,
    /// Its version.
    #[schema(value_type = u32)]
    pub version: ModelVersion,
    /// The rate that was planned for.
    pub rate_rps: f64,
    /// Requests per second within the SLO, by the policy's own estimate.
    pub predicted_goodput_rps: f64,
    /// How many replicas.
    pub replicas: usize,
    /// Why it is not, or not fully, served.
    pub shortfall: Option<String>,
    /// What bounds it and what would serve it; only where that was asked for, and only for models that were planned for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub explanation: Option<Explanation>,
}

impl ForecastView {
    /// Name and version.
    pub fn id(&self) -> ModelId {
        ModelId {
            name: self.name.clone(),
            version: self.version,
        }
    }
}

/// What differs between two plans.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct PlanDiff {
    /// Replicas that would start.
    pub added: Vec<PlacementView>,
    /// Replicas that would stop.
    pub removed: Vec<PlacementView>,
    /// How many stay untouched.
    pub kept: usize,
}

/// Choices about how a policy decides. A policy reads what concerns it and ignores the rest.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct PolicyOptions {
    /// `usher`, `ao-milp` and their kin: what counts as a replica's need of multiprocessors, `achieved`, `mean` or `sm`; null is the
    /// policy's own choice.
    pub compute_metric: Option<String>,
    /// Policies that optimise: what they make as large as they can, `goodput` or `max-min`; null is `goodput`.
    pub objective: Option<String>,
    /// `ao-milp`, `wsm-milp`: of all placements that are as good, one with small batches.
    pub prefer_small_batch: bool,
    /// `nexus`: a residual batch of b waits (b - 1) / rate for its last request, as the published code has it, in place of the
    /// paper's b / rate.
    pub nexus_published: bool,
    /// `goodput`: whether it may confine replicas to a share of their GPU's multiprocessors, which takes MPS: `never`, or `auto`, where
    /// it pays; null is `never`.
    pub compute_shares: Option<String>,
    /// `goodput`: how many times as much as usual it tries while its time lasts; null is once.
    #[schema(minimum = 1, maximum = 1000)]
    pub effort: Option<u32>,
}

/// Asks what a policy would plan if something were different. Changes nothing.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PlanPreviewRequest {
    /// The policy to ask; the configured one if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<String>,
    /// How it decides; as configured if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub options: Option<PolicyOptions>,
    /// The dispatch discipline that it may reckon with; the configured one if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub discipline: Option<Discipline>,
    /// Registered models with another rate or SLO.
    #[serde(default)]
    pub models: Vec<PreviewModel>,
    /// Models to leave out.
    #[serde(default)]
    #[schema(value_type = Vec<String>)]
    pub remove: Vec<ModelName>,
    /// Devices to add to those that are there.
    #[serde(default)]
    pub devices: Vec<PreviewDevices>,
    /// Whether to explain why models are not fully served, and what it would take; that takes up to as long as planning may.
    #[serde(default)]
    pub explain: bool,
}

/// A registered model as it would be.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PreviewModel {
    /// The model.
    #[schema(value_type = String)]
    pub name: ModelName,
    /// Its version; the newest if absent.
    #[serde(default)]
    #[schema(value_type = Option<u32>)]
    pub version: Option<ModelVersion>,
    /// Its objective, if it changes.
    #[serde(default)]
    pub slo_ms: Option<f64>,
    /// Its rate, if it changes.
    #[serde(default)]
    #[schema(value_type = Option<f64>)]
    pub rate_rps: Option<RequestsPerSecond>,
}

/// Devices as they would be added.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PreviewDevices {
    /// What they are: a kind whose data sheet is built in, or one that the cluster has.
    #[schema(value_type = String)]
    pub kind: DeviceKind,
    /// How many; at most 1024.
    #[schema(maximum = 1024)]
    pub count: u32,
}

/// What a policy would plan.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct PlanPreview {
    /// The plan it would make.
    pub plan: PlanView,
    /// How that differs from the current plan.
    pub diff: PlanDiff,
    /// The current plan; null before the first.
    pub current: Option<PlanView>,
}

/// Changes how models are placed and requests dispatched. Absent fields stay.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PolicyChange {
    /// The placement policy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<String>,
    /// How it decides, in place of all that was chosen before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub options: Option<PolicyOptions>,
    /// The dispatch discipline.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub discipline: Option<Discipline>,
}

/// How models are placed and requests dispatched.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct PolicyView {
    /// The placement policy.
    pub policy: String,
    /// How it decides.
    pub options: PolicyOptions,
    /// The dispatch discipline.
    #[schema(value_type = String)]
    pub discipline: Discipline,
    /// The policies there are.
    pub policies: Vec<PolicyInfo>,
}

/// A placement policy there is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PolicyInfo {
    /// Its name.
    pub name: String,
    /// What it does, in a sentence.
    pub summary: String,
    /// Where it comes from.
    pub source: String,
}

/// How all models fared in a window of time that ends now.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct GoodputView {
    /// The window's length in seconds.
    pub window_s: f64,
    /// One per model.
    pub models: Vec<ModelGoodput>,
}
