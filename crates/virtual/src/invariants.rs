//! The invariants that hold after every event, whatever happened before.

use std::collections::{BTreeMap, BTreeSet};

use packhorse_cluster::{ClusterId, Generation, ModelId, NodeName, Scheduling, WantedState};
use packhorse_control::{Command, CommandError, Controller, RequestKey};

use crate::{node::Node, nodes::Nodes, store::Store};

/// The observations so far.
#[derive(Debug, Default)]
pub struct Invariants {
    /// The answers of the admins' commands.
    pub answers: BTreeMap<RequestKey, Result<(), CommandError>>,
    commands: BTreeMap<RequestKey, Command>,
    /// The models whose registration was acknowledged, and whose removal was not asked for.
    models: BTreeSet<ModelId>,
    /// The acknowledged schedulings of nodes, while no other one is asked for.
    scheduled: BTreeMap<NodeName, Scheduling>,
    generation: Generation,
    epoch: u64,
    /// The highest epoch of each agent's reconciler, and the number of the agent's starts.
    agents: BTreeMap<NodeName, (u64, u64)>,
    /// The number of each agent's starts, and the version of the wanted state that it has applied since.
    applied: BTreeMap<NodeName, (u64, (u64, u64))>,
    /// The highest epoch that the agents of a folder have seen of a cluster.
    fences: BTreeMap<(String, Option<ClusterId>), u64>,
    published: BTreeMap<NodeName, (u64, u64)>,
    serves: BTreeMap<ModelId, bool>,
    checks: usize,
    /// True while another store than before, with a plan of its own, is used.
    pub other_store: bool,
}

impl Invariants {
    pub(crate) fn commanded(&mut self, key: RequestKey, command: &Command) {
        self.commands.insert(key, command.clone());
        match command {
            // From now on it may be gone.
            Command::RemoveModel(name, _) => self.models.retain(|id| id.name != *name),
            Command::ScheduleNode(name, ..) | Command::RemoveNode(name) => {
                self.scheduled.remove(name);
            }
            _ => {}
        }
    }

    pub(crate) fn answered(&mut self, key: RequestKey, result: &Result<(), CommandError>) {
        let command = self.commands.remove(&key).expect("it is answered once");
        let before = self.answers.insert(key, result.clone());
        assert!(before.is_none(), "{command:?} is answered twice");
        if result.is_err() {
            return;
        }
        match command {
            Command::Register(spec, _) | Command::Replace(spec, _) => {
                let id = &spec.program.model;
                let removes =
                    |c: &Command| matches!(c, Command::RemoveModel(name, _) if *name == id.name);
                if !self.commands.values().any(removes) {
                    self.models.insert(id.clone());
                }
            }
            Command::ScheduleNode(name, scheduling, _) => {
                let changes = |c: &Command| match c {
                    Command::ScheduleNode(other, ..) | Command::RemoveNode(other) => *other == name,
                    _ => false,
                };
                if !self.commands.values().any(changes) {
                    self.scheduled.insert(name, scheduling);
                }
            }
            _ => {}
        }
    }

    /// Returns the number of commands that are not answered.
    pub fn unanswered(&self) -> usize {
        self.commands.len()
    }

    /// Forgets the commands that nobody answers any more.
    pub(crate) fn gateway_died(&mut self) {
        self.commands.clear();
        self.published.clear();
    }

    /// Forgets what was stored, because the store was replaced.
    pub fn store_replaced(&mut self) {
        self.models.clear();
        self.scheduled.clear();
        self.generation = Generation(0);
        self.epoch = 0;
    }

    pub(crate) fn published(&mut self, node: &NodeName, state: &WantedState) {
        let version = (state.epoch, state.revision);
        let before = self.published.insert(node.clone(), version);
        assert!(
            before.is_none_or(|before| before < version),
            "{node} is told {version:?} after {before:?}"
        );
    }

    /// Notes whether a model is served. Returns true if it was, and is no longer.
    pub(crate) fn stopped_serving(&mut self, model: &ModelId, serves: bool) -> bool {
        let before = self.serves.insert(model.clone(), serves);
        before == Some(true) && !serves
    }

    pub(crate) fn check(
        &mut self,
        controller: &Controller,
        nodes: &Nodes,
        store: &Store,
    ) -> Result<(), String> {
        let generation = controller.plan().map_or(Generation(0), |p| p.generation);
        if generation < self.generation {
            return Err(format!("{generation} after {}", self.generation));
        }
        self.generation = generation;
        if controller.epoch() < self.epoch {
            let (now, before) = (controller.epoch(), self.epoch);
            return Err(format!("epoch {now} after {before}"));
        }
        self.epoch = controller.epoch();
        self.checks += 1;
        // Of many models, not all are compared after each event.
        if !self.checks.is_multiple_of(1 + self.models.len() / 20) {
            return Ok(());
        }
        let on_disk = store.disk.models.iter();
        let on_disk: BTreeSet<&ModelId> = on_disk.map(|m| &m.spec.program.model).collect();
        for id in &self.models {
            if !on_disk.contains(id) {
                return Err(format!("{id} was acknowledged and is not on disk"));
            }
            if controller.model(id).is_none() {
                return Err(format!("{id} was acknowledged and is not known"));
            }
        }
        for (name, scheduling) in &self.scheduled {
            let node = store.disk.nodes.iter().find(|node| node.name == *name);
            // A node that is not on disk joins again, open.
            if node.map_or(Scheduling::Open, |node| node.scheduling) != *scheduling {
                return Err(format!(
                    "{name} was acknowledged to be {scheduling:?}, on disk is {node:?}"
                ));
            }
        }
        for node in nodes.iter() {
            self.check_node(node)?;
        }
        Ok(())
    }

    fn check_node(&mut self, node: &Node) -> Result<(), String> {
        let name = &node.name;
        for (device, used) in node.used_memory() {
            let report = node.devices.iter().find(|d| d.name == device);
            let memory = report.map(|report| report.memory_bytes).unwrap_or_default();
            if used > memory {
                return Err(format!("{used} are used of {memory} on {name}/{device}"));
            }
        }
        let (folder, fence) = node.fence();
        let key = (folder.to_owned(), fence.cluster_id.clone());
        let highest = self.fences.entry(key).or_default();
        if fence.highest_epoch < *highest && !self.other_store {
            return Err(format!(
                "{name} has seen epoch {highest}, and obeys {}",
                fence.highest_epoch
            ));
        }
        *highest = fence.highest_epoch;
        if let Some(agent) = &node.agent {
            let applied = (node.starts, agent.reconciler.applied());
            let before = self.applied.insert(name.clone(), applied);
            if before.is_some_and(|before| before.0 == applied.0 && before.1 > applied.1)
                && !self.other_store
            {
                return Err(format!(
                    "the agent of {name} applies {applied:?} after {before:?}"
                ));
            }
            let now = (node.starts, agent.reconciler.epoch());
            let before = self.agents.insert(name.clone(), now);
            let goes_back = before.is_some_and(|before| before.0 == now.0 && before.1 > now.1);
            if goes_back && !self.other_store {
                return Err(format!(
                    "the agent of {name} goes from {before:?} to {now:?}"
                ));
            }
        }
        Ok(())
    }
}
