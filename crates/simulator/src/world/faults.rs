//! What goes wrong in the simulated world, and what the gateway gets to know of it.

use std::time::Duration;

use packhorse_cluster::Time;
use packhorse_serving::Event;

use super::{Happening, World, replica::Worker, replica_key};
use crate::FaultKind;

/// A silent node is given up when its lease ends.
const LEASE: Duration = Duration::from_secs(5);

impl World<'_> {
    pub(super) fn fault_begins(&mut self, now: Time, fault: usize) {
        self.faulty[fault] = true;
        let what = self.scenario.simulation.faults[fault];
        for device in self.held_down(fault) {
            self.down[device] += 1;
            self.devices[device].clear(now);
        }
        match what.kind {
            FaultKind::WorkerDies(_) => self.fault_noticed(now, fault),
            FaultKind::NodeLost(_) if what.lasts > LEASE => {
                self.foresee(now + LEASE, Happening::FaultNoticed(fault));
            }
            FaultKind::NodeLost(_) => {}
            FaultKind::SlowWorker(..) | FaultKind::NetworkDelay(_) => self.slow(now),
        }
    }

    /// The gateway knows now that the workers are gone.
    pub(super) fn fault_noticed(&mut self, now: Time, fault: usize) {
        self.lose_workers(now, fault);
        let node_lost = matches!(
            self.scenario.simulation.faults[fault].kind,
            FaultKind::NodeLost(_)
        );
        if let Some(control) = &mut self.control
            && node_lost
        {
            control.lost.insert(fault);
        }
        self.roll_out(now);
    }

    fn lose_workers(&mut self, now: Time, fault: usize) {
        let devices = self.held_down(fault);
        for replica in 0..self.replicas.len() {
            if self.replicas[replica].is_up() && devices.contains(&self.replicas[replica].device) {
                self.lose(now, replica);
            }
        }
    }

    pub(super) fn fault_ends(&mut self, now: Time, fault: usize) {
        self.faulty[fault] = false;
        // A worker that is back knows nothing of what was sent to it before.
        self.lose_workers(now, fault);
        if let Some(control) = &mut self.control {
            control.lost.remove(&fault);
        }
        for device in self.held_down(fault) {
            self.down[device] -= 1;
            if self.down[device] == 0 {
                self.device_back(now, device);
            }
        }
        self.roll_out(now);
        self.slow(now);
    }

    /// What was loaded is ready at once, what was loading begins again.
    fn device_back(&mut self, now: Time, device: usize) {
        for replica in 0..self.replicas.len() {
            if self.replicas[replica].device != device {
                continue;
            }
            match self.replicas[replica].worker {
                // A control plane serves what it still wants.
                Worker::Ready if self.control.is_none() => self.replica_up(now, replica),
                Worker::Loading(_) => self.load(now, replica),
                Worker::Ready | Worker::Stopped => {}
            }
        }
    }

    /// The devices on which nothing runs during this fault.
    pub(super) fn held_down(&self, fault: usize) -> Vec<usize> {
        let devices = &self.scenario.problem.devices;
        match self.scenario.simulation.faults[fault].kind {
            FaultKind::WorkerDies(device) => vec![device.0],
            FaultKind::NodeLost(node) => {
                let mut nodes: Vec<_> = devices.iter().map(|device| &device.node).collect();
                nodes.dedup();
                (0..devices.len())
                    .filter(|&device| Some(&&devices[device].node) == nodes.get(node))
                    .collect()
            }
            FaultKind::SlowWorker(..) | FaultKind::NetworkDelay(_) => Vec::new(),
        }
    }

    /// What goes wrong at this moment.
    pub(super) fn faults_of_now(&self) -> impl Iterator<Item = FaultKind> {
        let faults = self.scenario.simulation.faults.iter().zip(&self.faulty);
        faults.filter(|(_, on)| **on).map(|(fault, _)| fault.kind)
    }

    /// Sets the speeds of network and devices by the faults of this moment.
    fn slow(&mut self, now: Time) {
        let kinds: Vec<FaultKind> = self.faults_of_now().collect();
        let delay = |kind: &FaultKind| match kind {
            FaultKind::NetworkDelay(delay) => *delay,
            _ => Duration::ZERO,
        };
        self.delay = kinds.iter().map(delay).sum();
        for device in 0..self.devices.len() {
            let factor = |kind: &FaultKind| match kind {
                FaultKind::SlowWorker(on, factor) if on.0 == device => *factor,
                _ => 1.0,
            };
            self.devices[device].slow(now, kinds.iter().map(factor).product());
            self.foresee_device(device);
        }
    }

    fn lose(&mut self, now: Time, replica: usize) {
        self.replicas[replica].link = None;
        for flight in &mut self.flights.entries {
            flight.over |= flight.replica == replica;
        }
        self.engine.handle(
            now,
            Event::ReplicaLost {
                replica: replica_key(replica),
            },
        );
    }
}
