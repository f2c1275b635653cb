//! The routes about the server: `/v2`, `/v2/health/...`, `/v2/repository/...`.

use axum::{
    Json,
    extract::{Request, State},
    http::{Extensions, HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use packhorse_api::ErrorBody;
use packhorse_cluster::ModelName;
use packhorse_protocol::{
    RepositoryEntry, RepositoryIndexRequest, RepositoryState, ServerLive, ServerMetadata,
    ServerReady,
};

use super::{
    authorize,
    body::{IncomingBody, Place},
    error::InferenceError,
    inflate::{Encoding, inflate},
    state::{Inference, InferenceLimits},
};

/// The server's name.
const NAME: &str = "packhorse";

/// The supported extensions of the protocol, by Triton's names. Of `model_repository` there is the index, but no loading, so that it is
/// not one of them.
const EXTENSIONS: [&str; 4] = [
    "binary_tensor_data",
    "classification",
    "model_configuration",
    "statistics",
];
/// The extension that the operator turns on.
const SYSTEM_SHARED_MEMORY: &str = "system_shared_memory";

/// Returns the server's name, version and extensions.
#[utoipa::path(get, path = "/v2", tag = "inference", responses((status = 200, body = ServerMetadata)))]
pub(in crate::api) async fn metadata(State(inference): State<Inference>) -> Json<ServerMetadata> {
    let shared_memory = inference.shared_memory.is_some();
    let optional = shared_memory.then_some(SYSTEM_SHARED_MEMORY);
    let extensions = EXTENSIONS.into_iter().chain(optional);
    Json(ServerMetadata {
        name: NAME.to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        extensions: extensions.map(str::to_owned).collect(),
    })
}

/// Returns 200 as long as the server answers at all.
#[utoipa::path(get, path = "/v2/health/live", tag = "inference", responses((status = 200, body = ServerLive)))]
pub(in crate::api) async fn live() -> Json<ServerLive> {
    Json(ServerLive { live: true })
}

/// Returns 200 if the server takes inference requests: not before it has a plan to serve, and not during shutdown.
#[utoipa::path(
    get, path = "/v2/health/ready", tag = "inference",
    responses((status = 200, body = ServerReady), (status = 503, description = "Not ready", body = ErrorBody))
)]
pub(in crate::api) async fn ready(
    State(inference): State<Inference>,
) -> Result<Json<ServerReady>, InferenceError> {
    if inference.data_plane.is_ready() {
        Ok(Json(ServerReady { ready: true }))
    } else {
        Err(InferenceError::unavailable(
            "the server is starting or shutting down; retry later",
        ))
    }
}

/// The largest body of this route, in bytes: it contains one flag.
const INDEX_LIMIT: u64 = 4096;

/// Returns all models and families that the client may use, and their states.
///
/// The body may be empty.
#[utoipa::path(
    post, path = "/v2/repository/index", tag = "inference", request_body(content = Option<RepositoryIndexRequest>),
    responses((status = 200, body = Vec<RepositoryEntry>), (status = 400, description = "Malformed", body = ErrorBody))
)]
pub(in crate::api) async fn repository_index(
    State(inference): State<Inference>,
    request: Request,
) -> Result<Json<Vec<RepositoryEntry>>, InferenceError> {
    let (parts, body) = request.into_parts();
    let mut memory = inference.data_plane.memory().model().reservation();
    let limits = InferenceLimits {
        body_bytes: INDEX_LIMIT,
        ..inference.limits
    };
    let encoding = Encoding::from_headers(&parts.headers)?;
    let body = IncomingBody::new(&parts.headers, body)
        .receive(&limits, Place::OnePiece, &mut memory)
        .await?;
    let body = inflate(body, encoding, limits.body_bytes, &mut memory)?;
    let asked = RepositoryIndexRequest::parse(&body.to_bytes())?;
    Ok(Json(index(&inference, &parts.extensions, asked.ready)))
}

/// Returns the models and families that a client may use, of which `ready_only` leaves those out that are not ready.
pub(in crate::api) fn index(
    inference: &Inference,
    extensions: &Extensions,
    ready_only: bool,
) -> Vec<RepositoryEntry> {
    let catalog = inference.data_plane.catalog();
    let listed = catalog.all().filter(|model| {
        (!ready_only || model.is_ready())
            && authorize::is_listed(extensions, model.id().name.as_str())
    });
    let families = catalog.families().filter(|family| {
        (!ready_only || family.is_ready())
            && authorize::is_listed(extensions, family.name().as_str())
    });
    let listed = listed.map(|model| {
        let id = model.id();
        let version = Some(id.version.to_string());
        entry(&id.name, version, model.is_ready(), model.is_loading())
    });
    let families =
        families.map(|family| entry(family.name(), None, family.is_ready(), family.is_loading()));
    let mut entries: Vec<_> = listed.chain(families).collect();
    entries.sort_by(|a, b| a.name.cmp(&b.name));
    entries
}

fn entry(
    name: &ModelName,
    version: Option<String>,
    is_ready: bool,
    is_loading: bool,
) -> RepositoryEntry {
    let (state, reason) = if is_ready {
        (RepositoryState::Ready, None)
    } else if is_loading {
        (
            RepositoryState::Loading,
            Some("the gateway is connecting to its replicas"),
        )
    } else {
        (
            RepositoryState::Unavailable,
            Some("no replica of the model is ready"),
        )
    };
    RepositoryEntry {
        name: name.to_string(),
        version,
        state,
        reason: reason.map(str::to_owned),
    }
}

/// The refusal of `load` and `unload` of Triton's repository extension.
pub(in crate::api) fn no_loading() -> InferenceError {
    InferenceError::new(
        StatusCode::METHOD_NOT_ALLOWED,
        "loading and unloading are not supported: register and remove models through the admin API, /v1/models",
    )
}

/// Refuses `load` and `unload` of Triton's repository extension.
pub(in crate::api) async fn refuse_loading() -> Response {
    let error = no_loading();
    // An empty list allows no method.
    let mut response = error.into_response();
    response
        .headers_mut()
        .insert(header::ALLOW, HeaderValue::from_static(""));
    response
}

/// Refuses a method that a path does not have.
pub(in crate::api) async fn method_not_allowed() -> InferenceError {
    InferenceError::new(
        StatusCode::METHOD_NOT_ALLOWED,
        "this path does not allow this method",
    )
}
