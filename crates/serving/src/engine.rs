//! The engine: what arrives, waits, is dispatched, comes back.

mod batches;
mod replicas;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, VecDeque},
    mem,
    time::Duration,
};

use packhorse_cluster::{Discipline as DisciplineName, Time};

use crate::{
    Action, BatchId, Books, Event, ModelKey, ModelLimits, Outcome, Refusal, ReplicaKey, Request,
    RequestId,
    discipline::{DeadlineOptions, Decision, Discipline, View, discipline},
    fleet::{Computed, Fleet},
    hash::NumberHasher,
    queue::{Queue, Ticket, Waiting},
    shortages::Shortages,
};

/// What an engine is set up with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EngineConfig {
    /// How waiting requests become batches.
    pub discipline: DisciplineName,
    /// How long `fixed-wait` holds an open batch at most.
    pub max_batch_wait: Duration,
    /// Which parts of `deadline` are in use.
    pub deadline: DeadlineOptions,
    /// How often a request is dispatched at most, counting the first time: a request that kills its workers must not go round
    /// for ever.
    pub max_attempts: u32,
}

impl Default for EngineConfig {
    /// The default discipline; the thesis' 100 ms for an open batch; two retries.
    fn default() -> Self {
        Self {
            discipline: DisciplineName::default(),
            max_batch_wait: Duration::from_millis(100),
            deadline: DeadlineOptions::default(),
            max_attempts: 3,
        }
    }
}

/// Decides what happens to every request between arrival and answer; does no I/O and reads no clock.
///
/// # Contract
/// - `now` never goes back, over all calls.
/// - After every [`Engine::handle`], and whenever [`Engine::poll_timeout`] has come, the driver calls [`Engine::poll`] until it
///   gives `None`, and carries out each action.
/// - After that the next moment to act without an event is [`Engine::poll_timeout`].
///
/// Every request that arrives ends exactly once: with an [`Action::Finish`], with the [`Event::BatchDone`] of a batch that it was
/// dispatched in last (answered), or with its [`Event::Cancel`].
#[derive(Debug)]
pub struct Engine {
    config: EngineConfig,
    discipline: Box<dyn Discipline>,
    models: BTreeMap<ModelKey, Model>,
    /// Which model a replica serves.
    replicas: BTreeMap<ReplicaKey, ModelKey>,
    batches: BTreeMap<BatchId, Batch>,
    /// Every request that was accepted and has not ended. Looked up, never gone through.
    live: HashMap<RequestId, Place, NumberHasher>,
    /// When to look at a model again; each stands here at most once, as its `wake` says.
    wakes: BTreeSet<(Time, ModelKey)>,
    shortages: Shortages,
    actions: VecDeque<Action>,
    next_arrival: u64,
    next_batch: u64,
    books: Books,
}

#[derive(Debug, Default)]
struct Model {
    /// `None` once the model is gone and only its replicas still drain.
    limits: Option<ModelLimits>,
    queue: Queue,
    fleet: Fleet,
    wake: Option<Time>,
    /// From when on it is noted if it is short: before that it counts as short anyway.
    note_short_from: Time,
}

#[derive(Debug)]
struct Batch {
    model: ModelKey,
    replica: ReplicaKey,
    requests: Vec<Waiting>,
    rows: u32,
    dispatched: Time,
}

/// Where a live request is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Queued(ModelKey, Ticket),
    InFlight(BatchId),
}

impl Engine {
    /// An engine without models.
    pub fn new(config: EngineConfig) -> Self {
        Self {
            discipline: discipline(&config),
            config,
            models: BTreeMap::new(),
            replicas: BTreeMap::new(),
            batches: BTreeMap::new(),
            live: HashMap::default(),
            wakes: BTreeSet::new(),
            shortages: Shortages::default(),
            actions: VecDeque::new(),
            next_arrival: 0,
            next_batch: 0,
            books: Books::default(),
        }
    }

    /// Takes note of an event. Panics if a request or replica comes under a number that is in use, or a request without rows.
    pub fn handle(&mut self, now: Time, event: Event) {
        match event {
            Event::ModelUp { model, limits } => {
                self.models.entry(model).or_default().limits = Some(limits);
                self.wake(now, model);
            }
            Event::ModelGone { model } => self.model_gone(now, model),
            Event::ReplicaUp { replica, spec } => self.replica_up(now, replica, spec),
            Event::ReplicaDraining { replica } => self.replica_draining(now, replica),
            Event::ReplicaLost { replica } => self.replica_lost(now, replica),
            Event::ReplicaFits { replica, rows } => self.replica_fits(now, replica, rows),
            Event::Arrive(request) => self.arrive(now, request),
            Event::Cancel { request } => self.cancel(request),
            Event::BatchDone {
                batch,
                queue_wait,
                compute,
            } => self.batch_done(
                now,
                batch,
                Computed {
                    queue_wait,
                    compute,
                },
            ),
            Event::BatchFailed { batch } => self.batch_failed(now, batch),
            Event::BatchReturned { batch } => self.batch_returned(now, batch),
        }
        debug_assert!(self.books.balance(), "{:?}", self.books);
        debug_assert_eq!(
            self.live.len() as u64,
            self.books.queued + self.books.in_flight
        );
    }

    /// Serves by another discipline from now on. What waits is put in its order; what is being computed is not touched.
    pub fn set_discipline(&mut self, now: Time, name: DisciplineName) {
        if name == self.config.discipline {
            return;
        }
        self.config.discipline = name;
        self.discipline = discipline(&self.config);
        let keys: Vec<ModelKey> = self.models.keys().copied().collect();
        for key in keys {
            for waiting in mem::take(&mut self.model_mut(key).queue).iter() {
                self.place(*waiting);
            }
            self.wake(now, key);
        }
    }

    /// The next thing to do now; `None` when there is nothing until the next event or [`Engine::poll_timeout`].
    pub fn poll(&mut self, now: Time) -> Option<Action> {
        while self.actions.is_empty() {
            let &(_, model) = self.wakes.first().filter(|wake| wake.0 <= now)?;
            self.look_at(now, model);
        }
        self.actions.pop_front()
    }

    /// When to poll next, if nothing happens before. `None` if only an event can change anything.
    pub fn poll_timeout(&self) -> Option<Time> {
        self.wakes.first().map(|wake| wake.0)
    }

    /// Where all requests went so far.
    pub fn books(&self) -> Books {
        self.books
    }

    /// How many requests of a model wait.
    pub fn queued(&self, model: ModelKey) -> usize {
        self.models.get(&model).map_or(0, |model| model.queue.len())
    }

    /// How much longer than its profile says a replica computes, as observed: 1 is as profiled. `None` for one that is not there.
    pub fn slowdown(&self, now: Time, replica: ReplicaKey) -> Option<f64> {
        let model = self.models.get(self.replicas.get(&replica)?)?;
        Some(model.fleet.get(replica)?.slowdown(now))
    }

    fn arrive(&mut self, now: Time, request: Request) {
        assert!(request.rows > 0, "{:?} has no rows", request.id);
        assert!(
            !self.live.contains_key(&request.id),
            "{:?} is in use",
            request.id
        );
        if let Err(refusal) = self.admit(now, &request) {
            if refusal == Refusal::Hopeless {
                self.falls_short(now, request.model);
            }
            self.books.refused += 1;
            let outcome = Outcome::Refused(refusal);
            self.actions.push_back(Action::Finish {
                request: request.id,
                outcome,
            });
            return;
        }
        self.books.accepted += 1;
        let ticket = Ticket {
            rank: 0,
            arrival: self.next_arrival,
        };
        self.next_arrival += 1;
        self.enqueue(
            now,
            Waiting {
                request,
                ticket,
                arrived: now,
                attempts: 0,
            },
        );
    }

    fn admit(&self, now: Time, request: &Request) -> Result<(), Refusal> {
        let (model, limits) = self
            .models
            .get(&request.model)
            .and_then(|model| Some((model, model.limits.as_ref()?)))
            .ok_or(Refusal::UnknownModel)?;
        if model.fleet.serving().next().is_none() {
            return Err(Refusal::NoReplica);
        }
        if model.queue.len() >= limits.queue_limit {
            return Err(Refusal::QueueFull {
                limit: limits.queue_limit,
            });
        }
        let view = View {
            now,
            limits,
            queue: &model.queue,
            fleet: &model.fleet,
            shortages: &self.shortages,
        };
        self.discipline.admit(view, request)
    }

    fn enqueue(&mut self, now: Time, waiting: Waiting) {
        self.place(waiting);
        self.books.queued += 1;
        self.wake(now, waiting.request.model);
    }

    /// Puts a request into its queue where the discipline wants it.
    fn place(&mut self, waiting: Waiting) {
        let ticket = Ticket {
            rank: self.discipline.rank(&waiting.request),
            ..waiting.ticket
        };
        let key = waiting.request.model;
        self.live
            .insert(waiting.request.id, Place::Queued(key, ticket));
        self.model_mut(key)
            .queue
            .insert(Waiting { ticket, ..waiting });
    }

    fn cancel(&mut self, request: RequestId) {
        match self.live.remove(&request) {
            Some(Place::Queued(model, ticket)) => {
                self.model_mut(model)
                    .queue
                    .remove(ticket)
                    .expect("live requests are where they say");
                self.books.queued -= 1;
            }
            // The batch goes on without it.
            Some(Place::InFlight(_)) => self.books.in_flight -= 1,
            None => return,
        }
        self.books.cancelled += 1;
    }

    /// Ends a request that is counted nowhere any more.
    fn finish(&mut self, waiting: &Waiting, outcome: Outcome) {
        let count = match outcome {
            Outcome::Refused(_) => unreachable!("what was accepted is not refused"),
            Outcome::Expired => &mut self.books.expired,
            Outcome::Lost => &mut self.books.lost,
            Outcome::Failed => &mut self.books.failed,
        };
        *count += 1;
        self.live.remove(&waiting.request.id);
        self.actions.push_back(Action::Finish {
            request: waiting.request.id,
            outcome,
        });
    }

    /// Asks the discipline once what to do with a model that is due.
    fn look_at(&mut self, now: Time, key: ModelKey) {
        let model = &self.models[&key];
        let decision = match &model.limits {
            Some(limits) => self.discipline.decide(View {
                now,
                limits,
                queue: &model.queue,
                fleet: &model.fleet,
                shortages: &self.shortages,
            }),
            None => Decision::Wait(None),
        };
        match decision {
            Decision::Dispatch { replica, tickets } => self.dispatch(now, key, replica, &tickets),
            Decision::Expire(ticket) => {
                self.falls_short(now, key);
                self.expire(key, ticket);
            }
            Decision::Wait(until) => {
                debug_assert!(
                    until.is_none_or(|until| until > now),
                    "waiting until {until:?} at {now}"
                );
                self.set_wake(key, until);
            }
        }
    }

    fn expire(&mut self, model: ModelKey, ticket: Ticket) {
        let waiting = self
            .model_mut(model)
            .queue
            .remove(ticket)
            .expect("a discipline drops what waits");
        self.books.queued -= 1;
        // Without the worker that died under it, it would have been in time.
        let outcome = if waiting.attempts > 0 {
            Outcome::Lost
        } else {
            Outcome::Expired
        };
        self.finish(&waiting, outcome);
    }

    /// A request of the model had to be dropped, or as many are left waiting as were dispatched.
    fn falls_short(&mut self, now: Time, key: ModelKey) {
        let model = self.models.get_mut(&key);
        let model = model.expect("only what there is can be short");
        if model.note_short_from <= now {
            let devices = model.fleet.serving().map(|(_, replica)| replica.device());
            model.note_short_from = self.shortages.note(now, key, devices);
        }
    }

    fn model_mut(&mut self, key: ModelKey) -> &mut Model {
        self.models
            .get_mut(&key)
            .expect("a model is kept while it has requests or replicas")
    }

    /// Has a model looked at in the next poll.
    fn wake(&mut self, now: Time, key: ModelKey) {
        if self.models.contains_key(&key) {
            self.set_wake(key, Some(now));
        }
    }

    fn set_wake(&mut self, key: ModelKey, wake: Option<Time>) {
        let before = mem::replace(&mut self.model_mut(key).wake, wake);
        if before != wake {
            before.map(|before| self.wakes.remove(&(before, key)));
            wake.map(|wake| self.wakes.insert((wake, key)));
        }
    }

    /// Forgets a model that is gone once nothing of it is left.
    fn forget_if_over(&mut self, key: ModelKey) {
        if self
            .models
            .get(&key)
            .is_some_and(|model| model.limits.is_none() && model.fleet.is_empty())
        {
            self.set_wake(key, None);
            self.models.remove(&key);
        }
    }
}

#[cfg(test)]
mod tests;
