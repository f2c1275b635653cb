//! The served models, for the HTTP handlers.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use packhorse_cluster::{ModelId, ModelName, ModelVersion};

use super::{
    requested_model::RequestedModel, served_model::ServedModel, version_route::VersionRoute,
};

/// The reason why a model was not found.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum FindModelError {
    #[error("there is no model \"{0}\"")]
    Model(ModelName),
    #[error("model \"{0}\" has no version {1}")]
    Version(ModelName, ModelVersion),
    #[error("\"{0}\" is a family, which has no versions: name none, or one of its variants")]
    VersionOfFamily(ModelName),
}

/// All models, by name and version. None of the inner maps is empty.
#[derive(Clone, Debug, Default)]
pub(crate) struct Catalog {
    models: BTreeMap<ModelName, BTreeMap<ModelVersion, Arc<ServedModel>>>,
    /// The names of the variants of every family.
    families: BTreeMap<ModelName, BTreeSet<ModelName>>,
    /// The choice of a version, of the models that have more than one.
    routes: BTreeMap<ModelName, Arc<VersionRoute>>,
    phase: Phase,
}

/// The phase of the data plane.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Phase {
    /// The replicas of the stored plan are being connected to.
    #[default]
    Starting,
    /// Requests are taken.
    Open,
    /// No requests are taken any more.
    Closed,
}

impl Catalog {
    /// Creates a catalog of these models.
    pub(super) fn new(
        models: impl Iterator<Item = Arc<ServedModel>>,
        routes: BTreeMap<ModelName, Arc<VersionRoute>>,
        phase: Phase,
    ) -> Self {
        let mut catalog = Self {
            models: BTreeMap::new(),
            families: BTreeMap::new(),
            routes,
            phase,
        };
        for model in models {
            let ModelId { name, version } = model.id().clone();
            if let Some(family) = model.spec.family() {
                let variants = catalog.families.entry(family.clone()).or_default();
                variants.insert(name.clone());
            }
            catalog
                .models
                .entry(name)
                .or_default()
                .insert(version, model);
        }
        catalog
    }

    /// Returns the model or family of a name. A version is that of a model.
    pub(crate) fn find(
        &self,
        name: &ModelName,
        version: Option<ModelVersion>,
        request_id: Option<&[u8]>,
    ) -> Result<RequestedModel, FindModelError> {
        let Some(variants) = self.families.get(name) else {
            let model = Arc::clone(self.find_model(name, version, request_id)?);
            let former = version.is_none().then(|| self.former_of(&model)).flatten();
            return Ok(RequestedModel::model(model, former));
        };
        if version.is_some() {
            return Err(FindModelError::VersionOfFamily(name.clone()));
        }
        let variants = variants
            .iter()
            .filter_map(|variant| self.find_model(variant, None, request_id).ok());
        RequestedModel::family(name.clone(), variants.cloned().collect())
            .ok_or_else(|| FindModelError::Model(name.clone()))
    }

    /// Returns the families, by name.
    pub(crate) fn families(&self) -> impl Iterator<Item = RequestedModel> {
        let names = self.families.keys();
        names.filter_map(|name| self.find(name, None, None).ok())
    }

    /// Returns a version of a model. Without a version: the one that the model's split chooses for a request with this id; where there
    /// is no split, the newest that is ready, or else the newest.
    fn find_model(
        &self,
        name: &ModelName,
        version: Option<ModelVersion>,
        request_id: Option<&[u8]>,
    ) -> Result<&Arc<ServedModel>, FindModelError> {
        let versions = self
            .models
            .get(name)
            .ok_or_else(|| FindModelError::Model(name.clone()))?;
        let newest = || {
            let ready = versions.values().rev().find(|model| model.is_ready());
            ready.or_else(|| versions.values().next_back())
        };
        let split = || {
            let is_ready = |version| versions.get(&version).is_some_and(|model| model.is_ready());
            let chosen = self.routes.get(name)?.choose(request_id, is_ready)?;
            versions.get(&chosen)
        };
        let found = match version {
            Some(version) => versions.get(&version),
            None => split().or_else(newest),
        };
        found.ok_or_else(|| {
            FindModelError::Version(name.clone(), version.unwrap_or(ModelVersion::FIRST))
        })
    }

    /// Returns the version that answers what a version on trial cannot answer in time, if both answer the same requests.
    fn former_of(&self, model: &ServedModel) -> Option<Arc<ServedModel>> {
        let ModelId { name, version } = model.id();
        if model.spec.variant.is_some() {
            return None;
        }
        let former = self.routes.get(name)?.former_of(*version)?;
        let former = self.models.get(name)?.get(&former)?;
        let (one, other) = (&model.spec.program, &former.spec.program);
        let are_alike = one.inputs == other.inputs
            && one.outputs == other.outputs
            && one.batches() == other.batches()
            && model.spec.processing.preprocess == former.spec.processing.preprocess;
        are_alike.then(|| Arc::clone(former))
    }

    /// Returns the versions of a model, ascending.
    pub(crate) fn versions(&self, name: &ModelName) -> impl Iterator<Item = ModelVersion> {
        self.models
            .get(name)
            .into_iter()
            .flat_map(|versions| versions.keys().copied())
    }

    /// Returns all models, by name and version.
    pub(crate) fn all(&self) -> impl Iterator<Item = &Arc<ServedModel>> {
        self.models.values().flat_map(BTreeMap::values)
    }

    /// Returns true if requests are taken.
    pub(crate) fn is_open(&self) -> bool {
        self.phase == Phase::Open
    }

    /// Returns true if requests will be taken in a moment, because the gateway has just started.
    pub(crate) fn is_starting(&self) -> bool {
        self.phase == Phase::Starting
    }
}
