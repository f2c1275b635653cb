//! The replicas that shall be served: their links, the states of these, and the events for the engine that follow.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use packhorse_cluster::{Capacity, DeviceId, ReplicaId, ReplicaPhase};
use packhorse_contention::{Interference, ServiceTimes};
use packhorse_control::{ComputedWork, LinkState, Target};
use packhorse_serving::{DeviceKey, Event, ModelKey, ReplicaKey, ReplicaParameters};
use packhorse_wire::WorkerIdentity;
use tokio::sync::mpsc;

use super::{batch_failure::BatchFailure, catalog::ServedModel, link_change::LinkChange};
use crate::{
    telemetry::ReplicaNumber,
    workers::{Endpoint, OutgoingBatch, WorkerLink},
};

/// A replica that shall be served, or one that still answers its last batches.
#[derive(Debug)]
struct LinkedReplica {
    target: Target,
    device: DeviceKey,
    model: ModelKey,
    /// The most rows of one request.
    rows_limit: u32,
    /// The link; `None` once the replica is drained.
    link: Option<WorkerLink>,
    /// The sender of batches; present while the engine has the replica.
    batches: Option<mpsc::UnboundedSender<OutgoingBatch>>,
    state: LinkState,
    /// The expected compute times of its batches; present since the first connection.
    service: Option<ServiceTimes>,
    work: ComputedWork,
    /// The reason why a batch failed here last.
    last_failure: Option<Arc<BatchFailure>>,
    /// False once the replica shall no longer be served. Such a replica answers its last batches and is removed.
    wanted: bool,
}

impl LinkedReplica {
    fn id(&self) -> ReplicaId {
        self.target.replica.id
    }

    fn is_draining(&self) -> bool {
        self.target.replica.phase == ReplicaPhase::Draining
    }

    fn is_time_shared(&self) -> bool {
        self.target.replica.spec.duty_cycle.is_some()
    }

    fn is_in_engine(&self) -> bool {
        matches!(
            self.state,
            LinkState::Serving | LinkState::Ejected { .. } | LinkState::Draining
        )
    }
}

/// The effect that a change of a replica has on the driver.
#[derive(Debug)]
pub(super) enum Effect {
    /// The engine handles this event.
    Event(Event),
    /// The replica is lost: its batches are void, and then the engine is told.
    ReplicaLost(ReplicaKey),
}

/// All replicas.
#[derive(Debug, Default)]
pub(super) struct Replicas {
    by_key: BTreeMap<ReplicaKey, LinkedReplica>,
    /// The replicas that shall be served.
    wanted: BTreeMap<ReplicaId, ReplicaKey>,
    by_model: BTreeMap<ModelKey, BTreeSet<ReplicaKey>>,
    /// The engine's keys of the devices with replicas, and the numbers of these.
    devices: BTreeMap<DeviceId, (DeviceKey, usize)>,
    next_key: u32,
    next_device: u32,
    /// The replicas whose states may have changed since they were taken, with their models.
    touched: BTreeMap<ReplicaId, ModelKey>,
}

/// Opens the link of a replica under this key.
pub(super) trait OpenLink {
    fn open(&self, key: ReplicaKey, endpoint: Endpoint) -> WorkerLink;
}

impl<F: Fn(ReplicaKey, Endpoint) -> WorkerLink> OpenLink for F {
    fn open(&self, key: ReplicaKey, endpoint: Endpoint) -> WorkerLink {
        self(key, endpoint)
    }
}

impl Replicas {
    /// Adds a replica of this model, or changes it.
    pub(super) fn serve(
        &mut self,
        target: Target,
        model: &ServedModel,
        links: &impl OpenLink,
    ) -> Vec<Effect> {
        let id = target.replica.id;
        let Some(&key) = self.wanted.get(&id) else {
            self.add(target, model, links);
            return Vec::new();
        };
        let replica = &self.by_key[&key];
        if replica.model == model.key && is_same_worker(&target, &replica.target) {
            let drains = target.replica.phase == ReplicaPhase::Draining;
            let starts_to_drain = drains && !replica.is_draining();
            let mut effects = self.update(key, &target);
            if starts_to_drain {
                effects.extend(self.drain(key));
            }
            return effects;
        }
        // Another worker has the identity: the batches of the former one are lost.
        let lost = self.remove(key);
        self.add(target, model, links);
        Vec::from_iter(lost)
    }

    /// Ends a replica that shall no longer be served, once it has answered what it has.
    pub(super) fn end(&mut self, id: ReplicaId) -> Option<Effect> {
        let key = self.wanted.remove(&id)?;
        let replica = self.by_key.get_mut(&key)?;
        replica.wanted = false;
        self.touched.insert(id, replica.model);
        self.drain(key)
    }

    /// Ends the replicas of a model that was removed.
    pub(super) fn end_model(&mut self, model: ModelKey) -> Vec<Effect> {
        let keys = self.by_model.get(&model).into_iter().flatten();
        let ids: Vec<ReplicaId> = keys.map(|key| self.by_key[key].id()).collect();
        ids.into_iter().filter_map(|id| self.end(id)).collect()
    }

    fn add(&mut self, target: Target, model: &ServedModel, links: &impl OpenLink) {
        let key = ReplicaKey(self.next_key);
        self.next_key += 1;
        let id = target.replica.id;
        let identity = WorkerIdentity {
            replica: id,
            artifact: model.spec.program.artifact,
            batch_size: target.replica.spec.batch_size,
        };
        let drained = target.replica.phase == ReplicaPhase::Draining;
        let link = (!drained).then(|| {
            links.open(
                key,
                Endpoint {
                    address: target.address,
                    identity,
                    in_flight: target.capacity.map(|capacity| capacity.in_flight),
                },
            )
        });
        // A replica that is draining when it is added holds no batch of this data plane.
        let state = if drained {
            LinkState::Drained
        } else {
            LinkState::Connecting { reason: None }
        };
        let device = self.enter_device(&target.replica.spec.device);
        let replica = LinkedReplica {
            target,
            device,
            model: model.key,
            rows_limit: model.spec.program.rows_limit(),
            link,
            batches: None,
            state,
            service: None,
            work: ComputedWork::default(),
            last_failure: None,
            wanted: true,
        };
        self.by_key.insert(key, replica);
        self.wanted.insert(id, key);
        self.by_model.entry(model.key).or_default().insert(key);
        self.touched.insert(id, model.key);
    }

    /// Returns the engine's key of a device for one more replica. It is valid as long as there are replicas on the device.
    fn enter_device(&mut self, device: &DeviceId) -> DeviceKey {
        let next = DeviceKey(self.next_device);
        let (key, replicas) = self.devices.entry(device.clone()).or_insert((next, 0));
        if *key == next {
            self.next_device += 1;
        }
        *replicas += 1;
        *key
    }

    /// Removes a replica from all indices.
    fn take(&mut self, key: ReplicaKey) -> Option<LinkedReplica> {
        let replica = self.by_key.remove(&key)?;
        let id = replica.id();
        self.touched.insert(id, replica.model);
        if self.wanted.get(&id) == Some(&key) {
            self.wanted.remove(&id);
        }
        if let Some(keys) = self.by_model.get_mut(&replica.model) {
            keys.remove(&key);
            if keys.is_empty() {
                self.by_model.remove(&replica.model);
            }
        }
        let device = &replica.target.replica.spec.device;
        if let Some((_, replicas)) = self.devices.get_mut(device) {
            *replicas -= 1;
            if *replicas == 0 {
                self.devices.remove(device);
            }
        }
        Some(replica)
    }

    /// Updates the profile, time sharing and capacity of a replica. Time sharing changes with the next batch. A new profile
    /// counts from the next connection on: it is not worth breaking the present one, for the engine's observations of the replica
    /// are nearer to the truth than either profile. A smaller capacity lowers the batch limit at once.
    fn update(&mut self, key: ReplicaKey, target: &Target) -> Vec<Effect> {
        let Some(replica) = self.by_key.get_mut(&key) else {
            return Vec::new();
        };
        replica.target.profile = Arc::clone(&target.profile);
        let mut effects = Vec::new();
        let was_time_shared = replica.is_time_shared();
        replica.target.replica.spec.duty_cycle = target.replica.spec.duty_cycle;
        let time_shared = replica.is_time_shared();
        if time_shared != was_time_shared && replica.is_in_engine() {
            effects.push(Effect::Event(Event::TimeSharingChanged {
                replica: key,
                time_shared,
            }));
        }
        let before = std::mem::replace(&mut replica.target.capacity, target.capacity);
        let limit = |capacity: Option<Capacity>| capacity.map(|capacity| capacity.batch_size);
        if let (Some(rows), Some(before)) = (limit(target.capacity), limit(before))
            && rows < before
        {
            effects.extend(self.lower_batch_limit(key, rows));
        }
        effects
    }

    fn lower_batch_limit(&self, key: ReplicaKey, rows: u32) -> Option<Effect> {
        let replica = self.by_key.get(&key)?;
        let rows = rows.max(1);
        let event = Event::BatchLimitLowered { replica: key, rows };
        replica.is_in_engine().then_some(Effect::Event(event))
    }

    /// Gives a replica no further batches, for good: it shall drain, or no longer be served.
    fn drain(&mut self, key: ReplicaKey) -> Option<Effect> {
        let replica = self.by_key.get_mut(&key)?;
        replica.target.replica.phase = ReplicaPhase::Draining;
        self.touched
            .insert(replica.target.replica.id, replica.model);
        if replica.is_in_engine() {
            self.stop_batches(key)
        } else {
            self.end_connection(key, None);
            None
        }
    }

    /// Has the engine send no further batches to a replica.
    fn stop_batches(&mut self, key: ReplicaKey) -> Option<Effect> {
        let replica = self.by_key.get_mut(&key)?;
        if !matches!(
            replica.state,
            LinkState::Serving | LinkState::Ejected { .. }
        ) {
            return None;
        }
        replica.state = LinkState::Draining;
        self.touched
            .insert(replica.target.replica.id, replica.model);
        Some(Effect::Event(Event::ReplicaDraining { replica: key }))
    }

    /// Ends a replica's connection, after which the engine no longer has the replica: removes it if it shall no longer be served,
    /// marks it as drained if it drains, and otherwise waits for the next connection.
    fn end_connection(&mut self, key: ReplicaKey, reason: Option<String>) {
        let Some(replica) = self.by_key.get_mut(&key) else {
            return;
        };
        // The worker sees the end of the channel.
        replica.batches = None;
        self.touched
            .insert(replica.target.replica.id, replica.model);
        if !replica.wanted {
            self.take(key);
        } else if replica.is_draining() {
            replica.state = LinkState::Drained;
            replica.link = None;
        } else {
            replica.state = LinkState::Connecting { reason };
        }
    }

    /// Removes a replica at once.
    fn remove(&mut self, key: ReplicaKey) -> Option<Effect> {
        let replica = self.take(key)?;
        replica.is_in_engine().then_some(Effect::ReplicaLost(key))
    }

    /// Handles the worker's readiness for batches.
    pub(super) fn link_up(
        &mut self,
        key: ReplicaKey,
        batches: mpsc::UnboundedSender<OutgoingBatch>,
    ) -> Option<Effect> {
        let replica = self.by_key.get_mut(&key)?;
        if !matches!(replica.state, LinkState::Connecting { .. }) {
            return None;
        }
        let spec = &replica.target.replica.spec;
        tracing::info!(replica.id = %replica.id(), model.name = %spec.model.model, "connected to a worker");
        let (planned, compute_share) = (spec.batch_size, spec.compute_share);
        replica.state = LinkState::Serving;
        replica.batches = Some(batches);
        self.touched
            .insert(replica.target.replica.id, replica.model);
        let capacity = replica.target.capacity.unwrap_or(Capacity {
            batch_size: planned,
            in_flight: ReplicaParameters::DEFAULT_CREDITS,
            multiprocessors: None,
        });
        // A request of more rows than the planned batch size is computed by itself, unless memory is known to be short.
        let rows_limit = if capacity.batch_size < planned {
            replica.rows_limit.min(capacity.batch_size).max(1)
        } else {
            replica.rows_limit
        };
        let batch_size = planned.clamp(1, rows_limit);
        let service = ServiceTimes::new(
            &replica.target.profile,
            rows_limit,
            compute_share,
            Interference::default(),
        );
        replica.service = Some(service.clone());
        let parameters = ReplicaParameters {
            model: replica.model,
            batch_size,
            credits: capacity.in_flight.max(1),
            service,
            device: replica.device,
            time_shared: replica.is_time_shared(),
        };
        Some(Effect::Event(Event::ReplicaReady {
            replica: key,
            parameters,
        }))
    }

    /// Handles a worker's message that it is draining.
    pub(super) fn link_draining(&mut self, key: ReplicaKey) -> Option<Effect> {
        self.stop_batches(key)
    }

    /// Handles the loss of a connection, or a failed attempt to make one.
    pub(super) fn link_down(&mut self, key: ReplicaKey, reason: String) -> Option<Effect> {
        let replica = self.by_key.get(&key)?;
        let was_in_engine = replica.is_in_engine();
        if was_in_engine {
            let model = &replica.target.replica.spec.model.model;
            tracing::warn!(replica.id = %replica.id(), model.name = %model, reason, "lost the connection to a worker");
        }
        self.end_connection(key, Some(reason));
        was_in_engine.then_some(Effect::ReplicaLost(key))
    }

    /// Notes why a batch failed on a replica.
    pub(super) fn batch_failed(&mut self, key: ReplicaKey, failure: &Arc<BatchFailure>) {
        if let Some(replica) = self.by_key.get_mut(&key) {
            replica.last_failure = Some(Arc::clone(failure));
        }
    }

    /// Handles the engine's report that it sends no work to a replica on which batches failed. Returns the replica's model.
    pub(super) fn ejected(&mut self, key: ReplicaKey, failures: u32) -> Option<ModelKey> {
        let replica = self.by_key.get_mut(&key)?;
        let reason = replica.last_failure.as_ref().map(ToString::to_string);
        let reason = reason.unwrap_or_default();
        let spec = &replica.target.replica.spec;
        tracing::warn!(
            replica.id = %replica.id(), model.name = %spec.model.model, device = %spec.device, failures, reason,
            "ejected a replica whose batches fail"
        );
        if replica.state == LinkState::Serving {
            replica.state = LinkState::Ejected { reason };
            self.touched.insert(replica.id(), replica.model);
        }
        Some(replica.model)
    }

    /// Handles the engine's report that a replica that was ejected takes work again.
    pub(super) fn restored(&mut self, key: ReplicaKey) {
        let Some(replica) = self.by_key.get_mut(&key) else {
            return;
        };
        let model = &replica.target.replica.spec.model.model;
        tracing::info!(replica.id = %replica.id(), model.name = %model, "a replica that was ejected computes batches again");
        if matches!(replica.state, LinkState::Ejected { .. }) {
            replica.state = LinkState::Serving;
            self.touched.insert(replica.id(), replica.model);
        }
    }

    /// Handles the engine's report that a draining replica holds no batch any more.
    pub(super) fn drained(&mut self, key: ReplicaKey) {
        self.end_connection(key, Some("the worker is draining".to_owned()));
    }

    /// Hands a batch to the link. If the link has just broken, or was closed, the batch is lost: the engine will learn of it and
    /// dispatch the requests again.
    pub(super) fn send(&self, key: ReplicaKey, batch: OutgoingBatch) {
        let replica = self.by_key.get(&key);
        if let Some(batches) = replica.and_then(|replica| replica.batches.as_ref()) {
            let _ = batches.send(batch);
        }
    }

    /// Counts a batch that a replica has computed.
    pub(super) fn count_batch(&mut self, key: ReplicaKey, rows: u32, compute: Duration) {
        let Some(replica) = self.by_key.get_mut(&key) else {
            return;
        };
        if let Some(service) = &replica.service {
            let alone = service.batch_time(rows.clamp(1, service.max_rows()));
            replica.work.add_batch(rows, compute, alone);
        }
    }

    /// Returns the work of the replicas that shall be served.
    pub(super) fn work(&self) -> BTreeMap<ReplicaId, ComputedWork> {
        let wanted = self.wanted.iter();
        wanted
            .map(|(id, key)| (*id, self.by_key[key].work))
            .collect()
    }

    /// Returns the numbers, identities and devices of all replicas.
    pub(super) fn identities(&self) -> impl Iterator<Item = (ReplicaNumber, ReplicaId, &DeviceId)> {
        let replicas = self.by_key.iter();
        replicas.map(|(key, r)| (ReplicaNumber(key.0), r.id(), &r.target.replica.spec.device))
    }

    /// Returns the replicas whose states may have changed since the last call: their links, and the models that they serve.
    pub(super) fn take_changes(&mut self) -> (Vec<LinkChange>, BTreeSet<ModelKey>) {
        let touched = std::mem::take(&mut self.touched);
        let models = touched.values().copied().collect();
        let state = |id: &ReplicaId| Some(self.by_key[self.wanted.get(id)?].state.clone());
        let links = touched.keys().map(|id| (*id, state(id))).collect();
        (links, models)
    }

    /// Returns two flags: a replica of the model takes batches, and a replica of the model is being connected to.
    pub(super) fn readiness(&self, model: ModelKey) -> (bool, bool) {
        let of_model = || {
            let keys = self.by_model.get(&model).into_iter().flatten();
            keys.map(|key| &self.by_key[key])
        };
        let ready = of_model().any(|replica| replica.state == LinkState::Serving);
        let loading =
            of_model().any(|replica| matches!(replica.state, LinkState::Connecting { .. }));
        (ready, loading)
    }
}

/// Returns true if both describe the same worker with the same parameters. Draining, duty cycle, profile and capacity may differ,
/// but a replica that has begun to drain is not the one that shall serve again.
fn is_same_worker(now: &Target, before: &Target) -> bool {
    let (one, other) = (&now.replica.spec, &before.replica.spec);
    let draining = |target: &Target| target.replica.phase == ReplicaPhase::Draining;
    one.model == other.model
        && now.address == before.address
        && one.batch_size == other.batch_size
        && one.compute_share == other.compute_share
        && (draining(now) || !draining(before))
}
