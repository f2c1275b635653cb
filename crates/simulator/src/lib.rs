//! A discrete-event world around the serving engine and a plan: what runs in the gateway, in virtual time.
//!
//! A [`Scenario`] says what there is and what is asked of it; [`simulate`] tries a plan in it and gives a [`Report`]. Pure:
//! files come in as text, the clock is the event queue's, and randomness comes from a seed, one generator per purpose; the same
//! input gives the same output, byte for byte.

mod arrivals;
mod curves;
mod device;
mod measurement;
mod random;
mod report;
mod scenario;
mod schedule;
mod table;
mod tally;
mod trace;
mod world;

use std::time::Duration;

use packhorse_cluster::{Discipline, Plan, PlannedReplica, Problem, Time};

pub use curves::Curves;
pub use measurement::Measurement;
pub use packhorse_serving::DeadlineOptions;
pub use report::{
    ModelReport, PlanFileError, PlanReport, PlannedModelReport, Quantiles, ReplanningReport,
    ReplicaReport, Report, StagesReport, Totals,
};
pub use scenario::{
    Arrivals, Fault, FaultKind, Rate, Scenario, ScenarioError, Simulation, Workload,
};
pub use schedule::{Schedule, ScheduleError};
pub use table::csv;
pub use trace::TraceError;
pub use world::SimulateError;

/// How requests become batches in a run: a discipline is one by itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Dispatch {
    /// The discipline.
    pub discipline: Discipline,
    /// Which parts of `deadline` are in use, for ablations.
    pub deadline: DeadlineOptions,
}

impl From<Discipline> for Dispatch {
    fn from(discipline: Discipline) -> Self {
        Self {
            discipline,
            deadline: DeadlineOptions::default(),
        }
    }
}

/// Tries the replicas of a plan in a scenario until every request has ended. `plan` is what the report says of them; `progress`
/// is told the simulated moment now and then.
///
/// # Errors
/// If the replicas do not fit the scenario.
pub fn simulate(
    scenario: &Scenario,
    plan: PlanReport,
    replicas: &[PlannedReplica],
    dispatch: impl Into<Dispatch>,
    seed: u64,
    progress: &mut dyn FnMut(Time),
) -> Result<Report, SimulateError> {
    run(
        scenario,
        plan,
        replicas,
        dispatch.into(),
        seed,
        None,
        progress,
    )
}

/// Lets a policy replan during a run, from what the run has shown.
pub struct Replanning<'a> {
    /// How often it is asked, in simulated time; above zero.
    pub every: Duration,
    /// Answers the problem of that moment: the scenario's, with the rates that were measured, the devices that are there, the plan
    /// that stands, and what was observed of devices. `None` keeps the plan.
    pub policy: &'a mut dyn FnMut(&Problem) -> Option<Plan>,
}

/// [`simulate`] with a plan that is not the last word.
///
/// # Errors
/// If the replicas do not fit the scenario.
pub fn simulate_replanning<'a>(
    scenario: &'a Scenario,
    plan: PlanReport,
    replicas: &[PlannedReplica],
    dispatch: impl Into<Dispatch>,
    seed: u64,
    replanning: Replanning<'a>,
    progress: &mut dyn FnMut(Time),
) -> Result<Report, SimulateError> {
    assert!(!replanning.every.is_zero(), "a plan stands for a while");
    run(
        scenario,
        plan,
        replicas,
        dispatch.into(),
        seed,
        Some(replanning),
        progress,
    )
}

fn run<'a>(
    scenario: &'a Scenario,
    plan: PlanReport,
    replicas: &[PlannedReplica],
    dispatch: Dispatch,
    seed: u64,
    replanning: Option<Replanning<'a>>,
    progress: &mut dyn FnMut(Time),
) -> Result<Report, SimulateError> {
    let world = world::World::new(scenario, replicas, dispatch, seed, replanning)?;
    let tally = world.run(progress);
    Ok(Report::new(
        scenario,
        plan,
        dispatch.discipline,
        seed,
        tally,
    ))
}

#[cfg(test)]
mod tests;
