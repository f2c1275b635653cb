//! The effects that the controller asks its driver for.

use std::{collections::BTreeMap, net::SocketAddr, sync::Arc};

use packhorse_cluster::{
    Capacity, DeviceKind, Discipline, ModelId, ModelName, ModelSpec, ModelVersion, NodeName,
    Profile, ProfileTable, Program, Replica, ReplicaId, RequestsPerSecond, Sticky, WantedState,
};
use packhorse_contention::PairTable;
use packhorse_estimator::OperatorGraph;

use crate::{
    command::CommandError,
    keys::{Receipt, RequestKey, SolveKey},
    known_measurements::MeasurementKey,
    notice::Notice,
    planning_input::PlanningInput,
    record::{NodeRecord, PlanOutcome, PlanRecord, Settings, SplitRecord},
};

/// An effect. The driver carries effects out in the order in which [`Controller::poll`](crate::Controller::poll) returns them; it may
/// carry out those that take time, which are `Store`, `Solve` and `Sample`, beside the others.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    /// Answers a command.
    Acknowledge(RequestKey, Result<(), CommandError>),
    /// Writes to the store. Writes are carried out in order, each once, and end with an [`Event::Stored`](crate::Event::Stored).
    Store(Receipt, Write),
    /// Has a policy make a plan, which ends with an [`Event::Solved`](crate::Event::Solved).
    Solve(SolveKey, Arc<PlanningInput>),
    /// Reads the counts of the data plane, which ends with an [`Event::Sampled`](crate::Event::Sampled).
    Sample,
    /// Publishes the wanted state of a node. It replaces the earlier one.
    Publish(NodeName, Arc<WantedState>),
    /// Changes what the data plane serves.
    Serve(ServeChange),
    /// Tells people what happened.
    Tell(Notice),
}

/// A write to the store. Each is carried out as a whole or not at all.
#[derive(Clone, Debug, PartialEq)]
pub enum Write {
    /// Begins this epoch, which is above the present one.
    BeginEpoch(u64),
    /// Adds a model.
    InsertModel(Box<ModelSpec>),
    /// Adds a model in the place of that of the same name and version, which goes with its profiles.
    ReplaceModel(Box<ModelSpec>),
    /// Replaces what may change of models.
    UpdateModels(Vec<ModelSpec>),
    /// Notes the reason why a model cannot be served as it is registered.
    FailModel(ModelId, String),
    /// Notes the operators of a model's program.
    SetOperators(ModelId, Arc<OperatorGraph>),
    /// Adds or replaces the split of a model.
    UpsertSplit(Box<SplitRecord>),
    /// Removes models and their profiles, and the splits of those that have no version left. Another version takes what belongs to the name.
    DeleteModels(Vec<ModelId>, Option<Box<ModelSpec>>),
    /// Adds or replaces profiles, with the recorded kernels of a measurement as CSV.
    UpsertProfiles(ProfileTable, Option<String>),
    /// Adds or replaces the profile of a measurement, with the recorded kernels as CSV, and the measurement by what it depends on.
    UpsertMeasurement(Box<MeasurementKey>, ProfileTable, Option<String>),
    /// Removes a measurement, but no profile.
    DeleteMeasurement(Box<MeasurementKey>),
    /// Replaces the measured pairs of a kind of device.
    UpsertPairs(DeviceKind, PairTable),
    /// Adds a node, or replaces what its agent reports of it.
    UpsertNode(Box<NodeRecord>),
    /// Adds a node, or replaces its scheduling.
    ScheduleNode(Box<NodeRecord>),
    /// Removes a node.
    DeleteNode(NodeName),
    /// Stores the settings that are present.
    UpdateSettings(Settings),
    /// Adds a plan, and notes the outcome of the plan before it, if there is one.
    InsertPlan(Arc<PlanRecord>, Option<PlanOutcome>),
    /// Replaces the rates that models and families are measured to need.
    SetNeeds(BTreeMap<ModelName, RequestsPerSecond>),
}

/// A change of what the data plane serves.
#[derive(Clone, Debug, PartialEq)]
pub enum ServeChange {
    /// Adds a model, or changes it.
    Model(Arc<ModelSpec>),
    /// Removes a model.
    RemoveModel(ModelId),
    /// Changes the shares of a model's versions in the requests that name none.
    Split(ModelName, VersionShares),
    /// Adds a replica, or changes it.
    Replica(Box<Target>),
    /// Removes a replica, once it has answered what it has.
    RemoveReplica(ReplicaId),
    /// Changes the dispatch discipline.
    Discipline(Discipline),
    /// From now on the gateway is ready: after a start, the replicas of the stored plan serve, or had the time to.
    Open,
}

/// The shares of a model's versions in the requests that name none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VersionShares {
    /// The shares in percent. They sum to 100, and none is 0.
    pub shares: BTreeMap<ModelVersion, u32>,
    /// The choice of a version for a request.
    pub sticky: Sticky,
    /// The version that had the most before the present ones and still serves, until they have carried their shares for a while: it answers what they
    /// cannot answer in time.
    pub former: Option<ModelVersion>,
}

/// A replica whose worker listens, as the data plane connects to it.
#[derive(Clone, Debug, PartialEq)]
pub struct Target {
    /// The replica, with the program that it runs.
    pub replica: Replica<Arc<Program>>,
    /// The address that the replica's worker listens on.
    pub address: SocketAddr,
    /// The Unix socket on which it listens for a gateway of its host, if it does.
    pub local_path: Option<String>,
    /// The limits that the worker reported; none if it has not.
    pub capacity: Option<Capacity>,
    /// The profile of the model on the kind of the device.
    pub profile: Arc<Profile>,
}
