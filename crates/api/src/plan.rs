//! Plans, policies and goodput.

use packhorse_cluster::{
    ComputeShare, DeviceId, DeviceKind, Discipline, Explanation, Generation, ModelId, ModelName,
    ModelVersion, PolicyOptions, Priority, ReplicaId, RequestsPerSecond,
};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{FamilyGoodput, ModelGoodput, TotalGoodput};

/// A plan: the replicas that shall run, and the goodput that the policy expects.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct PlanView {
    /// The plan's number; null for a plan that is not stored.
    #[schema(value_type = Option<u64>)]
    pub generation: Option<Generation>,
    /// The policy that made the plan.
    pub policy: String,
    /// The time at which the plan was stored, in milliseconds since 1970; null for a plan that is not stored.
    pub created_unix_ms: Option<i64>,
    /// The reason why the plan was made, as text for people.
    pub reason: String,
    /// The time that the policy took, in milliseconds.
    pub solve_ms: f64,
    /// The sum of the models' predicted goodput, in requests per second.
    pub predicted_goodput_rps: f64,
    /// The observed goodput of the last hour over the predicted one, minus 1, over all models: negative if it is worse than predicted.
    /// Null while there is nothing to compare, and for plans that are not the current one.
    #[serde(default)]
    pub bias: Option<f64>,
    /// The planned replicas.
    pub replicas: Vec<PlacementView>,
    /// The forecast of each model.
    pub models: Vec<ForecastView>,
    /// The names of the models without a replica.
    pub unserved: Vec<String>,
    /// The number of devices with at least one replica.
    pub devices_used: usize,
}

/// A stored plan without its replicas and forecasts, which `GET /v1/plans/{generation}` returns.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct PlanSummary {
    /// The plan's number.
    #[schema(value_type = u64)]
    pub generation: Generation,
    /// The policy that made the plan.
    pub policy: String,
    /// The time at which the plan was stored, in milliseconds since 1970.
    pub created_unix_ms: i64,
    /// The reason why the plan was made, as text for people.
    pub reason: String,
    /// The time that the policy took, in milliseconds.
    pub solve_ms: f64,
    /// The sum of the models' predicted goodput, in requests per second.
    pub predicted_goodput_rps: f64,
    /// The number of planned replicas.
    pub replicas: usize,
    /// The number of models that were planned for.
    pub models: usize,
    /// The number of devices with at least one replica.
    pub devices_used: usize,
    /// The number of models without a replica.
    pub unserved_models: usize,
    /// The first 16 of these models, as NAME:VERSION.
    pub unserved: Vec<String>,
    /// The requests in the time in which the plan was current; null if none were counted.
    #[serde(default)]
    pub outcome: Option<PlanOutcome>,
}

/// The requests of all models in the time in which a plan was current, predicted and observed. The time ends when another plan replaces
/// it, and begins anew when the gateway is started.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct PlanOutcome {
    /// The length of the time, in seconds.
    pub duration_s: f64,
    /// The requests per second that arrived. Here and below each counts as many times as it has rows.
    pub offered_rps: f64,
    /// The requests per second that the plan expected to be answered within the SLO, of those that arrived.
    pub predicted_rps: f64,
    /// The goodput: the requests per second that were answered within the SLO.
    pub goodput_rps: f64,
}

/// A planned replica.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct PlacementView {
    /// The replica's identity; null in a plan that is not stored.
    #[schema(value_type = Option<String>)]
    pub id: Option<ReplicaId>,
    /// The name of the model that the replica serves.
    #[schema(value_type = String)]
    pub model: ModelName,
    /// The version of the model.
    #[schema(value_type = u32)]
    pub version: ModelVersion,
    /// The device, as NODE/DEVICE.
    #[schema(value_type = String)]
    pub device: DeviceId,
    /// The kind of the device.
    #[schema(value_type = String)]
    pub device_kind: DeviceKind,
    /// The largest number of rows in one batch.
    pub batch_size: u32,
    /// The share of the device's multiprocessors that the replica may use, in percent; null if unlimited.
    #[schema(value_type = Option<f64>)]
    pub compute_share_pct: Option<ComputeShare>,
    /// The duty cycle of a time-shared replica: the period in which it gets one turn, in milliseconds. The replicas of a device
    /// that have one compute one batch at a time, in turn.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub duty_cycle_ms: Option<f64>,
    /// The other models that the same worker serves, as NAME:VERSION, because their programs share a backbone with this one's: the device holds
    /// the backbone once, and batches of all of them are computed together.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(value_type = Vec<String>)]
    pub also: Vec<ModelId>,
}

/// The forecast of a plan for a model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ForecastView {
    /// The model's name.
    #[schema(value_type = String)]
    pub name: ModelName,
    /// The model's version.
    #[schema(value_type = u32)]
    pub version: ModelVersion,
    /// The request rate that was planned for, in requests per second.
    pub rate_rps: f64,
    /// The predicted goodput, in requests per second within the SLO, by the policy's own estimate.
    pub predicted_goodput_rps: f64,
    /// The number of replicas.
    pub replicas: usize,
    /// The reason why the model is not, or not fully, served.
    pub shortfall: Option<String>,
    /// The explanation of what limits the model's goodput and what would serve it; present if it was requested and the model was
    /// planned for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub explanation: Option<Explanation>,
}

impl ForecastView {
    /// Returns the identity of the model.
    pub fn id(&self) -> ModelId {
        ModelId {
            name: self.name.clone(),
            version: self.version,
        }
    }
}

/// The difference between two plans.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct PlanDiff {
    /// The replicas that would start.
    pub added: Vec<PlacementView>,
    /// The replicas that would stop.
    pub removed: Vec<PlacementView>,
    /// The number of replicas in both plans.
    pub kept: usize,
}

/// Requests the plan that a policy would make if the cluster were different. Changes nothing.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PlanPreviewRequest {
    /// The placement policy; the configured one if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<String>,
    /// The policy's options; the configured ones if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub options: Option<PolicyOptions>,
    /// The dispatch discipline to plan for; the configured one if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub discipline: Option<Discipline>,
    /// The models that differ, and those to add; at most 1024.
    #[serde(default)]
    pub models: Vec<PreviewModel>,
    /// The names of the models to leave out, in all versions; at most 1024.
    #[serde(default)]
    #[schema(value_type = Vec<String>)]
    pub remove: Vec<ModelName>,
    /// The devices to add to those of the cluster, and to take away; at most 64 entries.
    #[serde(default)]
    pub devices: Vec<PreviewDevices>,
    /// True to explain why models are not fully served and what would serve them. The explanation may take as long as planning.
    #[serde(default)]
    pub explain: bool,
}

/// A registered model with another rate, SLO or priority, or a model to add.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PreviewModel {
    /// The model's name.
    #[schema(value_type = String)]
    pub name: ModelName,
    /// The model's version; if absent, the newest of a registered model, and 1 for one to add.
    #[serde(default)]
    #[schema(value_type = Option<u32>)]
    pub version: Option<ModelVersion>,
    /// The latency objective (SLO) in milliseconds; unchanged if absent.
    #[serde(default)]
    pub slo_ms: Option<f64>,
    /// The request rate to plan for, in requests per second; unchanged if absent.
    #[serde(default)]
    #[schema(value_type = Option<f64>)]
    pub rate_rps: Option<RequestsPerSecond>,
    /// The priority over other models, of all versions of the model's name; unchanged if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<u32>, minimum = 0, maximum = 9)]
    pub priority: Option<Priority>,
    /// The registered model, in its newest version, with whose profiles and batch sizes the model to add is planned, and with whose SLO,
    /// priority and reserved rate where they are absent; without a reservation the rate is then 1. Absent for a registered model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub profile_of: Option<ModelName>,
}

/// Devices to add or to take away.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PreviewDevices {
    /// The kind of the devices: one that the cluster has, or one with a built-in data sheet.
    #[schema(value_type = String)]
    pub kind: DeviceKind,
    /// The number of devices to add, at most 1024 in one request; a negative number takes away as many devices of the cluster, those with
    /// the fewest replicas first.
    #[schema(minimum = -1024, maximum = 1024)]
    pub count: i32,
}

/// The plan that a policy would make.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct PlanPreview {
    /// The plan that the policy would make.
    pub plan: PlanView,
    /// The difference from the current plan.
    pub diff: PlanDiff,
    /// The current plan; null before the first.
    pub current: Option<PlanView>,
    /// A bound on the goodput of any plan for the previewed models and devices, in requests per second: what the devices compute with the
    /// cheapest batches that are in time, as if requests were a fluid.
    pub bound_rps: f64,
}

/// Changes the placement policy, its options or the dispatch discipline. Absent fields stay unchanged.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PolicyChange {
    /// The placement policy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<String>,
    /// The policy's options. They replace all earlier ones.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub options: Option<PolicyOptions>,
    /// The dispatch discipline.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub discipline: Option<Discipline>,
}

/// The placement policy, its options and the dispatch discipline.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct PolicyView {
    /// The placement policy.
    pub policy: String,
    /// The policy's options.
    pub options: PolicyOptions,
    /// The dispatch discipline.
    #[schema(value_type = String)]
    pub discipline: Discipline,
    /// The available placement policies.
    pub policies: Vec<PolicyInfo>,
    /// The dispatch disciplines.
    #[serde(default)]
    pub disciplines: Vec<DisciplineInfo>,
}

/// A dispatch discipline.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DisciplineInfo {
    /// The discipline's name.
    #[schema(value_type = String)]
    pub name: Discipline,
    /// True if the gateway has it; the others run in the simulator only.
    pub live: bool,
}

/// An available placement policy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PolicyInfo {
    /// The policy's name.
    pub name: String,
    /// A sentence that describes the policy.
    pub summary: String,
    /// The publication that describes the policy, or its origin.
    pub source: String,
}

/// The goodput and latency of all models in a time window that ends now.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct GoodputView {
    /// The length of the window, in seconds.
    pub window_s: f64,
    /// The goodput and latency of each model.
    pub models: Vec<ModelGoodput>,
    /// The goodput of each family, and how accurate it is.
    #[serde(default)]
    pub families: Vec<FamilyGoodput>,
    /// The goodput of all models together.
    pub total: TotalGoodput,
}

impl GoodputView {
    /// Adds the total to the goodput of models.
    pub fn new(window_s: f64, models: Vec<ModelGoodput>) -> Self {
        let total = TotalGoodput::of(&models);
        Self {
            window_s,
            families: FamilyGoodput::of(&models),
            models,
            total,
        }
    }
}
