//! `/v2/systemsharedmemory/…`.

use axum::{
    Json,
    extract::{Path, Request, State, rejection::PathRejection},
    http::{Extensions, StatusCode},
};
use packhorse_api::ErrorBody;
use packhorse_protocol::{RegisterSystemSharedMemory, SystemSharedMemory};

use super::{TenantRegions, error::SharedMemoryError};
use crate::{
    api::inference::{
        body::{IncomingBody, Place},
        error::InferenceError,
        state::{Inference, InferenceLimits},
    },
    tenant::tenant_of,
};

/// The most bytes of the body of a registration.
const REGISTRATION_LIMIT: u64 = 4096;

/// Returns the regions of the client that sent a request.
pub(in crate::api) async fn regions_of(
    inference: &Inference,
    extensions: &Extensions,
) -> Result<TenantRegions, InferenceError> {
    let memory = inference.shared_memory.as_ref();
    let memory = memory.ok_or(SharedMemoryError::Off)?;
    Ok(memory.of_client(tenant_of(extensions), extensions).await?)
}

fn name_of(path: Result<Path<String>, PathRejection>) -> Result<String, InferenceError> {
    path.map(|Path(name)| name)
        .map_err(|e| InferenceError::bad_request(e.body_text()))
}

/// Lists the caller's regions of shared memory.
#[utoipa::path(
    get, path = "/v2/systemsharedmemory/status", tag = "inference",
    responses(
        (status = 200, body = Vec<SystemSharedMemory>),
        (status = 400, description = "System shared memory is off", body = ErrorBody),
        (status = 403, description = "The client is on another host or runs as another user", body = ErrorBody),
    )
)]
pub(in crate::api) async fn all_status(
    State(inference): State<Inference>,
    extensions: Extensions,
) -> Result<Json<Vec<SystemSharedMemory>>, InferenceError> {
    Ok(Json(regions_of(&inference, &extensions).await?.list()))
}

/// Returns a region of shared memory, as a list of one.
#[utoipa::path(
    get, path = "/v2/systemsharedmemory/region/{region}/status", tag = "inference",
    params(("region" = String, Path, description = "The region's name")),
    responses(
        (status = 200, body = Vec<SystemSharedMemory>),
        (status = 400, description = "There is no such region, or system shared memory is off", body = ErrorBody),
        (status = 403, description = "The client is on another host or runs as another user", body = ErrorBody),
    )
)]
pub(in crate::api) async fn status(
    State(inference): State<Inference>,
    region: Result<Path<String>, PathRejection>,
    extensions: Extensions,
) -> Result<Json<Vec<SystemSharedMemory>>, InferenceError> {
    let name = name_of(region)?;
    let regions = regions_of(&inference, &extensions).await?;
    Ok(Json(vec![regions.description(&name)?]))
}

/// Registers a region of shared memory: requests may then name it in place of tensors.
#[utoipa::path(
    post, path = "/v2/systemsharedmemory/region/{region}/register", tag = "inference",
    params(("region" = String, Path, description = "The region's name")),
    request_body = RegisterSystemSharedMemory,
    responses(
        (status = 200, description = "Registered"),
        (status = 400, description = "Malformed, registered already, not an object of the gateway's user, or system shared memory is off", body = ErrorBody),
        (status = 403, description = "The client is on another host or runs as another user", body = ErrorBody),
    )
)]
pub(in crate::api) async fn register(
    State(inference): State<Inference>,
    region: Result<Path<String>, PathRejection>,
    request: Request,
) -> Result<StatusCode, InferenceError> {
    let name = name_of(region)?;
    let (parts, body) = request.into_parts();
    let regions = regions_of(&inference, &parts.extensions).await?;
    let mut memory = inference.data_plane.memory().model().reservation();
    let limits = InferenceLimits {
        body_bytes: REGISTRATION_LIMIT,
        ..inference.limits
    };
    let body = IncomingBody::new(&parts.headers, body)
        .receive(&limits, Place::OnePiece, &mut memory)
        .await?;
    let registration = serde_json::from_slice::<RegisterSystemSharedMemory>(&body.to_bytes())
        .map_err(|e| InferenceError::bad_request(e.to_string()))?;
    regions.register(name, registration).await?;
    Ok(StatusCode::OK)
}

/// Forgets a region of shared memory, if there is one of this name.
#[utoipa::path(
    post, path = "/v2/systemsharedmemory/region/{region}/unregister", tag = "inference",
    params(("region" = String, Path, description = "The region's name")),
    responses(
        (status = 200, description = "There is no such region any more"),
        (status = 400, description = "System shared memory is off", body = ErrorBody),
        (status = 403, description = "The client is on another host or runs as another user", body = ErrorBody),
    )
)]
pub(in crate::api) async fn unregister(
    State(inference): State<Inference>,
    region: Result<Path<String>, PathRejection>,
    extensions: Extensions,
) -> Result<StatusCode, InferenceError> {
    let name = name_of(region)?;
    regions_of(&inference, &extensions).await?.unregister(&name);
    Ok(StatusCode::OK)
}

/// Forgets all of the caller's regions of shared memory.
#[utoipa::path(
    post, path = "/v2/systemsharedmemory/unregister", tag = "inference",
    responses(
        (status = 200, description = "There are no regions any more"),
        (status = 400, description = "System shared memory is off", body = ErrorBody),
        (status = 403, description = "The client is on another host or runs as another user", body = ErrorBody),
    )
)]
pub(in crate::api) async fn unregister_all(
    State(inference): State<Inference>,
    extensions: Extensions,
) -> Result<StatusCode, InferenceError> {
    regions_of(&inference, &extensions).await?.unregister_all();
    Ok(StatusCode::OK)
}
