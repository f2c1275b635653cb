//! `/v1/keys`: API keys of clients and admins.

use axum::{Extension, Json, extract::State, http::StatusCode, response::IntoResponse};
use packhorse_api::{
    AuditActor, CreatedKey, ErrorBody, KeyChange, KeyRequest, KeyRotation, KeyView,
};

use super::{Admin, NO_STORE};
use crate::{
    api::{
        body::JsonBody,
        error::{ApiError, Path},
    },
    keys::KeyError,
};

/// Makes a key. It is shown here and never again.
#[utoipa::path(
    post, path = "/v1/keys", tag = "keys", security(("admin" = [])),
    request_body = KeyRequest,
    responses(
        (status = 201, body = CreatedKey),
        (status = 400, description = "A field is out of its limits", body = ErrorBody),
        (status = 507, description = "There are too many keys", body = ErrorBody),
        (status = "default", description = "Any other failure", body = ErrorBody),
    )
)]
pub(super) async fn create(
    State(admin): State<Admin>,
    Extension(actor): Extension<AuditActor>,
    JsonBody(request): JsonBody<KeyRequest>,
) -> Result<impl IntoResponse, ApiError> {
    let created = admin.keys.create(actor, request).await?;
    tracing::info!(
        key.id = created.view.id,
        key.name = created.view.name,
        "a key was made"
    );
    Ok((StatusCode::CREATED, [NO_STORE], Json(created)))
}

/// Returns all keys, without their secrets.
#[utoipa::path(
    get, path = "/v1/keys", tag = "keys", security(("admin" = [])),
    responses((status = 200, body = [KeyView]), (status = "default", description = "Any failure", body = ErrorBody))
)]
pub(super) async fn list(State(admin): State<Admin>) -> Json<Vec<KeyView>> {
    Json(admin.keys.all())
}

/// Returns a key, without its secret.
#[utoipa::path(
    get, path = "/v1/keys/{id}", tag = "keys", security(("admin" = [])),
    params(("id" = String, Path, description = "The key's identity")),
    responses(
        (status = 200, body = KeyView),
        (status = 404, description = "There is no such key", body = ErrorBody),
        (status = "default", description = "Any other failure", body = ErrorBody),
    )
)]
pub(super) async fn show(
    State(admin): State<Admin>,
    Path(id): Path<String>,
) -> Result<Json<KeyView>, ApiError> {
    Ok(Json(admin.keys.get(&id)?))
}

/// Changes the limits of a key. They begin anew: requests that are in flight count for the former ones.
#[utoipa::path(
    patch, path = "/v1/keys/{id}", tag = "keys", security(("admin" = [])),
    params(("id" = String, Path, description = "The key's identity")),
    request_body = KeyChange,
    responses(
        (status = 200, body = KeyView),
        (status = 400, description = "A field is out of its limits", body = ErrorBody),
        (status = 404, description = "There is no such key", body = ErrorBody),
        (status = "default", description = "Any other failure", body = ErrorBody),
    )
)]
pub(super) async fn change(
    State(admin): State<Admin>,
    Extension(actor): Extension<AuditActor>,
    Path(id): Path<String>,
    JsonBody(change): JsonBody<KeyChange>,
) -> Result<Json<KeyView>, ApiError> {
    let view = admin.keys.change(actor, &id, change).await?;
    tracing::info!(key.id = id, "the limits of a key were changed");
    Ok(Json(view))
}

/// Deletes a key. From now on it is not valid any more.
#[utoipa::path(
    delete, path = "/v1/keys/{id}", tag = "keys", security(("admin" = [])),
    params(("id" = String, Path, description = "The key's identity")),
    responses(
        (status = 204, description = "Deleted"),
        (status = 404, description = "There is no such key", body = ErrorBody),
        (status = "default", description = "Any other failure", body = ErrorBody),
    )
)]
pub(super) async fn delete(
    State(admin): State<Admin>,
    Extension(actor): Extension<AuditActor>,
    Path(id): Path<String>,
) -> Result<StatusCode, ApiError> {
    admin.keys.delete(actor, &id).await?;
    tracing::info!(key.id = id, "a key was deleted");
    Ok(StatusCode::NO_CONTENT)
}

/// Replaces the secret of a key. The former one stays valid for the overlap. The new one is shown here and never again.
#[utoipa::path(
    post, path = "/v1/keys/{id}/rotate", tag = "keys", security(("admin" = [])),
    params(("id" = String, Path, description = "The key's identity")),
    request_body = KeyRotation,
    responses(
        (status = 200, body = CreatedKey),
        (status = 400, description = "The overlap is too long", body = ErrorBody),
        (status = 404, description = "There is no such key", body = ErrorBody),
        (status = "default", description = "Any other failure", body = ErrorBody),
    )
)]
pub(super) async fn rotate(
    State(admin): State<Admin>,
    Extension(actor): Extension<AuditActor>,
    Path(id): Path<String>,
    JsonBody(rotation): JsonBody<KeyRotation>,
) -> Result<impl IntoResponse, ApiError> {
    let created = admin.keys.rotate(actor, &id, rotation).await?;
    tracing::info!(
        key.id = id,
        overlap_s = rotation.overlap_s,
        "a key was rotated"
    );
    Ok(([NO_STORE], Json(created)))
}

impl From<KeyError> for ApiError {
    fn from(error: KeyError) -> Self {
        let text = error.to_string();
        match error {
            KeyError::Invalid { .. } => Self::new(StatusCode::BAD_REQUEST, text),
            KeyError::Unknown(_) => Self::new(StatusCode::NOT_FOUND, text),
            KeyError::TooMany => Self::new(StatusCode::INSUFFICIENT_STORAGE, text),
            KeyError::Random(_) => Self::internal(&error),
            KeyError::Store(error) => error.into(),
        }
    }
}
