//! A discrete-event simulation of a cluster around the serving engine of the gateway.
//!
//! A [`Scenario`] describes devices, models, their load and the behaviour of the simulated cluster. [`simulate`] runs a plan in it and
//! returns a [`Report`]. The crate is pure: files are passed in as text, the clock is that of the event queue, and randomness comes
//! from a seed, with one generator per purpose. The same input gives the same output, byte for byte.

mod arrival_schedule;
mod arrivals;
mod bench_counters;
mod counters;
mod csv_report;
mod curves;
mod device;
mod options;
mod polish;
mod random;
mod rate;
mod report;
mod scenario;
mod simulation;
mod trace;

use packhorse_cluster::{PlannedReplica, Time};

pub use arrival_schedule::{ArrivalSchedule, ArrivalScheduleError};
pub use bench_counters::BenchCounters;
pub use csv_report::reports_to_csv;
pub use curves::Curves;
pub use options::{DispatchOptions, Estimate, Recorded, Replanning};
pub use packhorse_serving::DeadlineOptions;
pub use polish::{PolishedPlan, polish};
pub use rate::Rate;
pub use report::{
    ModelReport, PlanFileError, PlanFileProblem, PlanReport, PlannedModelReport, Quantiles,
    ReplanningReport, ReplicaReport, Report, StagesReport, Totals,
};
pub use scenario::{
    Arrivals, Fault, FaultKind, Scenario, ScenarioError, SimulationSettings, Workload,
};
pub use simulation::SimulateError;
pub use trace::TraceError;

/// Runs the replicas of a plan in a scenario until every request has ended. `plan` becomes a part of the report; `progress` is
/// called with the simulated time at intervals.
///
/// # Errors
/// Returns an error if the replicas do not fit the scenario.
pub fn simulate(
    scenario: &Scenario,
    plan: PlanReport,
    replicas: &[PlannedReplica],
    dispatch: impl Into<DispatchOptions>,
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

/// Runs the replicas of a first plan in a scenario as [`simulate`] does, with new plans during the run.
///
/// # Errors
/// Returns an error if the replicas do not fit the scenario.
pub fn simulate_replanning<'a>(
    scenario: &'a Scenario,
    plan: PlanReport,
    replicas: &[PlannedReplica],
    dispatch: impl Into<DispatchOptions>,
    seed: u64,
    replanning: Replanning<'a>,
    progress: &mut dyn FnMut(Time),
) -> Result<Report, SimulateError> {
    assert!(
        !replanning.every.is_zero(),
        "the time between two plans is above zero"
    );
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
    dispatch: DispatchOptions,
    seed: u64,
    replanning: Option<Replanning<'a>>,
    progress: &mut dyn FnMut(Time),
) -> Result<Report, SimulateError> {
    let simulation = simulation::Simulation::new(scenario, replicas, dispatch, seed, replanning)?;
    let (counters, replanning) = simulation.run(progress);
    Ok(Report::new(
        scenario,
        plan,
        dispatch.discipline,
        seed,
        counters,
        replanning,
    ))
}

#[cfg(test)]
mod tests;
