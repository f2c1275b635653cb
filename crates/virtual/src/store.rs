//! A store that carries out one write after the other, each after a delay, and loses what is not carried out when the gateway dies.

use std::collections::{BTreeMap, VecDeque};

use packhorse_cluster::{ClusterId, Generation, ModelId, ModelSpec, NodeName, ProfileTable};
use packhorse_control::{
    MeasurementKey, Receipt, Write, WriteError,
    record::{ModelRecord, NodeRecord, PlanOutcome, Settings, StoredCluster},
};

/// The identity of a cluster that nobody asks for.
const ANY: &str = "00000000000000000000000000000000";
/// The number of plans that a start of the gateway reads.
const RESTORED_PLANS: usize = 16;

/// A store with the writes that are under way.
#[derive(Debug)]
pub struct Store {
    /// The content of the disk. Its epoch is that of the last start.
    pub disk: StoredCluster,
    /// The outcomes of replaced plans.
    pub outcomes: BTreeMap<Generation, PlanOutcome>,
    queue: VecDeque<(Receipt, Write)>,
    /// The error that all writes end with, while there is one.
    pub failure: Option<WriteError>,
}

impl Default for Store {
    fn default() -> Self {
        Self::new(ANY.parse().expect("a valid identity"))
    }
}

impl Store {
    /// Returns an empty store of a cluster with this identity.
    pub fn new(cluster_id: ClusterId) -> Self {
        Self::with(StoredCluster {
            cluster_id,
            epoch: 0,
            models: Vec::new(),
            splits: Vec::new(),
            nodes: Vec::new(),
            plans: Vec::new(),
            profiles: ProfileTable::default(),
            measurements: Vec::new(),
            pairs: BTreeMap::new(),
            needs: BTreeMap::new(),
            settings: Settings::default(),
        })
    }

    /// Returns a store with this content.
    pub fn with(disk: StoredCluster) -> Self {
        Self {
            disk,
            outcomes: BTreeMap::new(),
            queue: VecDeque::new(),
            failure: None,
        }
    }

    /// Returns what a gateway reads at its start, which begins a new epoch.
    pub(crate) fn start(&mut self) -> StoredCluster {
        self.queue.clear();
        self.disk.epoch += 1;
        self.disk.clone()
    }

    /// Adds a write. Returns true if no other one was under way.
    pub(crate) fn push(&mut self, receipt: Receipt, write: Write) -> bool {
        self.queue.push_back((receipt, write));
        self.queue.len() == 1
    }

    /// Carries out the next write. Returns its result, and true if others wait.
    pub(crate) fn carry_out_next(&mut self) -> Option<(Receipt, Result<(), WriteError>, bool)> {
        let (receipt, write) = self.queue.pop_front()?;
        let result = match self.failure {
            Some(error) => Err(error),
            None => self.carry_out(write),
        };
        Some((receipt, result, !self.queue.is_empty()))
    }

    fn carry_out(&mut self, write: Write) -> Result<(), WriteError> {
        let disk = &mut self.disk;
        let newest = disk.plans.first();
        let newest = newest.map_or(Generation(0), |plan| plan.generation);
        let position = |models: &[ModelRecord], id: &ModelId| {
            models.iter().position(|m| m.spec.program.model == *id)
        };
        match write {
            Write::BeginEpoch(epoch) if epoch <= disk.epoch => return Err(WriteError::Exists),
            Write::BeginEpoch(epoch) => disk.epoch = epoch,
            Write::InsertModel(spec) if position(&disk.models, &spec.program.model).is_some() => {
                return Err(WriteError::Exists);
            }
            Write::InsertModel(spec) | Write::ReplaceModel(spec) => {
                let replaced = &spec.program.model;
                disk.models.retain(|m| m.spec.program.model != *replaced);
                disk.profiles.remove_model(replaced);
                disk.models.push(new_model(*spec, newest));
            }
            Write::UpdateModels(specs) => {
                for spec in specs {
                    replace(&mut disk.models, spec);
                }
            }
            Write::FailModel(id, reason) => {
                if let Some(at) = position(&disk.models, &id) {
                    disk.models[at].failure = Some(reason);
                }
            }
            Write::SetOperators(id, operators) => {
                if let Some(at) = position(&disk.models, &id) {
                    disk.models[at].operators = Some(operators);
                }
            }
            Write::UpsertSplit(record) => {
                disk.splits.retain(|split| split.name != record.name);
                disk.splits.push(*record);
            }
            Write::DeleteModels(ids, heir) => {
                disk.models.retain(|m| !ids.contains(&m.spec.program.model));
                if let Some(heir) = heir {
                    replace(&mut disk.models, *heir);
                }
                let models = &disk.models;
                disk.splits.retain(|split| {
                    let mut models = models.iter();
                    models.any(|m| m.spec.program.model.name == split.name)
                });
                for id in &ids {
                    disk.profiles.remove_model(id);
                }
            }
            Write::UpsertMeasurement(key, profiles, _) => {
                add_measurement(disk, &key, &profiles);
                add_profiles(disk, &profiles);
            }
            Write::DeleteMeasurement(key) => disk.measurements.retain(|(other, _)| *other != *key),
            Write::UpsertProfiles(profiles, _) => add_profiles(disk, &profiles),
            Write::UpsertPairs(kind, pairs) => {
                disk.pairs.insert(kind, pairs);
            }
            Write::UpsertNode(record) => match node(&mut disk.nodes, &record.name) {
                Some(node) => {
                    let scheduling = node.scheduling;
                    *node = NodeRecord {
                        scheduling,
                        ..*record
                    };
                }
                None => disk.nodes.push(*record),
            },
            Write::ScheduleNode(record) => match node(&mut disk.nodes, &record.name) {
                Some(node) => node.scheduling = record.scheduling,
                None => disk.nodes.push(*record),
            },
            Write::DeleteNode(name) => disk.nodes.retain(|node| node.name != name),
            Write::UpdateSettings(settings) => {
                let Settings {
                    policy,
                    options,
                    discipline,
                } = settings;
                disk.settings.policy = policy.or(disk.settings.policy.take());
                disk.settings.options = options.or(disk.settings.options);
                disk.settings.discipline = discipline.or(disk.settings.discipline);
            }
            Write::SetNeeds(needs) => disk.needs = needs,
            Write::InsertPlan(plan, outcome) => {
                if plan.generation <= newest {
                    return Err(WriteError::Exists);
                }
                disk.plans.insert(0, (*plan).clone());
                disk.plans.truncate(RESTORED_PLANS);
                let outcome = outcome.map(|outcome| (newest, outcome));
                self.outcomes.extend(outcome);
            }
        }
        Ok(())
    }
}

/// Replaces the specification of a model.
fn replace(models: &mut [ModelRecord], spec: ModelSpec) {
    let mut models = models.iter_mut();
    if let Some(model) = models.find(|m| m.spec.program.model == spec.program.model) {
        model.spec = spec;
    }
}

fn add_profiles(disk: &mut StoredCluster, profiles: &ProfileTable) {
    for (model, kind, profile) in profiles.iter() {
        let table = &mut disk.profiles;
        table.insert(model.clone(), kind.clone(), profile.clone());
    }
}

/// Adds a measurement, or replaces the one of the same identity.
fn add_measurement(disk: &mut StoredCluster, key: &MeasurementKey, profiles: &ProfileTable) {
    disk.measurements.retain(|(other, _)| other != key);
    for (_, _, profile) in profiles.iter() {
        disk.measurements.push((key.clone(), profile.clone()));
    }
}

fn new_model(spec: ModelSpec, after_plan: Generation) -> ModelRecord {
    ModelRecord {
        spec,
        artifact_bytes: 0,
        failure: None,
        operators: None,
        after_plan,
    }
}

fn node<'a>(nodes: &'a mut [NodeRecord], name: &NodeName) -> Option<&'a mut NodeRecord> {
    nodes.iter_mut().find(|node| node.name == *name)
}
