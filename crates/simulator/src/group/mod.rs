//! Group servers: schedulers that decide for all models of a group of devices together, in the place of the serving engine.
//!
//! The engine has a queue and a discipline for each model, and replicas of one device compute at the same time. The published schedulers here compare
//! the models with each other instead, and a device computes one batch at a time, alone. A [`GroupServer`] is told of arrivals, computed batches and
//! loaded weights, and answers with [`GroupAction`]s; [`world`] carries them out. The live gateway has no group servers: they run in the
//! simulator, without faults, new plans and compute shares.

mod clockwork;
mod clockwork_device;
mod deadline_queue;
mod demand;
mod device_clock;
mod estimates;
mod expirations;
mod flex;
#[cfg(test)]
mod tests;
mod world;

use std::{fmt::Debug, time::Duration};

use packhorse_cluster::{Discipline, PlannedReplica, Time};

use crate::Scenario;

pub(crate) use world::GroupWorld;

/// A request of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct GroupRequest {
    /// The time at which the answer must be with the client.
    pub(crate) deadline: Time,
    /// The request's number in the run.
    pub(crate) number: u64,
    /// The index of its model.
    pub(crate) model: usize,
}

/// A batch that was computed, as the worker reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ComputedBatch {
    pub(crate) batch: u64,
    pub(crate) device: usize,
    pub(crate) model: usize,
    pub(crate) rows: u32,
    /// The time of its computation.
    pub(crate) compute: Duration,
    /// The time at which the device was done with it.
    pub(crate) at: Time,
}

/// A batch that a group server sends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct BatchOrder {
    /// The number of the batch, ascending.
    pub(crate) batch: u64,
    pub(crate) device: usize,
    pub(crate) model: usize,
    /// The requests, at least one.
    pub(crate) requests: Vec<GroupRequest>,
    /// The latest time at which the device may begin it; later it comes back without being computed.
    pub(crate) latest: Option<Time>,
    /// The batch of the device that it stops, at the next exit point after it has arrived. The requests of that one are the group server's again.
    pub(crate) preempts: Option<u64>,
}

/// An action of a group server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum GroupAction {
    /// Sends a batch to a device, which computes it after those that it holds.
    Start(BatchOrder),
    /// Copies the weights of a model from the host's memory to a device, after those that are being copied.
    Load { device: usize, model: usize },
    /// Removes the weights of a model from a device. None of its batches is there.
    Unload { device: usize, model: usize },
    /// Tells a client that there will be no answer.
    Drop(GroupRequest),
}

/// A scheduler for all models of a group of devices.
pub(crate) trait GroupServer: Debug {
    /// Takes a request.
    fn request_arrived(&mut self, now: Time, request: GroupRequest);

    /// Takes note of a batch that was computed.
    fn batch_computed(&mut self, now: Time, batch: ComputedBatch);

    /// Takes back the requests of a batch that a device did not begin in time.
    fn batch_rejected(&mut self, now: Time, device: usize, batch: u64);

    /// Takes note that the weights of a model are on a device.
    fn model_loaded(&mut self, now: Time, device: usize, model: usize);

    /// Appends the next actions. Called after every event, and when [`GroupServer::wake`] has come.
    fn decide(&mut self, now: Time, actions: &mut Vec<GroupAction>);

    /// Returns the time of the next decision if no event comes before.
    fn wake(&self) -> Option<Time>;
}

/// The costs of exit points, at which a computation can be stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ExitPoints {
    /// The time between two of them.
    pub(crate) interval: Duration,
    /// The time that each of them costs.
    pub(crate) cost: Duration,
}

impl ExitPoints {
    /// Returns the time of a computation with exit points.
    pub(crate) fn stretched(self, compute: Duration) -> Duration {
        let exits = compute.as_nanos() / self.interval.as_nanos();
        compute + self.cost * u32::try_from(exits).unwrap_or(u32::MAX)
    }

    /// Returns the first exit point at or after a time, of a computation that began at `start`.
    pub(crate) fn next(self, start: Time, at: Time) -> Time {
        let step = self.interval + self.cost;
        let passed = at.saturating_since(start);
        let exits = passed.as_nanos().div_ceil(step.as_nanos());
        start + step * u32::try_from(exits).unwrap_or(u32::MAX)
    }
}

/// Returns the group server of a discipline; `None` if the serving engine has the discipline.
pub(crate) fn group_server(
    discipline: Discipline,
    scenario: &Scenario,
    plan: &[PlannedReplica],
) -> Option<(Box<dyn GroupServer>, Option<ExitPoints>)> {
    Some(match discipline {
        Discipline::Flex => (
            Box::new(flex::Flex::new(scenario, plan, Some(flex::EXIT_POINTS))),
            Some(flex::EXIT_POINTS),
        ),
        Discipline::FlexNp => (Box::new(flex::Flex::new(scenario, plan, None)), None),
        Discipline::Clockwork => (Box::new(clockwork::Clockwork::new(scenario, plan)), None),
        Discipline::Deadline
        | Discipline::FixedWait
        | Discipline::Symphony
        | Discipline::Accscale
        | Discipline::Aimd => return None,
    })
}
