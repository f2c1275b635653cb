//! A gateway: its two planes, and what is under way between them.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
};

use packhorse_cluster::{ModelSpec, NodeName, Time, WantedState};
use packhorse_control::{Controller, Event, RequestKey, Target};

use crate::data_plane::DataPlane;

/// A running gateway.
#[derive(Debug)]
pub struct Gateway {
    /// The control plane; none if the plan stays as it is.
    pub controller: Option<Controller>,
    pub(crate) data_plane: DataPlane,
    /// The number of this start, from 1.
    pub(crate) start: u64,
    /// The end of a pause of the whole process.
    pub(crate) paused_until: Option<Time>,
    pub(crate) inbox: VecDeque<Event>,
    /// The last wanted state of each node.
    pub wanted: BTreeMap<NodeName, Arc<WantedState>>,
    /// The wanted states that the present ones have replaced.
    pub(crate) earlier: BTreeMap<NodeName, Arc<WantedState>>,
    pub(crate) calls: BTreeMap<RequestKey, Caller>,
    /// The time since which the gateway says that it is ready.
    pub ready_since: Option<Time>,
    /// The number of calls of the policy.
    pub plans_made: usize,
}

/// The one who waits for the result of a command.
#[derive(Debug)]
pub(crate) enum Caller {
    Admin,
    Lease(NodeName, u64),
    Report,
}

/// The models and replicas of a gateway without a control plane.
#[derive(Clone, Debug, Default)]
pub struct Served {
    /// The models.
    pub models: Vec<ModelSpec>,
    /// The replicas, whose addresses are those of their workers once these run.
    pub targets: Vec<Target>,
}

impl Gateway {
    pub(crate) fn new(
        now: Time,
        controller: Option<Controller>,
        start: u64,
        data_plane: DataPlane,
    ) -> Self {
        Self {
            ready_since: controller.is_none().then_some(now),
            controller,
            data_plane,
            start,
            paused_until: None,
            inbox: VecDeque::new(),
            wanted: BTreeMap::new(),
            earlier: BTreeMap::new(),
            calls: BTreeMap::new(),
            plans_made: 0,
        }
    }

    /// Returns the next time at which it acts by itself.
    pub(crate) fn poll_timeout(&self) -> Option<Time> {
        if self.paused_until.is_some() {
            return None;
        }
        let engine = self.data_plane.engine.poll_timeout();
        let controller = self.controller.as_ref().map(Controller::poll_timeout);
        engine.into_iter().chain(controller).min()
    }
}
