//! The reasons why a run is refused, and the check that a scenario has the model, device and profile of each replica.

use packhorse_cluster::{Discipline, PlannedReplica, Program};

use crate::Scenario;

/// The reason why a plan cannot be simulated in a scenario.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SimulateError {
    /// A replica names a model or device that the scenario does not have.
    #[error("replica {0} of the plan names a model or device that the scenario does not have")]
    Dangling(usize),
    /// A replica's batch size is out of range.
    #[error(
        "replica {replica} of the plan: batch size {batch_size} is not between 1 and {}",
        Program::MAX_BATCH_SIZE
    )]
    BatchSize {
        /// The replica's index in the plan.
        replica: usize,
        /// The batch size in the plan.
        batch_size: u32,
    },
    /// A model of the plan is added only during the run.
    #[error("replica {0} of the plan: its model is added during the run")]
    ModelAddedLater(usize),
    /// A device of the plan is added only during the run.
    #[error("replica {0} of the plan: its device is added during the run")]
    DeviceAddedLater(usize),
    /// The scenario's autoscaler has no rule.
    #[error(
        "autoscale: devices are added and removed only in a run that plans anew (--replan, --replan-every)"
    )]
    NoAutoscaler,
    /// An admin's act has no effect, because nothing plans anew.
    #[error(
        "simulation.faults[{0}]: nodes are drained, and models added and removed, only in a run that plans anew (--replan)"
    )]
    NoControlPlane(usize),
    /// The run has something that a discipline for all models of a device does not know.
    #[error("the discipline {discipline} knows no {what}")]
    NotForGroups {
        /// The discipline.
        discipline: Discipline,
        /// The part of the run or scenario.
        what: &'static str,
    },
    /// New plans would move the members of pools.
    #[error(
        "pool = \"auto\": plans with pools are not changed during a run (--replan, --replan-every)"
    )]
    NoPlansForPools,
    /// The caller has stopped the run.
    #[error("the run was stopped")]
    Stopped,
    /// A replica's model has no profile on its device's kind.
    #[error("replica {replica} of the plan: {model} has no profile on {kind}")]
    MissingProfile {
        /// The replica's index in the plan.
        replica: usize,
        /// The replica's model.
        model: String,
        /// The kind of its device.
        kind: String,
    },
}

/// Checks that the replicas of a plan can run in a scenario.
pub(crate) fn check_replicas(
    scenario: &Scenario,
    plan: &[PlannedReplica],
) -> Result<(), SimulateError> {
    let mut replicas = plan.iter().enumerate();
    replicas.try_for_each(|(i, planned)| check_replica(scenario, i, planned))
}

/// Checks that the `i`-th replica of a plan can run in a scenario.
fn check_replica(
    scenario: &Scenario,
    i: usize,
    planned: &PlannedReplica,
) -> Result<(), SimulateError> {
    let problem = &scenario.problem;
    let (Some(model), Some(device)) = (
        problem.models.get(planned.model.0),
        problem.devices.get(planned.device.0),
    ) else {
        return Err(SimulateError::Dangling(i));
    };
    if scenario.is_added_later(planned.model) {
        return Err(SimulateError::ModelAddedLater(i));
    }
    if planned.device.0 >= scenario.devices_at_start() {
        return Err(SimulateError::DeviceAddedLater(i));
    }
    if !(1..=Program::MAX_BATCH_SIZE).contains(&planned.batch_size) {
        return Err(SimulateError::BatchSize {
            replica: i,
            batch_size: planned.batch_size,
        });
    }
    if problem.profile(planned.model, planned.device).is_none() {
        return Err(SimulateError::MissingProfile {
            replica: i,
            model: model.id.to_string(),
            kind: device.kind.to_string(),
        });
    }
    Ok(())
}
