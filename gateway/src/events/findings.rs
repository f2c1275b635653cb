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

    /// Replaces the findings. Those with one root follow each other, the root first and the groups with the most severe findings first. Those that
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

    /// Replaces the incidents, the newest of which come first.
    pub fn set_incidents(&self, incidents: Vec<Incident>) {
        self.incidents.send_replace(incidents.into());
    }

    /// Returns the incidents, the newest first.
    pub fn incidents(&self) -> Arc<[Incident]> {
        self.incidents.borrow().clone()
    }

    /// Returns the findings, the most severe groups first.
    pub fn get(&self) -> Arc<[Finding]> {
        self.current.borrow().clone()
    }
}

/// Sorts findings by root: the groups with the most severe findings first, in each the root first.
fn sort(findings: &mut [Finding]) {
    let root = |finding: &Finding| finding.root.clone().or_else(|| finding.subject.clone());
    let mut worst: BTreeMap<Option<Subject>, Severity> = BTreeMap::new();
    for finding in findings.iter() {
        let severity = worst.entry(root(finding)).or_insert(finding.severity);
        *severity = finding.severity.max(*severity);
    }
    findings.sort_by_cached_key(|finding| {
        let root = root(finding);
        let worst = worst.get(&root).copied();
        (
            Reverse(worst),
            root,
            finding.root.is_some(),
            Reverse(finding.severity),
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
