//! `/v1/profiles`.

use axum::{
    extract::State,
    http::{StatusCode, header},
    response::IntoResponse,
};
use packhorse_api::ErrorBody;
use packhorse_cluster::{DeviceKind, ModelName, ProfileTable};
use packhorse_contention::PairTable;
use serde::Deserialize;
use utoipa::IntoParams;

use super::Admin;
use crate::api::error::{ApiError, Body, Query};

/// Whose profiles are meant.
#[derive(Clone, Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct WhichModel {
    /// Only profiles of this model, in all its versions.
    #[param(value_type = Option<String>)]
    model: Option<ModelName>,
}

/// What was measured or imported, as CSV: a row per model version, device kind, compute share and batch size.
#[utoipa::path(
    get, path = "/v1/profiles", tag = "profiles", security(("admin" = [])),
    params(WhichModel),
    responses(
        (status = 200, description = "The profiles", body = String, content_type = "text/csv"),
        (status = "default", description = "Any failure", body = ErrorBody),
    )
)]
pub(super) async fn export(
    State(admin): State<Admin>,
    Query(which): Query<WhichModel>,
) -> Result<impl IntoResponse, ApiError> {
    let all = admin.controller.profiles().await?;
    let mut table = ProfileTable::default();
    for (model, kind, profile) in all.iter() {
        if which.model.as_ref().is_none_or(|name| *name == model.name) {
            table.insert(model.clone(), kind.clone(), profile.clone());
        }
    }
    Ok(csv(table.to_csv()))
}

/// Whose kernels are meant.
#[derive(Clone, Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct OfModel {
    /// The model, in all its versions.
    #[param(value_type = String)]
    model: ModelName,
}

/// The GPU kernels that were recorded when a model was measured, as CSV: those of one batch of every size. Empty where none run.
#[utoipa::path(
    get, path = "/v1/profiles/kernels", tag = "profiles", security(("admin" = [])),
    params(OfModel),
    responses(
        (status = 200, description = "The kernels, with a header line unless there are none", body = String,
         content_type = "text/csv"),
        (status = "default", description = "Any failure", body = ErrorBody),
    )
)]
pub(super) async fn kernels(
    State(admin): State<Admin>,
    Query(of): Query<OfModel>,
) -> Result<impl IntoResponse, ApiError> {
    let table = admin.controller.kernels(of.model).await??;
    Ok(csv(table.to_csv()))
}

/// Adds profiles from CSV, replacing those there are for the same model version and device kind. All or none.
#[utoipa::path(
    put, path = "/v1/profiles", tag = "profiles", security(("admin" = [])),
    request_body(content = String, content_type = "text/csv", description = "Profiles, with a header line"),
    responses(
        (status = 204, description = "Stored, durably"),
        (status = 400, description = "A line cannot be read", body = ErrorBody),
        (status = "default", description = "Any other failure", body = ErrorBody),
    )
)]
pub(super) async fn import(
    State(admin): State<Admin>,
    Body(csv): Body,
) -> Result<StatusCode, ApiError> {
    let csv = text(&csv)?;
    let profiles = ProfileTable::from_csv(csv).map_err(|e| ApiError::bad_request(e.to_string()))?;
    admin.controller.import_profiles(profiles).await??;
    Ok(StatusCode::NO_CONTENT)
}

fn csv(table: String) -> impl IntoResponse {
    ([(header::CONTENT_TYPE, "text/csv; charset=utf-8")], table)
}

fn text(csv: &[u8]) -> Result<&str, ApiError> {
    let text = str::from_utf8(csv);
    text.map_err(|e| ApiError::bad_request(format!("the CSV is no UTF-8 text: {e}")))
}

/// Which pairs are meant.
#[derive(Clone, Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct OfKind {
    /// The kind of device that they were measured on.
    #[param(value_type = String)]
    device_kind: DeviceKind,
}

/// How models slow each other that share a device, as it was measured in pairs on a kind of device, as CSV.
#[utoipa::path(
    get, path = "/v1/profiles/pairs", tag = "profiles", security(("admin" = [])),
    params(OfKind),
    responses(
        (status = 200, description = "The pairs, with a header line unless there are none", body = String,
         content_type = "text/csv"),
        (status = "default", description = "Any failure", body = ErrorBody),
    )
)]
pub(super) async fn pairs(
    State(admin): State<Admin>,
    Query(of): Query<OfKind>,
) -> Result<impl IntoResponse, ApiError> {
    let table = admin.controller.pairs(of.device_kind).await?;
    Ok(csv(table.to_csv()))
}

/// Takes pairs that were measured on a kind of device from CSV, in the place of those there are. Policies that learn how models slow
/// each other plan with them.
#[utoipa::path(
    put, path = "/v1/profiles/pairs", tag = "profiles", security(("admin" = [])),
    params(OfKind),
    request_body(content = String, content_type = "text/csv", description = "Pairs, with a header line"),
    responses(
        (status = 204, description = "Stored, durably"),
        (status = 400, description = "A line cannot be read, or there are too many", body = ErrorBody),
        (status = "default", description = "Any other failure", body = ErrorBody),
    )
)]
pub(super) async fn import_pairs(
    State(admin): State<Admin>,
    Query(of): Query<OfKind>,
    Body(csv): Body,
) -> Result<StatusCode, ApiError> {
    let pairs =
        PairTable::from_csv(text(&csv)?).map_err(|e| ApiError::bad_request(e.to_string()))?;
    admin
        .controller
        .import_pairs(of.device_kind, pairs)
        .await??;
    Ok(StatusCode::NO_CONTENT)
}
