//! The commands of admins and agents, and the reasons why they are refused.

use std::time::Duration;

use packhorse_cluster::{
    ArtifactDigest, DeviceKind, MinReplicas, ModelId, ModelName, ModelSpec, ModelSpecError,
    ModelVersion, NodeName, Percent, Priority, ProfileTable, RateMode, RequestsPerSecond,
    Scheduling, Split, Sticky,
};
use packhorse_contention::PairTable;

use crate::{
    agent_message::{LeaseClaim, NodeReport},
    finding::RepositoryProblem,
    limits::{MAX_MODELS, MAX_NODES, MAX_PAIRS, MAX_WAITING},
    record::Settings,
};

/// A command. The commands of admins are executed one after the other, each once its change is durable; those of agents at once.
#[derive(Clone, Debug, PartialEq)]
pub enum Command {
    /// Registers a version of a model, whose file has this size in bytes.
    Register(Box<ModelSpec>, u64),
    /// Registers a version of a model like `Register`, in the place of one of the same name and version if there is one. If it is refused,
    /// that one stays as it is.
    Replace(Box<ModelSpec>, u64),
    /// Changes a version of a model, the newest if none is given.
    ChangeModel(ModelName, Option<ModelVersion>, ModelSpecChange),
    /// Changes how a model's requests are split over its versions.
    Split(ModelName, SplitChange),
    /// Removes a version of a model, or all if none is given.
    RemoveModel(ModelName, Option<ModelVersion>),
    /// Adds profiles. They replace existing ones of the same model and kind of device.
    ImportProfiles(ProfileTable),
    /// Replaces the measured pairs of a kind of device. A table without pairs removes them.
    ImportPairs(DeviceKind, PairTable),
    /// Changes the scheduling of a node. A drain may be given a time after which it no longer waits for models that have no place
    /// elsewhere.
    ScheduleNode(NodeName, Scheduling, Option<Duration>),
    /// Removes a node that holds no lease.
    RemoveNode(NodeName),
    /// Changes the policy, its options or the discipline.
    ChangeSettings(Settings),
    /// Says what is wrong with the folder of models that is registered at starts, in place of what was wrong with it before. It is not
    /// stored: whoever registers the folder says it again.
    ReportRepository(Vec<RepositoryProblem>),
    /// An agent takes or renews the lease of a node.
    TakeLease(NodeName, LeaseClaim),
    /// An agent reports the state of its node.
    Report(NodeName, NodeReport),
}

/// The change of a registered model. What is absent stays unchanged.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ModelSpecChange {
    /// The latency objective.
    pub slo: Option<Duration>,
    /// The reserved request rate; none inside removes the reservation.
    pub rate: Option<Option<RequestsPerSecond>>,
    /// The part that the reserved rate has beside the measured one.
    pub rate_mode: Option<RateMode>,
    /// The priority over other models.
    pub priority: Option<Priority>,
    /// The least number of devices with replicas.
    pub min_replicas: Option<MinReplicas>,
    /// The largest number of requests in the queue; none inside restores the gateway's limit.
    pub queue_limit: Option<Option<u32>>,
    /// The longest wait for a load from its file; none inside restores the objective.
    pub max_cold_wait: Option<Option<Duration>>,
    /// True if answers are kept.
    pub cache: Option<bool>,
    /// The family of all versions; none inside takes the model out of its family.
    pub family: Option<Option<ModelName>>,
    /// The accuracy of the version; that of all versions where they come into a family.
    pub accuracy: Option<Percent>,
}

impl ModelSpecChange {
    /// Returns true if something changes that belongs to the model's name, and is that of the newest version.
    pub(crate) fn changes_all_versions(&self) -> bool {
        let of_rate = self.rate.is_some() || self.rate_mode.is_some();
        of_rate || self.priority.is_some() || self.min_replicas.is_some()
    }
}

/// The change of a model's split.
#[derive(Clone, Debug, PartialEq)]
pub enum SplitChange {
    /// Sets what is present: the shares, where none inside lets the newest version take over by itself, and the choice of a version for
    /// a request.
    Set(Option<Option<Split>>, Option<Sticky>),
    /// Gives all requests to a version.
    Promote(ModelVersion),
    /// Returns to the shares before the last change. A second one changes nothing.
    RollBack,
}

/// The reason why a write failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WriteError {
    /// A row with the same key exists.
    #[error("the row exists already")]
    Exists,
    /// A row that this one refers to does not exist.
    #[error("a row that this one refers to does not exist")]
    Dangling,
    /// The disk is full.
    #[error("no space is left on the disk of the database")]
    DiskFull,
    /// The files of the database cannot be read or written now. The driver has logged the cause.
    #[error(
        "the database cannot be written now; look whether the change is there before you retry (the cause is in the gateway's log)"
    )]
    Unavailable,
    /// The database failed otherwise. The driver has logged the cause.
    #[error("the database failed")]
    Failed,
}

/// The reason why a command is refused.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum CommandError {
    /// A field of a model is out of its limits.
    #[error(transparent)]
    InvalidModel(#[from] ModelSpecError),
    /// A field of an agent's message is out of its limits.
    #[error("{field}: {problem}")]
    InvalidField {
        /// The field.
        field: &'static str,
        /// The violated limit.
        problem: String,
    },
    /// A model cannot be served beside those that are registered.
    #[error("{field}: {problem}")]
    Conflict {
        /// The field in the API's spelling.
        field: &'static str,
        /// The problem, with its cure.
        problem: String,
    },
    /// The family belongs to the model's name.
    #[error("family belongs to all versions of model {0}: change it without ?version")]
    FamilyOfVersion(ModelName),
    /// The version is already registered.
    #[error("model {0} is already registered; choose another version or remove it first")]
    ModelExists(ModelId),
    /// The model's file is not stored.
    #[error("artifact: {0} is not stored; upload it first with PUT /v1/artifacts/{0}")]
    UnknownArtifact(ArtifactDigest),
    /// Too many model versions are registered.
    #[error("at most {MAX_MODELS} model versions can be registered; remove one first")]
    TooManyModels,
    /// No model has this name.
    #[error("model {0} is not registered")]
    UnknownModel(ModelName),
    /// The model of this name does not have this version.
    #[error("model {0} has no version {1}")]
    UnknownVersion(ModelName, ModelVersion),
    /// The reserved rate, the priority and the least number of replicas belong to the model's name, and the newest version has them.
    #[error(
        "rate_rps, rate, priority and min_replicas belong to all versions of model {0} and are those of its newest, version {1}: change them without ?version"
    )]
    RateOfOlderVersion(ModelName, ModelVersion),
    /// The split was never changed.
    #[error("the split of model {0} has not been changed, so that there is none to return to")]
    NoEarlierSplit(ModelName),
    /// No node has this name.
    #[error("no node has the name {0}")]
    UnknownNode(NodeName),
    /// The node's agent holds the lease.
    #[error("the agent of node {0} holds the lease; stop the agent first")]
    NodeInUse(NodeName),
    /// There are too many nodes.
    #[error("at most {MAX_NODES} nodes can join; remove one with DELETE /v1/nodes/NAME first")]
    TooManyNodes,
    /// Another agent holds the lease.
    #[error(
        "another agent holds the lease of node {0}; start this agent with another --node, or wait until that lease expires"
    )]
    LeaseHeld(NodeName),
    /// The agent does not hold the lease.
    #[error("this agent does not hold the lease of node {0}; take the lease first")]
    LeaseNotHeld(NodeName),
    /// The table has too many pairs.
    #[error("at most {MAX_PAIRS} pairs per kind of device are allowed, got {0}")]
    TooManyPairs(usize),
    /// Too many commands wait for the store.
    #[error("{MAX_WAITING} commands wait for the database; retry in a few seconds")]
    Busy,
    /// The change cannot be made durable.
    #[error(transparent)]
    NotStored(WriteError),
}
