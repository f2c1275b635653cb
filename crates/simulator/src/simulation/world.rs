//! The state of a simulation: the engine, the devices and replicas, and what is under way.

use std::{cmp::Reverse, collections::BinaryHeap, time::Duration};

use packhorse_cluster::{Discipline, ModelIndex, PlannedReplica, Time};
use packhorse_contention::{CompletedBatch, SharedDevice};
use packhorse_control::{Command, LinkState};
use packhorse_serving::{BatchKey, Engine, EngineConfig, Event, ModelLimits, RequestKey};

use super::{
    autoscaler::Autoscaler,
    control::Control,
    event::SimEvent,
    keys::{model_key, replica_key},
    numbered_queue::NumberedQueue,
    replica::{SimulateError, SimulatedReplica, WorkerState, check_replica},
};
use crate::{
    Scenario,
    arrivals::{ArrivalProcess, arrival_processes},
    counters::RunCounters,
    device_links::DeviceLinks,
    options::RunOptions,
    run_trace::RunTrace,
    timeline::Timeline,
};

#[derive(Clone, Copy, Debug)]
pub(super) struct PendingRequest {
    pub(super) model: usize,
    pub(super) arrived: Time,
    pub(super) ended: bool,
}

/// The time without a gateway.
#[derive(Debug, Default)]
pub(super) struct Outage {
    /// The gateways that have died and are not back: faults overlap.
    pub(super) deaths: u32,
    /// The replicas that served, with the states of their links.
    pub(super) served: Vec<(usize, LinkState)>,
    /// The commands of admins, who repeat them until they are executed.
    pub(super) commands: Vec<Command>,
}

/// The clients of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Clients {
    /// They wait until a replica serves their model, which is added during the run.
    Waiting,
    /// They send requests.
    Sending,
    /// They have ended, because their model is being removed.
    Ended,
}

/// A batch that was sent, with the times of its stages so far.
#[derive(Debug)]
pub(super) struct InFlightBatch {
    pub(super) replica: usize,
    pub(super) requests: Vec<RequestKey>,
    /// The time since which the replica had the free credit that the batch took.
    pub(super) free_since: Time,
    pub(super) dispatched: Time,
    pub(super) reached_worker: Time,
    pub(super) started: Time,
    pub(super) computed: Time,
    /// True if the batch was answered or its replica was lost.
    pub(super) ended: bool,
}

pub(crate) struct Simulation<'a> {
    pub(super) scenario: &'a Scenario,
    pub(super) engine: Engine,
    pub(super) engine_config: EngineConfig,
    /// The number of the engine's first batch: that of the first one after the gateway's last start.
    pub(super) first_batch: u64,
    /// The replicas that served when the gateway died; `None` while it runs.
    pub(super) outage: Option<Outage>,
    pub(super) discipline: Discipline,
    pub(super) events: BinaryHeap<Reverse<(Time, u64, SimEvent)>>,
    /// The number of events scheduled so far. It orders events of the same time.
    pub(super) scheduled: u64,
    pub(super) arrivals: Vec<ArrivalProcess>,
    /// The control plane; `None` if the plan stays as it is.
    pub(super) control: Option<Control<'a>>,
    /// The autoscaler; `None` if the devices stay.
    pub(super) autoscaler: Option<Autoscaler>,
    /// The largest batch of each model, in rows, as the engine has it.
    pub(super) max_batch_rows: Vec<u32>,
    pub(super) replicas: Vec<SimulatedReplica>,
    pub(super) devices: Vec<SharedDevice<BatchKey>>,
    /// The number of faults that keep each device down.
    pub(super) down: Vec<u32>,
    /// The clients of each model.
    pub(super) clients: Vec<Clients>,
    /// True for each fault that has begun and not ended.
    pub(super) fault_active: Vec<bool>,
    pub(super) links: DeviceLinks,
    /// The extra network latency because of faults.
    pub(super) network_delay: Duration,
    pub(super) requests: NumberedQueue<PendingRequest>,
    pub(super) batches: NumberedQueue<InFlightBatch>,
    pub(super) counters: RunCounters,
    /// The requests and batches over time, if somebody wants them.
    pub(super) trace: Option<&'a mut RunTrace>,
    /// The numbers of requests over time, if somebody wants them.
    pub(super) timeline: Option<&'a mut Timeline>,
    /// Returns true to stop the run.
    pub(super) stop: Option<&'a dyn Fn() -> bool>,
    /// An empty list, kept for its memory.
    pub(super) completed: Vec<CompletedBatch<BatchKey>>,
    /// Returns the factor of each batch's time, in tests that replace profiled times.
    #[cfg(test)]
    pub(crate) time_factor: Option<Box<dyn FnMut() -> f64>>,
}

impl<'a> Simulation<'a> {
    pub(crate) fn new(
        scenario: &'a Scenario,
        plan: &[PlannedReplica],
        seed: u64,
        options: RunOptions<'a>,
    ) -> Result<Self, SimulateError> {
        let RunOptions {
            dispatch,
            replanning,
            trace,
            timeline,
            stop,
        } = options;
        for (i, planned) in plan.iter().enumerate() {
            check_replica(scenario, i, planned)?;
        }
        let mut faults = scenario.simulation.faults.iter();
        if replanning.is_none()
            && let Some(number) = faults.position(|fault| fault.kind.is_admins())
        {
            return Err(SimulateError::NoControlPlane(number));
        }
        let rule = replanning.as_ref();
        let rule = rule.and_then(|replanning| replanning.scaling.as_ref());
        let autoscaler = Autoscaler::new(scenario, rule);
        if scenario.autoscale.is_some() && autoscaler.is_none() {
            return Err(SimulateError::NoAutoscaler);
        }
        let settings = &scenario.simulation;
        let models = scenario.problem.models.len();
        let device = || SharedDevice::new(settings.interference);
        let devices: Vec<SharedDevice<BatchKey>> = std::iter::repeat_with(device)
            .take(scenario.problem.devices.len())
            .collect();
        let engine_config = EngineConfig {
            discipline: dispatch.discipline,
            deadline: dispatch.deadline,
            max_batch_wait: scenario.max_batch_wait,
            ..EngineConfig::default()
        };
        let mut simulation = Self {
            scenario,
            engine: Engine::new(engine_config),
            engine_config,
            first_batch: 0,
            outage: None,
            discipline: dispatch.discipline,
            events: BinaryHeap::new(),
            scheduled: 0,
            arrivals: arrival_processes(scenario, seed).collect(),
            control: replanning
                .map(|replanning| Control::new(scenario, plan, dispatch.discipline, replanning)),
            autoscaler,
            max_batch_rows: vec![1; models],
            replicas: Vec::with_capacity(plan.len()),
            down: vec![0; devices.len()],
            links: DeviceLinks::new(settings, devices.len()),
            devices,
            clients: (0..models)
                .map(|model| {
                    if scenario.is_added_later(ModelIndex(model)) {
                        Clients::Waiting
                    } else {
                        Clients::Sending
                    }
                })
                .collect(),
            fault_active: vec![false; settings.faults.len()],
            network_delay: Duration::ZERO,
            requests: NumberedQueue::new(),
            batches: NumberedQueue::new(),
            counters: RunCounters::new(models, settings.warmup, settings.window),
            trace,
            timeline,
            stop,
            completed: Vec::new(),
            #[cfg(test)]
            time_factor: None,
        };
        simulation.start(plan);
        Ok(simulation)
    }

    /// Registers the models and the plan's replicas with the engine, and schedules the first events.
    pub(super) fn start(&mut self, plan: &[PlannedReplica]) {
        for model in 0..self.arrivals.len() {
            let of_model = plan.iter().filter(|planned| planned.model.0 == model);
            let max_batch_rows = of_model.map(|planned| planned.batch_size).max();
            self.update_model(Time::ZERO, model, max_batch_rows.unwrap_or(1));
            self.schedule_arrival(model);
        }
        self.set_fallbacks(Time::ZERO);
        for planned in plan {
            let replica = self.add_replica(planned);
            self.replicas[replica].worker = WorkerState::Ready;
            if self.control.is_none() {
                self.serve_replica(Time::ZERO, replica);
            }
        }
        self.start_control();
        self.start_autoscaler();
        for (i, fault) in self.scenario.simulation.faults.iter().enumerate() {
            self.schedule(fault.at, SimEvent::FaultBegins(i));
            self.schedule(fault.at + fault.duration, SimEvent::FaultEnds(i));
        }
    }

    pub(super) fn schedule(&mut self, at: Time, event: SimEvent) {
        self.scheduled += 1;
        self.events.push(Reverse((at, self.scheduled, event)));
    }

    pub(super) fn schedule_arrival(&mut self, model: usize) {
        let Some(at) = self.arrivals[model].next() else {
            return;
        };
        if at < self.counters.window_end() {
            self.schedule(at, SimEvent::RequestArrives(model));
        }
    }

    pub(super) fn schedule_completion(&mut self, device: usize) {
        if let Some((at, revision)) = self.devices[device].next_completion() {
            self.schedule(at, SimEvent::DeviceCompletes { device, revision });
        }
    }

    /// Registers a model with the engine, or updates its largest batch.
    pub(super) fn update_model(&mut self, now: Time, model: usize, max_batch_rows: u32) {
        self.max_batch_rows[model] = max_batch_rows;
        let limits = ModelLimits {
            max_batch_rows,
            // No payload is too large for a simulated link.
            max_batch_bytes: u64::MAX,
            queue_limit: ModelLimits::DEFAULT_QUEUE_LIMIT,
        };
        let model = model_key(model);
        self.engine
            .handle(now, Event::ModelUpdated { model, limits });
    }

    /// Tells the engine which model of a family answers where the more accurate ones cannot.
    pub(super) fn set_fallbacks(&mut self, now: Time) {
        for family in &self.scenario.families {
            for pair in family.variants.windows(2) {
                let [model, fallback] = [0, 1].map(|i| model_key(pair[i].model.0));
                let fallback = Some(fallback);
                self.engine
                    .handle(now, Event::FallbackChanged { model, fallback });
            }
        }
    }

    /// Adds a replica whose worker does not run yet. Its model must have a profile for its device.
    pub(super) fn add_replica(&mut self, planned: &PlannedReplica) -> usize {
        let index_on_device = self.devices[planned.device.0].add_replica();
        let replica = SimulatedReplica::new(self.scenario, planned, index_on_device);
        self.replicas.push(replica);
        self.replicas.len() - 1
    }

    /// Registers a replica with the engine, which may send batches to it from now on.
    pub(super) fn serve_replica(&mut self, now: Time, index: usize) {
        let replica = &mut self.replicas[index];
        let clients = &mut self.clients[replica.model];
        if *clients == Clients::Waiting {
            *clients = Clients::Sending;
        }
        replica.link = Some(LinkState::Serving);
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
