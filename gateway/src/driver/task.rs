//! A driver of an engine: it passes events to the engine and carries out the engine's actions.

mod batches;
mod pending;
mod weights;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Duration,
};

use packhorse_cluster::{Discipline, ModelId, ReplicaId, Time};
use packhorse_control::Target;
use packhorse_links::{Effect, LinkChange, Links};
use packhorse_serving::{
    Action, BatchKey, Engine, EngineConfig, EnginePart, Event, ModelKey, ModelLimits, Refusal,
    ReplicaKey, Request, RequestKey, RequestOutcome, TenantKey,
};
use rustc_hash::FxHashMap;
use tokio::sync::mpsc;

use self::pending::{InFlightBatch, PendingRequest};
use super::{
    blamed_tenants::BlamedTenants,
    connector::{Connector, HomeConnector},
    failure_log::FailureLog,
    message::DriverMessage,
    request::{SubmittedRequest, UnansweredRequest},
    requested_model::RequestedModel,
    served_model::ServedModel,
    shape_class::{ShapeClasses, padded_bytes},
};
use crate::{
    telemetry::{ReplicaWeights, RequestCourse},
    workers::LinkEvent,
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

/// A driver, with its engine and all that belongs to the models for which that decides. One thread at a time has it: that which handles the messages of its inbox.
#[derive(Debug)]
pub(super) struct Driver {
    connector: Arc<Connector>,
    /// The changes of the links, for the control plane.
    link_changes: mpsc::UnboundedSender<LinkChange>,
    engine: Engine,
    models: BTreeMap<ModelKey, Arc<ServedModel>>,
    /// The next variant after every variant, as the engine was last told.
    fallbacks: BTreeMap<ModelKey, ModelKey>,
    links: Links<HomeConnector>,
    requests: FxHashMap<RequestKey, PendingRequest>,
    batches: FxHashMap<BatchKey, InFlightBatch>,
    /// Where the weights of replicas in pools are, for people.
    weights: ReplicaWeights,
    /// The times at which weights came to their device, of replicas in pools.
    loaded: FxHashMap<ReplicaKey, Time>,
    classes: ShapeClasses,
    failure_log: FailureLog,
    blamed: BlamedTenants,
    /// The latest time at which the driver ends; no request is taken once this is set.
    shutdown_deadline: Option<Time>,
}

/// Models that a driver gave away, with all that belongs to them.
#[derive(Debug)]
pub(super) struct DriverPart {
    engine: EnginePart,
    models: BTreeMap<ModelKey, Arc<ServedModel>>,
    fallbacks: BTreeMap<ModelKey, ModelKey>,
    links: Links<HomeConnector>,
    requests: FxHashMap<RequestKey, PendingRequest>,
    batches: FxHashMap<BatchKey, InFlightBatch>,
}

impl Driver {
    /// Creates the driver with this number. What drivers number themselves begins at its own place for each, so that all of it can be exchanged.
    pub(super) fn new(
        number: usize,
        max_batch_wait: Duration,
        connector: Connector,
        link_changes: mpsc::UnboundedSender<LinkChange>,
        weights: ReplicaWeights,
    ) -> Self {
        let number = u8::try_from(number).expect("there are at most 256 drivers");
        let engine_config = EngineConfig {
            max_batch_wait,
            first_batch: BatchKey(u64::from(number) << 56),
            ..EngineConfig::default()
        };
        Self {
            connector: Arc::new(connector),
            link_changes,
            engine: Engine::new(engine_config),
            models: BTreeMap::new(),
            fallbacks: BTreeMap::new(),
            links: Links::numbered_from(u32::from(number) << 24),
            requests: FxHashMap::default(),
            batches: FxHashMap::default(),
            weights,
            loaded: FxHashMap::default(),
            classes: ShapeClasses::numbered_after(u64::from(number) << 48),
            failure_log: FailureLog::default(),
            blamed: BlamedTenants::default(),
            shutdown_deadline: None,
        }
    }

    /// Does what is due at this time, after messages or when the engine's time has come. Says until when to wait for more.
    pub(super) fn advance(&mut self, now: Time) -> Next {
        self.run_actions(now);
        self.publish_states();
        self.failure_log.flush(now);
        let has_ended = |deadline| now >= deadline || self.requests.is_empty();
        if self.shutdown_deadline.is_some_and(has_ended) {
            return Next::End;
        }
        let wakes = self.engine.poll_timeout().into_iter();
        let wakes = wakes.chain(self.failure_log.due());
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
            DriverMessage::Submit(submitted) => self.submit(now, *submitted),
            DriverMessage::Cancel(request) => self.cancel(now, request),
            DriverMessage::Link(_, replica, event, sent) => {
                self.handle_link_event(now, sent, replica, event);
            }
            #[cfg(test)]
            DriverMessage::Panic => panic!("a test asked for it"),
            DriverMessage::GetWork(answer) => {
                // The caller may have stopped waiting.
                let _ = answer.send(self.links.work());
            }
            DriverMessage::Shutdown(grace) => self.shutdown_deadline = Some(now + grace),
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
                Action::TenantPaused {
                    model,
                    tenant,
                    losses,
                    pause,
                } => self.tenant_paused(now, model, tenant, losses, pause),
                Action::ReplicaEjected { replica, failures } => self.ejected(replica, failures),
                Action::ReplicaRestored { replica } => {
                    self.links.restored(replica);
                    if let Some((id, model)) = self.names(replica) {
                        tracing::info!(replica.id = %id, model.name = %model, "a replica that was ejected computes batches again");
                    }
                }
                Action::ReplicaDrained { replica } => {
                    self.forget_weights(replica);
                    self.links.drained(replica);
                }
                Action::Load { replica } => self.load_weights(now, replica),
                Action::Unload { replica, wanted } => self.unload_weights(replica, wanted),
            }
        }
    }

    /// Takes a model, or its changed specification.
    pub(super) fn update_model(&mut self, now: Time, model: Arc<ServedModel>) {
        let key = model.key;
        let limits = ModelLimits {
            max_batch_rows: model.spec.program.rows_limit(),
            max_batch_bytes: MAX_BATCH_BYTES,
            queue_limit: model.queue_limit,
        };
        let updated = Event::ModelUpdated {
            model: key,
            limits,
            priority: model.spec.priority,
        };
        self.models.insert(key, model);
        self.handle_event(now, updated);
    }

    /// Ends a model that is no longer served: its replicas answer what they have.
    pub(super) fn remove_model(&mut self, now: Time, key: ModelKey) {
        self.models.remove(&key);
        self.fallbacks.remove(&key);
        self.handle_event(now, Event::ModelRemoved { model: key });
        let effects = self.links.end_model(key);
        self.apply_all(now, effects);
    }

    /// Serves a replica of a model, or changes it.
    pub(super) fn serve(&mut self, now: Time, target: Target, model: &ServedModel) {
        let connector = HomeConnector {
            connector: Arc::clone(&self.connector),
            home: Arc::clone(&model.home),
        };
        let effects = self.links.serve(target, model.key, &connector);
        self.apply_all(now, effects);
    }

    /// Ends a replica that shall no longer be served, if it is one of this driver's.
    pub(super) fn end_replica(&mut self, now: Time, id: ReplicaId) {
        let effect = self.links.end(id);
        self.apply(now, effect);
    }

    pub(super) fn set_discipline(&mut self, now: Time, discipline: Discipline) {
        self.engine.set_discipline(now, discipline);
        self.run_actions(now);
    }

    /// Returns the links to the replicas.
    pub(super) fn links(&self) -> &Links<HomeConnector> {
        &self.links
    }

    /// Returns the models that the engine has another one for, with that.
    pub(super) fn fallbacks(&self) -> impl Iterator<Item = (ModelKey, ModelKey)> {
        self.fallbacks
            .iter()
            .map(|(model, fallback)| (*model, *fallback))
    }

    /// Gives models away. None of them is coupled with one that stays.
    pub(super) fn split_off(&mut self, models: &BTreeSet<ModelKey>) -> DriverPart {
        let engine = self.engine.split_off(models);
        let requests = self
            .requests
            .extract_if(|request, _| engine.has_request(*request));
        let requests: FxHashMap<_, _> = requests.collect();
        for pending in requests.values() {
            self.classes.leave(&pending.membership);
        }
        let batches = self.batches.extract_if(|batch, _| engine.has_batch(*batch));
        DriverPart {
            batches: batches.collect(),
            models: self
                .models
                .extract_if(.., |key, _| models.contains(key))
                .collect(),
            fallbacks: self
                .fallbacks
                .extract_if(.., |key, _| models.contains(key))
                .collect(),
            links: self.links.split_off(models),
            engine,
            requests,
        }
    }

    /// Takes models over that another driver gave away.
    pub(super) fn absorb(&mut self, now: Time, part: DriverPart) {
        let DriverPart {
            engine,
            models,
            fallbacks,
            links,
            requests,
            batches,
        } = part;
        for pending in requests.values() {
            self.classes.take_over(&pending.membership);
        }
        self.engine.absorb(now, engine);
        self.models.extend(models);
        self.fallbacks.extend(fallbacks);
        self.links.absorb(links);
        self.requests.extend(requests);
        self.batches.extend(batches);
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
        let present = present.find(|model| self.models.contains_key(&model.key));
        let model = present.unwrap_or(&requested.model);
        let tenant = submission.tenant;
        if self.engine.is_blamed(model.key, tenant) {
            self.blamed.remember(tenant, &submission.tenant_name);
        }
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
            may_fall_back: requested.has_several(),
            deadline: submission.deadline,
            load_by: submission.load_by,
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
        // A family may have had another variant when its client was read.
        let models = requested.models();
        for model in models.filter(|model| self.models.contains_key(&model.key)) {
            let stands_before = self.engine.stands_before_others(now, model.key, tenant);
            model.load.set_stands_behind(tenant, !stands_before);
        }
        self.update_queue_lengths(now, &requested);
    }

    /// Has the engine try the variants of a family in their order, and the former version after one on trial. Where a split sends requests to several versions of a variant, the order is that
    /// of the request that arrives.
    fn set_fallbacks(&mut self, now: Time, requested: &RequestedModel) {
        if !requested.has_several() && requested.family.is_none() {
            return;
        }
        let keys = requested.models().map(|model| model.key);
        let keys: Vec<ModelKey> = keys.filter(|key| self.models.contains_key(key)).collect();
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
        if !self.models.contains_key(&model.key) {
            return;
        }
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
            LinkEvent::Weights(report) => {
                return self.weights_reported(now, replica, report);
            }
            LinkEvent::Up(batches, weights) => {
                if let Some((id, model)) = self.names(replica) {
                    tracing::info!(replica.id = %id, model.name = %model, "connected to a worker");
                }
                let shares_memory = batches.shares_memory();
                let place = weights.map(weights::pool_place);
                self.note_weights(replica, place);
                self.links.link_up(replica, batches, shares_memory, place)
            }
            LinkEvent::Draining => self.links.link_draining(replica),
            LinkEvent::Down(reason) => {
                // A connection that could not be made was not lost.
                if self.links.batches(replica).is_some()
                    && let Some((id, model)) = self.names(replica)
                {
                    tracing::warn!(replica.id = %id, model.name = %model, reason, "lost the connection to a worker");
                }
                self.forget_weights(replica);
                self.links.link_down(replica, reason)
            }
        };
        self.apply(now, effect);
    }

    /// Tells people that the engine refuses a tenant's requests for a while.
    fn tenant_paused(
        &mut self,
        now: Time,
        model: ModelKey,
        tenant: TenantKey,
        losses: u32,
        pause: Duration,
    ) {
        let Some(model) = self.models.get(&model) else {
            return;
        };
        let mut pending = self.requests.values();
        let pending = pending.find(|pending| pending.submission.tenant == tenant);
        let pending = pending.map(|pending| &pending.submission.tenant_name);
        let name = pending.or_else(|| self.blamed.name(tenant));
        let name = name.map_or_else(|| "an unknown client".to_owned(), ToString::to_string);
        tracing::warn!(
            model.name = %model.id(), tenant = name, losses, pause_s = pause.as_secs_f64(),
            "requests of a client end workers of a model: its requests are refused for a while"
        );
        model.telemetry.count_tenant_pause(now, name, pause);
    }

    fn ejected(&mut self, replica: ReplicaKey, failures: u32) {
        let reason = self.links.ejected(replica);
        let model = self.links.model(replica);
        if let Some(model) = model.and_then(|model| self.models.get(&model)) {
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
    pub(super) fn publish_states(&mut self) {
        let (links, models) = self.links.take_changes();
        for key in models {
            if let Some(model) = self.models.get(&key) {
                let (ready, loading) = self.links.readiness(key);
                let ready = ready && self.shutdown_deadline.is_none();
                model.readiness.ready.store(ready, Relaxed);
                model.readiness.loading.store(loading, Relaxed);
            }
        }
        for link in links {
            // Without a control plane, nobody follows the links.
            let _ = self.link_changes.send(link);
        }
    }
}
