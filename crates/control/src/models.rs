//! The registered models.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use packhorse_cluster::{
    MinReplicas, ModelId, ModelName, ModelSpec, ModelVersion, Priority, Program, RateMode,
    RequestsPerSecond, by_accuracy,
};
use packhorse_estimator::OperatorGraph;

use crate::{command::CommandError, record::ModelRecord};

/// A registered model.
#[derive(Clone, Debug, PartialEq)]
pub struct Model {
    /// The registered specification.
    pub spec: Arc<ModelSpec>,
    /// The program of the specification.
    pub program: Arc<Program>,
    /// The size of the model's file, in bytes.
    pub artifact_bytes: u64,
    /// The reason why the model cannot be served as it is registered, if it cannot.
    pub failure: Option<String>,
    /// The operators of the program; none if no node has found them.
    pub operators: Option<Arc<OperatorGraph>>,
}

/// All registered models, by name and version.
#[derive(Clone, Debug, Default)]
pub(crate) struct Models {
    by_id: BTreeMap<ModelId, Model>,
    /// The names of the variants of every family.
    families: BTreeMap<ModelName, BTreeSet<ModelName>>,
    /// The family of every variant.
    family_of: BTreeMap<ModelName, ModelName>,
}

/// The rate that is reserved for a model or a family, or expected without a reservation, and what it counts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct DeclaredRate {
    pub(crate) rate: RequestsPerSecond,
    pub(crate) mode: RateMode,
}

impl Model {
    /// Creates a model that was registered just now.
    pub(crate) fn new(spec: ModelSpec, artifact_bytes: u64) -> Self {
        Self {
            program: Arc::new(spec.program.clone()),
            spec: Arc::new(spec),
            artifact_bytes,
            failure: None,
            operators: None,
        }
    }

    /// Restores a stored model.
    pub(crate) fn restore(record: ModelRecord) -> Self {
        Self {
            failure: record.failure,
            operators: record.operators,
            ..Self::new(record.spec, record.artifact_bytes)
        }
    }
}

impl Models {
    pub(crate) fn get(&self, id: &ModelId) -> Option<&Model> {
        self.by_id.get(id)
    }

    /// Returns the newest version of a model.
    pub(crate) fn newest(&self, name: &ModelName) -> Option<&Model> {
        self.get(self.versions(name).next_back()?)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&ModelId, &Model)> {
        self.by_id.iter()
    }

    pub(crate) fn len(&self) -> usize {
        self.by_id.len()
    }

    /// Adds a model, or replaces the one of the same identity.
    pub(crate) fn insert(&mut self, model: Model) {
        let id = model.program.model.clone();
        let name = id.name.clone();
        self.by_id.insert(id, model);
        self.set_family(&name);
    }

    /// Updates the family of a model. All its versions are in the same.
    fn set_family(&mut self, name: &ModelName) {
        let family = self.newest(name).and_then(|model| model.spec.family());
        let family = family.cloned();
        if self.family_of.get(name) == family.as_ref() {
            return;
        }
        if let Some(before) = self.family_of.remove(name)
            && let Some(variants) = self.families.get_mut(&before)
        {
            variants.remove(name);
            if variants.is_empty() {
                self.families.remove(&before);
            }
        }
        if let Some(family) = family {
            self.family_of.insert(name.clone(), family.clone());
            self.families
                .entry(family)
                .or_default()
                .insert(name.clone());
        }
    }

    /// Returns the families, by name.
    pub(crate) fn families(&self) -> impl Iterator<Item = &ModelName> {
        self.families.keys()
    }

    /// Returns the newest versions of the variants of a family, the most accurate first; none if there is no such family.
    pub(crate) fn variants(&self, family: &ModelName) -> Vec<&Model> {
        let names = self.families.get(family).into_iter().flatten();
        let newest = names.filter_map(|name| self.newest(name));
        let mut variants: Vec<(_, &Model)> = newest
            .filter_map(|model| Some((model.spec.variant.as_ref()?.accuracy, model)))
            .collect();
        variants.sort_by(|(a, _), (b, _)| by_accuracy(*a, *b));
        variants.into_iter().map(|(_, model)| model).collect()
    }

    /// Returns all versions of the variants of a family.
    pub(crate) fn members(&self, family: &ModelName) -> impl Iterator<Item = &Model> {
        let names = self.families.get(family).into_iter().flatten();
        names
            .flat_map(|name| self.versions(name))
            .filter_map(|id| self.get(id))
    }

    /// Returns the newest version of a model, or of the most accurate variant of a family.
    pub(crate) fn representative(&self, name: &ModelName) -> Option<&Model> {
        self.newest(name)
            .or_else(|| self.variants(name).into_iter().next())
    }

    /// Returns the reserved rate of a model, or the sum of those of a family's variants. Without a reservation it is the rate that is
    /// expected until requests are measured, and only the measured rate counts afterwards.
    pub(crate) fn declared(&self, name: &ModelName) -> Option<DeclaredRate> {
        let spec = &self.representative(name)?.spec;
        let variants = self.variants(name);
        let reserved = variants.iter().filter_map(|variant| variant.spec.rate);
        let reserved: Vec<RequestsPerSecond> = if variants.is_empty() {
            spec.rate.into_iter().collect()
        } else {
            reserved.collect()
        };
        let (Some(first), mode) = (reserved.first(), spec.rate_mode) else {
            return Some(DeclaredRate {
                rate: ModelSpec::UNMEASURED_RATE,
                mode: RateMode::Measured,
            });
        };
        let sum = reserved.iter().map(|rate| rate.get()).sum();
        let rate = RequestsPerSecond::new(sum).unwrap_or(*first);
        Some(DeclaredRate { rate, mode })
    }

    /// Returns the priority of a model's newest version, which all versions have.
    pub(crate) fn priority(&self, name: &ModelName) -> Priority {
        let newest = self.newest(name);
        newest.map_or_else(Priority::default, |model| model.spec.priority)
    }

    /// Returns the least number of devices with replicas of a model's newest version, which all versions have.
    pub(crate) fn min_replicas(&self, name: &ModelName) -> MinReplicas {
        let newest = self.newest(name);
        newest.map_or_else(MinReplicas::default, |model| model.spec.min_replicas)
    }

    /// Replaces the specification of a model. Returns the earlier one; `None` if the model was removed meanwhile.
    pub(crate) fn change(&mut self, spec: ModelSpec) -> Option<Arc<ModelSpec>> {
        let name = spec.program.model.name.clone();
        let model = self.by_id.get_mut(&spec.program.model)?;
        let before = std::mem::replace(&mut model.spec, Arc::new(spec));
        self.set_family(&name);
        Some(before)
    }

    /// Removes a model, and returns it.
    pub(crate) fn remove(&mut self, id: &ModelId) -> Option<Model> {
        let removed = self.by_id.remove(id);
        self.set_family(&id.name);
        removed
    }

    /// Notes that a model cannot be served as it is registered. Returns false if that was known, or there is no such model.
    pub(crate) fn fail(&mut self, id: &ModelId, reason: &str) -> bool {
        match self.by_id.get_mut(id) {
            Some(model) if model.failure.is_none() => {
                model.failure = Some(reason.to_owned());
                true
            }
            _ => false,
        }
    }

    /// Returns true if the model is registered and the operators of its program are not known.
    pub(crate) fn needs_operators(&self, id: &ModelId) -> bool {
        let model = self.by_id.get(id);
        model.is_some_and(|model| model.operators.is_none())
    }

    /// Notes the operators of a model's program.
    pub(crate) fn set_operators(&mut self, id: &ModelId, operators: Arc<OperatorGraph>) {
        if let Some(model) = self.by_id.get_mut(id) {
            model.operators = Some(operators);
        }
    }

    /// Returns true if this program is registered and can be served.
    pub(crate) fn serves(&self, program: &Program) -> bool {
        let model = self.by_id.get(&program.model);
        model.is_some_and(|model| model.failure.is_none() && *model.program == *program)
    }

    /// Returns the identity of a registered model; of its newest version if none is given.
    pub(crate) fn find(
        &self,
        name: &ModelName,
        version: Option<ModelVersion>,
    ) -> Result<ModelId, CommandError> {
        let newest = self
            .versions(name)
            .next_back()
            .ok_or_else(|| CommandError::UnknownModel(name.clone()))?;
        let Some(version) = version else {
            return Ok(newest.clone());
        };
        let id = ModelId {
            name: name.clone(),
            version,
        };
        if self.by_id.contains_key(&id) {
            Ok(id)
        } else {
            Err(CommandError::UnknownVersion(name.clone(), version))
        }
    }

    /// Returns the registered versions of a model, in ascending order.
    pub(crate) fn versions(&self, name: &ModelName) -> impl DoubleEndedIterator<Item = &ModelId> {
        let at = |version| ModelId {
            name: name.clone(),
            version,
        };
        let versions = self
            .by_id
            .range(at(ModelVersion::FIRST)..=at(ModelVersion::LAST));
        versions.map(|(id, _)| id)
    }
}
