//! Random histories: whatever happens, in whatever order, the engine keeps its promises.

use std::collections::BTreeMap;

use proptest::{prelude::*, strategy::ValueTree, test_runner::TestRunner};

use super::*;

/// A random step; indices are taken modulo what there is.
#[derive(Clone, Debug)]
enum Step {
    Pass {
        millis: u64,
        punctual: bool,
    },
    ModelUp {
        model: u32,
        rows: u32,
        queue: usize,
    },
    ModelGone {
        model: u32,
    },
    ReplicaUp {
        model: u32,
        times: Vec<u64>,
        credits: u32,
    },
    Drain(usize),
    Lose(usize),
    Arrive {
        model: u32,
        rows: u32,
        class: u64,
        priority: u64,
        allowed: u64,
    },
    CancelWaiting(usize),
    CancelComputing(usize),
    Done {
        batch: usize,
        compute: u64,
    },
    Fail(usize),
    Switch(DisciplineName),
}

fn step() -> impl Strategy<Value = Step> {
    let index = 0_usize..1000;
    prop_oneof![
        4 => (0_u64..60, any::<bool>()).prop_map(|(millis, punctual)| Step::Pass { millis, punctual }),
        1 => (0_u32..3, 1_u32..6, 0_usize..12).prop_map(|(model, rows, queue)| Step::ModelUp { model, rows, queue }),
        1 => (0_u32..24).prop_map(|model| Step::ModelGone { model }),
        2 => (0_u32..3, proptest::collection::vec(1_u64..40, 1..5), 1_u32..4)
            .prop_map(|(model, times, credits)| Step::ReplicaUp { model, times, credits }),
        1 => index.clone().prop_map(Step::Drain),
        1 => index.clone().prop_map(Step::Lose),
        16 => (0_u32..3, 1_u32..5, 0_u64..2, 0_u64..10, 0_u64..300)
            .prop_map(|(model, rows, class, priority, allowed)| Step::Arrive { model, rows, class, priority, allowed }),
        1 => index.clone().prop_map(Step::CancelWaiting),
        1 => index.clone().prop_map(Step::CancelComputing),
        6 => (index.clone(), 0_u64..100).prop_map(|(batch, compute)| Step::Done { batch, compute }),
        1 => index.prop_map(Step::Fail),
        1 => discipline().prop_map(Step::Switch),
    ]
}

fn discipline() -> impl Strategy<Value = DisciplineName> {
    proptest::sample::select(DisciplineName::ALL.as_slice())
}

struct Worker {
    spec: ReplicaSpec,
    draining: bool,
    held: usize,
}

/// A driver that keeps its own books and judges every action.
struct World {
    engine: Engine,
    discipline: DisciplineName,
    options: DeadlineOptions,
    now: Time,
    limits: BTreeMap<ModelKey, ModelLimits>,
    workers: BTreeMap<ReplicaKey, Worker>,
    batches: BTreeMap<BatchId, (ReplicaKey, Vec<RequestId>)>,
    /// Requests that have not ended, by where they are.
    waiting: BTreeMap<RequestId, Request>,
    computing: BTreeMap<RequestId, Request>,
    attempts: BTreeMap<RequestId, u32>,
    books: Books,
    next: u32,
}

fn nth<K: Copy + Ord, V>(map: &BTreeMap<K, V>, index: usize) -> Option<K> {
    map.keys().nth(index.checked_rem(map.len())?).copied()
}

impl World {
    fn new(discipline: DisciplineName, options: DeadlineOptions) -> Self {
        let config = EngineConfig {
            discipline,
            deadline: options,
            ..EngineConfig::default()
        };
        let mut world = Self {
            engine: Engine::new(config),
            discipline,
            options,
            now: Time::ZERO,
            limits: BTreeMap::new(),
            workers: BTreeMap::new(),
            batches: BTreeMap::new(),
            waiting: BTreeMap::new(),
            computing: BTreeMap::new(),
            attempts: BTreeMap::new(),
            books: Books::default(),
            next: 0,
        };
        for model in 0..3 {
            world.take(Step::ModelUp {
                model,
                rows: 4,
                queue: 8,
            });
            world.take(Step::ReplicaUp {
                model,
                times: vec![5, 8, 11],
                credits: 2,
            });
        }
        world
    }

    fn take(&mut self, step: Step) {
        match step {
            Step::Pass { millis, punctual } => self.pass(self.now + ms(millis), punctual),
            Step::ModelUp { model, rows, queue } => {
                let limits = ModelLimits {
                    max_batch_rows: rows,
                    queue_limit: queue,
                };
                self.limits.insert(ModelKey(model), limits);
                self.tell(Event::ModelUp {
                    model: ModelKey(model),
                    limits,
                });
            }
            Step::ModelGone { model } => {
                let model = ModelKey(model);
                self.limits.remove(&model);
                for worker in self
                    .workers
                    .values_mut()
                    .filter(|worker| worker.spec.model == model)
                {
                    worker.draining = true;
                }
                self.tell(Event::ModelGone { model });
            }
            Step::ReplicaUp {
                model,
                times,
                credits,
            } => {
                self.next += 1;
                let replica = ReplicaKey(self.next);
                let mut spec = spec(ModelKey(model), &times, credits);
                // Less than what it has times for: wider requests go alone.
                spec.batch_size = spec.batch_size.div_ceil(2);
                let draining = !self.limits.contains_key(&spec.model);
                self.workers.insert(
                    replica,
                    Worker {
                        spec: spec.clone(),
                        draining,
                        held: 0,
                    },
                );
                self.tell(Event::ReplicaUp { replica, spec });
            }
            Step::Drain(index) => {
                let Some(replica) = nth(&self.workers, index) else {
                    return;
                };
                self.workers.get_mut(&replica).unwrap().draining = true;
                self.tell(Event::ReplicaDraining { replica });
            }
            Step::Lose(index) => self.lose(index),
            Step::Arrive {
                model,
                rows,
                class,
                priority,
                allowed,
            } => {
                self.next += 1;
                let id = RequestId(u64::from(self.next));
                let deadline = self.now + ms(allowed);
                let class = ShapeClass(class);
                let request = Request {
                    id,
                    model: ModelKey(model),
                    rows,
                    class,
                    priority,
                    deadline,
                };
                self.books.accepted += 1;
                self.waiting.insert(id, request);
                self.tell(Event::Arrive(request));
            }
            Step::CancelWaiting(index) => self.cancel(nth(&self.waiting, index)),
            Step::CancelComputing(index) => self.cancel(nth(&self.computing, index)),
            Step::Done { batch, compute } => {
                let Some((batch, requests)) = self.return_batch(batch) else {
                    return;
                };
                for request in requests {
                    self.books.answered += u64::from(self.computing.remove(&request).is_some());
                }
                self.tell(Event::BatchDone {
                    batch,
                    compute: ms(compute),
                });
            }
            Step::Fail(batch) => {
                let Some((batch, _)) = self.return_batch(batch) else {
                    return;
                };
                self.tell(Event::BatchFailed { batch });
            }
            Step::Switch(discipline) => self.switch(discipline),
        }
    }

    fn switch(&mut self, discipline: DisciplineName) {
        self.discipline = discipline;
        self.engine.set_discipline(self.now, discipline);
        self.drain();
    }

    fn cancel(&mut self, request: Option<RequestId>) {
        let Some(request) = request else { return };
        self.waiting.remove(&request);
        self.computing.remove(&request);
        self.books.cancelled += 1;
        self.tell(Event::Cancel { request });
    }

    fn return_batch(&mut self, index: usize) -> Option<(BatchId, Vec<RequestId>)> {
        let batch = nth(&self.batches, index)?;
        let (replica, requests) = self.batches.remove(&batch)?;
        self.workers.get_mut(&replica).unwrap().held -= 1;
        Some((batch, requests))
    }

    fn lose(&mut self, index: usize) {
        let Some(replica) = nth(&self.workers, index) else {
            return;
        };
        self.workers.remove(&replica);
        let void: Vec<BatchId> = self
            .batches
            .iter()
            .filter(|(_, batch)| batch.0 == replica)
            .map(|(id, _)| *id)
            .collect();
        for batch in void {
            for request in self.batches.remove(&batch).unwrap().1 {
                if let Some(request) = self.computing.remove(&request) {
                    self.waiting.insert(request.id, request);
                }
            }
        }
        self.tell(Event::ReplicaLost { replica });
    }

    /// Lets time go on: a punctual driver wakes when it was told to, another one when the time is over.
    fn pass(&mut self, until: Time, punctual: bool) {
        while let Some(wake) = self
            .engine
            .poll_timeout()
            .filter(|&wake| punctual && wake <= until)
        {
            assert!(
                wake > self.now,
                "after draining, the next wake-up is in the future"
            );
            self.now = wake;
            self.drain();
        }
        self.now = until;
        self.drain();
    }

    fn tell(&mut self, event: Event) {
        self.engine.handle(self.now, event);
        self.drain();
    }

    fn drain(&mut self) {
        while let Some(action) = self.engine.poll(self.now) {
            match action {
                Action::Dispatch {
                    batch,
                    replica,
                    requests,
                } => self.dispatch(batch, replica, requests),
                Action::Finish { request, outcome } => self.finish(request, outcome),
                Action::Drained { replica } => {
                    let worker = self.workers.remove(&replica).expect("known replicas only");
                    assert!(worker.draining && worker.held == 0);
                }
            }
        }
        assert!(
            self.workers
                .values()
                .all(|worker| !worker.draining || worker.held > 0),
            "idle drainers are given back"
        );
        let overdue = |request: &Request| request.deadline <= self.now;
        assert!(
            !self.keeps_deadlines() || !self.waiting.values().any(overdue),
            "what is due has ended"
        );
        self.books.queued = self.waiting.len() as u64;
        self.books.in_flight = self.computing.len() as u64;
        assert_eq!(self.engine.books(), self.books);
        assert!(self.books.balance());
    }

    /// Whether what cannot be in time is dropped.
    fn keeps_deadlines(&self) -> bool {
        self.binds_late() && self.options.drop
    }

    /// Whether a replica gets no more batches than it has credits.
    fn binds_late(&self) -> bool {
        self.discipline != DisciplineName::FixedWait
    }

    fn dispatch(&mut self, batch: BatchId, replica: ReplicaKey, requests: Vec<RequestId>) {
        let (keeps_deadlines, binds_late) = (self.keeps_deadlines(), self.binds_late());
        let worker = self.workers.get_mut(&replica).expect("known replicas only");
        let has_credit = worker.held < worker.spec.credits as usize;
        assert!(!worker.draining && (has_credit || !binds_late));
        worker.held += 1;
        let taken: Vec<Request> = requests
            .iter()
            .map(|request| {
                self.waiting
                    .remove(request)
                    .expect("each one once, and only what waits")
            })
            .collect();
        let rows: u32 = taken.iter().map(|request| request.rows).sum();
        let limit = self.limits[&worker.spec.model]
            .max_batch_rows
            .min(worker.spec.batch_size);
        assert!(
            rows > 0 && (rows <= limit || taken.len() == 1),
            "{rows} rows where {limit} are allowed"
        );
        for request in &taken {
            assert_eq!(request.model, worker.spec.model);
            assert_eq!(request.class, taken[0].class, "classes never mix");
            assert!(
                request.deadline > self.now || !keeps_deadlines,
                "expired requests are not dispatched"
            );
            let attempts = self.attempts.entry(request.id).or_default();
            *attempts += 1;
            assert!(*attempts <= 3);
            self.computing.insert(request.id, *request);
        }
        assert!(self.batches.insert(batch, (replica, requests)).is_none());
    }

    fn finish(&mut self, id: RequestId, outcome: Outcome) {
        let tried = self.attempts.contains_key(&id);
        if outcome == Outcome::Failed {
            assert!(self.computing.remove(&id).is_some());
            self.books.failed += 1;
            return;
        }
        assert!(self.waiting.remove(&id).is_some(), "{id:?} does not wait");
        match outcome {
            Outcome::Refused(_) => {
                assert!(!tried);
                self.books.accepted -= 1;
                self.books.refused += 1;
            }
            Outcome::Expired => {
                assert!(!tried);
                self.books.expired += 1;
            }
            Outcome::Lost | Outcome::Failed => self.books.lost += 1,
        }
    }
}

impl World {
    /// Lets the workers answer and time go on until everything has ended.
    fn end(&mut self) {
        loop {
            while !self.batches.is_empty() {
                self.take(Step::Done {
                    batch: 0,
                    compute: 5,
                });
            }
            let Some(wake) = self.engine.poll_timeout() else {
                break;
            };
            self.pass(wake, true);
        }
        assert_eq!((self.books.queued, self.books.in_flight), (0, 0));
        assert!(self.engine.live.is_empty() && self.engine.batches.is_empty());
    }
}

#[test]
fn the_books_balance_over_a_million_events() {
    let mut runner = TestRunner::deterministic();
    let step = step();
    for history in 0..2_000 {
        let discipline = DisciplineName::ALL[history % DisciplineName::ALL.len()];
        let mut world = World::new(discipline, DeadlineOptions::default());
        for _ in 0..500 {
            world.take(step.new_tree(&mut runner).unwrap().current());
        }
        world.end();
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn every_request_ends_once_whatever_happens(
        discipline in discipline(),
        options in any::<[bool; 3]>(),
        steps in proptest::collection::vec(step(), 1..200),
    ) {
        let [drop, look_ahead, holding] = options;
        let mut world = World::new(discipline, DeadlineOptions { drop, look_ahead, holding });
        for step in steps {
            world.take(step);
        }
        world.end();
    }
}
