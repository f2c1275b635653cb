//! The present findings of the cluster.

use std::sync::Arc;

use packhorse_api::events::{EventState, Finding};
use tokio::sync::watch;

use super::{log::EventLog, new_event::NewEvent};

/// A handle to the findings. Clones share them.
#[derive(Clone, Debug)]
pub struct Findings {
    events: EventLog,
    current: Arc<watch::Sender<Arc<[Finding]>>>,
}

impl Findings {
    /// Creates an empty list, whose changes become events.
    pub fn new(events: EventLog) -> Self {
        Self {
            events,
            current: Arc::new(watch::Sender::new(Arc::from([]))),
        }
    }

    /// Replaces the findings. The most severe come first; those that are new, and those that are over, become events. Findings with the
    /// same subject and cause are the same.
    pub fn set(&self, mut findings: Vec<Finding>) {
        findings.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
        let findings: Arc<[Finding]> = findings.into();
        let before = self.current.send_replace(Arc::clone(&findings));
        for finding in missing(&findings, &before) {
            let event = NewEvent::finding(finding.clone(), EventState::Raised);
            self.events.append(event);
        }
        for finding in missing(&before, &findings) {
            let event = NewEvent::finding(finding.clone(), EventState::Cleared);
            self.events.append(event);
        }
    }

    /// Returns the findings, the most severe first.
    pub fn get(&self) -> Arc<[Finding]> {
        self.current.borrow().clone()
    }
}

/// Returns the findings that are not among others.
fn missing<'a>(
    findings: &'a [Finding],
    others: &'a [Finding],
) -> impl Iterator<Item = &'a Finding> {
    let key = |finding: &'a Finding| (&finding.subject, &finding.cause);
    let known: std::collections::BTreeSet<_> = others.iter().map(key).collect();
    findings
        .iter()
        .filter(move |finding| !known.contains(&key(finding)))
}
