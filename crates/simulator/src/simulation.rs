//! A discrete-event simulation of arrivals, network and devices around the serving engine.
//!
//! The loop is that of the gateway's driver, with an event queue in the place of sockets: it passes events to the engine and executes
//! the engine's actions. Events of the same time are handled in the order in which they were scheduled.

mod control;
mod faults;
mod feedback;
mod numbered_queue;
mod replica;

use std::{cmp::Reverse, collections::BinaryHeap, time::Duration};

use packhorse_cluster::{Discipline, PlannedReplica, Time};
use packhorse_control::rollout::LinkPhase;
use packhorse_serving::{
    Action, BatchKey, Engine, EngineConfig, Event, ModelKey, ModelLimits, ReplicaKey, Request,
    RequestKey, ShapeClass,
};

use crate::{
    Scenario,
    arrivals::{ArrivalProcess, arrival_processes},
    counters::{RunCounters, Stages},
    device::{CompletedBatch, Device, QueuedBatch},
    options::{DispatchOptions, Replanning},
    report::ReplanningReport,
};
use control::Control;
use numbered_queue::NumberedQueue;
pub use replica::SimulateError;
use replica::{SimulatedReplica, WorkerState, check_replica};

/// A scheduled event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum SimEvent {
    /// The next request of a model arrives.
    RequestArrives(usize),
    /// A batch reaches its worker.
    BatchAtWorker(u64),
    /// A device has computed a batch. Outdated unless the device still has this revision.
    DeviceCompletes { device: usize, revision: u64 },
    /// The answer of a batch reaches the gateway.
    BatchAnswered(u64),
    /// A fault begins.
    FaultBegins(usize),
    /// The gateway notices a fault.
    FaultNoticed(usize),
    /// A fault ends.
    FaultEnds(usize),
    /// The policy makes a new plan.
    Replan,
    /// A worker has loaded its model. Outdated unless this is still the worker's attempt.
    ModelLoaded { replica: usize, attempt: u32 },
}

#[derive(Clone, Copy, Debug)]
struct PendingRequest {
    model: usize,
    arrived: Time,
    ended: bool,
}

/// A batch that was sent, with the times of its stages so far.
#[derive(Debug)]
struct InFlightBatch {
    replica: usize,
    requests: Vec<RequestKey>,
    /// The time since which the replica had the free credit that the batch took.
    free_since: Time,
    dispatched: Time,
    reached_worker: Time,
    started: Time,
    computed: Time,
    /// True if the batch was answered or its replica was lost.
    ended: bool,
}

pub(crate) struct Simulation<'a> {
    scenario: &'a Scenario,
    engine: Engine,
    discipline: Discipline,
    events: BinaryHeap<Reverse<(Time, u64, SimEvent)>>,
    /// The number of events scheduled so far. It orders events of the same time.
    scheduled: u64,
    arrivals: Vec<ArrivalProcess>,
    /// The control plane; `None` if the plan stays as it is.
    control: Option<Control<'a>>,
    /// The largest batch of each model, in rows, as the engine has it.
    max_batch_rows: Vec<u32>,
    replicas: Vec<SimulatedReplica>,
    devices: Vec<Device>,
    /// The number of faults that keep each device down.
    down: Vec<u32>,
    /// True for each fault that has begun and not ended.
    fault_active: Vec<bool>,
    /// The extra network latency because of faults.
    network_delay: Duration,
    requests: NumberedQueue<PendingRequest>,
    batches: NumberedQueue<InFlightBatch>,
    counters: RunCounters,
    /// An empty list, kept for its memory.
    completed: Vec<CompletedBatch>,
    /// Returns the factor of each batch's time, in tests that replace profiled times.
    #[cfg(test)]
    pub(crate) time_factor: Option<Box<dyn FnMut() -> f64>>,
}

impl<'a> Simulation<'a> {
    pub(crate) fn new(
        scenario: &'a Scenario,
        plan: &[PlannedReplica],
        dispatch: DispatchOptions,
        seed: u64,
        replanning: Option<Replanning<'a>>,
    ) -> Result<Self, SimulateError> {
        for (i, planned) in plan.iter().enumerate() {
            check_replica(scenario, i, planned)?;
        }
        let settings = &scenario.simulation;
        let models = scenario.problem.models.len();
        let device = || Device::new(settings.interference);
        let devices: Vec<Device> = std::iter::repeat_with(device)
            .take(scenario.problem.devices.len())
            .collect();
        let config = EngineConfig {
            discipline: dispatch.discipline,
            deadline: dispatch.deadline,
            max_batch_wait: scenario.max_batch_wait,
            ..EngineConfig::default()
        };
        let mut simulation = Self {
            scenario,
            engine: Engine::new(config),
            discipline: dispatch.discipline,
            events: BinaryHeap::new(),
            scheduled: 0,
            arrivals: arrival_processes(scenario, seed).collect(),
            control: replanning.map(|replanning| Control::new(scenario, plan, replanning)),
            max_batch_rows: vec![1; models],
            replicas: Vec::with_capacity(plan.len()),
            down: vec![0; devices.len()],
            devices,
            fault_active: vec![false; settings.faults.len()],
            network_delay: Duration::ZERO,
            requests: NumberedQueue::new(),
            batches: NumberedQueue::new(),
            counters: RunCounters::new(models, settings.warmup, settings.window),
            completed: Vec::new(),
            #[cfg(test)]
            time_factor: None,
        };
        simulation.start(plan);
        Ok(simulation)
    }

    /// Registers the models and the plan's replicas with the engine, and schedules the first events.
    fn start(&mut self, plan: &[PlannedReplica]) {
        for model in 0..self.arrivals.len() {
            let of_model = plan.iter().filter(|planned| planned.model.0 == model);
            let max_batch_rows = of_model.map(|planned| planned.batch_size).max();
            self.update_model(Time::ZERO, model, max_batch_rows.unwrap_or(1));
            self.schedule_arrival(model);
        }
        for planned in plan {
            let replica = self.add_replica(planned);
            self.replicas[replica].worker = WorkerState::Ready;
            self.serve_replica(Time::ZERO, replica);
        }
        if let Some(control) = &self.control {
            self.schedule(Time::ZERO + control.every(), SimEvent::Replan);
        }
        for (i, fault) in self.scenario.simulation.faults.iter().enumerate() {
            self.schedule(fault.at, SimEvent::FaultBegins(i));
            self.schedule(fault.at + fault.duration, SimEvent::FaultEnds(i));
        }
    }

    /// Runs until every request has ended. Calls `progress` with the simulated time every 65,536 steps.
    pub(crate) fn run(
        mut self,
        progress: &mut dyn FnMut(Time),
    ) -> (RunCounters, Option<ReplanningReport>) {
        let mut steps = 0_u64;
        loop {
            let timeout = self.engine.poll_timeout();
            let next = self.events.peek().map(|Reverse((at, ..))| *at);
            let now = match (next, timeout) {
                (Some(next), timeout) if timeout.is_none_or(|timeout| next <= timeout) => {
                    let Reverse((now, _, event)) = self.events.pop().expect("just peeked");
                    self.handle(now, event);
                    now
                }
                (_, Some(timeout)) => timeout,
                (_, None) => break,
            };
            while let Some(action) = self.engine.poll(now) {
                self.execute(now, action);
            }
            steps += 1;
            if steps.is_multiple_of(1 << 16) {
                progress(now);
            }
        }
        let books = self.engine.books();
        assert!(
            books.is_balanced() && books.queued == 0 && books.in_flight == 0,
            "a request did not end: {books:?}"
        );
        (self.counters, self.control.map(|control| control.report))
    }

    fn schedule(&mut self, at: Time, event: SimEvent) {
        self.scheduled += 1;
        self.events.push(Reverse((at, self.scheduled, event)));
    }

    fn schedule_arrival(&mut self, model: usize) {
        let Some(at) = self.arrivals[model].next() else {
            return;
        };
        if at < self.counters.window_end() {
            self.schedule(at, SimEvent::RequestArrives(model));
        }
    }

    fn schedule_completion(&mut self, device: usize) {
        if let Some((at, revision)) = self.devices[device].next_completion() {
            self.schedule(at, SimEvent::DeviceCompletes { device, revision });
        }
    }

    fn handle(&mut self, now: Time, event: SimEvent) {
        match event {
            SimEvent::RequestArrives(model) => self.request_arrives(now, model),
            SimEvent::BatchAtWorker(batch) => self.batch_at_worker(now, batch),
            SimEvent::DeviceCompletes { device, revision } => {
                self.device_completes(now, device, revision);
            }
            SimEvent::BatchAnswered(batch) => self.batch_answered(now, batch),
            SimEvent::FaultBegins(fault) => self.fault_begins(now, fault),
            SimEvent::FaultNoticed(fault) => self.fault_noticed(now, fault),
            SimEvent::FaultEnds(fault) => self.fault_ends(now, fault),
            SimEvent::Replan => self.replan(now),
            SimEvent::ModelLoaded { replica, attempt } => self.model_loaded(now, replica, attempt),
        }
    }

    fn request_arrives(&mut self, now: Time, model: usize) {
        self.counters.request_arrived(model, now);
        if let Some(control) = &mut self.control {
            control.feedback.arrived(model);
        }
        let id = RequestKey(self.requests.push(PendingRequest {
            model,
            arrived: now,
            ended: false,
        }));
        let request = Request {
            id,
            model: model_key(model),
            rows: 1,
            bytes: self.scenario.problem.models[model].payload.as_u64(),
            class: ShapeClass(0),
            priority: 0,
            deadline: now + self.scenario.problem.models[model].slo,
        };
        self.engine.handle(now, Event::RequestArrived(request));
        self.schedule_arrival(model);
    }

    fn execute(&mut self, now: Time, action: Action) {
        match action {
            Action::Dispatch {
                batch,
                replica,
                requests,
            } => self.send_batch(now, batch, replica.0 as usize, requests),
            Action::Finish { request, outcome } => {
                let pending = self
                    .requests
                    .get_mut(request.0)
                    .expect("a request ends once");
                pending.ended = true;
                self.counters.request_ended(pending.model, outcome);
                self.requests.remove_ended(|pending| pending.ended);
            }
            Action::ReplicaEjected { .. } | Action::ReplicaRestored { .. } => {
                unreachable!("no simulated batch fails")
            }
            Action::ReplicaDrained { replica } => {
                self.replicas[replica.0 as usize].link = Some(LinkPhase::Drained);
                self.roll_out(now);
            }
        }
    }

    fn send_batch(
        &mut self,
        now: Time,
        batch: BatchKey,
        replica_index: usize,
        requests: Vec<RequestKey>,
    ) {
        let settings = &self.scenario.simulation;
        let replica = &mut self.replicas[replica_index];
        replica.used_credits += 1;
        let model = replica.model;
        let bytes =
            self.scenario.problem.models[model].payload.as_u64() as f64 * requests.len() as f64;
        let transmission = Duration::from_secs_f64(bytes / settings.network.bytes_per_second);
        let reached_worker = now
            + settings.router_overhead
            + settings.network.base
            + transmission
            + self.network_delay;
        self.counters.batch_sent(model, now, requests.len());
        let number = self.batches.push(InFlightBatch {
            replica: replica_index,
            requests,
            free_since: replica.free_since,
            dispatched: now,
            reached_worker,
            started: reached_worker,
            computed: reached_worker,
            ended: false,
        });
        assert_eq!(number, batch.0, "the engine counts its batches from 0");
        self.schedule(reached_worker, SimEvent::BatchAtWorker(number));
    }

    fn batch_at_worker(&mut self, now: Time, number: u64) {
        let batch = self.batches.get_mut(number);
        let Some(batch) = batch.filter(|batch| !batch.ended) else {
            return;
        };
        let replica = &self.replicas[batch.replica];
        if self.down[replica.device] > 0 {
            return;
        }
        let (solo_time, demand) = replica.batch_costs[batch.requests.len() - 1];
        #[cfg(test)]
        let solo_time = match &mut self.time_factor {
            Some(factor) => solo_time.mul_f64(factor()),
            None => solo_time,
        };
        let (device, index) = (replica.device, replica.index_on_device);
        let queued = QueuedBatch {
            batch: BatchKey(number),
            solo_time,
            demand,
        };
        self.devices[device].enqueue(now, index, queued);
        self.schedule_completion(device);
    }

    fn device_completes(&mut self, now: Time, device: usize, revision: u64) {
        let mut completed = std::mem::take(&mut self.completed);
        self.devices[device].complete(now, revision, &mut completed);
        if !completed.is_empty() {
            let answered = now + self.scenario.simulation.return_time + self.network_delay;
            for done in completed.drain(..) {
                let batch = self
                    .batches
                    .get_mut(done.batch.0)
                    .expect("a batch on a device has not ended");
                (batch.started, batch.computed) = (done.started, now);
                self.schedule(answered, SimEvent::BatchAnswered(done.batch.0));
            }
            self.schedule_completion(device);
        }
        self.completed = completed;
    }

    fn batch_answered(&mut self, now: Time, number: u64) {
        let batch = self.batches.get_mut(number);
        let Some(batch) = batch.filter(|batch| !batch.ended) else {
            return;
        };
        batch.ended = true;
        let replica = &mut self.replicas[batch.replica];
        if self.discipline != Discipline::FixedWait
            && replica.used_credits == replica.parameters.credits
        {
            replica.free_since = now;
        }
        replica.used_credits -= 1;
        let compute = batch.computed.saturating_since(batch.started);
        let stages = Stages {
            network: batch.reached_worker.saturating_since(batch.dispatched)
                + now.saturating_since(batch.computed),
            worker_queue: batch.started.saturating_since(batch.reached_worker),
            compute,
        };
        if let Some(control) = &mut self.control {
            let rows = batch.requests.len();
            let expected = replica.solo_time(rows, self.scenario);
            control
                .feedback
                .computed(batch.replica, rows, compute, expected);
        }
        let slo = self.scenario.problem.models[replica.model].slo;
        let requests = batch.requests.iter().map(|request| {
            let pending = self
                .requests
                .get_mut(request.0)
                .expect("a request ends once");
            pending.ended = true;
            let waited = batch.dispatched.saturating_since(pending.arrived);
            let queue = batch
                .free_since
                .saturating_since(pending.arrived)
                .min(waited);
            (pending.arrived, queue, waited.saturating_sub(queue))
        });
        self.counters
            .batch_answered(replica.model, now, slo, stages, requests);
        self.requests.remove_ended(|pending| pending.ended);
        self.batches.remove_ended(|batch| batch.ended);
        self.engine.handle(
            now,
            Event::BatchCompleted {
                batch: BatchKey(number),
                queue_wait: stages.worker_queue,
                compute,
            },
        );
    }

    /// Registers a model with the engine, or updates its largest batch.
    fn update_model(&mut self, now: Time, model: usize, max_batch_rows: u32) {
        self.max_batch_rows[model] = max_batch_rows;
        let limits = ModelLimits {
            max_batch_rows,
            // Links never queue, and no payload is too large for them.
            max_batch_bytes: u64::MAX,
            queue_limit: ModelLimits::DEFAULT_QUEUE_LIMIT,
        };
        let model = model_key(model);
        self.engine
            .handle(now, Event::ModelUpdated { model, limits });
    }

    /// Adds a replica whose worker does not run yet. Its model must have a profile for its device.
    fn add_replica(&mut self, planned: &PlannedReplica) -> usize {
        let index_on_device = self.devices[planned.device.0].add_replica();
        let replica = SimulatedReplica::new(self.scenario, planned, index_on_device);
        self.replicas.push(replica);
        self.replicas.len() - 1
    }

    /// Registers a replica with the engine, which may send batches to it from now on.
    fn serve_replica(&mut self, now: Time, index: usize) {
        let replica = &mut self.replicas[index];
        replica.link = Some(LinkPhase::Serving);
        (replica.used_credits, replica.free_since) = (0, now);
        let parameters = replica.parameters.clone();
        let model = replica.model;
        if parameters.batch_size > self.max_batch_rows[model] {
            self.update_model(now, model, parameters.batch_size);
        }
        let replica = replica_key(index);
        self.engine.handle(
            now,
            Event::ReplicaReady {
                replica,
                parameters,
            },
        );
    }
}

fn model_key(model: usize) -> ModelKey {
    ModelKey(u32::try_from(model).expect("a scenario's models are limited"))
}

fn replica_key(replica: usize) -> ReplicaKey {
    ReplicaKey(u32::try_from(replica).expect("a plan's replicas are limited"))
}
