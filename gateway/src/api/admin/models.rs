//! `/v1/models`: registered models.

use std::{sync::Arc, time::Duration};

use axum::{
    Extension, Json,
    extract::State,
    http::{StatusCode, header},
    response::{IntoResponse, Response},
};
use packhorse_api::{
    AuditActor, ChangeAnswer, Changed, DryRunAnswer, ErrorBody, ModelChange, ModelRegistration,
    ModelView, Promotion, RemovedModel,
};
use packhorse_cluster::{
    ArtifactDigest, ModelId, ModelName, ModelSpec, ModelSpecError, ModelVersion, Percent,
    Processing, Program, TokenizerFile, VariantOf,
};
use packhorse_control::{Command, CommandError, ModelSpecChange, SplitChange};
use serde::Deserialize;
use tokio::task::spawn_blocking;
use utoipa::IntoParams;

use super::{
    Admin,
    consequences::{self, Rehearsed},
};
use crate::{
    api::{
        body::JsonBody,
        error::{ApiError, Path, Query},
    },
    audit::Act,
    controller::{Controller, slo_from_ms},
    store::ReceiveError,
    tokenizers::ModelTokenizer,
};

/// The version of a model.
#[derive(Clone, Copy, Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct WhichVersion {
    /// The version of the model.
    #[param(value_type = Option<u32>, minimum = 1)]
    pub(super) version: Option<ModelVersion>,
}

/// The version of a model to change, and the choice between the change and its dry run.
#[derive(Clone, Copy, Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct ChangedVersion {
    /// The version of the model.
    #[param(value_type = Option<u32>, minimum = 1)]
    version: Option<ModelVersion>,
    /// True to check the change and answer its consequences, without making it.
    #[serde(default)]
    dry_run: bool,
    /// False to answer without the consequences, for which two plans are made: for programs that make many changes.
    #[serde(default = "asks_by_default")]
    #[param(required = false)]
    consequences: bool,
}

/// The treatment of a registered version of the same name and version, and the choice between the registration and its dry run.
#[derive(Clone, Copy, Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct RegistrationMode {
    /// True to replace a registered version of the same name and version with its profiles. If the registration is refused, that one
    /// stays as it is. By default such a registration is refused.
    #[serde(default)]
    replace: bool,
    /// True to check the registration and answer its consequences, without making it. A file at `artifact_path` is read and not stored.
    #[serde(default)]
    dry_run: bool,
    /// False to answer without the consequences, for which two plans are made: for programs that register many models.
    #[serde(default = "asks_by_default")]
    #[param(required = false)]
    consequences: bool,
}

/// The default for whether a change is answered with its consequences.
fn asks_by_default() -> bool {
    true
}

/// Registers a version of a model. The registration is durable once it is answered; `GET` then returns the state of the model.
#[utoipa::path(
    post, path = "/v1/models", tag = "models", security(("admin" = [])),
    params(RegistrationMode),
    request_body = ModelRegistration,
    responses(
        (status = 200, description = "The consequences of the registration, which a dry run does not make", body = DryRunAnswer),
        (status = 201, description = "Registered", body = Changed<ModelView>, headers(("location" = String, description = "The path of the model"))),
        (status = 400, description = "A field is out of its limits, or the artifact is not stored", body = ErrorBody),
        (status = 409, description = "The version is already registered, its name is that of a family, or it cannot be a variant of its family", body = ErrorBody),
        (status = "default", description = "Any other failure", body = ErrorBody),
    )
)]
pub(super) async fn register(
    State(admin): State<Admin>,
    Extension(actor): Extension<AuditActor>,
    Query(mode): Query<RegistrationMode>,
    JsonBody(registration): JsonBody<ModelRegistration>,
) -> Result<Response, ApiError> {
    let RegistrationMode {
        replace, dry_run, ..
    } = mode;
    let (rate, rate_mode) = (registration.rate_rps, registration.rate);
    let (priority, min_replicas) = (registration.priority, registration.min_replicas);
    let (mut spec, path) = parse_registration(registration)?;
    let name = spec.program.model.name.clone();
    if let (false, Ok(newest)) = (replace, admin.controller.model(name, None).await?) {
        // They belong to the model's name.
        spec.rate = rate.or(newest.rate_rps);
        spec.rate_mode = rate_mode.unwrap_or(newest.rate);
        spec.priority = priority.unwrap_or(newest.priority);
        spec.min_replicas = min_replicas.unwrap_or(newest.min_replicas);
    }
    let bytes = match path {
        Some(path) if dry_run => examine_file(&admin, &mut spec, &path).await?,
        Some(path) => import_file(&admin, actor.clone(), &mut spec, &path).await?,
        None => {
            let digest = spec.program.artifact;
            let bytes = admin.store.artifact(digest).await?;
            bytes.ok_or(CommandError::UnknownArtifact(digest))?
        }
    };
    // It is read once, and stays in memory until the model is served.
    let _tokenizer = read_tokenizer(&admin, &spec).await?;
    let controller = admin.controller.by(actor);
    let registered = Box::new(spec.clone());
    let command = if replace {
        Command::Replace(registered, bytes)
    } else {
        Command::Register(registered, bytes)
    };
    let make = async {
        let view = if replace {
            controller.replace(spec, bytes).await
        } else {
            controller.register(spec, bytes).await
        };
        Ok(view??)
    };
    let asks = mode.consequences;
    let answer =
        consequences::change_as_asked(&controller, dry_run, asks, vec![command], make).await?;
    let ChangeAnswer::Changed(Changed { view, .. }) = &answer else {
        return Ok(Json(answer).into_response());
    };
    let location = format!("/v1/models/{}?version={}", view.name, view.version);
    let location = [(header::LOCATION, location)];
    Ok((StatusCode::CREATED, location, Json(answer)).into_response())
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

/// Changes the SLO, reserved rate, rate mode, priority, least number of replicas, queue limit or accuracy of a version of a model, the newest if none is given, its family, or the split
/// of its requests over its versions.
#[utoipa::path(
    patch, path = "/v1/models/{name}", tag = "models", security(("admin" = [])),
    params(("name" = String, Path, description = "The model's name"), ChangedVersion),
    request_body = ModelChange,
    responses(
        (status = 200, description = "The changed model, or after a dry run the consequences alone", body = ChangeAnswer<ModelView>),
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
    Query(changed): Query<ChangedVersion>,
    JsonBody(change): JsonBody<ModelChange>,
) -> Result<Json<ChangeAnswer<ModelView>>, ApiError> {
    let ChangedVersion {
        version, dry_run, ..
    } = changed;
    let controller = admin.controller.by(actor);
    let splits = change.split.is_some() || change.sticky.is_some();
    if splits && version.is_some() {
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
        min_replicas: change.min_replicas,
        queue_limit: change.queue_limit,
        max_cold_wait: change.max_cold_wait_ms.map(|wait| wait.map(from_ms)),
        cache: change.cache,
        family: change.family,
        accuracy: change.accuracy,
    };
    if let Some(Some(family)) = &change.family {
        check_family_name(family)?;
    }
    let changes_spec = !splits || change != ModelSpecChange::default();
    // The split is checked first, so that a request with a wrong one changes nothing.
    let split = splits.then_some(split);
    let spec = changes_spec.then_some(change);
    let mut commands = Vec::new();
    commands.extend(split.clone().map(|c| Command::Split(name.clone(), c)));
    let of_version = |c| Command::ChangeModel(name.clone(), version, c);
    commands.extend(spec.clone().map(of_version));
    let make = make_change(&controller, name, version, split, spec);
    let asks = changed.consequences;
    let answer = consequences::change_as_asked(&controller, dry_run, asks, commands, make).await?;
    Ok(Json(answer))
}

/// Changes the split of a model and then a version of it, as far as they are to be changed.
async fn make_change(
    controller: &Controller,
    name: ModelName,
    version: Option<ModelVersion>,
    split: Option<SplitChange>,
    spec: Option<ModelSpecChange>,
) -> Result<ModelView, ApiError> {
    if let Some(split) = split {
        let view = controller.change_split(name.clone(), split).await??;
        if spec.is_none() {
            return Ok(view);
        }
    }
    let change = spec.unwrap_or_default();
    Ok(controller.change_model(name, version, change).await??)
}

/// Gives all requests that name no version to one, in steps of what its serving replicas are planned to carry.
#[utoipa::path(
    post, path = "/v1/models/{name}/promote", tag = "models", security(("admin" = [])),
    params(("name" = String, Path, description = "The model's name"), Rehearsed),
    request_body = Promotion,
    responses(
        (status = 200, description = "The newest version, or after a dry run the consequences alone", body = ChangeAnswer<ModelView>),
        (status = 404, description = "The model or version is not registered", body = ErrorBody),
        (status = "default", description = "Any other failure", body = ErrorBody),
    )
)]
pub(super) async fn promote(
    State(admin): State<Admin>,
    Extension(actor): Extension<AuditActor>,
    Path(name): Path<ModelName>,
    Query(Rehearsed { dry_run }): Query<Rehearsed>,
    JsonBody(promotion): JsonBody<Promotion>,
) -> Result<Json<ChangeAnswer<ModelView>>, ApiError> {
    let change = SplitChange::Promote(promotion.version);
    change_split(&admin.controller.by(actor), name, dry_run, change).await
}

/// Returns to the split before the last change, which `rollback_split` of the model names. A second rollback changes nothing.
#[utoipa::path(
    post, path = "/v1/models/{name}/rollback", tag = "models", security(("admin" = [])),
    params(("name" = String, Path, description = "The model's name"), Rehearsed),
    responses(
        (status = 200, description = "The newest version, or after a dry run the consequences alone", body = ChangeAnswer<ModelView>),
        (status = 404, description = "The model is not registered", body = ErrorBody),
        (status = 409, description = "The split has not been changed", body = ErrorBody),
        (status = "default", description = "Any other failure", body = ErrorBody),
    )
)]
pub(super) async fn roll_back(
    State(admin): State<Admin>,
    Extension(actor): Extension<AuditActor>,
    Path(name): Path<ModelName>,
    Query(Rehearsed { dry_run }): Query<Rehearsed>,
) -> Result<Json<ChangeAnswer<ModelView>>, ApiError> {
    change_split(
        &admin.controller.by(actor),
        name,
        dry_run,
        SplitChange::RollBack,
    )
    .await
}

/// Changes the split of a model, or only says what that would take from models.
async fn change_split(
    controller: &Controller,
    name: ModelName,
    dry_run: bool,
    change: SplitChange,
) -> Result<Json<ChangeAnswer<ModelView>>, ApiError> {
    let command = Command::Split(name.clone(), change.clone());
    let make = async { Ok(controller.change_split(name, change).await??) };
    let answer = consequences::change(controller, dry_run, vec![command], make).await?;
    Ok(Json(answer))
}

/// Removes a version of a model with its profiles, or all versions if none is given.
#[utoipa::path(
    delete, path = "/v1/models/{name}", tag = "models", security(("admin" = [])),
    params(("name" = String, Path, description = "The model's name"), ChangedVersion),
    responses(
        (status = 200, description = "The model is removed and its workers end by themselves, or after a dry run the consequences alone", body = ChangeAnswer<RemovedModel>),
        (status = 404, description = "The model or version is not registered", body = ErrorBody),
        (status = "default", description = "Any other failure", body = ErrorBody),
    )
)]
pub(super) async fn remove(
    State(admin): State<Admin>,
    Extension(actor): Extension<AuditActor>,
    Path(name): Path<ModelName>,
    Query(changed): Query<ChangedVersion>,
) -> Result<Json<ChangeAnswer<RemovedModel>>, ApiError> {
    let ChangedVersion {
        version, dry_run, ..
    } = changed;
    let controller = admin.controller.by(actor);
    let command = Command::RemoveModel(name.clone(), version);
    let make = async {
        controller.remove_model(name.clone(), version).await??;
        let removed = name;
        Ok(RemovedModel { removed, version })
    };
    let asks = changed.consequences;
    let answer =
        consequences::change_as_asked(&controller, dry_run, asks, vec![command], make).await?;
    Ok(Json(answer))
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
        min_replicas: registration.min_replicas.unwrap_or_default(),
        queue_limit: registration.queue_limit,
        max_cold_wait: registration.max_cold_wait_ms.map(from_ms),
        cache: registration.cache,
        variant: variant(registration.family, registration.accuracy)?,
        processing: Arc::new(Processing {
            preprocess: registration.preprocess,
            postprocess: registration.postprocess,
        }),
    };
    spec.validate().map_err(invalid)?;
    Ok((spec, path))
}

/// Returns the tokenizer of a model that takes texts. A file that is not stored, or is no tokenizer, is the registration's mistake.
async fn read_tokenizer(
    admin: &Admin,
    spec: &ModelSpec,
) -> Result<Option<Arc<ModelTokenizer>>, ApiError> {
    let Some((input, text)) = spec.processing.text() else {
        return Ok(None);
    };
    let wrong =
        |problem: String| ApiError::bad_request(format!("preprocess.{input}.tokenizer: {problem}"));
    let digest = match &text.tokenizer {
        TokenizerFile::Stored(digest) => *digest,
        TokenizerFile::Path(path) => {
            let shown: String = path.chars().take(64).collect();
            return Err(wrong(format!(
                "{shown:?} is not the digest of a stored file (PUT /v1/artifacts/sha256:...); `packhorse model register` stores it"
            )));
        }
    };
    if admin.store.artifact(digest).await?.is_none() {
        return Err(wrong(CommandError::UnknownArtifact(digest).to_string()));
    }
    let tokenizer = admin.data_plane.tokenizers().get(digest);
    let shared = Arc::clone(&tokenizer);
    let read = spawn_blocking(move || shared.tokenizer().map(drop).map_err(|e| e.to_string()));
    let read = read.await.unwrap_or_else(|e| Err(e.to_string()));
    read.map_err(wrong)?;
    Ok(Some(tokenizer))
}

fn from_ms(ms: u32) -> Duration {
    Duration::from_millis(ms.into())
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

/// Stores the file at this path, and names it in the specification. Returns its size.
async fn import_file(
    admin: &Admin,
    actor: AuditActor,
    spec: &mut ModelSpec,
    path: &str,
) -> Result<u64, ApiError> {
    let act = Act::new(actor, "artifact.import", &path);
    let received = admin.artifacts.acting(act).import(path).await;
    let received = received.map_err(file_error)?;
    spec.program.artifact = received.digest;
    Ok(received.bytes)
}

/// Names the file at this path in the specification, without storing it. Returns its size.
async fn examine_file(admin: &Admin, spec: &mut ModelSpec, path: &str) -> Result<u64, ApiError> {
    let (digest, bytes) = admin.artifacts.examine(path).await.map_err(file_error)?;
    spec.program.artifact = digest;
    Ok(bytes)
}

fn file_error(error: ReceiveError) -> ApiError {
    ApiError::from(error).with_field("artifact_path")
}
