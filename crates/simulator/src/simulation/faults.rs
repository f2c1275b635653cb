//! The faults of a scenario, in the terms of the cluster.

use std::time::Duration;

use packhorse_cluster::{NodeName, Scheduling};
use packhorse_control::Command;
use packhorse_virtual::ClientState;

use super::run::Simulation;
use crate::FaultKind;

impl Simulation<'_> {
    pub(super) fn fault_begins(&mut self, index: usize) {
        self.faults.active[index] = true;
        match self.scenario.simulation.faults[index].kind {
            FaultKind::WorkerDies(device) => {
                let (node, device) = self.place(device.0);
                self.cluster.break_device(&node, device);
            }
            FaultKind::SlowWorker(device, _) => self.update_speed(device.0),
            FaultKind::NetworkDelay(_) => self.update_delay(),
            FaultKind::NodeLost(node) => {
                let node = self.node(node);
                self.cluster
                    .change_network(&node, |node| node.reachable = false);
            }
            FaultKind::AgentDies(node) => {
                let node = self.node(node);
                self.cluster.kill_agent(&node);
            }
            FaultKind::GatewayDies => {
                if self.cluster.gateway.is_some() {
                    self.cluster.kill_gateway(true);
                }
            }
            FaultKind::NodeDrained(node) => {
                let node = self.node(node);
                self.command(Command::ScheduleNode(node, Scheduling::Draining, None));
            }
            FaultKind::ModelAdded(model) => {
                let spec = Box::new(self.spec(model));
                self.command(Command::Register(spec, 0));
            }
            FaultKind::ModelRemoved(model) => {
                self.cluster.set_client_state(model.0, ClientState::Ended);
            }
        }
    }

    pub(super) fn fault_ends(&mut self, index: usize) {
        self.faults.active[index] = false;
        self.faults.left -= 1;
        let kind = self.scenario.simulation.faults[index].kind;
        match kind {
            FaultKind::WorkerDies(device) => {
                let (node, device) = self.place(device.0);
                self.cluster.mend_device(&node, device);
            }
            FaultKind::SlowWorker(device, _) => self.update_speed(device.0),
            FaultKind::NetworkDelay(_) => self.update_delay(),
            FaultKind::NodeLost(node) => {
                let node = self.node(node);
                if !self.is_lost(&node) {
                    self.cluster
                        .change_network(&node, |node| node.reachable = true);
                }
            }
            FaultKind::AgentDies(node) => {
                let node = self.node(node);
                self.start_agent(&node);
            }
            FaultKind::GatewayDies => {
                if !self.active().any(|active| active == kind) {
                    self.cluster.start_gateway();
                    for command in std::mem::take(&mut self.commands) {
                        self.command(command);
                    }
                }
            }
            FaultKind::NodeDrained(node) => {
                let node = self.node(node);
                self.command(Command::ScheduleNode(node, Scheduling::Open, None));
            }
            FaultKind::ModelRemoved(model) => {
                let id = &self.scenario.problem.models[model.0].id;
                let command = Command::RemoveModel(id.name.clone(), Some(id.version));
                self.command(command);
            }
            FaultKind::ModelAdded(_) => {}
        }
    }

    /// Starts the agent of a node, unless a fault keeps it from running or there is no such node.
    pub(super) fn start_agent(&mut self, node: &NodeName) {
        let dies =
            |fault| matches!(fault, FaultKind::AgentDies(number) if self.node(number) == *node);
        let has_control = self.cluster.environment.planner.is_some();
        let runs = self
            .cluster
            .nodes
            .get(node)
            .is_some_and(packhorse_virtual::Node::has_agent);
        if has_control && !runs && !self.is_absent(node) && !self.active().any(dies) {
            self.cluster.start_agent(node);
        }
    }

    fn is_lost(&self, node: &NodeName) -> bool {
        let mut active = self.active();
        active
            .any(|fault| matches!(fault, FaultKind::NodeLost(number) if self.node(number) == *node))
    }

    /// Returns the name of the node of this index among the scenario's nodes.
    fn node(&self, index: usize) -> NodeName {
        let devices = &self.scenario.problem.devices;
        let mut nodes: Vec<_> = devices.iter().map(|device| &device.node).collect();
        nodes.dedup();
        nodes[index].clone()
    }

    /// The faults that have begun and not ended.
    fn active(&self) -> impl Iterator<Item = FaultKind> {
        let faults = self.scenario.simulation.faults.iter();
        let faults = faults.zip(&self.faults.active);
        faults
            .filter(|(_, active)| **active)
            .map(|(fault, _)| fault.kind)
    }

    fn update_delay(&mut self) {
        let delay = |fault| match fault {
            FaultKind::NetworkDelay(delay) => delay,
            _ => Duration::ZERO,
        };
        let delay = self.active().map(delay).sum();
        self.cluster.delay_network(delay);
    }

    fn update_speed(&mut self, device: usize) {
        let factor = |fault| match fault {
            FaultKind::SlowWorker(slowed, factor) if slowed.0 == device => factor,
            _ => 1.0,
        };
        let factor = self.active().map(factor).product();
        let (node, device) = self.place(device);
        self.cluster.slow_device(&node, device, factor);
    }
}
