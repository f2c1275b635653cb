//! Nobody pays for a neighbour: whatever the requests of one client do to a model, those of the others are answered in time.
//!
//! A model's replicas in virtual time: a batch with a request that is at fault throws, ends its worker, or hangs until the worker is ended; a worker that ended comes
//! back after a while as a new replica. Every history prints its fault, fraction and seed.

use std::collections::BTreeMap;

use super::{properties::Random, *};

/// The time until a worker that ended has started again.
const RESTART: Duration = Duration::from_secs(2);
/// The longest time that a worker computes a batch.
const BATCH_LIMIT: Duration = Duration::from_secs(3);
/// The objective of every request.
const SLO: Duration = Duration::from_millis(500);
/// The length of a history.
const LENGTH: Duration = Duration::from_mins(10);
/// The number of replicas.
const REPLICAS: u32 = 4;
/// The requests per second: half of what the replicas compute in full batches.
const RATE: u64 = 100;
/// The client whose requests are at fault; it sends every fourth request.
const BAD: TenantKey = TenantKey(3);

/// The effect of a request that is at fault on its worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    Throws,
    Crashes,
    Hangs,
}

/// Returns the time of a batch of so many rows; eight are the most.
fn batch_time(rows: usize) -> Duration {
    ms(40 + 15 * rows as u64)
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Happening {
    Arrival,
    Ready,
    /// The worker has computed the batch, or failed on it.
    Computed(ReplicaKey, BatchKey),
    /// The worker ends.
    Ended(ReplicaKey),
}

#[derive(Default)]
struct Outcomes {
    sent: u64,
    answered: u64,
}

/// A cluster with one model, and its clients.
struct Cluster {
    engine: Engine,
    random: Random,
    fault: Fault,
    /// The number of requests at fault among a thousand of the bad client.
    per_mille: u64,
    now: Time,
    counted_from: Time,
    next: u64,
    happenings: BTreeMap<(Time, u64), Happening>,
    /// The batches of every worker, the running one first.
    workers: BTreeMap<ReplicaKey, VecDeque<BatchKey>>,
    batches: BTreeMap<BatchKey, Vec<RequestKey>>,
    requests: BTreeMap<RequestKey, (Request, bool)>,
    /// The size of the last batch of every request.
    shared: BTreeMap<RequestKey, usize>,
    outcomes: BTreeMap<TenantKey, Outcomes>,
    executions: u64,
    ended_workers: u64,
    ejections: u64,
    pauses: u64,
}

impl Cluster {
    fn new(fault: Fault, per_mille: u64, seed: u64) -> Self {
        println!("{fault:?}, {per_mille} of 1000 requests of one client, seed {seed}");
        let mut cluster = Self {
            engine: Engine::new(EngineConfig::default()),
            random: Random(seed),
            fault,
            per_mille,
            now: Time::ZERO,
            counted_from: Time::ZERO,
            next: 0,
            happenings: BTreeMap::new(),
            workers: BTreeMap::new(),
            batches: BTreeMap::new(),
            requests: BTreeMap::new(),
            shared: BTreeMap::new(),
            outcomes: BTreeMap::new(),
            executions: 0,
            ended_workers: 0,
            ejections: 0,
            pauses: 0,
        };
        let limits = ModelLimits {
            max_batch_rows: 8,
            max_batch_bytes: 1 << 20,
            queue_limit: 1000,
        };
        let model = MODEL;
        cluster.handle(registered(model, limits));
        for _ in 0..REPLICAS {
            cluster.happen(Duration::ZERO, Happening::Ready);
        }
        cluster.happen(ms(1), Happening::Arrival);
        cluster
    }

    fn happen(&mut self, after: Duration, happening: Happening) {
        self.next += 1;
        self.happenings
            .insert((self.now + after, self.next), happening);
    }

    /// Lets the whole history pass.
    fn run(&mut self) {
        let end = Time::ZERO + LENGTH;
        loop {
            let next = self.happenings.first_key_value().map(|entry| entry.0.0);
            let next = next.into_iter().chain(self.engine.poll_timeout()).min();
            let Some(next) = next.filter(|next| *next < end) else {
                return;
            };
            self.now = next;
            while let Some(entry) = self.happenings.first_entry()
                && entry.key().0 <= next
            {
                let happening = entry.remove();
                self.take(&happening);
            }
            self.act();
        }
    }

    fn take(&mut self, happening: &Happening) {
        match *happening {
            Happening::Arrival => self.arrive(),
            Happening::Ready => {
                self.next += 1;
                let replica = ReplicaKey(u32::try_from(self.next).unwrap());
                self.workers.insert(replica, VecDeque::new());
                let times: Vec<u64> = (1..=8)
                    .map(|rows| u64::try_from(batch_time(rows).as_millis()).unwrap())
                    .collect();
                let parameters = parameters(MODEL, &times, 2);
                self.handle(Event::ReplicaReady {
                    replica,
                    parameters,
                });
            }
            Happening::Computed(replica, batch) => self.computed(replica, batch),
            Happening::Ended(replica) => self.worker_ended(replica),
        }
    }

    fn arrive(&mut self) {
        // Exponential waits would change nothing here but the number of lines.
        let wait = 1 + self.random.below(2_000_000 / RATE);
        self.happen(Duration::from_micros(wait), Happening::Arrival);
        self.next += 1;
        let tenant = TenantKey(self.random.below(4));
        let is_bad = tenant == BAD && self.random.below(1000) < self.per_mille;
        let request = Request {
            id: RequestKey(self.next),
            model: MODEL,
            tenant,
            rows: 1,
            bytes: 1,
            class: ShapeClass(0),
            priority: 0,
            may_fall_back: false,
            deadline: self.now + SLO,
            load_by: self.now + SLO,
        };
        self.requests.insert(request.id, (request, is_bad));
        let is_counted = self.now >= self.counted_from;
        self.outcomes.entry(tenant).or_default().sent += u64::from(is_counted);
        self.handle(Event::RequestArrived(request));
    }

    fn is_bad(&self, batch: BatchKey) -> bool {
        self.batches[&batch]
            .iter()
            .any(|request| self.requests[request].1)
    }

    /// Begins the first batch of a worker.
    fn begin(&mut self, replica: ReplicaKey) {
        let Some(&batch) = self.workers[&replica].front() else {
            return;
        };
        self.executions += 1;
        let time = batch_time(self.batches[&batch].len());
        match self.fault {
            Fault::Crashes if self.is_bad(batch) => {
                self.happen(time / 2, Happening::Ended(replica));
            }
            Fault::Hangs if self.is_bad(batch) => {
                self.happen(BATCH_LIMIT, Happening::Ended(replica));
            }
            _ => self.happen(time, Happening::Computed(replica, batch)),
        }
    }

    fn computed(&mut self, replica: ReplicaKey, batch: BatchKey) {
        let Some(worker) = self.workers.get_mut(&replica) else {
            return;
        };
        assert_eq!(worker.pop_front(), Some(batch));
        self.begin(replica);
        if self.is_bad(batch) {
            self.batches.remove(&batch);
            let error = BatchError::ModelFailed;
            self.handle(Event::BatchFailed { batch, error });
        } else {
            let requests = self.batches.remove(&batch).unwrap();
            let compute = batch_time(requests.len());
            for request in requests {
                let (request, _) = self.requests.remove(&request).unwrap();
                let is_counted = request.deadline >= self.counted_from + SLO;
                if request.deadline >= self.now && is_counted {
                    self.outcomes.get_mut(&request.tenant).unwrap().answered += 1;
                }
            }
            self.handle(Event::BatchCompleted {
                batch,
                queue_wait: Duration::ZERO,
                compute,
            });
        }
    }

    fn worker_ended(&mut self, replica: ReplicaKey) {
        let held = self.workers.remove(&replica).unwrap();
        self.ended_workers += 1;
        if self.fault == Fault::Hangs {
            let running = held.front().copied();
            for batch in &held {
                let error = if Some(*batch) == running {
                    BatchError::TimedOut
                } else {
                    BatchError::NotBegun
                };
                self.engine.handle(
                    self.now,
                    Event::BatchFailed {
                        batch: *batch,
                        error,
                    },
                );
            }
        }
        self.engine.handle(self.now, Event::ReplicaLost { replica });
        for batch in held {
            self.batches.remove(&batch);
        }
        self.act();
        self.happen(RESTART, Happening::Ready);
    }

    fn handle(&mut self, event: Event) {
        self.engine.handle(self.now, event);
        self.act();
    }

    fn act(&mut self) {
        while let Some(action) = self.engine.poll(self.now) {
            match action {
                Action::Dispatch {
                    batch,
                    replica,
                    requests,
                } => {
                    for request in &requests {
                        self.shared.insert(*request, requests.len());
                    }
                    self.batches.insert(batch, requests);
                    let worker = self.workers.get_mut(&replica).expect("it lives");
                    worker.push_back(batch);
                    if worker.len() == 1 {
                        self.begin(replica);
                    }
                }
                Action::Finish { request, outcome } => {
                    let (_, is_bad) = self.requests.remove(&request).unwrap();
                    if outcome == RequestOutcome::Failed {
                        assert!(is_bad, "{request:?} has done nothing");
                        assert_eq!(self.shared[&request], 1, "the error of others is not read");
                    }
                }
                Action::ReplicaEjected { .. } => self.ejections += 1,
                Action::TenantPaused { tenant, .. } => {
                    assert_eq!(tenant, BAD, "the others have done nothing");
                    self.pauses += 1;
                }
                Action::Load { .. } | Action::Unload { .. } => unreachable!("there is no pool"),
                Action::ReplicaRestored { .. } | Action::ReplicaDrained { .. } => {}
            }
        }
    }

    /// Returns the part of the others' requests that was answered in time.
    fn others_in_time(&self) -> f64 {
        let others = self.outcomes.iter().filter(|(tenant, _)| **tenant != BAD);
        let (sent, answered) = others.fold((0, 0), |(sent, answered), (_, outcomes)| {
            (sent + outcomes.sent, answered + outcomes.answered)
        });
        answered as f64 / sent as f64
    }
}

/// Checks the neighbours of a client with these numbers of a thousand requests that are at fault, by what they send from `from` on.
fn check(fault: Fault, per_mille: &[u64], from: Duration) {
    for &per_mille in per_mille {
        for seed in 0..3 {
            let mut cluster = Cluster::new(fault, per_mille, seed);
            cluster.counted_from = Time::ZERO + from;
            cluster.run();
            let in_time = cluster.others_in_time();
            println!(
                "{:.2} % of the others in time, {} batches, {} workers ended, {} pauses, {} ejected",
                100.0 * in_time,
                cluster.executions,
                cluster.ended_workers,
                cluster.pauses,
                cluster.ejections
            );
            assert!(in_time >= 0.99, "{in_time}");
        }
    }
}

#[test]
fn nobody_pays_for_a_neighbour_whose_requests_make_the_model_throw() {
    check(Fault::Throws, &[10, 100, 500, 1000], Duration::ZERO);
}

#[test]
fn nobody_pays_for_a_neighbour_whose_requests_end_their_workers() {
    check(Fault::Crashes, &[10, 100, 500, 1000], Duration::ZERO);
}

/// Until a batch has reached its limit for the first time, nobody knows that it hangs: each replica may have one by then.
#[test]
fn nobody_pays_for_a_neighbour_whose_requests_hang() {
    let known = 2 * (BATCH_LIMIT + RESTART);
    check(Fault::Hangs, &[10, 100, 500, 1000], known);
}
