//! Random histories: whatever happens, in whatever order, the engine keeps its contract.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;

/// The memory of each pool, of which a member's weights take one or two parts.
const POOL_MEMORY: u64 = 3;

/// The way in which a new replica has its device.
#[derive(Clone, Copy, Debug)]
enum Sharing {
    Concurrent,
    Turns,
    Pool { weights: u64, resident: bool },
}

impl Sharing {
    fn parameters(self, memory: u64) -> DeviceSharing {
        match self {
            Self::Concurrent => DeviceSharing::Concurrent,
            Self::Turns => DeviceSharing::Turns,
            Self::Pool { weights, resident } => DeviceSharing::Pool(PoolMember {
                weights,
                memory,
                load: ms(7 * weights),
                resident,
                on_disk: false,
                utilization: [0.4, 0.6].into(),
            }),
        }
    }
}

/// A random step; indices are taken modulo the number of items.
#[derive(Clone, Debug)]
enum Step {
    Pass {
        millis: u64,
        punctual: bool,
    },
    ModelUpdated {
        model: u32,
        rows: u32,
        queue: usize,
        priority: u32,
    },
    ModelRemoved {
        model: u32,
    },
    ReplicaReady {
        model: u32,
        times: Vec<u64>,
        in_flight: u32,
        sharing: Sharing,
    },
    Share {
        replica: usize,
        time_shared: bool,
    },
    Drain(usize),
    Lose(usize),
    Arrive {
        model: u32,
        tenant: u64,
        rows: u32,
        class: u64,
        priority: u64,
        may_fall_back: bool,
        allowed: u64,
    },
    CancelWaiting(usize),
    CancelComputing(usize),
    Done {
        batch: usize,
        compute: u64,
    },
    Fail(usize, BatchError),
    /// The weights are there that were asked for first.
    Loaded,
    /// The worker has no room for weights that are there or on their way.
    Unloaded(usize),
    /// The worker has this much for weights.
    Memory(u64),
    Fits {
        replica: usize,
        rows: u32,
    },
    Switch(DisciplineName),
    /// The fallback of a model is a later one, so that none leads back.
    Fallback {
        model: u32,
        fallback: Option<u32>,
    },
}

fn step() -> impl Strategy<Value = Step> {
    any::<u64>().prop_map(|seed| Random(seed).step())
}

/// The generator `SplitMix64`: a strategy would take longer to draw a step than the engine to handle it.
pub(super) struct Random(pub(super) u64);

impl Random {
    /// Returns a number below `limit`.
    pub(super) fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % limit
    }

    pub(super) fn small(&mut self, limit: u32) -> u32 {
        u32::try_from(self.below(u64::from(limit))).unwrap()
    }

    fn index(&mut self) -> usize {
        self.small(1000) as usize
    }

    /// Returns a step: of 44 steps about 16 are arrivals, 6 are answers, and 4 let time pass.
    fn step(&mut self) -> Step {
        match self.below(44) {
            0..16 => Step::Arrive {
                model: self.small(3),
                tenant: self.below(3),
                rows: 1 + self.small(4),
                class: self.below(2),
                priority: self.below(10),
                may_fall_back: self.below(4) > 0,
                allowed: self.below(300),
            },
            16..22 => Step::Done {
                batch: self.index(),
                compute: self.below(100),
            },
            22..26 => Step::Pass {
                millis: self.below(60),
                punctual: self.below(2) == 0,
            },
            26..28 => Step::ReplicaReady {
                model: self.small(3),
                times: (0..=self.below(4)).map(|_| 1 + self.below(39)).collect(),
                in_flight: 1 + self.small(3),
                sharing: match self.below(4) {
                    0 => Sharing::Concurrent,
                    1 => Sharing::Turns,
                    _ => Sharing::Pool {
                        weights: 1 + self.below(2),
                        resident: self.below(2) == 0,
                    },
                },
            },
            39 => {
                let model = self.small(3);
                let later = self.below(3) > 0;
                Step::Fallback {
                    model,
                    fallback: later.then(|| model + 1 + self.small(2)),
                }
            }
            38 => Step::Share {
                replica: self.index(),
                time_shared: self.below(2) == 0,
            },
            28 => Step::ModelUpdated {
                model: self.small(3),
                rows: 1 + self.small(5),
                queue: self.small(12) as usize,
                priority: self.small(10),
            },
            29 => Step::ModelRemoved {
                model: self.small(24),
            },
            30 => Step::Drain(self.index()),
            31 => Step::Lose(self.index()),
            32 => Step::CancelWaiting(self.index()),
            33 => Step::CancelComputing(self.index()),
            34 => Step::Fail(self.index(), BatchError::ModelFailed),
            35 => {
                let errors = [
                    BatchError::TimedOut,
                    BatchError::TooLarge,
                    BatchError::NotBegun,
                    BatchError::Rejected,
                ];
                Step::Fail(self.index(), errors[self.index() % errors.len()])
            }
            40 | 41 => Step::Loaded,
            42 => Step::Unloaded(self.index()),
            43 => Step::Memory(self.below(1 + POOL_MEMORY)),
            36 => Step::Fits {
                replica: self.index(),
                rows: 1 + self.small(4),
            },
            _ => Step::Switch(DisciplineName::LIVE[self.index() % DisciplineName::LIVE.len()]),
        }
    }
}

fn discipline() -> impl Strategy<Value = DisciplineName> {
    proptest::sample::select(DisciplineName::LIVE.as_slice())
}

struct Worker {
    parameters: ReplicaParameters,
    draining: bool,
    held: usize,
}

/// A driver that keeps its own books and checks every action.
struct CheckedDriver {
    engine: Engine,
    /// The members of the pool whose weights are there.
    resident: BTreeSet<ReplicaKey>,
    /// Those whose weights are on their way.
    copies: Vec<ReplicaKey>,
    pool_memory: u64,
    discipline: DisciplineName,
    options: DeadlineOptions,
    now: Time,
    limits: BTreeMap<ModelKey, ModelLimits>,
    workers: BTreeMap<ReplicaKey, Worker>,
    batches: BTreeMap<BatchKey, (ReplicaKey, Vec<RequestKey>)>,
    /// The requests that wait.
    waiting: BTreeMap<RequestKey, Request>,
    computing: BTreeMap<RequestKey, Request>,
    attempts: BTreeMap<RequestKey, u32>,
    /// The replicas on which the model failed on a request, with the number of requests of each such batch.
    failures: BTreeMap<RequestKey, Vec<(ReplicaKey, usize)>>,
    ejected: BTreeSet<ReplicaKey>,
    /// True once a model has had a fallback.
    has_fallbacks: bool,
    books: Books,
    next: u32,
}

fn nth<K: Copy + Ord, V>(map: &BTreeMap<K, V>, index: usize) -> Option<K> {
    map.keys().nth(index.checked_rem(map.len())?).copied()
}

impl CheckedDriver {
    fn new(discipline: DisciplineName, options: DeadlineOptions) -> Self {
        let config = EngineConfig {
            discipline,
            deadline: options,
            ..EngineConfig::default()
        };
        let mut driver = Self {
            engine: Engine::new(config),
            resident: BTreeSet::new(),
            copies: Vec::new(),
            pool_memory: POOL_MEMORY,
            discipline,
            options,
            now: Time::ZERO,
            limits: BTreeMap::new(),
            workers: BTreeMap::new(),
            batches: BTreeMap::new(),
            waiting: BTreeMap::new(),
            computing: BTreeMap::new(),
            attempts: BTreeMap::new(),
            failures: BTreeMap::new(),
            ejected: BTreeSet::new(),
            has_fallbacks: false,
            books: Books::default(),
            next: 0,
        };
        for model in 0..3 {
            driver.apply(Step::ModelUpdated {
                model,
                rows: 4,
                queue: 8,
                priority: 5,
            });
            driver.apply(Step::ReplicaReady {
                model,
                times: vec![5, 8, 11],
                in_flight: 2,
                sharing: [
                    Sharing::Concurrent,
                    Sharing::Turns,
                    Sharing::Pool {
                        weights: 1,
                        resident: true,
                    },
                ][model as usize],
            });
        }
        driver
    }

    #[expect(clippy::too_many_lines, reason = "one arm per step")]
    fn apply(&mut self, step: Step) {
        match step {
            Step::Pass { millis, punctual } => self.pass(self.now + ms(millis), punctual),
            Step::ModelUpdated {
                model,
                rows,
                queue,
                priority,
            } => {
                let limits = ModelLimits {
                    max_batch_rows: rows,
                    max_batch_bytes: 10,
                    queue_limit: queue,
                };
                self.limits.insert(ModelKey(model), limits);
                self.handle(Event::ModelUpdated {
                    model: ModelKey(model),
                    limits,
                    priority: Priority::new(priority).unwrap(),
                });
            }
            Step::ModelRemoved { model } => {
                let model = ModelKey(model);
                self.limits.remove(&model);
                for worker in self
                    .workers
                    .values_mut()
                    .filter(|worker| worker.parameters.model == model)
                {
                    worker.draining = true;
                }
                self.handle(Event::ModelRemoved { model });
            }
            Step::ReplicaReady {
                model,
                times,
                in_flight,
                sharing,
            } => {
                self.next += 1;
                let replica = ReplicaKey(self.next);
                let mut parameters = parameters(ModelKey(model), &times, in_flight);
                // Smaller than the largest size with a time: requests with more rows are a batch by themselves.
                parameters.batch_size = parameters.batch_size.div_ceil(2);
                parameters.sharing = sharing.parameters(self.pool_memory);
                let draining = !self.limits.contains_key(&parameters.model);
                // Where there is no room the engine has them leave at once.
                if let Sharing::Pool { resident: true, .. } = sharing
                    && !draining
                {
                    self.resident.insert(replica);
                }
                self.workers.insert(
                    replica,
                    Worker {
                        parameters: parameters.clone(),
                        draining,
                        held: 0,
                    },
                );
                self.handle(Event::ReplicaReady {
                    replica,
                    parameters,
                });
            }
            Step::Share {
                replica,
                time_shared,
            } => {
                if let Some(replica) = nth(&self.workers, replica) {
                    self.handle(Event::TimeSharingChanged {
                        replica,
                        time_shared,
                    });
                }
            }
            Step::Drain(index) => {
                let Some(replica) = nth(&self.workers, index) else {
                    return;
                };
                self.workers.get_mut(&replica).unwrap().draining = true;
                self.handle(Event::ReplicaDraining { replica });
            }
            Step::Lose(index) => self.lose(index),
            Step::Arrive {
                model,
                tenant,
                rows,
                class,
                priority,
                may_fall_back,
                allowed,
            } => {
                self.next += 1;
                let id = RequestKey(u64::from(self.next));
                let deadline = self.now + ms(allowed);
                let class = ShapeClass(class);
                let request = Request {
                    id,
                    model: ModelKey(model),
                    tenant: TenantKey(tenant),
                    rows,
                    // From 3 to 12, whatever else the request is.
                    bytes: 3 * u64::from(rows),
                    class,
                    priority,
                    may_fall_back,
                    deadline,
                    load_by: deadline,
                };
                self.books.accepted += 1;
                self.waiting.insert(id, request);
                self.handle(Event::RequestArrived(request));
            }
            Step::CancelWaiting(index) => self.cancel(nth(&self.waiting, index)),
            Step::CancelComputing(index) => self.cancel(nth(&self.computing, index)),
            Step::Done { batch, compute } => self.complete(batch, compute),
            Step::Fail(batch, error) => self.give_back(batch, error),
            Step::Loaded => {
                if !self.copies.is_empty() {
                    let replica = self.copies.remove(0);
                    self.resident.insert(replica);
                    self.handle(Event::WeightsLoaded { replica });
                }
            }
            Step::Unloaded(index) => {
                let there = self.resident.iter().chain(&self.copies);
                let there: Vec<ReplicaKey> = there.copied().collect();
                if let Some(&replica) = there.get(index % there.len().max(1)) {
                    self.forget_weights(replica);
                    self.handle(Event::WeightsUnloaded { replica });
                }
            }
            Step::Memory(memory) => {
                let mut members = self.workers.keys().copied();
                if let Some(replica) = members.find(|key| self.pooled(*key).is_some()) {
                    self.pool_memory = memory;
                    self.handle(Event::PoolMemoryChanged { replica, memory });
                }
            }
            Step::Fits { replica, rows } => self.fits(replica, rows),
            Step::Switch(discipline) => self.switch(discipline),
            Step::Fallback { model, fallback } => {
                self.has_fallbacks |= fallback.is_some();
                self.handle(Event::FallbackChanged {
                    model: ModelKey(model),
                    fallback: fallback.map(ModelKey),
                });
            }
        }
    }

    fn complete(&mut self, index: usize, compute: u64) {
        let Some((batch, requests)) = self.return_batch(index) else {
            return;
        };
        for request in requests {
            self.books.answered += u64::from(self.computing.remove(&request).is_some());
        }
        self.handle(Event::BatchCompleted {
            batch,
            queue_wait: Duration::ZERO,
            compute: ms(compute),
        });
    }

    fn give_back(&mut self, index: usize, error: BatchError) {
        let replica = nth(&self.batches, index).map(|batch| self.batches[&batch].0);
        let Some((batch, requests)) = self.return_batch(index) else {
            return;
        };
        let replica = replica.expect("just seen");
        let requests_of_batch = requests.len();
        let divided = matches!(
            error,
            BatchError::TooLarge | BatchError::ModelFailed | BatchError::Rejected
        ) && requests_of_batch > 1;
        for request in requests {
            if let Some(request) = self.computing.remove(&request) {
                if divided || error == BatchError::NotBegun {
                    *self.attempts.get_mut(&request.id).unwrap() -= 1;
                }
                if matches!(error, BatchError::ModelFailed | BatchError::Rejected) {
                    let failures = self.failures.entry(request.id).or_default();
                    failures.push((replica, requests_of_batch));
                    let alone = failures.iter().filter(|(_, requests)| *requests == 1);
                    assert!(alone.count() <= 2, "tried once more");
                }
                self.waiting.insert(request.id, request);
            }
        }
        self.handle(Event::BatchFailed { batch, error });
    }

    fn fits(&mut self, index: usize, rows: u32) {
        let Some(replica) = nth(&self.workers, index) else {
            return;
        };
        let parameters = &mut self.workers.get_mut(&replica).unwrap().parameters;
        parameters.batch_size = parameters.batch_size.min(rows);
        parameters.service = parameters.service.limited_to(rows);
        self.handle(Event::BatchLimitLowered { replica, rows });
    }

    fn switch(&mut self, discipline: DisciplineName) {
        self.discipline = discipline;
        self.engine.set_discipline(self.now, discipline);
        self.drain();
    }

    fn cancel(&mut self, request: Option<RequestKey>) {
        let Some(request) = request else { return };
        self.waiting.remove(&request);
        self.computing.remove(&request);
        self.books.cancelled += 1;
        self.handle(Event::RequestCancelled { request });
    }

    fn return_batch(&mut self, index: usize) -> Option<(BatchKey, Vec<RequestKey>)> {
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
        self.forget_weights(replica);
        self.ejected.remove(&replica);
        let void: Vec<BatchKey> = self
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
        self.handle(Event::ReplicaLost { replica });
    }

    /// Lets time pass: a punctual driver wakes at the engine's timeout, another one when the time is over.
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

    fn handle(&mut self, event: Event) {
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
                Action::Load { replica } => {
                    assert!(self.pooled(replica).is_some(), "{replica:?} is in no pool");
                    assert!(!self.resident.contains(&replica), "it is there");
                    self.copies.push(replica);
                    self.check_pool();
                }
                Action::Unload { replica, wanted } => {
                    assert!(wanted.is_none_or(|wanted| !self.resident.contains(&wanted)));
                    let held = self.workers.get(&replica).map(|worker| worker.held);
                    assert_eq!(held, Some(0), "none of its batches is there");
                    assert!(self.resident.remove(&replica));
                }
                Action::TenantPaused { .. } => {}
                Action::ReplicaEjected { replica, .. } => {
                    assert!(self.ejected.insert(replica), "it is reported once");
                }
                Action::ReplicaRestored { replica } => {
                    assert!(self.ejected.remove(&replica), "it was ejected");
                }
                Action::ReplicaDrained { replica } => {
                    self.ejected.remove(&replica);
                    self.forget_weights(replica);
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
        assert!(self.books.is_balanced());
    }

    /// Returns what a member of a pool weighs.
    fn pooled(&self, replica: ReplicaKey) -> Option<u64> {
        match &self.workers.get(&replica)?.parameters.sharing {
            DeviceSharing::Pool(member) => Some(member.weights),
            DeviceSharing::Concurrent | DeviceSharing::Turns => None,
        }
    }

    fn forget_weights(&mut self, replica: ReplicaKey) {
        self.resident.remove(&replica);
        self.copies.retain(|copied| *copied != replica);
    }

    /// Checks that the weights fit that are there or on their way.
    fn check_pool(&self) {
        let there = self.resident.iter().chain(&self.copies);
        let used: u64 = there.filter_map(|replica| self.pooled(*replica)).sum();
        let memory = self.pool_memory;
        assert!(used <= memory, "{used} parts of {memory}");
    }

    /// Returns true if requests that cannot be in time are dropped.
    fn keeps_deadlines(&self) -> bool {
        self.binds_late() && self.options.drop
    }

    /// Returns true if a replica gets no more batches than its worker takes.
    fn binds_late(&self) -> bool {
        self.discipline != DisciplineName::FixedWait
    }

    fn dispatch(&mut self, batch: BatchKey, replica: ReplicaKey, requests: Vec<RequestKey>) {
        let (keeps_deadlines, binds_late) = (self.keeps_deadlines(), self.binds_late());
        let pooled = self.pooled(replica);
        assert!(pooled.is_none() || self.resident.contains(&replica));
        let keeps_deadlines = keeps_deadlines || pooled.is_some();
        let worker = self.workers.get_mut(&replica).expect("known replicas only");
        // The device counts the batches of its pool.
        let is_taken = worker.held < worker.parameters.in_flight as usize || pooled.is_some();
        assert!(!worker.draining && (is_taken || !binds_late));
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
        let limit = self.limits[&worker.parameters.model]
            .max_batch_rows
            .min(worker.parameters.batch_size);
        assert!(
            rows > 0 && (rows <= limit || taken.len() == 1),
            "{rows} rows where {limit} are allowed"
        );
        let bytes: u64 = taken.iter().map(|request| request.bytes).sum();
        assert!(bytes <= 10 || taken.len() == 1, "{bytes} bytes");
        let fitting = worker.parameters.service.max_rows();
        assert!(rows <= fitting, "{rows} rows where {fitting} fit");
        let model = worker.parameters.model;
        let takes_elsewhere = |rows| {
            self.workers.iter().any(|(other, worker)| {
                *other != replica
                    && worker.parameters.model == model
                    && !worker.draining
                    && !self.ejected.contains(other)
                    && rows <= worker.parameters.service.max_rows()
            })
        };
        let last_failure = |request: &Request| self.failures.get(&request.id)?.last();
        if taken.iter().any(|request| last_failure(request).is_some()) {
            for request in &taken {
                let (failed_on, requests) = last_failure(request).expect("fresh ones stay away");
                assert!(taken.len() <= requests.div_ceil(2), "at most half as many");
                assert!(
                    *failed_on != replica || !takes_elsewhere(request.rows),
                    "and elsewhere"
                );
            }
        }
        for request in &taken {
            assert!(
                request.model == model
                    || (self.has_fallbacks && request.may_fall_back && request.model < model)
            );
            assert_eq!(request.class, taken[0].class, "classes never mix");
            assert!(
                request.deadline > self.now || !keeps_deadlines,
                "expired requests are not dispatched"
            );
            let attempts = self.attempts.entry(request.id).or_default();
            *attempts += 1;
            assert!(*attempts <= 3);
            // Tried again, it is not for the models before this one.
            self.computing
                .insert(request.id, Request { model, ..*request });
        }
        assert!(self.batches.insert(batch, (replica, requests)).is_none());
    }

    fn finish(&mut self, id: RequestKey, outcome: RequestOutcome) {
        let tried = self.attempts.get(&id).is_some_and(|attempts| *attempts > 0);
        assert!(self.waiting.remove(&id).is_some(), "{id:?} does not wait");
        match outcome {
            RequestOutcome::Refused(_) => {
                assert!(!tried);
                self.books.accepted -= 1;
                self.books.refused += 1;
            }
            RequestOutcome::Expired => {
                assert!(!tried);
                self.books.expired += 1;
            }
            RequestOutcome::Lost => self.books.lost += 1,
            RequestOutcome::Failed => {
                assert!(tried);
                self.books.failed += 1;
            }
            RequestOutcome::Answered | RequestOutcome::Cancelled => unreachable!(),
        }
    }
}

impl CheckedDriver {
    /// Lets the workers answer and time pass until all requests have ended.
    fn end(&mut self) {
        loop {
            while !self.batches.is_empty() || !self.copies.is_empty() {
                self.apply(Step::Loaded);
                self.apply(Step::Done {
                    batch: 0,
                    compute: 5,
                });
            }
            let wake = self.engine.poll_timeout();
            self.check_that_nobody_waits_idly(wake);
            let Some(wake) = wake else {
                break;
            };
            self.pass(wake, true);
        }
        assert_eq!((self.books.queued, self.books.in_flight), (0, 0));
        assert!(self.engine.locations.is_empty() && self.engine.batches.is_empty());
    }

    /// Checks, while no worker has anything to do, that the engine comes back soon to a request that is the first of its model to be due and that a pool's device
    /// could compute.
    fn check_that_nobody_waits_idly(&self, wake: Option<Time>) {
        let soon = self.now + ms(50);
        if wake.is_some_and(|wake| wake <= soon) {
            return;
        }
        // A batch that was too large tells the engine that less fits.
        let fits = |replica: ReplicaKey, request: &Request| {
            let on = self.engine.models[&request.model].pool.get(replica);
            on.is_some_and(|on| request.rows <= on.rows_limit())
        };
        let can_take = |request: &Request| {
            // A worker of its own may wait for further requests.
            let mut all = { &self.workers }.iter();
            let is_pooled = all.all(|(replica, worker)| {
                worker.parameters.model != request.model || self.pooled(*replica).is_some()
            });
            let mut all = { &self.workers }.iter();
            is_pooled
                && all.any(|(replica, worker)| {
                    let weights = self.pooled(*replica);
                    worker.parameters.model == request.model
                        && !worker.draining
                        && !self.ejected.contains(replica)
                        && request.rows <= self.limits[&request.model].max_batch_rows
                        && fits(*replica, request)
                        && weights.is_some_and(|weights| weights <= self.pool_memory)
                })
        };
        let left = self.waiting.values().find(|request| {
            let is_fresh = !self.attempts.contains_key(&request.id);
            let mut others = self.waiting.values();
            let is_first = others
                .all(|other| other.model != request.model || other.deadline >= request.deadline);
            // It may wait for the fallback by now.
            let is_own = !(self.has_fallbacks && request.may_fall_back);
            is_fresh && is_first && is_own && request.deadline > soon + ms(100) && can_take(request)
        });
        assert!(left.is_none(), "{left:?} waits until {wake:?}");
    }
}

/// Runs histories of 1 to `longest` random events each; every one is checked action by action and brought to its end.
fn check_histories(discipline: DisciplineName, histories: u64, longest: u64) {
    for history in 0..histories {
        let mut random = Random(history);
        let [drop, look_ahead, holding] = [(); 3].map(|()| random.below(4) > 0);
        let options = DeadlineOptions {
            drop,
            look_ahead,
            holding,
        };
        let mut driver = CheckedDriver::new(discipline, options);
        for _ in 0..=random.below(longest) {
            driver.apply(random.step());
        }
        driver.end();
    }
}

// A million sequences of events, half of them per discipline so that two cores share them.

#[test]
fn the_books_balance_over_half_a_million_histories_that_begin_with_deadline() {
    check_histories(DisciplineName::Deadline, 500_000, 12);
}

#[test]
fn the_books_balance_over_half_a_million_histories_that_begin_with_fixed_wait() {
    check_histories(DisciplineName::FixedWait, 500_000, 12);
}

// A million events in long sequences.

#[test]
fn the_books_balance_over_long_histories() {
    for discipline in DisciplineName::LIVE {
        check_histories(discipline, 2_000, 500);
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
        let mut driver = CheckedDriver::new(discipline, DeadlineOptions { drop, look_ahead, holding });
        for step in steps {
            driver.apply(step);
        }
        driver.end();
    }
}
