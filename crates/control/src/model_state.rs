//! The state of a model between registration and serving, and its reason: a pure function of the model's conditions.

use std::fmt;

use packhorse_cluster::{DeviceId, DeviceKind, ModelState, ReplicaState};

use crate::planning_trouble::PlanningTrouble;

/// The progress of a measurement that is assigned to a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MeasurementProgress {
    /// The kind of device that the model is measured on.
    pub device_kind: DeviceKind,
    /// The number of batch sizes measured so far.
    pub done: u32,
    /// The number of batch sizes to measure; 0 while unknown.
    pub total: u32,
}

/// The conditions from which the state of a model follows.
#[expect(
    clippy::struct_excessive_bools,
    reason = "they are independent conditions"
)]
#[derive(Clone, Debug, Default)]
pub(crate) struct ModelConditions<'a> {
    /// The reason why the model cannot be served as it is registered.
    pub(crate) failure: Option<&'a str>,
    /// True if the version gets no requests and needs no replica.
    pub(crate) retired: bool,
    /// The model's replicas in the plan.
    pub(crate) replicas: Vec<ReplicaConditions<'a>>,
    /// The number of replicas of earlier plans that still serve.
    pub(crate) earlier_serving: usize,
    /// The number of devices that accept replicas.
    pub(crate) devices: usize,
    /// True if the model has a profile for a kind of device that accepts replicas.
    pub(crate) profiled: bool,
    /// True if such a profile is no estimate.
    pub(crate) measured: bool,
    /// The model's measurements that are assigned to a device.
    pub(crate) profiling: &'a [MeasurementProgress],
    /// True if a measurement of the model waits for a device that measures another model.
    pub(crate) queued: bool,
    /// The reason why its program's operators could not be found.
    pub(crate) uninspected: Option<&'a str>,
    /// True if a plan is being made or will be.
    pub(crate) planning: bool,
    /// The trouble of the last attempt to plan.
    pub(crate) trouble: Option<&'a PlanningTrouble>,
    /// The reason why the plan does not, or not fully, serve the model.
    pub(crate) shortfall: Option<&'a str>,
    /// A device on which the model could not start and is not planned for a while, and the reason.
    pub(crate) excluded: Option<(&'a DeviceId, &'a str)>,
}

/// The conditions of one replica in the plan.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ReplicaConditions<'a> {
    /// True if the gateway is connected to the replica and sends it batches.
    pub(crate) serving: bool,
    /// True if the replica waits for memory that replicas of earlier plans hold.
    pub(crate) waiting: bool,
    /// True if the lease of the replica's node has expired.
    pub(crate) node_lost: bool,
    /// The state that the node reported.
    pub(crate) state: Option<ReplicaState>,
    /// The reason why the replica is not ready, as the node reported it.
    pub(crate) reason: Option<&'a str>,
    /// The reason why the gateway is not connected to the replica.
    pub(crate) link: Option<&'a str>,
}

/// The reason for the state of a model. The API shows its `Display` text.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum StateReason<'a> {
    /// The model cannot be served as it is registered.
    Failure(&'a str),
    /// Some planned replicas do not serve.
    ReplicasServing {
        /// The number of replicas that serve.
        serving: usize,
        /// The number of planned replicas.
        planned: usize,
    },
    /// The plan has no replica, and those of an earlier plan still serve.
    EarlierReplicasServe,
    /// The plan serves the model only in part.
    Shortfall(&'a str),
    /// The lease of the replica's node has expired.
    NodeLost,
    /// The gateway connects to the worker; with the reason why it is not connected.
    Connecting(Option<&'a str>),
    /// The node fetches the artifact; with the node's reason.
    Fetching(Option<&'a str>),
    /// The worker loads the model; with the node's reason.
    Loading(Option<&'a str>),
    /// The worker ended and will be restarted; with the node's reason.
    BackingOff(Option<&'a str>),
    /// The worker cannot serve the model; with the node's reason.
    WorkerFailed(Option<&'a str>),
    /// The replica waits for memory that replicas of an earlier plan hold.
    WaitsForMemory,
    /// The node has not started a worker yet.
    WaitsForWorker,
    /// The version has no share of the model's requests.
    Retired,
    /// No device accepts replicas.
    WaitsForNode,
    /// A device measures another model first.
    WaitsForMeasurement,
    /// A device measures another model first, and the inspection that would give an estimate meanwhile failed; with its reason.
    WaitsWithoutEstimate(&'a str),
    /// The model is being measured.
    Measured {
        /// The kind of device.
        kind: &'a DeviceKind,
        /// The number of batch sizes measured so far.
        done: u32,
        /// The number of batch sizes to measure; 0 while unknown.
        total: u32,
    },
    /// No available device has a profile of the model, and measuring it failed.
    Unmeasurable,
    /// The plan has no replica of the model, because of this shortfall.
    UnplacedShortfall(&'a str),
    /// The plan has no replica of the model, because of this trouble.
    UnplacedTrouble(&'a PlanningTrouble),
    /// The plan has no replica of the model, because it could not start on this device; with the reason.
    CannotStart(&'a DeviceId, &'a str),
    /// The plan has no replica of the model, for an unknown reason.
    Unplaced,
}

impl fmt::Display for StateReason<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const NOT_PLACED: &str = "the plan has no replica of the model";
        let (text, detail) = match self {
            Self::Failure(reason) | Self::Shortfall(reason) => (*reason, None),
            Self::ReplicasServing { serving, planned } => {
                return write!(f, "{serving} of {planned} planned replicas serve");
            }
            Self::EarlierReplicasServe => ("replicas of an earlier plan still serve", None),
            Self::NodeLost => ("the node's agent does not respond", None),
            Self::Connecting(problem) => ("connecting to the worker", *problem),
            Self::Fetching(reason) => ("the node is fetching the artifact", *reason),
            Self::Loading(reason) => ("the worker is loading the model", *reason),
            Self::BackingOff(reason) => ("the worker ended and will be restarted", *reason),
            Self::WorkerFailed(reason) => ("the worker cannot serve the model", *reason),
            Self::WaitsForMemory => (
                "waiting for memory that replicas of an earlier plan hold",
                None,
            ),
            Self::WaitsForWorker => ("waiting for the node to start a worker", None),
            Self::Retired => (
                "its share of the model's requests is 0 %, so that it needs no replica",
                None,
            ),
            Self::WaitsForNode => ("waiting for a node that accepts replicas", None),
            Self::WaitsForMeasurement => {
                ("waiting for a device that is measuring another model", None)
            }
            Self::WaitsWithoutEstimate(reason) => (
                "waiting for a device that is measuring another model; there is no estimate meanwhile",
                Some(*reason),
            ),
            Self::Measured { kind, total: 0, .. } => return write!(f, "being measured on {kind}"),
            Self::Measured { kind, done, total } => {
                return write!(f, "being measured on {kind}: {done} of {total} batch sizes");
            }
            Self::Unmeasurable => (
                "no available device has a profile of the model, and measuring it failed",
                None,
            ),
            Self::UnplacedShortfall(reason) => (NOT_PLACED, Some(*reason)),
            Self::UnplacedTrouble(trouble) => return write!(f, "{NOT_PLACED}: {trouble}"),
            Self::CannotStart(device, reason) => {
                return write!(
                    f,
                    "{NOT_PLACED}: it does not start on {device} ({reason}) and is tried there again later"
                );
            }
            Self::Unplaced => (NOT_PLACED, None),
        };
        f.write_str(text)?;
        match detail {
            Some(detail) => write!(f, ": {detail}"),
            None => Ok(()),
        }
    }
}

impl<'a> ModelConditions<'a> {
    /// Returns the state of the model, with its reason.
    pub(crate) fn state(&self) -> (ModelState, Option<StateReason<'a>>) {
        if let Some(failure) = self.failure {
            return (ModelState::Failed, Some(StateReason::Failure(failure)));
        }
        let serving = self.replicas.iter().filter(|r| r.serving).count();
        if serving + self.earlier_serving > 0 {
            return (ModelState::Ready, self.ready_reason(serving));
        }
        if let Some(replica) = self.replicas.iter().min_by_key(|r| r.distance()) {
            let (state, reason) = replica.starting();
            return (state, Some(reason));
        }
        if self.retired {
            return (ModelState::Unplaced, Some(StateReason::Retired));
        }
        if self.devices == 0 {
            return (ModelState::Registered, Some(StateReason::WaitsForNode));
        }
        if !self.profiled {
            let (state, reason) = self.unprofiled();
            return (state, Some(reason));
        }
        if self.planning {
            let trouble = self.trouble.map(StateReason::UnplacedTrouble);
            return (ModelState::Planning, trouble);
        }
        if let Some((device, reason)) = self.excluded {
            let reason = StateReason::CannotStart(device, reason);
            return (ModelState::Unplaced, Some(reason));
        }
        if !self.measured && (self.queued || !self.profiling.is_empty()) {
            // The plan has no place for the model as it is estimated.
            let (state, reason) = self.unprofiled();
            return (state, Some(reason));
        }
        let reason = match (self.shortfall, self.trouble) {
            (Some(shortfall), _) => StateReason::UnplacedShortfall(shortfall),
            (None, Some(trouble)) => StateReason::UnplacedTrouble(trouble),
            (None, None) => StateReason::Unplaced,
        };
        (ModelState::Unplaced, Some(reason))
    }

    fn ready_reason(&self, serving: usize) -> Option<StateReason<'a>> {
        let planned = self.replicas.len();
        if serving < planned {
            Some(StateReason::ReplicasServing { serving, planned })
        } else if planned == 0 {
            Some(StateReason::EarlierReplicasServe)
        } else {
            self.shortfall.map(StateReason::Shortfall)
        }
    }

    fn unprofiled(&self) -> (ModelState, StateReason<'a>) {
        match self.profiling.first() {
            Some(profiling) => (
                ModelState::Profiling,
                StateReason::Measured {
                    kind: &profiling.device_kind,
                    done: profiling.done,
                    total: profiling.total,
                },
            ),
            None if self.queued => {
                let reason = self.uninspected.map_or(
                    StateReason::WaitsForMeasurement,
                    StateReason::WaitsWithoutEstimate,
                );
                (ModelState::Profiling, reason)
            }
            None => (ModelState::Unplaced, StateReason::Unmeasurable),
        }
    }
}

impl<'a> ReplicaConditions<'a> {
    /// Returns the distance from serving. The nearest replica determines the state of its model.
    fn distance(&self) -> u8 {
        match self.state {
            _ if self.node_lost => 5,
            Some(ReplicaState::Ready) => 0,
            Some(ReplicaState::Loading) => 1,
            Some(ReplicaState::Fetching) => 2,
            None | Some(ReplicaState::Draining) => 3,
            Some(ReplicaState::BackingOff | ReplicaState::Failed) => 4,
        }
    }

    /// Returns the state of a model whose nearest replica is this one, which does not serve.
    fn starting(&self) -> (ModelState, StateReason<'a>) {
        if self.node_lost {
            return (ModelState::Loading, StateReason::NodeLost);
        }
        let reason = match self.state {
            Some(ReplicaState::Fetching) => {
                return (ModelState::Fetching, StateReason::Fetching(self.reason));
            }
            Some(ReplicaState::Ready) => StateReason::Connecting(self.link),
            Some(ReplicaState::Loading) => StateReason::Loading(self.reason),
            Some(ReplicaState::BackingOff) => StateReason::BackingOff(self.reason),
            Some(ReplicaState::Failed) => StateReason::WorkerFailed(self.reason),
            None | Some(ReplicaState::Draining) if self.waiting => StateReason::WaitsForMemory,
            None | Some(ReplicaState::Draining) => StateReason::WaitsForWorker,
        };
        (ModelState::Loading, reason)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(conditions: &ModelConditions<'_>, state: ModelState, reason: Option<StateReason<'_>>) {
        assert_eq!(conditions.state(), (state, reason), "{conditions:?}");
    }

    fn replica(state: ReplicaState) -> ReplicaConditions<'static> {
        ReplicaConditions {
            state: Some(state),
            ..ReplicaConditions::default()
        }
    }

    const SERVING: ReplicaConditions<'static> = ReplicaConditions {
        serving: true,
        waiting: false,
        node_lost: false,
        state: Some(ReplicaState::Ready),
        reason: None,
        link: None,
    };

    #[test]
    fn before_it_is_placed() {
        check(
            &ModelConditions::default(),
            ModelState::Registered,
            Some(StateReason::WaitsForNode),
        );
        let devices = ModelConditions {
            devices: 1,
            ..ModelConditions::default()
        };
        check(
            &devices,
            ModelState::Unplaced,
            Some(StateReason::Unmeasurable),
        );
        let queued = ModelConditions {
            queued: true,
            ..devices.clone()
        };
        check(
            &queued,
            ModelState::Profiling,
            Some(StateReason::WaitsForMeasurement),
        );
        let profiling = [MeasurementProgress {
            device_kind: "cpu-x".parse().unwrap(),
            done: 3,
            total: 5,
        }];
        let measured = ModelConditions {
            profiling: &profiling,
            ..devices.clone()
        };
        check(
            &measured,
            ModelState::Profiling,
            Some(StateReason::Measured {
                kind: &profiling[0].device_kind,
                done: 3,
                total: 5,
            }),
        );
        let profiled = ModelConditions {
            profiled: true,
            ..devices
        };
        let estimated = ModelConditions {
            profiled: true,
            queued: true,
            ..profiled.clone()
        };
        check(
            &estimated,
            ModelState::Profiling,
            Some(StateReason::WaitsForMeasurement),
        );
        let profiled = ModelConditions {
            measured: true,
            ..profiled
        };
        let planning = ModelConditions {
            planning: true,
            ..profiled.clone()
        };
        check(&planning, ModelState::Planning, None);
        let trouble = PlanningTrouble::NotStored;
        let shortfall = ModelConditions {
            shortfall: Some("no memory"),
            trouble: Some(&trouble),
            ..profiled.clone()
        };
        check(
            &shortfall,
            ModelState::Unplaced,
            Some(StateReason::UnplacedShortfall("no memory")),
        );
        let troubled = ModelConditions {
            trouble: Some(&trouble),
            ..profiled.clone()
        };
        check(
            &troubled,
            ModelState::Unplaced,
            Some(StateReason::UnplacedTrouble(&trouble)),
        );
        check(&profiled, ModelState::Unplaced, Some(StateReason::Unplaced));
    }

    #[test]
    fn while_its_replicas_start() {
        let with = |replicas| ModelConditions {
            devices: 1,
            profiled: true,
            planning: true,
            replicas,
            ..ModelConditions::default()
        };
        check(
            &with(vec![ReplicaConditions::default()]),
            ModelState::Loading,
            Some(StateReason::WaitsForWorker),
        );
        let waiting = ReplicaConditions {
            waiting: true,
            ..ReplicaConditions::default()
        };
        check(
            &with(vec![waiting]),
            ModelState::Loading,
            Some(StateReason::WaitsForMemory),
        );
        check(
            &with(vec![replica(ReplicaState::Fetching)]),
            ModelState::Fetching,
            Some(StateReason::Fetching(None)),
        );
        let both = vec![
            replica(ReplicaState::Fetching),
            replica(ReplicaState::Loading),
        ];
        check(
            &with(both),
            ModelState::Loading,
            Some(StateReason::Loading(None)),
        );
        let dead = ReplicaConditions {
            reason: Some("exit code 1"),
            ..replica(ReplicaState::BackingOff)
        };
        check(
            &with(vec![dead]),
            ModelState::Loading,
            Some(StateReason::BackingOff(Some("exit code 1"))),
        );
        check(
            &with(vec![replica(ReplicaState::Failed)]),
            ModelState::Loading,
            Some(StateReason::WorkerFailed(None)),
        );
        let refused = ReplicaConditions {
            link: Some("connection refused"),
            ..replica(ReplicaState::Ready)
        };
        check(
            &with(vec![refused]),
            ModelState::Loading,
            Some(StateReason::Connecting(Some("connection refused"))),
        );
        let lost = ReplicaConditions {
            node_lost: true,
            ..replica(ReplicaState::Ready)
        };
        check(
            &with(vec![lost]),
            ModelState::Loading,
            Some(StateReason::NodeLost),
        );
    }

    #[test]
    fn once_it_serves() {
        let conditions = ModelConditions {
            replicas: vec![SERVING],
            ..ModelConditions::default()
        };
        check(&conditions, ModelState::Ready, None);
        let half = ModelConditions {
            replicas: vec![SERVING, replica(ReplicaState::BackingOff)],
            ..conditions.clone()
        };
        check(
            &half,
            ModelState::Ready,
            Some(StateReason::ReplicasServing {
                serving: 1,
                planned: 2,
            }),
        );
        let short = ModelConditions {
            shortfall: Some("40 of 50 requests/s"),
            ..conditions.clone()
        };
        check(
            &short,
            ModelState::Ready,
            Some(StateReason::Shortfall("40 of 50 requests/s")),
        );
        let earlier = ModelConditions {
            replicas: vec![replica(ReplicaState::Loading)],
            earlier_serving: 1,
            ..conditions.clone()
        };
        check(
            &earlier,
            ModelState::Ready,
            Some(StateReason::ReplicasServing {
                serving: 0,
                planned: 1,
            }),
        );
        let unplanned = ModelConditions {
            replicas: Vec::new(),
            earlier_serving: 1,
            ..conditions.clone()
        };
        check(
            &unplanned,
            ModelState::Ready,
            Some(StateReason::EarlierReplicasServe),
        );
        let failed = ModelConditions {
            failure: Some("it throws"),
            ..conditions
        };
        check(
            &failed,
            ModelState::Failed,
            Some(StateReason::Failure("it throws")),
        );
    }

    #[test]
    fn every_reason_has_its_sentence() {
        let kind: DeviceKind = "T4".parse().unwrap();
        let measured = |done, total| StateReason::Measured {
            kind: &kind,
            done,
            total,
        };
        let trouble = PlanningTrouble::NotStored;
        for (reason, sentence) in [
            (StateReason::Failure("it throws"), "it throws"),
            (
                StateReason::ReplicasServing {
                    serving: 1,
                    planned: 2,
                },
                "1 of 2 planned replicas serve",
            ),
            (
                StateReason::EarlierReplicasServe,
                "replicas of an earlier plan still serve",
            ),
            (StateReason::Shortfall("40 of 50"), "40 of 50"),
            (StateReason::NodeLost, "the node's agent does not respond"),
            (StateReason::Connecting(None), "connecting to the worker"),
            (
                StateReason::Connecting(Some("refused")),
                "connecting to the worker: refused",
            ),
            (
                StateReason::Fetching(None),
                "the node is fetching the artifact",
            ),
            (
                StateReason::Loading(None),
                "the worker is loading the model",
            ),
            (
                StateReason::BackingOff(Some("exit code 1")),
                "the worker ended and will be restarted: exit code 1",
            ),
            (
                StateReason::WorkerFailed(Some("no output y")),
                "the worker cannot serve the model: no output y",
            ),
            (
                StateReason::WaitsForMemory,
                "waiting for memory that replicas of an earlier plan hold",
            ),
            (
                StateReason::WaitsForWorker,
                "waiting for the node to start a worker",
            ),
            (
                StateReason::WaitsForNode,
                "waiting for a node that accepts replicas",
            ),
            (
                StateReason::WaitsForMeasurement,
                "waiting for a device that is measuring another model",
            ),
            (
                StateReason::WaitsWithoutEstimate("no memory"),
                "waiting for a device that is measuring another model; there is no estimate meanwhile: no memory",
            ),
            (measured(0, 0), "being measured on T4"),
            (measured(3, 5), "being measured on T4: 3 of 5 batch sizes"),
            (
                StateReason::Unmeasurable,
                "no available device has a profile of the model, and measuring it failed",
            ),
            (
                StateReason::UnplacedShortfall("no memory"),
                "the plan has no replica of the model: no memory",
            ),
            (
                StateReason::UnplacedTrouble(&trouble),
                "the plan has no replica of the model: the new plan cannot be stored",
            ),
            (
                StateReason::Unplaced,
                "the plan has no replica of the model",
            ),
        ] {
            assert_eq!(reason.to_string(), sentence);
        }
    }
}
