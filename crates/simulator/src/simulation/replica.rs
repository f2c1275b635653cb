//! A simulated replica, and the check that a scenario has its model, device and profile.

use std::time::Duration;

use packhorse_cluster::{Discipline, PlannedReplica, Program, Time};
use packhorse_contention::{ComputeDemand, ServiceTimes};
use packhorse_control::LinkState;
use packhorse_serving::{DeviceKey, ReplicaParameters};

use super::keys::model_key;
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

/// The state of a replica's worker process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WorkerState {
    /// The worker loads its model. The number counts the attempts, because faults interrupt them.
    Loading(u32),
    /// The worker takes batches.
    Ready,
    /// The worker was stopped for good.
    Stopped,
}

/// A replica of a plan, with its worker and its link to the engine.
#[derive(Debug)]
pub(super) struct SimulatedReplica {
    pub(super) model: usize,
    pub(super) device: usize,
    pub(super) index_on_device: usize,
    pub(super) parameters: ReplicaParameters,
    /// The solo time on the whole device and the compute demand of each batch; entry `i` is a batch of `i + 1` rows.
    pub(super) batch_costs: Vec<(Duration, ComputeDemand)>,
    pub(super) worker: WorkerState,
    /// The replica's link in the engine; `None` before it serves and after it was lost.
    pub(super) link: Option<LinkState>,
    /// The number of batches that were sent and not answered.
    pub(super) used_credits: u32,
    /// The time since which the replica has had a free credit.
    pub(super) free_since: Time,
}

impl SimulatedReplica {
    /// Returns a replica of a checked plan. Its worker does not run yet.
    pub(super) fn new(
        scenario: &Scenario,
        planned: &PlannedReplica,
        index_on_device: usize,
    ) -> Self {
        let profile = scenario
            .problem
            .profile(planned.model, planned.device)
            .expect("plans are checked");
        let scale = scenario.workloads[planned.model.0].latency_scale;
        let cost = |rows| {
            let solo_time = profile.latency(rows).mul_f64(scale);
            let demand = ComputeDemand::new(profile, rows, planned.compute_share);
            (solo_time, demand)
        };
        Self {
            model: planned.model.0,
            device: planned.device.0,
            index_on_device,
            parameters: ReplicaParameters {
                model: model_key(planned.model.0),
                batch_size: planned.batch_size,
                // A simulated worker takes any number.
                in_flight: ReplicaParameters::MOST_CREDITS,
                device: DeviceKey(
                    u32::try_from(planned.device.0).expect("a scenario's devices are limited"),
                ),
                time_shared: planned.duty_cycle.is_some(),
                shares_memory: false,
                service: ServiceTimes::new(
                    profile,
                    planned.batch_size,
                    planned.compute_share,
                    scenario.simulation.interference,
                ),
            },
            batch_costs: (1..=planned.batch_size).map(cost).collect(),
            worker: WorkerState::Loading(0),
            link: None,
            used_credits: 0,
            free_since: Time::ZERO,
        }
    }

    /// The time of a batch under the compute share with no other replica on the device.
    pub(super) fn solo_time(&self, rows: usize, scenario: &Scenario) -> Duration {
        let profiled = self
            .parameters
            .service
            .batch_time(u32::try_from(rows).expect("a batch is small"));
        profiled.mul_f64(scenario.workloads[self.model].latency_scale)
    }

    /// Returns true if the engine has the replica.
    pub(super) fn is_registered(&self) -> bool {
        matches!(self.link, Some(LinkState::Serving | LinkState::Draining))
    }
}

/// Checks that the `i`-th replica of a plan can run in a scenario.
pub(crate) fn check_replica(
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
