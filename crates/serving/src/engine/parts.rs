//! The parts of an engine. Models that are not coupled may be decided for by engines of their own, on threads of their own: every decision is
//! the one that a single engine makes.
//!
//! A decision about a model reads its queue and its replicas. Of other models it reads who takes turns on a device, and who is overloaded there;
//! and a model that cannot answer a request in time asks its fallback. So two models are coupled if they have replicas on one device or one is the
//! fallback of the other, directly or through a chain of others.

use std::{
    collections::{BTreeMap, BTreeSet},
    mem,
};

use packhorse_cluster::Time;

use super::{Engine, RequestLocation};
use crate::{BatchKey, Books, DeviceKey, ModelKey, RequestKey};

/// Models that were taken out of an engine with all that belongs to them, to be put into another one. It decides nothing.
#[derive(Debug)]
pub struct EnginePart(Engine);

impl EnginePart {
    /// Returns true if the request is in this part.
    pub fn has_request(&self, request: RequestKey) -> bool {
        self.0.locations.contains_key(&request)
    }

    /// Returns true if the batch is in this part.
    pub fn has_batch(&self, batch: BatchKey) -> bool {
        self.0.batches.contains_key(&batch)
    }
}

impl Engine {
    /// Returns the models that are coupled with this one, and it. Nothing falls back to a model that was removed.
    pub(super) fn coupled(&self, model: ModelKey) -> BTreeSet<ModelKey> {
        let mut neighbours: BTreeMap<ModelKey, BTreeSet<ModelKey>> = BTreeMap::new();
        let mut couple = |one: ModelKey, other: ModelKey| {
            neighbours.entry(one).or_default().insert(other);
            neighbours.entry(other).or_default().insert(one);
        };
        let mut first_on: BTreeMap<DeviceKey, ModelKey> = BTreeMap::new();
        for (&key, model) in &self.models {
            for device in model.pool.devices() {
                couple(key, *first_on.entry(device).or_insert(key));
            }
            let answers = |key: &ModelKey| {
                self.models
                    .get(key)
                    .is_some_and(|model| model.limits.is_some())
            };
            if let Some(fallback) = model
                .fallback
                .filter(|fallback| answers(&key) && answers(fallback))
            {
                couple(key, fallback);
            }
        }
        let mut coupled = BTreeSet::from([model]);
        let mut left = vec![model];
        while let Some(model) = left.pop() {
            for &neighbour in neighbours.get(&model).into_iter().flatten() {
                if coupled.insert(neighbour) {
                    left.push(neighbour);
                }
            }
        }
        coupled
    }

    /// Takes models out of the engine, with their requests, replicas and batches. Models that the engine does not have are left out.
    ///
    /// Panics if an action waits to be carried out, and in debug builds if one of the models is coupled with one that stays.
    pub fn split_off(&mut self, models: &BTreeSet<ModelKey>) -> EnginePart {
        assert!(
            self.actions.is_empty(),
            "actions are carried out by the engine's own driver"
        );
        let present = models
            .iter()
            .filter(|model| self.models.contains_key(model));
        debug_assert!(
            { present }.all(|model| self.coupled(*model).is_subset(models)),
            "{models:?} are coupled with others"
        );
        let mut part = Self::new(self.config);
        part.next_arrival = self.next_arrival;
        part.overloaded = self.overloaded.split_off(models);
        part.turns = self.turns.split_off(models);
        part.pools = self.pools.split_off(models);
        part.models = self
            .models
            .extract_if(|key, _| models.contains(key))
            .collect();
        let replicas = self.replicas.extract_if(|_, model| models.contains(model));
        part.replicas = replicas.collect();
        let batches = self
            .batches
            .extract_if(|_, batch| models.contains(&batch.model));
        part.batches = batches.collect();
        part.wakes = self.wakes.split_off(|model| models.contains(&model));
        let replicas = &part.replicas;
        part.probes = self
            .probes
            .extract_if(.., |(_, replica)| replicas.contains_key(replica))
            .collect();

        let queued = part.models.values().flat_map(|model| model.queue.iter());
        for waiting in queued {
            let id = waiting.request.id;
            let location = self.locations.remove(&id);
            part.locations
                .insert(id, location.expect("a queued request has its place"));
            part.books.queued += 1;
        }
        for (&id, batch) in &part.batches {
            for waiting in &batch.requests {
                let request = waiting.request.id;
                // A request that was cancelled is no longer there.
                if self.locations.get(&request) == Some(&RequestLocation::InFlight(id)) {
                    self.locations.remove(&request);
                    part.locations
                        .insert(request, RequestLocation::InFlight(id));
                    part.books.in_flight += 1;
                }
            }
        }
        part.books.accepted = part.books.queued + part.books.in_flight;
        self.books.queued -= part.books.queued;
        self.books.in_flight -= part.books.in_flight;
        self.books.accepted -= part.books.accepted;
        EnginePart(part)
    }

    /// Puts models into the engine that were taken out of another one.
    ///
    /// Panics if the engine has one of them, or one of their replicas, requests or batches.
    pub fn absorb(&mut self, now: Time, part: EnginePart) {
        let EnginePart(mut part) = part;
        let Books {
            accepted,
            queued,
            in_flight,
            ..
        } = part.books;
        self.books.accepted += accepted;
        self.books.queued += queued;
        self.books.in_flight += in_flight;
        self.next_arrival = self.next_arrival.max(part.next_arrival);
        let keys: Vec<ModelKey> = part.models.keys().copied().collect();
        let [models, replicas, batches, locations] = self.sizes();
        let added = part.sizes();
        self.models.extend(mem::take(&mut part.models));
        self.replicas.extend(mem::take(&mut part.replicas));
        self.batches.extend(mem::take(&mut part.batches));
        self.locations.extend(mem::take(&mut part.locations));
        let sums = [
            models + added[0],
            replicas + added[1],
            batches + added[2],
            locations + added[3],
        ];
        assert_eq!(self.sizes(), sums, "nothing is in two engines");
        self.wakes.absorb(part.wakes);
        self.probes.append(&mut part.probes);
        self.overloaded.absorb(part.overloaded);
        self.turns.absorb(part.turns);
        self.pools.absorb(part.pools);
        if part.config.discipline != self.config.discipline {
            self.put_in_order(now, keys);
        }
    }
    /// Returns the number of models, replicas, batches and requests.
    fn sizes(&self) -> [usize; 4] {
        [
            self.models.len(),
            self.replicas.len(),
            self.batches.len(),
            self.locations.len(),
        ]
    }
}
