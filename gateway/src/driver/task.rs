//! The driver of the engine: it passes events to the engine and carries out the engine's actions.

mod batches;
mod pending;

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, atomic::Ordering::Relaxed},
};

use packhorse_cluster::{ModelId, ModelName, ModelSpec, ReplicaId, Time};
use packhorse_control::ServeChange;
use packhorse_links::{Effect, LinkChange, Links};
use packhorse_serving::{
    Action, BatchKey, Engine, EngineConfig, Event, ModelKey, ModelLimits, Refusal, ReplicaKey,
    Request, RequestKey, RequestOutcome,
};
use tokio::sync::{mpsc, watch};

use self::pending::{InFlightBatch, PendingRequest};
use super::{
    catalog::{Catalog, Phase},
    config::DataPlaneConfig,
    connector::Connector,
    message::{DriverMessage, Post},
    request::{SubmittedRequest, UnansweredRequest},
    requested_model::RequestedModel,
    served_model::ServedModel,
    shape_class::{ShapeClasses, padded_bytes},
    version_route::VersionRoute,
};
use crate::{
    clock::Clock,
    input_memory::InputMemories,
    memory::MemoryBudget,
    telemetry::{ReplicaNumber, RequestCourse, Telemetry},
    workers::{LinkConfig, LinkEvent, Runtimes},
};

/// The most bytes of the inputs of a batch that requests share. A larger batch would not compute faster per row, but a request whose
/// own inputs are larger is still sent, alone.
const MAX_BATCH_BYTES: u64 = 64 << 20;

/// The next step of a driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// It waits for messages, until this time if there is one.
    Wait(Option<Time>),
    /// It ends.
    End,
}

/// The channels on which the driver publishes.
#[derive(Debug)]
pub(super) struct Publishes {
    /// The present models, for the handlers.
    pub(super) catalog: watch::Sender<Arc<Catalog>>,
    /// The changes of the links, for the control plane.
    pub(super) links: mpsc::UnboundedSender<LinkChange>,
}

/// The driver of the engine. One thread at a time has it: that which handles the messages of its inbox.
#[derive(Debug)]
pub(super) struct Driver {
    telemetry: Telemetry,
    memory: MemoryBudget,
    config: DataPlaneConfig,
    connector: Connector,
    publishes: Publishes,
    engine: Engine,
    models: BTreeMap<ModelId, Arc<ServedModel>>,
    models_by_key: BTreeMap<ModelKey, Arc<ServedModel>>,
    /// The choice of a version, of the models that have more than one.
    routes: BTreeMap<ModelName, Arc<VersionRoute>>,
    /// The next variant after every variant, as the engine was last told.
    fallbacks: BTreeMap<ModelKey, ModelKey>,
    next_model: u32,
    links: Links<Connector>,
    /// True once the control plane has opened the data plane.
    open: bool,
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
        memory: MemoryBudget,
        inbox: Post,
        runtimes: Runtimes,
        publishes: Publishes,
    ) -> Self {
        let connector = Connector {
            inbox,
            runtimes,
            clock,
            config: LinkConfig {
                secret: config.link_secret.clone(),
                tls: config.link_tls.clone(),
                payload_limit: config.result_limit_bytes,
                batch_time: config.batch_time,
                shared_memory: config.shared_memory_links,
            },
            inputs: InputMemories::new(memory.clone()),
        };
        let engine_config = EngineConfig {
            max_batch_wait: config.max_batch_wait,
            ..EngineConfig::default()
        };
        Self {
            telemetry,
            memory,
            config,
            connector,
            publishes,
            engine: Engine::new(engine_config),
            models: BTreeMap::new(),
            models_by_key: BTreeMap::new(),
            routes: BTreeMap::new(),
            fallbacks: BTreeMap::new(),
            next_model: 0,
            links: Links::default(),
            open: false,
            requests: HashMap::new(),
            batches: HashMap::new(),
            classes: ShapeClasses::default(),
            shutdown_deadline: None,
        }
    }

    /// Does what is due at this time, after messages or when the engine's time has come. Says until when to wait for more.
    pub(super) fn advance(&mut self, now: Time) -> Next {
        self.run_actions(now);
        self.publish_states();
        let has_ended = |deadline| now >= deadline || self.requests.is_empty();
        if self.shutdown_deadline.is_some_and(has_ended) {
            return Next::End;
        }
        let wakes = self.engine.poll_timeout().into_iter();
        Next::Wait(wakes.chain(self.shutdown_deadline).min())
    }

    /// Ends with what has not been answered.
    pub(super) fn end(self) {
        for pending in self.requests.into_values() {
            let outcome = RequestOutcome::Refused(Refusal::ShuttingDown);
            pending.end(Err(outcome.into()));
        }
    }

    pub(super) fn handle_message(&mut self, now: Time, message: DriverMessage) {
        match message {
            DriverMessage::Serve(changes) => self.serve(now, changes),
            DriverMessage::Submit(submitted) => self.submit(now, *submitted),
            DriverMessage::Cancel(request) => self.cancel(now, request),
            DriverMessage::Link(replica, event, sent) => {
                self.handle_link_event(now, sent, replica, event);
            }
            #[cfg(test)]
            DriverMessage::Panic => panic!("a test asked for it"),
            DriverMessage::GetWork(answer) => {
                // The caller may have stopped waiting.
                let _ = answer.send(self.links.work());
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
                Action::Finish { request, outcome } => self.finish(now, request, outcome),
                Action::ReplicaEjected { replica, failures } => self.ejected(replica, failures),
                Action::ReplicaRestored { replica } => {
                    self.links.restored(replica);
                    if let Some((id, model)) = self.names(replica) {
                        tracing::info!(replica.id = %id, model.name = %model, "a replica that was ejected computes batches again");
                    }
                }
                Action::ReplicaDrained { replica } => self.links.drained(replica),
            }
        }
    }

    fn serve(&mut self, now: Time, changes: Vec<ServeChange>) {
        let (mut catalog_changed, mut replicas_changed) = (false, false);
        for change in changes {
            match change {
                ServeChange::Model(spec) => {
                    catalog_changed = true;
                    self.update_model(now, spec);
                }
                ServeChange::RemoveModel(id) => {
                    catalog_changed = true;
                    self.remove_model(now, &id);
                }
                ServeChange::Replica(target) => {
                    replicas_changed = true;
                    let model = &target.replica.spec.model.model;
                    if let Some(model) = self.models.get(model) {
                        let effects = self.links.serve(*target, model.key, &self.connector);
                        self.apply_all(now, effects);
                    }
                }
                ServeChange::RemoveReplica(id) => {
                    let effect = self.links.end(id);
                    self.apply(now, effect);
                }
                ServeChange::Split(name, shares) => {
                    catalog_changed = true;
                    let route = Arc::new(VersionRoute::new(shares));
                    self.routes.insert(name, route);
                }
                ServeChange::Discipline(discipline) => {
                    self.engine.set_discipline(now, discipline);
                    self.run_actions(now);
                }
                ServeChange::Open => {
                    catalog_changed = true;
                    self.open = true;
                }
            }
        }
        if replicas_changed {
            let requests = self.telemetry.requests();
            let replicas = self.links.identities();
            requests.set_replicas(replicas.map(|(key, id, on)| (ReplicaNumber(key.0), id, on)));
        }
        self.publish_states();
        // After the states, so that a model appears in the catalog with its readiness.
        if catalog_changed {
            self.publish_catalog();
        }
    }

    /// Takes no request from now on. The catalog stays, so that questions about models are still answered.
    fn begin_shutdown(&mut self, deadline: Time) {
        self.shutdown_deadline = Some(deadline);
        for model in self.models.values() {
            model.readiness.ready.store(false, Relaxed);
        }
        self.publish_catalog();
    }

    fn publish_catalog(&self) {
        let phase = match (self.open, self.shutdown_deadline) {
            (_, Some(_)) => Phase::Closed,
            (true, None) => Phase::Open,
            (false, None) => Phase::Starting,
        };
        let catalog = Catalog::new(self.models.values().cloned(), self.routes.clone(), phase);
        self.publishes.catalog.send_replace(Arc::new(catalog));
    }

    fn remove_model(&mut self, now: Time, id: &ModelId) {
        let Some(model) = self.models.remove(id) else {
            return;
        };
        self.models_by_key.remove(&model.key);
        self.fallbacks.remove(&model.key);
        if !self.models.keys().any(|other| other.name == id.name) {
            self.routes.remove(&id.name);
        }
        self.telemetry.remove_model(id);
        self.handle_event(now, Event::ModelRemoved { model: model.key });
        let effects = self.links.end_model(model.key);
        self.apply_all(now, effects);
    }

    fn update_model(&mut self, now: Time, spec: Arc<ModelSpec>) {
        let id = spec.program.model.clone();
        // The same name with another program is another model.
        if let Some(model) = self.models.get(&id)
            && model.spec.program != spec.program
        {
            self.remove_model(now, &id);
        }
        let known = match self.models.get(&id) {
            Some(model) if model.spec == spec => return,
            known => known.map(|model| ServedModel::clone(model)),
        };
        let limits = ModelLimits {
            max_batch_rows: spec.program.rows_limit(),
            max_batch_bytes: MAX_BATCH_BYTES,
            queue_limit: spec
                .queue_limit
                .and_then(|limit| usize::try_from(limit).ok())
                .unwrap_or(self.config.queue_limit),
        };
        let queue_limit = limits.queue_limit;
        let model = match known {
            Some(model) => ServedModel {
                spec,
                queue_limit,
                ..model
            },
            None => ServedModel {
                key: self.new_model_key(),
                telemetry: self.telemetry.model(&id),
                spec,
                memory: self.memory.model(),
                inputs: self.connector.inputs.of(&id),
                queue_limit,
                load: Arc::default(),
                readiness: Arc::default(),
            },
        };
        model.telemetry.set_variant(model.spec.variant.clone());
        let key = model.key;
        self.handle_event(now, Event::ModelUpdated { model: key, limits });
        let model = Arc::new(model);
        self.models_by_key.insert(key, Arc::clone(&model));
        self.models.insert(id, model);
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
            submitted,
            answer,
            permit,
        } = submitted;
        if self.shutdown_deadline.is_some() {
            let outcome = RequestOutcome::Refused(Refusal::ShuttingDown);
            let _ = answer.send(Err(outcome.into()));
            return;
        }
        let requested = submission.requested.clone();
        // A variant may have been removed since its client was read.
        let mut present = requested.models();
        let present = present.find(|model| self.models_by_key.contains_key(&model.key));
        let model = present.unwrap_or(&requested.model);
        let tenant = submission.tenant;
        let inbox = now.saturating_since(submitted);
        model.telemetry.record_inbox(inbox);
        let membership = self.classes.enter(&model.spec.program, &submission.inputs);
        let request = Request {
            id: key,
            model: model.key,
            tenant,
            rows: submission.rows,
            bytes: padded_bytes(&model.spec.program, &submission.inputs),
            class: membership.class,
            priority: submission.priority,
            may_fall_back: requested.family.is_some(),
            deadline: submission.deadline,
        };
        let pending = PendingRequest {
            submission,
            answer,
            arrived: now,
            membership,
            model: None,
            failure: None,
            course: RequestCourse {
                inbox: inbox.into(),
                ..RequestCourse::default()
            },
            permit,
        };
        self.requests.insert(key, pending);
        self.set_fallbacks(now, &requested);
        self.handle_event(now, Event::RequestArrived(request));
        for model in requested.models() {
            let stands_before = self.engine.stands_before_others(now, model.key, tenant);
            model.load.set_stands_behind(tenant, !stands_before);
        }
        self.update_queue_lengths(now, &requested);
    }

    /// Has the engine try the variants of a family in their order. Where a split sends requests to several versions of a variant, the order is that
    /// of the request that arrives.
    fn set_fallbacks(&mut self, now: Time, requested: &RequestedModel) {
        if requested.family.is_none() {
            return;
        }
        let keys = requested.models().map(|model| model.key);
        let keys: Vec<ModelKey> = keys
            .filter(|key| self.models_by_key.contains_key(key))
            .collect();
        let next = keys.iter().skip(1).map(|key| Some(*key));
        for (&model, fallback) in keys.iter().zip(next.chain([None])) {
            let before = match fallback {
                Some(fallback) => self.fallbacks.insert(model, fallback),
                None => self.fallbacks.remove(&model),
            };
            if before != fallback {
                self.handle_event(now, Event::FallbackChanged { model, fallback });
            }
        }
    }

    fn cancel(&mut self, now: Time, request: RequestKey) {
        if let Some(pending) = self.remove_request(request) {
            self.handle_event(now, Event::RequestCancelled { request });
            self.update_queue_lengths(now, &pending.submission.requested);
        }
    }

    fn finish(&mut self, now: Time, request: RequestKey, outcome: RequestOutcome) {
        let Some(pending) = self.remove_request(request) else {
            return;
        };
        self.update_queue_lengths(now, &pending.submission.requested);
        let unanswered = UnansweredRequest {
            outcome,
            model: pending.model.clone(),
            failure: pending.failure.clone(),
            course: pending.course,
        };
        pending.end(Err(unanswered));
    }

    fn remove_request(&mut self, request: RequestKey) -> Option<PendingRequest> {
        let pending = self.requests.remove(&request)?;
        self.classes.leave(&pending.membership);
        Some(pending)
    }

    fn update_queue_lengths(&self, now: Time, requested: &RequestedModel) {
        for model in requested.models() {
            self.update_queue_length(now, model);
        }
    }

    fn update_queue_length(&self, now: Time, model: &ServedModel) {
        let queued = self.engine.queued(model.key);
        model.telemetry.set_queue_length(queued);
        model.load.set_queued(now, queued);
    }

    fn handle_link_event(&mut self, now: Time, sent: Time, replica: ReplicaKey, event: LinkEvent) {
        let effect = match event {
            LinkEvent::BatchComputed(result, payload) => {
                return self.batch_computed(now, sent, result, payload);
            }
            LinkEvent::BatchFailed(failure) => return self.batch_failed(now, failure),
            LinkEvent::Up(batches) => {
                if let Some((id, model)) = self.names(replica) {
                    tracing::info!(replica.id = %id, model.name = %model, "connected to a worker");
                }
                self.links.link_up(replica, batches)
            }
            LinkEvent::Draining => self.links.link_draining(replica),
            LinkEvent::Down(reason) => {
                // A connection that could not be made was not lost.
                if self.links.batches(replica).is_some()
                    && let Some((id, model)) = self.names(replica)
                {
                    tracing::warn!(replica.id = %id, model.name = %model, reason, "lost the connection to a worker");
                }
                self.links.link_down(replica, reason)
            }
        };
        self.apply(now, effect);
    }

    fn ejected(&mut self, replica: ReplicaKey, failures: u32) {
        let reason = self.links.ejected(replica);
        let model = self.links.model(replica);
        if let Some(model) = model.and_then(|model| self.models_by_key.get(&model)) {
            model.telemetry.count_ejection();
        }
        if let Some(target) = self.links.target(replica) {
            let spec = &target.replica.spec;
            tracing::warn!(
                replica.id = %target.replica.id, model.name = %spec.model.model, device = %spec.device, failures, reason,
                "ejected a replica whose batches fail"
            );
        }
    }

    /// Returns the identity and the model of a replica, for the log.
    fn names(&self, replica: ReplicaKey) -> Option<(ReplicaId, &ModelId)> {
        let target = self.links.target(replica)?;
        Some((target.replica.id, &target.replica.spec.model.model))
    }

    /// Returns the identity of a replica as text, for the log.
    fn replica_name(&self, replica: ReplicaKey) -> String {
        let names = self.names(replica);
        names.map_or_else(String::new, |(id, _)| id.to_string())
    }

    fn apply_all(&mut self, now: Time, effects: Vec<Effect>) {
        for effect in effects {
            self.apply(now, Some(effect));
        }
    }

    /// Applies the effect of a change of a replica.
    fn apply(&mut self, now: Time, effect: Option<Effect>) {
        match effect {
            Some(Effect::Event(event)) => self.handle_event(now, event),
            Some(Effect::ReplicaLost(replica)) => {
                self.lose_batches(now, replica);
                self.handle_event(now, Event::ReplicaLost { replica });
            }
            None => {}
        }
    }

    /// Publishes the changed states of the replicas to the control plane, and the readiness of their models to the handlers.
    fn publish_states(&mut self) {
        let (links, models) = self.links.take_changes();
        for key in models {
            if let Some(model) = self.models_by_key.get(&key) {
                let (ready, loading) = self.links.readiness(key);
                let ready = ready && self.shutdown_deadline.is_none();
                model.readiness.ready.store(ready, Relaxed);
                model.readiness.loading.store(loading, Relaxed);
            }
        }
        for link in links {
            // Without a control plane, nobody follows the links.
            let _ = self.publishes.links.send(link);
        }
    }
}
