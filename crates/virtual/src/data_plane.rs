//! The data plane of a gateway in virtual time: the real engine and the real links. The cluster carries what they send.

use std::{cell::RefCell, collections::BTreeMap, mem, rc::Rc, sync::Arc, time::Duration};

use packhorse_cluster::{DeviceId, ModelName, ModelSpec, ReplicaId, Time};
use packhorse_control::{
    ComputedWork, LinkState, MissCause, MissedRequests, RequestCounts, RequestStage, ServeChange,
    Target,
};
use packhorse_links::{Connect, Effect, LinkChange, Links};
use packhorse_serving::{
    Engine, Event, ModelKey, ModelLimits, ReplicaKey, Request, RequestKey, ShapeClass, TenantKey,
};

use crate::{clients::Clients, network::ConnectionKey, settings::Settings};

/// A change of a socket that links want.
#[derive(Debug)]
pub(crate) enum SocketChange {
    /// Connects to the worker of a replica, and again after a loss, until the connection is closed.
    Connect(ReplicaKey, Box<Target>),
    /// Closes the connection of a replica, or gives up making it.
    Close(ReplicaKey),
}

/// The sockets that links open and close.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sockets(Rc<RefCell<Vec<SocketChange>>>);

/// An open socket. It closes when it is dropped.
#[derive(Debug)]
pub(crate) struct Socket(ReplicaKey, Sockets);

impl Drop for Socket {
    fn drop(&mut self) {
        self.1.0.borrow_mut().push(SocketChange::Close(self.0));
    }
}

impl Connect for Sockets {
    type Link = Socket;
    type Batches = ConnectionKey;

    fn connect(&self, key: ReplicaKey, target: &Target) -> Socket {
        let target = Box::new(target.clone());
        self.0.borrow_mut().push(SocketChange::Connect(key, target));
        Socket(key, self.clone())
    }
}

/// A model that the gateway serves.
#[derive(Debug)]
pub(crate) struct ServedModel {
    pub(crate) key: ModelKey,
    pub(crate) spec: Arc<ModelSpec>,
    /// The index of the model that its clients' requests go to first: itself, or the most accurate variant of its family.
    first: usize,
}

/// The data plane of a gateway.
#[derive(Debug)]
pub(crate) struct DataPlane {
    pub(crate) engine: Engine,
    pub(crate) links: Links<Sockets>,
    sockets: Sockets,
    /// The served models, by their clients' indices.
    served: Vec<Option<ServedModel>>,
    next_model: u32,
    max_batch_bytes: u64,
    counts: Vec<RequestCounts>,
    misses: Vec<MissedRequests>,
    /// The number of requests that it has.
    pub(crate) requests: u64,
    /// The number in the run of the engine's first batch.
    pub(crate) first_batch: u64,
}

impl DataPlane {
    /// Creates the data plane of a gateway whose first batch and first replica have these numbers in the run, and which numbers devices in this order.
    pub(crate) fn new(
        settings: &Settings,
        first_batch: u64,
        first_replica: u32,
        devices: impl IntoIterator<Item = DeviceId>,
    ) -> Self {
        Self {
            engine: Engine::new(settings.engine),
            links: Links::numbered_from(first_replica)
                .with_interference(settings.interference)
                .with_devices(devices),
            sockets: Sockets::default(),
            served: Vec::new(),
            next_model: 0,
            max_batch_bytes: settings.max_batch_bytes,
            counts: Vec::new(),
            misses: Vec::new(),
            requests: 0,
            first_batch,
        }
    }

    // The control plane's side.

    /// Changes what is served, as the gateway's driver does.
    pub(crate) fn serve(&mut self, now: Time, change: ServeChange, clients: &mut Clients) {
        match change {
            ServeChange::Model(spec) => self.update_model(now, spec, clients),
            ServeChange::RemoveModel(id) => self.remove_model(now, clients.index(&id)),
            ServeChange::Replica(target) => {
                let model = clients.index(&target.replica.spec.model.model);
                if let Some(served) = self.served(model) {
                    let effects = self.links.serve(*target, served.key, &self.sockets);
                    self.apply(now, effects);
                }
            }
            ServeChange::RemoveReplica(id) => {
                let effect = self.links.end(id);
                self.apply(now, effect);
            }
            ServeChange::Discipline(discipline) => self.engine.set_discipline(now, discipline),
            // Clients name versions.
            ServeChange::Split(..) | ServeChange::Open => {}
        }
    }

    fn update_model(&mut self, now: Time, spec: Arc<ModelSpec>, clients: &mut Clients) {
        let index = clients.index(&spec.program.model);
        let known = self.served(index);
        if known.is_some_and(|known| known.spec.program != spec.program) {
            self.remove_model(now, index);
        }
        let key = self.served(index).map(|known| known.key);
        let key = key.unwrap_or_else(|| {
            self.next_model += 1;
            ModelKey(self.next_model - 1)
        });
        let limits = ModelLimits {
            max_batch_rows: spec.program.rows_limit(),
            max_batch_bytes: self.max_batch_bytes,
            queue_limit: ModelLimits::DEFAULT_QUEUE_LIMIT,
        };
        if self.served.len() <= index {
            self.served.resize_with(index + 1, || None);
            self.counts.resize_with(index + 1, RequestCounts::default);
            self.misses.resize_with(index + 1, MissedRequests::default);
        }
        let updated = Event::ModelUpdated {
            model: key,
            limits,
            priority: spec.priority,
        };
        let family = spec.family().cloned();
        self.served[index] = Some(ServedModel {
            key,
            spec,
            first: index,
        });
        self.engine.handle(now, updated);
        if let Some(family) = family {
            self.set_fallbacks(now, &family);
        }
    }

    /// Has the engine try the variants of a family from the most accurate to the least.
    fn set_fallbacks(&mut self, now: Time, family: &ModelName) {
        let accuracy = |index: usize| {
            let variant = self.served[index].as_ref()?.spec.variant.as_ref()?;
            (variant.family == *family).then_some(variant.accuracy.get())
        };
        let variants = (0..self.served.len()).filter_map(|index| Some((accuracy(index)?, index)));
        let mut variants: Vec<(f64, usize)> = variants.collect();
        variants.sort_by(|one, other| other.0.total_cmp(&one.0));
        let first = variants.first().map(|(_, index)| *index);
        let keys: Vec<ModelKey> = variants
            .iter()
            .filter_map(|(_, index)| Some(self.served(*index)?.key))
            .collect();
        for (_, index) in &variants {
            if let (Some(served), Some(first)) = (&mut self.served[*index], first) {
                served.first = first;
            }
        }
        for (place, &model) in keys.iter().enumerate() {
            let fallback = keys.get(place + 1).copied();
            let changed = Event::FallbackChanged { model, fallback };
            self.engine.handle(now, changed);
        }
    }

    fn remove_model(&mut self, now: Time, index: usize) {
        let Some(removed) = self.served.get_mut(index).and_then(Option::take) else {
            return;
        };
        let model = removed.key;
        self.engine.handle(now, Event::ModelRemoved { model });
        let effects = self.links.end_model(model);
        self.apply(now, effects);
        if let Some(family) = removed.spec.family() {
            self.set_fallbacks(now, family);
        }
    }

    /// Returns the links whose states have changed since the last call.
    pub(crate) fn take_link_changes(&mut self) -> Vec<LinkChange> {
        self.links.take_changes().0
    }

    /// Returns what the links want of their sockets.
    pub(crate) fn take_socket_changes(&mut self) -> Vec<SocketChange> {
        mem::take(&mut self.sockets.0.borrow_mut())
    }

    /// Returns a model that is served.
    pub(crate) fn served(&self, index: usize) -> Option<&ServedModel> {
        self.served.get(index)?.as_ref()
    }

    /// Returns the counts of requests since the start, by their clients' indices of models.
    pub(crate) fn counts(&self) -> &[RequestCounts] {
        &self.counts
    }

    /// Returns the missed requests since the start, like [`Self::counts`].
    pub(crate) fn misses(&self) -> &[MissedRequests] {
        &self.misses
    }

    pub(crate) fn targets(&self) -> impl Iterator<Item = (ReplicaKey, ReplicaId, &Target)> {
        let links = self.links.identities();
        links.filter_map(|(key, id, _)| Some((key, id, self.links.target(key)?)))
    }

    /// Returns the replicas that serve a model.
    pub(crate) fn serving<'a>(
        &'a self,
        model: &'a packhorse_cluster::ModelId,
    ) -> impl Iterator<Item = (ReplicaId, &'a Target)> {
        let of_model = self
            .targets()
            .filter(|(_, _, target)| target.replica.spec.model.model == *model);
        let serving =
            of_model.filter(|(_, id, _)| self.links.state(*id) == Some(&LinkState::Serving));
        serving.map(|(_, id, target)| (id, target))
    }

    /// Adds up the work of the replicas, see [`Links::work`].
    pub(crate) fn work(&self) -> BTreeMap<ReplicaId, ComputedWork> {
        self.links.work()
    }

    /// Ejects a replica without telling the engine, which sends it batches all the same.
    pub(crate) fn eject(&mut self, id: ReplicaId) {
        let mut links = self.links.identities();
        let link = links.find(|(_, other, _)| *other == id);
        let key = link.expect("it is linked").0;
        drop(links);
        self.links.batch_failed(key, "batches fail".to_owned());
        self.links.ejected(key);
    }

    // The clients' side.

    /// Takes a request of a served model.
    pub(crate) fn submit(
        &mut self,
        now: Time,
        id: RequestKey,
        model: usize,
        deadline: Time,
        bytes: u64,
    ) {
        let served = self.served(model).expect("the caller has asked");
        let first = self.served(served.first).unwrap_or(served);
        let request = Request {
            id,
            model: first.key,
            tenant: TenantKey(0),
            rows: 1,
            bytes,
            class: ShapeClass(0),
            priority: 0,
            may_fall_back: true,
            deadline,
            load_by: deadline,
        };
        let for_family = served.spec.variant.is_some();
        let counts = &mut self.counts[model];
        counts.arrive(1, 1);
        counts.rows_for_family += u64::from(for_family);
        self.requests += 1;
        self.engine.handle(now, Event::RequestArrived(request));
    }

    /// Counts requests that have ended, in time and otherwise. Those for a model that is not there were not counted when they came.
    pub(crate) fn ended(&mut self, model: usize, in_time: u64, missed: u64) {
        if let Some(counts) = self.counts.get_mut(model) {
            counts.answer(in_time, 1);
            counts.missed += missed;
        }
    }

    /// Notes how a request missed its SLO, which [`Self::ended`] counts, with its times and the replica that had its last batch.
    pub(crate) fn missed(
        &mut self,
        model: usize,
        cause: MissCause,
        stages: &[(RequestStage, Duration)],
        replica: Option<ReplicaKey>,
    ) {
        let target = replica.and_then(|replica| self.links.target(replica));
        let device = target.map(|target| &target.replica.spec.device);
        if let Some(misses) = self.misses.get_mut(model) {
            misses.add(cause, stages.iter().copied(), device);
        }
    }

    // The workers' side.

    pub(crate) fn connected(&mut self, now: Time, key: ReplicaKey, connection: ConnectionKey) {
        let place = { self.links.target(key) }.and_then(|target| target.replica.spec.pool);
        let effect = self.links.link_up(key, connection, false, place);
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

    fn apply(&mut self, now: Time, effects: impl IntoIterator<Item = Effect>) {
        for effect in effects {
            let event = match effect {
                Effect::Event(event) => event,
                // Its batches ended with its connection.
                Effect::ReplicaLost(replica) => Event::ReplicaLost { replica },
            };
            self.engine.handle(now, event);
        }
    }

    /// Checks that every request that was accepted has one place, here and in the engine.
    pub(crate) fn check(&self) -> Result<(), String> {
        let books = self.engine.books();
        let places = books.queued + books.in_flight;
        if !books.is_balanced() || places != self.requests {
            return Err(format!("{books:?}, but {} requests", self.requests));
        }
        Ok(())
    }
}
