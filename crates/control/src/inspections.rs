//! The inspections of programs: a model that waits for its measurement has its operators found meanwhile, and with them its estimate.
//!
//! An inspection needs no device. Each node makes one at a time. One that fails is not repeated: the measurement looks for the operators
//! again, and says what is wrong with the program.

use std::collections::{BTreeMap, BTreeSet};

use packhorse_cluster::{ModelId, NodeName};

/// The inspections that wait for a node, are assigned to one, or failed.
#[derive(Clone, Debug, Default)]
pub(crate) struct Inspections {
    /// The models that may need an inspection.
    waiting: BTreeSet<ModelId>,
    /// The nodes that can inspect, without an inspection.
    idle: BTreeSet<NodeName>,
    assigned: BTreeMap<NodeName, Assignment>,
    /// The models whose operators cannot be found, with the reason.
    failed: BTreeMap<ModelId, String>,
    /// The nodes whose assigned inspections have changed since they were taken.
    touched: BTreeSet<NodeName>,
}

/// The assignment of an inspection to a node.
#[derive(Clone, Debug)]
struct Assignment {
    model: ModelId,
    /// The first revision of the node's wanted state that contains the inspection; none before it is published.
    since: Option<u64>,
}

impl Inspections {
    /// Sets whether a node can inspect.
    pub(crate) fn set_node(&mut self, node: &NodeName, inspects: bool) {
        if !inspects {
            self.idle.remove(node);
            if let Some(assignment) = self.assigned.remove(node) {
                self.waiting.insert(assignment.model);
                self.touched.insert(node.clone());
            }
        } else if !self.assigned.contains_key(node) {
            self.idle.insert(node.clone());
        }
    }

    /// Assigns inspections to nodes, as far as there are nodes without one. `waiting` are the models whose measurements have begun to wait,
    /// and `needs` returns true for those that an inspection helps.
    pub(crate) fn assign(&mut self, waiting: BTreeSet<ModelId>, needs: impl Fn(&ModelId) -> bool) {
        self.waiting.extend(waiting);
        while !self.idle.is_empty()
            && let Some(model) = self.waiting.pop_first()
        {
            let mut assigned = self.assigned.values();
            if self.failed.contains_key(&model)
                || assigned.any(|other| other.model == model)
                || !needs(&model)
            {
                continue;
            }
            if let Some(node) = self.idle.pop_first() {
                self.touched.insert(node.clone());
                let since = None;
                self.assigned.insert(node, Assignment { model, since });
            }
        }
    }

    /// Returns the model that a node inspects.
    pub(crate) fn of_node(&self, node: &NodeName) -> Option<&ModelId> {
        Some(&self.assigned.get(node)?.model)
    }

    /// Notes that a revision of a node's wanted state with its assigned inspection was published.
    pub(crate) fn published(&mut self, node: &NodeName, revision: u64) {
        if let Some(assignment) = self.assigned.get_mut(node) {
            assignment.since.get_or_insert(revision);
        }
    }

    /// Returns the model whose inspection a node's report on a revision of its wanted state may have the result of.
    pub(crate) fn awaited(&self, node: &NodeName, revision: u64) -> Option<&ModelId> {
        let assignment = self.assigned.get(node)?;
        assignment.since.filter(|since| *since <= revision)?;
        Some(&assignment.model)
    }

    /// Ends the inspection of a model, because its operators are known.
    pub(crate) fn end(&mut self, model: &ModelId) {
        self.waiting.remove(model);
        let ended = self.assigned.extract_if(.., |_, a| a.model == *model);
        for (node, _) in ended {
            self.touched.insert(node.clone());
            self.idle.insert(node);
        }
    }

    /// Notes that the operators of a model's program cannot be found, with the reason.
    pub(crate) fn fail(&mut self, model: &ModelId, reason: String) {
        self.end(model);
        self.failed.insert(model.clone(), reason);
    }

    /// Returns the reason why the operators of a model's program could not be found.
    pub(crate) fn failure(&self, model: &ModelId) -> Option<&str> {
        self.failed.get(model).map(String::as_str)
    }

    /// Removes a model that was removed, or cannot be served.
    pub(crate) fn remove_model(&mut self, model: &ModelId) {
        self.end(model);
        self.failed.remove(model);
    }

    /// Returns the nodes whose assigned inspections have changed since the last call.
    pub(crate) fn take_touched(&mut self) -> BTreeSet<NodeName> {
        std::mem::take(&mut self.touched)
    }
}
