//! Faults of devices, nodes and the network, and how the gateway notices them.

use std::time::Duration;

use packhorse_cluster::{NodeName, Scheduling, Time};
use packhorse_control::LinkState;
use packhorse_serving::Event;
use packhorse_trace::Batch;

use super::{
    control::LEASE,
    event::SimEvent,
    keys::replica_key,
    replica::WorkerState,
    world::{Clients, Simulation},
};
use crate::{FaultKind, run_trace::index};

impl Simulation<'_> {
    pub(super) fn fault_begins(&mut self, now: Time, index: usize) {
        self.fault_active[index] = true;
        let fault = self.scenario.simulation.faults[index];
        for device in self.devices_down(index) {
            self.down[device] += 1;
            self.devices[device].clear(now);
        }
        match fault.kind {
            FaultKind::AgentDies(node) => self.set_silent(now, &self.node(node), true),
            FaultKind::GatewayDies => self.gateway_dies(now),
            FaultKind::NodeDrained(node) => self.schedule_node(now, node, Scheduling::Draining),
            FaultKind::ModelAdded(model) => self.add_model(now, model),
            FaultKind::ModelRemoved(model) => self.clients[model.0] = Clients::Ended,
            FaultKind::WorkerDies(_) => self.fault_noticed(now, index),
            FaultKind::NodeLost(node) => {
                self.set_silent(now, &self.node(node), true);
                if fault.duration > LEASE {
                    self.schedule(now + LEASE, SimEvent::FaultNoticed(index));
                }
            }
            FaultKind::SlowWorker(..) | FaultKind::NetworkDelay(_) => self.update_delays(now),
        }
    }

    /// Has the gateway notice that the workers of a fault's devices are gone.
    pub(super) fn fault_noticed(&mut self, now: Time, fault: usize) {
        for device in self.devices_down(fault) {
            self.report_device(now, device);
        }
        self.lose_replicas_of(now, fault);
    }

    /// Ends the links to all replicas on the devices that are down during a fault.
    fn lose_replicas_of(&mut self, now: Time, fault: usize) {
        let devices = self.devices_down(fault);
        for replica in 0..self.replicas.len() {
            let on_device = devices.contains(&self.replicas[replica].device);
            if on_device && self.replicas[replica].is_registered() {
                self.lose_replica(now, replica);
            }
        }
    }

    pub(super) fn fault_ends(&mut self, now: Time, fault: usize) {
        self.fault_active[fault] = false;
        // The batches that were sent before are lost, also where the gateway has not noticed the fault.
        self.lose_replicas_of(now, fault);
        for device in self.devices_down(fault) {
            self.down[device] -= 1;
            if self.down[device] == 0 {
                self.restore_device(now, device);
            }
        }
        match self.scenario.simulation.faults[fault].kind {
            FaultKind::NodeLost(node) | FaultKind::AgentDies(node) => {
                self.set_silent(now, &self.node(node), false);
            }
            FaultKind::GatewayDies => self.gateway_is_back(now),
            FaultKind::NodeDrained(node) => self.schedule_node(now, node, Scheduling::Open),
            FaultKind::ModelRemoved(model) => self.remove_model(now, model),
            FaultKind::WorkerDies(_)
            | FaultKind::SlowWorker(..)
            | FaultKind::NetworkDelay(_)
            | FaultKind::ModelAdded(_) => {}
        }
        for device in self.devices_down(fault) {
            self.report_device(now, device);
        }
        self.update_delays(now);
    }

    /// Brings the workers of a device back: those whose model was loaded are ready at once, the others load it again.
    fn restore_device(&mut self, now: Time, device: usize) {
        for replica in 0..self.replicas.len() {
            if self.replicas[replica].device != device {
                continue;
            }
            match self.replicas[replica].worker {
                // In a run that replans, the rollout decides which replicas still serve.
                WorkerState::Ready if self.control.is_none() => self.serve_replica(now, replica),
                WorkerState::Loading(_) => self.load(now, replica),
                WorkerState::Ready | WorkerState::Stopped => {}
            }
        }
    }

    /// Returns the name of the node of this index among the scenario's nodes.
    pub(super) fn node(&self, index: usize) -> NodeName {
        let devices = &self.scenario.problem.devices;
        let mut nodes: Vec<_> = devices.iter().map(|device| &device.node).collect();
        nodes.dedup();
        nodes[index].clone()
    }

    /// The devices that are down during a fault.
    pub(super) fn devices_down(&self, fault: usize) -> Vec<usize> {
        let devices = &self.scenario.problem.devices;
        match self.scenario.simulation.faults[fault].kind {
            FaultKind::WorkerDies(device) => vec![device.0],
            FaultKind::NodeLost(node) => {
                let node = self.node(node);
                (0..devices.len())
                    .filter(|&device| devices[device].node == node)
                    .collect()
            }
            _ => Vec::new(),
        }
    }

    /// The faults that have begun and not ended.
    pub(super) fn active_faults(&self) -> impl Iterator<Item = FaultKind> {
        let faults = self.scenario.simulation.faults.iter();
        let faults = faults.zip(&self.fault_active);
        faults
            .filter(|(_, active)| **active)
            .map(|(fault, _)| fault.kind)
    }

    /// Sets the delay of the network and the speeds of the devices by the active faults.
    fn update_delays(&mut self, now: Time) {
        let faults: Vec<FaultKind> = self.active_faults().collect();
        let delay = |fault: &FaultKind| match fault {
            FaultKind::NetworkDelay(delay) => *delay,
            _ => Duration::ZERO,
        };
        self.network_delay = faults.iter().map(delay).sum();
        for device in 0..self.devices.len() {
            let factor = |fault: &FaultKind| match fault {
                FaultKind::SlowWorker(slowed, factor) if slowed.0 == device => *factor,
                _ => 1.0,
            };
            self.devices[device].set_slowdown(now, faults.iter().map(factor).product());
            self.schedule_completion(device);
        }
    }

    fn lose_replica(&mut self, now: Time, replica: usize) {
        self.replicas[replica].link = self
            .control
            .is_some()
            .then_some(LinkState::Connecting { reason: None });
        self.trace_lost_batches(now, replica);
        for batch in &mut self.batches.entries {
            batch.ended |= batch.replica == replica;
        }
        self.engine.handle(
            now,
            Event::ReplicaLost {
                replica: replica_key(replica),
            },
        );
        self.link_changed(now, replica);
    }

    pub(super) fn trace_lost_batches(&mut self, now: Time, replica: usize) {
        let Some(trace) = &mut self.trace else {
            return;
        };
        for (number, batch) in self.batches.numbered() {
            if batch.replica != replica || batch.ended {
                continue;
            }
            let rows = index(batch.requests.len());
            let lost = Batch {
                key: number,
                model: index(self.replicas[replica].model),
                replica: index(replica),
                dispatched: batch.dispatched,
                round_trip: now.saturating_since(batch.dispatched),
                requests: rows,
                rows,
                stages: None,
            };
            trace.batch_ended(lost, self.replicas[replica].device);
        }
    }
}
