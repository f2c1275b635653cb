//! The engine's speed and allocations: one core, no sockets, workers that answer on time; the speed of two engines on two threads; and the time
//! that it takes to move models from one engine to another.
//!
//! Prints one JSON object per line, for `cargo xtask bench engine`.
#![expect(
    clippy::print_stdout,
    reason = "a measurement that another program reads"
)]

use std::{
    cmp::Reverse,
    collections::{BTreeSet, BinaryHeap, VecDeque},
    sync::Barrier,
    thread,
    time::Duration,
};

use packhorse_cluster::{Discipline, Priority, Time};
use packhorse_contention::ServiceTimes;
use packhorse_serving::{
    Action, BatchKey, DeviceKey, DeviceSharing, Engine, EngineConfig, Event, ModelKey, ModelLimits,
    PoolMember, ReplicaKey, ReplicaParameters, Request, RequestKey, ShapeClass, TenantKey,
};

const BATCH_SIZE: u32 = 16;
const OBJECTIVE: Duration = Duration::from_millis(200);

/// The time to copy the weights of a model to its device.
const COPY: Duration = Duration::from_millis(1);

/// Returns the compute time of a batch: 8 ms and 1 ms per row, so that a replica computes at most 667 rows per second.
fn compute(rows: usize) -> Duration {
    Duration::from_millis(8 + rows as u64)
}

/// The members of one pool, of which this fraction has room on the device.
fn in_one_pool(replica: u32, room: f64, models: u32) -> (DeviceKey, DeviceSharing) {
    let places = (room * f64::from(models)).ceil() as u32;
    let member = PoolMember {
        weights: 1,
        memory: places.into(),
        load: COPY,
        resident: replica < places,
        on_disk: false,
        utilization: [1.0].into(),
    };
    (DeviceKey(0), DeviceSharing::Pool(member))
}

/// Replicas on devices of their own.
fn on_own_devices(replica: u32) -> (DeviceKey, DeviceSharing) {
    (DeviceKey(replica), DeviceSharing::Concurrent)
}

/// Returns an engine with so many models, each with so many replicas.
fn engine(
    discipline: Discipline,
    models: u32,
    replicas: u32,
    place: impl Fn(u32) -> (DeviceKey, DeviceSharing),
) -> Engine {
    let mut engine = Engine::new(EngineConfig {
        discipline,
        ..EngineConfig::default()
    });
    let limits = ModelLimits {
        max_batch_rows: BATCH_SIZE,
        max_batch_bytes: 1000,
        queue_limit: 1 << 20,
    };
    for model in (0..models).map(ModelKey) {
        engine.handle(
            Time::ZERO,
            Event::ModelUpdated {
                model,
                limits,
                priority: Priority::default(),
            },
        );
    }
    let service = ServiceTimes::from_times((1..=BATCH_SIZE as usize).map(compute).collect());
    for replica in 0..models * replicas {
        let model = ModelKey(replica % models);
        let (device, sharing) = place(replica);
        let parameters = ReplicaParameters {
            model,
            batch_size: BATCH_SIZE,
            in_flight: ReplicaParameters::LEAST_CREDITS,
            service: service.clone(),
            device,
            sharing,
            shares_memory: false,
        };
        let replica = ReplicaKey(replica);
        engine.handle(
            Time::ZERO,
            Event::ReplicaReady {
                replica,
                parameters,
            },
        );
    }
    engine
}

/// A minimal driver in virtual time around the engine.
struct Run {
    engine: Engine,
    /// The number of models, which get requests in turn.
    models: u32,
    /// The time at which each server is free: a replica, or the one device of a pool.
    free: Vec<Time>,
    /// The batches in flight: when they come back, how long they waited and how long they computed.
    back: BinaryHeap<Reverse<(Time, BatchKey, Duration, Duration)>>,
    /// The copies of weights under way, with the times at which they are there.
    copies: VecDeque<(Time, ReplicaKey)>,
    gap: Duration,
    next: Time,
    requests: u64,
    actions: u64,
}

impl Run {
    /// Creates a run whose requests arrive evenly spaced, at this fraction of the replicas' best rate.
    fn new(discipline: Discipline, models: u32, replicas: u32, load: f64) -> Self {
        let best = f64::from(BATCH_SIZE) / compute(BATCH_SIZE as usize).as_secs_f64();
        Self {
            engine: engine(discipline, models, replicas, on_own_devices),
            models,
            free: vec![Time::ZERO; (models * replicas) as usize],
            back: BinaryHeap::new(),
            copies: VecDeque::new(),
            gap: Duration::from_secs_f64(1.0 / (load * best * f64::from(models * replicas))),
            next: Time::ZERO,
            requests: 0,
            actions: 0,
        }
    }

    /// Creates a run with models in the pool of one device, which has room for this fraction of them, at this fraction of its best rate.
    fn pooled(models: u32, room: f64, load: f64) -> Self {
        let best = f64::from(BATCH_SIZE) / compute(BATCH_SIZE as usize).as_secs_f64();
        Self {
            engine: engine(Discipline::Deadline, models, 1, |replica| {
                in_one_pool(replica, room, models)
            }),
            free: vec![Time::ZERO],
            gap: Duration::from_secs_f64(1.0 / (load * best)),
            models,
            back: BinaryHeap::new(),
            copies: VecDeque::new(),
            next: Time::ZERO,
            requests: 0,
            actions: 0,
        }
    }

    fn serve(&mut self, requests: u64) {
        let until = self.requests + requests;
        while self.requests < until {
            let wake = self.engine.poll_timeout();
            let back = self.back.peek().map(|Reverse((at, ..))| *at);
            let copied = self.copies.front().map(|(at, _)| *at);
            let events = [Some(self.next), wake, back, copied];
            let now = events.into_iter().flatten().min();
            let now = now.expect("the next request always comes");
            if copied == Some(now) {
                let (_, replica) = self.copies.pop_front().expect("just seen");
                self.engine.handle(now, Event::WeightsLoaded { replica });
            } else if back == Some(now) {
                let Reverse((_, batch, queue_wait, compute)) = self.back.pop().expect("just seen");
                let done = Event::BatchCompleted {
                    batch,
                    queue_wait,
                    compute,
                };
                self.engine.handle(now, done);
            } else if self.next == now {
                let request = Request {
                    id: RequestKey(self.requests),
                    model: ModelKey((self.requests % u64::from(self.models)) as u32),
                    tenant: TenantKey(0),
                    rows: 1,
                    bytes: 1,
                    class: ShapeClass(0),
                    priority: 0,
                    may_fall_back: false,
                    deadline: now + OBJECTIVE,
                    load_by: now + OBJECTIVE,
                };
                self.engine.handle(now, Event::RequestArrived(request));
                self.requests += 1;
                self.next = now + self.gap;
            }
            while let Some(action) = self.engine.poll(now) {
                self.actions += 1;
                if let Action::Load { replica } = action {
                    let before = self.copies.back().map_or(now, |(at, _)| *at);
                    self.copies.push_back((before.max(now) + COPY, replica));
                }
                if let Action::Dispatch {
                    batch,
                    replica,
                    requests,
                } = action
                {
                    let server = replica.0 as usize % self.free.len();
                    let free = &mut self.free[server];
                    let compute = compute(requests.len());
                    let queue_wait = free.saturating_since(now);
                    *free = now + queue_wait + compute;
                    self.back.push(Reverse((*free, batch, queue_wait, compute)));
                }
            }
        }
    }
}

/// Returns the time that the calling thread has had a processor for, so that other programs on the machine count little.
fn processor_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::try_from(time).expect("it began at zero")
}

/// The requests per second below which a discipline is not measured with more replicas, of which there would be ten times as many.
const LEAST_RPS: f64 = 100_000.0;

/// Measures a discipline, and returns the requests per second of processor time.
fn measure(discipline: Discipline, replicas: u32, load: f64) -> f64 {
    let run = Run::new(discipline, 1, replicas, load);
    let (requests_per_s, measured) = rates(run);
    println!(
        "{{\"discipline\":\"{discipline}\",\"components\":1,\"threads\":1,\"replicas\":{replicas},\"load\":{load},{measured}}}"
    );
    requests_per_s
}

/// Measures a pool of models on one device, which has room for this fraction of them.
fn measure_pool(models: u32, room: f64, load: f64) {
    let (_, measured) = rates(Run::pooled(models, room, load));
    println!("{{\"pooled\":{models},\"room\":{room},\"load\":{load},{measured}}}");
}

/// Returns the requests per second of processor time, and all rates as fields of a JSON object.
fn rates(mut run: Run) -> (f64, String) {
    // Let the buffers grow to their size.
    run.serve(100_000);
    let (mut actions, mut requests) = (run.actions, run.requests);
    let mut seconds = 0.0;
    while seconds < 1.0 {
        let start = processor_time();
        run.serve(20_000);
        seconds += processor_time().saturating_sub(start).as_secs_f64();
    }
    (actions, requests) = (run.actions - actions, run.requests - requests);
    let allocations = allocation_counter::measure(|| run.serve(20_000));
    let measured = format!(
        "\"requests_per_s\":{:.0},\"decisions_per_s\":{:.0},\"allocations_per_request\":{:.3}",
        requests as f64 / seconds,
        actions as f64 / seconds,
        allocations.count_total as f64 / 20_000.0
    );
    (requests as f64 / seconds, measured)
}

/// The number of replicas of each of the two components.
const COMPONENT_REPLICAS: u32 = 100;

/// The requests of both components in one round, and the number of rounds, of which the best counts.
const ROUND: u64 = 400_000;
const ROUNDS: usize = 7;

/// Measures two models without a device in common: in one engine, or each in an engine on a thread of its own. The rates of the threads
/// that run at the same time are added.
fn measure_components(threads: u32) {
    let models = 2 / threads;
    let begin = Barrier::new(threads as usize);
    let rounds = thread::scope(|scope| {
        let run = || {
            let mut run = Run::new(Discipline::Deadline, models, COMPONENT_REPLICAS, 0.8);
            run.serve(100_000);
            let mut rounds = Vec::new();
            for _ in 0..ROUNDS {
                begin.wait();
                let (start, before) = (processor_time(), (run.requests, run.actions));
                run.serve(ROUND / u64::from(threads));
                let seconds = processor_time().saturating_sub(start).as_secs_f64();
                rounds.push((
                    (run.requests - before.0) as f64 / seconds,
                    (run.actions - before.1) as f64 / seconds,
                ));
            }
            rounds
        };
        let running: Vec<_> = (0..threads).map(|_| scope.spawn(run)).collect();
        let joined = running.into_iter().map(thread::ScopedJoinHandle::join);
        let rounds: Vec<_> = joined
            .map(|rounds| rounds.expect("no run panics"))
            .collect();
        let of_all = |round: usize| {
            let of_threads = rounds.iter().map(|rounds| rounds[round]);
            of_threads.fold((0.0, 0.0), |all, one| (all.0 + one.0, all.1 + one.1))
        };
        (0..ROUNDS).map(of_all).collect::<Vec<(f64, f64)>>()
    });
    let best = rounds.into_iter().max_by(|a, b| a.0.total_cmp(&b.0));
    let (requests_per_s, decisions_per_s) = best.expect("there are rounds");
    println!(
        "{{\"discipline\":\"deadline\",\"components\":2,\"threads\":{threads},\"replicas\":{COMPONENT_REPLICAS},\"load\":0.8,\
         \"requests_per_s\":{requests_per_s:.0},\"decisions_per_s\":{decisions_per_s:.0}}}"
    );
}

/// The replicas of each model that is moved.
const MOVED_REPLICAS: u32 = 10;

/// Measures the move of every other model of an engine to a second engine, with its queue, replicas and batches in flight, and the move back. The
/// median counts.
fn measure_moves(models: u32, load: f64) {
    let mut run = Run::new(Discipline::Deadline, models, MOVED_REPLICAS, load);
    // Longer than the objective, so that the queues are as long as they become.
    let objective_requests = OBJECTIVE.as_secs_f64() / run.gap.as_secs_f64();
    run.serve(3 * objective_requests as u64);
    let now = run.next;
    let moved: BTreeSet<ModelKey> = (0..models).step_by(2).map(ModelKey).collect();
    let mut other = Engine::new(EngineConfig {
        discipline: Discipline::Deadline,
        ..EngineConfig::default()
    });
    let mut requests = 0;
    let mut times = Vec::new();
    let mut move_between = |from: &mut Engine, to: &mut Engine| {
        let start = processor_time();
        to.absorb(now, from.split_off(&moved));
        times.push(processor_time().saturating_sub(start));
    };
    for _ in 0..ROUNDS {
        move_between(&mut run.engine, &mut other);
        requests = other.books().queued + other.books().in_flight;
        move_between(&mut other, &mut run.engine);
    }
    times.sort_unstable();
    println!(
        "{{\"models\":{},\"replicas\":{},\"load\":{load},\"requests\":{requests},\"milliseconds\":{:.3}}}",
        moved.len(),
        moved.len() * MOVED_REPLICAS as usize,
        times[times.len() / 2].as_secs_f64() * 1e3
    );
}

fn main() {
    for models in [1, 10, 100, 1000] {
        for load in [0.1, 0.8, 2.0, 10.0] {
            measure_pool(models, 1.0, load);
        }
    }

    for models in [100, 1000] {
        for load in [0.1, 0.8, 2.0, 10.0] {
            measure_pool(models, 0.1, load);
        }
    }

    for models in [20, 200, 2000] {
        for load in [0.8, 2.0] {
            measure_moves(models, load);
        }
    }

    for threads in [1, 2] {
        measure_components(threads);
    }

    for discipline in Discipline::LIVE {
        for replicas in [1, 10, 100, 1000, 10_000] {
            let rates = [0.8, 2.0].map(|load| measure(discipline, replicas, load));
            if rates.into_iter().fold(f64::INFINITY, f64::min) < LEAST_RPS {
                break;
            }
        }
    }
}
