//! A finding: what is wrong in the cluster, with cause and cure, for people.

use packhorse_cluster::{DeviceId, DeviceKind, ModelId, NodeName, RequestsPerSecond, Time};

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
    /// The model on the subject that has the problem, where several can have it.
    pub model: Option<ModelId>,
    /// The kind of problem.
    pub problem: Problem,
    /// The largest part of a model's requests that it costs, from 0 to 1; 0 if it is not known.
    pub missed_part: f64,
    /// The number of requests that it cost in the last minute, or of a process that ended since then; 0 if it is not known.
    pub missed: u64,
    /// The time since which it is there. [`Time::MAX`] until the controller knows it.
    pub since: Time,
    /// The sentence that says what is wrong.
    pub text: String,
    /// The reason, if it is known.
    pub cause: Option<String>,
    /// The numbers that show it.
    pub evidence: Vec<Evidence>,
    /// The subject whose trouble causes this one; none if it is its own cause, as far as known.
    pub root: Option<Subject>,
    /// The models whose requests suffer from it beside the subject itself.
    pub victims: Vec<ModelId>,
    /// The cure, if there is one.
    pub cure: Option<String>,
    /// The change of the plan that shows what the cure would bring, if a plan can show it.
    pub preview: Option<CurePreview>,
}

/// A number that shows a finding.
#[derive(Clone, Debug, PartialEq)]
pub struct Evidence {
    /// The sentence with the number.
    pub text: String,
    /// The place where more of it is.
    pub source: Option<EvidenceSource>,
}

/// The place where more of a finding's evidence is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EvidenceSource {
    /// The missed requests of a model.
    MissedRequests(ModelId),
    /// A model.
    Model(ModelId),
    /// The nodes with their devices.
    Nodes,
}

/// A change of the plan's input that shows what a cure would bring.
#[derive(Clone, Debug, PartialEq)]
pub enum CurePreview {
    /// A model is planned for this rate.
    Rate(ModelId, RequestsPerSecond),
    /// One device of this kind is taken away.
    WithoutDevice(DeviceKind),
}

/// The identity of a finding: as long as there is one with it, it is the same.
pub(crate) type FindingKey = (Problem, Subject, Option<ModelId>);

impl Finding {
    /// Creates a finding of which no more is known.
    pub(crate) fn new(
        severity: Severity,
        subject: Subject,
        problem: Problem,
        text: impl Into<String>,
    ) -> Self {
        Self {
            severity,
            subject,
            model: None,
            problem,
            missed_part: 0.0,
            missed: 0,
            since: Time::MAX,
            text: text.into(),
            cause: None,
            evidence: Vec::new(),
            root: None,
            victims: Vec::new(),
            cure: None,
            preview: None,
        }
    }

    /// Sets the model on the subject that has the problem.
    pub(crate) fn of_model(mut self, model: &ModelId) -> Self {
        self.model = Some(model.clone());
        self
    }

    /// Sets the reason.
    pub(crate) fn because(mut self, cause: impl Into<String>) -> Self {
        self.cause = Some(cause.into());
        self
    }

    /// Sets the cure.
    pub(crate) fn cured_by(mut self, cure: impl Into<String>) -> Self {
        self.cure = Some(cure.into());
        self
    }

    /// Adds a number that shows it.
    pub(crate) fn shown_by(
        mut self,
        text: impl Into<String>,
        source: Option<EvidenceSource>,
    ) -> Self {
        let text = text.into();
        self.evidence.push(Evidence { text, source });
        self
    }

    /// Returns the identity.
    pub(crate) fn key(&self) -> FindingKey {
        (self.problem, self.subject.clone(), self.model.clone())
    }

    /// Returns true if it costs a larger part of the requests than another one, or as large a part and is more severe. A severity alone says less: that
    /// of a model is lower once its root is known.
    pub(crate) fn is_worse_than(&self, other: &Self) -> bool {
        let by_part = self.missed_part.total_cmp(&other.missed_part);
        by_part.then(other.severity.cmp(&self.severity)).is_gt()
    }

    /// Returns the subject with which the trouble began, as far as known.
    pub fn root(&self) -> &Subject {
        self.root.as_ref().unwrap_or(&self.subject)
    }
}

/// The kind of problem. A subject has at most one finding of each kind, or one for each of its models.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Problem {
    /// A model cannot be served as it is registered.
    ModelFailed,
    /// No replica of a model serves.
    ModelNotServed,
    /// A model is served below its rate.
    ModelShort,
    /// Too many requests of a model miss its SLO.
    SloMissed,
    /// More requests of a model come than are planned for, and others suffer.
    Overloaded,
    /// Batches on a device take longer than on its siblings.
    SlowDevice,
    /// A process with models ended on a device, and that cost requests.
    WorkerEnded,
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
    pub const ALL: [Self; 19] = [
        Self::ModelFailed,
        Self::ModelNotServed,
        Self::ModelShort,
        Self::SloMissed,
        Self::Overloaded,
        Self::SlowDevice,
        Self::WorkerEnded,
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
            Self::SloMissed => "slo_missed",
            Self::Overloaded => "overloaded",
            Self::SlowDevice => "slow_device",
            Self::WorkerEnded => "worker_ended",
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
