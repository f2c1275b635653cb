//! A discrete-event world around the serving engine and a plan: what runs in the gateway, in virtual time.
//!
//! A [`Scenario`] says what there is and what is asked of it; [`simulate`] tries a plan in it and gives a [`Report`]. Pure:
//! files come in as text, the clock is the event queue's, and randomness comes from a seed, one generator per purpose; the same
//! input gives the same output, byte for byte.

mod arrivals;
mod device;
mod random;
mod report;
mod scenario;
mod table;
mod tally;
mod trace;
mod world;

use packhorse_cluster::{Discipline, PlannedReplica, Time};

pub use report::{
    ModelReport, PlanFileError, PlanReport, PlannedModelReport, Quantiles, ReplicaReport, Report,
    StagesReport, Totals,
};
pub use scenario::{
    Arrivals, Fault, FaultKind, Rate, Scenario, ScenarioError, Simulation, Workload,
};
pub use table::csv;
pub use trace::TraceError;
pub use world::SimulateError;

/// Tries the replicas of a plan in a scenario until every request has ended. `plan` is what the report says of them; `progress`
/// is told the simulated moment now and then.
///
/// # Errors
/// If the replicas do not fit the scenario.
pub fn simulate(
    scenario: &Scenario,
    plan: PlanReport,
    replicas: &[PlannedReplica],
    discipline: Discipline,
    seed: u64,
    progress: &mut dyn FnMut(Time),
) -> Result<Report, SimulateError> {
    let tally = world::World::new(scenario, replicas, discipline, seed)?.run(progress);
    Ok(Report::new(scenario, plan, discipline, seed, tally))
}

#[cfg(test)]
mod tests;
