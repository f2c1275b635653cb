//! Options of a run: the dispatch of requests, and replanning.

use std::time::Duration;

use packhorse_cluster::{Discipline, ModelForecast, Plan, PlannedReplica, Problem};
use packhorse_serving::DeadlineOptions;

/// The dispatch discipline of a run, and its options.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DispatchOptions {
    /// The discipline.
    pub discipline: Discipline,
    /// The parts of the discipline `deadline` that are in use, for ablations.
    pub deadline: DeadlineOptions,
}

impl From<Discipline> for DispatchOptions {
    fn from(discipline: Discipline) -> Self {
        Self {
            discipline,
            deadline: DeadlineOptions::default(),
        }
    }
}

/// Estimates the goodput of replicas for a problem, with one forecast per model in its order.
pub type Estimate = fn(&Problem, &[PlannedReplica]) -> Vec<ModelForecast>;

/// A policy that makes new plans during a run, from what was observed in it.
pub struct Replanning<'a> {
    /// The simulated time between two plans; above zero.
    pub every: Duration,
    /// The estimate by which a new plan must be worth the cost of moving to it, as in the gateway. Without it every new plan is
    /// adopted.
    pub estimate: Option<Estimate>,
    /// Makes a plan for the problem of the moment: the scenario's, with the measured rates, the devices that are not lost, the
    /// current plan, and the observations of devices. `None` keeps the plan. Devices are ordered by node.
    pub policy: &'a mut dyn FnMut(&Problem) -> Option<Plan>,
}
