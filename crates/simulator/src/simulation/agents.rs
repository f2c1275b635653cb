//! The driver of a run's control plane: it carries out the controller's effects on the simulated nodes, store and data plane.

use std::{
    collections::BTreeSet,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    sync::Arc,
};

use packhorse_cluster::{
    DeviceId, DeviceIndex, NodeName, PlannedReplica, ReplicaId, ReplicaPhase, ReplicaState,
    ReplicaStatus, Time, WantedReplica,
};
use packhorse_control::{
    Command, Effect, Event, LeaseClaim, LinkState, NodeReport, Notice, PlanNotice, ServeChange,
    Target,
};
use packhorse_serving::Event as EngineEvent;

use super::{
    control::{Control, LEASE},
    event::SimEvent,
    keys::replica_key,
    replica::WorkerState,
    world::Simulation,
};
use crate::FaultKind;

/// The address in the status of each worker. Nothing connects to it.
const ADDRESS: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 9);

impl<'a> Simulation<'a> {
    /// Has the nodes join, and the replicas of the first plan serve.
    pub(super) fn start_control(&mut self) {
        let Some(control) = &self.control else {
            return;
        };
        let nodes: Vec<NodeName> = control.nodes.keys().cloned().collect();
        for (index, _) in nodes.iter().enumerate() {
            self.schedule(Time::ZERO, SimEvent::AgentRenews(index));
        }
    }

    /// Carries out what the control plane wants, until there is nothing to do.
    pub(super) fn drive_control(&mut self, now: Time) {
        if self.outage.is_some() {
            return;
        }
        let Some(mut control) = self.control.take() else {
            return;
        };
        while let Some(effect) = control.controller.poll(now) {
            self.carry_out(now, &mut control, effect);
        }
        self.control = Some(control);
    }

    fn carry_out(&mut self, now: Time, control: &mut Control<'_>, effect: Effect) {
        match effect {
            Effect::Store(receipt, write) => control.store(now, receipt, &write),
            Effect::Solve(key, input) => {
                let result = control.solve(now, self.scenario, &input);
                control.handle(now, Event::Solved(key, result));
            }
            Effect::Sample => {
                let mut counts = control.counts.clone();
                for model in control.models.keys() {
                    counts.models.entry(model.clone()).or_default();
                }
                control.handle(now, Event::Sampled(counts));
            }
            Effect::Publish(node, wanted) => {
                if let Some(node) = control.nodes.get_mut(&node) {
                    node.wanted = wanted;
                }
                self.reconcile(now, control, &node);
                self.send_report(now, control, &node);
            }
            Effect::Serve(ServeChange::Replica(target)) => self.serve(now, control, &target),
            Effect::Serve(ServeChange::RemoveReplica(id)) => self.end_service(now, control, id),
            Effect::Tell(Notice::Plan(_, notice, _)) => {
                control.report.changed += u64::from(notice == PlanNotice::Adopted);
                control.report.rejected += u64::from(notice == PlanNotice::Rejected);
            }
            Effect::Acknowledge(..) | Effect::Serve(_) | Effect::Tell(_) => {}
        }
    }

    /// Has the data plane serve a replica, or drain it.
    fn serve(&mut self, now: Time, control: &mut Control<'_>, target: &Target) {
        let id = target.replica.id;
        let Some(&replica) = control.started.get(&id) else {
            return;
        };
        let drains = target.replica.phase == ReplicaPhase::Draining;
        match (self.replicas[replica].is_registered(), drains) {
            (false, false) if self.down[self.replicas[replica].device] > 0 => {
                self.replicas[replica].link = Some(LinkState::Connecting { reason: None });
            }
            (false, false) => self.serve_replica(now, replica),
            (true, true) => self.drain(now, replica),
            (false, true) => self.replicas[replica].link = Some(LinkState::Drained),
            (true, false) => {
                return self.share_time(now, replica, target.replica.spec.duty_cycle.is_some());
            }
        }
        self.report_link(now, control, id, replica);
    }

    /// Has a replica compute in turns with others of its device, or no longer.
    fn share_time(&mut self, now: Time, replica: usize, time_shared: bool) {
        let parameters = &mut self.replicas[replica].parameters;
        if std::mem::replace(&mut parameters.time_shared, time_shared) != time_shared {
            let replica = replica_key(replica);
            self.engine.handle(
                now,
                EngineEvent::TimeSharingChanged {
                    replica,
                    time_shared,
                },
            );
        }
    }

    /// Ends the service of a replica that is no longer wanted or ready.
    fn end_service(&mut self, now: Time, control: &mut Control<'_>, id: ReplicaId) {
        let Some(&replica) = control.started.get(&id) else {
            return;
        };
        if self.replicas[replica].is_registered() {
            self.drain(now, replica);
        }
        control.handle(now, Event::LinkChanged(id, None));
    }

    fn report_link(&self, now: Time, control: &mut Control<'_>, id: ReplicaId, replica: usize) {
        let link = self.replicas[replica].link.clone();
        control.handle(now, Event::LinkChanged(id, link));
    }

    /// Tells the control plane that the state of the link to a replica changed.
    pub(super) fn link_changed(&mut self, now: Time, replica: usize) {
        let Some(mut control) = self.reachable_control() else {
            return;
        };
        let mut started = control.started.iter();
        let id = started
            .find(|(_, index)| **index == replica)
            .map(|(id, _)| *id);
        if let Some(id) = id {
            self.report_link(now, &mut control, id, replica);
        }
        self.control = Some(control);
    }

    /// Has the agent of a node renew its lease and report, if it reaches the gateway.
    pub(super) fn agent_renews(&mut self, now: Time, index: usize) {
        let next = now + LEASE / 3;
        if next < self.counters.window_end() {
            self.schedule(next, SimEvent::AgentRenews(index));
        }
        let Some(mut control) = self.reachable_control() else {
            return;
        };
        let name = control.nodes.keys().nth(index).cloned();
        if let Some(name) = name
            && !control.nodes[&name].silent
        {
            let claim = LeaseClaim {
                instance: "simulated".to_owned(),
                agent_version: String::new(),
                devices: control.nodes[&name].devices.clone(),
                cluster_id: None,
                highest_epoch: 0,
            };
            control.command(now, Command::TakeLease(name.clone(), claim));
            self.send_report(now, &mut control, &name);
        }
        self.control = Some(control);
    }

    /// Takes the control plane out of the simulation, unless its gateway is dead.
    pub(super) fn reachable_control(&mut self) -> Option<Control<'a>> {
        self.control.take_if(|_| self.outage.is_none())
    }

    /// Makes the agent of a node silent, or heard again if there is such a node.
    pub(super) fn set_silent(&mut self, now: Time, node: &NodeName, silent: bool) {
        let silent = silent || self.is_absent(node);
        let Some(control) = &mut self.control else {
            return;
        };
        if let Some(node) = control.nodes.get_mut(node) {
            node.silent = silent;
        }
        let index = control.nodes.keys().position(|name| name == node);
        if let Some(index) = index.filter(|_| !silent) {
            self.schedule(now, SimEvent::AgentRenews(index));
        }
    }

    /// Has the agent of a device's node report.
    pub(super) fn report_device(&mut self, now: Time, device: usize) {
        let Some(mut control) = self.reachable_control() else {
            return;
        };
        let node = self.scenario.problem.devices[device].node.clone();
        self.send_report(now, &mut control, &node);
        self.control = Some(control);
    }

    /// Has a node's agent start and stop workers, so that the wanted ones run.
    fn reconcile(&mut self, now: Time, control: &mut Control<'_>, node: &NodeName) {
        let Some(simulated) = control.nodes.get(node).filter(|node| !node.silent) else {
            return;
        };
        let state = Arc::clone(&simulated.wanted);
        let wanted: BTreeSet<ReplicaId> = state.replicas.iter().map(|r| r.id).collect();
        let is_here = |replica: usize| {
            let device = self.replicas[replica].device;
            self.scenario.problem.devices[device].node == *node
        };
        let unwanted: Vec<(ReplicaId, usize)> = control
            .started
            .iter()
            .filter(|(id, replica)| !wanted.contains(id) && is_here(**replica))
            .map(|(id, replica)| (*id, *replica))
            .collect();
        for (id, replica) in unwanted {
            control.started.remove(&id);
            control.counts.work.remove(&id);
            self.stop(replica);
            control.report.stopped += 1;
        }
        for replica in &state.replicas {
            if control.started.contains_key(&replica.id) {
                continue;
            }
            let planned = planned(control, node, replica);
            let index = self.add_replica(&planned);
            control.started.insert(replica.id, index);
            self.load(now, index);
            control.report.started += 1;
        }
    }

    /// Has the agent of a node report the states of its workers, if it reaches the gateway.
    fn send_report(&self, now: Time, control: &mut Control<'_>, name: &NodeName) {
        let Some(node) = control.nodes.get(name).filter(|node| !node.silent) else {
            return;
        };
        let of_node = control.started.iter().filter(|(_, replica)| {
            let device = self.replicas[**replica].device;
            self.scenario.problem.devices[device].node == *name
        });
        let report = NodeReport {
            instance: "simulated".to_owned(),
            epoch: node.wanted.epoch,
            revision: node.wanted.revision,
            replicas: of_node.map(|(id, r)| (*id, self.status(*id, *r))).collect(),
            profiles: Vec::new(),
            inspections: None,
        };
        control.command(now, Command::Report(name.clone(), report));
    }

    /// Returns the status of a replica.
    fn status(&self, id: ReplicaId, replica: usize) -> ReplicaStatus {
        let replica = &self.replicas[replica];
        let worker_dies = FaultKind::WorkerDies(DeviceIndex(replica.device));
        let dead = self.active_faults().any(|fault| fault == worker_dies);
        let state = match replica.worker {
            _ if dead => ReplicaState::BackingOff,
            WorkerState::Loading(_) => ReplicaState::Loading,
            WorkerState::Ready => ReplicaState::Ready,
            WorkerState::Stopped => {
                unreachable!("a stopped replica is no longer among the started")
            }
        };
        ReplicaStatus {
            id,
            state,
            address: (state == ReplicaState::Ready).then_some(ADDRESS),
            local_path: None,
            pid: None,
            restarts: 0,
            reason: None,
            memory_bytes: None,
            capacity: None,
            verification: None,
        }
    }

    /// Has a replica's worker load its model, at once or, if its device is down, when that is back.
    pub(super) fn load(&mut self, now: Time, replica: usize) {
        let loading = &mut self.replicas[replica];
        let attempt = match loading.worker {
            WorkerState::Loading(attempt) => attempt + 1,
            WorkerState::Ready | WorkerState::Stopped => 0,
        };
        loading.worker = WorkerState::Loading(attempt);
        let (model, device) = (loading.model, loading.device);
        if self.down[device] == 0 {
            let ready = now + self.scenario.problem.models[model].load_time;
            self.schedule(ready, SimEvent::ModelLoaded { replica, attempt });
        }
    }

    /// Makes a worker ready that has loaded its model, unless the attempt is outdated.
    pub(super) fn model_loaded(&mut self, now: Time, replica: usize, attempt: u32) {
        let loading = &mut self.replicas[replica];
        if loading.worker == WorkerState::Loading(attempt) && self.down[loading.device] == 0 {
            loading.worker = WorkerState::Ready;
            let device = loading.device;
            self.report_device(now, device);
        }
    }

    fn drain(&mut self, now: Time, replica: usize) {
        self.replicas[replica].link = Some(LinkState::Draining);
        let replica = replica_key(replica);
        self.engine
            .handle(now, EngineEvent::ReplicaDraining { replica });
    }

    fn stop(&mut self, replica: usize) {
        let stopped = &mut self.replicas[replica];
        debug_assert!(
            !stopped.is_registered(),
            "{stopped:?} is stopped while it serves"
        );
        stopped.worker = WorkerState::Stopped;
        // The replica keeps its index; only its memory is freed.
        stopped.batch_costs = Vec::new();
    }
}

/// Returns the planned replica that a wanted one stands for.
fn planned(control: &Control<'_>, node: &NodeName, wanted: &WantedReplica) -> PlannedReplica {
    let device = DeviceId::new(node.clone(), &wanted.device).expect("it was reported");
    let replica = control.controller.replica(wanted.id);
    PlannedReplica {
        model: control.models[&wanted.program.model],
        device: control.devices[&device],
        batch_size: wanted.batch_size,
        compute_share: wanted.compute_share_pct,
        duty_cycle: replica.and_then(|replica| replica.spec.duty_cycle),
        memory: wanted.memory_bytes,
        backbone: None,
    }
}
