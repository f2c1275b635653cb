//! The commands of admins: checked, stored, and then applied.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use packhorse_cluster::{
    DeviceId, DeviceKind, ModelId, ModelName, ModelSpec, ModelSpecError, ModelVersion, NodeName,
    Scheduling, Time, VariantOf,
};

use crate::{
    command::{Command, CommandError, ModelSpecChange, WriteError},
    controller::Controller,
    effect::{Effect, ServeChange, Write},
    finding::RepositoryProblem,
    keys::RequestKey,
    limits::{MAX_MODELS, MAX_PAIRS, MAX_REPOSITORY_PROBLEMS},
    models::Model,
    nodes::Node,
    notice::Notice,
    pending::{Change, Pending},
    plan_reason::PlanReason,
    record::{NodeRecord, Settings},
};

/// The largest number of characters that are kept of a text from an agent.
const MAX_TEXT: usize = 2000;

impl Controller {
    /// Executes a command. Returns true if its change has to be stored first, and false if nothing changes.
    pub(crate) fn execute(
        &mut self,
        now: Time,
        request: RequestKey,
        command: Command,
    ) -> Result<bool, CommandError> {
        if let Command::ReportRepository(problems) = command {
            check_repository(&problems)?;
            self.state.repository_problems = problems;
            return Ok(false);
        }
        let Some((write, change)) = self.check(now, command)? else {
            return Ok(false);
        };
        self.store(write, Pending::Command(request, change));
        Ok(true)
    }

    /// Checks a command of an admin. Returns its change and how to store it; `None` if there is nothing to store.
    pub(crate) fn check(
        &self,
        now: Time,
        command: Command,
    ) -> Result<Option<(Write, Change)>, CommandError> {
        Ok(match command {
            Command::Register(spec, bytes) => Some(self.register(spec, bytes)?),
            Command::Replace(spec, bytes) => Some(self.replace(spec, bytes)?),
            Command::ChangeModel(name, version, change) => {
                self.change_model(&name, version, &change)?
            }
            Command::Split(name, change) => self.change_split(&name, change)?,
            Command::RemoveModel(name, version) => Some(self.remove_model(&name, version)?),
            Command::ImportProfiles(profiles) => {
                let profiles = self.state.without_worse_estimates(&profiles);
                let write = Write::UpsertProfiles(profiles.clone(), None);
                (!profiles.is_empty()).then_some((write, Change::Profiles(profiles)))
            }
            Command::ImportPairs(_, pairs) if pairs.pairs.len() > MAX_PAIRS => {
                return Err(CommandError::TooManyPairs(pairs.pairs.len()));
            }
            Command::ImportPairs(kind, pairs) => Some((
                Write::UpsertPairs(kind.clone(), pairs.clone()),
                Change::Pairs(kind, pairs),
            )),
            Command::ScheduleNode(name, scheduling, time) => {
                self.schedule_node(now, &name, scheduling, time)?
            }
            Command::RemoveNode(name) => Some(self.remove_node(name)?),
            Command::ChangeSettings(settings) => Some((
                Write::UpdateSettings(settings.clone()),
                Change::Settings(settings),
            )),
            Command::ReportRepository(..) | Command::TakeLease(..) | Command::Report(..) => {
                unreachable!("reports are not stored, and executed at once")
            }
        })
    }

    fn register(&self, spec: Box<ModelSpec>, bytes: u64) -> Result<(Write, Change), CommandError> {
        spec.validate()?;
        let id = &spec.program.model;
        if self.state.models.len() >= MAX_MODELS {
            return Err(CommandError::TooManyModels);
        }
        if self.state.models.get(id).is_some() {
            return Err(CommandError::ModelExists(id.clone()));
        }
        self.check_family(&spec, |_| false)?;
        let write = Write::InsertModel(spec.clone());
        Ok((write, Change::Registered(spec, bytes)))
    }

    fn replace(&self, spec: Box<ModelSpec>, bytes: u64) -> Result<(Write, Change), CommandError> {
        let id = &spec.program.model;
        if self.state.models.get(id).is_none() {
            return self.register(spec, bytes);
        }
        spec.validate()?;
        self.check_family(&spec, |other| other == id)?;
        let write = Write::ReplaceModel(spec.clone());
        Ok((write, Change::Replaced(spec, bytes)))
    }

    fn change_model(
        &self,
        name: &ModelName,
        version: Option<ModelVersion>,
        change: &ModelSpecChange,
    ) -> Result<Option<(Write, Change)>, CommandError> {
        let id = self.state.models.find(name, version)?;
        if change.family.is_some() && version.is_some() {
            return Err(CommandError::FamilyOfVersion(name.clone()));
        }
        if change.changes_all_versions() {
            let newest = self.state.models.find(name, None)?.version;
            if newest != id.version {
                return Err(CommandError::RateOfOlderVersion(name.clone(), newest));
            }
        }
        let model = self.state.models.get(&id).expect("it was just found");
        let mut spec = ModelSpec::clone(&model.spec);
        spec.slo = change.slo.unwrap_or(spec.slo);
        spec.rate = change.rate.unwrap_or(spec.rate);
        spec.rate_mode = change.rate_mode.unwrap_or(spec.rate_mode);
        spec.priority = change.priority.unwrap_or(spec.priority);
        spec.min_replicas = change.min_replicas.unwrap_or(spec.min_replicas);
        spec.queue_limit = change.queue_limit.unwrap_or(spec.queue_limit);
        spec.max_cold_wait = change.max_cold_wait.unwrap_or(spec.max_cold_wait);
        spec.cache = change.cache.unwrap_or(spec.cache);
        spec.variant = changed_variant(model.spec.variant.clone(), change)?;
        spec.validate()?;
        let specs = self.changed_with(&spec)?;
        if specs.is_empty() {
            return Ok(None);
        }
        let write = Write::UpdateModels(specs.clone());
        Ok(Some((write, Change::Changed(specs))))
    }

    /// Returns the specifications that change when a version becomes this one: the family belongs to all versions of a model, and the SLO of a
    /// variant to all variants of its family.
    fn changed_with(&self, spec: &ModelSpec) -> Result<Vec<ModelSpec>, CommandError> {
        let models = &self.state.models;
        let id = &spec.program.model;
        let before = models.get(id).map(|model| model.spec.family());
        let moves = before.flatten() != spec.family();
        let is_version = |other: &ModelId| other.name == id.name;
        let mut changed = vec![spec.clone()];
        if moves {
            for other in models.versions(&id.name).filter(|other| *other != id) {
                let other = models.get(other).map(|model| ModelSpec::clone(&model.spec));
                changed.extend(other.map(|other| {
                    // It keeps its accuracy if it has one.
                    let accuracy = other.variant.as_ref().map(|variant| variant.accuracy);
                    let variant = spec.variant.clone().map(|variant| VariantOf {
                        accuracy: accuracy.unwrap_or(variant.accuracy),
                        ..variant
                    });
                    ModelSpec { variant, ..other }
                }));
            }
            for changed in &changed {
                self.check_family(changed, is_version)?;
            }
        } else if let Some(family) = spec.family() {
            let members = models.members(family).map(|model| &model.spec);
            let others = members.filter(|other| other.program.model != *id);
            changed.extend(others.map(|other| ModelSpec {
                slo: spec.slo,
                ..ModelSpec::clone(other)
            }));
        }
        changed.retain(|spec| {
            let before = models.get(&spec.program.model);
            before.is_some_and(|before| *before.spec != *spec)
        });
        Ok(changed)
    }

    /// Checks that a model can be served beside the others under its name and in its family. Versions that `moves` with it are not looked at.
    fn check_family(
        &self,
        spec: &ModelSpec,
        moves: impl Fn(&ModelId) -> bool,
    ) -> Result<(), CommandError> {
        let models = &self.state.models;
        let conflict = |field, problem| Err(CommandError::Conflict { field, problem });
        let name = &spec.program.model.name;
        if !models.variants(name).is_empty() {
            let problem = format!("{name} is the name of a family; choose another");
            return conflict("name", problem);
        }
        let mut versions = models.versions(name).filter(|id| !moves(id));
        let version = versions.next_back().and_then(|id| models.get(id));
        if let Some(version) = version
            && version.spec.family() != spec.family()
        {
            let problem = match version.spec.family() {
                Some(family) => format!(
                    "the other versions of model {name} are variants of {family}; name that family and an accuracy"
                ),
                None => format!(
                    "the other versions of model {name} are in no family; change that first, with PATCH /v1/models/{name}"
                ),
            };
            return conflict("family", problem);
        }
        let Some(family) = spec.family() else {
            return Ok(());
        };
        if family == name || models.newest(family).is_some() {
            let problem = format!("{family} is the name of a model; choose another");
            return conflict("family", problem);
        }
        let members = models.members(family).map(|model| &model.spec);
        let others: Vec<_> = members
            .filter(|other| !moves(&other.program.model))
            .collect();
        let names: BTreeSet<&ModelName> = others
            .iter()
            .map(|other| &other.program.model.name)
            .collect();
        if names.len() >= VariantOf::MAX_VARIANTS && !names.contains(name) {
            let max = VariantOf::MAX_VARIANTS;
            let problem = format!("{family} has {max} variants already, which is the most");
            return conflict("family", problem);
        }
        for other in others {
            if let Some(field) = spec.first_difference(other) {
                let other = &other.program.model;
                let problem = format!(
                    "expected the same as of {other}: variants of {family} answer the same requests"
                );
                return conflict(field, problem);
            }
        }
        Ok(())
    }

    fn remove_model(
        &self,
        name: &ModelName,
        version: Option<ModelVersion>,
    ) -> Result<(Write, Change), CommandError> {
        let ids: Vec<ModelId> = match version {
            Some(_) => vec![self.state.models.find(name, version)?],
            None => self.state.models.versions(name).cloned().collect(),
        };
        if ids.is_empty() {
            return Err(CommandError::UnknownModel(name.clone()));
        }
        let heir = version.and_then(|_| self.heir(&ids[0])).map(Box::new);
        let write = Write::DeleteModels(ids.clone(), heir.clone());
        Ok((write, Change::Removed(ids, heir)))
    }

    /// Returns the version that becomes the newest one when this one is removed, with what belongs to the model's name: reserved rate, mode,
    /// priority and least number of replicas. `None` if it need not change.
    fn heir(&self, removed: &ModelId) -> Option<ModelSpec> {
        let models = &self.state.models;
        let mut versions = models.versions(&removed.name).rev();
        let newest = versions.next().filter(|newest| *newest == removed)?;
        let newest = &models.get(newest)?.spec;
        let before = &models.get(versions.next()?)?.spec;
        let heir = ModelSpec {
            rate: newest.rate,
            rate_mode: newest.rate_mode,
            priority: newest.priority,
            min_replicas: newest.min_replicas,
            ..ModelSpec::clone(before)
        };
        (heir != **before).then_some(heir)
    }

    fn schedule_node(
        &self,
        now: Time,
        name: &NodeName,
        scheduling: Scheduling,
        time: Option<Duration>,
    ) -> Result<Option<(Write, Change)>, CommandError> {
        let node = self.state.nodes.get(name);
        let node = node.ok_or_else(|| CommandError::UnknownNode(name.clone()))?;
        if node.record.scheduling == scheduling && time.is_none() {
            return Ok(None);
        }
        let record = Box::new(NodeRecord {
            scheduling,
            ..node.record.clone()
        });
        let deadline = time.map(|time| now + time);
        let write = Write::ScheduleNode(record.clone());
        Ok(Some((
            write,
            Change::Scheduled(record, scheduling, deadline),
        )))
    }

    fn remove_node(&self, name: NodeName) -> Result<(Write, Change), CommandError> {
        match self.state.nodes.get(&name) {
            None => Err(CommandError::UnknownNode(name)),
            Some(node) if node.holds_lease() => Err(CommandError::NodeInUse(name)),
            Some(_) => Ok((Write::DeleteNode(name.clone()), Change::NodeRemoved(name))),
        }
    }

    /// Continues what waited for a write.
    pub(crate) fn apply(&mut self, now: Time, pending: Pending, result: Result<(), WriteError>) {
        match pending {
            Pending::Command(request, change) => {
                let result = match result {
                    Ok(()) => {
                        self.apply_change(now, change);
                        Ok(())
                    }
                    Err(error) => Err(refusal(&change, error)),
                };
                self.effect(Effect::Acknowledge(request, result));
            }
            Pending::Epoch(epoch, request, node, claim) => match result {
                Ok(()) => {
                    self.raise_epoch(epoch);
                    self.lease_requested(now, request, &node, claim);
                }
                // The claim of another agent has raised it meanwhile.
                Err(_) if epoch <= self.fence.epoch() => {
                    self.lease_requested(now, request, &node, claim);
                }
                Err(error) => {
                    let error = Err(CommandError::NotStored(error));
                    self.effect(Effect::Acknowledge(request, error));
                }
            },
            Pending::Plan {
                record,
                replicas,
                reasons,
            } => match result {
                Ok(()) => self.adopt(record, replicas),
                Err(_) => self.plan_not_stored(now, reasons),
            },
            Pending::Measured(model, kind, measurement) => match result {
                Ok(()) => self.measured(now, &model, &kind, &measurement),
                Err(_) => self.measurement_not_stored(&model, &kind),
            },
            Pending::Behind(behind) => {
                if result.is_err() {
                    self.unstored.record(behind);
                }
            }
        }
    }

    pub(crate) fn apply_change(&mut self, now: Time, change: Change) {
        match change {
            Change::Registered(spec, bytes) => self.registered(now, *spec, bytes),
            Change::Replaced(spec, bytes) => {
                self.model_removed(now, spec.program.model.clone());
                self.registered(now, *spec, bytes);
            }
            Change::Changed(specs) => {
                for spec in specs {
                    self.model_changed(now, spec);
                }
            }
            Change::Split(record) => {
                let name = record.name.clone();
                let is_split = self.state.traffic.record(&name).split != record.split;
                self.state.traffic.set_record(*record);
                if is_split {
                    self.tell_split(&name);
                }
                for id in self.state.models.versions(&name) {
                    self.announcements.changed_model(id);
                }
            }
            Change::Removed(ids, heir) => {
                for id in ids {
                    self.model_removed(now, id);
                }
                if let Some(heir) = heir {
                    self.model_changed(now, *heir);
                }
            }
            Change::Profiles(profiles) => {
                for (model, kind, profile) in profiles.iter() {
                    let table = &mut self.state.profiles;
                    table.insert(model.clone(), kind.clone(), profile.clone());
                    self.profile_changed(model, kind);
                }
                self.request_plan(now, PlanReason::ProfilesImported);
            }
            Change::Pairs(kind, pairs) => {
                self.state.pairs.insert(kind.clone(), pairs);
                self.state.learn_from_pairs();
                self.request_plan(now, PlanReason::PairsImported(kind));
            }
            Change::Scheduled(record, scheduling, deadline) => {
                self.node_scheduled(now, &record.name, scheduling, deadline);
            }
            Change::NodeRemoved(name) => self.node_removed(now, name),
            Change::Settings(settings) => self.settings_changed(now, settings),
        }
    }

    fn registered(&mut self, now: Time, spec: ModelSpec, bytes: u64) {
        let id = spec.program.model.clone();
        self.rates.add(now, &spec);
        let model = Model::new(spec, bytes);
        self.serve(ServeChange::Model(model.spec.clone()));
        self.state.models.insert(model);
        self.take_known_measurements(now, &id);
        let profiles = &self.state.profiles;
        let is_measured = |kind: &_| profiles.is_measured(&id, kind);
        self.state.measurements.add_model(&id, is_measured);
        self.announcements.model(&id);
        self.state.traffic.touch(&id.name);
        self.request_plan(now, PlanReason::ModelRegistered(id));
    }

    fn model_changed(&mut self, now: Time, spec: ModelSpec) {
        let id = spec.program.model.clone();
        let demand = |spec: &ModelSpec| {
            let rate = (spec.rate, spec.rate_mode);
            let floor = (spec.priority, spec.min_replicas);
            (spec.slo, rate, floor, spec.variant.clone())
        };
        let demanded = demand(&spec);
        let Some(before) = self.state.models.change(spec) else {
            return;
        };
        let Some(model) = self.state.models.get(&id) else {
            return;
        };
        if model.spec.rate != before.rate {
            // The reserved rate is the prior of the measured one.
            self.rates.begin_again(now, &model.spec);
        }
        if model.spec.family() != before.family() {
            self.rates.add(now, &model.spec);
            let names = [&id.name, before.demand_name()];
            for name in names {
                self.rates.forget_unless_used(name, &self.state.models);
            }
        }
        let change = ServeChange::Model(model.spec.clone());
        self.serve(change);
        self.announcements.changed_model(&id);
        if demanded != demand(&before) {
            self.request_plan(now, PlanReason::ModelChanged(id));
        }
    }

    fn model_removed(&mut self, now: Time, id: ModelId) {
        let Some(removed) = self.state.models.remove(&id) else {
            return;
        };
        self.forget_contradicted(now, &id, &removed);
        self.state.measurements.remove_model(&id);
        self.state.inspections.remove_model(&id);
        self.state.learned_shapes.remove(&id);
        self.state.memory_limits.remove_model(&id);
        self.state.exclusions.remove_model(&id);
        self.state.profiles.remove_model(&id);
        self.state.plan.forecasts.remove(&id);
        self.state.rollout.touch_model(&id);
        self.rates.remove(&id);
        for name in [&id.name, removed.spec.demand_name()] {
            self.rates.forget_unless_used(name, &self.state.models);
        }
        self.state.traffic.touch(&id.name);
        self.serve(ServeChange::RemoveModel(id.clone()));
        self.publications.remove_model(&id);
        self.announcements.remove_model(&id);
        self.tell(Notice::Model(id.clone(), None, None));
        self.request_plan(now, PlanReason::ModelRemoved(id));
    }

    /// Notes that a model cannot be served as it is registered.
    pub(crate) fn fail_model(&mut self, now: Time, id: &ModelId, reason: &str) {
        let reason = match reason.chars().take(MAX_TEXT).collect::<String>() {
            reason if reason.is_empty() => "the worker gave no reason".to_owned(),
            reason => reason,
        };
        if self.state.models.fail(id, &reason) {
            self.store_failure(id);
            self.state.measurements.remove_model(id);
            self.state.inspections.remove_model(id);
            self.announcements.model(id);
            self.state.traffic.touch(&id.name);
            self.request_plan(now, PlanReason::ModelFailed(id.clone()));
        }
    }

    /// Updates what depends on the profile of a model on a kind of device.
    pub(crate) fn profile_changed(&mut self, model: &ModelId, kind: &DeviceKind) {
        // An estimate that was imported is measured all the same.
        if self.state.profiles.is_measured(model, kind) {
            self.state.measurements.remove(model, kind);
        }
        self.state.memory_limits.remove(model, kind);
        self.state.forget_observations(model, kind);
        // A model that was removed and registered again keeps its replicas, and with them the plan, but not the profile.
        self.state.rollout.touch_model(model);
        self.announcements.model(model);
    }

    fn node_scheduled(
        &mut self,
        now: Time,
        name: &NodeName,
        scheduling: Scheduling,
        deadline: Option<Time>,
    ) {
        match scheduling {
            Scheduling::Draining => self.drains.begin(name, deadline),
            Scheduling::Open | Scheduling::Cordoned => self.drains.end(name),
        }
        if self.state.nodes.schedule(name, scheduling) {
            self.node_changed(now, name);
            self.announcements.node(name);
            let reason = PlanReason::NodeScheduled(name.clone(), scheduling);
            self.request_plan(now, reason);
        }
    }

    fn node_removed(&mut self, now: Time, name: NodeName) {
        self.state.rollout.touch_node(&name);
        if !self.state.nodes.remove(&name) {
            return;
        }
        self.awaited.remove(&name);
        self.drains.end(&name);
        self.node_changed(now, &name);
        self.publications.remove_node(&name);
        self.fence.forget(&name);
        self.announcements.remove_node(&name);
        self.tell(Notice::Node(name.clone(), None, "was removed".to_owned()));
        self.request_plan(now, PlanReason::NodeRemoved(name));
    }

    /// Updates what depends on the devices of a node that accept replicas.
    pub(crate) fn node_changed(&mut self, now: Time, name: &NodeName) {
        let node = self
            .state
            .nodes
            .get(name)
            .filter(|node| node.takes_replicas());
        let devices = node.into_iter().flat_map(Node::devices);
        let devices: BTreeMap<DeviceId, DeviceKind> = devices
            .map(|(id, device)| (id, device.kind.clone()))
            .collect();
        let kinds: BTreeSet<DeviceKind> = devices.values().cloned().collect();
        self.take_known_of_kinds(now, &kinds);
        self.estimate_for_node(name);
        self.state.set_inspecting_node(name);
        let (models, profiles) = (&self.state.models, &self.state.profiles);
        self.state.measurements.set_devices(name, devices, |kind| {
            let servable = models.iter().filter(|(_, model)| model.failure.is_none());
            let missing = servable.filter(|(id, _)| !profiles.is_measured(id, kind));
            missing
                .map(|(id, _)| id.clone())
                .collect::<BTreeSet<ModelId>>()
        });
        self.announcements.all_unserved();
    }

    fn settings_changed(&mut self, now: Time, settings: Settings) {
        if let Some(policy) = settings.policy
            && policy != self.state.policy
        {
            self.state.policy.clone_from(&policy);
            self.request_plan(now, PlanReason::PolicyChanged(policy));
        }
        if let Some(options) = settings.options
            && options != self.state.options
        {
            self.state.options = options;
            self.request_plan(now, PlanReason::OptionsChanged);
        }
        if let Some(discipline) = settings.discipline
            && discipline != self.state.discipline
        {
            self.state.discipline = discipline;
            self.serve(ServeChange::Discipline(discipline));
            self.request_plan(now, PlanReason::DisciplineChanged(discipline));
        }
    }
}

/// Returns the family and accuracy of a model that had `before`.
fn changed_variant(
    before: Option<VariantOf>,
    change: &ModelSpecChange,
) -> Result<Option<VariantOf>, CommandError> {
    let (former, known) = before.map_or((None, None), |before| {
        (Some(before.family), Some(before.accuracy))
    });
    let invalid = |field: &str, problem: &str| {
        Err(CommandError::InvalidModel(ModelSpecError {
            field: field.to_owned(),
            problem: problem.to_owned(),
        }))
    };
    let family = change.family.clone().unwrap_or(former);
    match (family, change.accuracy) {
        (None, Some(_)) => invalid(
            "accuracy",
            "only a model of a family has one: give family too",
        ),
        (None, None) => Ok(None),
        (Some(family), accuracy) => match accuracy.or(known) {
            Some(accuracy) => Ok(Some(VariantOf { family, accuracy })),
            None => invalid("accuracy", "required for a model of a family"),
        },
    }
}

/// Returns the refusal of a command whose change could not be stored.
fn refusal(change: &Change, error: WriteError) -> CommandError {
    match (change, error) {
        (Change::Registered(spec, _), WriteError::Exists) => {
            CommandError::ModelExists(spec.program.model.clone())
        }
        (Change::Registered(spec, _) | Change::Replaced(spec, _), WriteError::Dangling) => {
            CommandError::UnknownArtifact(spec.program.artifact)
        }
        (_, error) => CommandError::NotStored(error),
    }
}

fn check_repository(problems: &[RepositoryProblem]) -> Result<(), CommandError> {
    if problems.len() > MAX_REPOSITORY_PROBLEMS {
        return Err(CommandError::InvalidField {
            field: "problems",
            problem: format!(
                "{} are over the limit of {MAX_REPOSITORY_PROBLEMS}",
                problems.len()
            ),
        });
    }
    Ok(())
}
