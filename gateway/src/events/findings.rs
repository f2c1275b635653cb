//! The present findings of the cluster, and the incidents that they belong to.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use packhorse_api::events::{EventState, Finding, Incident, Severity, Subject};
use tokio::sync::watch;

use super::{log::EventLog, new_event::NewEvent};

/// A handle to the findings. Clones share them.
#[derive(Clone, Debug)]
pub struct Findings {
    events: EventLog,
    current: Arc<watch::Sender<Arc<[Finding]>>>,
    incidents: Arc<watch::Sender<Arc<[Incident]>>>,
}

impl Findings {
    /// Creates an empty list, whose changes become events.
    pub fn new(events: EventLog) -> Self {
        Self {
            events,
            current: Arc::new(watch::Sender::new(Arc::from([]))),
            incidents: Arc::new(watch::Sender::new(Arc::from([]))),
        }
    }

    /// Replaces the findings. Those with one root follow each other, the root first and the groups that cost the most requests first. Those that
    /// are new or of another severity, and those that are over, become events.
    pub fn set(&self, mut findings: Vec<Finding>) {
        sort(&mut findings);
        let findings: Arc<[Finding]> = findings.into();
        let before = self.current.send_replace(Arc::clone(&findings));
        for finding in missing(&findings, &before, |finding| finding.severity) {
            let event = NewEvent::finding(finding.clone(), EventState::Raised);
            self.events.append(event);
        }
        for finding in missing(&before, &findings, |_| ()) {
            let event = NewEvent::finding(finding.clone(), EventState::Cleared);
            self.events.append(event);
        }
    }

    /// Replaces the incidents, which keep their order.
    pub fn set_incidents(&self, incidents: Vec<Incident>) {
        self.incidents.send_replace(incidents.into());
    }

    /// Returns the incidents: those that are not over first, then those that cost the most requests, then the newest.
    pub fn incidents(&self) -> Arc<[Incident]> {
        self.incidents.borrow().clone()
    }

    /// Returns the findings, the groups that cost the most requests first.
    pub fn get(&self) -> Arc<[Finding]> {
        self.current.borrow().clone()
    }
}

/// Sorts findings by root: the groups that cost the most requests first, of equal ones those with the most severe findings, in each the root first.
fn sort(findings: &mut [Finding]) {
    let root = |finding: &Finding| finding.root.clone().or_else(|| finding.subject.clone());
    let mut worst: BTreeMap<Option<Subject>, (u64, Severity)> = BTreeMap::new();
    for finding in findings.iter() {
        let (missed, severity) = (finding.missed_requests, finding.severity);
        let group = worst.entry(root(finding)).or_insert((missed, severity));
        *group = (group.0.max(missed), group.1.max(severity));
    }
    findings.sort_by_cached_key(|finding| {
        let root = root(finding);
        let worst = worst.get(&root).copied();
        (
            Reverse(worst),
            root,
            finding.root.is_some(),
            Reverse((finding.missed_requests, finding.severity)),
        )
    });
}

/// Returns the findings that are not among others, or there with another `aspect`.
fn missing<'a, T: Ord>(
    findings: &'a [Finding],
    others: &'a [Finding],
    aspect: impl Fn(&'a Finding) -> T,
) -> Vec<&'a Finding> {
    let key = |finding: &'a Finding| {
        (
            &finding.problem,
            &finding.subject,
            &finding.model,
            aspect(finding),
        )
    };
    let known: BTreeSet<_> = others.iter().map(key).collect();
    findings
        .iter()
        .filter(|finding| !known.contains(&key(finding)))
        .collect()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn finding(subject: &Value, root: &Value, missed: u64, severity: &str) -> Finding {
        let finding = json!({
            "severity": severity, "subject": subject, "root": root, "missed_requests": missed,
            "text": "", "cause": "", "cure": null,
        });
        serde_json::from_value(finding).expect("it is one")
    }

    #[test]
    fn causes_stand_above_their_symptoms_and_what_costs_most_first_whatever_its_name() {
        let (a, b, z) = (
            json!({"model": "a:1"}),
            json!({"model": "b:1"}),
            json!({"model": "z:1"}),
        );
        let device = json!({"device": "n/0"});
        let none = Value::Null;
        let mut findings = vec![
            finding(&a, &none, 0, "info"),
            finding(&b, &none, 0, "critical"),
            finding(&z, &none, 8, "warning"),
            finding(&b, &device, 5, "warning"),
            finding(&a, &device, 20, "warning"),
            finding(&device, &none, 25, "critical"),
        ];
        sort(&mut findings);
        let subjects = findings.iter().map(|one| json!(one.subject));
        let expected = [&device, &a, &b, &z, &b, &a];
        assert_eq!(json!(subjects.collect::<Vec<_>>()), json!(expected));
    }
}
