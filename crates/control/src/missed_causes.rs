//! The causes for which models miss their SLO, as far as they are known.

use std::collections::BTreeSet;

use packhorse_cluster::{DeviceId, ModelId, NodeName, Time};

use crate::{
    device_speeds::SlowDevice,
    event::LinkState,
    finding::Subject,
    missed_requests::MissCause,
    service_levels::{Load, MissedLevel},
    state::State,
};

/// The part of the missed requests above which one cause, stage or device stands out.
pub(crate) const MOST: f64 = 0.5;
/// The part of the goodput that a plan may lack before it is the cause of missed requests.
const TOLERATED_SHORTFALL: f64 = 0.02;

/// The cause of a model's missed requests.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Cause {
    /// No node is there; this one was lost last, if there were any.
    NoNode(Option<NodeName>),
    /// A node on which it had replicas is lost.
    NodeLost(NodeName),
    /// Its batches fail.
    Fails,
    /// The process on a device that ran it ended.
    WorkerEnded(DeviceId),
    /// A device that it runs on is slow.
    SlowDevice(DeviceId),
    /// More of its requests come than are planned for.
    Overload,
    /// Some of its planned replicas do not serve, for instance the one on this device.
    NotServing {
        serving: usize,
        planned: usize,
        device: DeviceId,
        is_ejected: bool,
    },
    /// None of its last requests was answered, although replicas serve, for instance the one on this device.
    Unanswered { serving: usize, device: DeviceId },
    /// More requests of another model come than are planned for, on a device that they share.
    Neighbour {
        culprit: ModelId,
        device: DeviceId,
        load: Load,
    },
    /// The plan has too little capacity for it.
    Short { rate: f64, goodput: f64 },
    /// Nothing that is known.
    Unknown,
}

impl Cause {
    /// Returns the subject with which the trouble began; none for the model itself.
    pub(crate) fn root(&self) -> Option<Subject> {
        match self {
            Self::NoNode(node) => node.clone().map(Subject::Node),
            Self::NodeLost(node) => Some(Subject::Node(node.clone())),
            Self::SlowDevice(device) | Self::WorkerEnded(device) => {
                Some(Subject::Device(device.clone()))
            }
            Self::Neighbour { culprit, .. } => Some(Subject::Model(culprit.clone())),
            _ => None,
        }
    }
}

/// A model that misses its SLO, and why.
pub(crate) struct Missing<'a> {
    /// The model.
    pub(crate) id: &'a ModelId,
    /// Its requests.
    pub(crate) level: MissedLevel,
    /// The cause for which it misses its SLO.
    pub(crate) cause: Cause,
}

/// Returns the models that miss their SLO, each with its cause.
pub(crate) fn missing_models(state: &State) -> Vec<Missing<'_>> {
    let levels = state.service_levels.missing().into_iter();
    let mut missing: Vec<Missing<'_>> = levels
        .filter(|(id, _)| state.models.get(id).is_some())
        .map(|(id, level)| {
            let cause = cause(state, id, &level);
            Missing { id, level, cause }
        })
        .collect();
    // A culprit is nobody's victim: two models whose loads grow at different times would blame each other.
    let culprits = missing.iter().filter_map(|one| match &one.cause {
        Cause::Neighbour { culprit, .. } => Some(culprit.clone()),
        _ => None,
    });
    let culprits: BTreeSet<ModelId> = culprits.collect();
    for one in &mut missing {
        if matches!(one.cause, Cause::Neighbour { .. }) && culprits.contains(one.id) {
            one.cause = Cause::Overload;
        }
    }
    missing
}

/// Returns why the requests of a model miss its SLO.
fn cause(state: &State, id: &ModelId, level: &MissedLevel) -> Cause {
    let misses = &level.misses;
    if let Some(cause) = no_node(state, level) {
        return cause;
    }
    if let Some(node) = lost_node(state, level) {
        return Cause::NodeLost(node);
    }
    if let Some((MissCause::Failed, part)) = misses.main_cause()
        && part > MOST
    {
        return Cause::Fails;
    }
    if let Some(device) = ended_worker(state, id, level) {
        return Cause::WorkerEnded(device);
    }
    let is_overload = level.load.explains(level.missed, 1.0);
    let not_serving = || not_serving(state, id);
    if let Some(cause @ Cause::NotServing { serving: 0, .. }) = not_serving() {
        // No load is too much for a model without a replica: its clients try again.
        return cause;
    }
    if let Some(cause) = unanswered(state, id, level) {
        return cause;
    }
    // What was missed before has another cause, and a little slowness does not explain a large load.
    let slow = slow_device_under(state, id).filter(|slow| {
        let explains = !is_overload || slow.factor > level.load.excess_factor();
        explains && level.part_since(slow.since) > MOST
    });
    if let Some(slow) = slow {
        let is_main = match misses.main_device() {
            Some((device, part)) => *device == slow.device && part > MOST,
            None => runs_only_on(state, id, &slow.device),
        };
        if is_main || !is_overload {
            return Cause::SlowDevice(slow.device.clone());
        }
    }
    if is_overload {
        return Cause::Overload;
    }
    let is_lost = matches!(misses.main_cause(), Some((MissCause::Lost, _)));
    let found = is_lost.then(not_serving).flatten();
    // Plans for the load of a neighbour move replicas, which then do not serve for a moment.
    let found = found.or_else(|| neighbour(state, id, level));
    if let Some(cause) = found.or_else(not_serving) {
        return cause;
    }
    let forecast = state.plan.forecasts.get(id);
    match forecast.map(|f| (f.rate.get(), f.goodput.get())) {
        Some((rate, goodput)) if goodput < (1.0 - TOLERATED_SHORTFALL) * rate => {
            Cause::Short { rate, goodput }
        }
        _ => Cause::Unknown,
    }
}

/// Returns that no node is there, if requests were missed since. No load is too much for a cluster without a node.
fn no_node(state: &State, level: &MissedLevel) -> Option<Cause> {
    let mut last: Option<(Time, &NodeName)> = None;
    for (name, node) in state.nodes.iter() {
        if !node.is_lost() {
            return None;
        }
        last = last.max(Some((node.last_heard.unwrap_or(Time::ZERO), name)));
    }
    let heard = last.map_or(Time::ZERO, |(heard, _)| heard);
    let node = last.map(|(_, node)| node.clone());
    (level.part_since(heard) > 0.0).then_some(Cause::NoNode(node))
}

/// Returns a lost node on which some of the missed requests ran.
fn lost_node(state: &State, level: &MissedLevel) -> Option<NodeName> {
    // What was missed before its agent was last heard of has another cause.
    let is_lost = |node: &NodeName| {
        let node = state.nodes.get(node).filter(|node| node.is_lost());
        let heard = node.map(|node| node.last_heard.unwrap_or(Time::ZERO));
        heard.is_some_and(|heard| level.part_since(heard) > MOST)
    };
    let mut nodes = level.misses.devices.keys().map(DeviceId::node);
    nodes.find(|node| is_lost(node)).cloned()
}

/// Returns the slow device that slows a model most.
pub(crate) fn slow_device_of<'a>(state: &'a State, id: &ModelId) -> Option<&'a SlowDevice> {
    let factor = |slow: &SlowDevice| {
        let mut models = slow.models.iter();
        models
            .find(|model| model.model == *id)
            .map_or(0.0, |model| model.factor)
    };
    let slow = state.slow_devices.iter().filter(|slow| factor(slow) > 0.0);
    slow.max_by(|a, b| factor(a).total_cmp(&factor(b)))
}

/// Returns the slow device that slows a model most, or may: with few batches, or beside others, it is not compared and waits there all the same.
fn slow_device_under<'a>(state: &'a State, id: &ModelId) -> Option<&'a SlowDevice> {
    slow_device_of(state, id).or_else(|| {
        let may_slow = |slow: &&SlowDevice| {
            let mut replicas = state.rollout.on_device(&slow.device);
            !slow.spared.contains(id) && replicas.any(|one| one.spec.model.model == *id)
        };
        let slow = state.slow_devices.iter().filter(may_slow);
        slow.max_by(|a, b| a.factor.total_cmp(&b.factor))
    })
}

fn runs_only_on(state: &State, id: &ModelId, device: &DeviceId) -> bool {
    let mut replicas = state.rollout.of_model(id);
    replicas.all(|replica| replica.spec.device == *device)
}

/// Returns the device on which the process of a model ended, if most of its requests were missed since, or since it hung.
fn ended_worker(state: &State, id: &ModelId, level: &MissedLevel) -> Option<DeviceId> {
    let mut ends = state.worker_ends.iter();
    let found =
        ends.find(|(_, end)| end.models.contains(id) && level.part_since(end.begin()) > MOST);
    found.map(|(device, _)| device.clone())
}

/// Returns that some of the planned replicas do not serve.
fn not_serving(state: &State, id: &ModelId) -> Option<Cause> {
    let planned = || state.rollout.of_model(id).filter(|one| one.is_planned());
    let mut idle = planned().filter(|replica| !state.serves(replica.id));
    let first = idle.next()?;
    let idle = 1 + idle.count();
    let planned = planned().count();
    Some(Cause::NotServing {
        serving: planned - idle,
        planned,
        device: first.spec.device.clone(),
        is_ejected: matches!(state.links.get(&first.id), Some(LinkState::Ejected { .. })),
    })
}

/// Returns that replicas serve and do not answer.
fn unanswered(state: &State, id: &ModelId, level: &MissedLevel) -> Option<Cause> {
    let planned = state.rollout.of_model(id).filter(|one| one.is_planned());
    let serving: Vec<&DeviceId> = planned
        .filter(|replica| state.serves(replica.id))
        .map(|replica| &replica.spec.device)
        .collect();
    let device = (*serving.first()?).clone();
    level.is_unanswered.then_some(Cause::Unanswered {
        serving: serving.len(),
        device,
    })
}

/// Returns the model on the same devices whose requests beyond the plan take most of their time, if that explains the loss.
fn neighbour(state: &State, id: &ModelId, level: &MissedLevel) -> Option<Cause> {
    let devices: BTreeSet<&DeviceId> = state
        .rollout
        .of_model(id)
        .map(|replica| &replica.spec.device)
        .collect();
    let mut found: Option<(f64, Cause)> = None;
    for device in devices {
        for replica in state.rollout.on_device(device) {
            let other = &replica.spec.model.model;
            let load = state.service_levels.load_during(other, level);
            let Some(kind) = state.kind(device).filter(|_| other != id) else {
                continue;
            };
            let seconds_of = |model| {
                let profile = state.profiles.get(model, kind);
                profile.map_or(0.0, |profile| profile.latency(1).as_secs_f64())
            };
            let seconds = seconds_of(other);
            if !load.explains(
                level.missed,
                seconds_of(id) / seconds.max(f64::MIN_POSITIVE),
            ) {
                continue;
            }
            let cost = load.excess_rps() * seconds;
            if found.as_ref().is_none_or(|(most, _)| cost > *most) {
                let cause = Cause::Neighbour {
                    culprit: other.clone(),
                    device: device.clone(),
                    load,
                };
                found = Some((cost, cause));
            }
        }
    }
    found.map(|(_, cause)| cause)
}
