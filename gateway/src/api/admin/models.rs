//! `/v1/models`: registered models.

use axum::{
    Extension, Json,
    extract::State,
    http::{StatusCode, header},
    response::IntoResponse,
};
use packhorse_api::{AuditActor, ErrorBody, ModelChange, ModelRegistration, ModelView, Promotion};
use packhorse_cluster::{
    ArtifactDigest, ModelId, ModelName, ModelSpec, ModelSpecError, ModelVersion, Percent, Program,
    VariantOf,
};
use packhorse_control::{CommandError, ModelSpecChange, SplitChange};
use serde::Deserialize;
use utoipa::IntoParams;

use super::Admin;
use crate::{
    api::{
        body::JsonBody,
        error::{ApiError, Path, Query},
    },
    audit::Act,
    controller::slo_from_ms,
};

/// The version of a model.
#[derive(Clone, Copy, Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct WhichVersion {
    /// The version of the model.
    #[param(value_type = Option<u32>, minimum = 1)]
    pub(super) version: Option<ModelVersion>,
}

/// The treatment of a registered version of the same name and version.
#[derive(Clone, Copy, Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct Replacement {
    /// True to replace a registered version of the same name and version with its profiles. If the registration is refused, that one
    /// stays as it is. By default such a registration is refused.
    #[serde(default)]
    replace: bool,
}

/// Registers a version of a model. The registration is durable once it is answered; `GET` then returns the state of the model.
#[utoipa::path(
    post, path = "/v1/models", tag = "models", security(("admin" = [])),
    params(Replacement),
    request_body = ModelRegistration,
    responses(
        (status = 201, description = "Registered", body = ModelView, headers(("location" = String, description = "The path of the model"))),
        (status = 400, description = "A field is out of its limits, or the artifact is not stored", body = ErrorBody),
        (status = 409, description = "The version is already registered, its name is that of a family, or it cannot be a variant of its family", body = ErrorBody),
        (status = "default", description = "Any other failure", body = ErrorBody),
    )
)]
pub(super) async fn register(
    State(admin): State<Admin>,
    Extension(actor): Extension<AuditActor>,
    Query(Replacement { replace }): Query<Replacement>,
    JsonBody(registration): JsonBody<ModelRegistration>,
) -> Result<impl IntoResponse, ApiError> {
    let (rate, rate_mode) = (registration.rate_rps, registration.rate);
    let priority = registration.priority;
    let (mut spec, path) = parse_registration(registration)?;
    let name = spec.program.model.name.clone();
    if let (false, Ok(newest)) = (replace, admin.controller.model(name, None).await?) {
        // They belong to the model's name.
        spec.rate = rate.or(newest.rate_rps);
        spec.rate_mode = rate_mode.unwrap_or(newest.rate);
        spec.priority = priority.unwrap_or(newest.priority);
    }
    let spec = match path {
        Some(path) => with_file(&admin, actor.clone(), spec, &path).await?,
        None => spec,
    };
    let digest = spec.program.artifact;
    let bytes = admin.store.artifact(digest).await?;
    let bytes = bytes.ok_or(CommandError::UnknownArtifact(digest))?;
    let controller = admin.controller.by(actor);
    let view = if replace {
        controller.replace(spec, bytes).await??
    } else {
        controller.register(spec, bytes).await??
    };
    let location = format!("/v1/models/{}?version={}", view.name, view.version);
    Ok((
        StatusCode::CREATED,
        [(header::LOCATION, location)],
        Json(view),
    ))
}

/// Returns all versions of all models, each with its state and the reason for it.
#[utoipa::path(
    get, path = "/v1/models", tag = "models", security(("admin" = [])),
    responses((status = 200, body = [ModelView]), (status = "default", description = "Any failure", body = ErrorBody))
)]
pub(super) async fn list(State(admin): State<Admin>) -> Result<Json<Vec<ModelView>>, ApiError> {
    Ok(Json(admin.controller.models().await?))
}

/// Returns a version of a model, the newest if none is given.
#[utoipa::path(
    get, path = "/v1/models/{name}", tag = "models", security(("admin" = [])),
    params(("name" = String, Path, description = "The model's name"), WhichVersion),
    responses(
        (status = 200, body = ModelView),
        (status = 404, description = "The model or version is not registered", body = ErrorBody),
        (status = "default", description = "Any other failure", body = ErrorBody),
    )
)]
pub(super) async fn show(
    State(admin): State<Admin>,
    Path(name): Path<ModelName>,
    Query(which): Query<WhichVersion>,
) -> Result<Json<ModelView>, ApiError> {
    Ok(Json(admin.controller.model(name, which.version).await??))
}

/// Changes the SLO, reserved rate, rate mode, priority, queue limit or accuracy of a version of a model, the newest if none is given, its family, or the split
/// of its requests over its versions.
#[utoipa::path(
    patch, path = "/v1/models/{name}", tag = "models", security(("admin" = [])),
    params(("name" = String, Path, description = "The model's name"), WhichVersion),
    request_body = ModelChange,
    responses(
        (status = 200, body = ModelView),
        (status = 400, description = "A field is out of its limits, or belongs to all versions and is given with one", body = ErrorBody),
        (status = 404, description = "The model or version is not registered", body = ErrorBody),
        (status = 409, description = "The model cannot be a variant of the family", body = ErrorBody),
        (status = "default", description = "Any other failure", body = ErrorBody),
    )
)]
pub(super) async fn change(
    State(admin): State<Admin>,
    Extension(actor): Extension<AuditActor>,
    Path(name): Path<ModelName>,
    Query(which): Query<WhichVersion>,
    JsonBody(change): JsonBody<ModelChange>,
) -> Result<Json<ModelView>, ApiError> {
    let controller = admin.controller.by(actor);
    let splits = change.split.is_some() || change.sticky.is_some();
    if splits && which.version.is_some() {
        return Err(ApiError::bad_request(
            "split and sticky belong to all versions of a model: change them without ?version",
        ));
    }
    let split = SplitChange::Set(change.split, change.sticky);
    let change = ModelSpecChange {
        slo: change
            .slo_ms
            .map(slo_from_ms)
            .transpose()
            .map_err(invalid)?,
        rate: change.rate_rps,
        rate_mode: change.rate,
        priority: change.priority,
        queue_limit: change.queue_limit,
        family: change.family,
        accuracy: change.accuracy,
    };
    if let Some(Some(family)) = &change.family {
        check_family_name(family)?;
    }
    if splits {
        // The split is checked first, so that a request with a wrong one changes nothing.
        let view = controller.change_split(name.clone(), split).await??;
        if change == ModelSpecChange::default() {
            return Ok(Json(view));
        }
    }
    let changed = controller.change_model(name, which.version, change);
    Ok(Json(changed.await??))
}

/// Gives all requests that name no version to one, in steps of what its serving replicas are planned to carry.
#[utoipa::path(
    post, path = "/v1/models/{name}/promote", tag = "models", security(("admin" = [])),
    params(("name" = String, Path, description = "The model's name")),
    request_body = Promotion,
    responses(
        (status = 200, description = "The newest version", body = ModelView),
        (status = 404, description = "The model or version is not registered", body = ErrorBody),
        (status = "default", description = "Any other failure", body = ErrorBody),
    )
)]
pub(super) async fn promote(
    State(admin): State<Admin>,
    Extension(actor): Extension<AuditActor>,
    Path(name): Path<ModelName>,
    JsonBody(promotion): JsonBody<Promotion>,
) -> Result<Json<ModelView>, ApiError> {
    let change = SplitChange::Promote(promotion.version);
    Ok(Json(
        admin
            .controller
            .by(actor)
            .change_split(name, change)
            .await??,
    ))
}

/// Returns to the split before the last change.
#[utoipa::path(
    post, path = "/v1/models/{name}/rollback", tag = "models", security(("admin" = [])),
    params(("name" = String, Path, description = "The model's name")),
    responses(
        (status = 200, description = "The newest version", body = ModelView),
        (status = 404, description = "The model is not registered", body = ErrorBody),
        (status = 409, description = "The split has not been changed", body = ErrorBody),
        (status = "default", description = "Any other failure", body = ErrorBody),
    )
)]
pub(super) async fn roll_back(
    State(admin): State<Admin>,
    Extension(actor): Extension<AuditActor>,
    Path(name): Path<ModelName>,
) -> Result<Json<ModelView>, ApiError> {
    let change = SplitChange::RollBack;
    Ok(Json(
        admin
            .controller
            .by(actor)
            .change_split(name, change)
            .await??,
    ))
}

/// Removes a version of a model with its profiles, or all versions if none is given.
#[utoipa::path(
    delete, path = "/v1/models/{name}", tag = "models", security(("admin" = [])),
    params(("name" = String, Path, description = "The model's name"), WhichVersion),
    responses(
        (status = 204, description = "Removed; the workers end by themselves"),
        (status = 404, description = "The model or version is not registered", body = ErrorBody),
        (status = "default", description = "Any other failure", body = ErrorBody),
    )
)]
pub(super) async fn remove(
    State(admin): State<Admin>,
    Extension(actor): Extension<AuditActor>,
    Path(name): Path<ModelName>,
    Query(which): Query<WhichVersion>,
) -> Result<StatusCode, ApiError> {
    admin
        .controller
        .by(actor)
        .remove_model(name, which.version)
        .await??;
    Ok(StatusCode::NO_CONTENT)
}

/// The name that no model may have: its path would be that of all models' statistics.
const STATISTICS: &str = "stats";

/// Converts and checks a registration. Returns the path of the model's file too if it is given in place of a digest; the digest
/// is all zeros then.
fn parse_registration(
    registration: ModelRegistration,
) -> Result<(ModelSpec, Option<String>), ApiError> {
    if registration.name.as_str() == STATISTICS {
        return Err(ApiError::bad_request(format!(
            "name: \"{STATISTICS}\" is reserved: /v2/models/{STATISTICS} is a path of the protocol"
        )));
    }
    let unread = ArtifactDigest::from_sha256([0; 32]);
    let (artifact, path) = match (registration.artifact, registration.artifact_path) {
        (Some(digest), None) => (digest, None),
        (None, Some(path)) => (unread, Some(path)),
        _ => {
            return Err(ApiError::bad_request(
                "artifact: give exactly one of artifact, the digest of an uploaded file, and artifact_path",
            ));
        }
    };
    let spec = ModelSpec {
        program: Program {
            model: ModelId {
                name: registration.name,
                version: registration.version.unwrap_or(ModelVersion::FIRST),
            },
            artifact,
            max_batch_size: registration.max_batch_size,
            inputs: registration.inputs,
            outputs: registration.outputs,
        },
        slo: slo_from_ms(registration.slo_ms).map_err(invalid)?,
        rate: registration.rate_rps,
        rate_mode: registration.rate.unwrap_or_default(),
        priority: registration.priority.unwrap_or_default(),
        queue_limit: registration.queue_limit,
        variant: variant(registration.family, registration.accuracy)?,
    };
    spec.validate().map_err(invalid)?;
    Ok((spec, path))
}

/// Checks that a family's name is not reserved.
fn check_family_name(family: &ModelName) -> Result<(), ApiError> {
    if family.as_str() == STATISTICS {
        return Err(ApiError::bad_request(format!(
            "family: \"{STATISTICS}\" is reserved: /v2/models/{STATISTICS} is a path of the protocol"
        )));
    }
    Ok(())
}

/// Returns the family and accuracy of a registration, which has both or neither.
fn variant(
    family: Option<ModelName>,
    accuracy: Option<Percent>,
) -> Result<Option<VariantOf>, ApiError> {
    match (family, accuracy) {
        (Some(family), Some(accuracy)) => {
            check_family_name(&family)?;
            Ok(Some(VariantOf { family, accuracy }))
        }
        (None, None) => Ok(None),
        (Some(_), None) => Err(ApiError::bad_request(
            "accuracy: required for a model of a family, in percent",
        )),
        (None, Some(_)) => Err(ApiError::bad_request(
            "accuracy: only a model of a family has one: give family too",
        )),
    }
}

#[expect(clippy::needless_pass_by_value, reason = "it is what map_err gives")]
fn invalid(error: ModelSpecError) -> ApiError {
    ApiError::bad_request(error.to_string())
}

/// Stores the file at this path, and returns the specification with its digest.
async fn with_file(
    admin: &Admin,
    actor: AuditActor,
    mut spec: ModelSpec,
    path: &str,
) -> Result<ModelSpec, ApiError> {
    let act = Act::new(actor, "artifact.import", &path);
    let received = admin.artifacts.acting(act).import(path).await;
    let received = received.map_err(|e| ApiError::from(e).with_field("artifact_path"))?;
    spec.program.artifact = received.digest;
    Ok(spec)
}
