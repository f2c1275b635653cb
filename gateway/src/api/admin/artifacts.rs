//! `/v1/artifacts`: model files.

use std::io;

use axum::{
    Extension, Json,
    body::Body,
    extract::{Request, State},
    http::{HeaderName, StatusCode, header},
    response::IntoResponse,
};
use futures_util::TryStreamExt as _;
use packhorse_api::{ArtifactView, AuditActor, ErrorBody};
use packhorse_cluster::ArtifactDigest;
use tokio_util::io::{ReaderStream, StreamReader};

use super::Admin;
use crate::{
    api::error::{ApiError, Path},
    audit::Act,
    store::ReceiveError,
};

/// The number of bytes of a file that are read at a time.
const READ_BYTES: usize = 256 << 10;

/// Stores a model file, with any `Content-Type`. Storing the same file again changes nothing.
#[utoipa::path(
    put, path = "/v1/artifacts/{digest}", tag = "artifacts", security(("admin" = [])),
    params(("digest" = String, Path, description = "`sha256:` and 64 hexadecimal digits", example = "sha256:0123…")),
    request_body(content = Vec<u8>, content_type = "application/octet-stream", description = "The file"),
    responses(
        (status = 200, description = "The file was already stored", body = ArtifactView),
        (status = 201, description = "The file is stored durably", body = ArtifactView),
        (status = 400, description = "The file has another digest", body = ErrorBody),
        (status = 413, description = "The file is larger than the limit `--artifact-limit-bytes`", body = ErrorBody),
        (status = 507, description = "The gateway's disk is full", body = ErrorBody),
        (status = "default", description = "Any other failure", body = ErrorBody),
    )
)]
pub(super) async fn put(
    State(admin): State<Admin>,
    Extension(actor): Extension<AuditActor>,
    Path(digest): Path<ArtifactDigest>,
    request: Request,
) -> Result<impl IntoResponse, ApiError> {
    let limit = admin.artifacts.limit();
    let announced = request.headers().get(header::CONTENT_LENGTH);
    let announced = announced.and_then(|length| length.to_str().ok()?.parse::<u64>().ok());
    if announced.is_some_and(|bytes| bytes > limit.as_u64()) {
        return Err(ReceiveError::TooLarge(limit).into());
    }
    let bytes = request.into_body().into_data_stream();
    let source = StreamReader::new(bytes.map_err(io::Error::other));
    let files = admin
        .artifacts
        .acting(Act::new(actor, "artifact.store", &digest));
    let received = files.receive(Some(digest), source).await?;
    let status = if received.new {
        StatusCode::CREATED
    } else {
        StatusCode::OK
    };
    let view = ArtifactView {
        digest,
        bytes: received.bytes,
    };
    Ok((status, Json(view)))
}

/// Returns a stored model file.
#[utoipa::path(
    get, path = "/v1/artifacts/{digest}", tag = "artifacts", security(("admin" = []), ("agent" = [])),
    params(("digest" = String, Path, description = "`sha256:` and 64 hexadecimal digits")),
    responses(
        (status = 200, description = "The file", body = Vec<u8>, content_type = "application/octet-stream"),
        (status = 404, description = "The file is not stored", body = ErrorBody),
        (status = "default", description = "Any other failure", body = ErrorBody),
    )
)]
pub(super) async fn show(
    State(admin): State<Admin>,
    actor: Option<Extension<AuditActor>>,
    Path(digest): Path<ArtifactDigest>,
) -> Result<impl IntoResponse, ApiError> {
    let (file, bytes) = admin.artifacts.read(digest).await?;
    // Agents fetch again and again; what they do is no act.
    if let Some(Extension(actor)) = actor {
        let act = Act::new(actor, "artifact.download", &digest);
        admin.store.acting(act).record().await?;
    }
    let headers: [(HeaderName, String); 2] = [
        (header::CONTENT_TYPE, "application/octet-stream".to_owned()),
        (header::CONTENT_LENGTH, bytes.to_string()),
    ];
    let body = Body::from_stream(ReaderStream::with_capacity(file, READ_BYTES));
    Ok((headers, body))
}

/// Returns all stored model files.
#[utoipa::path(
    get, path = "/v1/artifacts", tag = "artifacts", security(("admin" = [])),
    responses((status = 200, body = [ArtifactView]), (status = "default", description = "Any failure", body = ErrorBody))
)]
pub(super) async fn list(State(admin): State<Admin>) -> Result<Json<Vec<ArtifactView>>, ApiError> {
    let stored = admin.store.artifacts().await?;
    let views = stored
        .into_iter()
        .map(|(digest, bytes)| ArtifactView { digest, bytes });
    Ok(Json(views.collect()))
}
