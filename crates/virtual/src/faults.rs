//! The nodes that people add to a cluster, and the faults in it. A fault of a node that there is not is a mistake of the caller.

use std::time::Duration;

use packhorse_cluster::{DeviceReport, NodeName, ReplicaId, WantedReplica};
use packhorse_reconcile::ExitCause;

use crate::{
    cluster::Cluster,
    environment::Environment,
    events::RareEvent,
    node::{Later, Node, WorkerBehaviour},
};

impl<E: Environment> Cluster<E> {
    /// Adds a node whose agent does not run yet.
    pub fn add_node(
        &mut self,
        name: NodeName,
        devices: Vec<DeviceReport>,
        behaviour: WorkerBehaviour,
    ) {
        let first = self.devices;
        self.devices += devices.len();
        let (times, interference) = (self.settings.times, self.settings.interference);
        let node = Node::new(name, devices, first, behaviour, times, interference);
        self.nodes.push(node);
    }

    /// Switches a node off: agent and workers end.
    pub fn switch_off(&mut self, name: &NodeName) {
        self.kill_agent(name);
        let index = self.nodes.named(name);
        self.nodes[index].end_all(self.now);
        self.workers_ended(index);
        self.drive();
    }

    /// Loses the state folder of an agent that does not run. The workers of before are not found again and end.
    pub fn wipe(&mut self, name: &NodeName) {
        let index = self.nodes.named(name);
        self.nodes[index].wipe(self.now);
        self.workers_ended(index);
    }

    /// Kills one worker of a node.
    pub fn kill_worker(&mut self, name: &NodeName, which: usize) {
        let node = &self.nodes[self.nodes.named(name)];
        let count = node.processes.len();
        let mut processes = node.processes.iter();
        if let Some((id, process)) = processes.nth(which % count.max(1)) {
            let cause = ExitCause::Signal(9);
            let exits = Later::WorkerExits(id.clone(), process.pid, cause);
            let exits = RareEvent::Node(name.clone(), exits);
            self.schedule(Duration::ZERO, exits);
        }
    }

    /// Stops a worker process for a time (SIGSTOP).
    pub fn stop_worker(&mut self, name: &NodeName, which: usize, time: Duration) {
        let until = self.now + time;
        let index = self.nodes.named(name);
        let node = &mut self.nodes[index];
        let count = node.processes.len();
        let process = node.processes.values().nth(which % count.max(1));
        if let Some(place) = process.and_then(|process| process.place) {
            node.lane_mut(place).stopped_until = Some(until);
        }
    }

    /// Has all workers of a device die, and those that are started there until [`Cluster::mend_device`].
    pub fn break_device(&mut self, name: &NodeName, device: usize) {
        let now = self.now;
        let index = self.nodes.named(name);
        let node = &mut self.nodes[index];
        node.add_hardware(now, device);
        node.hardware[device].broken += 1;
        let on_device = |process: &&crate::Process| {
            process
                .place
                .is_some_and(|place| place.device as usize == device)
        };
        let dead = node.processes.values().filter(on_device);
        let dead: Vec<_> = dead
            .map(|process| (process.task.id(), process.pid))
            .collect();
        for (id, pid) in dead {
            let exits = Later::WorkerExits(id, pid, ExitCause::Signal(9));
            self.happen_at_node(name, exits);
        }
        self.drive();
    }

    /// Has workers run again on a device.
    pub fn mend_device(&mut self, name: &NodeName, device: usize) {
        let index = self.nodes.named(name);
        let hardware = &mut self.nodes[index].hardware[device];
        hardware.broken -= 1;
        if hardware.broken == 0 {
            self.start_served();
        }
        self.drive();
    }

    /// Has batches on a device take this many times as long from now on.
    pub fn slow_device(&mut self, name: &NodeName, device: usize, factor: f64) {
        let now = self.now;
        let index = self.nodes.named(name);
        self.nodes[index].add_hardware(now, device);
        let shared = &mut self.nodes[index].hardware[device].shared;
        shared.set_slowdown(now, factor);
        let [node, device] =
            [index, device].map(|number| u32::try_from(number).expect("devices are few"));
        self.schedule_completion(node, device);
    }

    /// Has every message between gateway and workers take this much longer.
    pub fn delay_network(&mut self, delay: Duration) {
        self.network.delay = delay;
    }

    /// Returns the time for which a device has computed any batch.
    pub fn busy_time(&self, name: &NodeName, device: usize) -> Duration {
        let node = self.nodes.get(name);
        let hardware = node.and_then(|node| node.hardware.get(device));
        hardware.map_or(Duration::ZERO, |hardware| {
            hardware.shared.busy_time(self.now)
        })
    }

    /// Has the workers of what is served without a control plane run where their devices are not broken, and the gateway connect to them.
    pub fn start_served(&mut self) {
        let Some(mut served) = self.served.take() else {
            return;
        };
        for target in &mut served.targets {
            let replica = &target.replica;
            let wanted = wanted(replica.id, target);
            let node = self.nodes.get_mut(replica.spec.device.node());
            if let Some(address) = node.and_then(|node| node.run_worker(self.now, wanted)) {
                target.address = address;
            }
        }
        self.served = Some(served);
        self.serve_without_control();
    }
}

fn wanted(id: ReplicaId, target: &packhorse_control::Target) -> WantedReplica {
    let spec = &target.replica.spec;
    WantedReplica {
        id,
        program: packhorse_cluster::Program::clone(&spec.model),
        device: spec.device.local().to_owned(),
        batch_size: spec.batch_size,
        compute_share_pct: spec.compute_share,
        memory_bytes: spec.memory,
        attempt: 0,
        worker: None,
        pooled: spec.pool.is_some(),
    }
}
