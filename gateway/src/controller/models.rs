//! Models: registered, changed, removed, and found to be unservable.

use std::{sync::Arc, time::Duration};

use packhorse_api::{ModelChange, ModelView};
use packhorse_cluster::{
    ArtifactDigest, ModelId, ModelName, ModelSpec, ModelSpecError, ModelVersion, ProfileTable,
};
use packhorse_kernels::KernelTable;

use super::{
    cluster::{Cluster, Model},
    nodes::shortened,
    spoken,
};
use crate::store::{InsertModelError, StoreError};

/// The most registered versions of models.
const MAX_MODELS: usize = 10_000;

/// Why a model is not registered.
#[derive(Debug, thiserror::Error)]
pub enum RegisterError {
    /// A field is out of its limits.
    #[error(transparent)]
    Invalid(#[from] ModelSpecError),
    /// The version is registered.
    #[error("model {0} is registered already: choose another version, or remove that one first")]
    Exists(ModelId),
    /// Its file is not stored.
    #[error("artifact: no artifact {0} is stored: upload it first, with PUT /v1/artifacts/{0}")]
    UnknownArtifact(ArtifactDigest),
    /// There are too many.
    #[error("{MAX_MODELS} models are registered, which is the most")]
    TooMany,
    /// The database failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Why something is not done with a model.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// There is none of that name.
    #[error("no model {0} is registered")]
    UnknownName(ModelName),
    /// There is one of that name, but not of that version.
    #[error("model {0} has no version {1}")]
    UnknownVersion(ModelName, ModelVersion),
    /// A field is out of its limits.
    #[error(transparent)]
    Invalid(#[from] ModelSpecError),
    /// The database failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl Cluster {
    /// Registers a version of a model, durably.
    pub(super) async fn register(&mut self, spec: ModelSpec) -> Result<ModelView, RegisterError> {
        spec.validate()?;
        let id = spec.program.model.clone();
        if self.models.len() >= MAX_MODELS {
            return Err(RegisterError::TooMany);
        }
        let digest = spec.program.artifact;
        let Some(bytes) = self.store.artifact(digest).await? else {
            return Err(RegisterError::UnknownArtifact(digest));
        };
        self.store.insert_model(&spec).await.map_err(|e| match e {
            InsertModelError::Exists => RegisterError::Exists(id.clone()),
            InsertModelError::UnknownArtifact => RegisterError::UnknownArtifact(digest),
            InsertModelError::Store(e) => RegisterError::Store(e),
        })?;
        tracing::info!(model.name = %id.name, model.version = id.version.get(), "a model was registered");
        self.models
            .insert(id.clone(), Model::new(spec, bytes, None));
        self.published.outdated = true;
        self.request_plan(format!("{} was registered", spoken(&id)));
        Ok(self.view_of(&id, &self.models[&id]))
    }

    /// Changes what is promised of a model.
    pub(super) async fn change_model(
        &mut self,
        name: ModelName,
        version: Option<ModelVersion>,
        change: ModelChange,
    ) -> Result<ModelView, ModelError> {
        let id = self.find_model(&name, version)?;
        let model = self.models.get_mut(&id).expect("it was just found");
        let mut spec = ModelSpec::clone(&model.spec);
        if let Some(slo_ms) = change.slo_ms {
            spec.slo = slo_of_ms(slo_ms)?;
        }
        spec.rate = change.rate_rps.unwrap_or(spec.rate);
        spec.queue_limit = change.queue_limit.unwrap_or(spec.queue_limit);
        spec.validate()?;
        if spec != *model.spec {
            self.store.update_model(&spec).await?;
            let demanded = |spec: &ModelSpec| (spec.slo, spec.rate);
            let other_demand = demanded(&spec) != demanded(&model.spec);
            model.spec = Arc::new(spec);
            self.published.outdated = true;
            self.changed = true;
            if other_demand {
                self.request_plan(format!("{} was changed", spoken(&id)));
            }
        }
        self.model_view(&id)
    }

    /// Removes a version of a model, or all of them.
    pub(super) async fn remove_model(
        &mut self,
        name: ModelName,
        version: Option<ModelVersion>,
    ) -> Result<(), ModelError> {
        let ids: Vec<ModelId> = match version {
            Some(_) => vec![self.find_model(&name, version)?],
            None => self.versions(&name).cloned().collect(),
        };
        if ids.is_empty() {
            return Err(ModelError::UnknownName(name));
        }
        self.store.delete_models(&ids).await?;
        for id in ids {
            tracing::info!(model.name = %id.name, model.version = id.version.get(), "a model was removed");
            self.models.remove(&id);
            self.measuring.forget(&id);
            self.fitting.forget_model(&id);
            self.plan.forecasts.remove(&id);
            self.profiles = without(&self.profiles, &id);
            self.request_plan(format!("{} was removed", spoken(&id)));
        }
        self.published.outdated = true;
        Ok(())
    }

    /// The model of a name, of the newest version if none is named.
    pub(super) fn find_model(
        &self,
        name: &ModelName,
        version: Option<ModelVersion>,
    ) -> Result<ModelId, ModelError> {
        let newest = self
            .versions(name)
            .next_back()
            .ok_or_else(|| ModelError::UnknownName(name.clone()))?;
        let Some(version) = version else {
            return Ok(newest.clone());
        };
        let id = ModelId {
            name: name.clone(),
            version,
        };
        if self.models.contains_key(&id) {
            Ok(id)
        } else {
            Err(ModelError::UnknownVersion(name.clone(), version))
        }
    }

    fn versions(&self, name: &ModelName) -> impl DoubleEndedIterator<Item = &ModelId> {
        let first = ModelId {
            name: name.clone(),
            version: ModelVersion::FIRST,
        };
        let name = name.clone();
        self.models
            .range(first..)
            .map(|(id, _)| id)
            .take_while(move |id| id.name == name)
            .collect::<Vec<_>>()
            .into_iter()
    }

    /// Notes that a model cannot be served as it is registered.
    pub(super) async fn fail_model(&mut self, id: &ModelId, reason: String) {
        let reason = match shortened(&reason) {
            reason if reason.is_empty() => "its worker gave no reason".to_owned(),
            reason => reason,
        };
        let Some(model) = self.models.get_mut(id) else {
            return;
        };
        if model.failure.is_some() {
            return;
        }
        tracing::warn!(model.name = %id.name, model.version = id.version.get(), reason, "a model cannot be served");
        model.failure = Some(reason.clone());
        if let Err(e) = self.store.fail_model(id, &reason).await {
            // It is known for this run; after a restart it would be found out again.
            tracing::error!(error = %e, model.name = %id.name, "cannot store that a model failed");
        }
        self.request_plan(format!("{} failed", spoken(id)));
    }

    /// Adds profiles, replacing those there are for the same model and kind of device.
    pub(super) async fn import_profiles(
        &mut self,
        profiles: ProfileTable,
    ) -> Result<(), StoreError> {
        self.store
            .put_profiles(&profiles, &KernelTable::default())
            .await?;
        for (model, kind, profile) in profiles.iter() {
            self.profiles
                .insert(model.clone(), kind.clone(), profile.clone());
            self.measuring.known(model, kind);
            self.fitting.forget(model, kind);
        }
        if !profiles.is_empty() {
            self.published.outdated = true;
            self.request_plan("profiles were imported".to_owned());
        }
        Ok(())
    }
}

/// An objective as the API gives it.
pub(crate) fn slo_of_ms(slo_ms: f64) -> Result<Duration, ModelSpecError> {
    Duration::try_from_secs_f64(slo_ms / 1e3).map_err(|_| ModelSpecError {
        field: "slo_ms".to_owned(),
        problem: format!(
            "expected above 0 and at most {} ms",
            ModelSpec::MAX_SLO.as_millis()
        ),
    })
}

fn without(profiles: &ProfileTable, gone: &ModelId) -> ProfileTable {
    let mut kept = ProfileTable::default();
    for (model, kind, profile) in profiles.iter().filter(|(model, ..)| *model != gone) {
        kept.insert(model.clone(), kind.clone(), profile.clone());
    }
    kept
}
