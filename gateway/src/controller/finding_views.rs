//! Findings in the form of the API.

use packhorse_api::events;
use packhorse_control::{Finding, Severity, Subject};

/// Returns the findings in the form of the API.
pub(super) fn finding_views(findings: &[Finding]) -> Vec<events::Finding> {
    findings.iter().map(finding_view).collect()
}

fn finding_view(finding: &Finding) -> events::Finding {
    events::Finding {
        severity: match finding.severity {
            Severity::Critical => events::Severity::Critical,
            Severity::Warning => events::Severity::Warning,
            Severity::Notice => events::Severity::Info,
        },
        subject: match &finding.subject {
            Subject::Model(id) => Some(events::Subject::Model(id.clone())),
            Subject::Node(name) => Some(events::Subject::Node(name.clone())),
            Subject::Device(id) => Some(events::Subject::Device(id.clone())),
            Subject::Cluster => None,
        },
        text: finding.text.clone(),
        cause: finding.cause.clone().unwrap_or_default(),
        cure: finding.cure.clone().map(|text| events::Cure {
            text,
            preview: None,
        }),
    }
}
