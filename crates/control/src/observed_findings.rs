//! The findings from what is observed: models whose requests miss their SLO, devices that are slow, and models whose load costs others.
//!
//! Each model that misses its SLO has one cause, as far as it is known. Where that is another subject, the finding of that subject is the root
//! and lists the model as its victim.

use std::{cmp::Reverse, collections::BTreeMap};

use packhorse_cluster::{DeviceId, ModelId, RequestsPerSecond};

use crate::{
    device_speeds::{SlowDevice, SlowedModel},
    finding::{CurePreview, Evidence, EvidenceSource, Finding, Problem, Severity, Subject},
    finding_words::{
        MAX_NAMED, ending_text, factor, load_text, milliseconds, names, percent, rate, stage_text,
    },
    missed_causes::{Cause, MOST, Missing, missing_models, slow_device_of},
    nodes::Node,
    service_levels::{Load, MissedLevel},
    state::State,
    worker_ends::WorkerEnd,
};

/// The part of the requests in time below which requests fail for everybody who looks.
const CRITICAL: f64 = 0.9;

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
    for (device, end) in state.worker_ends.iter() {
        let is_lost = |node: &Node| node.is_lost();
        if end.missed.is_empty() || state.nodes.get(device.node()).is_none_or(is_lost) {
            continue;
        }
        let subject = Subject::Device(device.clone());
        let suffer = victims.get(&subject).map_or(&[][..], Vec::as_slice);
        all.push(ended_finding(device, end, suffer));
    }
    for slow in &state.slow_devices {
        let subject = Subject::Device(slow.device.clone());
        let suffer = victims.get(&subject).map_or(&[][..], Vec::as_slice);
        // By profiles alone it may also be that these were measured on another device.
        if suffer.is_empty() && slow.models.iter().all(|model| model.siblings == 0) {
            continue;
        }
        let finding = slow_finding(slow, &missing);
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
            node.missed_part = largest_part(suffer);
            node.missed = suffer.iter().map(|victim| victim.level.missed).sum();
        }
    }
}

/// Adds the models that suffer from a finding, which is as severe as theirs.
fn with_victims(mut finding: Finding, victims: &[&Missing<'_>]) -> Finding {
    if victims.is_empty() {
        return finding;
    }
    finding.severity = finding.severity.min(severity_of(victims));
    finding.missed_part = finding.missed_part.max(largest_part(victims));
    let missed: u64 = victims.iter().map(|victim| victim.level.missed).sum();
    finding.missed = finding.missed.max(missed);
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

/// Returns the largest part of its requests that one of these models missed.
fn largest_part(missing: &[&Missing<'_>]) -> f64 {
    let parts = missing.iter().map(|one| one.level.missed_part());
    parts.fold(0.0, f64::max)
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
    let part = level.missed_part();
    let text = format!(
        "{missed} of {ended} requests of model {id} missed their SLO in the last minute ({})",
        percent(part)
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
    (finding.missed_part, finding.missed) = (part, missed);
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
        Cause::NoNode(node) => (
            match node {
                Some(node) => format!("no node is there; node {node} was lost last"),
                None => "no node is there".to_owned(),
            },
            "start an agent".to_owned(),
        ),
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
        Cause::WorkerEnded(device) => (
            format!("the process on device {device} that ran it ended"),
            format!("as for device {device}"),
        ),
        Cause::SlowDevice(device) => (
            format!("device {device}, on which it runs, is slow"),
            format!("as for device {device}"),
        ),
        Cause::Overload => (load_text(load, "come", ""), CAPACITY.to_owned()),
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
                "model {culprit} on the same device {device}: {}",
                load_text(*load, "come", " for it")
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
            "not known; most of the time of these requests passed {}",
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
            text: format!(
                "{} of their time passed {}",
                percent(part),
                stage_text(stage)
            ),
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
            text: format!("meanwhile {}", load_text(load, "came", "")),
            source: Some(EvidenceSource::Model(id.clone())),
        });
    }
    evidence
}

/// Returns the finding of a model whose load costs others, while its own requests are in time.
fn overload_finding(id: &ModelId, load: Load) -> Finding {
    let subject = Subject::Model(id.clone());
    let text = load_text(load, "come", &format!(" for model {id}"));
    let mut finding = Finding::new(Severity::Warning, subject, Problem::Overloaded, text)
        .because("its clients send more than was measured or declared")
        .cured_by("add devices, or lower its load; the next plans are for the measured rate");
    finding.preview = rate_preview(id, load);
    finding
}

/// Returns the finding of a process that ended. Its models are victims even if they miss too few requests for findings of their own.
fn ended_finding(device: &DeviceId, end: &WorkerEnd, suffer: &[&Missing<'_>]) -> Finding {
    let missed = end.missed_requests();
    let requests = match missed {
        1 => "1 request missed its SLO".to_owned(),
        many => format!("{many} requests missed their SLO"),
    };
    let models: Vec<&ModelId> = end.models.iter().collect();
    let ended = if end.hung_since.is_some() {
        "answered nothing and ended"
    } else {
        "ended"
    };
    let text = format!(
        "a process on device {device} with {} {ended}, and {requests}",
        names(&models)
    );
    let subject = Subject::Device(device.clone());
    let mut finding = Finding::new(Severity::Warning, subject, Problem::WorkerEnded, text)
        .because(if end.hung_since.is_some() {
            "it was stopped, or a batch hung in it"
        } else {
            "it crashed, or was killed, or its connection broke"
        })
        .cured_by(format!(
            "none is needed once it serves; worker.log.old of its replica on node {} says more, and packhorse requests --outcome lost",
            device.node()
        ));
    finding.severity = finding.severity.min(severity_of(suffer));
    finding.missed_part = largest_part(suffer);
    (finding.missed, finding.since) = (missed, end.begin());
    let mut victims: Vec<(&ModelId, u64)> = end.missed.iter().map(|(id, n)| (id, *n)).collect();
    victims.sort_by_key(|(_, missed)| Reverse(*missed));
    finding.victims = victims.iter().map(|(id, _)| (*id).clone()).collect();
    finding = finding.shown_by(
        match end.served_again {
            Some(again) => format!(
                "all of its models were seen to serve again {:.0} s later",
                again.saturating_since(end.at).as_secs_f64()
            ),
            None => "not all of its models serve again".to_owned(),
        },
        Some(EvidenceSource::Nodes),
    );
    victims
        .into_iter()
        .take(MAX_NAMED)
        .fold(finding, |finding, (id, missed)| {
            let source = EvidenceSource::MissedRequests(id.clone());
            finding.shown_by(format!("model {id} missed {missed}"), Some(source))
        })
}

/// Returns the finding of a slow device.
fn slow_finding(slow: &SlowDevice, missing: &[Missing<'_>]) -> Finding {
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
        let missing = missing.iter().find(|one| *one.id == model.model);
        let missed = missing.and_then(|one| one.level.misses.devices.get(device));
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
