//! Findings in the form of the API.

use std::cmp::Reverse;

use packhorse_api::{PlanPreviewRequest, PreviewModel, events};
use packhorse_cluster::Time;
use packhorse_control::{CurePreview, EvidenceSource, Finding, Incident, Severity, Subject};

use super::cure_previews::{preview_of_devices, preview_of_model, unchanged_model};
use crate::clock::Clock;

/// The largest number of models that an incident lists with their requests.
const MAX_MODELS: usize = 32;

/// Returns the findings in the form of the API, with verified cures where `verified` returns some.
pub(super) fn finding_views(
    findings: &[Finding],
    clock: Clock,
    verified: impl Fn(&Finding) -> Option<events::Cure>,
) -> Vec<events::Finding> {
    let findings = findings.iter();
    findings
        .map(|finding| finding_view(finding, clock, verified(finding)))
        .collect()
}

fn finding_view(
    finding: &Finding,
    clock: Clock,
    verified: Option<events::Cure>,
) -> events::Finding {
    let told = finding.cure.clone().map(|text| events::Cure {
        text,
        preview: finding.preview.as_ref().map(preview_view),
    });
    events::Finding {
        severity: severity_view(finding.severity),
        subject: subject_view(&finding.subject),
        problem: finding.problem.name().to_owned(),
        model: finding.model.clone(),
        since_ms: (finding.since < Time::MAX).then(|| clock.unix_ms(finding.since)),
        missed_requests: finding.missed,
        text: finding.text.clone(),
        cause: finding.cause.clone().unwrap_or_default(),
        evidence: finding
            .evidence
            .iter()
            .map(|evidence| events::Evidence {
                text: evidence.text.clone(),
                route: evidence.source.as_ref().map(route),
            })
            .collect(),
        root: finding.root.as_ref().and_then(subject_view),
        victims: finding.victims.clone(),
        cure: verified.or(told),
    }
}

/// Returns the incidents in the form of the API, with verified cures of what is not over.
pub(super) fn incident_views<'a>(
    incidents: impl Iterator<Item = &'a Incident>,
    clock: Clock,
    verified: impl Fn(&Finding) -> Option<events::Cure>,
) -> Vec<events::Incident> {
    let unix_ms = |time| clock.unix_ms(time);
    let view = |incident: &Incident| events::Incident {
        id: incident.id,
        root: subject_view(&incident.root),
        severity: severity_view(incident.severity),
        since_ms: unix_ms(incident.since),
        end_ms: incident.end.map(unix_ms),
        missed_requests: incident.missed_requests(),
        missed_by_model: missed_by_model(incident),
        findings: incident
            .findings
            .iter()
            .map(|one| events::IncidentFinding {
                finding: finding_view(
                    &one.finding,
                    clock,
                    one.end.is_none().then(|| verified(&one.finding)).flatten(),
                ),
                end_ms: one.end.map(unix_ms),
            })
            .collect(),
    };
    incidents.map(view).collect()
}

/// Returns the models that missed requests in an incident, the one with the most first.
fn missed_by_model(incident: &Incident) -> Vec<events::MissedByModel> {
    let missed = incident.missed.iter().filter(|(_, one)| one.requests > 0);
    let missed = missed.map(|(model, one)| events::MissedByModel {
        model: model.clone(),
        requests: one.requests,
    });
    let mut missed: Vec<events::MissedByModel> = missed.collect();
    missed.sort_by_key(|one| Reverse(one.requests));
    missed.truncate(MAX_MODELS);
    missed
}

/// Returns the severity in the form of the API.
fn severity_view(severity: Severity) -> events::Severity {
    match severity {
        Severity::Critical => events::Severity::Critical,
        Severity::Warning => events::Severity::Warning,
        Severity::Notice => events::Severity::Info,
    }
}

/// Returns the subject in the form of the API; `None` for the cluster.
fn subject_view(subject: &Subject) -> Option<events::Subject> {
    match subject {
        Subject::Model(id) => Some(events::Subject::Model(id.clone())),
        Subject::Node(name) => Some(events::Subject::Node(name.clone())),
        Subject::Device(id) => Some(events::Subject::Device(id.clone())),
        Subject::Cluster => None,
    }
}

/// Returns the route that has more of some evidence.
fn route(source: &EvidenceSource) -> String {
    match source {
        EvidenceSource::MissedRequests(id) => format!(
            "/v1/requests?outcome=missed&model={}&version={}",
            id.name, id.version
        ),
        EvidenceSource::Model(id) => format!("/v1/models/{}?version={}", id.name, id.version),
        EvidenceSource::Nodes => "/v1/nodes".to_owned(),
    }
}

fn preview_view(preview: &CurePreview) -> PlanPreviewRequest {
    match preview {
        CurePreview::Rate(id, rate) => preview_of_model(PreviewModel {
            rate_rps: Some(*rate),
            ..unchanged_model(id)
        }),
        CurePreview::WithoutDevice(kind) => preview_of_devices(kind, -1),
    }
}
