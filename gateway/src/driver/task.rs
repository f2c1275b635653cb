//! The task that owns the engine: it tells the engine what happens and carries out what it decides.

mod batches;

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, atomic::Ordering::Relaxed},
};

use packhorse_cluster::{ModelId, ReplicaId, Time};
use packhorse_serving::{
    Action, BatchId, Engine, EngineConfig, Event, ModelKey, ModelLimits, Outcome, ReplicaKey,
    Request, RequestId,
};
use tokio::{
    sync::{OwnedSemaphorePermit, mpsc, oneshot, watch},
    time::sleep_until,
};

use self::batches::InFlight;
use super::{
    Clock, DataPlaneConfig, LinkState, Target,
    catalog::{Catalog, Readiness, ServedModel},
    data_plane::Message,
    replicas::{Consequence, Replicas},
    request::{OutputRows, Submission, Submitted, Unanswered},
    shape_class::{Membership, ShapeClasses},
    turns::Turns,
};
use crate::{
    telemetry::Telemetry,
    workers::{Link, LinkConfig, LinkEvent, OutgoingBatch},
};

/// How many messages are taken from the inbox at a time.
const MESSAGES_AT_ONCE: usize = 64;

/// The driver of the engine. Everything in it belongs to one task.
pub(super) struct Driver {
    clock: Clock,
    telemetry: Telemetry,
    limits: DataPlaneConfig,
    /// For the links' reports. Weak, so that the data plane ends with its last handle.
    inbox: mpsc::WeakUnboundedSender<Message>,
    announce_catalog: watch::Sender<Arc<Catalog>>,
    announce_links: watch::Sender<BTreeMap<ReplicaId, LinkState>>,
    engine: Engine,
    models: BTreeMap<ModelId, Arc<ServedModel>>,
    next_model: u32,
    replicas: Replicas,
    /// Whether `replicas` has changed since it was announced.
    announce: bool,
    requests: HashMap<RequestId, Pending>,
    batches: HashMap<BatchId, InFlight>,
    turns: Turns<OutgoingBatch>,
    classes: ShapeClasses,
    /// When to end at the latest; no request is taken once this is set.
    ending: Option<Time>,
}

/// A request that has not ended.
struct Pending {
    submission: Submission,
    answer: oneshot::Sender<Result<Vec<OutputRows>, Unanswered>>,
    arrived: Time,
    membership: Membership,
    /// Why its batch failed, once it has.
    failure: Option<Arc<str>>,
    /// Given back when the request ends.
    _place: OwnedSemaphorePermit,
}

impl Driver {
    pub(super) fn new(
        limits: DataPlaneConfig,
        clock: Clock,
        telemetry: Telemetry,
        inbox: mpsc::WeakUnboundedSender<Message>,
        announce_catalog: watch::Sender<Arc<Catalog>>,
        announce_links: watch::Sender<BTreeMap<ReplicaId, LinkState>>,
    ) -> Self {
        let engine = EngineConfig {
            max_batch_wait: limits.max_batch_wait,
            ..EngineConfig::default()
        };
        Self {
            clock,
            telemetry,
            limits,
            inbox,
            announce_catalog,
            announce_links,
            engine: Engine::new(engine),
            models: BTreeMap::new(),
            next_model: 0,
            replicas: Replicas::default(),
            announce: false,
            requests: HashMap::new(),
            batches: HashMap::new(),
            turns: Turns::default(),
            classes: ShapeClasses::default(),
            ending: None,
        }
    }

    /// Runs until it is told to end, or nobody holds a handle any more. The clock is read once per turn, so that all that
    /// happens in it happens at one time.
    pub(super) async fn run(mut self, mut inbox: mpsc::UnboundedReceiver<Message>) {
        let mut messages = Vec::with_capacity(MESSAGES_AT_ONCE);
        loop {
            let wake = self
                .engine
                .poll_timeout()
                .into_iter()
                .chain(self.ending)
                .min();
            let received = tokio::select! {
                biased;
                received = inbox.recv_many(&mut messages, MESSAGES_AT_ONCE) => Some(received),
                () = sleep_until(self.clock.instant(wake.unwrap_or(Time::MAX))), if wake.is_some() => None,
            };
            let now = self.clock.now();
            if received == Some(0) {
                break;
            }
            for message in messages.drain(..) {
                self.take(now, message);
            }
            self.carry_out(now);
            self.announce();
            if self
                .ending
                .is_some_and(|ending| now >= ending || self.requests.is_empty())
            {
                break;
            }
        }
        for pending in std::mem::take(&mut self.requests).into_values() {
            let _ = pending.answer.send(Err(Unanswered::ShuttingDown));
        }
    }

    fn take(&mut self, now: Time, message: Message) {
        match message {
            Message::Target(target) => self.follow(now, &target),
            Message::Submit(submitted) => self.submit(now, *submitted),
            Message::Cancel(request) => self.cancel(now, request),
            Message::Link(replica, event) => self.link(now, replica, event),
            Message::Work(answer) => {
                // Who asked may have gone.
                let _ = answer.send(self.replicas.work());
            }
            Message::Shutdown(grace) => self.begin_to_end(now + grace),
        }
    }

    /// Tells the engine, and does what it says, as its contract wants it after every event.
    fn tell(&mut self, now: Time, event: Event) {
        self.engine.handle(now, event);
        self.carry_out(now);
    }

    fn carry_out(&mut self, now: Time) {
        while let Some(action) = self.engine.poll(now) {
            match action {
                Action::Dispatch {
                    batch,
                    replica,
                    requests,
                } => self.dispatch(now, batch, replica, &requests),
                Action::Finish { request, outcome } => self.finish(request, outcome),
                Action::Drained { replica } => {
                    self.replicas.drained(replica);
                    self.announce = true;
                }
            }
        }
    }

    fn follow(&mut self, now: Time, target: &Target) {
        self.engine.set_discipline(now, target.discipline);
        self.carry_out(now);
        self.follow_models(now, target);
        let inbox = self.inbox.clone();
        let config = LinkConfig {
            secret: self.limits.link_secret.clone(),
            payload_limit: self.limits.result_limit_bytes,
            batch_time: self.limits.batch_time,
        };
        let open = move |key, endpoint| {
            let inbox = inbox.clone();
            Link::open(endpoint, config.clone(), move |event| {
                if let Some(inbox) = inbox.upgrade() {
                    let _ = inbox.send(Message::Link(key, event));
                }
            })
        };
        for consequence in self.replicas.follow(target, &self.models, &open) {
            self.bear(now, Some(consequence));
        }
        self.announce = true;
        self.announce();
        // After the readiness, so that nobody sees a model before it is known whether it is ready.
        self.announce_models();
    }

    /// Takes no request from now on. The catalog is kept, so that what is asked of models is still answered.
    fn begin_to_end(&mut self, at_the_latest: Time) {
        self.ending = Some(at_the_latest);
        self.announce = true;
        self.announce_models();
    }

    fn announce_models(&self) {
        let catalog = Catalog::new(self.models.values().cloned(), self.ending.is_none());
        self.announce_catalog.send_replace(Arc::new(catalog));
    }

    fn follow_models(&mut self, now: Time, target: &Target) {
        let gone = |model: &ServedModel| match target.models.get(model.id()) {
            // Another program under the same name is another model.
            Some(spec) => spec.program != model.spec.program,
            None => true,
        };
        let removed: Vec<_> = self.models.extract_if(.., |_, model| gone(model)).collect();
        for (id, model) in removed {
            self.telemetry.forget(&id);
            self.tell(now, Event::ModelGone { model: model.key });
        }
        for (id, spec) in &target.models {
            let (key, readiness) = match self.models.get(id) {
                Some(model) if model.spec == *spec => continue,
                Some(model) => (model.key, Arc::clone(&model.readiness)),
                None => (self.new_key(), Arc::new(Readiness::default())),
            };
            let limits = ModelLimits {
                max_batch_rows: spec.program.rows_limit(),
                queue_limit: spec
                    .queue_limit
                    .and_then(|limit| usize::try_from(limit).ok())
                    .unwrap_or(self.limits.queue_limit),
            };
            self.tell(now, Event::ModelUp { model: key, limits });
            let telemetry = self.telemetry.model(id);
            let model = ServedModel {
                key,
                spec: Arc::clone(spec),
                telemetry,
                readiness,
            };
            self.models.insert(id.clone(), Arc::new(model));
        }
    }

    fn new_key(&mut self) -> ModelKey {
        let key = ModelKey(self.next_model);
        self.next_model += 1;
        key
    }

    fn submit(&mut self, now: Time, submitted: Submitted) {
        let Submitted {
            id,
            submission,
            answer,
            place,
        } = submitted;
        if self.ending.is_some() {
            let _ = answer.send(Err(Unanswered::ShuttingDown));
            return;
        }
        let model = Arc::clone(&submission.model);
        let membership = self
            .classes
            .enter(model.key, &model.spec.program, &submission.inputs);
        let request = Request {
            id,
            model: model.key,
            rows: submission.rows,
            class: membership.class,
            priority: submission.priority,
            deadline: submission.deadline,
        };
        let pending = Pending {
            submission,
            answer,
            arrived: now,
            membership,
            failure: None,
            _place: place,
        };
        self.requests.insert(id, pending);
        self.tell(now, Event::Arrive(request));
        self.count_pending(&model);
    }

    fn cancel(&mut self, now: Time, request: RequestId) {
        if let Some(pending) = self.end(request) {
            self.tell(now, Event::Cancel { request });
            self.count_pending(&pending.submission.model);
        }
    }

    fn finish(&mut self, request: RequestId, outcome: Outcome) {
        let Some(pending) = self.end(request) else {
            return;
        };
        let unanswered = match outcome {
            Outcome::Refused(refusal) => Unanswered::Refused(refusal),
            Outcome::Expired => Unanswered::Expired,
            Outcome::Lost => Unanswered::Lost,
            Outcome::Failed => Unanswered::Failed(
                pending
                    .failure
                    .unwrap_or_else(|| Arc::from("the model failed")),
            ),
        };
        self.count_pending(&pending.submission.model);
        // Whoever does not wait any more has sent a cancellation.
        let _ = pending.answer.send(Err(unanswered));
    }

    fn end(&mut self, request: RequestId) -> Option<Pending> {
        let pending = self.requests.remove(&request)?;
        self.classes.leave(&pending.membership);
        Some(pending)
    }

    fn count_pending(&self, model: &ServedModel) {
        model.telemetry.pending(self.engine.queued(model.key));
    }

    fn link(&mut self, now: Time, replica: ReplicaKey, event: LinkEvent) {
        let consequence = match event {
            LinkEvent::BatchEnded(batch, end) => {
                return self.batch_ended(now, BatchId(batch.0), end);
            }
            LinkEvent::Up(batches) => self.replicas.link_up(replica, batches),
            LinkEvent::Draining => self.replicas.link_draining(replica),
            LinkEvent::Down(reason) => self.replicas.link_down(replica, reason),
        };
        self.announce = true;
        self.bear(now, consequence);
    }

    /// Bears the consequence of what happened to a replica.
    fn bear(&mut self, now: Time, consequence: Option<Consequence>) {
        match consequence {
            Some(Consequence::Tell(event)) => self.tell(now, event),
            Some(Consequence::Void(replica)) => {
                self.batches.retain(|_, batch| batch.replica != replica);
                let next = self.turns.lost(replica);
                self.take_turn(now, next);
                self.tell(now, Event::ReplicaLost { replica });
            }
            None => {}
        }
    }

    /// Tells the control plane, and the handlers, what has become of the replicas.
    fn announce(&mut self) {
        if !std::mem::take(&mut self.announce) {
            return;
        }
        for model in self.models.values() {
            let (ready, loading) = self.replicas.readiness(model.key);
            model
                .readiness
                .ready
                .store(ready && self.ending.is_none(), Relaxed);
            model.readiness.loading.store(loading, Relaxed);
        }
        self.announce_links.send_replace(self.replicas.states());
    }
}
