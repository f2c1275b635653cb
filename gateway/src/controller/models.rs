//! Registration, change, removal and failure of models.

use std::{sync::Arc, time::Duration};

use packhorse_api::{ModelChange, ModelView};
use packhorse_cluster::{
    ArtifactDigest, ModelId, ModelName, ModelSpec, ModelSpecError, ModelVersion, ProfileTable,
};
use packhorse_kernels::KernelTable;

use super::{
    cluster::{Cluster, Model},
    nodes::truncated,
    plan_reason::PlanReason,
};
use crate::{
    events::NewEvent,
    store::{InsertModelError, StoreError},
};

/// The largest number of registered model versions.
const MAX_MODELS: usize = 10_000;

/// The reason why a model is not registered.
#[derive(Debug, thiserror::Error)]
pub enum RegisterError {
    /// A field is out of its limits.
    #[error(transparent)]
    Invalid(#[from] ModelSpecError),
    /// The version is already registered.
    #[error("model {0} is already registered; choose another version or remove it first")]
    Exists(ModelId),
    /// The model's file is not stored.
    #[error("artifact: {0} is not stored; upload it first with PUT /v1/artifacts/{0}")]
    UnknownArtifact(ArtifactDigest),
    /// Too many model versions are registered.
    #[error("at most {MAX_MODELS} model versions can be registered; remove one first")]
    TooMany,
    /// The database failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// The reason why a model is not returned, changed or removed.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// No model has this name.
    #[error("model {0} is not registered")]
    UnknownName(ModelName),
    /// The model of this name does not have this version.
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
        self.request_plan(PlanReason::ModelRegistered(id.clone()));
        let view = self.registered_model_view(&id, &self.models[&id]);
        let text = format!("model {id} was registered");
        self.events.append(NewEvent::model(view.clone(), text));
        Ok(view)
    }

    /// Changes the SLO, the rate or the queue limit of a model.
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
            spec.slo = slo_from_ms(slo_ms)?;
        }
        spec.rate = change.rate_rps.unwrap_or(spec.rate);
        spec.queue_limit = change.queue_limit.unwrap_or(spec.queue_limit);
        spec.validate()?;
        if spec != *model.spec {
            self.store.update_model(&spec).await?;
            let demand = |spec: &ModelSpec| (spec.slo, spec.rate);
            let demand_changed = demand(&spec) != demand(&model.spec);
            model.spec = Arc::new(spec);
            self.published.outdated = true;
            self.changed = true;
            if demand_changed {
                self.request_plan(PlanReason::ModelChanged(id.clone()));
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
            self.events.append(NewEvent::model_removed(&id));
            self.measurements.remove_model(&id);
            self.memory_limits.remove_model(&id);
            self.plan.forecasts.remove(&id);
            self.profiles = without(&self.profiles, &id);
            self.request_plan(PlanReason::ModelRemoved(id));
        }
        self.published.outdated = true;
        Ok(())
    }

    /// Returns the identity of a registered model; of its newest version if none is given.
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

    /// Returns the registered versions of a model, in ascending order.
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
    pub(super) async fn fail_model(&mut self, id: &ModelId, reason: &str) {
        let reason = match truncated(reason) {
            reason if reason.is_empty() => "the worker gave no reason".to_owned(),
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
            // After a restart the model would fail again and be noted again.
            tracing::error!(error = %e, model.name = %id.name, "cannot store that a model failed");
        }
        self.request_plan(PlanReason::ModelFailed(id.clone()));
    }

    /// Adds profiles. They replace existing ones of the same model and kind of device.
    pub(super) async fn import_profiles(
        &mut self,
        profiles: ProfileTable,
    ) -> Result<(), StoreError> {
        self.store
            .upsert_profiles(&profiles, &KernelTable::default())
            .await?;
        for (model, kind, profile) in profiles.iter() {
            self.profiles
                .insert(model.clone(), kind.clone(), profile.clone());
            self.measurements.remove(model, kind);
            self.memory_limits.remove(model, kind);
        }
        if !profiles.is_empty() {
            self.published.outdated = true;
            self.request_plan(PlanReason::ProfilesImported);
        }
        Ok(())
    }
}

/// Converts a latency objective from milliseconds.
///
/// # Errors
/// If the value is no duration. [`ModelSpec::validate`] checks the limits.
pub(crate) fn slo_from_ms(slo_ms: f64) -> Result<Duration, ModelSpecError> {
    Duration::try_from_secs_f64(slo_ms / 1e3).map_err(|_| ModelSpecError {
        field: "slo_ms".to_owned(),
        problem: format!(
            "expected above 0 and at most {} ms",
            ModelSpec::MAX_SLO.as_millis()
        ),
    })
}

/// Returns the profiles without those of one model.
fn without(profiles: &ProfileTable, removed: &ModelId) -> ProfileTable {
    let mut kept = ProfileTable::default();
    for (model, kind, profile) in profiles.iter().filter(|(model, ..)| *model != removed) {
        kept.insert(model.clone(), kind.clone(), profile.clone());
    }
    kept
}
