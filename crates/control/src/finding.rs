//! A finding: what is wrong in the cluster, with cause and cure, for people.

use packhorse_cluster::{DeviceId, ModelId, NodeName};

/// The severity of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Severity {
    /// Requests fail now.
    Critical,
    /// Requests will fail if nothing changes, or some do now.
    Warning,
    /// Nothing fails, but an admin should know.
    Notice,
}

/// The subject of a finding.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Subject {
    /// A model.
    Model(ModelId),
    /// A node.
    Node(NodeName),
    /// A device.
    Device(DeviceId),
    /// The whole cluster.
    Cluster,
}

/// A finding.
#[derive(Clone, Debug, PartialEq)]
pub struct Finding {
    /// The severity.
    pub severity: Severity,
    /// The subject.
    pub subject: Subject,
    /// The kind of problem.
    pub problem: Problem,
    /// The sentence that says what is wrong.
    pub text: String,
    /// The reason, if it is known.
    pub cause: Option<String>,
    /// The cure, if there is one.
    pub cure: Option<String>,
}

/// The kind of problem. A subject has at most one finding of each kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Problem {
    /// A model cannot be served as it is registered.
    ModelFailed,
    /// No replica of a model serves.
    ModelNotServed,
    /// A model is served below its rate.
    ModelShort,
    /// A model has replicas on fewer devices than it asks for.
    FewerReplicas,
    /// A version was rolled back.
    RolledBack,
    /// A rewriting of a model's program was dropped, because it answered other numbers.
    RewritingDropped,
    /// Batches of a model take another time than its profile says.
    ProfileContradicted,
    /// Requests of some clients end workers of a model.
    TenantPaused,
    /// A model cannot start on a device.
    CannotStart,
    /// The memory of a device has no room for the weights of models that it shall serve.
    NoRoomForWeights,
    /// A model has a process of its own, because it ended the one that it should share.
    EndsSharedProcess,
    /// The lease of a node has expired.
    NodeLost,
    /// A draining node still has replicas.
    DrainWaits,
    /// Planning has trouble.
    Planning,
    /// Entries of the folder of models are not registered as they are there.
    Repository,
}

/// An entry of the folder of models that is registered at starts, and what is wrong with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RepositoryProblem {
    /// The entry.
    pub place: String,
    /// The sentence that says what is wrong.
    pub problem: String,
}

impl Problem {
    /// All kinds.
    pub const ALL: [Self; 15] = [
        Self::ModelFailed,
        Self::ModelNotServed,
        Self::ModelShort,
        Self::FewerReplicas,
        Self::RolledBack,
        Self::RewritingDropped,
        Self::ProfileContradicted,
        Self::TenantPaused,
        Self::CannotStart,
        Self::NoRoomForWeights,
        Self::EndsSharedProcess,
        Self::NodeLost,
        Self::DrainWaits,
        Self::Planning,
        Self::Repository,
    ];

    /// Returns the name of the kind, for metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::ModelFailed => "model_failed",
            Self::ModelNotServed => "model_not_served",
            Self::ModelShort => "model_short",
            Self::FewerReplicas => "fewer_replicas",
            Self::RolledBack => "rolled_back",
            Self::RewritingDropped => "rewriting_dropped",
            Self::ProfileContradicted => "profile_contradicted",
            Self::TenantPaused => "tenant_paused",
            Self::CannotStart => "cannot_start",
            Self::NoRoomForWeights => "no_room_for_weights",
            Self::EndsSharedProcess => "ends_shared_process",
            Self::NodeLost => "node_lost",
            Self::DrainWaits => "drain_waits",
            Self::Planning => "planning",
            Self::Repository => "repository",
        }
    }
}
