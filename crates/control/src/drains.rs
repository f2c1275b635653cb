//! The time that draining nodes were given. Until then, replicas stay there whose models have no place elsewhere.

use std::collections::{BTreeMap, BTreeSet};

use packhorse_cluster::{NodeName, Time};

/// The ends of the drains that have one.
#[derive(Clone, Debug, Default)]
pub(crate) struct Drains {
    deadlines: BTreeMap<NodeName, Time>,
    overdue: BTreeSet<NodeName>,
}

impl Drains {
    /// Begins the drain of a node; without a deadline it waits as long as it must.
    pub(crate) fn begin(&mut self, node: &NodeName, deadline: Option<Time>) {
        self.end(node);
        if let Some(deadline) = deadline {
            self.deadlines.insert(node.clone(), deadline);
        }
    }

    /// Ends the drain of a node that is scheduled otherwise, or removed.
    pub(crate) fn end(&mut self, node: &NodeName) {
        self.deadlines.remove(node);
        self.overdue.remove(node);
    }

    /// Returns the nodes whose drain is over: nothing is retained there any more.
    pub(crate) fn overdue(&self) -> &BTreeSet<NodeName> {
        &self.overdue
    }

    /// Returns the next deadline.
    pub(crate) fn next_end(&self) -> Option<Time> {
        self.deadlines.values().min().copied()
    }

    /// Ends the time of the nodes whose deadline has passed. Returns them.
    pub(crate) fn end_due(&mut self, now: Time) -> Vec<NodeName> {
        let ended = self
            .deadlines
            .extract_if(.., |_, deadline| *deadline <= now);
        let ended: Vec<NodeName> = ended.map(|(node, _)| node).collect();
        self.overdue.extend(ended.iter().cloned());
        ended
    }
}
