//! The loop of a simulation with a group server, and the devices, links and weights around it.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BinaryHeap, VecDeque},
    time::Duration,
};

use packhorse_cluster::{DeviceIndex, ModelIndex, PlannedReplica, Time};
use packhorse_serving::RequestOutcome;
use packhorse_virtual::LinkTimes;

use super::{
    BatchOrder, ComputedBatch, ExitPoints, GroupAction, GroupRequest, GroupServer, group_server,
};
use crate::{
    Scenario,
    arrivals::{ArrivalProcess, arrival_processes},
    counters::{RunCounters, Stages},
    options::RunOptions,
    simulation::{SimulateError, check_replicas, link_times},
    timeline::{RequestEnd, Timeline},
};

/// The number of steps between two calls of the caller's function of progress, and two looks at whether the run shall stop.
const STEPS: u64 = 1 << 14;

/// A scheduled event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum GroupEvent {
    /// The next request of a model arrives.
    RequestArrives(usize),
    /// A batch reaches its device.
    BatchAtDevice(u64),
    /// A device has computed a batch, unless that was stopped.
    BatchComputed(u64),
    /// A device is free again after it has stopped a batch.
    BatchStopped(u64),
    /// The answer of a batch reaches the gateway.
    BatchAnswered(u64),
    /// A batch that was not begun in time is back.
    BatchRejected(u64),
    /// The gateway learns that the weights of a model are on a device.
    ModelLoaded { device: usize, model: usize },
}

/// A batch that was sent.
#[derive(Debug)]
struct SentBatch {
    order: BatchOrder,
    dispatched: Time,
    there: Time,
    started: Time,
    computed: Time,
    /// True once it was stopped: no answer counts.
    stopped: bool,
}

/// A device that computes one batch at a time.
#[derive(Debug, Default)]
struct Device {
    /// The batch that it computes, or that it has stopped and that has not reached its exit point.
    running: Option<u64>,
    /// The batches that are there and wait.
    waiting: VecDeque<u64>,
    /// The batches that were sent and have not been computed, stopped or rejected.
    held: VecDeque<u64>,
    /// The models whose weights are there or on their way, with their bytes.
    weights: BTreeMap<usize, u64>,
    link_free: Time,
    /// The time at which the link from the gateway has transmitted what was handed to it.
    transmitted: Time,
}

/// A simulation with a group server.
pub(crate) struct GroupWorld<'a> {
    scenario: &'a Scenario,
    server: Box<dyn GroupServer>,
    exit_points: Option<ExitPoints>,
    events: BinaryHeap<Reverse<(Time, u64, GroupEvent)>>,
    scheduled: u64,
    arrivals: Vec<ArrivalProcess>,
    devices: Vec<Device>,
    links: LinkTimes,
    batches: BTreeMap<u64, SentBatch>,
    requests: u64,
    /// The requests that have not ended.
    pending: u64,
    counters: RunCounters,
    timeline: Option<&'a mut Timeline>,
}

impl<'a> GroupWorld<'a> {
    /// Returns the simulation of a plan.
    ///
    /// # Errors
    /// Returns an error if the replicas do not fit the scenario, or if the run has what group servers do not know.
    pub(crate) fn new(
        scenario: &'a Scenario,
        plan: &[PlannedReplica],
        seed: u64,
        options: RunOptions<'a>,
    ) -> Result<Self, SimulateError> {
        let discipline = options.dispatch.discipline;
        check_replicas(scenario, plan)?;
        let without = [
            (options.replanning.is_some(), "new plans during the run"),
            (options.trace.is_some(), "a trace"),
            (scenario.autoscale.is_some(), "an autoscaler"),
            (!scenario.simulation.faults.is_empty(), "faults"),
            (!scenario.families.is_empty(), "families"),
        ];
        if let Some((_, what)) = without.into_iter().find(|(has, _)| *has) {
            return Err(SimulateError::NotForGroups { discipline, what });
        }
        let settings = &scenario.simulation;
        let models = scenario.problem.models.len();
        let Some((server, exit_points)) = group_server(discipline, scenario, plan) else {
            unreachable!("the caller has asked for a group server");
        };
        let mut devices = Vec::new();
        devices.resize_with(scenario.problem.devices.len(), Device::default);
        let mut world = Self {
            scenario,
            server,
            exit_points,
            events: BinaryHeap::new(),
            scheduled: 0,
            arrivals: arrival_processes(scenario, seed).collect(),
            links: link_times(settings),
            devices,
            batches: BTreeMap::new(),
            requests: 0,
            pending: 0,
            counters: RunCounters::new(models, settings.warmup, settings.window),
            timeline: options.timeline,
        };
        for model in 0..models {
            world.schedule_arrival(model);
        }
        Ok(world)
    }

    /// Runs until every request has ended.
    ///
    /// # Errors
    /// Returns an error if `stop` returns true, which it is asked now and then.
    pub(crate) fn run(
        mut self,
        progress: &mut dyn FnMut(Time),
        stop: &dyn Fn() -> bool,
    ) -> Result<RunCounters, SimulateError> {
        let (mut steps, mut actions) = (0_u64, Vec::new());
        loop {
            let next = self.events.peek().map(|Reverse((at, ..))| *at);
            let now = match (next, self.server.wake()) {
                (Some(next), wake) if wake.is_none_or(|wake| next <= wake) => {
                    let Reverse((now, _, event)) = self.events.pop().expect("just peeked");
                    self.handle(now, event);
                    now
                }
                (_, Some(wake)) => wake,
                (_, None) => break,
            };
            self.server.decide(now, &mut actions);
            for action in actions.drain(..) {
                self.execute(now, action);
            }
            steps += 1;
            if steps.is_multiple_of(STEPS) {
                progress(now);
                if stop() {
                    return Err(SimulateError::Stopped);
                }
            }
        }
        assert_eq!(self.pending, 0, "a request did not end");
        Ok(self.counters)
    }

    fn schedule(&mut self, at: Time, event: GroupEvent) {
        self.scheduled += 1;
        self.events.push(Reverse((at, self.scheduled, event)));
    }

    fn schedule_arrival(&mut self, model: usize) {
        if let Some(at) = self.arrivals[model].next()
            && at < self.counters.window_end()
        {
            self.schedule(at, GroupEvent::RequestArrives(model));
        }
    }

    fn handle(&mut self, now: Time, event: GroupEvent) {
        match event {
            GroupEvent::RequestArrives(model) => self.request_arrives(now, model),
            GroupEvent::BatchAtDevice(batch) => self.batch_at_device(now, batch),
            GroupEvent::BatchComputed(batch) => self.batch_computed(now, batch),
            GroupEvent::BatchStopped(batch) => self.batch_stopped(now, batch),
            GroupEvent::BatchAnswered(batch) => self.batch_answered(now, batch),
            GroupEvent::BatchRejected(batch) => {
                if let Some(sent) = self.batches.remove(&batch) {
                    self.server.batch_rejected(now, sent.order.device, batch);
                }
            }
            GroupEvent::ModelLoaded { device, model } => {
                self.server.model_loaded(now, device, model);
            }
        }
    }

    fn request_arrives(&mut self, now: Time, model: usize) {
        self.schedule_arrival(model);
        self.counters.request_arrived(model, now);
        let request = GroupRequest {
            deadline: now + self.scenario.problem.models[model].slo,
            number: self.requests,
            model,
        };
        self.requests += 1;
        self.pending += 1;
        self.server.request_arrived(now, request);
    }

    fn execute(&mut self, now: Time, action: GroupAction) {
        match action {
            GroupAction::Start(order) => self.send(now, order),
            GroupAction::Load { device, model } => self.load(now, device, model),
            GroupAction::Unload { device, model } => {
                let held = &self.devices[device].held;
                let used = held
                    .iter()
                    .any(|batch| self.batches[batch].order.model == model);
                assert!(!used, "a batch of the model is there");
                self.devices[device].weights.remove(&model);
            }
            GroupAction::Drop(request) => {
                self.pending -= 1;
                self.counters
                    .request_ended(request.model, RequestOutcome::Expired);
                self.count(request, RequestEnd::Dropped);
            }
        }
    }

    fn count(&mut self, request: GroupRequest, end: RequestEnd) {
        let arrived = self.arrived(request);
        if let Some(timeline) = &mut self.timeline {
            timeline.count(ModelIndex(request.model), arrived, end);
        }
    }

    /// Returns the time at which a request arrived.
    fn arrived(&self, request: GroupRequest) -> Time {
        let slo = self.scenario.problem.models[request.model].slo;
        request.deadline.saturating_sub(slo)
    }

    fn send(&mut self, now: Time, order: BatchOrder) {
        let BatchOrder {
            batch,
            device,
            model,
            preempts,
            ..
        } = order;
        let rows = order.requests.len();
        let bytes = self.scenario.problem.models[model].payload.as_u64() as f64 * rows as f64;
        let transmitted = &mut self.devices[device].transmitted;
        let there = self.links.send(now, transmitted, bytes);
        if let Some(victim) = preempts {
            self.devices[device].held.retain(|held| *held != victim);
            let victim = self.batches.get_mut(&victim);
            victim.expect("it was not answered").stopped = true;
        }
        self.counters.batch_sent(model, now, rows);
        self.devices[device].held.push_back(batch);
        let sent = SentBatch {
            order,
            dispatched: now,
            there,
            started: there,
            computed: there,
            stopped: false,
        };
        self.batches.insert(batch, sent);
        self.schedule(there, GroupEvent::BatchAtDevice(batch));
    }

    fn load(&mut self, now: Time, device: usize, model: usize) {
        let bytes = self.scenario.weights(model, device);
        let bytes = bytes.expect("the device can run the model");
        let memory = self.scenario.problem.devices[device].memory.as_u64();
        let on = &mut self.devices[device];
        on.weights.insert(model, bytes);
        let used: u64 = on.weights.values().sum();
        assert!(
            used <= memory,
            "device {device} has {used} bytes of weights"
        );
        let time = Duration::from_secs_f64(bytes as f64 / self.scenario.host_link(device));
        on.link_free = on.link_free.max(now) + time;
        let known = on.link_free + self.scenario.simulation.return_time;
        self.schedule(known, GroupEvent::ModelLoaded { device, model });
    }

    fn batch_at_device(&mut self, now: Time, batch: u64) {
        let sent = &self.batches[&batch];
        let (device, preempts) = (sent.order.device, sent.order.preempts.is_some());
        if sent.stopped {
            // It was stopped on its way.
            self.batches.remove(&batch);
            return;
        }
        if preempts {
            self.stop_stopped(now, device);
        }
        self.devices[device].waiting.push_back(batch);
        self.start_next(now, device);
    }

    /// Has a device leave the batch that was stopped at its next exit point.
    fn stop_stopped(&mut self, now: Time, device: usize) {
        let exit_points = self.exit_points;
        let exit_points = exit_points.expect("only a discipline with exit points stops batches");
        let batches = &mut self.batches;
        self.devices[device].waiting.retain(|batch| {
            let stopped = batches[batch].stopped;
            if stopped {
                batches.remove(batch);
            }
            !stopped
        });
        let running = self.devices[device].running;
        let Some(running) = running.filter(|running| self.batches[running].stopped) else {
            return;
        };
        let started = self.batches[&running].started;
        self.schedule(
            exit_points.next(started, now),
            GroupEvent::BatchStopped(running),
        );
    }

    fn start_next(&mut self, now: Time, device: usize) {
        while self.devices[device].running.is_none()
            && let Some(batch) = self.devices[device].waiting.pop_front()
        {
            let sent = self.batches.get_mut(&batch).expect("it waits");
            if sent.order.latest.is_some_and(|latest| latest < now) {
                self.devices[device].held.retain(|held| *held != batch);
                let back = now + self.scenario.simulation.return_time;
                self.schedule(back, GroupEvent::BatchRejected(batch));
                continue;
            }
            sent.started = now;
            let (model, rows) = (sent.order.model, sent.order.requests.len());
            let compute = self.compute_time(model, device, rows);
            self.devices[device].running = Some(batch);
            self.schedule(now + compute, GroupEvent::BatchComputed(batch));
        }
    }

    /// Returns the real time of a batch.
    fn compute_time(&self, model: usize, device: usize, rows: usize) -> Duration {
        let problem = &self.scenario.problem;
        let profile = problem.profile(ModelIndex(model), DeviceIndex(device));
        let profile = profile.expect("a device gets batches that it can compute");
        let rows = u32::try_from(rows).expect("a batch is small");
        let scale = self.scenario.workloads[model].latency_scale;
        let compute = profile.latency(rows).mul_f64(scale);
        match self.exit_points {
            Some(exit_points) => exit_points.stretched(compute),
            None => compute,
        }
    }

    fn batch_computed(&mut self, now: Time, batch: u64) {
        let Some(sent) = self.batches.get_mut(&batch) else {
            return;
        };
        let device = sent.order.device;
        let on = &mut self.devices[device];
        if on.running != Some(batch) {
            return;
        }
        on.running = None;
        if sent.stopped {
            self.batches.remove(&batch);
        } else {
            sent.computed = now;
            on.held.retain(|held| *held != batch);
            let answered = now + self.scenario.simulation.return_time;
            self.schedule(answered, GroupEvent::BatchAnswered(batch));
        }
        self.start_next(now, device);
    }

    fn batch_stopped(&mut self, now: Time, batch: u64) {
        let Some(sent) = self.batches.remove(&batch) else {
            return;
        };
        let device = sent.order.device;
        self.devices[device].running = None;
        self.start_next(now, device);
    }

    fn batch_answered(&mut self, now: Time, batch: u64) {
        let sent = self.batches.remove(&batch).expect("it was computed");
        if sent.stopped {
            return;
        }
        let BatchOrder {
            device,
            model,
            requests,
            ..
        } = sent.order;
        let compute = sent.computed.saturating_since(sent.started);
        let stages = Stages {
            network: sent.there.saturating_since(sent.dispatched)
                + now.saturating_since(sent.computed),
            worker_queue: sent.started.saturating_since(sent.there),
            compute,
        };
        let rows = requests.len();
        let slo = self.scenario.problem.models[model].slo;
        let times: Vec<(Time, Duration, Duration)> = requests
            .iter()
            .map(|request| {
                let arrived = self.arrived(*request);
                let waited = sent.dispatched.saturating_since(arrived);
                (arrived, waited, Duration::ZERO)
            })
            .collect();
        self.counters
            .batch_answered(model, now, slo, stages, times.into_iter());
        for request in requests {
            self.pending -= 1;
            let end = if now <= request.deadline {
                RequestEnd::WithinSlo
            } else {
                RequestEnd::Late
            };
            self.count(request, end);
        }
        let computed = ComputedBatch {
            batch,
            device,
            model,
            rows: u32::try_from(rows).expect("a batch is small"),
            compute,
            at: sent.computed,
        };
        self.server.batch_computed(now, computed);
    }
}
