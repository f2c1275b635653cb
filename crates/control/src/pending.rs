//! The continuation of a write: what the controller does once the write is stored, or could not be.

use std::sync::Arc;

use packhorse_cluster::{
    DeviceKind, ModelId, ModelName, ModelSpec, NodeName, ProfileTable, Scheduling, Time,
};
use packhorse_contention::PairTable;

use crate::{
    agent_message::LeaseClaim,
    keys::RequestKey,
    measurements::Measurement,
    plan_reason::PlanReasons,
    record::{NodeRecord, PlanRecord, Settings, SplitRecord},
    rollout::PlacedReplica,
};

/// The continuation of a write.
#[derive(Clone, Debug)]
pub(crate) enum Pending {
    /// The command of an admin, whose change takes effect once it is stored.
    Command(RequestKey, Change),
    /// A raised epoch, without which the agent of a node would not obey.
    Epoch(u64, RequestKey, NodeName, LeaseClaim),
    /// A plan, with its replicas, which is rolled out once it is stored.
    Plan {
        record: Arc<PlanRecord>,
        replicas: Vec<PlacedReplica>,
        reasons: PlanReasons,
    },
    /// A finished measurement, which counts once it is stored.
    Measured(ModelId, DeviceKind, Box<Measurement>),
    /// A record that follows the state. It is written again later if it could not be stored.
    Behind(Behind),
}

/// A record that follows the state.
#[derive(Clone, Debug)]
pub(crate) enum Behind {
    /// The record of a node.
    Node(NodeName),
    /// The failure of a model.
    Failure(ModelId),
    /// The operators of a model's program.
    Operators(ModelId),
    /// The split of a model.
    Split(ModelName),
    /// The measured needs of all models.
    Needs,
    /// A known measurement, which is taken or forgotten again after a restart.
    Measurement,
}

/// A change that an admin made.
#[derive(Clone, Debug)]
pub(crate) enum Change {
    Registered(Box<ModelSpec>, u64),
    Replaced(Box<ModelSpec>, u64),
    Changed(Vec<ModelSpec>),
    Split(Box<SplitRecord>),
    /// Models were removed, and another version of their name is changed to this one.
    Removed(Vec<ModelId>, Option<Box<ModelSpec>>),
    Profiles(ProfileTable),
    Pairs(DeviceKind, PairTable),
    Scheduled(Box<NodeRecord>, Scheduling, Option<Time>),
    NodeRemoved(NodeName),
    Settings(Settings),
}

impl Pending {
    /// Returns true if an admin waits for the write.
    pub(crate) fn is_command(&self) -> bool {
        matches!(self, Self::Command(..))
    }

    /// Returns true if the node is being removed.
    pub(crate) fn removes(&self, node: &NodeName) -> bool {
        matches!(self, Self::Command(_, Change::NodeRemoved(name)) if name == node)
    }
}
