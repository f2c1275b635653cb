//! The control plane of a run that replans: what it sees, what it asks its policy, and how it rolls the answer out.
//!
//! At fixed intervals the policy is asked the scenario's problem anew, as the gateway would see it at that moment: without the
//! devices of nodes whose lease has ended, with the rates at which requests arrive, with the plan that stands, and with what
//! was observed of devices. The answer takes no simulated time. A plan with violations, or none at all, changes nothing.
//!
//! What follows from a plan is the gateway's own rollout ([`packhorse_control::rollout`]): make before break where memory allows,
//! and what the new plan has in common with the old is never touched. A replica that starts is ready after its model's load time.
//! The control plane and its messages take no time either.

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
    LinkPhase, ObservedNode, PlacedReplica, Placement, RolloutOutcome, RolloutInput, assign_ids, replan,
};
use packhorse_serving::Event;

use super::{
    Happening, World,
    feedback::{Feedback, Subject},
    replica::{Replica, Worker},
    replica_key,
};
use crate::{FaultKind, Replanning, ReplanningReport, Scenario};

/// Where workers listen that nobody connects to.
const ADDRESS: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 9);

pub(super) struct Control<'a> {
    replanning: Replanning<'a>,
    programs: Vec<Arc<Program>>,
    devices: Vec<DeviceId>,
    generation: Generation,
    situation: RolloutInput,
    /// The replicas of the newest plan and those that are left of earlier ones, as planned.
    planned: BTreeMap<ReplicaId, PlannedReplica>,
    /// Those of them that have been started, by their place in the world.
    started: BTreeMap<ReplicaId, usize>,
    /// The faults by which nodes are known to be lost.
    pub(super) lost: BTreeSet<usize>,
    pub(super) feedback: Feedback,
    pub(super) report: ReplanningReport,
}

impl<'a> Control<'a> {
    /// Of a world in which the replicas of this plan run already, in its order.
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
                    .map(|model| reached(scenario, model.rate)),
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

    /// How often the policy is asked.
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

    /// Makes a plan the newest one.
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

impl World<'_> {
    /// Asks the policy, and rolls its answer out.
    pub(super) fn replan(&mut self, now: Time) {
        let Some(mut control) = self.control.take() else {
            return;
        };
        let subject = |replica: usize| subject(self.scenario, &self.replicas[replica]);
        control.feedback.end_period(now, subject);
        let (problem, devices) = self.problem(&control);
        control.report.asked += 1;
        match answer(&mut control.replanning, &problem) {
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
        if next < self.tally.window_end() {
            self.foresee(next, Happening::Replan);
        }
        self.roll_out(now);
    }

    /// The problem of this moment, and which devices of the scenario its devices are.
    fn problem(&self, control: &Control<'_>) -> (Problem, Vec<DeviceIndex>) {
        let mut problem = self.scenario.problem.clone();
        problem.discipline = self.discipline;
        // What arrives is what clients reach.
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

    /// Does what follows from the newest plan and what has become of it so far, until nothing follows any more.
    pub(super) fn roll_out(&mut self, now: Time) {
        let Some(mut control) = self.control.take() else {
            return;
        };
        while self.step(now, &mut control) {}
        self.control = Some(control);
    }

    /// One look at the rollout. `false` if there was nothing to do.
    fn step(&mut self, now: Time, control: &mut Control<'_>) -> bool {
        control.situation.nodes = self.nodes(control);
        let link = |(id, replica): (&ReplicaId, &usize)| Some((*id, self.replicas[*replica].link?));
        control.situation.links = control.started.iter().filter_map(link).collect();
        let rollout = control.situation.step();
        let mut changed = false;
        for (id, served) in &rollout.serve {
            let replica = control.started[id];
            match (self.replicas[replica].link, served.draining) {
                (None, false) => self.replica_up(now, replica),
                (Some(LinkPhase::Serving), true) => self.drain(now, replica),
                _ => continue,
            }
            changed = true;
        }
        changed |= self.start_and_stop(now, control, &rollout);
        control.situation.earlier = rollout.earlier;
        changed
    }

    fn start_and_stop(&mut self, now: Time, control: &mut Control<'_>, rollout: &RolloutOutcome) -> bool {
        let of_nodes = rollout.nodes.values().flat_map(|node| &node.replicas);
        let wanted: BTreeSet<ReplicaId> = of_nodes.map(|replica| replica.id).collect();
        let reports = |replica: &Replica| {
            let device = &self.scenario.problem.devices[replica.device];
            rollout.nodes.contains_key(&device.node)
        };
        let unwanted: Vec<ReplicaId> = control
            .started
            .iter()
            .filter(|(id, replica)| !wanted.contains(id) && reports(&self.replicas[**replica]))
            .map(|(id, _)| *id)
            .collect();
        let new: Vec<ReplicaId> = wanted
            .into_iter()
            .filter(|id| !control.started.contains_key(id))
            .collect();
        for id in &unwanted {
            let replica = control.started.remove(id).expect("just seen");
            self.stop(replica);
        }
        for id in &new {
            let replica = self.add(&control.planned[id]);
            control.started.insert(*id, replica);
            self.load(now, replica);
        }
        control.report.stopped += unwanted.len() as u64;
        control.report.started += new.len() as u64;
        !(unwanted.is_empty() && new.is_empty())
    }

    /// The nodes as the gateway sees them.
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

    /// What a replica's node says of it; a silent node has said it before.
    fn status(&self, id: ReplicaId, replica: &Replica) -> ReplicaStatus {
        let dies = FaultKind::WorkerDies(DeviceIndex(replica.device));
        let dead = self.faults_of_now().any(|fault| fault == dies);
        let state = match replica.worker {
            _ if dead => ReplicaState::BackingOff,
            Worker::Loading(_) => ReplicaState::Loading,
            Worker::Ready => ReplicaState::Ready,
            Worker::Stopped => unreachable!("what is stopped is forgotten"),
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
        let devices = control.lost.iter().flat_map(|fault| self.held_down(*fault));
        let node = |device: usize| self.scenario.problem.devices[device].node.clone();
        devices.map(node).collect()
    }

    /// Has a replica's worker load its model, if its device is there; else it does so when the device is back.
    pub(super) fn load(&mut self, now: Time, replica: usize) {
        let loading = &mut self.replicas[replica];
        let attempt = match loading.worker {
            Worker::Loading(attempt) => attempt + 1,
            Worker::Ready | Worker::Stopped => 0,
        };
        loading.worker = Worker::Loading(attempt);
        let (model, device) = (loading.model, loading.device);
        if self.down[device] == 0 {
            let ready = now + self.scenario.problem.models[model].load_time;
            self.foresee(ready, Happening::Loaded { replica, attempt });
        }
    }

    /// A worker has loaded its model, if nothing came between.
    pub(super) fn loaded(&mut self, now: Time, replica: usize, attempt: u32) {
        let loading = &mut self.replicas[replica];
        if loading.worker == Worker::Loading(attempt) && self.down[loading.device] == 0 {
            loading.worker = Worker::Ready;
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
        debug_assert!(!stopped.is_up(), "{stopped:?} is stopped while it serves");
        stopped.worker = Worker::Stopped;
        // Its number is not used again; what it no longer needs is not kept.
        stopped.work = Vec::new();
    }
}

/// What clients reach of the rate they are given, by the work that they have themselves.
fn reached(scenario: &Scenario, rate: RequestsPerSecond) -> RequestsPerSecond {
    let overhead = scenario.simulation.client_overhead.as_secs_f64();
    let reached = rate.get() / (1.0 + rate.get() * overhead);
    RequestsPerSecond::new(reached).expect("at most the rate itself")
}

/// A plan that can be rolled out, if the policy has one.
fn answer(replanning: &mut Replanning<'_>, problem: &Problem) -> Option<Plan> {
    // A policy need not reckon with a cluster of nothing.
    if problem.devices.is_empty() {
        return None;
    }
    (replanning.policy)(problem).filter(|plan| plan.violations(problem).is_empty())
}

fn subject(scenario: &Scenario, replica: &Replica) -> Subject {
    Subject {
        device: replica.device,
        kind: scenario.problem.devices[replica.device].kind.clone(),
        model: scenario.problem.models[replica.model].id.clone(),
        compute_share: replica.compute_share,
    }
}
