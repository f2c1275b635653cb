//! The engine's pools: which member of a device's pool computes next, and whose weights are copied to the device.

use std::{cmp::Reverse, mem, time::Duration};

use packhorse_cluster::{Priority, Time};

use super::Engine;
use crate::{
    Action, BatchKey, DeviceKey, ModelKey, PoolMember, ReplicaKey,
    device_pool::{DevicePool, Residency, Room, pools::ColdRank},
    discipline::{
        Decision, ModelView, PooledBatch, PooledChoice, choose_pooled, estimate_next, estimate_work,
    },
    queue::{QueuedRequest, Ticket},
    replica::Replica,
};

/// The most urgent members, and the most others, that are examined for one that computes next. Bounds a decision: with thirty to a hundred models on four to
/// six devices, 16 gave the same goodput within 0.2 points, and four up to 0.2 points less.
const MOST_EXAMINED: usize = 8;

/// The next step of a decision about a device.
enum NextStep {
    /// Something has changed: to decide again.
    Again,
    /// To end requests that cannot be answered in time any more, and to decide again.
    Hopeless(Vec<(ModelKey, Ticket)>),
    /// To wait for this time; `None` if only an event can change anything.
    Wait(Option<Time>),
}

/// The batches that a device could compute next, as far as they were looked at.
#[derive(Default)]
struct Comparison {
    best: Option<(PooledBatch, ReplicaKey)>,
    /// The first time at which one of them should be sent.
    first_sent: Option<Time>,
    /// The requests that cannot be answered in time any more.
    hopeless: Vec<(ReplicaKey, Ticket)>,
    /// The members that have nothing which would be in time.
    useless: Vec<ReplicaKey>,
}

impl Comparison {
    fn add(&mut self, replica: ReplicaKey, choice: &PooledChoice) {
        match *choice {
            PooledChoice::None => self.useless.push(replica),
            PooledChoice::Hopeless(ticket) => self.hopeless.push((replica, ticket)),
            PooledChoice::Batch(batch) => {
                self.note_sent(Some(batch.send_grown_at));
                if self.best.is_none_or(|(best, _)| batch.goes_before(&best)) {
                    self.best = Some((batch, replica));
                }
            }
        }
    }

    fn note_sent(&mut self, sent: Option<Time>) {
        self.first_sent = self.first_sent.into_iter().chain(sent).min();
    }
}

impl Engine {
    /// Adds a replica to its device's pool.
    pub(super) fn join_pool(
        &mut self,
        now: Time,
        replica: ReplicaKey,
        model: ModelKey,
        device: DeviceKey,
        member: &PoolMember,
    ) {
        let priority = self.models[&model].priority;
        let lowest = self.lowest_priority(device);
        let resident = self
            .pools
            .join(now, device, replica, (model, priority), member);
        if member.resident && !resident {
            let wanted = None;
            self.actions.push_back(Action::Unload { replica, wanted });
        }
        self.priorities_changed(now, device, lowest);
        self.tell_pools(now, model);
    }

    /// Returns the lowest priority of the members of a device's pool.
    pub(super) fn lowest_priority(&self, device: DeviceKey) -> Option<Priority> {
        self.pools.get(device)?.waiting().lowest()
    }

    /// Has the members of a device's pool note what waits for them, if there is a lower priority than before: others may have to give way to them now.
    pub(super) fn priorities_changed(
        &mut self,
        now: Time,
        device: DeviceKey,
        lowest: Option<Priority>,
    ) {
        if self.lowest_priority(device) < lowest
            && let Some(pool) = self.pools.get(device)
        {
            for model in pool.models() {
                self.tell_pools(now, model);
            }
        }
    }

    /// Has the pools of a model's devices take note that its queue has changed, if it has changed much: they consider models in the order of estimates.
    pub(super) fn pooled_queue_changed(&mut self, now: Time, key: ModelKey) {
        let Some(model) = { self.models.get_mut(&key) }.filter(|m| m.pool.has_members()) else {
            return;
        };
        let due = model.queue.earliest_deadline().map(|(due, _)| due);
        let seen = Some((due, model.queue.rows().checked_ilog2()));
        let is_new = mem::replace(&mut model.seen_by_pools, seen) != seen;
        if is_new || self.is_unattended(key) {
            self.tell_pools(now, key);
        }
    }

    /// Returns true if a device of a model's pools has nothing that would be in time, so that a further request may change that.
    fn is_unattended(&self, key: ModelKey) -> bool {
        let mut devices = self.models[&key].pool.members().map(|(_, device)| device);
        self.pools.has_unattended() && devices.any(|device| self.pools.is_unattended(device))
    }

    /// Notes in the pools of a model's devices that requests of it wait, or that none does, for the members that take work now.
    pub(super) fn tell_pools(&mut self, now: Time, key: ModelKey) {
        let model = &self.models[&key];
        let due = model.queue.earliest_deadline().map(|(due, _)| due);
        let most_rows = model.limits.map_or(1, |limits| limits.max_batch_rows);
        let rows = model.queue.rows().min(most_rows.into());
        for (replica, device) in model.pool.members() {
            let Some(pool) = self.pools.get_mut(device) else {
                continue;
            };
            let is_resident = pool.residency(replica) == Some(Residency::Resident);
            match (due, model.pool.get(replica)) {
                (Some(due), Some(on)) if is_resident => {
                    let next = estimate_next(now, on, due, rows);
                    let goes_before = pool.waiting().may_go_before(model.priority);
                    let work = goes_before
                        .then(|| estimate_work(now, on, due, model.queue.rows(), model.pool.len()));
                    pool.wait(replica, model.priority, next, work);
                    if !pool.is_attended() {
                        self.pools.schedule(device, Some(now));
                    }
                }
                _ => pool.wait_no_longer(replica),
            }
        }
        if self.note_residency(now, key) {
            self.load_cold(now);
        }
    }

    /// Notes if a device has the weights of a model. Returns true if requests of it wait, and no device has them or gets them that may compute the one that
    /// is due first.
    pub(super) fn note_residency(&mut self, now: Time, key: ModelKey) -> bool {
        let model = &self.models[&key];
        let (mut is_resident, mut is_coming, mut is_away) = (false, false, false);
        for (replica, device) in model.pool.members() {
            match { self.pools.get(device) }.and_then(|pool| pool.residency(replica)) {
                Some(Residency::Resident) => is_resident = true,
                Some(Residency::Loading) => is_coming = true,
                Some(Residency::Away) => is_away = true,
                None => {}
            }
        }
        let cold = is_away.then(|| self.cold_rank(now, key)).flatten();
        let model = self.model_mut(key);
        model.is_resident = is_resident;
        if is_resident || is_coming || !is_away {
            self.no_longer_asked_for(key);
        }
        self.set_cold(key, cold);
        cold.is_some()
    }

    /// Returns the place of a model among those that wait for weights; `None` if no request of it waits, or a device has its weights, or gets them, that may
    /// compute the one that is due first.
    fn cold_rank(&self, now: Time, key: ModelKey) -> Option<ColdRank> {
        let (view, first) = self.first_due(now, key)?;
        let mut members = self.models[&key].pool.members();
        let is_attended = members.any(|(replica, device)| {
            let place = { self.pools.get(device) }.and_then(|pool| pool.residency(replica));
            let is_there = place.is_some_and(|place| place != Residency::Away);
            is_there && view.may_take(first, replica)
        });
        (!is_attended).then_some(ColdRank {
            priority: Reverse(view.priority),
            due: first.request.deadline,
        })
    }

    /// Sets the place of a model among those that wait for weights; `None` if it waits for none.
    pub(super) fn set_cold(&mut self, key: ModelKey, rank: Option<ColdRank>) {
        let model = self.models.get_mut(&key);
        let model = model.expect("a model is kept while it has requests or replicas");
        self.pools.set_cold(key, &mut model.cold, rank);
    }

    /// Returns the waiting request of a model that is due first; if no member of a pool may take it, one that some may take.
    pub(super) fn first_due(
        &self,
        now: Time,
        key: ModelKey,
    ) -> Option<(ModelView<'_>, &QueuedRequest)> {
        let model = &self.models[&key];
        let (_, first) = model.queue.earliest_deadline()?;
        let view = self.view(now, model)?;
        let may_be_taken = |waiting: &&QueuedRequest| {
            let mut members = model.pool.members();
            members.any(|(replica, _)| view.may_take(waiting, replica))
        };
        let first = model.queue.get(first).into_iter();
        let others = model.queue.iter().take(MOST_EXAMINED);
        let found = first.chain(others).find(may_be_taken)?;
        Some((view, found))
    }

    /// Sends a device what it shall compute next, or sets the time at which to look at it again.
    ///
    /// A batch travels before it computes. So the device is first reserved for a member, as early as any of them might have to be sent, and then that
    /// member's batch is sent so that it is there when the device has room. Until then it grows, and no other batch that travels longer takes its
    /// place, for which the device would have to wait.
    pub(super) fn decide_for_device(&mut self, now: Time, device: DeviceKey) {
        self.pools.begin_decision(device);
        let mut wake = None;
        while let Some(pool) = self.pools.get(device).filter(|pool| pool.has_room(now)) {
            let room = pool.room(now);
            let next = match pool.reserved() {
                Some(replica) => self.send_reserved(now, device, replica, &room),
                None => self.choose_member(now, device, &room),
            };
            match next {
                NextStep::Again => {}
                NextStep::Hopeless(requests) => {
                    for (model, ticket) in requests {
                        // One that fell back may have taken its place.
                        if self.models[&model].queue.get(ticket).is_some() {
                            self.mark_overloaded(now, model);
                            self.expire(now, model, ticket);
                        }
                    }
                }
                NextStep::Wait(until) => {
                    wake = until;
                    break;
                }
            }
        }
        let cannot_send = { self.pools.get(device) }.is_some_and(|pool| !pool.has_room(now));
        if cannot_send {
            // Other devices may have what waits here for a batch that is late.
            self.release(now, device);
        }
        self.pools.end_decision(now, device, wake);
        self.load_cold(now);
    }

    /// Sends the batch of the member that the device is reserved for, if it is time.
    fn send_reserved(
        &mut self,
        now: Time,
        device: DeviceKey,
        replica: ReplicaKey,
        room: &Room,
    ) -> NextStep {
        let key = self.replicas[&replica];
        match self.choose_on(now, replica, room) {
            PooledChoice::Batch(batch) if batch.send_at > now => {
                let grown = Some(batch.send_grown_at).filter(|at| *at > now);
                NextStep::Wait(Some(grown.unwrap_or(batch.send_at)))
            }
            PooledChoice::Batch(batch) => {
                let mut compared = Comparison::default();
                let higher = self.gives_way_to(now, device, &batch, room, &mut compared);
                if !compared.hopeless.is_empty() {
                    return self.hopeless(&compared.hopeless);
                }
                if let Some((_, higher)) = higher {
                    // It has come since the device was reserved.
                    self.release(now, device);
                    let model = self.replicas[&higher];
                    self.pools.reserve(device, Some((higher, model)));
                    return NextStep::Again;
                }
                self.pools.reserve(device, None);
                let view = self.view(now, &self.models[&key]);
                let decision = view.map(|view| batch.dispatch(view, replica));
                if let Some(Decision::Dispatch { replica, tickets }) = decision {
                    self.dispatch(now, key, replica, &tickets);
                }
                NextStep::Again
            }
            PooledChoice::Hopeless(ticket) => self.hopeless(&[(replica, ticket)]),
            PooledChoice::None => {
                self.release(now, device);
                NextStep::Again
            }
        }
    }

    /// Has a device no longer be reserved for a member, whose model other devices may take.
    fn release(&mut self, now: Time, device: DeviceKey) {
        let reserved = self.pools.get(device).and_then(DevicePool::reserved);
        if let Some(replica) = reserved {
            self.pools.reserve(device, None);
            self.tell_pools(now, self.replicas[&replica]);
        }
    }

    /// Returns what a device with this room can do for a member.
    fn choose_on(&self, now: Time, replica: ReplicaKey, room: &Room) -> PooledChoice {
        let model = &self.models[&self.replicas[&replica]];
        let on = model.pool.get(replica).filter(|on| on.takes_pooled());
        match (self.view(now, model), on) {
            (Some(view), Some(on)) => choose_pooled(view, replica, on, room),
            _ => PooledChoice::None,
        }
    }

    /// Reserves the device for the member whose batch it shall compute next, if it is time.
    fn choose_member(&mut self, now: Time, device: DeviceKey, room: &Room) -> NextStep {
        let pool = self.pools.get_mut(device).expect("the caller has it");
        pool.become_urgent(room.from(1.0));
        let pool = self.pools.get(device).expect("just seen");
        let mut compared = Comparison::default();
        for replica in self.open(pool.waiting().urgent()) {
            compared.add(replica, &self.choose_on(now, replica, room));
        }
        if !compared.best.is_some_and(|(best, _)| best.is_urgent()) {
            for replica in self.open(pool.waiting().others()) {
                compared.add(replica, &self.choose_on(now, replica, room));
            }
        }
        while let Some((best, _)) = compared.best {
            match self.gives_way_to(now, device, &best, room, &mut compared) {
                Some(higher) => compared.best = Some(higher),
                None => break,
            }
        }
        if !compared.hopeless.is_empty() {
            return self.hopeless(&compared.hopeless);
        }
        let moved = self.put_last(device, &compared.useless);
        match compared.best {
            None if moved => NextStep::Again,
            None => NextStep::Wait(None),
            Some(_) if compared.first_sent > Some(now) => NextStep::Wait(compared.first_sent),
            Some((_, replica)) => {
                let model = self.replicas[&replica];
                self.pools.reserve(device, Some((replica, model)));
                NextStep::Again
            }
        }
    }

    /// Returns those of these members whose models no device is reserved for; not more than are examined.
    fn open(&self, members: impl Iterator<Item = ReplicaKey>) -> impl Iterator<Item = ReplicaKey> {
        let is_open = |replica: &ReplicaKey| !self.pools.is_reserved(self.replicas[replica]);
        members.filter(is_open).take(MOST_EXAMINED)
    }

    /// Returns the batch of a higher priority that goes before this one, if one of them would be late behind it.
    fn gives_way_to(
        &self,
        now: Time,
        device: DeviceKey,
        batch: &PooledBatch,
        room: &Room,
        compared: &mut Comparison,
    ) -> Option<(PooledBatch, ReplicaKey)> {
        let pool = self.pools.get(device)?;
        let late = { pool.waiting() }.late_above(batch.priority, batch.end, MOST_EXAMINED);
        if late.is_empty() {
            return None;
        }
        let mut higher = Comparison::default();
        for replica in self.open(late.into_iter()) {
            let choice = self.choose_on(now, replica, room);
            if !matches!(&choice, PooledChoice::Batch(other) if other.fits_beside(batch, room)) {
                higher.add(replica, &choice);
            }
        }
        compared.hopeless.append(&mut higher.hopeless);
        compared.useless.append(&mut higher.useless);
        compared.note_sent(higher.first_sent);
        higher.best
    }

    /// Returns the step that ends requests of members that no device can answer in time any more.
    fn hopeless(&self, requests: &[(ReplicaKey, Ticket)]) -> NextStep {
        let of_model = |(replica, ticket): &(ReplicaKey, Ticket)| (self.replicas[replica], *ticket);
        NextStep::Hopeless(requests.iter().map(of_model).collect())
    }

    /// Puts members of a device that have nothing which would be in time there behind the others, and forgets those without requests. Returns true if that
    /// changes who comes first.
    fn put_last(&mut self, device: DeviceKey, members: &[ReplicaKey]) -> bool {
        let mut changes = false;
        for &replica in members {
            let waits = self.queued(self.replicas[&replica]) > 0;
            let pool = self.pools.get_mut(device).expect("the caller has it");
            if waits {
                changes |= pool.put_last(replica);
            } else {
                pool.wait_no_longer(replica);
                changes = true;
            }
        }
        changes
    }

    /// Notes that a batch of a device's pool is no longer away.
    pub(super) fn pool_batch_ended(&mut self, now: Time, device: DeviceKey, batch: BatchKey) {
        if self.pools.batch_ended(device, batch) {
            self.pools.schedule(device, Some(now));
        }
    }

    /// Notes that the weights of a member are on its device.
    pub(super) fn weights_loaded(&mut self, now: Time, replica: ReplicaKey) {
        let Some((key, device)) = self.member_of_pool(replica) else {
            return;
        };
        let pool = self.pools.get_mut(device);
        if pool.is_some_and(|pool| pool.loaded(now, replica)) {
            self.tell_pools(now, key);
        }
        self.load_cold(now);
    }

    /// Notes that the weights of a member are not on its device. A batch of it that is there waits for them; a copy is tried again after a while.
    pub(super) fn weights_unloaded(&mut self, now: Time, replica: ReplicaKey) {
        let Some((key, device)) = self.member_of_pool(replica) else {
            return;
        };
        let pool = self.pools.get_mut(device);
        let Some(at) = pool.and_then(|pool| pool.unloaded(now, replica)) else {
            return;
        };
        self.pools.withdraw(device, replica);
        self.tell_pools(now, key);
        // The device may have been reserved for it.
        self.pools.schedule(device, Some(now));
        if at > now {
            self.pools.retry_at(at, device);
        }
    }

    /// Takes note of where the weights of a member come from, and of the time for that.
    pub(super) fn weights_stored(
        &mut self,
        now: Time,
        replica: ReplicaKey,
        on_disk: bool,
        load: Duration,
    ) {
        if let Some((_, device)) = self.member_of_pool(replica)
            && let Some(pool) = self.pools.get_mut(device)
        {
            pool.stored(now, replica, on_disk, load);
            self.load_cold(now);
        }
    }

    /// Takes note of the memory that a member's device has for weights.
    pub(super) fn pool_memory_changed(&mut self, now: Time, replica: ReplicaKey, memory: u64) {
        let Some((_, device)) = self.member_of_pool(replica) else {
            return;
        };
        let pool = self.pools.get_mut(device);
        let evicted = pool.map(|pool| pool.set_memory(memory));
        self.evict(now, evicted.unwrap_or_default(), None);
        self.load_cold(now);
    }

    /// Returns the model and the device of a replica that is a member of a pool.
    fn member_of_pool(&self, replica: ReplicaKey) -> Option<(ModelKey, DeviceKey)> {
        let key = *self.replicas.get(&replica)?;
        let device = self.models[&key].pool.get(replica).map(Replica::device)?;
        let pool = self.pools.get(device)?;
        pool.member(replica).map(|_| (key, device))
    }

    /// Has the weights of members leave their device, for those of a wanted one if there is any.
    pub(super) fn evict(
        &mut self,
        now: Time,
        members: Vec<ReplicaKey>,
        wanted: Option<ReplicaKey>,
    ) {
        for replica in members {
            self.actions.push_back(Action::Unload { replica, wanted });
            self.note_residency(now, self.replicas[&replica]);
        }
    }
}

impl DevicePool {
    /// Returns the place of a member's weights.
    pub(super) fn residency(&self, replica: ReplicaKey) -> Option<Residency> {
        self.member(replica).map(|member| member.residency)
    }
}
