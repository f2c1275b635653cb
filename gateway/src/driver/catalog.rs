//! The models that are served, as HTTP handlers see them.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

use packhorse_cluster::{ModelId, ModelName, ModelSpec, ModelVersion};
use packhorse_serving::ModelKey;

use crate::telemetry::ModelTelemetry;

/// A registered model version.
#[derive(Clone, Debug)]
pub(crate) struct ServedModel {
    /// Its number in the engine.
    pub(crate) key: ModelKey,
    /// What was registered.
    pub(crate) spec: Arc<ModelSpec>,
    /// What is measured of it.
    pub(crate) telemetry: Arc<ModelTelemetry>,
    pub(super) readiness: Arc<Readiness>,
}

/// Whether a model can be asked, as the driver last saw it.
#[derive(Debug, Default)]
pub(super) struct Readiness {
    /// A replica takes batches.
    pub(super) ready: AtomicBool,
    /// There are replicas that it has yet to connect to.
    pub(super) loading: AtomicBool,
}

impl ServedModel {
    /// Name and version.
    pub(crate) fn id(&self) -> &ModelId {
        &self.spec.program.model
    }

    /// Whether a replica takes its requests.
    pub(crate) fn is_ready(&self) -> bool {
        self.readiness.ready.load(Relaxed)
    }

    /// Whether replicas of it are about to take requests.
    pub(crate) fn is_loading(&self) -> bool {
        self.readiness.loading.load(Relaxed)
    }
}

/// Why there is no such model.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NotServed {
    #[error("there is no model \"{0}\"")]
    Model(ModelName),
    #[error("model \"{0}\" has no version {1}")]
    Version(ModelName, ModelVersion),
}

/// All models, by name and version. None of the inner maps is empty.
#[derive(Clone, Debug, Default)]
pub(crate) struct Catalog {
    models: BTreeMap<ModelName, BTreeMap<ModelVersion, Arc<ServedModel>>>,
    /// Whether anybody has said what shall be served, and the data plane does not end.
    open: bool,
}

impl Catalog {
    /// Of these models; `open` says whether requests are taken.
    pub(super) fn new(models: impl Iterator<Item = Arc<ServedModel>>, open: bool) -> Self {
        let mut catalog = Self {
            models: BTreeMap::new(),
            open,
        };
        for model in models {
            let ModelId { name, version } = model.id().clone();
            catalog
                .models
                .entry(name)
                .or_default()
                .insert(version, model);
        }
        catalog
    }

    /// This version of a model. Without a version: the newest that is ready, or else the newest.
    pub(crate) fn find(
        &self,
        name: &ModelName,
        version: Option<ModelVersion>,
    ) -> Result<&Arc<ServedModel>, NotServed> {
        let versions = self
            .models
            .get(name)
            .ok_or_else(|| NotServed::Model(name.clone()))?;
        let newest = || {
            let ready = versions.values().rev().find(|model| model.is_ready());
            ready.or_else(|| versions.values().next_back())
        };
        let found = version.map_or_else(newest, |version| versions.get(&version));
        found
            .ok_or_else(|| NotServed::Version(name.clone(), version.unwrap_or(ModelVersion::FIRST)))
    }

    /// The versions of a model, ascending.
    pub(crate) fn versions(&self, name: &ModelName) -> impl Iterator<Item = ModelVersion> {
        self.models
            .get(name)
            .into_iter()
            .flat_map(|versions| versions.keys().copied())
    }

    /// All models, by name and version.
    pub(crate) fn all(&self) -> impl Iterator<Item = &Arc<ServedModel>> {
        self.models.values().flat_map(BTreeMap::values)
    }

    /// Whether requests are taken.
    pub(crate) fn is_open(&self) -> bool {
        self.open
    }
}
