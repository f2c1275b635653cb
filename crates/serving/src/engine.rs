//! The engine: owns all requests between arrival and end.

mod admission;
mod batches;
mod blame;
mod cold_loads;
mod device_pools;
mod division;
mod fairness;
mod health;
mod parts;
mod replicas;
mod turns;

use std::{
    collections::{BTreeSet, VecDeque},
    mem,
    time::Duration,
};

use packhorse_cluster::{Discipline as DisciplineName, Priority, Time};
use rustc_hash::FxHashMap;

pub use parts::EnginePart;

use crate::{
    Action, BatchKey, Books, EngineConfig, Event, ModelKey, ModelLimits, ReplicaKey, Request,
    RequestKey, RequestOutcome,
    device_pool::pools::{ColdRank, DevicePools},
    discipline::{Decision, Discipline, ModelView, configured_discipline},
    division_budget::DivisionBudget,
    lost_replicas::LostReplicas,
    overloaded_models::OverloadedModels,
    queue::{Queue, QueuedRequest, Ticket},
    refused_loads::AskedFor,
    replica::WorkerTimes,
    replica_pool::ReplicaPool,
    retry_budget::RetryBudget,
    tenant_blame::TenantBlame,
    tenant_shares::{Contention, TenantShares},
    turns::Turns,
    wakes::Wakes,
};

/// The part of the time that a waiting request has left, as a divisor, from which on the time to work its queue off endangers it:
/// arrivals come in bursts, and the device may be shared.
const ENDANGERED_PART: f64 = 8.0;

/// The time that a waiting request has left, beyond that to work its queue off, from which on it is in no danger however long the queue is: the queue is
/// looked at with every batch, so that this is soon enough.
const SAFE_SLACK: Duration = Duration::from_secs(2);

/// The serving engine. It decides about every request between arrival and answer; it does no I/O and reads no clock.
///
/// # Contract
/// - `now` never goes back, over all calls.
/// - After every [`Engine::handle`], and whenever [`Engine::poll_timeout`] has come, the driver calls [`Engine::poll`] until it
///   returns `None`, and carries out each action.
/// - After that the next moment to act without an event is [`Engine::poll_timeout`].
///
/// A request that was in a failed or lost batch may be dispatched again; [`BatchError`](crate::BatchError) says when.
///
/// Every request that arrives ends exactly once: with an [`Action::Finish`], with the [`Event::BatchCompleted`] of the last batch
/// that it was dispatched in (answered), or with its [`Event::RequestCancelled`].
///
/// # Example
/// ```
/// use std::time::Duration;
///
/// use packhorse_cluster::{Priority, Time};
/// use packhorse_contention::ServiceTimes;
/// use packhorse_serving::*;
///
/// let mut engine = Engine::new(EngineConfig::default());
/// let (model, replica) = (ModelKey(0), ReplicaKey(0));
/// let limits = ModelLimits { max_batch_rows: 2, max_batch_bytes: 1 << 20, queue_limit: 100 };
/// engine.handle(Time::ZERO, Event::ModelUpdated { model, limits, priority: Priority::default() });
/// let parameters = ReplicaParameters {
///     model,
///     batch_size: 2,
///     in_flight: ReplicaParameters::LEAST_CREDITS,
///     // One row takes 10 ms, two take 12 ms.
///     service: ServiceTimes::from_times([10, 12].map(Duration::from_millis).to_vec()),
///     device: DeviceKey(0),
///     sharing: DeviceSharing::Concurrent,
///     shares_memory: false,
/// };
/// engine.handle(Time::ZERO, Event::ReplicaReady { replica, parameters });
/// let request = Request {
///     id: RequestKey(7),
///     model,
///     tenant: TenantKey(0),
///     rows: 1,
///     bytes: 1000,
///     class: ShapeClass(0),
///     priority: 0,
///     may_fall_back: false,
///     deadline: Time::ZERO + Duration::from_millis(100),
///     load_by: Time::ZERO + Duration::from_millis(100),
/// };
/// engine.handle(Time::ZERO, Event::RequestArrived(request));
/// // The replica is idle, so the request is sent at once.
/// let action = engine.poll(Time::ZERO);
/// assert!(matches!(action, Some(Action::Dispatch { requests, .. }) if requests == [RequestKey(7)]));
/// assert_eq!(engine.poll(Time::ZERO), None);
/// ```
#[derive(Debug)]
pub struct Engine {
    config: EngineConfig,
    discipline: Box<dyn Discipline>,
    // Nothing iterates over these in an order that matters: it would depend on the hash.
    models: FxHashMap<ModelKey, Model>,
    /// The model of every replica.
    replicas: FxHashMap<ReplicaKey, ModelKey>,
    batches: FxHashMap<BatchKey, DispatchedBatch>,
    /// The place of every request that was accepted and has not ended.
    locations: FxHashMap<RequestKey, RequestLocation>,
    /// The times at which to decide for a model again.
    wakes: Wakes<ModelKey>,
    overloaded: OverloadedModels,
    turns: Turns,
    pools: DevicePools,
    /// The times at which ejected replicas are to be probed.
    probes: BTreeSet<(Time, ReplicaKey)>,
    actions: VecDeque<Action>,
    next_arrival: u64,
    next_batch: u64,
    books: Books,
    /// The number of requests that came when no device had the weights of their model, which all are members of pools.
    cold_requests: u64,
}

#[derive(Debug, Default)]
struct Model {
    /// The limits; `None` once the model was removed and only its replicas still drain.
    limits: Option<ModelLimits>,
    priority: Priority,
    /// The model that takes the requests which this one cannot answer in time.
    fallback: Option<ModelKey>,
    queue: Queue,
    pool: ReplicaPool,
    lost: LostReplicas,
    wake: Option<Time>,
    retries: RetryBudget,
    divisions: DivisionBudget,
    shares: TenantShares,
    contention: Contention,
    blame: TenantBlame,
    /// The end of the time for which the model counts as overloaded.
    overloaded_until: Time,
    /// The earliest deadline, and the magnitude of the waiting rows, that the pools of its devices have seen last.
    seen_by_pools: Option<(Option<Time>, Option<u32>)>,
    /// True if a device has the model's weights in its pool.
    is_resident: bool,
    /// Its place among the models that wait for weights.
    cold: Option<ColdRank>,
    /// What is told to requests that are refused because the model is in files only, from which it is then loaded for those that come later.
    asked_for: Option<AskedFor>,
}

impl Model {
    /// Returns true if a request of the model was refused or dropped a short while ago, or those that wait were endangered.
    fn is_overloaded(&self, now: Time) -> bool {
        now < self.overloaded_until
    }

    /// Returns true if the requests that wait, behind a batch that a replica has just got, may be late: if the model's replicas
    /// need a good part of the time that the first of them has left to work them off, see [`ENDANGERED_PART`], and little is left beyond that, see
    /// [`SAFE_SLACK`]. However many wait, they are in no danger while there is time for all.
    fn is_endangered(&self, now: Time, replica: ReplicaKey) -> bool {
        let (Some((due, _)), Some(replica)) =
            (self.queue.earliest_deadline(), self.pool.get(replica))
        else {
            return false;
        };
        let rate = replica.forecast(now).best_rate() * self.pool.len() as f64;
        let left = due.saturating_since(now).as_secs_f64();
        let work = self.queue.rows() as f64 / rate;
        work * ENDANGERED_PART >= left && left - work < SAFE_SLACK.as_secs_f64()
    }
}

#[derive(Debug)]
struct DispatchedBatch {
    model: ModelKey,
    replica: ReplicaKey,
    requests: Vec<QueuedRequest>,
    rows: u32,
    dispatched: Time,
}

impl DispatchedBatch {
    /// Returns true if a batch that has come back took at most the objective of each of its requests, without its wait behind others.
    fn is_within_objectives(&self, now: Time, times: WorkerTimes) -> bool {
        let latency = now.saturating_since(self.dispatched + times.queue_wait);
        let objectives = self.requests.iter();
        let mut objectives = objectives.map(|waiting| {
            let Request { deadline, .. } = waiting.request;
            deadline.saturating_since(waiting.arrived)
        });
        objectives.all(|objective| latency <= objective)
    }
}

/// The place of a request that has not ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RequestLocation {
    Queued(ModelKey, Ticket),
    InFlight(BatchKey),
}

impl Engine {
    /// Creates an engine without models.
    pub fn new(config: EngineConfig) -> Self {
        Self {
            discipline: configured_discipline(&config),
            config,
            models: FxHashMap::default(),
            replicas: FxHashMap::default(),
            batches: FxHashMap::default(),
            locations: FxHashMap::default(),
            wakes: Wakes::default(),
            overloaded: OverloadedModels::default(),
            turns: Turns::default(),
            pools: DevicePools::default(),
            probes: BTreeSet::new(),
            actions: VecDeque::new(),
            next_arrival: 0,
            next_batch: config.first_batch.0,
            books: Books::default(),
            cold_requests: 0,
        }
    }

    /// Handles an event. Panics if a request or replica arrives under a number that is in use, or a request without rows.
    pub fn handle(&mut self, now: Time, event: Event) {
        match event {
            Event::ModelUpdated {
                model,
                limits,
                priority,
            } => self.model_updated(now, model, limits, priority),
            Event::ModelRemoved { model } => self.model_removed(now, model),
            Event::ReplicaReady {
                replica,
                parameters,
            } => self.replica_ready(now, replica, parameters),
            Event::ReplicaDraining { replica } => self.replica_draining(now, replica),
            Event::ReplicaLost { replica } => self.replica_lost(now, replica),
            Event::BatchLimitLowered { replica, rows } => {
                self.batch_limit_lowered(now, replica, rows);
            }
            Event::TimeSharingChanged {
                replica,
                time_shared,
            } => self.time_sharing_changed(now, replica, time_shared),
            Event::WeightsLoaded { replica } => self.weights_loaded(now, replica),
            Event::WeightsUnloaded { replica } => self.weights_unloaded(now, replica),
            Event::WeightsStored {
                replica,
                on_disk,
                load,
            } => self.weights_stored(now, replica, on_disk, load),
            Event::PoolMemoryChanged { replica, memory } => {
                self.pool_memory_changed(now, replica, memory);
            }
            Event::FallbackChanged { model, fallback } => {
                if let Some(model) = self.models.get_mut(&model) {
                    model.fallback = fallback;
                }
            }
            Event::RequestArrived(request) => self.arrive(now, request),
            Event::RequestCancelled { request } => self.cancel(now, request),
            Event::BatchCompleted {
                batch,
                queue_wait,
                compute,
            } => self.batch_completed(
                now,
                batch,
                WorkerTimes {
                    queue_wait,
                    compute,
                },
            ),
            Event::BatchFailed { batch, error } => self.batch_failed(now, batch, error),
        }
        debug_assert!(self.books.is_balanced(), "{:?}", self.books);
        debug_assert_eq!(
            self.locations.len() as u64,
            self.books.queued + self.books.in_flight
        );
    }

    /// Changes the discipline. Waiting requests are put into its order; batches in flight are not touched.
    pub fn set_discipline(&mut self, now: Time, name: DisciplineName) {
        if name == self.config.discipline {
            return;
        }
        self.config.discipline = name;
        self.discipline = configured_discipline(&self.config);
        self.put_in_order(now, self.models.keys().copied().collect());
    }

    /// Puts the waiting requests of these models into the order of the discipline, and decides anew.
    fn put_in_order(&mut self, now: Time, mut models: Vec<ModelKey>) {
        models.sort_unstable();
        for key in models {
            for waiting in mem::take(&mut self.model_mut(key).queue).iter() {
                let waiting = self.ranked(now, *waiting);
                self.insert_into_queue(waiting);
            }
            self.schedule_decision(now, key);
        }
        for device in self.turns.devices() {
            self.schedule_turns(now, device);
        }
        for device in self.pools.devices() {
            self.pools.schedule(device, Some(now));
        }
    }

    /// Returns the next action, or `None` if there is none until the next event or [`Engine::poll_timeout`].
    pub fn poll(&mut self, now: Time) -> Option<Action> {
        while self.actions.is_empty() {
            if let Some(&probe) = self.probes.first().filter(|probe| probe.0 <= now) {
                self.probes.remove(&probe);
                self.probe(now, probe.1);
                continue;
            }
            if let Some(device) = self.turns.wakes().due(now) {
                self.give_turns(now, device);
                continue;
            }
            if self.pools.take_due_retries(now) {
                self.load_cold(now);
                continue;
            }
            if let Some(device) = self.pools.wakes().due(now) {
                self.decide_for_device(now, device);
                continue;
            }
            let model = self.wakes.due(now)?;
            self.decide_for(now, model);
        }
        self.actions.pop_front()
    }

    /// Returns the time of the next poll if no event comes before; `None` if only an event can change anything.
    pub fn poll_timeout(&self) -> Option<Time> {
        let wake = self.wakes.first();
        let turn = self.turns.wakes().first();
        let probe = self.probes.first().map(|probe| probe.0);
        let pool = self.pools.wakes().first();
        let pool = pool.into_iter().chain(self.pools.next_retry());
        wake.into_iter().chain(turn).chain(pool).chain(probe).min()
    }

    /// Returns the number of requests in each place.
    pub fn books(&self) -> Books {
        self.books
    }

    /// Returns the number of requests so far that came when no pool's device had the weights of their model.
    pub fn cold_requests(&self) -> u64 {
        self.cold_requests
    }

    /// Returns the number of waiting requests of a model.
    pub fn queued(&self, model: ModelKey) -> usize {
        self.models.get(&model).map_or(0, |model| model.queue.len())
    }

    /// Returns a replica's observed compute time divided by its profile's, or `None` if there is no such replica.
    pub fn slowdown(&self, now: Time, replica: ReplicaKey) -> Option<f64> {
        let model = self.models.get(self.replicas.get(&replica)?)?;
        Some(model.pool.get(replica)?.slowdown(now))
    }

    /// Returns the most batches that a replica may hold at present, or `None` if there is no such replica.
    pub fn credits(&self, replica: ReplicaKey) -> Option<u32> {
        let model = self.models.get(self.replicas.get(&replica)?)?;
        Some(model.pool.get(replica)?.credits())
    }

    /// Returns a model as its discipline sees it; `None` if the model was removed.
    fn view<'a>(&'a self, now: Time, model: &'a Model) -> Option<ModelView<'a>> {
        Some(ModelView {
            now,
            limits: model.limits.as_ref()?,
            priority: model.priority,
            queue: &model.queue,
            pool: &model.pool,
            overloaded: &self.overloaded,
            shared_fairly: model.is_shared_fairly(now),
        })
    }

    fn enqueue(&mut self, now: Time, waiting: QueuedRequest) {
        let model = waiting.request.model;
        self.insert_into_queue(waiting);
        self.note_tenant(now, model, waiting.request.tenant);
        self.books.queued += 1;
        self.schedule_decision(now, model);
        if self.models[&model].queue.len() == 1 {
            self.look_for_turns(now, model);
        }
        self.pooled_queue_changed(now, model);
    }

    /// Puts a request into its queue, at the rank of its ticket.
    fn insert_into_queue(&mut self, waiting: QueuedRequest) {
        let (key, ticket) = (waiting.request.model, waiting.ticket);
        self.locations
            .insert(waiting.request.id, RequestLocation::Queued(key, ticket));
        self.model_mut(key).queue.insert(waiting);
    }

    fn cancel(&mut self, now: Time, request: RequestKey) {
        match self.locations.remove(&request) {
            Some(RequestLocation::Queued(model, ticket)) => {
                self.model_mut(model)
                    .queue
                    .remove(ticket)
                    .expect("a queued request is in its queue");
                self.books.queued -= 1;
                self.pooled_queue_changed(now, model);
            }
            // The batch is computed without it.
            Some(RequestLocation::InFlight(_)) => self.books.in_flight -= 1,
            None => return,
        }
        self.books.count_end(RequestOutcome::Cancelled);
    }

    /// Ends a request that is counted neither as queued nor as in flight, and tells the driver.
    fn finish(&mut self, request: RequestKey, outcome: RequestOutcome) {
        self.books.count_end(outcome);
        self.locations.remove(&request);
        self.actions.push_back(Action::Finish { request, outcome });
    }

    /// Carries out one decision of the discipline for a model. Returns false if it was to wait.
    fn decide_for(&mut self, now: Time, key: ModelKey) -> bool {
        let model = &self.models[&key];
        let decision = match self.view(now, model) {
            Some(view) if model.pool.has_members() => self.decide_beside_pools(view),
            Some(view) => self.discipline.decide(view),
            None => Decision::Wait(None),
        };
        match decision {
            Decision::Dispatch { replica, tickets } => {
                self.dispatch(now, key, replica, &tickets);
                true
            }
            Decision::Expire(ticket) => {
                self.mark_overloaded(now, key);
                self.expire(now, key, ticket);
                true
            }
            Decision::Wait(until) => {
                debug_assert!(
                    until.is_none_or(|until| until > now),
                    "waiting until {until:?} at {now}"
                );
                self.set_wake(key, until);
                false
            }
        }
    }

    /// Returns the decision about a model with members of pools, whose devices decide about them: what other replicas of it compute, and what ends at its
    /// deadline.
    fn decide_beside_pools(&self, view: ModelView<'_>) -> Decision {
        match view.expire_or_wait() {
            Decision::Wait(due) if !view.pool.is_pooled() => match self.discipline.decide(view) {
                Decision::Wait(until) => Decision::Wait(until.into_iter().chain(due).min()),
                decision => decision,
            },
            decision => decision,
        }
    }

    /// Marks a model as overloaded: one of its requests had to be dropped, or those that wait are in danger of it.
    fn mark_overloaded(&mut self, now: Time, key: ModelKey) {
        let model = self.models.get_mut(&key);
        let model = model.expect("only models that exist are overloaded");
        if OverloadedModels::is_due(now, model.overloaded_until) {
            let devices = model.pool.serving().map(|(_, replica)| replica.device());
            model.overloaded_until = self.overloaded.mark(now, key, devices);
        }
    }

    fn model_mut(&mut self, key: ModelKey) -> &mut Model {
        self.models
            .get_mut(&key)
            .expect("a model is kept while it has requests or replicas")
    }

    /// Schedules a decision for a model in the next poll. Of a model whose replicas are all members of pools devices decide, and only what ends at its
    /// deadline is left.
    fn schedule_decision(&mut self, now: Time, key: ModelKey) {
        let Some(model) = self.models.get_mut(&key) else {
            return;
        };
        let wake = match model.queue.earliest_deadline() {
            first if model.pool.is_pooled() => first.map(|(due, _)| due.max(now)),
            _ => Some(now),
        };
        self.wakes.set(key, &mut model.wake, wake);
    }

    fn set_wake(&mut self, key: ModelKey, wake: Option<Time>) {
        let model = self.models.get_mut(&key);
        let model = model.expect("a model is kept while it has requests or replicas");
        self.wakes.set(key, &mut model.wake, wake);
    }

    /// Removes a model that is no longer served once it has no replicas.
    fn remove_model_if_unused(&mut self, key: ModelKey) {
        if self
            .models
            .get(&key)
            .is_some_and(|model| model.limits.is_none() && model.pool.is_empty())
        {
            self.set_wake(key, None);
            self.set_cold(key, None);
            self.no_longer_asked_for(key);
            self.models.remove(&key);
        }
    }
}

#[cfg(test)]
mod tests;
