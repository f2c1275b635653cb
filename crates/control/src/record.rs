//! The durable records of the control plane, as the store keeps them. The control plane writes every one of them through
//! [`Write`](crate::Write) and reads them once, at its start.

use std::{collections::BTreeMap, sync::Arc};

use packhorse_cluster::{
    ClusterId, DeviceId, DeviceKind, DeviceReport, Discipline, Generation, ModelId, ModelName,
    ModelSpec, ModelVersion, NodeName, PolicyOptions, Profile, ProfileTable, Replica,
    RequestsPerSecond, Scheduling, Split, Sticky,
};
use packhorse_contention::PairTable;
use packhorse_estimator::OperatorGraph;

use crate::known_measurements::MeasurementKey;

/// A registered model.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelRecord {
    /// The registered specification.
    pub spec: ModelSpec,
    /// The size of the model's file, in bytes.
    pub artifact_bytes: u64,
    /// The reason why the model cannot be served as it is registered, if it cannot.
    pub failure: Option<String>,
    /// The operators of its program; none if no node has found them.
    pub operators: Option<Arc<OperatorGraph>>,
    /// The newest plan at the time of the registration. Plans up to this one refer to an earlier model of the same name.
    pub after_plan: Generation,
}

/// The split of a model's requests over its versions.
#[derive(Clone, Debug, PartialEq)]
pub struct SplitRecord {
    /// The model.
    pub name: ModelName,
    /// The shares that an admin gave; none if the newest version takes over by itself.
    pub split: Option<Split>,
    /// The shares before the last change, to which a rollback returns.
    pub previous: Option<Split>,
    /// The choice of a version for a request.
    pub sticky: Sticky,
    /// The version that has all requests until a newer one has taken over, if there is no split.
    pub stable: Option<ModelVersion>,
    /// The version that was rolled back by itself. It and those before it do not take over.
    pub rejected: Option<RejectedVersion>,
}

/// A version that was rolled back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RejectedVersion {
    /// The version.
    pub version: ModelVersion,
    /// The reason, as text for people.
    pub reason: String,
}

impl SplitRecord {
    /// Returns the record of a model whose newest version takes over by itself.
    pub fn new(name: ModelName) -> Self {
        Self {
            name,
            split: None,
            previous: None,
            sticky: Sticky::None,
            stable: None,
            rejected: None,
        }
    }
}

/// A node with its last reported devices and its scheduling.
#[derive(Clone, Debug, PartialEq)]
pub struct NodeRecord {
    /// The node's name.
    pub name: NodeName,
    /// The version of the node's agent.
    pub agent_version: String,
    /// The devices that the agent last reported.
    pub devices: Vec<DeviceReport>,
    /// The scheduling of the node.
    pub scheduling: Scheduling,
}

/// An adopted plan, with names in place of the problem's indices.
#[derive(Clone, Debug, PartialEq)]
pub struct PlanRecord {
    /// The plan's number.
    pub generation: Generation,
    /// The policy that made the plan.
    pub policy: String,
    /// The reason why the plan was made, as text for people.
    pub reason: String,
    /// The time that the policy took, in milliseconds.
    pub solve_ms: f64,
    /// The time at which the plan was adopted, in milliseconds since 1970.
    pub created_ms: i64,
    /// The replicas, ordered by model, then device. All are planned.
    pub replicas: Vec<Replica>,
    /// The kinds of the devices that the replicas run on.
    pub device_kinds: BTreeMap<DeviceId, DeviceKind>,
    /// The forecasts, ordered by model.
    pub forecasts: Vec<Forecast>,
}

/// The requests of all models in the time in which a plan was current, predicted and observed. The time begins with the first sample
/// after the plan was adopted, or after the gateway was started with it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PlanOutcome {
    /// The length of the time, in seconds.
    pub seconds: f64,
    /// The number of requests that arrived.
    pub arrived: f64,
    /// The number of requests that the plan expected to be answered within the SLO, of those that arrived.
    pub predicted: f64,
    /// The number of requests that were answered within the SLO.
    pub observed: f64,
}

/// The forecast of a plan for a model.
#[derive(Clone, Debug, PartialEq)]
pub struct Forecast {
    /// The model.
    pub model: ModelId,
    /// The request rate that was planned for.
    pub rate: RequestsPerSecond,
    /// The predicted requests per second within the SLO, by the policy's own estimate.
    pub goodput: RequestsPerSecond,
    /// The reason why the model is not, or not fully, served, as text for people.
    pub shortfall: Option<String>,
}

/// The settings that an admin changes at run time; none where the default, or the present value, applies.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// The name of the placement policy.
    pub policy: Option<String>,
    /// The policy's options.
    pub options: Option<PolicyOptions>,
    /// The dispatch discipline.
    pub discipline: Option<Discipline>,
}

/// The stored state of a cluster.
#[derive(Clone, Debug, PartialEq)]
pub struct StoredCluster {
    /// The identity of the store.
    pub cluster_id: ClusterId,
    /// The number of the gateway's start, above that of every earlier start.
    pub epoch: u64,
    /// The registered models.
    pub models: Vec<ModelRecord>,
    /// The splits of the models that have one, or had more than one version.
    pub splits: Vec<SplitRecord>,
    /// The nodes.
    pub nodes: Vec<NodeRecord>,
    /// The newest plans, the newest first.
    pub plans: Vec<PlanRecord>,
    /// All profiles.
    pub profiles: ProfileTable,
    /// The measurements that were made, the oldest first.
    pub measurements: Vec<(MeasurementKey, Profile)>,
    /// The measured pairs of models that share a device, by kind of device.
    pub pairs: BTreeMap<DeviceKind, PairTable>,
    /// The rates that models and families were measured to need.
    pub needs: BTreeMap<ModelName, RequestsPerSecond>,
    /// The settings.
    pub settings: Settings,
}
