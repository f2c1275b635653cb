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
mod group;
mod options;
mod random;
mod rate;
mod report;
mod run_trace;
mod scenario;
mod simulation;
mod timeline;
mod trace;

use packhorse_cluster::{PlannedReplica, Time};

pub use arrival_schedule::{ArrivalSchedule, ArrivalScheduleError};
pub use bench_counters::BenchCounters;
pub use csv_report::reports_to_csv;
pub use curves::Curves;
pub use options::{
    ClusterSearch, DevicesByKind, DispatchOptions, Estimate, PlanningMoments, Recorded, Replanning,
    RunOptions, ScalingRule,
};
pub use packhorse_serving::DeadlineOptions;
pub use rate::Rate;
pub use report::{
    AutoscaleReport, DeviceCounts, FamilyReport, KeptReplicaReport, ModelReport, PlanFileError,
    PlanFileProblem, PlanReport, PlannedModelReport, PoolTotals, Quantiles, ReplanningReport,
    ReplicaReport, Report, ReportedWorker, StagesReport, Totals,
};
pub use run_trace::RunTrace;
pub use scenario::{
    Arrivals, Autoscale, Family, Fault, FaultKind, Links, PlanningContext, Scenario, ScenarioError,
    SimulationSettings, Variant, Workload,
};
pub use simulation::SimulateError;
pub use timeline::{RequestEnd, Timeline};
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
    let options = RunOptions {
        dispatch: dispatch.into(),
        ..RunOptions::default()
    };
    simulate_with(scenario, plan, replicas, seed, options, progress)
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
    let options = RunOptions {
        dispatch: dispatch.into(),
        replanning: Some(replanning),
        ..RunOptions::default()
    };
    simulate_with(scenario, plan, replicas, seed, options, progress)
}

/// Runs the replicas of a first plan in a scenario as [`simulate`] does, with these options.
///
/// # Errors
/// Returns an error if the replicas do not fit the scenario, if the discipline runs without what the options ask for, or if the caller stops the run.
pub fn simulate_with<'a>(
    scenario: &'a Scenario,
    plan: PlanReport,
    replicas: &[PlannedReplica],
    seed: u64,
    options: RunOptions<'a>,
    progress: &mut dyn FnMut(Time),
) -> Result<Report, SimulateError> {
    let replanning = options.replanning.as_ref();
    assert!(
        replanning.is_none_or(|replanning| !replanning.every.is_zero()),
        "the time between two plans is above zero"
    );
    let discipline = options.dispatch.discipline;
    let (counters, replanning, autoscale) = if discipline.is_live() {
        let simulation = simulation::Simulation::new(scenario, replicas, seed, options)?;
        simulation.run(progress)?
    } else {
        let stop = options.stop.unwrap_or(&|| false);
        let world = group::GroupWorld::new(scenario, replicas, seed, options)?;
        (world.run(progress, stop)?, None, None)
    };
    Ok(Report {
        replanning,
        autoscale,
        ..Report::new(scenario, plan, discipline, seed, counters)
    })
}

#[cfg(test)]
mod tests;
