//! The replicas of the target: which there are, how their links stand, what the engine knows of them.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use packhorse_cluster::{Capacity, DeviceId, ModelId, ReplicaId};
use packhorse_contention::{Interference, ServiceTimes};
use packhorse_serving::{DeviceKey, Event, ModelKey, ReplicaKey, ReplicaSpec};
use packhorse_wire::WorkerIdentity;
use tokio::sync::mpsc;

use super::{LinkState, Target, TargetReplica, Work, catalog::ServedModel};
use crate::workers::{Endpoint, Link, OutgoingBatch};

/// A replica that the data plane knows.
#[derive(Debug)]
pub(super) struct Replica {
    id: ReplicaId,
    target: TargetReplica,
    device: DeviceKey,
    pub(super) model: ModelKey,
    /// The most rows of one request.
    rows_limit: u32,
    /// Gone once it is drained.
    link: Option<Link>,
    /// There while the engine knows the replica.
    batches: Option<mpsc::UnboundedSender<OutgoingBatch>>,
    state: LinkState,
    /// How long its batches should take; there since it was connected first.
    service: Option<ServiceTimes>,
    work: Work,
    /// Whether the target still has it. One that it has not answers what it has and goes.
    wanted: bool,
}

impl Replica {
    fn is_in_engine(&self) -> bool {
        matches!(self.state, LinkState::Serving | LinkState::Draining)
    }
}

/// Something that the driver must tell the engine, because of what happened to a replica.
#[derive(Debug)]
pub(super) enum Consequence {
    /// Tell the engine.
    Tell(Event),
    /// Whatever batches it had are void; then tell the engine.
    Void(ReplicaKey),
}

/// All of them.
#[derive(Debug, Default)]
pub(super) struct Replicas {
    by_key: BTreeMap<ReplicaKey, Replica>,
    next_key: u32,
    next_device: u32,
}

/// Opens the link of a replica under this key.
pub(super) trait OpenLink {
    fn open(&self, key: ReplicaKey, endpoint: Endpoint) -> Link;
}

impl<F: Fn(ReplicaKey, Endpoint) -> Link> OpenLink for F {
    fn open(&self, key: ReplicaKey, endpoint: Endpoint) -> Link {
        self(key, endpoint)
    }
}

impl Replicas {
    /// Makes the replicas those of the target; `models` are its models.
    pub(super) fn follow(
        &mut self,
        target: &Target,
        models: &BTreeMap<ModelId, Arc<ServedModel>>,
        links: &impl OpenLink,
    ) -> Vec<Consequence> {
        let mut consequences = Vec::new();
        let wanted = |replica: &Replica| {
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
                    consequences.extend(self.retarget(key, t));
                    if starts_to_drain {
                        consequences.extend(self.drain(key));
                    }
                }
                // Another worker under the same identity: what the former had is lost with it.
                Some(_) => consequences.extend(self.close(key)),
                None => consequences.extend(self.retire(key)),
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
        consequences
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
        // One that comes to us draining holds nothing of ours.
        let state = if drained {
            LinkState::Drained
        } else {
            LinkState::Connecting { reason: None }
        };
        let device = self.device_key(&target.device);
        let replica = Replica {
            id,
            target,
            device,
            model: model.key,
            rows_limit: model.spec.program.rows_limit(),
            link,
            batches: None,
            state,
            service: None,
            work: Work::default(),
            wanted: true,
        };
        self.by_key.insert(key, replica);
    }

    /// What the engine knows a device by, for as long as there are replicas on it.
    fn device_key(&mut self, device: &DeviceId) -> DeviceKey {
        let mut replicas = self.by_key.values();
        if let Some(neighbour) = replicas.find(|replica| replica.target.device == *device) {
            return neighbour.device;
        }
        let key = DeviceKey(self.next_device);
        self.next_device += 1;
        key
    }

    /// Takes turns from its next batch on, or not. A new profile counts from the next connection on: it is not worth breaking this
    /// one, for what the engine has observed of the replica is nearer to the truth than either profile. Its worker may have found
    /// memory for less than it has said before.
    fn retarget(&mut self, key: ReplicaKey, target: &TargetReplica) -> Option<Consequence> {
        let replica = self.by_key.get_mut(&key)?;
        replica.target.profile = Arc::clone(&target.profile);
        replica.target.takes_turns = target.takes_turns;
        let before = std::mem::replace(&mut replica.target.capacity, target.capacity);
        let rows = target.capacity?.batch_size;
        let less = before.is_some_and(|before| rows < before.batch_size);
        if less { self.fits(key, rows) } else { None }
    }

    /// Its worker had no memory for a batch of so many rows. Until it has found out what fits, it is given at most the next smaller of
    /// the sizes that it tries: 1, 2, 4 and so on.
    pub(super) fn lacked_memory(&mut self, key: ReplicaKey, rows: u32) -> Option<Consequence> {
        self.fits(key, rows.next_power_of_two() / 2)
    }

    fn fits(&self, key: ReplicaKey, rows: u32) -> Option<Consequence> {
        let replica = self.by_key.get(&key)?;
        let rows = rows.max(1);
        let event = Event::ReplicaFits { replica: key, rows };
        replica.is_in_engine().then_some(Consequence::Tell(event))
    }

    /// The device on which the replica takes turns with others, if it does.
    pub(super) fn takes_turns_on(&self, key: ReplicaKey) -> Option<&DeviceId> {
        let target = &self.by_key.get(&key)?.target;
        target.takes_turns.then_some(&target.device)
    }

    /// It shall get no further batches.
    fn drain(&mut self, key: ReplicaKey) -> Option<Consequence> {
        let replica = self.by_key.get_mut(&key)?;
        replica.target.draining = true;
        match replica.state {
            LinkState::Serving => {
                replica.state = LinkState::Draining;
                Some(Consequence::Tell(Event::ReplicaDraining { replica: key }))
            }
            LinkState::Connecting { .. } => {
                replica.state = LinkState::Drained;
                replica.link = None;
                None
            }
            LinkState::Draining | LinkState::Drained => None,
        }
    }

    /// The target has it no longer: it answers what it has, and goes.
    fn retire(&mut self, key: ReplicaKey) -> Option<Consequence> {
        let consequence = self.drain(key);
        let replica = self.by_key.get_mut(&key)?;
        replica.wanted = false;
        if !replica.is_in_engine() {
            self.by_key.remove(&key);
        }
        consequence
    }

    /// It goes at once.
    fn close(&mut self, key: ReplicaKey) -> Option<Consequence> {
        let replica = self.by_key.remove(&key)?;
        replica.is_in_engine().then_some(Consequence::Void(key))
    }

    /// What a link reported, other than the end of a batch.
    pub(super) fn link_up(
        &mut self,
        key: ReplicaKey,
        batches: mpsc::UnboundedSender<OutgoingBatch>,
    ) -> Option<Consequence> {
        let replica = self.by_key.get_mut(&key)?;
        if !matches!(replica.state, LinkState::Connecting { .. }) {
            return None;
        }
        tracing::info!(replica.id = %replica.id, model.name = %replica.target.model, "connected to worker");
        replica.state = LinkState::Serving;
        replica.batches = Some(batches);
        let planned = replica.target.batch_size;
        let capacity = replica.target.capacity.unwrap_or(Capacity {
            batch_size: planned,
            in_flight: ReplicaSpec::DEFAULT_CREDITS,
            multiprocessors: None,
        });
        // A request of more rows than batches are planned with is computed by itself, unless memory is known to be short.
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
        let spec = ReplicaSpec {
            model: replica.model,
            batch_size,
            credits: capacity.in_flight.max(1),
            service,
            device: replica.device,
        };
        Some(Consequence::Tell(Event::ReplicaUp { replica: key, spec }))
    }

    /// The worker wants no more batches.
    pub(super) fn link_draining(&mut self, key: ReplicaKey) -> Option<Consequence> {
        let replica = self.by_key.get_mut(&key)?;
        if replica.state != LinkState::Serving {
            return None;
        }
        replica.state = LinkState::Draining;
        Some(Consequence::Tell(Event::ReplicaDraining { replica: key }))
    }

    /// There is no connection.
    pub(super) fn link_down(&mut self, key: ReplicaKey, reason: String) -> Option<Consequence> {
        let replica = self.by_key.get_mut(&key)?;
        let was_in_engine = replica.is_in_engine();
        if was_in_engine {
            tracing::warn!(replica.id = %replica.id, model.name = %replica.target.model, reason, "lost the connection to a worker");
        }
        replica.batches = None;
        if !replica.wanted {
            self.by_key.remove(&key);
        } else if replica.target.draining {
            replica.state = LinkState::Drained;
            replica.link = None;
        } else {
            replica.state = LinkState::Connecting {
                reason: Some(reason),
            };
        }
        was_in_engine.then_some(Consequence::Void(key))
    }

    /// The engine has given it back: it holds nothing any more.
    pub(super) fn drained(&mut self, key: ReplicaKey) {
        let Some(replica) = self.by_key.get_mut(&key) else {
            return;
        };
        // The worker is told by the end of the channel.
        replica.batches = None;
        if !replica.wanted {
            self.by_key.remove(&key);
        } else if replica.target.draining {
            replica.state = LinkState::Drained;
            replica.link = None;
        } else {
            replica.state = LinkState::Connecting {
                reason: Some("the worker is draining".to_owned()),
            };
        }
    }

    /// Hands a batch to the link. If that has just broken, or was closed, the batch is lost: the engine has yet to be told, and
    /// will then dispatch its requests again.
    pub(super) fn send(&self, key: ReplicaKey, batch: OutgoingBatch) {
        let replica = self.by_key.get(&key);
        if let Some(batches) = replica.and_then(|replica| replica.batches.as_ref()) {
            let _ = batches.send(batch);
        }
    }

    /// A replica has computed a batch.
    pub(super) fn computed(&mut self, key: ReplicaKey, rows: u32, compute: Duration) {
        let Some(replica) = self.by_key.get_mut(&key) else {
            return;
        };
        if let Some(service) = &replica.service {
            let alone = service.batch_time(rows.clamp(1, service.max_rows()));
            replica.work.add(rows, compute, alone);
        }
    }

    /// What the replicas of the target have computed.
    pub(super) fn work(&self) -> BTreeMap<ReplicaId, Work> {
        let wanted = self.by_key.values().filter(|replica| replica.wanted);
        wanted.map(|replica| (replica.id, replica.work)).collect()
    }

    /// How the replicas of the target stand.
    pub(super) fn states(&self) -> BTreeMap<ReplicaId, LinkState> {
        let wanted = self.by_key.values().filter(|replica| replica.wanted);
        wanted
            .map(|replica| (replica.id, replica.state.clone()))
            .collect()
    }

    /// Whether a replica of the model takes batches, and whether one is about to.
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

/// Whether it is the same worker in the same role. Draining, turns, profile and capacity are matters of their own, but a replica that has begun
/// to drain is not the one that shall serve again.
fn is_same_worker(now: &TargetReplica, before: &TargetReplica) -> bool {
    let TargetReplica {
        model,
        address,
        batch_size,
        capacity: _,
        // Of one worker it is always the same.
        device: _,
        compute_share,
        takes_turns: _,
        profile: _,
        draining,
    } = now;
    *model == before.model
        && *address == before.address
        && *batch_size == before.batch_size
        && *compute_share == before.compute_share
        && (*draining || !before.draining)
}
