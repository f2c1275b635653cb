//! The served models, for the HTTP handlers.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use packhorse_cluster::{ModelId, ModelName, ModelSpec, ModelVersion, Time};
use packhorse_serving::{ModelKey, Refusal, TenantKey};

use super::{load::ModelLoad, requested_model::RequestedModel, version_route::VersionRoute};
use crate::{input_memory::InputMemory, memory::ModelMemory, telemetry::ModelTelemetry};

/// A registered model version.
#[derive(Clone, Debug)]
pub(crate) struct ServedModel {
    /// The model's number in the engine.
    pub(crate) key: ModelKey,
    /// The model's specification.
    pub(crate) spec: Arc<ModelSpec>,
    /// The model's measurements.
    pub(crate) telemetry: Arc<ModelTelemetry>,
    /// The memory that the model's requests hold.
    pub(crate) memory: ModelMemory,
    /// The memory for bodies that workers of this host read.
    pub(crate) inputs: InputMemory,
    /// The most requests that wait for the model.
    pub(crate) queue_limit: usize,
    /// The model's queue, and how fast it drains.
    pub(crate) load: Arc<ModelLoad>,
    pub(super) readiness: Arc<Readiness>,
}

/// The shortest time after which a client is asked to try again: the header's unit.
const RETRY_MIN: Duration = Duration::from_secs(1);
/// The longest time after which a client is asked to try again.
const RETRY_MAX: Duration = Duration::from_mins(1);
/// The time after which to ask again for a model that has no replica: about as long as one takes to start.
const RETRY_WITHOUT_REPLICA: Duration = Duration::from_secs(5);

/// The readiness of a model, updated by the driver.
#[derive(Debug, Default)]
pub(super) struct Readiness {
    /// True if a replica takes batches.
    pub(super) ready: AtomicBool,
    /// True if a replica is being connected to.
    pub(super) loading: AtomicBool,
}

impl ServedModel {
    /// Returns name and version.
    pub(crate) fn id(&self) -> &ModelId {
        &self.spec.program.model
    }

    /// Returns true if a replica takes the model's requests.
    pub(crate) fn is_ready(&self) -> bool {
        self.readiness.ready.load(Relaxed)
    }

    /// Returns the reason why the engine would refuse any request of a tenant now, as far as that is known without the request.
    pub(crate) fn refusal(&self, tenant: TenantKey) -> Option<Refusal> {
        if !self.is_ready() {
            Some(Refusal::NoReplica)
        } else if self.load.queued() >= self.queue_limit && self.load.stands_behind(tenant) {
            Some(Refusal::QueueFull {
                limit: self.queue_limit,
            })
        } else {
            None
        }
    }

    /// Returns true if the queue is so long that a tenant's request that arrived at `arrived` would wait for longer than the model's SLO, and
    /// for longer than any recent request was ready to.
    pub(crate) fn is_hopeless(&self, now: Time, arrived: Time, tenant: TenantKey) -> bool {
        if !self.load.stands_behind(tenant) {
            return false;
        }
        let allowed = self.spec.slo.max(self.load.patience(now));
        self.load
            .expected_wait(now)
            .is_some_and(|wait| now.saturating_since(arrived).saturating_add(wait) > allowed)
    }

    /// Returns the time after which a refused client may try again: when the present queue has drained.
    pub(crate) fn retry_after(&self, now: Time) -> Duration {
        if self.is_ready() {
            let wait = self.load.expected_wait(now).unwrap_or_default();
            wait.clamp(RETRY_MIN, RETRY_MAX)
        } else if self.is_loading() {
            RETRY_MIN
        } else {
            RETRY_WITHOUT_REPLICA
        }
    }

    /// Returns true if replicas of the model are being connected to.
    pub(crate) fn is_loading(&self) -> bool {
        self.readiness.loading.load(Relaxed)
    }
}

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
            let model = self.find_model(name, version, request_id)?;
            return Ok(RequestedModel::model(Arc::clone(model)));
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
