//! The rollout of a plan: from the plan to the wanted replicas of every node and the replicas that the data plane serves, with new
//! replicas made before old ones are broken.
//!
//! A replica of an earlier plan continues to serve until all replicas of its model in the newest plan serve. Then the data plane
//! drains it, and only when it is drained it is no longer wanted. New replicas start beside it if the device's memory holds both.
//! Otherwise they wait until the earlier replicas have gone. Only if replicas would wait for each other forever, an earlier
//! replica is broken before its successor is made: the one whose model loses least.
//!
//! The replicas of a version whose requests move to another one stay until they have moved.
//!
//! Replicas that the new plan keeps are not touched. A new replica that fails takes no earlier one down. If the nodes cannot
//! execute a plan any more, because a node is lost or a program fails, the planner makes a plan without them, as it does for
//! cordoned and draining nodes.
//!
//! The wanted replicas of a device never exceed its memory if each plan alone does not. A replica that an agent
//! is still stopping counts as gone here, because agents start nothing on a device until its unwanted processes have ended.
//!
//! A step costs time in proportion to the touched replicas and those that depend on them: replicas depend on each other if they
//! share a model, or a device, on which there is a replica of an earlier plan. Without such a replica nothing waits for anything.

mod deadlock;
mod identity;
mod observed;
mod step;

use std::{
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
};

use packhorse_cluster::{
    ByteCount, DeviceId, ModelId, ModelName, ModelVersion, NodeName, Program, ReplicaId,
    ReplicaPhase, ReplicaStatus, WantedReplica,
};

pub(crate) use identity::assign_ids;
use observed::{EarlierReplica, ObservedReplica, StepInput};
pub(crate) use observed::{LinkPhase, NodePhase, PlacedReplica};

/// The observations that a rollout depends on.
pub(crate) trait Observations {
    /// Returns the memory of a device; zero if it is unknown.
    fn memory(&self, device: &DeviceId) -> ByteCount;
    /// Returns the phase of the node of a replica. It may depend on the replica: the last report of a lost node counts for the
    /// replicas that still answer.
    fn node(&self, replica: &PlacedReplica) -> NodePhase;
    /// Returns the status of a replica that its node last reported, if it did.
    fn status(&self, replica: &PlacedReplica) -> Option<&ReplicaStatus>;
    /// Returns the phase of the link to a replica; `None` if the data plane was not told to serve it.
    fn link(&self, replica: ReplicaId) -> Option<LinkPhase>;
    /// Returns the versions that a version of a model hands its requests over to; none if it does not. Its earlier replicas stay until
    /// it does not.
    fn successors(&self, model: &ModelId) -> Vec<ModelId>;
    /// Returns the requests per second that a model loses with one of its replicas, in thousandths.
    fn loss(&self, model: &ModelId) -> u64;
}

/// The replicas of the newest plan, and those of earlier plans that are still wanted.
#[derive(Clone, Debug, Default)]
pub(crate) struct Rollout {
    replicas: BTreeMap<ReplicaId, PlacedReplica>,
    by_model: BTreeMap<ModelId, BTreeSet<ReplicaId>>,
    by_device: BTreeMap<NodeName, BTreeMap<DeviceId, BTreeSet<ReplicaId>>>,
    /// The replicas of earlier plans.
    earlier: BTreeSet<ReplicaId>,
    /// The replicas of the plan that wait for memory which replicas of earlier plans hold.
    waiting: BTreeSet<ReplicaId>,
    /// The replicas of a plan that is being stored. They do not begin to drain, which could not be revoked.
    kept: BTreeSet<ReplicaId>,
    /// The replicas that have changed, or whose observations have, since the last step.
    touched: BTreeSet<ReplicaId>,
    /// The nodes whose wanted replicas have changed, because a replica was removed, since the last step.
    touched_nodes: BTreeSet<NodeName>,
}

/// The changes of a step.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct RolloutChange {
    /// The nodes whose wanted replicas may have changed.
    pub(crate) nodes: BTreeSet<NodeName>,
    /// The replicas that were looked at, because they or their observations changed. Some may no longer exist.
    pub(crate) replicas: BTreeSet<ReplicaId>,
    /// The replicas that drain although their successors do not serve yet.
    pub(crate) broken: BTreeSet<ReplicaId>,
}

impl Rollout {
    /// Restores the replicas of stored plans: those of the newest, and those of earlier ones that may still run.
    pub(crate) fn restore(replicas: impl IntoIterator<Item = PlacedReplica>) -> Self {
        let mut rollout = Self::default();
        for replica in replicas {
            rollout.insert(replica);
        }
        rollout
    }

    /// Keeps the replicas that a plan has from draining while it is being stored.
    pub(crate) fn keep(&mut self, plan: &[PlacedReplica]) {
        self.kept = plan.iter().map(|replica| replica.id).collect();
    }

    /// Ends what [`Self::keep`] began, because the plan could not be stored.
    pub(crate) fn release(&mut self) {
        for id in std::mem::take(&mut self.kept) {
            self.touch(id);
        }
    }

    /// Makes these the replicas of the newest plan. The others become superseded.
    pub(crate) fn adopt(&mut self, plan: Vec<PlacedReplica>) {
        self.release();
        let kept: BTreeSet<ReplicaId> = plan.iter().map(|replica| replica.id).collect();
        for (id, replica) in &mut self.replicas {
            if replica.is_planned() && !kept.contains(id) {
                replica.phase = ReplicaPhase::Superseded;
                self.earlier.insert(*id);
                self.waiting.remove(id);
                self.touched.insert(*id);
            }
        }
        for replica in plan {
            self.insert(replica);
        }
    }

    /// Takes over the planned memory of replicas, which changes with a new profile even if nothing else does.
    pub(crate) fn set_memory(&mut self, plan: &[PlacedReplica]) {
        for planned in plan {
            if let Some(replica) = self.replicas.get_mut(&planned.id)
                && replica.spec.memory != planned.spec.memory
            {
                replica.spec.memory = planned.spec.memory;
                self.touched.insert(planned.id);
            }
        }
    }

    fn insert(&mut self, replica: PlacedReplica) {
        let id = replica.id;
        self.touched.insert(id);
        if replica.is_planned() {
            self.earlier.remove(&id);
        } else {
            self.earlier.insert(id);
        }
        let model = replica.spec.model.model.clone();
        self.by_model.entry(model).or_default().insert(id);
        let device = replica.spec.device.clone();
        let devices = self.by_device.entry(device.node().clone()).or_default();
        devices.entry(device).or_default().insert(id);
        self.replicas.insert(id, replica);
    }

    fn remove(&mut self, id: ReplicaId) {
        let Some(replica) = self.replicas.remove(&id) else {
            return;
        };
        self.earlier.remove(&id);
        self.waiting.remove(&id);
        remove_from(&mut self.by_model, &replica.spec.model.model, id);
        let node = replica.spec.device.node();
        if let Some(devices) = self.by_device.get_mut(node) {
            remove_from(devices, &replica.spec.device, id);
            if devices.is_empty() {
                self.by_device.remove(node);
            }
        }
        self.touched_nodes.insert(node.clone());
    }

    /// Notes that the observations of a replica have changed.
    pub(crate) fn touch(&mut self, id: ReplicaId) {
        if self.replicas.contains_key(&id) {
            self.touched.insert(id);
        }
    }

    /// Notes that a node has changed in a way that concerns all its replicas.
    pub(crate) fn touch_node(&mut self, node: &NodeName) {
        let ids: Vec<ReplicaId> = self.on_node(node).map(|replica| replica.id).collect();
        self.touched.extend(ids);
        self.touched_nodes.insert(node.clone());
    }

    /// Notes that a model has changed in a way that concerns all its replicas.
    pub(crate) fn touch_model(&mut self, model: &ModelId) {
        let ids = self.by_model.get(model).into_iter().flatten();
        self.touched.extend(ids);
    }

    /// Takes one step.
    pub(crate) fn step(&mut self, observations: &impl Observations) -> RolloutChange {
        let mut change = RolloutChange {
            nodes: std::mem::take(&mut self.touched_nodes),
            ..RolloutChange::default()
        };
        if self.touched.is_empty() {
            return change;
        }
        let ids = self.dependents();
        let input = self.step_input(&ids, observations);
        let outcome = input.step();
        change.broken = outcome.broken;
        for id in ids {
            let Some(replica) = self.replicas.get_mut(&id) else {
                continue;
            };
            let node = replica.spec.device.node();
            if replica.is_planned() {
                let changed = if outcome.started.contains(&id) {
                    self.waiting.remove(&id)
                } else {
                    self.waiting.insert(id)
                };
                if changed || self.touched.contains(&id) {
                    change.nodes.insert(node.clone());
                }
            } else {
                match outcome.earlier.get(&id) {
                    Some(true) => replica.phase = ReplicaPhase::Draining,
                    Some(false) => {}
                    None => self.remove(id),
                }
            }
            change.replicas.insert(id);
        }
        self.touched.clear();
        change.nodes.append(&mut self.touched_nodes);
        change
    }

    /// Returns the touched replicas and those that depend on them.
    fn dependents(&self) -> BTreeSet<ReplicaId> {
        let mut found: BTreeSet<ReplicaId> = self.touched.clone();
        let mut open: Vec<ReplicaId> = found.iter().copied().collect();
        let mut seen_models: BTreeSet<&ModelName> = BTreeSet::new();
        let mut seen_devices: BTreeSet<&DeviceId> = BTreeSet::new();
        while let Some(id) = open.pop() {
            let Some(replica) = self.replicas.get(&id) else {
                continue;
            };
            let model = &replica.spec.model.model;
            let device = &replica.spec.device;
            let mut groups: Vec<Vec<&BTreeSet<ReplicaId>>> = Vec::new();
            if seen_models.insert(&model.name) {
                // The versions of a model hand their requests over to each other.
                groups.push(self.of_versions(&model.name).collect());
            }
            if seen_devices.insert(device) {
                groups.push(self.ids_on_device(device).into_iter().collect());
            }
            for group in groups {
                if group.iter().all(|ids| ids.is_disjoint(&self.earlier)) {
                    continue;
                }
                let ids = group.into_iter().flatten();
                open.extend(ids.filter(|id| found.insert(**id)));
            }
        }
        found
    }

    fn step_input<'a>(
        &'a self,
        ids: &BTreeSet<ReplicaId>,
        observations: &'a impl Observations,
    ) -> StepInput<'a> {
        let mut input = StepInput::default();
        for replica in ids.iter().filter_map(|id| self.replicas.get(id)) {
            let observed = ObservedReplica {
                replica,
                node: observations.node(replica),
                status: observations.status(replica),
                link: observations.link(replica.id),
            };
            if replica.is_planned() {
                input.planned.push(observed);
                continue;
            }
            let device = &replica.spec.device;
            input.memory.insert(device, observations.memory(device));
            let model = &replica.spec.model.model;
            input.losses.insert(model, observations.loss(model));
            let successors = observations.successors(model);
            if !successors.is_empty() {
                input.successors.insert(model, successors);
            }
            input.earlier.push(EarlierReplica {
                observed,
                kept: self.kept.contains(&replica.id),
                draining: replica.phase == ReplicaPhase::Draining,
            });
        }
        input
    }

    /// Returns a replica.
    pub(crate) fn get(&self, id: ReplicaId) -> Option<&PlacedReplica> {
        self.replicas.get(&id)
    }

    /// Returns all replicas, by identity.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &PlacedReplica> {
        self.replicas.values()
    }

    /// Returns the replicas of the newest plan, by identity.
    pub(crate) fn planned(&self) -> impl Iterator<Item = &PlacedReplica> {
        self.replicas
            .values()
            .filter(|replica| replica.is_planned())
    }

    /// Returns the number of the replicas of earlier plans that are still wanted; 0 once the plan is rolled out.
    pub(crate) fn earlier_count(&self) -> usize {
        self.earlier.len()
    }

    /// Returns the replicas of a model, by identity.
    pub(crate) fn of_model(&self, model: &ModelId) -> impl Iterator<Item = &PlacedReplica> {
        let ids = self.by_model.get(model).into_iter().flatten();
        ids.filter_map(|id| self.replicas.get(id))
    }

    /// Returns the replicas of each version of a model.
    fn of_versions(&self, name: &ModelName) -> impl Iterator<Item = &BTreeSet<ReplicaId>> {
        let at = |version| ModelId {
            name: name.clone(),
            version,
        };
        let versions = self
            .by_model
            .range(at(ModelVersion::FIRST)..=at(ModelVersion::LAST));
        versions.map(|(_, ids)| ids)
    }

    /// Returns the replicas of a device, by identity.
    pub(crate) fn on_device(&self, device: &DeviceId) -> impl Iterator<Item = &PlacedReplica> {
        let ids = self.ids_on_device(device).into_iter().flatten();
        ids.filter_map(|id| self.replicas.get(id))
    }

    fn ids_on_device(&self, device: &DeviceId) -> Option<&BTreeSet<ReplicaId>> {
        self.by_device.get(device.node())?.get(device)
    }

    /// Returns the replicas of a node, by device and identity.
    pub(crate) fn on_node(&self, node: &NodeName) -> impl Iterator<Item = &PlacedReplica> {
        let devices = self.by_device.get(node).into_iter().flatten();
        devices
            .flat_map(|(_, ids)| ids)
            .filter_map(|id| self.replicas.get(id))
    }

    /// Returns true if a replica of the plan waits for memory which replicas of earlier plans hold.
    pub(crate) fn waits(&self, id: ReplicaId) -> bool {
        self.waiting.contains(&id)
    }

    /// Returns the replicas that a node shall run, ordered by identity.
    pub(crate) fn wanted(&self, node: &NodeName) -> Vec<WantedReplica> {
        let mut wanted: Vec<WantedReplica> = self
            .on_node(node)
            .filter(|replica| !self.waiting.contains(&replica.id))
            .map(wanted_replica)
            .collect();
        wanted.sort_by_key(|replica| replica.id);
        wanted
    }

    /// Returns the address on which a replica accepts batches, if it does.
    pub(crate) fn ready_address(
        replica: &PlacedReplica,
        observations: &impl Observations,
    ) -> Option<SocketAddr> {
        let observed = ObservedReplica {
            replica,
            node: observations.node(replica),
            status: observations.status(replica),
            link: None,
        };
        observed.ready_address()
    }
}

fn remove_from<K: Ord>(index: &mut BTreeMap<K, BTreeSet<ReplicaId>>, key: &K, id: ReplicaId) {
    if let Some(ids) = index.get_mut(key) {
        ids.remove(&id);
        if ids.is_empty() {
            index.remove(key);
        }
    }
}

fn wanted_replica(replica: &PlacedReplica) -> WantedReplica {
    let spec = &replica.spec;
    WantedReplica {
        id: replica.id,
        program: Program::clone(&spec.model),
        device: spec.device.local().to_owned(),
        batch_size: spec.batch_size,
        compute_share_pct: spec.compute_share,
        memory_bytes: spec.memory.filter(|memory| *memory > ByteCount::ZERO),
        attempt: 0,
        worker: replica.worker,
        pooled: spec.pool.is_some(),
    }
}

#[cfg(test)]
mod tests;
