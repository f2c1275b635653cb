//! The control plane of a run that replans: its view of the cluster, the calls of its policy, and the rollout of plans.
//!
//! At fixed intervals the policy makes a plan for the scenario's problem as the gateway would see it at that time: without the
//! devices of nodes whose lease has ended, with the measured rates, with the current plan, and with the observations of devices.
//! The call takes no simulated time. A plan with violations changes nothing, and neither does a call without a plan.
//!
//! The rollout of a plan is that of the gateway ([`packhorse_control::rollout`]): make before break where memory allows, and replicas
//! that both plans contain keep running. A replica that starts is ready after its model's load time. The control plane and its messages
//! take no time either.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, Ipv4Addr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use packhorse_cluster::{
    ArtifactDigest, DemandedModel, Device, DeviceId, DeviceIndex, Generation, NodeName, Plan,
    PlannedReplica, Problem, Program, ReplicaId, ReplicaState, ReplicaStatus, RequestsPerSecond,
    Time,
};
use packhorse_control::rollout::{
    LinkPhase, ObservedNode, PlacedReplica, Placement, RolloutInput, RolloutOutcome, assign_ids,
    replan,
};
use packhorse_serving::Event;

use super::{
    SimEvent, Simulation,
    feedback::{Feedback, Subject},
    replica::{SimulatedReplica, WorkerState},
    replica_key,
};
use crate::{FaultKind, Scenario, options::Replanning, report::ReplanningReport};

/// The address in the status of each worker. Nothing connects to it.
const ADDRESS: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 9);

pub(super) struct Control<'a> {
    replanning: Replanning<'a>,
    programs: Vec<Arc<Program>>,
    devices: Vec<DeviceId>,
    generation: Generation,
    situation: RolloutInput,
    /// The planned replicas of the newest plan, and those of earlier plans that are left.
    planned: BTreeMap<ReplicaId, PlannedReplica>,
    /// The index in the simulation of each of these replicas that was started.
    started: BTreeMap<ReplicaId, usize>,
    /// The faults by which nodes were lost, as far as the gateway has noticed.
    pub(super) lost: BTreeSet<usize>,
    pub(super) feedback: Feedback,
    pub(super) report: ReplanningReport,
}

impl<'a> Control<'a> {
    /// Returns the control plane of a simulation in which the replicas of this plan run already, in the plan's order.
    pub(super) fn new(
        scenario: &Scenario,
        plan: &[PlannedReplica],
        replanning: Replanning<'a>,
    ) -> Self {
        let problem = &scenario.problem;
        let program = |model: &DemandedModel| {
            Arc::new(Program {
                model: model.id.clone(),
                artifact: ArtifactDigest::from_sha256([0; 32]),
                max_batch_size: model.max_batch_size,
                inputs: Vec::new(),
                outputs: Vec::new(),
            })
        };
        let device = |(i, device): (usize, &Device)| {
            DeviceId::new(device.node.clone(), &i.to_string()).expect("digits are a name")
        };
        let report = ReplanningReport {
            every_s: replanning.every.as_secs_f64(),
            ..ReplanningReport::default()
        };
        let mut control = Self {
            replanning,
            programs: problem.models.iter().map(program).collect(),
            devices: problem.devices.iter().enumerate().map(device).collect(),
            generation: Generation(1),
            situation: RolloutInput::default(),
            planned: BTreeMap::new(),
            started: BTreeMap::new(),
            lost: BTreeSet::new(),
            feedback: Feedback::new(
                problem
                    .models
                    .iter()
                    .map(|model| reachable_rate(scenario, model.rate)),
            ),
            report,
        };
        let placements = control.placements(scenario, plan);
        control.situation.plan = assign_ids(control.generation, &placements, []);
        let ids = control.situation.plan.iter().map(|replica| replica.id);
        control.started = ids.clone().zip(0..).collect();
        control.planned = ids.zip(plan.iter().cloned()).collect();
        control
    }

    /// The time between two calls of the policy.
    pub(super) fn every(&self) -> Duration {
        self.replanning.every
    }

    fn placements(&self, scenario: &Scenario, plan: &[PlannedReplica]) -> Vec<Placement> {
        let problem = &scenario.problem;
        let placement = |replica: &PlannedReplica| {
            let profile = problem.profile(replica.model, replica.device);
            Placement {
                program: Arc::clone(&self.programs[replica.model.0]),
                device: self.devices[replica.device.0].clone(),
                device_memory: problem.devices[replica.device.0].memory,
                batch_size: replica.batch_size,
                compute_share: replica.compute_share,
                memory: profile
                    .and_then(|profile| profile.memory(replica.batch_size))
                    .unwrap_or_default(),
            }
        };
        plan.iter().map(placement).collect()
    }

    /// Makes this plan the newest one.
    fn adopt(&mut self, scenario: &Scenario, plan: Vec<PlannedReplica>) {
        self.generation = Generation(self.generation.0 + 1);
        let placements = self.placements(scenario, &plan);
        let RolloutInput {
            plan: before,
            earlier,
            ..
        } = &self.situation;
        let (next, left) = replan(self.generation, &placements, before, earlier);
        let ids = |plan: &[PlacedReplica]| -> BTreeSet<ReplicaId> {
            plan.iter().map(|replica| replica.id).collect()
        };
        self.report.changed += u64::from(ids(&next) != ids(before));
        let kept: BTreeSet<ReplicaId> = left.iter().map(|earlier| earlier.replica.id).collect();
        self.planned.retain(|id, _| kept.contains(id));
        self.planned
            .extend(next.iter().map(|replica| replica.id).zip(plan));
        (self.situation.plan, self.situation.earlier) = (next, left);
    }
}

impl Simulation<'_> {
    /// Calls the policy, and rolls its plan out.
    pub(super) fn replan(&mut self, now: Time) {
        let Some(mut control) = self.control.take() else {
            return;
        };
        let subject = |replica: usize| subject(self.scenario, &self.replicas[replica]);
        control.feedback.end_period(now, subject);
        let (problem, devices) = self.problem(&control);
        control.report.asked += 1;
        match valid_plan(&mut control.replanning, &problem) {
            Some(mut plan) => {
                for replica in &mut plan.replicas {
                    replica.device = devices[replica.device.0];
                }
                control.adopt(self.scenario, plan.replicas);
            }
            None => control.report.unanswered += 1,
        }
        let next = now + control.replanning.every;
        self.control = Some(control);
        if next < self.counters.window_end() {
            self.schedule(next, SimEvent::Replan);
        }
        self.roll_out(now);
    }

    /// Returns the problem of this time, and the index in the scenario of each of its devices.
    fn problem(&self, control: &Control<'_>) -> (Problem, Vec<DeviceIndex>) {
        let mut problem = self.scenario.problem.clone();
        problem.discipline = self.discipline;
        // The measured rates already include the clients' own work.
        problem.conditions.client_overhead = Duration::ZERO;
        problem.observations = control.feedback.observations();
        for (i, model) in problem.models.iter_mut().enumerate() {
            model.rate = control.feedback.rate(i);
        }
        let lost = self.lost_nodes(control);
        let devices: Vec<DeviceIndex> = problem
            .devices()
            .filter(|(_, device)| !lost.contains(&device.node))
            .map(|(i, _)| i)
            .collect();
        problem
            .devices
            .retain(|device| !lost.contains(&device.node));
        let plan = control.situation.plan.iter();
        let current = plan.filter_map(|replica| {
            let planned = control.planned[&replica.id].clone();
            let device = devices.binary_search(&planned.device).ok()?;
            Some(PlannedReplica {
                device: DeviceIndex(device),
                ..planned
            })
        });
        problem.current = current.collect();
        (problem, devices)
    }

    /// Takes steps of the rollout until there is nothing to do.
    pub(super) fn roll_out(&mut self, now: Time) {
        let Some(mut control) = self.control.take() else {
            return;
        };
        while self.step(now, &mut control) {}
        self.control = Some(control);
    }

    /// Takes one step of the rollout. Returns false if there was nothing to do.
    fn step(&mut self, now: Time, control: &mut Control<'_>) -> bool {
        control.situation.nodes = self.nodes(control);
        let link = |(id, replica): (&ReplicaId, &usize)| Some((*id, self.replicas[*replica].link?));
        control.situation.links = control.started.iter().filter_map(link).collect();
        let rollout = control.situation.step();
        let mut changed = false;
        for (id, served) in &rollout.serve {
            let replica = control.started[id];
            match (self.replicas[replica].link, served.draining) {
                (None, false) => self.serve_replica(now, replica),
                (Some(LinkPhase::Serving), true) => self.drain(now, replica),
                _ => continue,
            }
            changed = true;
        }
        changed |= self.start_and_stop(now, control, &rollout);
        control.situation.earlier = rollout.earlier;
        changed
    }

    fn start_and_stop(
        &mut self,
        now: Time,
        control: &mut Control<'_>,
        rollout: &RolloutOutcome,
    ) -> bool {
        let of_nodes = rollout.nodes.values().flat_map(|node| &node.replicas);
        let wanted: BTreeSet<ReplicaId> = of_nodes.map(|replica| replica.id).collect();
        let node_reports = |replica: &SimulatedReplica| {
            let device = &self.scenario.problem.devices[replica.device];
            rollout.nodes.contains_key(&device.node)
        };
        let unwanted: Vec<ReplicaId> = control
            .started
            .iter()
            .filter(|(id, replica)| !wanted.contains(id) && node_reports(&self.replicas[**replica]))
            .map(|(id, _)| *id)
            .collect();
        let new: Vec<ReplicaId> = wanted
            .into_iter()
            .filter(|id| !control.started.contains_key(id))
            .collect();
        for id in &unwanted {
            let replica = control.started.remove(id).expect("it was started");
            self.stop(replica);
        }
        for id in &new {
            let replica = self.add_replica(&control.planned[id]);
            control.started.insert(*id, replica);
            self.load(now, replica);
        }
        control.report.stopped += unwanted.len() as u64;
        control.report.started += new.len() as u64;
        !(unwanted.is_empty() && new.is_empty())
    }

    /// Returns the nodes as the gateway observes them.
    fn nodes(&self, control: &Control<'_>) -> BTreeMap<NodeName, ObservedNode> {
        let mut reports: BTreeMap<&NodeName, BTreeMap<ReplicaId, ReplicaStatus>> = BTreeMap::new();
        for device in &self.scenario.problem.devices {
            reports.entry(&device.node).or_default();
        }
        for (&id, &replica) in &control.started {
            let replica = &self.replicas[replica];
            let node = &self.scenario.problem.devices[replica.device].node;
            let report = reports.entry(node).or_default();
            report.insert(id, self.status(id, replica));
        }
        let lost = self.lost_nodes(control);
        let view = |(node, report): (&NodeName, _)| {
            let view = if lost.contains(node) {
                ObservedNode::Lost
            } else {
                ObservedNode::Reporting(report)
            };
            (node.clone(), view)
        };
        reports.into_iter().map(view).collect()
    }

    /// Returns the status of a replica that its node reports. A node that does not answer has reported it before.
    fn status(&self, id: ReplicaId, replica: &SimulatedReplica) -> ReplicaStatus {
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
            pid: None,
            restarts: 0,
            reason: None,
            memory_bytes: None,
            capacity: None,
        }
    }

    fn lost_nodes(&self, control: &Control<'_>) -> BTreeSet<NodeName> {
        let devices = control
            .lost
            .iter()
            .flat_map(|fault| self.devices_down(*fault));
        let node = |device: usize| self.scenario.problem.devices[device].node.clone();
        devices.map(node).collect()
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
            self.roll_out(now);
        }
    }

    fn drain(&mut self, now: Time, replica: usize) {
        self.replicas[replica].link = Some(LinkPhase::Draining);
        let replica = replica_key(replica);
        self.engine.handle(now, Event::ReplicaDraining { replica });
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

/// The rate that clients reach of a given rate, because of their own work per request.
fn reachable_rate(scenario: &Scenario, rate: RequestsPerSecond) -> RequestsPerSecond {
    let overhead = scenario.simulation.client_overhead.as_secs_f64();
    let reached = rate.get() / (1.0 + rate.get() * overhead);
    RequestsPerSecond::new(reached).expect("at most the rate itself")
}

/// Calls the policy, and returns its plan if it has no violations.
fn valid_plan(replanning: &mut Replanning<'_>, problem: &Problem) -> Option<Plan> {
    // Policies require at least one device.
    if problem.devices.is_empty() {
        return None;
    }
    (replanning.policy)(problem).filter(|plan| plan.violations(problem).is_empty())
}

fn subject(scenario: &Scenario, replica: &SimulatedReplica) -> Subject {
    Subject {
        device: replica.device,
        kind: scenario.problem.devices[replica.device].kind.clone(),
        model: scenario.problem.models[replica.model].id.clone(),
        compute_share: replica.compute_share,
    }
}
