//! The director: it carries out the control plane's changes of what is served, says which driver has which model, and keeps the catalog.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, atomic::Ordering::Relaxed},
};

use packhorse_cluster::{DeviceId, ModelId, ModelName, ModelSpec, Time};
use packhorse_control::ServeChange;
use packhorse_serving::ModelKey;
use tokio::sync::watch;

use super::{
    catalog::{Catalog, Phase},
    components::{Component, Couplings, assign},
    drivers::{Drivers, TakenDrivers},
    home::Home,
    served_model::ServedModel,
    version_route::VersionRoute,
};
use crate::{
    clock::Clock,
    input_memory::InputMemories,
    memory::MemoryBudget,
    telemetry::{ReplicaNumber, Telemetry},
    tokenizers::{ModelTokenizer, Tokenizers},
};

/// The director of the data plane.
#[derive(Debug)]
pub(super) struct Director {
    telemetry: Telemetry,
    memory: MemoryBudget,
    inputs: InputMemories,
    tokenizers: Tokenizers,
    /// The most requests that wait for a model without a limit of its own.
    queue_limit: usize,
    /// The present models, for the handlers.
    catalog: watch::Sender<Arc<Catalog>>,
    models: BTreeMap<ModelId, Arc<ServedModel>>,
    /// The choice of a version, of the models that have more than one.
    routes: BTreeMap<ModelName, Arc<VersionRoute>>,
    /// The homes of the present models, and of those that were removed and still have replicas.
    homes: BTreeMap<ModelKey, Arc<Home>>,
    next_model: u32,
    next_home: u32,
    phase: Phase,
}

/// A reason why models are coupled.
#[derive(PartialEq, Eq, Hash)]
enum Coupling<'a> {
    Device(&'a DeviceId),
    Family(&'a ModelName),
    /// They are versions of one model: one may answer in place of another.
    Versions(&'a ModelName),
    /// The engine has one model answer in place of another one, as it was last told.
    Fallback(ModelKey),
}

impl Director {
    pub(super) fn new(
        telemetry: Telemetry,
        memory: MemoryBudget,
        inputs: InputMemories,
        tokenizers: Tokenizers,
        queue_limit: usize,
        catalog: watch::Sender<Arc<Catalog>>,
    ) -> Self {
        Self {
            telemetry,
            memory,
            inputs,
            tokenizers,
            queue_limit,
            catalog,
            models: BTreeMap::new(),
            routes: BTreeMap::new(),
            homes: BTreeMap::new(),
            next_model: 0,
            next_home: 0,
            phase: Phase::Starting,
        }
    }

    /// Changes what is served. Once a driver has ended, nothing changes any more.
    pub(super) fn serve(&mut self, clock: Clock, drivers: &Drivers, changes: Vec<ServeChange>) {
        let start = clock.now();
        let Some(drivers) = drivers.take() else {
            return;
        };
        self.change(clock.now(), drivers, changes);
        let pause = clock.now().saturating_since(start);
        self.telemetry.record_engine_pause(pause);
    }

    fn change(&mut self, now: Time, mut drivers: TakenDrivers<'_>, changes: Vec<ServeChange>) {
        let new_homes = self.arrange(now, &mut drivers, &changes);
        let (mut catalog_changed, mut replicas_changed) = (false, false);
        for change in changes {
            match change {
                ServeChange::Replica(_) => replicas_changed = true,
                ServeChange::RemoveReplica(_) | ServeChange::Discipline(_) => {}
                _ => catalog_changed = true,
            }
            self.apply(now, &mut drivers, &new_homes, change);
        }
        if replicas_changed {
            let identities = drivers
                .iter()
                .flat_map(|driver| driver.links().identities());
            let numbered = identities.map(|(key, id, on)| (ReplicaNumber(key.0), id, on));
            self.telemetry.requests().set_replicas(numbered);
        }
        let replicas = drivers.iter().map(|driver| driver.links().places().count());
        self.telemetry.set_engine_replicas(replicas);
        for driver in drivers.iter_mut() {
            driver.publish_states();
        }
        self.forget_homes(&drivers);
        // After the states, so that a model appears in the catalog with its readiness.
        if catalog_changed {
            self.publish_catalog();
        }
    }

    /// Takes no request from now on. The catalog stays, so that questions about models are still answered.
    pub(super) fn close(&mut self) {
        self.phase = Phase::Closed;
        for model in self.models.values() {
            model.readiness.ready.store(false, Relaxed);
        }
        self.publish_catalog();
    }

    fn apply(
        &mut self,
        now: Time,
        drivers: &mut TakenDrivers<'_>,
        new_homes: &BTreeMap<ModelId, Arc<Home>>,
        change: ServeChange,
    ) {
        match change {
            ServeChange::Model(spec) => self.update_model(now, drivers, new_homes, spec),
            ServeChange::RemoveModel(id) => self.remove_model(now, drivers, &id),
            ServeChange::Replica(target) => {
                let model = &target.replica.spec.model.model;
                if let Some(model) = self.models.get(model) {
                    drivers[model.home.driver()].serve(now, *target, model);
                }
            }
            ServeChange::RemoveReplica(id) => {
                for driver in drivers.iter_mut() {
                    driver.end_replica(now, id);
                }
            }
            ServeChange::Split(name, shares) => {
                let route = Arc::new(VersionRoute::new(shares));
                self.routes.insert(name, route);
            }
            ServeChange::Discipline(discipline) => {
                for driver in drivers.iter_mut() {
                    driver.set_discipline(now, discipline);
                }
            }
            ServeChange::Open => {
                if self.phase == Phase::Starting {
                    self.phase = Phase::Open;
                }
            }
        }
    }

    fn remove_model(&mut self, now: Time, drivers: &mut TakenDrivers<'_>, id: &ModelId) {
        let Some(model) = self.models.remove(id) else {
            return;
        };
        if !self.models.keys().any(|other| other.name == id.name) {
            self.routes.remove(&id.name);
        }
        self.telemetry.remove_model(id);
        drivers[model.home.driver()].remove_model(now, model.key);
    }

    fn update_model(
        &mut self,
        now: Time,
        drivers: &mut TakenDrivers<'_>,
        new_homes: &BTreeMap<ModelId, Arc<Home>>,
        spec: Arc<ModelSpec>,
    ) {
        let id = spec.program.model.clone();
        let known = match self.models.get(&id) {
            Some(model) if model.spec == spec => return,
            known => known.cloned(),
        };
        // The same name with another program is another model, with the same home.
        let same = known
            .as_ref()
            .filter(|known| known.spec.program == spec.program);
        if same.is_none() {
            self.remove_model(now, drivers, &id);
        }
        let queue_limit = spec
            .queue_limit
            .and_then(|limit| usize::try_from(limit).ok());
        let queue_limit = queue_limit.unwrap_or(self.queue_limit);
        let model = if let Some(known) = same {
            ServedModel {
                tokenizer: self.tokenizer(&spec),
                spec,
                queue_limit,
                ..ServedModel::clone(known)
            }
        } else {
            let home = known.map(|known| Arc::clone(&known.home));
            let home = home.or_else(|| new_homes.get(&id).map(Arc::clone));
            let home = home.unwrap_or_else(|| self.new_home());
            ServedModel {
                key: self.new_model_key(),
                telemetry: self.telemetry.model(&id),
                memory: self.memory.model(),
                inputs: self.inputs.of(&id),
                tokenizer: self.tokenizer(&spec),
                spec,
                queue_limit,
                load: Arc::default(),
                home,
                readiness: Arc::default(),
            }
        };
        model.telemetry.set_variant(model.spec.variant.clone());
        let model = Arc::new(model);
        self.homes.insert(model.key, Arc::clone(&model.home));
        drivers[model.home.driver()].update_model(now, Arc::clone(&model));
        self.models.insert(id, model);
    }

    /// Returns the tokenizer of a model that takes texts, which begins to be read.
    fn tokenizer(&self, spec: &ModelSpec) -> Option<Arc<ModelTokenizer>> {
        let tokenizer = self.tokenizers.get(spec.processing.tokenizer()?);
        Arc::clone(&tokenizer).prepare();
        Some(tokenizer)
    }

    fn new_model_key(&mut self) -> ModelKey {
        let key = ModelKey(self.next_model);
        self.next_model += 1;
        key
    }

    /// Returns a home for a model, with the first driver until it is said otherwise.
    fn new_home(&mut self) -> Arc<Home> {
        let number = self.next_home;
        self.next_home += 1;
        Arc::new(Home::new(number, 0))
    }

    /// Gives every component, as it is and will be with these changes, one driver, and returns homes for the models that are new.
    fn arrange(
        &mut self,
        now: Time,
        drivers: &mut TakenDrivers<'_>,
        changes: &[ServeChange],
    ) -> BTreeMap<ModelId, Arc<Home>> {
        let mut new_homes = BTreeMap::new();
        for change in changes {
            if let ServeChange::Model(spec) = change
                && !self.models.contains_key(&spec.program.model)
            {
                let home = self.new_home();
                new_homes.insert(spec.program.model.clone(), home);
            }
        }
        if drivers.len() == 1 {
            return new_homes;
        }
        let components = self.components(drivers, &new_homes, changes);
        let assigned = assign(&components, drivers.len());
        let assigned: BTreeMap<u32, usize> = components
            .iter()
            .zip(assigned)
            .flat_map(|(component, driver)| component.homes.iter().map(move |home| (*home, driver)))
            .collect();
        self.exchange(now, drivers, &assigned);
        let known = self.homes.values().chain(new_homes.values());
        drivers.redirect(known.filter_map(|home| Some((&**home, *assigned.get(&home.number)?))));
        new_homes
    }

    fn components(
        &self,
        drivers: &TakenDrivers<'_>,
        new_homes: &BTreeMap<ModelId, Arc<Home>>,
        changes: &[ServeChange],
    ) -> Vec<Component> {
        let mut couplings = Couplings::new();
        for home in self.homes.values() {
            couplings.add(home.number, Some(home.driver()));
        }
        for home in new_homes.values() {
            couplings.add(home.number, None);
        }
        for (number, driver) in drivers.iter().enumerate() {
            for (model, device) in driver.links().places() {
                let home = self.homes[&model].number;
                couplings.count_replica(home, number);
                couplings.couple(home, Coupling::Device(device));
            }
            for (model, fallback) in driver.fallbacks() {
                for key in [model, fallback] {
                    if let Some(home) = self.homes.get(&key) {
                        couplings.couple(home.number, Coupling::Fallback(fallback));
                    }
                }
            }
        }
        let home_of = |id: &ModelId| {
            let home = self.models.get(id).map(|model| &model.home);
            home.or_else(|| new_homes.get(id)).map(|home| home.number)
        };
        let updated = changes.iter().filter_map(|change| match change {
            ServeChange::Model(spec) => Some(&**spec),
            _ => None,
        });
        let present = self.models.values().map(|model| &*model.spec);
        for spec in present.chain(updated) {
            let (home, family) = (home_of(&spec.program.model), spec.family());
            if let Some(home) = home {
                couplings.couple(home, Coupling::Versions(&spec.program.model.name));
            }
            if let (Some(home), Some(family)) = (home, family) {
                couplings.couple(home, Coupling::Family(family));
            }
        }
        for change in changes {
            if let ServeChange::Replica(target) = change {
                let spec = &target.replica.spec;
                if let Some(home) = home_of(&spec.model.model) {
                    couplings.couple(home, Coupling::Device(&spec.device));
                }
            }
        }
        couplings.components()
    }

    /// Brings the models of every home to the driver that it was assigned.
    fn exchange(&self, now: Time, drivers: &mut TakenDrivers<'_>, assigned: &BTreeMap<u32, usize>) {
        let mut moves: BTreeMap<(usize, usize), BTreeSet<ModelKey>> = BTreeMap::new();
        for (key, home) in &self.homes {
            let (from, to) = (home.driver(), assigned[&home.number]);
            if from != to {
                moves.entry((from, to)).or_default().insert(*key);
            }
        }
        for ((from, to), models) in moves {
            tracing::info!(
                models = models.len(),
                from,
                to,
                "moving models to another serving engine"
            );
            self.telemetry.count_moved_models(models.len());
            drivers[from].publish_states();
            let part = drivers[from].split_off(&models);
            drivers[to].absorb(now, part);
        }
    }

    /// Forgets the homes of models that were removed and have no replicas left.
    fn forget_homes(&mut self, drivers: &TakenDrivers<'_>) {
        if self.homes.len() == self.models.len() {
            return;
        }
        let present = self.models.values().map(|model| model.key);
        let linked = drivers.iter().flat_map(|driver| driver.links().places());
        let used: BTreeSet<ModelKey> = present.chain(linked.map(|(model, _)| model)).collect();
        self.homes.retain(|key, _| used.contains(key));
    }

    fn publish_catalog(&self) {
        let models = self.models.values().cloned();
        let catalog = Catalog::new(models, self.routes.clone(), self.phase);
        self.catalog.send_replace(Arc::new(catalog));
    }
}
