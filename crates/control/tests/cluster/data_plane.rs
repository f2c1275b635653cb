//! The data plane of a gateway in virtual time: the real engine and the real links. The cluster carries what it sends.

use std::{cell::RefCell, collections::BTreeMap, mem, rc::Rc, sync::Arc};

use packhorse_cluster::{ModelId, ModelSpec, ReplicaId, Time};
use packhorse_control::{LinkState, RequestCounts, ServeChange, Target};
use packhorse_links::{Connect, Effect, LinkChange, Links};
use packhorse_serving::{
    Action, BatchError, BatchKey, Engine, EngineConfig, Event, ModelKey, ModelLimits, ReplicaKey,
    Request, RequestKey, RequestOutcome, ShapeClass, TenantKey,
};

/// The number of a connection to a worker; never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Connection(pub(crate) u64);

/// The number that a client gave its request, which the worker's answer repeats.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Tag(pub(crate) u64);

/// A wish of the data plane to the cluster around it.
#[derive(Debug)]
pub(crate) enum Output {
    /// Connects to the worker of a replica, and again after a loss, until the connection is closed.
    Connect(ReplicaKey, Box<Target>),
    /// Closes the connection of a replica, or gives up making it.
    Close(ReplicaKey),
    /// Sends a batch.
    Send(Connection, BatchKey, Vec<Tag>),
    /// Answers a client.
    End(Tag, RequestOutcome),
}

/// The sockets that links open and close.
#[derive(Clone, Debug, Default)]
struct Sockets(Rc<RefCell<Vec<Output>>>);

/// An open socket. It closes when it is dropped.
#[derive(Debug)]
struct Socket(ReplicaKey, Sockets);

impl Drop for Socket {
    fn drop(&mut self) {
        self.1.0.borrow_mut().push(Output::Close(self.0));
    }
}

impl Connect for Sockets {
    type Link = Socket;
    type Batches = Connection;

    fn connect(&self, key: ReplicaKey, target: &Target) -> Socket {
        let target = Box::new(target.clone());
        self.0.borrow_mut().push(Output::Connect(key, target));
        Socket(key, self.clone())
    }
}

/// The data plane of a gateway.
#[derive(Debug)]
pub(crate) struct DataPlane {
    engine: Engine,
    links: Links<Sockets>,
    sockets: Sockets,
    models: BTreeMap<ModelId, Arc<ModelSpec>>,
    keys: BTreeMap<ModelId, ModelKey>,
    next_model: u32,
    next_request: u64,
    requests: BTreeMap<RequestKey, PendingRequest>,
    by_tag: BTreeMap<Tag, RequestKey>,
    batches: BTreeMap<BatchKey, (ReplicaKey, Vec<RequestKey>)>,
    counts: BTreeMap<ModelId, RequestCounts>,
    outputs: Vec<Output>,
}

#[derive(Debug)]
struct PendingRequest {
    tag: Tag,
    model: ModelId,
    deadline: Time,
}

impl Default for DataPlane {
    fn default() -> Self {
        Self {
            engine: Engine::new(EngineConfig::default()),
            links: Links::default(),
            sockets: Sockets::default(),
            models: BTreeMap::new(),
            keys: BTreeMap::new(),
            next_model: 0,
            next_request: 0,
            requests: BTreeMap::new(),
            by_tag: BTreeMap::new(),
            batches: BTreeMap::new(),
            counts: BTreeMap::new(),
            outputs: Vec::new(),
        }
    }
}

impl DataPlane {
    // The control plane's side.

    /// Changes what is served, as the gateway's driver does.
    pub(crate) fn serve(&mut self, now: Time, change: ServeChange) {
        match change {
            ServeChange::Model(spec) => {
                let id = spec.program.model.clone();
                let known = self.models.get(&id);
                if known.is_some_and(|known| known.program != spec.program) {
                    self.remove_model(now, &id);
                }
                let next = ModelKey(self.next_model);
                let model = *self.keys.entry(id.clone()).or_insert(next);
                self.next_model += u32::from(model == next);
                let limits = ModelLimits {
                    max_batch_rows: spec.program.rows_limit(),
                    max_batch_bytes: 1 << 20,
                    queue_limit: ModelLimits::DEFAULT_QUEUE_LIMIT,
                };
                self.models.insert(id, spec);
                self.handle(now, Event::ModelUpdated { model, limits });
            }
            ServeChange::RemoveModel(id) => self.remove_model(now, &id),
            ServeChange::Replica(target) => {
                let model = &target.replica.spec.model.model;
                if let Some(key) = self.keys.get(model) {
                    let effects = self.links.serve(*target, *key, &self.sockets);
                    self.apply(now, effects);
                }
            }
            ServeChange::RemoveReplica(id) => {
                let effect = self.links.end(id);
                self.apply(now, effect);
            }
            ServeChange::Discipline(discipline) => {
                self.engine.set_discipline(now, discipline);
                self.act(now);
            }
            // Clients name versions.
            ServeChange::Split(..) | ServeChange::Open => {}
        }
    }

    fn remove_model(&mut self, now: Time, id: &ModelId) {
        self.models.remove(id);
        if let Some(model) = self.keys.remove(id) {
            self.handle(now, Event::ModelRemoved { model });
            let effects = self.links.end_model(model);
            self.apply(now, effects);
        }
    }

    /// Returns the links whose states have changed since the last call.
    pub(crate) fn take_link_changes(&mut self) -> Vec<LinkChange> {
        self.links.take_changes().0
    }

    /// Returns what the cluster shall do.
    pub(crate) fn take_outputs(&mut self) -> Vec<Output> {
        self.outputs.append(&mut self.sockets.0.borrow_mut());
        mem::take(&mut self.outputs)
    }

    /// Returns the counts of requests since the start.
    pub(crate) fn counts(&self) -> &BTreeMap<ModelId, RequestCounts> {
        &self.counts
    }

    pub(crate) fn links(&self) -> impl Iterator<Item = (ReplicaKey, ReplicaId, &Target)> {
        let links = self.links.identities();
        links.filter_map(|(key, id, _)| Some((key, id, self.links.target(key)?)))
    }

    pub(crate) fn link_state(&self, id: ReplicaId) -> Option<&LinkState> {
        self.links.state(id)
    }

    /// Adds up the work of the replicas, see [`Links::work`].
    pub(crate) fn work(&self) -> BTreeMap<ReplicaId, packhorse_control::ComputedWork> {
        self.links.work()
    }

    /// Ejects a replica without telling the engine, which sends it batches all the same.
    pub(crate) fn eject(&mut self, key: ReplicaKey) {
        self.links.batch_failed(key, "batches fail".to_owned());
        self.links.ejected(key);
    }

    // The clients' side.

    /// Takes a request.
    pub(crate) fn submit(&mut self, now: Time, tag: Tag, model: &ModelId, rows: u32) {
        let Some((key, spec)) = self.keys.get(model).zip(self.models.get(model)) else {
            let refused = RequestOutcome::Refused(packhorse_serving::Refusal::UnknownModel);
            self.outputs.push(Output::End(tag, refused));
            return;
        };
        let id = RequestKey(self.next_request);
        self.next_request += 1;
        let deadline = now + spec.slo;
        let request = Request {
            id,
            model: *key,
            tenant: TenantKey(0),
            rows,
            bytes: u64::from(rows) * 16,
            class: ShapeClass(0),
            priority: 0,
            may_fall_back: true,
            deadline,
        };
        let pending = PendingRequest {
            tag,
            model: model.clone(),
            deadline,
        };
        self.counts.entry(model.clone()).or_default().arrived += 1;
        self.requests.insert(id, pending);
        self.by_tag.insert(tag, id);
        self.handle(now, Event::RequestArrived(request));
    }

    /// Notes that a client has hung up. Returns true if its request had not ended.
    pub(crate) fn cancel(&mut self, now: Time, tag: Tag) -> bool {
        let Some(request) = self.by_tag.get(&tag).copied() else {
            return false;
        };
        self.remove_request(request);
        self.handle(now, Event::RequestCancelled { request });
        true
    }

    fn remove_request(&mut self, request: RequestKey) -> Option<PendingRequest> {
        let pending = self.requests.remove(&request)?;
        self.by_tag.remove(&pending.tag);
        Some(pending)
    }

    // The workers' side.

    pub(crate) fn connected(&mut self, now: Time, key: ReplicaKey, connection: Connection) {
        let effect = self.links.link_up(key, connection, false);
        self.apply(now, effect);
    }

    pub(crate) fn disconnected(&mut self, now: Time, key: ReplicaKey, reason: &str) {
        let effect = self.links.link_down(key, reason.to_owned());
        self.apply(now, effect);
    }

    pub(crate) fn worker_drains(&mut self, now: Time, key: ReplicaKey) {
        let effect = self.links.link_draining(key);
        self.apply(now, effect);
    }

    /// Takes the answer of a worker: the tags of the computed rows, in the order of the batch.
    ///
    /// Panics if an answer would go to another request than its own.
    pub(crate) fn computed(
        &mut self,
        now: Time,
        batch: BatchKey,
        tags: &[Tag],
        compute: std::time::Duration,
    ) {
        let Some((replica, requests)) = self.batches.remove(&batch) else {
            return;
        };
        assert_eq!(requests.len(), tags.len(), "{batch:?}");
        let rows = u32::try_from(tags.len()).expect("a batch is small");
        self.links.count_batch(replica, rows, compute);
        for (request, tag) in requests.iter().zip(tags) {
            // Of a cancelled request nothing is left.
            let Some(pending) = self.remove_request(*request) else {
                continue;
            };
            assert_eq!(pending.tag, *tag, "an answer goes to another request");
            let counts = self.counts.entry(pending.model.clone()).or_default();
            counts.within_slo += u64::from(now <= pending.deadline);
            let answered = RequestOutcome::Answered;
            self.outputs.push(Output::End(pending.tag, answered));
        }
        let queue_wait = std::time::Duration::ZERO;
        let completed = Event::BatchCompleted {
            batch,
            queue_wait,
            compute,
        };
        self.handle(now, completed);
    }

    pub(crate) fn failed(&mut self, now: Time, batch: BatchKey, error: BatchError) {
        if let Some((replica, _)) = self.batches.remove(&batch) {
            if error == BatchError::ModelFailed {
                self.links.batch_failed(replica, "it throws".to_owned());
            }
            self.handle(now, Event::BatchFailed { batch, error });
        }
    }

    // The engine.

    /// Returns the next time at which the engine acts by itself.
    pub(crate) fn poll_timeout(&self) -> Option<Time> {
        self.engine.poll_timeout()
    }

    fn handle(&mut self, now: Time, event: Event) {
        self.engine.handle(now, event);
        self.act(now);
    }

    fn apply(&mut self, now: Time, effects: impl IntoIterator<Item = Effect>) {
        for effect in effects {
            match effect {
                Effect::Event(event) => self.handle(now, event),
                Effect::ReplicaLost(replica) => {
                    self.batches.retain(|_, (on, _)| *on != replica);
                    self.handle(now, Event::ReplicaLost { replica });
                }
            }
        }
    }

    /// Carries out the engine's actions.
    pub(crate) fn act(&mut self, now: Time) {
        while let Some(action) = self.engine.poll(now) {
            match action {
                Action::Dispatch {
                    batch,
                    replica,
                    requests,
                } => {
                    let tags = requests.iter().map(|request| self.requests[request].tag);
                    let tags: Vec<Tag> = tags.collect();
                    self.batches.insert(batch, (replica, requests));
                    // Without a connection the batch is lost, as the engine is about to learn.
                    if let Some(connection) = self.links.batches(replica) {
                        self.outputs.push(Output::Send(*connection, batch, tags));
                    }
                }
                Action::Finish { request, outcome } => {
                    let pending = self.remove_request(request);
                    let pending = pending.expect("a request ends once");
                    self.outputs.push(Output::End(pending.tag, outcome));
                }
                Action::ReplicaEjected { replica, .. } => {
                    self.links.ejected(replica);
                }
                Action::TenantPaused { .. } => {}
                Action::ReplicaRestored { replica } => self.links.restored(replica),
                Action::ReplicaDrained { replica } => self.links.drained(replica),
            }
        }
    }

    /// Checks that every request that was accepted has one place, here and in the engine.
    pub(crate) fn check(&self) -> Result<(), String> {
        let books = self.engine.books();
        let places = books.queued + books.in_flight;
        if !books.is_balanced() || places != self.requests.len() as u64 {
            return Err(format!("{books:?}, but {} requests", self.requests.len()));
        }
        Ok(())
    }
}
