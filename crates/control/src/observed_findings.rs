//! The findings from what is observed: models whose requests miss their SLO, devices that are slow, and models whose load costs others.
//!
//! Each model that misses its SLO has one cause, as far as it is known. Where that is another subject, the finding of that subject is the root
//! and lists the model as its victim.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use packhorse_cluster::{DeviceId, ModelId, NodeName, RequestsPerSecond, Time};

use crate::{
    device_speeds::{SlowDevice, SlowedModel},
    event::LinkState,
    finding::{CurePreview, Evidence, EvidenceSource, Finding, Problem, Severity, Subject},
    missed_requests::{MissCause, RequestStage},
    service_levels::{Load, MissedLevel},
    state::State,
};

/// The part of the requests in time below which requests fail for everybody who looks.
const CRITICAL: f64 = 0.9;
/// The part of the missed requests above which one cause, stage or device stands out.
const MOST: f64 = 0.5;
/// The part of the goodput that a plan may lack before it is the cause of missed requests.
const TOLERATED_SHORTFALL: f64 = 0.02;
/// The largest number of models that a text or the evidence names.
const MAX_NAMED: usize = 5;

/// The cause of a model's missed requests.
#[derive(Clone, Debug, PartialEq)]
enum Cause {
    /// A node on which it had replicas is lost.
    NodeLost(NodeName),
    /// Its batches fail.
    Fails,
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
    fn root(&self) -> Option<Subject> {
        match self {
            Self::NodeLost(node) => Some(Subject::Node(node.clone())),
            Self::SlowDevice(device) => Some(Subject::Device(device.clone())),
            Self::Neighbour { culprit, .. } => Some(Subject::Model(culprit.clone())),
            _ => None,
        }
    }
}

/// A model that misses its SLO, and why.
struct Missing<'a> {
    id: &'a ModelId,
    level: MissedLevel,
    cause: Cause,
}

/// Adds the findings from what is observed.
pub(crate) fn observed_findings(state: &State, all: &mut Vec<Finding>) {
    let missing = missing_models(state);
    let mut victims: BTreeMap<Subject, Vec<&Missing<'_>>> = BTreeMap::new();
    for model in &missing {
        if let Some(root) = model.cause.root() {
            victims.entry(root).or_default().push(model);
        }
    }
    for one in &missing {
        let own = Subject::Model(one.id.clone());
        let suffer = victims.get(&own).map_or(&[][..], Vec::as_slice);
        all.push(with_victims(missed_finding(state, one), suffer));
    }
    for (root, suffer) in &victims {
        if let Subject::Model(culprit) = root
            && !missing.iter().any(|one| one.id == culprit)
            && let Cause::Neighbour { load, .. } = &suffer[0].cause
        {
            all.push(with_victims(overload_finding(culprit, *load), suffer));
        }
    }
    for slow in &state.slow_devices {
        let subject = Subject::Device(slow.device.clone());
        let suffer = victims.get(&subject).map_or(&[][..], Vec::as_slice);
        // By profiles alone it may also be that these were measured on another device.
        if suffer.is_empty() && slow.models.iter().all(|model| model.siblings == 0) {
            continue;
        }
        let finding = slow_finding(slow, &state.service_levels.missing());
        all.push(with_victims(finding, suffer));
    }
    for finding in all.iter_mut() {
        if finding.problem == Problem::ProfileContradicted
            && let Subject::Model(id) = &finding.subject
            && let Some(slow) = slow_device_of(state, id)
        {
            finding.root = Some(Subject::Device(slow.device.clone()));
        }
    }
    for node in all.iter_mut().filter(|f| f.problem == Problem::NodeLost) {
        if let Some(suffer) = victims.get(&node.subject) {
            node.victims = suffer.iter().map(|one| one.id.clone()).collect();
            node.severity = node.severity.min(severity_of(suffer));
        }
    }
}

/// Returns the models that miss their SLO, each with its cause.
fn missing_models(state: &State) -> Vec<Missing<'_>> {
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
    if let Some(node) = lost_node(state, level) {
        return Cause::NodeLost(node);
    }
    if let Some((MissCause::Failed, part)) = misses.main_cause()
        && part > MOST
    {
        return Cause::Fails;
    }
    let excessive = level.load.is_excessive();
    let not_serving = || not_serving(state, id);
    if let Some(cause @ Cause::NotServing { serving: 0, .. }) = not_serving() {
        // No load is too much for a model without a replica: its clients try again.
        return cause;
    }
    if let Some(cause) = unanswered(state, id, level) {
        return cause;
    }
    // What was missed before has another cause, and a little slowness does not explain a large load.
    let slow = slow_device_of(state, id).filter(|slow| {
        let explains = !excessive || slow.factor > level.load.excess_factor();
        explains && level.part_since(slow.since) > MOST
    });
    if let Some(slow) = slow {
        let main = misses.main_device();
        let is_main = main.is_some_and(|(device, part)| *device == slow.device && part > MOST);
        if is_main || !excessive {
            return Cause::SlowDevice(slow.device.clone());
        }
    }
    if excessive {
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
fn slow_device_of<'a>(state: &'a State, id: &ModelId) -> Option<&'a SlowDevice> {
    let factor = |slow: &SlowDevice| {
        let mut models = slow.models.iter();
        models
            .find(|model| model.model == *id)
            .map_or(0.0, |model| model.factor)
    };
    let slow = state.slow_devices.iter().filter(|slow| factor(slow) > 0.0);
    slow.max_by(|a, b| factor(a).total_cmp(&factor(b)))
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

/// Returns the model on the same devices whose requests beyond the plan take most of their time.
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
            if other == id || !load.is_excessive() {
                continue;
            }
            let profile = state
                .kind(device)
                .and_then(|kind| state.profiles.get(other, kind));
            let seconds = profile.map_or(0.0, |profile| profile.latency(1).as_secs_f64());
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

/// Adds the models that suffer from a finding, which is as severe as theirs.
fn with_victims(mut finding: Finding, victims: &[&Missing<'_>]) -> Finding {
    if victims.is_empty() {
        return finding;
    }
    finding.severity = finding.severity.min(severity_of(victims));
    let missed: u64 = victims.iter().map(|victim| victim.level.missed).sum();
    let ids: Vec<&ModelId> = victims.iter().map(|victim| victim.id).collect();
    finding.victims = ids.iter().map(|id| (*id).clone()).collect();
    let text = format!(
        "{missed} requests of {} missed their SLO because of it in the last minute",
        names(&ids)
    );
    finding.shown_by(text, None)
}

/// Returns the severity of the worst of these models.
fn severity_of(missing: &[&Missing<'_>]) -> Severity {
    let severities = missing.iter().map(|one| severity(&one.level));
    severities.min().unwrap_or(Severity::Notice)
}

fn severity(level: &MissedLevel) -> Severity {
    let in_time = level.ended.saturating_sub(level.missed) as f64;
    if in_time < CRITICAL * level.ended as f64 {
        Severity::Critical
    } else {
        Severity::Warning
    }
}

/// Returns the finding of a model that misses its SLO.
fn missed_finding(state: &State, missing: &Missing<'_>) -> Finding {
    let (id, level) = (missing.id, &missing.level);
    let (missed, ended) = (level.missed.min(level.ended), level.ended);
    let text = format!(
        "{missed} of {ended} requests of model {id} missed their SLO in the last minute ({})",
        percent(missed as f64 / ended.max(1) as f64)
    );
    let root = missing.cause.root();
    // The root is the most severe of its group.
    let severity = if root.is_some() {
        Severity::Warning
    } else {
        severity(level)
    };
    let subject = Subject::Model(id.clone());
    let (cause, cure) = cause_texts(missing);
    let mut finding = Finding::new(severity, subject, Problem::SloMissed, text).because(cause);
    if let Some(cure) = cure {
        finding = finding.cured_by(cure);
    }
    finding.since = level.since;
    finding.root = root;
    finding.evidence = missed_evidence(state, id, level);
    finding.preview = match &missing.cause {
        Cause::Overload => rate_preview(id, level.load),
        Cause::Neighbour { culprit, load, .. } => rate_preview(culprit, *load),
        _ => None,
    };
    finding
}

/// Returns the cause and the cure as text.
fn cause_texts(missing: &Missing<'_>) -> (String, Option<String>) {
    const CAPACITY: &str =
        "add devices, or lower its load; packhorse plan --explain says what would suffice";
    let (id, load) = (missing.id, missing.level.load);
    let (cause, cure) = match &missing.cause {
        Cause::NodeLost(node) => (
            format!("node {node}, on which it ran, is lost"),
            format!("start the agent of node {node} again"),
        ),
        Cause::Fails => (
            "its batches fail".to_owned(),
            format!(
                "packhorse requests --outcome failed --model {} has the reason; roll back, or register a corrected version",
                id.name
            ),
        ),
        Cause::SlowDevice(device) => (
            format!("device {device}, on which it runs, is slow"),
            format!("as for device {device}"),
        ),
        Cause::Overload => (
            format!(
                "{} come, and {} were planned for",
                rate(load.offered_rps),
                rate(load.planned_rps)
            ),
            CAPACITY.to_owned(),
        ),
        Cause::NotServing {
            serving,
            planned,
            device,
            is_ejected: true,
        } => (
            format!("{serving} of its {planned} replicas serve; batches fail on {device}"),
            format!(
                "look at {device}: its worker is restarted, and gets batches once one succeeds"
            ),
        ),
        Cause::NotServing {
            serving,
            planned,
            device,
            is_ejected: false,
        } => (
            format!(
                "{serving} of its {planned} planned replicas serve; the one on {device} does not"
            ),
            format!(
                "none is needed if it starts; packhorse model show {} says what it waits for",
                id.name
            ),
        ),
        Cause::Unanswered { serving, device } => (
            format!(
                "none of its last requests was answered; {serving} of its replicas should, such as the one on {device}"
            ),
            format!(
                "a worker that answers no batch is started again; packhorse events and packhorse model show {} say more",
                id.name
            ),
        ),
        Cause::Neighbour {
            culprit,
            device,
            load,
        } => (
            format!(
                "model {culprit} on the same device {device}: {} come for it, and {} were planned for",
                rate(load.offered_rps),
                rate(load.planned_rps)
            ),
            format!("as for model {culprit}"),
        ),
        Cause::Short {
            rate: wanted,
            goodput,
        } => (
            format!("the plan serves {} of {}", rate(*goodput), rate(*wanted)),
            CAPACITY.to_owned(),
        ),
        Cause::Unknown => (stage_cause(missing), String::new()),
    };
    (cause, (!cure.is_empty()).then_some(cure))
}

/// Returns what is known of the cause where only the times of the requests are known.
fn stage_cause(missing: &Missing<'_>) -> String {
    match missing.level.misses.longest_stage() {
        Some((stage, part)) if part > MOST => format!(
            "not known; most of the time of these requests was {}",
            stage_text(stage)
        ),
        _ => "not known".to_owned(),
    }
}

/// Returns the numbers that show the missed requests of a model.
fn missed_evidence(state: &State, id: &ModelId, level: &MissedLevel) -> Vec<Evidence> {
    let mut evidence = Vec::new();
    let misses = &level.misses;
    let requests = || Some(EvidenceSource::MissedRequests(id.clone()));
    if let Some((cause, part)) = misses.main_cause() {
        evidence.push(Evidence {
            text: format!("{} of them {}", percent(part), ending_text(cause)),
            source: requests(),
        });
    }
    if let Some((stage, part)) = misses.longest_stage() {
        evidence.push(Evidence {
            text: format!("{} of their time was {}", percent(part), stage_text(stage)),
            source: requests(),
        });
    }
    if let Some((device, part)) = misses.main_device()
        && part > MOST
    {
        evidence.push(Evidence {
            text: format!("{} of those that ran did so on {device}", percent(part)),
            source: Some(EvidenceSource::Nodes),
        });
    }
    let planned = state.plan.forecasts.get(id);
    if planned.is_some() {
        let load = level.load;
        evidence.push(Evidence {
            text: format!(
                "meanwhile {} came, and {} were planned for",
                rate(load.offered_rps),
                rate(load.planned_rps)
            ),
            source: Some(EvidenceSource::Model(id.clone())),
        });
    }
    evidence
}

/// Returns the finding of a model whose load costs others, while its own requests are in time.
fn overload_finding(id: &ModelId, load: Load) -> Finding {
    let subject = Subject::Model(id.clone());
    let text = format!(
        "{} come for model {id}, and {} were planned for",
        rate(load.offered_rps),
        rate(load.planned_rps)
    );
    let mut finding = Finding::new(Severity::Warning, subject, Problem::Overloaded, text)
        .because("its clients send more than was measured or declared")
        .cured_by("add devices, or lower its load; the next plans are for the measured rate");
    finding.preview = rate_preview(id, load);
    finding
}

/// Returns the finding of a slow device.
fn slow_finding(slow: &SlowDevice, missing: &BTreeMap<&ModelId, MissedLevel>) -> Finding {
    let device = &slow.device;
    let siblings = slow.models.iter().map(|model| model.siblings).max();
    let siblings = siblings.unwrap_or_default();
    let than = if siblings == 0 {
        "their profiles say".to_owned()
    } else {
        format!("on other devices of kind {}", slow.kind)
    };
    let text = format!(
        "batches on device {device} of node {} take {} times as long as {than}",
        device.node(),
        factor(slow.factor)
    );
    let subject = Subject::Device(device.clone());
    let finding = Finding::new(Severity::Notice, subject, Problem::SlowDevice, text)
        .because("it may throttle, or other programs use it")
        .cured_by(format!(
            "look at its clocks and temperature and at other programs; packhorse node drain {} takes its node out",
            device.node()
        ));
    let named = slow.models.iter().take(MAX_NAMED);
    let mut finding = named.fold(finding, |finding, model| {
        let level = missing.get(&model.model);
        let missed = level.and_then(|level| level.misses.devices.get(device));
        let source = EvidenceSource::Model(model.model.clone());
        finding.shown_by(
            slowed_text(model, missed.copied().unwrap_or_default()),
            Some(source),
        )
    });
    let more = slow.models.len().saturating_sub(MAX_NAMED);
    if more > 0 {
        finding = finding.shown_by(format!("{more} more models are slowed"), None);
    }
    finding.preview = Some(CurePreview::WithoutDevice(slow.kind.clone()));
    finding
}

fn slowed_text(slowed: &SlowedModel, missed: u64) -> String {
    let SlowedModel { model, batches, .. } = slowed;
    let than = match slowed.siblings {
        0 => "as its profile says".to_owned(),
        1 => "as on another device".to_owned(),
        more => format!("as on {more} other devices"),
    };
    let missed = match missed {
        0 => String::new(),
        1 => "; 1 missed request ran there".to_owned(),
        many => format!("; {many} missed requests ran there"),
    };
    format!(
        "batches of model {model} take {} times as long {than}: {} on average of {batches}{missed}",
        factor(slowed.factor),
        milliseconds(slowed.batch_time),
    )
}

fn rate_preview(id: &ModelId, load: Load) -> Option<CurePreview> {
    let rate = RequestsPerSecond::new(load.offered_rps.round()).ok()?;
    Some(CurePreview::Rate(id.clone(), rate))
}

fn stage_text(stage: RequestStage) -> &'static str {
    match stage {
        RequestStage::Receive => "receiving",
        RequestStage::Load => "waiting for the model's weights on the device",
        RequestStage::Batch => "waiting for the rest of the batch",
        RequestStage::Queue => "in the queue",
        RequestStage::Network => "in the network",
        RequestStage::WorkerQueue => "in the worker's queue",
        RequestStage::CopyIn => "copying in",
        RequestStage::Compute => "computing",
        RequestStage::CopyOut => "copying out",
    }
}

fn ending_text(cause: MissCause) -> &'static str {
    match cause {
        MissCause::Late => "were answered late",
        MissCause::Refused => "were refused on arrival",
        MissCause::Expired => "expired in the queue",
        MissCause::Lost => "were lost with their workers",
        MissCause::Failed => "failed",
    }
}

/// Returns the names of models, a few of them.
fn names(ids: &[&ModelId]) -> String {
    let mut named: Vec<String> = ids
        .iter()
        .take(MAX_NAMED)
        .map(ToString::to_string)
        .collect();
    let more = ids.len() - named.len();
    if more > 0 {
        named.push(format!("{more} more"));
    }
    let word = if ids.len() == 1 { "model" } else { "models" };
    format!("{word} {}", named.join(", "))
}

/// Returns a part from 0 to 1 in percent. Only all is 100 %, and only nothing 0 %.
fn percent(part: f64) -> String {
    let percent = (part * 100.0).clamp(0.0, 100.0);
    if percent > 99.0 && percent < 100.0 {
        "more than 99 %".to_owned()
    } else if percent > 0.0 && percent < 1.0 {
        "less than 1 %".to_owned()
    } else {
        format!("{percent:.0} %")
    }
}

/// Returns a rate with three digits at most.
fn rate(rps: f64) -> String {
    let rps = if rps.is_finite() { rps.max(0.0) } else { 0.0 };
    if rps > 0.0 && rps < 0.05 {
        "less than 0.1 requests/s".to_owned()
    } else if rps < 9.95 {
        format!("{rps:.1} requests/s")
    } else {
        format!("{rps:.0} requests/s")
    }
}

/// Returns how many times as long something takes.
fn factor(factor: f64) -> String {
    let factor = if factor.is_finite() {
        factor.clamp(0.0, 1000.0)
    } else {
        0.0
    };
    format!("{factor:.1}")
}

fn milliseconds(time: Duration) -> String {
    let ms = time.as_secs_f64() * 1e3;
    if ms < 99.95 {
        format!("{ms:.1} ms")
    } else {
        format!("{ms:.0} ms")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_clamped_and_rounded() {
        for (part, text) in [
            (-0.5, "0 %"),
            (0.0, "0 %"),
            (0.0004, "less than 1 %"),
            (0.256_789, "26 %"),
            (0.9996, "more than 99 %"),
            (1.0, "100 %"),
            (1.7, "100 %"),
        ] {
            assert_eq!(percent(part), text);
        }
        for (rps, text) in [
            (f64::NAN, "0.0 requests/s"),
            (-1.0, "0.0 requests/s"),
            (0.01, "less than 0.1 requests/s"),
            (3.123_456, "3.1 requests/s"),
            (399.6, "400 requests/s"),
        ] {
            assert_eq!(rate(rps), text);
        }
        assert_eq!(factor(1.379), "1.4");
        assert_eq!(factor(f64::INFINITY), "0.0");
        assert_eq!(milliseconds(Duration::from_micros(15_260)), "15.3 ms");
    }
}
