//! What the server says of itself: `/v2`, `/v2/health/...`, `/v2/repository/...`.

use axum::{
    Json,
    extract::{Request, State},
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use packhorse_api::ErrorBody;
use packhorse_protocol::{
    RepositoryEntry, RepositoryIndexRequest, RepositoryState, ServerLive, ServerMetadata,
    ServerReady,
};

use super::{Inference, InferenceLimits, body::IncomingBody, error::InferenceError};
use crate::driver::ServedModel;

/// The name the server goes by.
const NAME: &str = "packhorse";

/// The extensions of the protocol that work here, by the names that Triton gave them.
const EXTENSIONS: [&str; 4] = [
    "binary_tensor_data",
    "model_repository",
    "model_configuration",
    "statistics",
];

/// The server: name, version, extensions.
#[utoipa::path(get, path = "/v2", tag = "inference", responses((status = 200, body = ServerMetadata)))]
pub(super) async fn metadata() -> Json<ServerMetadata> {
    Json(ServerMetadata {
        name: NAME.to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        extensions: EXTENSIONS.map(str::to_owned).to_vec(),
    })
}

/// Whether the server answers at all.
#[utoipa::path(get, path = "/v2/health/live", tag = "inference", responses((status = 200, body = ServerLive)))]
pub(super) async fn live() -> Json<ServerLive> {
    Json(ServerLive { live: true })
}

/// Whether the server takes inference requests: not before it knows what to serve, and not once it shuts down.
#[utoipa::path(
    get, path = "/v2/health/ready", tag = "inference",
    responses((status = 200, body = ServerReady), (status = 503, description = "Not ready", body = ErrorBody))
)]
pub(super) async fn ready(
    State(inference): State<Inference>,
) -> Result<Json<ServerReady>, InferenceError> {
    if inference.data_plane.is_ready() {
        Ok(Json(ServerReady { ready: true }))
    } else {
        Err(InferenceError::unavailable(
            "the server is starting, or shutting down",
        ))
    }
}

/// The most bytes of a body of this route: it holds one switch.
const INDEX_LIMIT: u64 = 4096;

/// All models and whether they can be asked.
///
/// The body may be empty.
#[utoipa::path(
    post, path = "/v2/repository/index", tag = "inference", request_body(content = Option<RepositoryIndexRequest>),
    responses((status = 200, body = Vec<RepositoryEntry>), (status = 400, description = "Malformed", body = ErrorBody))
)]
pub(super) async fn repository_index(
    State(inference): State<Inference>,
    request: Request,
) -> Result<Json<Vec<RepositoryEntry>>, InferenceError> {
    let (parts, body) = request.into_parts();
    let mut reservation = inference.budget.reservation();
    let limits = InferenceLimits {
        body_bytes: INDEX_LIMIT,
        ..inference.limits
    };
    let body = IncomingBody::new(&parts.headers, body)
        .receive(&parts.headers, &limits, &mut reservation)
        .await?;
    let asked = RepositoryIndexRequest::parse(&body.to_bytes())?;
    let catalog = inference.data_plane.catalog();
    let listed = catalog
        .all()
        .filter(|model| !asked.ready || model.is_ready());
    Ok(Json(listed.map(|model| entry(model)).collect()))
}

fn entry(model: &ServedModel) -> RepositoryEntry {
    let (state, reason) = if model.is_ready() {
        (RepositoryState::Ready, None)
    } else if model.is_loading() {
        (
            RepositoryState::Loading,
            Some("its replicas are being connected to"),
        )
    } else {
        (
            RepositoryState::Unavailable,
            Some("no replica of it is ready"),
        )
    };
    let id = model.id();
    RepositoryEntry {
        name: id.name.to_string(),
        version: Some(id.version.to_string()),
        state,
        reason: reason.map(str::to_owned),
    }
}

/// `load` and `unload` of Triton's repository extension.
pub(super) async fn no_loading() -> Response {
    let error = InferenceError::new(
        StatusCode::METHOD_NOT_ALLOWED,
        "models are not loaded or unloaded here: they are registered and removed through the admin API, /v1/models",
    );
    // Which is a way to say that this resource allows nothing.
    let mut response = error.into_response();
    response
        .headers_mut()
        .insert(header::ALLOW, HeaderValue::from_static(""));
    response
}
