//! The links of the data plane: to every replica that shall be served one, with its state. They stand between the control plane, which
//! says what to serve and is told the states, and the engine, which is told which replicas take batches. They do no I/O: their owner
//! makes the connections, and tells what becomes of them.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Debug,
    sync::Arc,
    time::Duration,
};

use packhorse_cluster::{Capacity, DeviceId, PoolPlace, ReplicaId, ReplicaPhase, Residency};
use packhorse_contention::{ComputeDemand, Interference, ServiceTimes};
use packhorse_control::{ComputedWork, LinkState, Target};
use packhorse_serving::{
    DeviceKey, DeviceSharing, Event, ModelKey, PoolMember, ReplicaKey, ReplicaParameters,
};

/// A replica that shall be served, or one that still answers its last batches.
#[derive(Debug)]
struct LinkedReplica<C: Connect> {
    target: Target,
    device: DeviceKey,
    model: ModelKey,
    /// The most rows of one request.
    rows_limit: u32,
    /// The link; `None` once the replica is drained.
    link: Option<C::Link>,
    /// The way for batches to the worker; present while the engine has the replica.
    batches: Option<C::Batches>,
    state: LinkState,
    /// The expected compute times of its batches; present since the first connection.
    service: Option<ServiceTimes>,
    work: ComputedWork,
    /// The place of its weights, as its worker said last; `None` if it is in no pool.
    place: Option<PoolPlace>,
    /// The number of orders about its weights on this connection.
    orders: u32,
    /// The reason why a batch failed here last.
    last_failure: Option<String>,
    /// False once the replica shall no longer be served. Such a replica answers its last batches and is removed.
    wanted: bool,
}

impl<C: Connect> LinkedReplica<C> {
    fn id(&self) -> ReplicaId {
        self.target.replica.id
    }

    fn is_draining(&self) -> bool {
        self.target.replica.phase == ReplicaPhase::Draining
    }

    fn is_time_shared(&self) -> bool {
        self.target.replica.spec.duty_cycle.is_some()
    }

    /// Returns the way in which it has its device, with batches of at most `rows` rows, if it has this place in a pool.
    fn sharing(&self, rows: u32, place: Option<PoolPlace>) -> DeviceSharing {
        let Some(place) = place else {
            return DeviceSharing::by_turns(self.is_time_shared());
        };
        let part = |rows| {
            let demand = ComputeDemand::new(&self.target.profile, rows, None);
            demand.sm_utilization.get() / 100.0
        };
        DeviceSharing::Pool(PoolMember {
            weights: place.weights.as_u64(),
            memory: place.memory.as_u64(),
            load: place.load,
            resident: place.residency == Residency::Resident,
            on_disk: place.residency == Residency::Cold,
            utilization: (1..=rows).map(part).collect(),
        })
    }

    fn is_in_engine(&self) -> bool {
        matches!(
            self.state,
            LinkState::Serving | LinkState::Ejected { .. } | LinkState::Draining
        )
    }
}

/// The effect that a change of a replica has on the owner of the engine.
#[derive(Debug, PartialEq)]
pub enum Effect {
    /// The engine handles this event.
    Event(Event),
    /// The replica is lost: its batches are void, and then the engine handles [`Event::ReplicaLost`].
    ReplicaLost(ReplicaKey),
}

/// The change of a link's state; none if the data plane no longer has the replica.
pub type LinkChange = (ReplicaId, Option<LinkState>);

/// The way in which connections to workers are made.
pub trait Connect {
    /// A connection that is made, and made again after a loss, until this is dropped.
    type Link: Debug;
    /// The way for batches to a worker that is connected.
    type Batches: Debug;

    /// Begins to connect to the worker of a target. What becomes of the connection is told under this key.
    fn connect(&self, key: ReplicaKey, target: &Target) -> Self::Link;
}

/// The links to all replicas.
#[derive(Debug)]
pub struct Links<C: Connect> {
    by_key: BTreeMap<ReplicaKey, LinkedReplica<C>>,
    /// The replicas that shall be served.
    wanted: BTreeMap<ReplicaId, ReplicaKey>,
    by_model: BTreeMap<ModelKey, BTreeSet<ReplicaKey>>,
    /// The engine's keys of the devices with replicas, and the numbers of these.
    devices: BTreeMap<DeviceId, (DeviceKey, usize)>,
    next_key: u32,
    next_device: u32,
    /// The replicas whose states may have changed since they were taken, with their models.
    touched: BTreeMap<ReplicaId, ModelKey>,
    /// The interference on the devices.
    interference: Interference,
}

impl<C: Connect> Default for Links<C> {
    fn default() -> Self {
        Self::numbered_from(0)
    }
}

impl<C: Connect> Links<C> {
    /// Creates links whose keys of replicas and devices begin here. The keys of links that are exchanged must never meet.
    pub fn numbered_from(first: u32) -> Self {
        Self {
            by_key: BTreeMap::new(),
            wanted: BTreeMap::new(),
            by_model: BTreeMap::new(),
            devices: BTreeMap::new(),
            next_key: first,
            next_device: first,
            touched: BTreeMap::new(),
            interference: Interference::default(),
        }
    }

    /// Has replicas be expected to slow each other so.
    #[must_use]
    pub fn with_interference(mut self, interference: Interference) -> Self {
        self.interference = interference;
        self
    }

    /// Returns a number above all keys of replicas and devices so far, for [`Links::numbered_from`].
    pub fn next_number(&self) -> u32 {
        self.next_key.max(self.next_device)
    }

    /// Numbers devices in this order, whether there are replicas on them or not. Others follow in the order of their first replicas.
    #[must_use]
    pub fn with_devices(mut self, devices: impl IntoIterator<Item = DeviceId>) -> Self {
        for device in devices {
            self.enter_device(&device);
        }
        self
    }

    /// Takes out the links to all replicas of these models. Other models must have no replica on one of their devices.
    #[must_use]
    pub fn split_off(&mut self, models: &BTreeSet<ModelKey>) -> Self {
        let mut part = Self::default();
        let by_key = self
            .by_key
            .extract_if(.., |_, replica| models.contains(&replica.model));
        part.by_key = by_key.collect();
        let replicas = &part.by_key;
        part.wanted = self
            .wanted
            .extract_if(.., |_, key| replicas.contains_key(key))
            .collect();
        let by_model = self
            .by_model
            .extract_if(.., |model, _| models.contains(model));
        part.by_model = by_model.collect();
        let of_replicas: BTreeSet<DeviceKey> =
            part.by_key.values().map(|replica| replica.device).collect();
        let devices = self
            .devices
            .extract_if(.., |_, (key, _)| of_replicas.contains(key));
        part.devices = devices.collect();
        part.touched = self
            .touched
            .extract_if(.., |_, model| models.contains(model))
            .collect();
        debug_assert!(
            !self
                .by_key
                .values()
                .any(|replica| of_replicas.contains(&replica.device)),
            "{models:?} share devices with others"
        );
        part
    }

    /// Takes over the links of others.
    pub fn absorb(&mut self, mut others: Self) {
        self.by_key.append(&mut others.by_key);
        self.wanted.append(&mut others.wanted);
        self.by_model.append(&mut others.by_model);
        self.devices.append(&mut others.devices);
        self.touched.append(&mut others.touched);
    }

    /// Returns the model and the device of every replica.
    pub fn places(&self) -> impl Iterator<Item = (ModelKey, &DeviceId)> {
        let replicas = self.by_key.values();
        replicas.map(|replica| (replica.model, &replica.target.replica.spec.device))
    }

    /// Adds a replica of this model, or changes it.
    pub fn serve(&mut self, target: Target, model: ModelKey, connect: &C) -> Vec<Effect> {
        let id = target.replica.id;
        let Some(&key) = self.wanted.get(&id) else {
            self.add(target, model, connect);
            return Vec::new();
        };
        let replica = &self.by_key[&key];
        if replica.model == model && is_same_worker(&target, &replica.target) {
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
        self.add(target, model, connect);
        Vec::from_iter(lost)
    }

    /// Ends a replica that shall no longer be served, once it has answered what it has.
    pub fn end(&mut self, id: ReplicaId) -> Option<Effect> {
        let key = self.wanted.remove(&id)?;
        let replica = self.by_key.get_mut(&key)?;
        replica.wanted = false;
        self.touched.insert(id, replica.model);
        self.drain(key)
    }

    /// Ends the replicas of a model that was removed.
    pub fn end_model(&mut self, model: ModelKey) -> Vec<Effect> {
        let keys = self.by_model.get(&model).into_iter().flatten();
        let ids: Vec<ReplicaId> = keys.map(|key| self.by_key[key].id()).collect();
        ids.into_iter().filter_map(|id| self.end(id)).collect()
    }

    fn add(&mut self, target: Target, model: ModelKey, connect: &C) {
        let key = ReplicaKey(self.next_key);
        self.next_key += 1;
        let id = target.replica.id;
        let drained = target.replica.phase == ReplicaPhase::Draining;
        let link = (!drained).then(|| connect.connect(key, &target));
        // A replica that is draining when it is added holds no batch of this data plane.
        let state = if drained {
            LinkState::Drained
        } else {
            LinkState::Connecting { reason: None }
        };
        let device = self.enter_device(&target.replica.spec.device);
        let replica = LinkedReplica {
            rows_limit: target.replica.spec.model.rows_limit(),
            target,
            device,
            model,
            link,
            batches: None,
            state,
            service: None,
            work: ComputedWork::default(),
            place: None,
            orders: 0,
            last_failure: None,
            wanted: true,
        };
        self.by_key.insert(key, replica);
        self.wanted.insert(id, key);
        self.by_model.entry(model).or_default().insert(key);
        self.touched.insert(id, model);
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
    fn take(&mut self, key: ReplicaKey) -> Option<LinkedReplica<C>> {
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

    /// Handles the worker's readiness for batches, whose inputs lie in memory that it shares with the gateway if `shares_memory` is true. With a place
    /// it is in the pool of its device.
    pub fn link_up(
        &mut self,
        key: ReplicaKey,
        batches: C::Batches,
        shares_memory: bool,
        place: Option<PoolPlace>,
    ) -> Option<Effect> {
        let replica = self.by_key.get_mut(&key)?;
        if !matches!(replica.state, LinkState::Connecting { .. }) {
            return None;
        }
        let spec = &replica.target.replica.spec;
        let (planned, compute_share) = (spec.batch_size, spec.compute_share);
        replica.state = LinkState::Serving;
        replica.batches = Some(batches);
        replica.place = place;
        replica.orders = 0;
        self.touched
            .insert(replica.target.replica.id, replica.model);
        let capacity = replica.target.capacity.unwrap_or(Capacity {
            batch_size: planned,
            in_flight: ReplicaParameters::LEAST_CREDITS,
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
            self.interference,
        );
        replica.service = Some(service.clone());
        let parameters = ReplicaParameters {
            model: replica.model,
            batch_size,
            in_flight: capacity.in_flight.max(1),
            service,
            device: replica.device,
            sharing: replica.sharing(rows_limit, place),
            shares_memory,
        };
        Some(Effect::Event(Event::ReplicaReady {
            replica: key,
            parameters,
        }))
    }

    /// Returns the way to send an order about the weights of a replica, which is counted.
    pub fn order(&mut self, key: ReplicaKey) -> Option<&mut C::Batches> {
        let replica = self.by_key.get_mut(&key)?;
        let batches = replica.batches.as_mut()?;
        replica.orders = replica.orders.wrapping_add(1);
        Some(batches)
    }

    /// Handles a worker's report on the place of its weights, after it has carried out so many orders of this connection. One on fewer than were sent
    /// says nothing about the weights.
    pub fn weights_reported(
        &mut self,
        key: ReplicaKey,
        place: PoolPlace,
        orders: u32,
    ) -> Vec<Effect> {
        let Some(replica) = { self.by_key.get_mut(&key) }.filter(|r| r.is_in_engine()) else {
            return Vec::new();
        };
        let mut events = Vec::new();
        let before = replica.place.replace(place);
        if before.map(|before| before.memory) != Some(place.memory) {
            events.push(Event::PoolMemoryChanged {
                replica: key,
                memory: place.memory.as_u64(),
            });
        }
        let is_on_disk = |place: PoolPlace| place.residency == Residency::Cold;
        let stored = |place: PoolPlace| (is_on_disk(place), place.load);
        if before.map(stored) != Some(stored(place)) {
            events.push(Event::WeightsStored {
                replica: key,
                on_disk: is_on_disk(place),
                load: place.load,
            });
        }
        if orders == replica.orders {
            events.push(match place.residency {
                Residency::Resident => Event::WeightsLoaded { replica: key },
                Residency::Warm | Residency::Cold => Event::WeightsUnloaded { replica: key },
            });
        }
        events.into_iter().map(Effect::Event).collect()
    }

    /// Handles a worker's message that it is draining.
    pub fn link_draining(&mut self, key: ReplicaKey) -> Option<Effect> {
        self.stop_batches(key)
    }

    /// Handles the loss of a connection, or a failed attempt to make one.
    pub fn link_down(&mut self, key: ReplicaKey, reason: String) -> Option<Effect> {
        let replica = self.by_key.get_mut(&key)?;
        let was_in_engine = replica.is_in_engine();
        if was_in_engine {
            replica.last_failure = Some(reason.clone());
        }
        self.end_connection(key, Some(reason));
        was_in_engine.then_some(Effect::ReplicaLost(key))
    }

    /// Notes why a batch failed on a replica.
    pub fn batch_failed(&mut self, key: ReplicaKey, reason: String) {
        if let Some(replica) = self.by_key.get_mut(&key) {
            replica.last_failure = Some(reason);
        }
    }

    /// Handles the engine's report that it sends no work to a replica on which batches failed. Returns the reason of the last failure.
    pub fn ejected(&mut self, key: ReplicaKey) -> String {
        let Some(replica) = self.by_key.get_mut(&key) else {
            return String::new();
        };
        let reason = replica.last_failure.clone().unwrap_or_default();
        if replica.state == LinkState::Serving {
            let reason = reason.clone();
            replica.state = LinkState::Ejected { reason };
            self.touched.insert(replica.id(), replica.model);
        }
        reason
    }

    /// Handles the engine's report that a replica that was ejected takes work again.
    pub fn restored(&mut self, key: ReplicaKey) {
        let Some(replica) = self.by_key.get_mut(&key) else {
            return;
        };
        if matches!(replica.state, LinkState::Ejected { .. }) {
            replica.state = LinkState::Serving;
            self.touched.insert(replica.id(), replica.model);
        }
    }

    /// Handles the engine's report that a draining replica holds no batch any more.
    pub fn drained(&mut self, key: ReplicaKey) {
        self.end_connection(key, Some("the worker is draining".to_owned()));
    }

    /// Returns the way for batches to a replica. `None` if its connection has just broken, or was closed: a batch for it is lost, and the
    /// engine, once it learns of it, dispatches the requests again.
    pub fn batches(&self, key: ReplicaKey) -> Option<&C::Batches> {
        self.by_key.get(&key)?.batches.as_ref()
    }

    /// Returns the same to send a batch.
    pub fn batches_mut(&mut self, key: ReplicaKey) -> Option<&mut C::Batches> {
        self.by_key.get_mut(&key)?.batches.as_mut()
    }

    /// Returns a replica as it shall be served.
    pub fn target(&self, key: ReplicaKey) -> Option<&Target> {
        Some(&self.by_key.get(&key)?.target)
    }

    /// Returns the model of a replica.
    pub fn model(&self, key: ReplicaKey) -> Option<ModelKey> {
        Some(self.by_key.get(&key)?.model)
    }

    /// Counts a batch that a replica has computed.
    pub fn count_batch(&mut self, key: ReplicaKey, rows: u32, compute: Duration) {
        let Some(replica) = self.by_key.get_mut(&key) else {
            return;
        };
        if let Some(service) = &replica.service {
            let alone = service.batch_time(rows.clamp(1, service.max_rows()));
            replica.work.add_batch(rows, compute, alone);
        }
    }

    /// Returns the work of the replicas that shall be served.
    pub fn work(&self) -> BTreeMap<ReplicaId, ComputedWork> {
        let wanted = self.wanted.iter();
        wanted
            .map(|(id, key)| (*id, self.by_key[key].work))
            .collect()
    }

    /// Returns the keys, identities and devices of all replicas.
    pub fn identities(&self) -> impl Iterator<Item = (ReplicaKey, ReplicaId, &DeviceId)> {
        let replicas = self.by_key.iter();
        replicas.map(|(key, r)| (*key, r.id(), &r.target.replica.spec.device))
    }

    /// Returns the state of a replica's link; `None` if the replica shall not be served.
    pub fn state(&self, id: ReplicaId) -> Option<&LinkState> {
        Some(&self.by_key[self.wanted.get(&id)?].state)
    }

    /// Returns true if states may have changed since [`Links::take_changes`] was called.
    pub fn have_changes(&self) -> bool {
        !self.touched.is_empty()
    }

    /// Returns the replicas whose states may have changed since the last call: their links, and the models that they serve.
    pub fn take_changes(&mut self) -> (Vec<LinkChange>, BTreeSet<ModelKey>) {
        let touched = std::mem::take(&mut self.touched);
        let models = touched.values().copied().collect();
        let links = touched.keys().map(|id| (*id, self.state(*id).cloned()));
        let links = links.collect();
        (links, models)
    }

    /// Returns two flags: a replica of the model takes batches, and a replica of the model is being connected to.
    pub fn readiness(&self, model: ModelKey) -> (bool, bool) {
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

#[cfg(test)]
mod tests;
