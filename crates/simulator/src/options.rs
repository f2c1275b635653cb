//! Options of a run: the dispatch of requests, and replanning.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use packhorse_cluster::{
    DeviceKind, Discipline, ModelForecast, Plan, PlannedReplica, Problem, RateMode, Time,
};
use packhorse_control::{
    Config, Event,
    record::{PlanRecord, StoredCluster},
};
use packhorse_serving::DeadlineOptions;

use crate::{run_trace::RunTrace, timeline::Timeline};

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

/// The time between two samples of the gateway.
const GATEWAY_SAMPLES: Duration = Duration::from_secs(5);

/// The options of a run.
#[derive(Default)]
pub struct RunOptions<'a> {
    /// The dispatch of requests.
    pub dispatch: DispatchOptions,
    /// New plans during the run; `None` to keep the first one.
    pub replanning: Option<Replanning<'a>>,
    /// Gets the requests and batches over time; `None` to keep none.
    pub trace: Option<&'a mut RunTrace>,
    /// Gets the numbers of requests over time; `None` to keep none.
    pub timeline: Option<&'a mut Timeline>,
    /// Returns true to stop the run, which is asked now and then; `None` to let it end.
    pub stop: Option<&'a dyn Fn() -> bool>,
}

/// Estimates the goodput of replicas for a problem, with one forecast per model in its order.
pub type Estimate = fn(&Problem, &[PlannedReplica]) -> Vec<ModelForecast>;

/// The moments at which the policy is asked for a new plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlanningMoments {
    /// At a fixed interval.
    Interval,
    /// When the gateway would ask: when models, nodes or devices change, and when rates or batch times are away from those that the
    /// plan assumes.
    Changes,
}

/// The rule by which the autoscaler of a scenario decides how many devices there shall be.
pub enum ScalingRule<'a> {
    /// The gateway's `packhorse_devices_needed`: the smallest cluster for the rates that are forecast for the time at which a new node
    /// serves, the largest one of 15 minutes. The function searches it for the controller's problem, beginning with the last one; `None` if
    /// it finds none.
    DevicesNeeded(&'a mut ClusterSearch<'a>),
    /// The rule of Kubernetes' Horizontal Pod Autoscaler: so many devices that they compute this part of the time, within a tenth, and no
    /// fewer than were wanted within a time, the stabilization window.
    Utilization(f64, Duration),
}

/// A search for the number of devices of each kind of the smallest cluster for a problem, near the cluster that was found last.
pub type ClusterSearch<'a> = dyn FnMut(&Problem, &DevicesByKind) -> Option<DevicesByKind> + 'a;

/// The number of devices of each kind.
pub type DevicesByKind = BTreeMap<DeviceKind, usize>;

/// A policy that makes new plans during a run, from what was observed in it.
pub struct Replanning<'a> {
    /// The simulated time between two samples of the data plane's counts, and between two plans if they are made at an interval; above
    /// zero.
    pub every: Duration,
    /// The moments of planning.
    pub moments: PlanningMoments,
    /// The estimate by which a new plan must be worth the cost of moving to it, as in the gateway. Without it every new plan is
    /// adopted.
    pub estimate: Option<Estimate>,
    /// Makes a plan for the problem of the moment: the scenario's, with the measured rates, the devices that are not lost, the
    /// current plan, and the observations of devices. `None` keeps the plan. Devices are ordered by node.
    pub policy: &'a mut dyn FnMut(&Problem) -> Option<Plan>,
    /// The part of the declared rates in planning. The models declare the rates of the scenario's problem.
    pub rate_mode: RateMode,
    /// The time for which the true future rates replace the measured ones in the problem, as a bound on what measuring can reach;
    /// `None` for the measured rates.
    pub foresight: Option<Duration>,
    /// The rule of the scenario's autoscaler; `None` for a scenario without one.
    pub scaling: Option<ScalingRule<'a>>,
    /// Gets the history of the control plane, so that it can be replayed elsewhere; `None` to keep none.
    pub recorder: Option<&'a mut dyn FnMut(Recorded<'_>)>,
}

impl<'a> Replanning<'a> {
    /// Returns replanning with measured rates, of which no history is kept.
    pub fn new(
        every: Duration,
        estimate: Option<Estimate>,
        policy: &'a mut dyn FnMut(&Problem) -> Option<Plan>,
    ) -> Self {
        Self {
            every,
            moments: PlanningMoments::Interval,
            estimate,
            policy,
            rate_mode: RateMode::Measured,
            foresight: None,
            scaling: None,
            recorder: None,
        }
    }

    /// Returns replanning as the gateway does it: at changes, with the larger of the declared and the measured rates.
    pub fn at_changes(
        estimate: Estimate,
        policy: &'a mut dyn FnMut(&Problem) -> Option<Plan>,
    ) -> Self {
        Self {
            moments: PlanningMoments::Changes,
            rate_mode: RateMode::Max,
            ..Self::new(GATEWAY_SAMPLES, Some(estimate), policy)
        }
    }

    /// Returns replanning as the gateway does it, with an autoscaler and with measured rates: declared ones would hold devices.
    #[must_use]
    pub fn autoscaling(self, rule: ScalingRule<'a>) -> Self {
        Self {
            rate_mode: RateMode::Measured,
            scaling: Some(rule),
            ..self
        }
    }
}

/// A part of the history of a run's control plane.
#[derive(Clone, Copy, Debug)]
pub enum Recorded<'a> {
    /// The controller starts with these settings and this state.
    Started(&'a Config, &'a StoredCluster),
    /// The controller handles this event.
    Handled(Time, &'a Event),
    /// The controller adopts this plan.
    Adopted(&'a Arc<PlanRecord>),
}
