//! The loads of weights that requests wait for, and of those in files only that were asked for in vain.

use std::collections::BTreeMap;

use packhorse_cluster::Time;

use super::Engine;
use crate::{
    Action, DeviceKey, ModelKey, Refusal, ReplicaKey,
    device_pool::{CopyPlace, pools::ColdRank},
    refused_loads::{AskedFor, Beginning, LoadsBefore},
};

/// The most members of a device that are being copied, or loaded from files: one, and the next one behind it, so that neither way waits for the engine.
const MOST_COPIES: usize = 2;

/// The most models that wait for weights which are examined for one that is loaded next. Bounds a decision.
const MOST_EXAMINED: usize = 64;

/// The device on which a model is loaded next.
struct ModelPlace {
    load: (ReplicaKey, DeviceKey, ModelKey),
    rank: ColdRank,
    /// True if its first request would be late.
    is_late: bool,
}

impl Engine {
    /// Returns the time at which the first request of a model could be answered if it is in files only, on all devices with it; `None` if it is in memory.
    pub(super) fn due_from_disk(&self, now: Time, key: ModelKey) -> Option<Time> {
        let model = self.models.get(&key)?;
        if !model.pool.is_pooled() {
            return None;
        }
        let mut first: Option<Time> = None;
        for (replica, device) in model.pool.members() {
            let loaded = self.pools.get(device)?.due_from_disk(now, replica)?;
            let compute = model.pool.get(replica)?.expectation(now).compute(1);
            first = first.into_iter().chain(Some(loaded + compute)).min();
        }
        first
    }

    /// Has a model be loaded from its file when that costs others little, for those who come later than a request that cannot wait so long, and returns why
    /// this is refused.
    pub(super) fn ask_for(&mut self, now: Time, key: ModelKey) -> Refusal {
        let asked_for = self.models[&key].asked_for;
        let told = asked_for.filter(|told| told.due > now);
        let told = told.unwrap_or_else(|| {
            let since = asked_for.map_or(now, |asked_for| asked_for.since);
            let due = self.due_for_refused(now, since, key);
            AskedFor { since, due }
        });
        self.model_mut(key).asked_for = Some(told);
        self.pools.set_asked_for(told.since, key, true);
        self.note_residency(now, key);
        self.load_cold(now);
        let retry_after = told.due.saturating_since(now);
        Refusal::Loading { retry_after }
    }

    /// Returns the time at which a request of a model that is asked for since a time could be answered.
    fn due_for_refused(&self, now: Time, since: Time, key: ModelKey) -> Time {
        let pool = &self.models[&key].pool;
        let due = pool.members().filter_map(|(replica, device)| {
            let on_device = self.pools.get(device)?;
            let mut before = LoadsBefore::default();
            for (_, other) in self.pools.asked_for().range(..(since, key)) {
                let members = self.models[other].pool.members();
                for (replica, _) in members.filter(|(_, on)| *on == device) {
                    on_device.add_to(&mut before, replica);
                }
            }
            let loaded = on_device.due_for_refused(now, replica, &before)?;
            Some(loaded + pool.get(replica)?.expectation(now).compute(1))
        });
        due.min().unwrap_or(now)
    }

    /// Notes that a model is not asked for in vain any more.
    pub(super) fn no_longer_asked_for(&mut self, key: ModelKey) {
        if let Some(asked_for) = self.model_mut(key).asked_for.take() {
            self.pools.set_asked_for(asked_for.since, key, false);
        }
    }

    /// Has the weights of models copied that wait for them: those of the highest priority, and among them those that are due first; and then those that were
    /// asked for in vain.
    pub(super) fn load_cold(&mut self, now: Time) {
        while let Some((replica, device, model)) = self.next_load(now) {
            if let Some(first) = self.first_due(now, model).map(|(_, first)| first.ticket) {
                self.model_mut(model).queue.note_load_for(first);
            }
            self.set_cold(model, None);
            self.no_longer_asked_for(model);
            let pool = self.pools.get_mut(device).expect("just seen");
            let evicted = pool.load(now, replica);
            self.evict(now, evicted, Some(replica));
            self.actions.push_back(Action::Load { replica });
        }
    }

    /// Returns the next member whose weights are to be copied, with its device and model; `None` if none is, or nowhere is room.
    fn next_load(&mut self, now: Time) -> Option<(ReplicaKey, DeviceKey, ModelKey)> {
        if !self.pools.is_load_wanted() {
            return None;
        }
        let places = self.pools.places_for_copies(now, MOST_COPIES);
        if places.is_empty() {
            return None;
        }
        let waited_for = self.next_waited_for(now, &places);
        if self.pools.asked_for().is_empty() {
            return waited_for;
        }
        let for_refused = self.next_for_refused(waited_for.is_some(), &places);
        if let Some((replica, device, _)) = for_refused {
            let pool = self.pools.get_mut(device).expect("just seen");
            pool.pace(now, replica);
        }
        for_refused.or(waited_for)
    }

    /// Returns the next member to load for requests that wait: of the model of the highest priority, and then of the one whose first request is due first;
    /// those whose first request would be late come after the others.
    fn next_waited_for(
        &self,
        now: Time,
        places: &BTreeMap<DeviceKey, CopyPlace>,
    ) -> Option<(ReplicaKey, DeviceKey, ModelKey)> {
        let soonest = places.values().filter_map(CopyPlace::soonest).min()?;
        let may_be_in_time = self.pools.cold().filter(|(rank, _)| rank.due > soonest);
        let mut late = None;
        for (rank, key) in may_be_in_time.take(MOST_EXAMINED) {
            match self.place_for(now, rank, key, places) {
                Some(place) if !place.is_late => return Some(place.load),
                place => late = late.or(place),
            }
        }
        let must_be_late = self.pools.cold().filter(|(rank, _)| rank.due <= soonest);
        let first = { must_be_late.take(MOST_EXAMINED) }
            .find_map(|(rank, key)| self.place_for(now, rank, key, places));
        let all_late = first.into_iter().chain(late);
        all_late
            .min_by_key(|place| place.rank)
            .map(|place| place.load)
    }

    /// Returns the device on which the weights of a model would be first.
    fn place_for(
        &self,
        now: Time,
        rank: ColdRank,
        key: ModelKey,
        places: &BTreeMap<DeviceKey, CopyPlace>,
    ) -> Option<ModelPlace> {
        let pool = &self.models[&key].pool;
        let place = |(replica, device): (ReplicaKey, DeviceKey)| {
            let place = places.get(&device)?;
            let loaded = self.pools.get(device)?.loaded_at(replica, place)?;
            Some((loaded, place.is_busy, device, replica))
        };
        let mut places = pool.members().filter_map(place).peekable();
        places.peek()?;
        let (view, first) = self.first_due(now, key)?;
        let places = places.filter(|&(.., device, replica)| {
            let pool = self.pools.get(device);
            let is_in_vain = pool.is_some_and(|pool| pool.left_in_vain(replica));
            !(first.was_loaded_for && is_in_vain) && view.may_take(first, replica)
        });
        let (loaded, _, device, replica) = places.min()?;
        let compute = pool.get(replica)?.expectation(now).compute(1);
        Some(ModelPlace {
            load: (replica, device, key),
            rank,
            is_late: loaded + compute > first.request.deadline,
        })
    }

    /// Returns the next member to load for requests that were refused: of the model that is asked for since the longest time, of those that may be loaded.
    fn next_for_refused(
        &mut self,
        only_overdue: bool,
        places: &BTreeMap<DeviceKey, CopyPlace>,
    ) -> Option<(ReplicaKey, DeviceKey, ModelKey)> {
        let mut later = Vec::new();
        let mut next = None;
        for &(since, key) in self.pools.asked_for() {
            let begins = { self.models[&key].pool.members() }.filter_map(|(replica, device)| {
                let (pool, place) = (self.pools.get(device)?, places.get(&device)?);
                match pool.load_for_refused(replica, since, place) {
                    Beginning::Now { loaded, is_overdue } => {
                        (is_overdue || !only_overdue).then_some((loaded, device, replica))
                    }
                    Beginning::At(at) => {
                        later.push((at, device));
                        None
                    }
                    Beginning::Never => None,
                }
            });
            next = begins
                .min()
                .map(|(_, device, replica)| (replica, device, key));
            if next.is_some() {
                break;
            }
        }
        for (at, device) in later {
            self.pools.retry_at(at, device);
        }
        next
    }
}
