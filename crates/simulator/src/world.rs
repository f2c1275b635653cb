//! The simulated world: arrivals, network and devices around the serving engine, in virtual time.
//!
//! The loop is the driver's of the gateway with an event queue in the place of sockets: it tells the engine what happens and
//! carries out what the engine says. Events of one moment happen in the order in which they were foreseen.

mod control;
mod faults;
mod feedback;
mod replica;
mod window;

use std::{cmp::Reverse, collections::BinaryHeap, time::Duration};

use packhorse_cluster::{Discipline, PlannedReplica, Time};
use packhorse_control::rollout::LinkPhase;
use packhorse_serving::{
    Action, BatchId, Engine, EngineConfig, Event, ModelKey, ModelLimits, ReplicaKey, Request,
    RequestId, ShapeClass,
};

use crate::{
    Dispatch, Replanning, Scenario,
    arrivals::{Source, sources},
    device::{Computed, Device, Work},
    tally::{Stages, Tally},
};
use control::Control;
pub use replica::SimulateError;
use replica::{Replica, Worker, check};
use window::Window;

/// Something that is going to happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Happening {
    /// The next request of a model arrives.
    Arrival(usize),
    /// A batch reaches its worker.
    AtWorker(u64),
    /// A device has computed something, if nothing came between.
    Device {
        device: usize,
        revision: u64,
    },
    /// A batch's answer reaches the gateway.
    Back(u64),
    /// A fault begins, is noticed, ends.
    FaultBegins(usize),
    FaultNoticed(usize),
    FaultEnds(usize),
    /// The policy is asked again.
    Replan,
    /// A worker has loaded its model, if nothing came between.
    Loaded {
        replica: usize,
        attempt: u32,
    },
}

#[derive(Clone, Copy, Debug)]
struct Pending {
    model: usize,
    arrived: Time,
    ended: bool,
}

/// A batch on its way.
#[derive(Debug)]
struct Flight {
    replica: usize,
    /// When its requests arrived.
    arrived: Vec<RequestId>,
    free_since: Time,
    dispatched: Time,
    reached: Time,
    started: Time,
    computed: Time,
    /// It came back, or its replica was lost.
    over: bool,
}

pub(crate) struct World<'a> {
    scenario: &'a Scenario,
    engine: Engine,
    discipline: Discipline,
    happenings: BinaryHeap<Reverse<(Time, u64, Happening)>>,
    foreseen: u64,
    sources: Vec<Source>,
    /// In runs that replan.
    control: Option<Control<'a>>,
    /// The most rows of a batch, by model: what the engine was told.
    largest: Vec<u32>,
    replicas: Vec<Replica>,
    devices: Vec<Device>,
    /// How many faults hold a device down.
    down: Vec<u32>,
    faulty: Vec<bool>,
    /// What the network takes longer because of faults.
    delay: Duration,
    /// Requests and batches by number, without those in front that are over.
    requests: Window<Pending>,
    flights: Window<Flight>,
    tally: Tally,
    computed: Vec<Computed>,
    /// What multiplies the time of each batch, where a test wants other than profiled times.
    #[cfg(test)]
    pub(crate) stretch: Option<Box<dyn FnMut() -> f64>>,
}

impl<'a> World<'a> {
    pub(crate) fn new(
        scenario: &'a Scenario,
        plan: &[PlannedReplica],
        dispatch: Dispatch,
        seed: u64,
        replanning: Option<Replanning<'a>>,
    ) -> Result<Self, SimulateError> {
        for (i, planned) in plan.iter().enumerate() {
            check(scenario, i, planned)?;
        }
        let simulation = &scenario.simulation;
        let models = scenario.problem.models.len();
        let device = || Device::new(simulation.interference);
        let devices: Vec<Device> = std::iter::repeat_with(device)
            .take(scenario.problem.devices.len())
            .collect();
        let config = EngineConfig {
            discipline: dispatch.discipline,
            deadline: dispatch.deadline,
            max_batch_wait: scenario.max_batch_wait,
            ..EngineConfig::default()
        };
        let mut world = Self {
            scenario,
            engine: Engine::new(config),
            discipline: dispatch.discipline,
            happenings: BinaryHeap::new(),
            foreseen: 0,
            sources: sources(scenario, seed).collect(),
            control: replanning.map(|replanning| Control::new(scenario, plan, replanning)),
            largest: vec![1; models],
            replicas: Vec::with_capacity(plan.len()),
            down: vec![0; devices.len()],
            devices,
            faulty: vec![false; simulation.faults.len()],
            delay: Duration::ZERO,
            requests: Window::new(),
            flights: Window::new(),
            tally: Tally::new(models, simulation.warmup, simulation.window),
            computed: Vec::new(),
            #[cfg(test)]
            stretch: None,
        };
        world.set_up(plan);
        Ok(world)
    }

    fn set_up(&mut self, plan: &[PlannedReplica]) {
        for model in 0..self.sources.len() {
            let of_model = plan.iter().filter(|planned| planned.model.0 == model);
            let largest = of_model.map(|planned| planned.batch_size).max();
            self.model_up(Time::ZERO, model, largest.unwrap_or(1));
            self.foresee_arrival(model);
        }
        for planned in plan {
            let replica = self.add(planned);
            self.replicas[replica].worker = Worker::Ready;
            self.replica_up(Time::ZERO, replica);
        }
        if let Some(control) = &self.control {
            self.foresee(Time::ZERO + control.every(), Happening::Replan);
        }
        for (i, fault) in self.scenario.simulation.faults.iter().enumerate() {
            self.foresee(fault.at, Happening::FaultBegins(i));
            self.foresee(fault.at + fault.lasts, Happening::FaultEnds(i));
        }
    }

    /// Runs until every request has ended; tells `progress` the simulated moment now and then.
    pub(crate) fn run(mut self, progress: &mut dyn FnMut(Time)) -> Tally {
        let mut steps = 0_u64;
        loop {
            let wake = self.engine.poll_timeout();
            let next = self.happenings.peek().map(|Reverse((at, ..))| *at);
            let now = match (next, wake) {
                (Some(next), wake) if wake.is_none_or(|wake| next <= wake) => {
                    let Reverse((now, _, happening)) = self.happenings.pop().expect("just seen");
                    self.happen(now, happening);
                    now
                }
                (_, Some(wake)) => wake,
                (_, None) => break,
            };
            while let Some(action) = self.engine.poll(now) {
                self.carry_out(now, action);
            }
            steps += 1;
            if steps.is_multiple_of(1 << 16) {
                progress(now);
            }
        }
        let books = self.engine.books();
        assert!(
            books.balance() && books.queued == 0 && books.in_flight == 0,
            "a request did not end: {books:?}"
        );
        self.tally.replanning = self.control.map(|control| control.report);
        self.tally
    }

    fn foresee(&mut self, at: Time, happening: Happening) {
        self.foreseen += 1;
        self.happenings
            .push(Reverse((at, self.foreseen, happening)));
    }

    fn foresee_arrival(&mut self, model: usize) {
        let Some(at) = self.sources[model].next() else {
            return;
        };
        if at < self.tally.window_end() {
            self.foresee(at, Happening::Arrival(model));
        }
    }

    fn happen(&mut self, now: Time, happening: Happening) {
        match happening {
            Happening::Arrival(model) => self.arrive(now, model),
            Happening::AtWorker(batch) => self.at_worker(now, batch),
            Happening::Device { device, revision } => self.computed(now, device, revision),
            Happening::Back(batch) => self.back(now, batch),
            Happening::FaultBegins(fault) => self.fault_begins(now, fault),
            Happening::FaultNoticed(fault) => self.fault_noticed(now, fault),
            Happening::FaultEnds(fault) => self.fault_ends(now, fault),
            Happening::Replan => self.replan(now),
            Happening::Loaded { replica, attempt } => self.loaded(now, replica, attempt),
        }
    }

    fn arrive(&mut self, now: Time, model: usize) {
        self.tally.arrived(model, now);
        if let Some(control) = &mut self.control {
            control.feedback.arrived(model);
        }
        let id = RequestId(self.requests.push(Pending {
            model,
            arrived: now,
            ended: false,
        }));
        let request = Request {
            id,
            model: key(model),
            rows: 1,
            class: ShapeClass(0),
            priority: 0,
            deadline: now + self.scenario.problem.models[model].slo,
        };
        self.engine.handle(now, Event::Arrive(request));
        self.foresee_arrival(model);
    }

    fn carry_out(&mut self, now: Time, action: Action) {
        match action {
            Action::Dispatch {
                batch,
                replica,
                requests,
            } => self.dispatch(now, batch, replica.0 as usize, requests),
            Action::Finish { request, outcome } => {
                let pending = self
                    .requests
                    .get_mut(request.0)
                    .expect("a request ends once");
                pending.ended = true;
                self.tally.ended(pending.model, outcome);
                self.requests.forget(|pending| pending.ended);
            }
            Action::Drained { replica } => {
                self.replicas[replica.0 as usize].link = Some(LinkPhase::Drained);
                self.roll_out(now);
            }
        }
    }

    fn dispatch(&mut self, now: Time, batch: BatchId, replica: usize, requests: Vec<RequestId>) {
        let simulation = &self.scenario.simulation;
        let on_way = &mut self.replicas[replica];
        on_way.held += 1;
        let model = on_way.model;
        let bytes =
            self.scenario.problem.models[model].payload.as_u64() as f64 * requests.len() as f64;
        let transmission = Duration::from_secs_f64(bytes / simulation.network.bytes_per_second);
        let reached =
            now + simulation.router_overhead + simulation.network.base + transmission + self.delay;
        self.tally.dispatched(model, now, requests.len());
        let flight = Flight {
            replica,
            arrived: requests,
            free_since: on_way.free_since,
            dispatched: now,
            reached,
            started: reached,
            computed: reached,
            over: false,
        };
        let number = self.flights.push(flight);
        assert_eq!(number, batch.0, "the engine counts its batches from 0");
        self.foresee(reached, Happening::AtWorker(number));
    }

    fn at_worker(&mut self, now: Time, batch: u64) {
        let Some(flight) = self.flights.get_mut(batch).filter(|flight| !flight.over) else {
            return;
        };
        let replica = &self.replicas[flight.replica];
        if self.down[replica.device] > 0 {
            return;
        }
        let (alone, active) = replica.work[flight.arrived.len() - 1];
        #[cfg(test)]
        let alone = match &mut self.stretch {
            Some(stretch) => alone.mul_f64(stretch()),
            None => alone,
        };
        let (device, slot) = (replica.device, replica.slot);
        self.devices[device].arrive(
            now,
            slot,
            Work {
                batch: BatchId(batch),
                alone,
                active,
            },
        );
        self.foresee_device(device);
    }

    fn foresee_device(&mut self, device: usize) {
        if let Some((at, revision)) = self.devices[device].next() {
            self.foresee(at, Happening::Device { device, revision });
        }
    }

    fn computed(&mut self, now: Time, device: usize, revision: u64) {
        let mut computed = std::mem::take(&mut self.computed);
        self.devices[device].complete(now, revision, &mut computed);
        if !computed.is_empty() {
            let back = now + self.scenario.simulation.return_time + self.delay;
            for done in computed.drain(..) {
                let flight = self
                    .flights
                    .get_mut(done.batch.0)
                    .expect("a batch is forgotten when it is over");
                (flight.started, flight.computed) = (done.started, now);
                self.foresee(back, Happening::Back(done.batch.0));
            }
            self.foresee_device(device);
        }
        self.computed = computed;
    }

    fn back(&mut self, now: Time, batch: u64) {
        let Some(flight) = self.flights.get_mut(batch).filter(|flight| !flight.over) else {
            return;
        };
        flight.over = true;
        let replica = &mut self.replicas[flight.replica];
        if self.discipline != Discipline::FixedWait && replica.held == replica.spec.credits {
            replica.free_since = now;
        }
        replica.held -= 1;
        let compute = flight.computed.saturating_since(flight.started);
        let stages = Stages {
            network: flight.reached.saturating_since(flight.dispatched)
                + now.saturating_since(flight.computed),
            worker_queue: flight.started.saturating_since(flight.reached),
            compute,
        };
        if let Some(control) = &mut self.control {
            let rows = flight.arrived.len();
            let expected = replica.alone(rows, self.scenario);
            control
                .feedback
                .computed(flight.replica, rows, compute, expected);
        }
        let slo = self.scenario.problem.models[replica.model].slo;
        let counted = flight.arrived.iter().map(|request| {
            let pending = self
                .requests
                .get_mut(request.0)
                .expect("a request ends once");
            pending.ended = true;
            let waited = flight.dispatched.saturating_since(pending.arrived);
            let queue = flight
                .free_since
                .saturating_since(pending.arrived)
                .min(waited);
            (pending.arrived, queue, waited.saturating_sub(queue))
        });
        self.tally
            .answered(replica.model, now, slo, stages, counted);
        self.requests.forget(|pending| pending.ended);
        self.flights.forget(|flight| flight.over);
        self.engine.handle(
            now,
            Event::BatchDone {
                batch: BatchId(batch),
                queue_wait: stages.worker_queue,
                compute,
            },
        );
    }

    /// Makes the engine know of a model, or of the larger batches that it may have now.
    fn model_up(&mut self, now: Time, model: usize, largest: u32) {
        self.largest[model] = largest;
        let limits = ModelLimits {
            max_batch_rows: largest,
            queue_limit: ModelLimits::DEFAULT_QUEUE_LIMIT,
        };
        let model = key(model);
        self.engine.handle(now, Event::ModelUp { model, limits });
    }

    /// Adds a replica whose worker does not run yet. It has a profile.
    fn add(&mut self, planned: &PlannedReplica) -> usize {
        let slot = self.devices[planned.device.0].add(planned.duty_cycle.is_some());
        self.replicas
            .push(Replica::new(self.scenario, planned, slot));
        self.replicas.len() - 1
    }

    fn replica_up(&mut self, now: Time, replica: usize) {
        let up = &mut self.replicas[replica];
        (up.link, up.held, up.free_since) = (Some(LinkPhase::Serving), 0, now);
        let spec = up.spec.clone();
        let model = up.model;
        if spec.batch_size > self.largest[model] {
            self.model_up(now, model, spec.batch_size);
        }
        self.engine.handle(
            now,
            Event::ReplicaUp {
                replica: replica_key(replica),
                spec,
            },
        );
    }
}

fn key(model: usize) -> ModelKey {
    ModelKey(u32::try_from(model).expect("a scenario's models are limited"))
}

fn replica_key(replica: usize) -> ReplicaKey {
    ReplicaKey(u32::try_from(replica).expect("a plan's replicas are limited"))
}
