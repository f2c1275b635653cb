//! The search for what is wrong in the cluster.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use packhorse_cluster::{
    DeviceId, ModelId, NodeName, PoolPlace, ReplicaState, Scheduling, Time, WorkerKind,
};

use crate::{
    finding::{Finding, Problem, RepositoryProblem, Severity, Subject},
    learned_times::{ContradictionCause, sightings},
    nodes::Nodes,
    observed_findings::observed_findings,
    planning::Planning,
    state::State,
};

/// The part of a model's rate that may be unserved before it is a finding.
const TOLERATED_SHORTFALL: f64 = 0.02;
/// The time after the loss of a node within which what a model begins to lack is laid to it.
const LOSS_SHOWS_WITHIN: Duration = Duration::from_mins(1);

/// Returns all findings, by severity, then subject.
pub(crate) fn findings(now: Time, state: &State, planning: &Planning) -> Vec<Finding> {
    let mut all = Vec::new();
    of_models(state, &mut all);
    of_nodes(state, &mut all);
    for (device, model, reason) in state.exclusions.iter() {
        all.push(
            Finding::new(
                Severity::Warning,
                Subject::Device(device.clone()),
                Problem::CannotStart,
                format!("model {model} does not start on {device}"),
            )
            .of_model(model)
            .because(reason)
            .cured_by("it is tried again later; the plan works around the device"),
        );
    }
    of_stuck_replicas(now, state, &mut all);
    of_pools(state, &mut all);
    of_profiles(now, state, &mut all);
    observed_findings(state, &mut all);
    for (name, rejected) in state.traffic.rejected() {
        let version = rejected.version;
        all.push(
            Finding::new(
                Severity::Warning,
                Subject::Model(ModelId {
                    name: name.clone(),
                    version,
                }),
                Problem::RolledBack,
                format!("version {version} of model {name} was rolled back"),
            )
            .because(rejected.reason.clone())
            .cured_by("register a corrected version, promote this one again, or remove it"),
        );
    }
    for (id, tenants) in &state.paused_tenants {
        let cure = "see packhorse requests --outcome lost; if it goes on, revoke the key or block the address";
        all.push(Finding::new(Severity::Warning, Subject::Model(id.clone()), Problem::TenantPaused, format!(
                "requests of some clients end workers of model {id}; they are refused for a while"
            )).because(format!("sent by {}", tenants.join(", "))).cured_by(cure));
    }
    if let Some(trouble) = planning.trouble() {
        all.push(
            Finding::new(
                Severity::Warning,
                Subject::Cluster,
                Problem::Planning,
                "planning has trouble; the current plan stays as far as there is no better one"
                    .to_owned(),
            )
            .because(trouble.to_string()),
        );
    }
    all.extend(of_repository(&state.repository_problems));
    all.sort_by(|a, b| {
        (a.severity, &a.subject, a.problem).cmp(&(b.severity, &b.subject, b.problem))
    });
    all
}

/// Finds the replicas that fail to start again and again and that the plan does not leave out, because no other device can have them.
fn of_stuck_replicas(now: Time, state: &State, all: &mut Vec<Finding>) {
    for replica in state.rollout.iter() {
        let (model, device) = (&replica.spec.model.model, &replica.spec.device);
        let excluded = state.exclusions.of_device(device).contains(model);
        if !replica.is_planned() || excluded || !state.start_failures.is_stuck(now, replica.id) {
            continue;
        }
        let status = state.status(replica);
        let stuck = Finding::new(
            Severity::Warning,
            Subject::Device(device.clone()),
            Problem::CannotStart,
            format!("model {model} does not start on {device}"),
        )
        .of_model(model)
        .cured_by("it is tried again and again; remove the cause");
        all.push(Finding {
            cause: status.and_then(|status| status.reason.clone()),
            ..stuck
        });
    }
}

/// Finds the devices that have too little memory for the weights of a model that they shall serve. Requests for it wait in vain.
fn of_pools(state: &State, all: &mut Vec<Finding>) {
    let mut devices: BTreeMap<&DeviceId, Vec<(&ModelId, PoolPlace)>> = BTreeMap::new();
    for replica in state.rollout.iter().filter(|replica| replica.is_planned()) {
        if let Some(place) = state.without_room.get(&replica.id) {
            let models = devices.entry(&replica.spec.device).or_default();
            models.push((&replica.spec.model.model, *place));
        }
    }
    for (device, models) in devices {
        let largest = models.iter().max_by_key(|(_, place)| place.weights);
        let (model, place) = largest.expect("there is one");
        let others = match models.len() - 1 {
            0 => String::new(),
            1 => " and of another model".to_owned(),
            more => format!(" and of {more} other models"),
        };
        all.push(Finding::new(Severity::Critical, Subject::Device(device.clone()), Problem::NoRoomForWeights, format!(
                "{device} has no room for the weights of model {model}{others}: its process leaves {} for weights, and these have {}",
                place.memory, place.weights
            )).because("the process and what its models need beside their weights").cured_by("raise the --device-memory of its agent, add a node, or remove models"));
    }
}

/// Finds the models whose batches take another time than their profiles say. Of several batch sizes the one counts that is furthest away.
fn of_profiles(now: Time, state: &State, all: &mut Vec<Finding>) {
    for (id, sightings) in sightings(state.observer.observations()) {
        let Some(model) = state.models.get(id) else {
            continue;
        };
        let times = state.batch_times(now, id, &sightings).into_iter();
        let contradictions = times.filter_map(|time| {
            let cause = time.contradiction_cause(&model.program)?;
            Some((time.learned?.ratio, time, cause))
        });
        let distance = |ratio: f64| ratio.ln().abs();
        let worst = contradictions.max_by(|(a, ..), (b, ..)| distance(*a).total_cmp(&distance(*b)));
        let Some((ratio, time, cause)) = worst else {
            continue;
        };
        let cause = if state.has_measured_inputs(id, &model.program, &time.kind) {
            cause.with_measured_inputs()
        } else {
            cause
        };
        let is_measured_again = state.is_measured_again(id, &model.program, &time.kind);
        let (cause, cure) = contradiction_texts(cause, is_measured_again);
        let (kind, rows) = (&time.kind, time.batch_size);
        all.push(Finding::new(Severity::Notice, Subject::Model(id.clone()), Problem::ProfileContradicted, format!(
                "batches of model {id} take {ratio:.2} times as long as its profile on {kind} says ({rows} rows)"
            )).because(cause).cured_by(cure));
    }
}

/// Returns the cause and the cure of a contradiction as text. `is_measured_again` is true if the model is measured for the inputs that come.
fn contradiction_texts(
    cause: ContradictionCause,
    is_measured_again: bool,
) -> (String, &'static str) {
    const MEASURE: &str =
        "import a profile of such a batch, or register the model again to measure it";
    let say_shape = if is_measured_again {
        "none is needed: the model is measured again with inputs of the size that comes most"
    } else {
        "register the model again with a typical_shape of the inputs of its clients"
    };
    match cause {
        ContradictionCause::Neighbours(Some(alone)) => (
            format!("neighbours on its devices: alone a batch takes {alone:.2} times as long"),
            "none is needed with policy goodput, which plans with what was learned",
        ),
        ContradictionCause::Neighbours(None) => (
            "probably neighbours on its devices, beside which all of its batches were computed"
                .to_owned(),
            "none is needed with policy goodput, which plans with what was learned",
        ),
        ContradictionCause::LongerInputs => (
            "probably longer inputs than those that it was measured with".to_owned(),
            say_shape,
        ),
        ContradictionCause::ShorterInputs => (
            "probably shorter inputs than those that it was measured with".to_owned(),
            say_shape,
        ),
        ContradictionCause::SlowerDevice => (
            "a slower device than when it was measured, as its inputs have the measured size: it may throttle, or other programs use it"
                .to_owned(),
            MEASURE,
        ),
        ContradictionCause::FasterDevice => (
            "a slower device when it was measured, as its inputs have the measured size".to_owned(),
            MEASURE,
        ),
    }
}

/// Sets the nodes that were lost as roots of the models that lack capacity since shortly after: a node on which the model ran rather than another one, and
/// of these the one that was lost last.
pub(crate) fn blame_lost_nodes(nodes: &Nodes, findings: &mut [Finding]) {
    let lost = findings
        .iter()
        .filter_map(|finding| match &finding.subject {
            Subject::Node(name) if finding.problem == Problem::NodeLost => {
                Some((finding.since, name.clone()))
            }
            _ => None,
        });
    let lost: Vec<(Time, NodeName)> = lost.collect();
    for finding in findings {
        let lacks_capacity = matches!(
            finding.problem,
            Problem::ModelNotServed | Problem::ModelShort | Problem::FewerReplicas
        );
        if !lacks_capacity || finding.root.is_some() {
            continue;
        }
        let before = lost.iter().filter(|(since, _)| {
            *since <= finding.since && finding.since.saturating_since(*since) <= LOSS_SHOWS_WITHIN
        });
        let ran_there = |name: &NodeName| match &finding.subject {
            Subject::Model(id) => nodes
                .get(name)
                .is_some_and(|node| node.lost_models.contains(&id.name)),
            _ => false,
        };
        let root = before.max_by_key(|(since, name)| (ran_there(name), *since));
        finding.root = root.map(|(_, name)| Subject::Node(name.clone()));
    }
}

/// Returns the finding about the folder of models. It is one, because entries of a folder need not be models.
fn of_repository(problems: &[RepositoryProblem]) -> Option<Finding> {
    let places: Vec<&str> = problems.iter().map(|p| p.place.as_str()).collect();
    let causes = problems
        .iter()
        .map(|p| format!("{}: {}", p.place, p.problem));
    (!problems.is_empty()).then(|| {
        Finding::new(
            Severity::Warning,
            Subject::Cluster,
            Problem::Repository,
            format!(
                "the model repository is not served as it is there: {}",
                places.join(", ")
            ),
        )
        .because(causes.collect::<Vec<_>>().join("; "))
        .cured_by("correct it, and start packhorse serve again")
    })
}

fn of_models(state: &State, all: &mut Vec<Finding>) {
    let has_no_node = state.nodes.iter().all(|(_, node)| node.is_lost());
    for (id, model) in state.models.iter() {
        let finding =
            |severity, problem, text: String, cause: Option<&str>, cure: Option<String>| Finding {
                cause: cause.map(ToOwned::to_owned),
                cure,
                ..Finding::new(severity, Subject::Model(id.clone()), problem, text)
            };
        if let Some(failure) = &model.failure {
            let cure = "register a corrected version, or remove this one".to_owned();
            all.push(finding(
                Severity::Critical,
                Problem::ModelFailed,
                format!("model {id} cannot be served as it is registered"),
                Some(failure),
                Some(cure),
            ));
            continue;
        }
        let replicas = state.rollout.of_model(id);
        let apart = state.rollout.of_model(id).find(|replica| {
            let status = state.status(replica);
            let is_own = status.is_some_and(|status| {
                status.state == ReplicaState::Ready && status.worker == WorkerKind::Own
            });
            replica.is_planned() && replica.spec.pool.is_some() && is_own
        });
        if let Some(replica) = apart {
            let device = &replica.spec.device;
            all.push(finding(
                Severity::Warning,
                Problem::EndsSharedProcess,
                format!("model {id} has a process of its own on {device}"),
                Some("it ended the process that it should share with others"),
                Some("register a corrected version; requests that do it are in packhorse requests --outcome lost".to_owned()),
            ));
        }
        let statuses = replicas.filter_map(|replica| state.status(replica));
        let verifications = statuses.filter_map(|status| status.verification.as_ref());
        let dropped = verifications.flat_map(|found| &found.dropped);
        // Its reason may differ from device to device.
        let dropped: BTreeMap<&str, &str> = dropped
            .map(|one| (one.rewriting.as_str(), one.reason.as_str()))
            .collect();
        if let Some((_, reason)) = dropped.first_key_value() {
            let names: Vec<&str> = dropped.keys().copied().collect();
            all.push(finding(
                Severity::Notice,
                Problem::RewritingDropped,
                format!("model {id} runs without {}", names.join(", ")),
                Some(reason),
                Some("none is needed: it answers right, though it may be slower".to_owned()),
            ));
        }
        let Some(forecast) = state.plan.forecasts.get(id) else {
            continue;
        };
        if !state.traffic.is_used(id) {
            continue;
        }
        if has_no_node {
            // The plan may still be that of before, and workers serve on without their agents.
            if forecast.rate.get() > 0.0 && !state.is_served(id) {
                all.push(without_node(id));
            }
            continue;
        }
        all.extend(of_fewer_replicas(state, id));
        let missing = forecast.rate.get() - forecast.goodput.get();
        let shortfall = forecast.shortfall.as_deref();
        if state.rollout.of_model(id).next().is_none() && forecast.rate.get() > 0.0 {
            if let Some((cause, cure)) = why_not_placed(state, id) {
                all.push(finding(
                    Severity::Critical,
                    Problem::ModelNotServed,
                    with_details(format!("the plan has no replica of model {id}"), shortfall),
                    Some(cause),
                    Some(cure.to_owned()),
                ));
            }
        } else if missing > TOLERATED_SHORTFALL * forecast.rate.get() {
            let short = finding(
                Severity::Warning,
                Problem::ModelShort,
                with_details(
                    if missing < 0.05 {
                        format!("model {id} is short by less than 0.1 requests/s")
                    } else {
                        format!("model {id} is short by {missing:.1} requests/s")
                    },
                    shortfall,
                ),
                Some("the devices cannot serve its rate within its SLO"),
                Some("add a device, lower the rate or raise the SLO".to_owned()),
            );
            all.push(Finding {
                missed_part: missing / forecast.rate.get(),
                ..short
            });
        }
    }
}

/// Returns the finding of a model while no node is there.
fn without_node(id: &ModelId) -> Finding {
    Finding::new(
        Severity::Critical,
        Subject::Model(id.clone()),
        Problem::ModelNotServed,
        format!("model {id} is not served"),
    )
    .because("no node is there")
    .cured_by("start an agent")
}

/// Finds that the plan has replicas of a model on fewer devices than it asks for. Where it has none, that is a finding of its own.
fn of_fewer_replicas(state: &State, id: &ModelId) -> Option<Finding> {
    let planned = state.rollout.of_model(id).filter(|one| one.is_planned());
    let devices: BTreeSet<&DeviceId> = planned.map(|one| &one.spec.device).collect();
    let (placed, wanted) = (devices.len(), state.models.min_replicas(&id.name).get());
    if placed == 0 || placed >= wanted {
        return None;
    }
    Some(
        Finding::new(
            Severity::Warning,
            Subject::Model(id.clone()),
            Problem::FewerReplicas,
            format!("model {id} has replicas on {placed} of the {wanted} devices that it asks for"),
        )
        .because("no other device is there, or has memory left for one")
        .cured_by("add a device, or lower its min_replicas"),
    )
}

/// Returns why the plan has no replica of a model, and the cure; `None` while the model waits for its first measurement, after which it is planned.
fn why_not_placed(state: &State, id: &ModelId) -> Option<(&'static str, &'static str)> {
    let measurements = &state.measurements;
    if measurements.device_count() == 0 {
        return Some((
            "no device accepts replicas",
            "start an agent, or end the cordon of a node",
        ));
    }
    if state.is_profiled(id) {
        return Some((
            "no device has a place for it at its rate and SLO",
            "packhorse plan --explain says what would suffice: a device, a lower rate or a longer SLO",
        ));
    }
    (!measurements.is_awaited(id)).then_some((
        "no device has a profile of it, and measuring it failed",
        "import a profile, or register a corrected version",
    ))
}

fn of_nodes(state: &State, all: &mut Vec<Finding>) {
    for (name, node) in state.nodes.iter() {
        let drained = node.record.scheduling == Scheduling::Draining;
        // A node that was drained before its agent stopped is where it was meant to be.
        if node.is_lost() && !(drained && state.rollout.on_node(name).next().is_none()) {
            let cure = format!("start its agent, or remove it with packhorse node remove {name}");
            all.push(
                Finding::new(
                    Severity::Warning,
                    Subject::Node(name.clone()),
                    Problem::NodeLost,
                    format!("node {name} is lost"),
                )
                .because("its agent does not renew its lease")
                .cured_by(cure),
            );
        }
        if !drained {
            continue;
        }
        let mut left: BTreeMap<&ModelId, usize> = BTreeMap::new();
        for replica in state
            .rollout
            .on_node(name)
            .filter(|replica| replica.is_planned())
        {
            *left.entry(&replica.spec.model.model).or_default() += 1;
        }
        if let Some((model, _)) = left.first_key_value() {
            let models = left.len();
            all.push(
                Finding::new(
                    Severity::Warning,
                    Subject::Node(name.clone()),
                    Problem::DrainWaits,
                    format!(
                        "the drain of node {name} waits for {models} models, the first is {model}"
                    ),
                )
                .because("no other device has room for them")
                .cured_by("add a device, remove models, or drain with a deadline"),
            );
        }
    }
}

/// Returns a text with the details that follow it, if there are any. They are no cause, since their numbers change from plan to plan.
fn with_details(text: String, details: Option<&str>) -> String {
    match details {
        Some(details) => format!("{text}: {details}"),
        None => text,
    }
}
