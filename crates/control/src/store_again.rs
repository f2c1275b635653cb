//! The records that follow the state. What could not be stored is written again with the next sample.

use std::collections::BTreeMap;

use packhorse_cluster::{ModelId, NodeName, Time};

use crate::{
    controller::Controller,
    effect::Write,
    pending::{Behind, Pending},
    unstored::Unstored,
};

impl Controller {
    /// Stores the record of a node. Until it is stored, the node leases again after a restart as if it were new.
    pub(crate) fn store_node(&mut self, name: &NodeName) {
        if let Some(node) = self.state.nodes.get(name) {
            let write = Write::UpsertNode(Box::new(node.record.clone()));
            self.store(write, Pending::Behind(Behind::Node(name.clone())));
        }
    }

    /// Stores the reason why a model failed. Until it is stored, the model fails again after a restart.
    pub(crate) fn store_failure(&mut self, id: &ModelId) {
        let model = self.state.models.get(id);
        if let Some(failure) = model.and_then(|model| model.failure.clone()) {
            let write = Write::FailModel(id.clone(), failure);
            self.store(write, Pending::Behind(Behind::Failure(id.clone())));
        }
    }

    /// Stores the operators of a model's program. Until they are stored, its profiles are not estimated after a restart.
    pub(crate) fn store_operators(&mut self, id: &ModelId) {
        let model = self.state.models.get(id);
        if let Some(operators) = model.and_then(|model| model.operators.clone()) {
            let write = Write::SetOperators(id.clone(), operators);
            self.store(write, Pending::Behind(Behind::Operators(id.clone())));
        }
    }

    /// Stores what models are measured to need, where that has changed. Until it is stored, plans after a restart are made for what it was before, as long as no
    /// requests come.
    pub(crate) fn store_needs(&mut self) {
        if let Some(needs) = self.rates.unstored_needs() {
            self.rates.needs_stored(needs.clone());
            self.store(Write::SetNeeds(needs), Pending::Behind(Behind::Needs));
        }
    }

    /// Stores again what could not be stored.
    pub(crate) fn store_again(&mut self, now: Time) {
        let Unstored {
            nodes,
            failures,
            operators,
            splits,
            measurements,
            needs,
        } = std::mem::take(&mut self.unstored);
        if needs {
            self.rates.needs_stored(BTreeMap::new());
        }
        for name in nodes {
            self.store_node(&name);
        }
        for model in failures {
            self.store_failure(&model);
        }
        for model in operators {
            self.store_operators(&model);
        }
        for name in splits {
            if self.state.models.versions(&name).next().is_none() {
                continue;
            }
            let record = Box::new(self.state.traffic.record(&name));
            let behind = Pending::Behind(Behind::Split(name));
            self.store(Write::UpsertSplit(record), behind);
        }
        for name in measurements {
            let node = self.state.nodes.get(&name);
            if let Some(report) = node.and_then(|node| node.report.as_ref()) {
                let applied = (report.epoch, report.revision);
                self.collect_measurements(now, &name, applied);
                self.collect_inspection(now, &name, applied);
            }
        }
    }
}
