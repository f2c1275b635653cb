//! The notices of what happened, for people and programs that follow the cluster.

use std::time::Duration;

use packhorse_cluster::{
    DeviceId, Generation, ModelId, ModelState, NodeName, NodeState, ReplicaId, ReplicaState,
};

use crate::finding::Finding;

/// A notice. Its object has the announced state once all effects before it are carried out.
#[derive(Clone, Debug, PartialEq)]
pub enum Notice {
    /// The state of a model, or its reason, changed; none if the model was removed.
    Model(ModelId, Option<ModelState>, Option<String>),
    /// The state of a node changed; none if the node was removed.
    Node(NodeName, Option<NodeState>, String),
    /// A replica came into a state.
    Replica(ReplicaId, ModelId, ReplicaNotice, Option<String>),
    /// A device can no longer start a model, or can again.
    Device(DeviceId, DeviceNotice, String),
    /// A plan came into a state; the number is none for a plan that was not adopted.
    Plan(Option<Generation>, PlanNotice, String),
    /// A version answered fewer requests within the SLO than the one before it, which has the requests again; with the reason.
    RolledBack(ModelId, String),
    /// The requests of a model go to its versions in other shares: an admin has split them, or a version has taken over; with what happened.
    Rerouted(ModelId, String),
    /// The observations of a model are away from what the plan assumes.
    Drift(ModelId, Drift, String),
    /// A finding appeared, or is over.
    Finding(FindingNotice, Box<Finding>),
    /// The gateway could not act for this time, and extended the leases of the nodes.
    Paused(Duration),
}

/// The announced state of a replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ReplicaNotice {
    /// The node reported this state.
    Reported(ReplicaState),
    /// The replica gets batches.
    Serving,
    /// Batches failed on the replica while others computed theirs: it gets none, and its worker is restarted.
    Ejected,
    /// The data plane lost its connection to the replica.
    Lost,
    /// The replica is no longer wanted.
    Stopped,
}

/// The announced state of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum DeviceNotice {
    /// Models are planned on the device again.
    Ready,
    /// A model could not start on the device.
    Failed,
}

/// The announced state of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PlanNotice {
    /// A policy proposed the plan.
    Proposed,
    /// The plan is stored and is being rolled out.
    Adopted,
    /// The plan is not worth its cost, or is not valid, or there is none.
    Rejected,
    /// Every replica of the plan serves, and no other one is left.
    Completed,
    /// A replica of the plan cannot start, or had to be broken before its successor could start.
    Degraded,
}

/// The quantity that is away from what the plan assumes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Drift {
    /// The rate of arrivals.
    Rate,
    /// The latency: fewer requests are answered within the SLO than predicted.
    Latency,
    /// The batch times, which are slowed by neighbours.
    Slowdown,
    /// The shapes of the inputs, which are others than those that were measured.
    InputShapes,
}

/// The change of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FindingNotice {
    /// The finding appeared.
    Raised,
    /// The finding is over.
    Cleared,
}
