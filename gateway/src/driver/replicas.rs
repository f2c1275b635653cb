//! The replicas of the target: their links, the states of these, and the events for the engine that follow.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use packhorse_cluster::{Capacity, DeviceId, ModelId, ReplicaId};
use packhorse_contention::{Interference, ServiceTimes};
use packhorse_serving::{DeviceKey, Event, ModelKey, ReplicaKey, ReplicaParameters};
use packhorse_wire::WorkerIdentity;
use tokio::sync::mpsc;

use super::{
    batch_failure::BatchFailure,
    catalog::ServedModel,
    computed_work::ComputedWork,
    target::{LinkState, Target, TargetReplica},
};
use crate::workers::{Endpoint, OutgoingBatch, WorkerLink};

/// A replica of the target, or one that still answers its last batches.
#[derive(Debug)]
struct LinkedReplica {
    id: ReplicaId,
    target: TargetReplica,
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
    /// False once the target no longer contains the replica. Such a replica answers its last batches and is removed.
    wanted: bool,
}

impl LinkedReplica {
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
    next_key: u32,
    next_device: u32,
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
    /// Makes the replicas those of the target; `models` are its models.
    pub(super) fn set_target(
        &mut self,
        target: &Target,
        models: &BTreeMap<ModelId, Arc<ServedModel>>,
        links: &impl OpenLink,
    ) -> Vec<Effect> {
        let mut effects = Vec::new();
        let wanted = |replica: &LinkedReplica| {
            target
                .replicas
                .get(&replica.id)
                .filter(|t| models.contains_key(&t.model))
        };
        let keys: Vec<ReplicaKey> = self
            .by_key
            .iter()
            .filter(|(_, r)| r.wanted)
            .map(|(key, _)| *key)
            .collect();
        for key in keys {
            let replica = &self.by_key[&key];
            match wanted(replica) {
                Some(t)
                    if models[&t.model].key == replica.model
                        && is_same_worker(t, &replica.target) =>
                {
                    let starts_to_drain = t.draining && !replica.target.draining;
                    effects.extend(self.update(key, t));
                    if starts_to_drain {
                        effects.extend(self.drain(key));
                    }
                }
                // Another worker has the identity: the batches of the former one are lost.
                Some(_) => effects.extend(self.remove(key)),
                None => {
                    if let Some(replica) = self.by_key.get_mut(&key) {
                        replica.wanted = false;
                    }
                    effects.extend(self.drain(key));
                }
            }
        }
        for (id, t) in &target.replicas {
            let known = self
                .by_key
                .values()
                .any(|replica| replica.wanted && replica.id == *id);
            if let Some(model) = models.get(&t.model).filter(|_| !known) {
                self.add(*id, t.clone(), model, links);
            }
        }
        effects
    }

    fn add(
        &mut self,
        id: ReplicaId,
        target: TargetReplica,
        model: &ServedModel,
        links: &impl OpenLink,
    ) {
        let key = ReplicaKey(self.next_key);
        self.next_key += 1;
        let identity = WorkerIdentity {
            replica: id,
            artifact: model.spec.program.artifact,
            batch_size: target.batch_size,
        };
        let drained = target.draining;
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
        let device = self.device_key(&target.device);
        let replica = LinkedReplica {
            id,
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
    }

    /// Returns the engine's key of a device, which is valid as long as there are replicas on the device.
    fn device_key(&mut self, device: &DeviceId) -> DeviceKey {
        let mut replicas = self.by_key.values();
        if let Some(neighbour) = replicas.find(|replica| replica.target.device == *device) {
            return neighbour.device;
        }
        let key = DeviceKey(self.next_device);
        self.next_device += 1;
        key
    }

    /// Updates the profile, time sharing and capacity of a replica. Time sharing changes with the next batch. A new profile
    /// counts from the next connection on: it is not worth breaking the present one, for the engine's observations of the replica
    /// are nearer to the truth than either profile. A smaller capacity lowers the batch limit at once.
    fn update(&mut self, key: ReplicaKey, target: &TargetReplica) -> Vec<Effect> {
        let Some(replica) = self.by_key.get_mut(&key) else {
            return Vec::new();
        };
        replica.target.profile = Arc::clone(&target.profile);
        let mut effects = Vec::new();
        let time_shared = target.time_shared;
        if std::mem::replace(&mut replica.target.time_shared, time_shared) != time_shared
            && replica.is_in_engine()
        {
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

    /// Handles a worker's lack of memory for a batch of so many rows. Until the worker has found the largest size that fits, it
    /// gets at most the next smaller one of the sizes that it tries: 1, 2, 4 and so on.
    pub(super) fn out_of_memory(&mut self, key: ReplicaKey, rows: u32) -> Option<Effect> {
        self.lower_batch_limit(key, rows.next_power_of_two() / 2)
    }

    fn lower_batch_limit(&self, key: ReplicaKey, rows: u32) -> Option<Effect> {
        let replica = self.by_key.get(&key)?;
        let rows = rows.max(1);
        let event = Event::BatchLimitLowered { replica: key, rows };
        replica.is_in_engine().then_some(Effect::Event(event))
    }

    /// Gives a replica no further batches, for good: the target drains it, or no longer contains it.
    fn drain(&mut self, key: ReplicaKey) -> Option<Effect> {
        let replica = self.by_key.get_mut(&key)?;
        replica.target.draining = true;
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
        Some(Effect::Event(Event::ReplicaDraining { replica: key }))
    }

    /// Ends a replica's connection, after which the engine no longer has the replica: removes it if the target no longer contains
    /// it, marks it as drained if the target drains it, and otherwise waits for the next connection.
    fn end_connection(&mut self, key: ReplicaKey, reason: Option<String>) {
        let Some(replica) = self.by_key.get_mut(&key) else {
            return;
        };
        // The worker sees the end of the channel.
        replica.batches = None;
        if !replica.wanted {
            self.by_key.remove(&key);
        } else if replica.target.draining {
            replica.state = LinkState::Drained;
            replica.link = None;
        } else {
            replica.state = LinkState::Connecting { reason };
        }
    }

    /// Removes a replica at once.
    fn remove(&mut self, key: ReplicaKey) -> Option<Effect> {
        let replica = self.by_key.remove(&key)?;
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
        tracing::info!(replica.id = %replica.id, model.name = %replica.target.model, "connected to a worker");
        replica.state = LinkState::Serving;
        replica.batches = Some(batches);
        let planned = replica.target.batch_size;
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
            replica.target.compute_share,
            Interference::default(),
        );
        replica.service = Some(service.clone());
        let parameters = ReplicaParameters {
            model: replica.model,
            batch_size,
            credits: capacity.in_flight.max(1),
            service,
            device: replica.device,
            time_shared: replica.target.time_shared,
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
            tracing::warn!(replica.id = %replica.id, model.name = %replica.target.model, reason, "lost the connection to a worker");
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
    pub(super) fn ejected(&mut self, key: ReplicaKey, failures: u32) -> Option<ModelId> {
        let replica = self.by_key.get_mut(&key)?;
        let reason = replica.last_failure.as_ref().map(ToString::to_string);
        let reason = reason.unwrap_or_default();
        tracing::warn!(
            replica.id = %replica.id, model.name = %replica.target.model, device = %replica.target.device, failures, reason,
            "ejected a replica whose batches fail"
        );
        if replica.state == LinkState::Serving {
            replica.state = LinkState::Ejected { reason };
        }
        Some(replica.target.model.clone())
    }

    /// Handles the engine's report that a replica that was ejected takes work again.
    pub(super) fn restored(&mut self, key: ReplicaKey) {
        let Some(replica) = self.by_key.get_mut(&key) else {
            return;
        };
        tracing::info!(replica.id = %replica.id, model.name = %replica.target.model, "a replica that was ejected computes batches again");
        if matches!(replica.state, LinkState::Ejected { .. }) {
            replica.state = LinkState::Serving;
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

    /// Returns the work of the target's replicas.
    pub(super) fn work(&self) -> BTreeMap<ReplicaId, ComputedWork> {
        let wanted = self.by_key.values().filter(|replica| replica.wanted);
        wanted.map(|replica| (replica.id, replica.work)).collect()
    }

    /// Returns the link states of the target's replicas.
    pub(super) fn states(&self) -> BTreeMap<ReplicaId, LinkState> {
        let wanted = self.by_key.values().filter(|replica| replica.wanted);
        wanted
            .map(|replica| (replica.id, replica.state.clone()))
            .collect()
    }

    /// Returns two flags: a replica of the model takes batches, and a replica of the model is being connected to.
    pub(super) fn readiness(&self, model: ModelKey) -> (bool, bool) {
        let of_model = || {
            self.by_key
                .values()
                .filter(|replica| replica.model == model)
        };
        let ready = of_model().any(|replica| replica.state == LinkState::Serving);
        let loading =
            of_model().any(|replica| matches!(replica.state, LinkState::Connecting { .. }));
        (ready, loading)
    }
}

/// Returns true if both describe the same worker with the same parameters. Draining, time sharing, profile and capacity may
/// differ, but a replica that has begun to drain is not the one that shall serve again.
fn is_same_worker(now: &TargetReplica, before: &TargetReplica) -> bool {
    let TargetReplica {
        model,
        address,
        batch_size,
        capacity: _,
        // The device of one worker never changes.
        device: _,
        compute_share,
        time_shared: _,
        profile: _,
        draining,
    } = now;
    *model == before.model
        && *address == before.address
        && *batch_size == before.batch_size
        && *compute_share == before.compute_share
        && (*draining || !before.draining)
}
