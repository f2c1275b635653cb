//! The events of the cluster: those of `GET /v1/events`, and the findings of `GET /v1/findings`.
//!
//! The stream begins with a [`Snapshot`]. After it come changes ([`EventView`]), each named by its [`EventKind`], and once a second a
//! `goodput` event, a [`GoodputView`] of the last second.

use std::{fmt, str::FromStr};

use packhorse_cluster::{DeviceId, Generation, ModelId, NodeName, ReplicaId, ReplicaState};
use serde::{Deserialize, Serialize};
use utoipa::{
    PartialSchema, ToSchema,
    openapi::{RefOr, schema::Schema},
};

use crate::{
    DeviceView, GoodputView, ModelState, ModelView, NodeState, NodeView, PlanPreviewRequest,
    PlanView, PolicyView, ReplicaView,
};

/// The name of the stream's first event, and of the event that replaces all earlier ones after a gap.
pub const SNAPSHOT_EVENT: &str = "snapshot";
/// The name of the event that the stream contains every second.
pub const GOODPUT_EVENT: &str = "goodput";

/// The kind of a change: the name of its event in the stream.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum EventKind {
    /// A model was registered, removed, or is in another state.
    Model,
    /// A node joined, was lost, or is in another state.
    Node,
    /// A device appeared, failed, or works again.
    Device,
    /// A replica is in another state.
    Replica,
    /// A plan was proposed, adopted, rejected, completed, or cannot be carried out as it is.
    Plan,
    /// A model deviates from what the plan assumed.
    Drift,
    /// Something is wrong, or no longer is.
    Finding,
}

/// The error of a text that is not the name of a kind of change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownEventKind(String);

impl fmt::Display for UnknownEventKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "there is no kind of event {:?}", self.0)
    }
}

impl std::error::Error for UnknownEventKind {}

impl EventKind {
    /// All kinds.
    pub const ALL: [Self; 7] = [
        Self::Model,
        Self::Node,
        Self::Device,
        Self::Replica,
        Self::Plan,
        Self::Drift,
        Self::Finding,
    ];

    /// Returns the name of the event in the stream.
    pub fn name(self) -> &'static str {
        match self {
            Self::Model => "model",
            Self::Node => "node",
            Self::Device => "device",
            Self::Replica => "replica",
            Self::Plan => "plan",
            Self::Drift => "drift",
            Self::Finding => "finding",
        }
    }
}

impl fmt::Display for EventKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for EventKind {
    type Err = UnknownEventKind;

    fn from_str(text: &str) -> Result<Self, UnknownEventKind> {
        let mut all = Self::ALL.into_iter();
        all.find(|kind| kind.name() == text)
            .ok_or_else(|| UnknownEventKind(text.to_owned()))
    }
}

/// The object that an event or a finding is about.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Subject {
    /// A version of a model, as NAME:VERSION.
    Model(ModelId),
    /// A node.
    Node(NodeName),
    /// A device, as NODE/DEVICE.
    Device(DeviceId),
    /// A replica.
    Replica(ReplicaId),
    /// A plan, by its number.
    Plan(Generation),
}

/// The schema of [`Subject`], whose identities are texts in JSON.
#[derive(ToSchema)]
#[schema(rename_all = "snake_case")]
#[expect(dead_code, reason = "only its schema is used")]
enum SubjectSchema {
    /// A version of a model, as NAME:VERSION.
    Model(String),
    /// A node.
    Node(String),
    /// A device, as NODE/DEVICE.
    Device(String),
    /// A replica.
    Replica(String),
    /// A plan, by its number.
    Plan(u64),
}

impl PartialSchema for Subject {
    fn schema() -> RefOr<Schema> {
        SubjectSchema::schema()
    }
}

impl ToSchema for Subject {}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Model(model) => write!(f, "model {model}"),
            Self::Node(node) => write!(f, "node {node}"),
            Self::Device(device) => write!(f, "device {device}"),
            Self::Replica(replica) => write!(f, "replica {replica}"),
            Self::Plan(generation) => write!(f, "plan {generation}"),
        }
    }
}

/// The state of the subject after a change. Each kind of event has its own states.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum EventState {
    /// Model: stored, and no node is available yet.
    Registered,
    /// Model, replica: an agent is fetching the artifact.
    Fetching,
    /// Model: being measured, or waiting to be.
    Profiling,
    /// Model: the policy is making a plan.
    Planning,
    /// Model: replicas are starting. Replica: its worker is starting.
    Loading,
    /// Model: at least one replica serves. Node: holds its lease. Device: works. Replica: its worker is ready.
    Ready,
    /// Model: the plan has no replica of it.
    Unplaced,
    /// Model: cannot be served as it is registered. Device: does not work. Replica: its worker did not start.
    Failed,
    /// Node: keeps its replicas and gets no new ones.
    Cordoned,
    /// Node: its replicas move away. Replica: gets no further batches.
    Draining,
    /// Node: its lease has expired. Replica: its connection was lost.
    Lost,
    /// Model, node or device: no longer there.
    Removed,
    /// Model: its requests go to its versions in other shares, by an admin, by a takeover, or because a version was rolled back.
    Rerouted,
    /// Replica: its worker died, and the agent waits before it starts it again.
    BackingOff,
    /// Replica: gets batches.
    Serving,
    /// Replica: gets no batches, because they failed on it while others computed theirs; its worker is restarted.
    Ejected,
    /// Replica: its worker has ended.
    Stopped,
    /// Plan: made by the policy, not adopted yet.
    Proposed,
    /// Plan: stored, and being carried out.
    Adopted,
    /// Plan: not worth the moves that it needs.
    Rejected,
    /// Plan: all its replicas serve.
    Completed,
    /// Plan: a replica of it cannot be started.
    Degraded,
    /// Drift: the rate differs from the planned one.
    Rate,
    /// Drift: the latency differs from the planned one.
    Latency,
    /// Drift: replicas slow each other differently from what the plan assumed.
    Slowdown,
    /// Drift: the inputs of requests have other sizes than those that the model was measured with.
    InputShapes,
    /// Finding: has appeared.
    Raised,
    /// Finding: is over.
    Cleared,
}

impl From<ModelState> for EventState {
    fn from(state: ModelState) -> Self {
        match state {
            ModelState::Registered => Self::Registered,
            ModelState::Fetching => Self::Fetching,
            ModelState::Profiling => Self::Profiling,
            ModelState::Planning => Self::Planning,
            ModelState::Loading => Self::Loading,
            ModelState::Ready => Self::Ready,
            ModelState::Unplaced => Self::Unplaced,
            ModelState::Failed => Self::Failed,
        }
    }
}

impl From<NodeState> for EventState {
    fn from(state: NodeState) -> Self {
        match state {
            NodeState::Ready => Self::Ready,
            NodeState::Cordoned => Self::Cordoned,
            NodeState::Draining => Self::Draining,
            NodeState::Lost => Self::Lost,
        }
    }
}

impl From<ReplicaState> for EventState {
    fn from(state: ReplicaState) -> Self {
        match state {
            ReplicaState::Fetching => Self::Fetching,
            ReplicaState::Loading => Self::Loading,
            ReplicaState::Ready => Self::Ready,
            ReplicaState::Draining => Self::Draining,
            ReplicaState::BackingOff => Self::BackingOff,
            ReplicaState::Failed => Self::Failed,
        }
    }
}

/// The subject of an event after the change, in the form of its own route.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(untagged)]
pub enum EventObject {
    /// A model.
    Model(Box<ModelView>),
    /// A plan.
    Plan(Box<PlanView>),
    /// A node with its devices.
    Node(Box<NodeView>),
    /// A replica.
    Replica(Box<ReplicaView>),
    /// A device.
    Device(Box<DeviceView>),
    /// A finding.
    Finding(Box<Finding>),
}

/// A change in the cluster. Its kind is the name of its event in the stream.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct EventView {
    /// The number of the event. Numbers ascend and are never used again.
    pub id: u64,
    /// The kind of change.
    pub kind: EventKind,
    /// The time of the change, in milliseconds since 1970.
    pub at_ms: u64,
    /// The object that has changed; null if it is the cluster.
    pub subject: Option<Subject>,
    /// The state of the subject after the change.
    pub state: EventState,
    /// The reason for the change, as text for people.
    pub reason: Option<String>,
    /// The change in a sentence for people.
    pub text: String,
    /// The subject after the change, in the form of its own route; absent if it no longer exists.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub object: Option<EventObject>,
}

/// The state of the whole cluster, with which a stream of events begins. Each part is the body of its own route.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Snapshot {
    /// The number of the last event that the snapshot contains. The events after it follow.
    pub id: u64,
    /// The time of the snapshot, in milliseconds since 1970.
    pub at_ms: u64,
    /// All models.
    pub models: Vec<ModelView>,
    /// All nodes.
    pub nodes: Vec<NodeView>,
    /// The current plan; null before the first.
    pub plan: Option<PlanView>,
    /// The placement policy and the dispatch discipline.
    pub policy: PolicyView,
    /// The findings.
    pub findings: Vec<Finding>,
    /// The goodput of the last second.
    pub goodput: GoodputView,
}

/// The urgency of a finding.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// Nothing is wrong yet.
    Info,
    /// Requests are, or soon will be, answered too late or refused.
    Warning,
    /// A model or a node does not work at all.
    Critical,
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Info => "info",
            Self::Warning => "warning",
            Self::Critical => "critical",
        })
    }
}

/// Something that is wrong, with its cause and its cure.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Finding {
    /// The urgency.
    pub severity: Severity,
    /// The object that something is wrong with; null if it is the cluster.
    pub subject: Option<Subject>,
    /// The kind of trouble, such as `slo_missed`: the label `problem` of the metric `packhorse_findings`.
    #[serde(default)]
    pub problem: String,
    /// The model on the subject that has the trouble, as NAME:VERSION, where several can have it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub model: Option<ModelId>,
    /// The time since which it is there, in milliseconds since 1970; null if that is not known. A finding that is away for less than a minute is
    /// the same.
    #[serde(default)]
    pub since_ms: Option<u64>,
    /// The number of requests that it cost in the last minute, or of a process that ended since then; 0 if it is not known.
    #[serde(default)]
    pub missed_requests: u64,
    /// The trouble, in a sentence for people, with its numbers.
    pub text: String,
    /// The cause, as text for people. A finding with the same problem, subject and model is the same finding, even if its texts have other numbers.
    pub cause: String,
    /// The numbers that show it.
    #[serde(default)]
    pub evidence: Vec<Evidence>,
    /// The object whose trouble causes this one; null if it is its own cause, as far as known. Its finding comes before this one.
    #[serde(default)]
    pub root: Option<Subject>,
    /// The models whose requests suffer from it, beside the subject itself.
    #[serde(default)]
    #[schema(value_type = Vec<String>)]
    pub victims: Vec<ModelId>,
    /// The cure; null if none is known.
    pub cure: Option<Cure>,
}

/// A number that shows a finding.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Evidence {
    /// The sentence with the number.
    pub text: String,
    /// The route of the admin API that has more of it; null if there is none.
    pub route: Option<String>,
}

/// Findings with one root, from the first of them until the last is over. A gateway forgets its incidents when it ends.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Incident {
    /// The number of the incident since the gateway's start, from 1.
    pub id: u64,
    /// The object with which the trouble began, as far as known; null if it is the cluster.
    pub root: Option<Subject>,
    /// The worst urgency so far.
    pub severity: Severity,
    /// The begin of its first finding, in milliseconds since 1970.
    pub since_ms: u64,
    /// The time at which its last finding was over, in milliseconds since 1970; null while there is one. If the root has findings again within a
    /// minute, the incident goes on.
    pub end_ms: Option<u64>,
    /// Its findings, at most 32: those of the root first, then those with the most missed requests.
    pub findings: Vec<IncidentFinding>,
    /// The number of requests that missed their SLO in it so far, of all models.
    #[serde(default)]
    pub missed_requests: u64,
    /// The models whose requests these were, the one with the most first; at most 32.
    #[serde(default)]
    pub missed_by_model: Vec<MissedByModel>,
}

/// The requests of a model that missed its SLO in an incident.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct MissedByModel {
    /// The model, as NAME:VERSION.
    #[schema(value_type = String)]
    pub model: ModelId,
    /// The number of these requests.
    pub requests: u64,
}

/// A finding of an incident: as it is now, and once it is over as it was at its worst, when the largest part of the requests was missed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct IncidentFinding {
    /// The finding.
    pub finding: Finding,
    /// The time at which it was over, in milliseconds since 1970; null while it is there.
    pub end_ms: Option<u64>,
}

/// The cure of a finding.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Cure {
    /// The cure, in a sentence for people.
    pub text: String,
    /// A body for `POST /v1/plans/preview`, which shows what the cure would bring; null if a plan cannot show it.
    pub preview: Option<PlanPreviewRequest>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_is_read_by_its_name() {
        for kind in EventKind::ALL {
            assert_eq!(kind.name().parse(), Ok(kind));
        }
        assert_eq!(
            "snapshot".parse::<EventKind>().unwrap_err().to_string(),
            "there is no kind of event \"snapshot\""
        );
    }
}
