//! The task that owns the engine: it passes events to the engine and carries out the engine's actions.

mod batches;
mod pending;

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, atomic::Ordering::Relaxed},
};

use packhorse_cluster::{ModelId, ReplicaId, Time};
use packhorse_serving::{
    Action, BatchKey, Engine, EngineConfig, Event, ModelKey, ModelLimits, Refusal, ReplicaKey,
    Request, RequestKey, RequestOutcome,
};
use tokio::{
    sync::{mpsc, watch},
    time::sleep_until,
};

use self::pending::{InFlightBatch, PendingRequest};
use super::{
    catalog::{Catalog, Readiness, ServedModel},
    config::DataPlaneConfig,
    message::DriverMessage,
    replicas::{Effect, Replicas},
    request::{SubmittedRequest, UnansweredRequest},
    shape_class::{ShapeClasses, padded_bytes},
    target::{LinkState, Target},
};
use crate::{
    clock::Clock,
    telemetry::Telemetry,
    workers::{LinkConfig, LinkEvent, WorkerLink},
};

/// The most messages that are taken from the inbox at a time.
const MESSAGES_AT_ONCE: usize = 64;

/// The most bytes of the inputs of a batch that requests share. A larger batch would not compute faster per row, but a request whose
/// own inputs are larger is still sent, alone.
const MAX_BATCH_BYTES: u64 = 64 << 20;

/// The driver of the engine. One task owns all of it.
pub(super) struct Driver {
    clock: Clock,
    telemetry: Telemetry,
    config: DataPlaneConfig,
    /// The sender for the links' reports. Weak, so that the data plane ends with its last handle.
    inbox: mpsc::WeakUnboundedSender<DriverMessage>,
    catalog_sender: watch::Sender<Arc<Catalog>>,
    links_sender: watch::Sender<BTreeMap<ReplicaId, LinkState>>,
    engine: Engine,
    models: BTreeMap<ModelId, Arc<ServedModel>>,
    next_model: u32,
    replicas: Replicas,
    /// True if `replicas` has changed since its states were published.
    states_changed: bool,
    requests: HashMap<RequestKey, PendingRequest>,
    batches: HashMap<BatchKey, InFlightBatch>,
    classes: ShapeClasses,
    /// The latest time at which the task ends; no request is taken once this is set.
    shutdown_deadline: Option<Time>,
}

impl Driver {
    pub(super) fn new(
        config: DataPlaneConfig,
        clock: Clock,
        telemetry: Telemetry,
        inbox: mpsc::WeakUnboundedSender<DriverMessage>,
        catalog_sender: watch::Sender<Arc<Catalog>>,
        links_sender: watch::Sender<BTreeMap<ReplicaId, LinkState>>,
    ) -> Self {
        let engine_config = EngineConfig {
            max_batch_wait: config.max_batch_wait,
            ..EngineConfig::default()
        };
        Self {
            clock,
            telemetry,
            config,
            inbox,
            catalog_sender,
            links_sender,
            engine: Engine::new(engine_config),
            models: BTreeMap::new(),
            next_model: 0,
            replicas: Replicas::default(),
            states_changed: false,
            requests: HashMap::new(),
            batches: HashMap::new(),
            classes: ShapeClasses::default(),
            shutdown_deadline: None,
        }
    }

    /// Runs until a shutdown, or until the last handle is dropped. The clock is read once per iteration, so that everything in it
    /// happens at one time.
    pub(super) async fn run(mut self, mut inbox: mpsc::UnboundedReceiver<DriverMessage>) {
        let mut messages = Vec::with_capacity(MESSAGES_AT_ONCE);
        loop {
            let wake = self
                .engine
                .poll_timeout()
                .into_iter()
                .chain(self.shutdown_deadline)
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
                self.handle_message(now, message);
            }
            self.run_actions(now);
            self.publish_states();
            if self
                .shutdown_deadline
                .is_some_and(|deadline| now >= deadline || self.requests.is_empty())
            {
                break;
            }
        }
        for pending in std::mem::take(&mut self.requests).into_values() {
            let outcome = RequestOutcome::Refused(Refusal::ShuttingDown);
            let _ = pending.answer.send(Err(outcome.into()));
        }
    }

    fn handle_message(&mut self, now: Time, message: DriverMessage) {
        match message {
            DriverMessage::SetTarget(target) => self.set_target(now, &target),
            DriverMessage::Submit(submitted) => self.submit(now, *submitted),
            DriverMessage::Cancel(request) => self.cancel(now, request),
            DriverMessage::Link(replica, event) => self.handle_link_event(now, replica, event),
            DriverMessage::GetWork(answer) => {
                // The caller may have stopped waiting.
                let _ = answer.send(self.replicas.work());
            }
            DriverMessage::Shutdown(grace) => self.begin_shutdown(now + grace),
        }
    }

    /// Passes an event to the engine and runs its actions, which its contract requires after every event.
    fn handle_event(&mut self, now: Time, event: Event) {
        self.engine.handle(now, event);
        self.run_actions(now);
    }

    fn run_actions(&mut self, now: Time) {
        while let Some(action) = self.engine.poll(now) {
            match action {
                Action::Dispatch {
                    batch,
                    replica,
                    requests,
                } => self.dispatch(now, batch, replica, &requests),
                Action::Finish { request, outcome } => self.finish(request, outcome),
                Action::ReplicaEjected { replica, failures } => {
                    if let Some(model) = self.replicas.ejected(replica, failures)
                        && let Some(model) = self.models.get(&model)
                    {
                        model.telemetry.count_ejection();
                    }
                    self.states_changed = true;
                }
                Action::ReplicaRestored { replica } => {
                    self.replicas.restored(replica);
                    self.states_changed = true;
                }
                Action::ReplicaDrained { replica } => {
                    self.replicas.drained(replica);
                    self.states_changed = true;
                }
            }
        }
    }

    fn set_target(&mut self, now: Time, target: &Target) {
        self.engine.set_discipline(now, target.discipline);
        self.run_actions(now);
        self.update_models(now, target);
        let inbox = self.inbox.clone();
        let config = LinkConfig {
            secret: self.config.link_secret.clone(),
            payload_limit: self.config.result_limit_bytes,
            batch_time: self.config.batch_time,
        };
        let open = move |key, endpoint| {
            let inbox = inbox.clone();
            WorkerLink::open(endpoint, config.clone(), move |event| {
                if let Some(inbox) = inbox.upgrade() {
                    let _ = inbox.send(DriverMessage::Link(key, event));
                }
            })
        };
        for effect in self.replicas.set_target(target, &self.models, &open) {
            self.apply(now, Some(effect));
        }
        self.states_changed = true;
        self.publish_states();
        // After the states, so that a model appears in the catalog with its readiness.
        self.publish_catalog();
    }

    /// Takes no request from now on. The catalog stays, so that questions about models are still answered.
    fn begin_shutdown(&mut self, deadline: Time) {
        self.shutdown_deadline = Some(deadline);
        self.states_changed = true;
        self.publish_catalog();
    }

    fn publish_catalog(&self) {
        let catalog = Catalog::new(
            self.models.values().cloned(),
            self.shutdown_deadline.is_none(),
        );
        self.catalog_sender.send_replace(Arc::new(catalog));
    }

    fn update_models(&mut self, now: Time, target: &Target) {
        let gone = |model: &ServedModel| match target.models.get(model.id()) {
            // The same name with another program is another model.
            Some(spec) => spec.program != model.spec.program,
            None => true,
        };
        let removed: Vec<_> = self.models.extract_if(.., |_, model| gone(model)).collect();
        for (id, model) in removed {
            self.telemetry.remove_model(&id);
            self.handle_event(now, Event::ModelRemoved { model: model.key });
        }
        for (id, spec) in &target.models {
            let (key, readiness) = match self.models.get(id) {
                Some(model) if model.spec == *spec => continue,
                Some(model) => (model.key, Arc::clone(&model.readiness)),
                None => (self.new_model_key(), Arc::new(Readiness::default())),
            };
            let limits = ModelLimits {
                max_batch_rows: spec.program.rows_limit(),
                max_batch_bytes: MAX_BATCH_BYTES,
                queue_limit: spec
                    .queue_limit
                    .and_then(|limit| usize::try_from(limit).ok())
                    .unwrap_or(self.config.queue_limit),
            };
            self.handle_event(now, Event::ModelUpdated { model: key, limits });
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

    fn new_model_key(&mut self) -> ModelKey {
        let key = ModelKey(self.next_model);
        self.next_model += 1;
        key
    }

    fn submit(&mut self, now: Time, submitted: SubmittedRequest) {
        let SubmittedRequest {
            key,
            submission,
            answer,
            permit,
        } = submitted;
        if self.shutdown_deadline.is_some() {
            let outcome = RequestOutcome::Refused(Refusal::ShuttingDown);
            let _ = answer.send(Err(outcome.into()));
            return;
        }
        let model = Arc::clone(&submission.model);
        let membership = self
            .classes
            .enter(model.key, &model.spec.program, &submission.inputs);
        let request = Request {
            id: key,
            model: model.key,
            rows: submission.rows,
            bytes: padded_bytes(&model.spec.program, &submission.inputs),
            class: membership.class,
            priority: submission.priority,
            deadline: submission.deadline,
        };
        let pending = PendingRequest {
            submission,
            answer,
            arrived: now,
            membership,
            failure: None,
            _permit: permit,
        };
        self.requests.insert(key, pending);
        self.handle_event(now, Event::RequestArrived(request));
        self.update_queue_length(&model);
    }

    fn cancel(&mut self, now: Time, request: RequestKey) {
        if let Some(pending) = self.remove_request(request) {
            self.handle_event(now, Event::RequestCancelled { request });
            self.update_queue_length(&pending.submission.model);
        }
    }

    fn finish(&mut self, request: RequestKey, outcome: RequestOutcome) {
        let Some(pending) = self.remove_request(request) else {
            return;
        };
        self.update_queue_length(&pending.submission.model);
        let unanswered = UnansweredRequest {
            outcome,
            failure: pending.failure,
        };
        // A client that has stopped waiting has sent a cancellation.
        let _ = pending.answer.send(Err(unanswered));
    }

    fn remove_request(&mut self, request: RequestKey) -> Option<PendingRequest> {
        let pending = self.requests.remove(&request)?;
        self.classes.leave(&pending.membership);
        Some(pending)
    }

    fn update_queue_length(&self, model: &ServedModel) {
        model
            .telemetry
            .set_queue_length(self.engine.queued(model.key));
    }

    fn handle_link_event(&mut self, now: Time, replica: ReplicaKey, event: LinkEvent) {
        let effect = match event {
            LinkEvent::BatchComputed(result, payload) => {
                return self.batch_computed(now, result, payload);
            }
            LinkEvent::BatchFailed(failure) => return self.batch_failed(now, failure),
            LinkEvent::Up(batches) => self.replicas.link_up(replica, batches),
            LinkEvent::Draining => self.replicas.link_draining(replica),
            LinkEvent::Down(reason) => self.replicas.link_down(replica, reason),
        };
        self.states_changed = true;
        self.apply(now, effect);
    }

    /// Applies the effect of a change of a replica.
    fn apply(&mut self, now: Time, effect: Option<Effect>) {
        match effect {
            Some(Effect::Event(event)) => self.handle_event(now, event),
            Some(Effect::ReplicaLost(replica)) => {
                self.batches.retain(|_, batch| batch.replica != replica);
                self.handle_event(now, Event::ReplicaLost { replica });
            }
            None => {}
        }
    }

    /// Publishes the states of the replicas to the control plane, and the readiness of their models to the handlers.
    fn publish_states(&mut self) {
        if !std::mem::take(&mut self.states_changed) {
            return;
        }
        for model in self.models.values() {
            let (ready, loading) = self.replicas.readiness(model.key);
            model
                .readiness
                .ready
                .store(ready && self.shutdown_deadline.is_none(), Relaxed);
            model.readiness.loading.store(loading, Relaxed);
        }
        self.links_sender.send_replace(self.replicas.states());
    }
}
