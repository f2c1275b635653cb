//! Writes that failed, and are made again later.

use std::collections::BTreeSet;

use packhorse_cluster::{ModelId, ModelName, NodeName};

use crate::pending::Behind;

/// The writes that failed.
#[derive(Clone, Debug, Default)]
pub(crate) struct Unstored {
    /// The nodes whose records could not be stored.
    pub(crate) nodes: BTreeSet<NodeName>,
    /// The models whose failures could not be stored.
    pub(crate) failures: BTreeSet<ModelId>,
    /// The models whose operators could not be stored.
    pub(crate) operators: BTreeSet<ModelId>,
    /// The models whose splits could not be stored.
    pub(crate) splits: BTreeSet<ModelName>,
    /// The nodes with a finished measurement that could not be stored.
    pub(crate) measurements: BTreeSet<NodeName>,
    /// True if the measured needs could not be stored.
    pub(crate) needs: bool,
}

impl Unstored {
    /// Notes that a record could not be stored.
    pub(crate) fn record(&mut self, behind: Behind) {
        match behind {
            Behind::Node(name) => self.nodes.insert(name),
            Behind::Failure(model) => self.failures.insert(model),
            Behind::Operators(model) => self.operators.insert(model),
            Behind::Split(name) => self.splits.insert(name),
            Behind::Needs => std::mem::replace(&mut self.needs, true),
            Behind::Measurement => false,
        };
    }

    /// Notes that a measurement of a node could not be stored.
    pub(crate) fn measurement(&mut self, node: NodeName) {
        self.measurements.insert(node);
    }
}
