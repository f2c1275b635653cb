//! The states of models, nodes and replicas as they were last told, so that only changes are told.

use std::collections::{BTreeMap, BTreeSet};

use packhorse_cluster::{DeviceId, ModelId, ModelState, NodeName, NodeState, ReplicaId};

use crate::{
    finding::Finding,
    notice::{DeviceNotice, FindingNotice, Notice, ReplicaNotice},
    status::ModelStatus,
};

/// The states as they were last told, and the subjects that may have changed since.
#[derive(Clone, Debug, Default)]
pub(crate) struct Announcements {
    models: BTreeMap<ModelId, (ModelState, Option<String>)>,
    nodes: BTreeMap<NodeName, NodeState>,
    replicas: BTreeMap<ReplicaId, (ModelId, ReplicaNotice)>,
    findings: Vec<Finding>,
    /// True once the plan was told to be completed.
    pub(crate) completed: bool,
    touched_models: BTreeSet<ModelId>,
    /// The touched models whose specification changed, which is told even if their state is the same.
    changed_models: BTreeSet<ModelId>,
    touched_nodes: BTreeSet<NodeName>,
    touched_replicas: BTreeSet<ReplicaId>,
    notices: Vec<Notice>,
}

impl Announcements {
    pub(crate) fn model(&mut self, id: &ModelId) {
        self.touched_models.insert(id.clone());
    }

    pub(crate) fn changed_model(&mut self, id: &ModelId) {
        self.touched_models.insert(id.clone());
        self.changed_models.insert(id.clone());
    }

    pub(crate) fn all_models<'a>(&mut self, ids: impl Iterator<Item = &'a ModelId>) {
        self.touched_models.extend(ids.cloned());
    }

    /// Notes that a condition of all models that are not served has changed.
    pub(crate) fn all_unserved(&mut self) {
        let unserved = self.models.iter();
        let unserved = unserved.filter(|(_, (state, _))| {
            !matches!(
                state,
                ModelState::Ready | ModelState::Failed | ModelState::Profiling
            )
        });
        self.touched_models
            .extend(unserved.map(|(id, _)| id.clone()));
    }

    pub(crate) fn node(&mut self, name: &NodeName) {
        self.touched_nodes.insert(name.clone());
    }

    pub(crate) fn replica(&mut self, id: ReplicaId) {
        self.touched_replicas.insert(id);
    }

    pub(crate) fn remove_model(&mut self, id: &ModelId) {
        self.models.remove(id);
        self.touched_models.remove(id);
        self.changed_models.remove(id);
    }

    pub(crate) fn remove_node(&mut self, name: &NodeName) {
        self.nodes.remove(name);
        self.touched_nodes.remove(name);
    }

    /// Notes that a model may be planned on a device again.
    pub(crate) fn device_ready(&mut self, device: &DeviceId, model: &ModelId) {
        let text = format!("model {model} is tried again");
        self.notices
            .push(Notice::Device(device.clone(), DeviceNotice::Ready, text));
    }

    pub(crate) fn plan_adopted(&mut self) {
        self.completed = false;
    }

    pub(crate) fn take_models(&mut self) -> BTreeSet<ModelId> {
        std::mem::take(&mut self.touched_models)
    }

    pub(crate) fn take_nodes(&mut self) -> BTreeSet<NodeName> {
        std::mem::take(&mut self.touched_nodes)
    }

    pub(crate) fn take_replicas(&mut self) -> BTreeSet<ReplicaId> {
        std::mem::take(&mut self.touched_replicas)
    }

    pub(crate) fn take_notices(&mut self) -> Vec<Notice> {
        std::mem::take(&mut self.notices)
    }

    /// Tells the state of a model, if it differs from what was last told. The progress of a measurement alone is not told.
    pub(crate) fn tell_model(&mut self, id: &ModelId, status: ModelStatus) {
        let changed = self.changed_models.remove(id);
        let now = (status.state, status.reason);
        let news = match self.models.get(id) {
            Some(before) if before.0 == now.0 && now.0 == ModelState::Profiling => false,
            before => before != Some(&now),
        };
        if !news && !changed {
            return;
        }
        self.models.insert(id.clone(), now.clone());
        self.notices
            .push(Notice::Model(id.clone(), Some(now.0), now.1));
    }

    /// Tells the state of a node, if it differs from what was last told.
    pub(crate) fn tell_node(&mut self, name: &NodeName, state: NodeState, devices: usize) {
        let before = self.nodes.insert(name.clone(), state);
        if before == Some(state) {
            return;
        }
        let text = match state {
            NodeState::Ready if devices == 1 => "takes replicas on 1 device".to_owned(),
            NodeState::Ready => format!("takes replicas on {devices} devices"),
            NodeState::Cordoned => "keeps its replicas and gets no new ones".to_owned(),
            NodeState::Draining => "its replicas move to other nodes".to_owned(),
            NodeState::Lost => "its agent does not renew its lease".to_owned(),
        };
        self.notices
            .push(Notice::Node(name.clone(), Some(state), text));
    }

    /// Tells the state of a replica, if it differs from what was last told; none if it is no longer wanted.
    pub(crate) fn tell_replica(
        &mut self,
        id: ReplicaId,
        now: Option<(&ModelId, ReplicaNotice, Option<String>)>,
    ) {
        match now {
            Some((model, notice, reason)) => {
                let before = self.replicas.insert(id, (model.clone(), notice));
                if before.is_none_or(|(_, before)| before != notice) {
                    self.notices
                        .push(Notice::Replica(id, model.clone(), notice, reason));
                }
            }
            None => {
                if let Some((model, _)) = self.replicas.remove(&id) {
                    let stopped = ReplicaNotice::Stopped;
                    self.notices.push(Notice::Replica(id, model, stopped, None));
                }
            }
        }
    }

    /// Replaces the findings. Returns those that appeared or are over.
    pub(crate) fn findings(&mut self, now: Vec<Finding>) -> Vec<(FindingNotice, Finding)> {
        let is_in =
            |finding: &Finding, all: &[Finding]| all.iter().any(|f| f.key() == finding.key());
        let before = std::mem::replace(&mut self.findings, now);
        let raised = self
            .findings
            .iter()
            .filter(|finding| !is_in(finding, &before));
        let cleared = before
            .iter()
            .filter(|finding| !is_in(finding, &self.findings));
        let raised = raised.map(|finding| (FindingNotice::Raised, finding.clone()));
        let cleared = cleared.map(|finding| (FindingNotice::Cleared, finding.clone()));
        raised.chain(cleared).collect()
    }

    /// Returns the findings of the last sample.
    pub(crate) fn present_findings(&self) -> &[Finding] {
        &self.findings
    }
}
