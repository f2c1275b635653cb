//! The engine's speed and allocations: one core, no sockets, workers that answer on time.
//!
//! Prints one JSON object per line, for `cargo xtask bench engine`.
#![expect(
    clippy::print_stdout,
    reason = "a measurement that another program reads"
)]

use std::{
    cmp::Reverse,
    collections::BinaryHeap,
    time::{Duration, Instant},
};

use packhorse_cluster::{Discipline, Time};
use packhorse_contention::ServiceTimes;
use packhorse_serving::{
    Action, BatchKey, DeviceKey, Engine, EngineConfig, Event, ModelKey, ModelLimits, ReplicaKey,
    ReplicaParameters, Request, RequestKey, ShapeClass, TenantKey,
};

const MODEL: ModelKey = ModelKey(0);
const BATCH_SIZE: u32 = 16;
const OBJECTIVE: Duration = Duration::from_millis(200);

/// Returns the compute time of a batch: 8 ms and 1 ms per row, so that a replica computes at most 667 rows per second.
fn compute(rows: usize) -> Duration {
    Duration::from_millis(8 + rows as u64)
}

fn engine(discipline: Discipline, replicas: u32) -> Engine {
    let mut engine = Engine::new(EngineConfig {
        discipline,
        ..EngineConfig::default()
    });
    let limits = ModelLimits {
        max_batch_rows: BATCH_SIZE,
        max_batch_bytes: 1000,
        queue_limit: 1 << 20,
    };
    let model = MODEL;
    engine.handle(Time::ZERO, Event::ModelUpdated { model, limits });
    let service = ServiceTimes::from_times((1..=BATCH_SIZE as usize).map(compute).collect());
    for replica in 0..replicas {
        let parameters = ReplicaParameters {
            model,
            batch_size: BATCH_SIZE,
            in_flight: ReplicaParameters::LEAST_CREDITS,
            service: service.clone(),
            device: DeviceKey(replica),
            time_shared: false,
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
    /// The time at which each replica is free.
    free: Vec<Time>,
    /// The batches in flight: when they come back, how long they waited and how long they computed.
    back: BinaryHeap<Reverse<(Time, BatchKey, Duration, Duration)>>,
    gap: Duration,
    next: Time,
    requests: u64,
    actions: u64,
}

impl Run {
    /// Creates a run whose requests arrive evenly spaced, at this fraction of the replicas' best rate.
    fn new(discipline: Discipline, replicas: u32, load: f64) -> Self {
        let best = f64::from(BATCH_SIZE) / compute(BATCH_SIZE as usize).as_secs_f64();
        Self {
            engine: engine(discipline, replicas),
            free: vec![Time::ZERO; replicas as usize],
            back: BinaryHeap::new(),
            gap: Duration::from_secs_f64(1.0 / (load * best * f64::from(replicas))),
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
            let now = [Some(self.next), wake, back].into_iter().flatten().min();
            let now = now.expect("the next request always comes");
            if back == Some(now) {
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
                    model: MODEL,
                    tenant: TenantKey(0),
                    rows: 1,
                    bytes: 1,
                    class: ShapeClass(0),
                    priority: 0,
                    deadline: now + OBJECTIVE,
                };
                self.engine.handle(now, Event::RequestArrived(request));
                self.requests += 1;
                self.next = now + self.gap;
            }
            while let Some(action) = self.engine.poll(now) {
                self.actions += 1;
                if let Action::Dispatch {
                    batch,
                    replica,
                    requests,
                } = action
                {
                    let free = &mut self.free[replica.0 as usize];
                    let compute = compute(requests.len());
                    let queue_wait = free.saturating_since(now);
                    *free = now + queue_wait + compute;
                    self.back.push(Reverse((*free, batch, queue_wait, compute)));
                }
            }
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "a measurement reads the clock")]
fn measure(discipline: Discipline, replicas: u32, load: f64) {
    let mut run = Run::new(discipline, replicas, load);
    // Let the buffers grow to their size.
    run.serve(100_000);
    let (mut actions, mut requests) = (run.actions, run.requests);
    let mut seconds = 0.0;
    while seconds < 1.0 {
        let start = Instant::now();
        run.serve(20_000);
        seconds += start.elapsed().as_secs_f64();
    }
    (actions, requests) = (run.actions - actions, run.requests - requests);
    let allocations = allocation_counter::measure(|| run.serve(20_000));
    println!(
        "{{\"discipline\":\"{discipline}\",\"replicas\":{replicas},\"load\":{load},\"requests_per_s\":{:.0},\
         \"decisions_per_s\":{:.0},\"allocations_per_request\":{:.3}}}",
        requests as f64 / seconds,
        actions as f64 / seconds,
        allocations.count_total as f64 / 20_000.0
    );
}

fn main() {
    for discipline in Discipline::LIVE {
        for replicas in [1, 10, 100, 1000, 10_000] {
            for load in [0.8, 2.0] {
                measure(discipline, replicas, load);
            }
        }
    }
}
