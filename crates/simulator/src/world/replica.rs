//! A replica in the simulated world, and whether a scenario has what it needs.

use std::time::Duration;

use packhorse_cluster::{ComputeShare, PlannedReplica, Program, Time};
use packhorse_contention::{Active, ServiceTimes};
use packhorse_control::rollout::LinkPhase;
use packhorse_serving::{DeviceKey, ReplicaSpec};

use super::key;
use crate::Scenario;

/// Why a plan cannot be tried in a scenario.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SimulateError {
    /// A replica names a model or device that the scenario does not have.
    #[error("replica {0} of the plan names a model or device that the scenario does not have")]
    Dangling(usize),
    /// A replica has a batch size that none can have.
    #[error(
        "replica {replica} of the plan: batch size {batch_size} is not between 1 and {}",
        Program::MAX_BATCH_SIZE
    )]
    BatchSize {
        /// Its place in the plan.
        replica: usize,
        /// What it says.
        batch_size: u32,
    },
    /// A replica's model was never measured on that kind of device.
    #[error("replica {replica} of the plan: {model} has no profile on {kind}")]
    MissingProfile {
        /// Its place in the plan.
        replica: usize,
        /// The model.
        model: String,
        /// The kind of device.
        kind: String,
    },
}

/// A replica's worker process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Worker {
    /// Loads its model; counts the attempts, because faults interrupt them.
    Loading(u32),
    /// Takes batches.
    Ready,
    /// Is not wanted any more.
    Stopped,
}

/// A replica of a plan.
#[derive(Debug)]
pub(super) struct Replica {
    pub(super) model: usize,
    pub(super) device: usize,
    /// Its place on its device.
    pub(super) slot: usize,
    pub(super) spec: ReplicaSpec,
    /// By rows less one: what a batch takes alone, and what it uses.
    pub(super) work: Vec<(Duration, Active)>,
    pub(super) compute_share: Option<ComputeShare>,
    pub(super) worker: Worker,
    /// How the engine has it, if it does or did.
    pub(super) link: Option<LinkPhase>,
    pub(super) held: u32,
    /// Since when it has had a free credit.
    pub(super) free_since: Time,
}

impl Replica {
    /// Of a plan that was checked, at this place on its device; its worker does not run yet.
    pub(super) fn new(scenario: &Scenario, planned: &PlannedReplica, slot: usize) -> Self {
        let profile = scenario
            .problem
            .profile(planned.model, planned.device)
            .expect("plans are checked");
        let scale = scenario.workloads[planned.model.0].latency_scale;
        let work = |rows| {
            let alone = profile.latency(rows).mul_f64(scale);
            (alone, Active::new(profile, rows, planned.compute_share))
        };
        Self {
            model: planned.model.0,
            device: planned.device.0,
            slot,
            spec: ReplicaSpec {
                model: key(planned.model.0),
                batch_size: planned.batch_size,
                credits: ReplicaSpec::DEFAULT_CREDITS,
                device: DeviceKey(
                    u32::try_from(planned.device.0).expect("a scenario's devices are limited"),
                ),
                service: ServiceTimes::new(
                    profile,
                    planned.batch_size,
                    planned.compute_share,
                    scenario.simulation.interference,
                ),
            },
            work: (1..=planned.batch_size).map(work).collect(),
            compute_share: planned.compute_share,
            worker: Worker::Loading(0),
            link: None,
            held: 0,
            free_since: Time::ZERO,
        }
    }

    /// What a batch really takes with nobody else on the device.
    pub(super) fn alone(&self, rows: usize, scenario: &Scenario) -> Duration {
        let profiled = self
            .spec
            .service
            .of(u32::try_from(rows).expect("a batch is small"));
        profiled.mul_f64(scenario.workloads[self.model].latency_scale)
    }

    /// Whether the engine has it.
    pub(super) fn is_up(&self) -> bool {
        matches!(self.link, Some(LinkPhase::Serving | LinkPhase::Draining))
    }
}

/// Whether the `i`-th replica of a plan can run in a scenario.
pub(super) fn check(
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
