//! `/v1/profiles`: profiles, recorded kernels and measured pairs.

use axum::{
    Extension, Json,
    extract::State,
    http::{StatusCode, header},
    response::IntoResponse,
};
use packhorse_api::{AuditActor, BatchTimeView, ErrorBody, ImportedProfiles};
use packhorse_cluster::{DeviceKind, ModelName, ProfileTable};
use packhorse_contention::PairTable;
use serde::Deserialize;
use utoipa::IntoParams;

use super::Admin;
use crate::api::{
    body::Body,
    error::{ApiError, Query, off_reactor},
};

/// The model whose profiles to return.
#[derive(Clone, Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct ProfileFilter {
    /// Returns only the profiles of this model, in all its versions.
    #[param(value_type = Option<String>)]
    model: Option<ModelName>,
}

/// Returns the measured, imported and estimated profiles as CSV, with a row per model version, device kind, compute share and batch size. If
/// one is estimated, there is a column `source`, which is `measured` or `estimated`; if the inputs of a model vary, there is a last column
/// `input_shapes`, with the shapes that were measured, as in `-1x128 -1x128`.
#[utoipa::path(
    get, path = "/v1/profiles", tag = "profiles", security(("admin" = [])),
    params(ProfileFilter),
    responses(
        (status = 200, description = "The profiles", body = String, content_type = "text/csv"),
        (status = "default", description = "Any failure", body = ErrorBody),
    )
)]
pub(super) async fn export(
    State(admin): State<Admin>,
    Query(filter): Query<ProfileFilter>,
) -> Result<impl IntoResponse, ApiError> {
    let all = admin.controller.profiles().await?;
    let table = off_reactor(move || {
        let mut table = ProfileTable::default();
        for (model, kind, profile) in all.iter() {
            if filter.model.as_ref().is_none_or(|name| *name == model.name) {
                table.insert(model.clone(), kind.clone(), profile.clone());
            }
        }
        table.to_csv()
    });
    Ok(csv(table.await?))
}

/// The model whose kernels to return.
#[derive(Clone, Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct KernelFilter {
    /// The model, in all its versions.
    #[param(value_type = String)]
    model: ModelName,
}

/// The model whose batch times to return.
#[derive(Clone, Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct LearnedFilter {
    /// The model, in all its versions.
    #[param(value_type = String)]
    model: ModelName,
}

/// Returns the GPU kernels that were recorded when a model was measured, as CSV, for one batch of every size. Empty for models
/// without recorded kernels.
#[utoipa::path(
    get, path = "/v1/profiles/kernels", tag = "profiles", security(("admin" = [])),
    params(KernelFilter),
    responses(
        (status = 200, description = "The kernels, with a header line unless there are none", body = String,
         content_type = "text/csv"),
        (status = "default", description = "Any failure", body = ErrorBody),
    )
)]
pub(super) async fn kernels(
    State(admin): State<Admin>,
    Query(filter): Query<KernelFilter>,
) -> Result<impl IntoResponse, ApiError> {
    let table = admin.store.kernels(&filter.model).await?;
    Ok(csv(off_reactor(move || table.to_csv()).await?))
}

/// Returns the times of a model's batches by version, kind of device and batch size: in the profile, and as the gateway observed them on its devices
/// in the last minutes.
#[utoipa::path(
    get, path = "/v1/profiles/learned", tag = "profiles", security(("admin" = [])),
    params(LearnedFilter),
    responses(
        (status = 200, body = [BatchTimeView]),
        (status = 404, description = "The model is not registered", body = ErrorBody),
        (status = "default", description = "Any other failure", body = ErrorBody),
    )
)]
pub(super) async fn learned(
    State(admin): State<Admin>,
    Query(filter): Query<LearnedFilter>,
) -> Result<Json<Vec<BatchTimeView>>, ApiError> {
    Ok(Json(admin.controller.batch_times(filter.model).await??))
}

/// Imports profiles from CSV. They replace existing ones of the same model version and device kind; but an estimate (`estimated` in the column
/// `source`) replaces no measured one. If a line cannot be read, none is imported.
#[utoipa::path(
    put, path = "/v1/profiles", tag = "profiles", security(("admin" = [])),
    request_body(content = String, content_type = "text/csv", description = "The profiles, with a header line"),
    responses(
        (status = 200, description = "What was imported is stored durably", body = ImportedProfiles),
        (status = 400, description = "A line cannot be read", body = ErrorBody),
        (status = "default", description = "Any other failure", body = ErrorBody),
    )
)]
pub(super) async fn import(
    State(admin): State<Admin>,
    Extension(actor): Extension<AuditActor>,
    Body(csv): Body,
) -> Result<Json<ImportedProfiles>, ApiError> {
    let profiles = off_reactor(move || {
        ProfileTable::from_csv(text(&csv)?).map_err(|e| ApiError::bad_request(e.to_string()))
    });
    let profiles = profiles.await??;
    let controller = admin.controller.by(actor);
    Ok(Json(controller.import_profiles(profiles).await??))
}

/// Returns a table with its content type.
fn csv(table: String) -> impl IntoResponse {
    ([(header::CONTENT_TYPE, "text/csv; charset=utf-8")], table)
}

/// Returns a body as text.
fn text(csv: &[u8]) -> Result<&str, ApiError> {
    let text = str::from_utf8(csv);
    text.map_err(|e| ApiError::bad_request(format!("the CSV is not UTF-8 text: {e}")))
}

/// The key of a table of pairs.
#[derive(Clone, Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct PairTableKey {
    /// The kind of device that the pairs were measured on.
    #[param(value_type = String)]
    device_kind: DeviceKind,
}

/// Returns the measured slowdowns of pairs of models that share a device, for a kind of device, as CSV.
#[utoipa::path(
    get, path = "/v1/profiles/pairs", tag = "profiles", security(("admin" = [])),
    params(PairTableKey),
    responses(
        (status = 200, description = "The pairs, with a header line", body = String,
         content_type = "text/csv"),
        (status = "default", description = "Any failure", body = ErrorBody),
    )
)]
pub(super) async fn pairs(
    State(admin): State<Admin>,
    Query(key): Query<PairTableKey>,
) -> Result<impl IntoResponse, ApiError> {
    let table = admin.controller.pairs(key.device_kind).await?;
    Ok(csv(off_reactor(move || table.to_csv()).await?))
}

/// Imports the measured pairs of a kind of device from CSV. They replace all existing ones of that kind. Policies that learn how
/// models slow each other plan with them.
#[utoipa::path(
    put, path = "/v1/profiles/pairs", tag = "profiles", security(("admin" = [])),
    params(PairTableKey),
    request_body(content = String, content_type = "text/csv", description = "The pairs, with a header line"),
    responses(
        (status = 204, description = "The table is stored durably"),
        (status = 400, description = "A line cannot be read, or the table has more than 1024 pairs", body = ErrorBody),
        (status = "default", description = "Any other failure", body = ErrorBody),
    )
)]
pub(super) async fn import_pairs(
    State(admin): State<Admin>,
    Extension(actor): Extension<AuditActor>,
    Query(key): Query<PairTableKey>,
    Body(csv): Body,
) -> Result<StatusCode, ApiError> {
    let pairs = off_reactor(move || {
        PairTable::from_csv(text(&csv)?).map_err(|e| ApiError::bad_request(e.to_string()))
    });
    let pairs = pairs.await??;
    admin
        .controller
        .by(actor)
        .import_pairs(key.device_kind, pairs)
        .await??;
    Ok(StatusCode::NO_CONTENT)
}
