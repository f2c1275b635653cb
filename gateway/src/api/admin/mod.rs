//! The admin listener: the dashboard, the API under `/v1`, the metrics, and the API's documentation. A handler parses a request, calls the
//! control plane and answers. The messages are in `packhorse_api`, the statuses of errors in `errors`.

mod agents;
mod artifacts;
mod audit;
mod auth;
mod backup;
mod consequences;
mod dashboard;
mod document;
mod errors;
mod events;
mod history;
mod keys;
mod models;
mod node_tokens;
mod nodes;
mod plans;
mod profiles;
mod query_parameters;
mod repository;
mod requests;
mod sessions;
mod sign_ins;
mod times;
mod worker_addresses;

use std::{any::Any, path::PathBuf, sync::Arc, time::Duration};

use axum::{
    Extension, Router,
    extract::{Request, State},
    http::{Extensions, HeaderMap, HeaderName, StatusCode, Version, header},
    middleware,
    response::{IntoResponse, Response},
    routing::get,
};
use bytes::Bytes;
use tokio::sync::Semaphore;
use tower_http::{
    CompressionLevel,
    catch_panic::CatchPanicLayer,
    compression::{
        CompressionLayer,
        predicate::{Predicate as _, SizeAbove},
    },
    timeout::RequestBodyTimeoutLayer,
};
use utoipa::{
    Modify, OpenApi,
    openapi::security::{Http, HttpAuthScheme, SecurityScheme},
};
use utoipa_axum::{
    router::{OpenApiRouter, UtoipaMethodRouterExt as _},
    routes,
};
use utoipa_swagger_ui::SwaggerUi;

use self::query_parameters::KnownParameters;
use super::{
    ApiError,
    body::BodyLimits,
    error::INTERNAL_ERROR,
    inference::Inference,
    web_policy::{WebPolicy, WebRefusal},
};
use crate::{
    controller::Controller,
    driver::DataPlane,
    events::{EventLog, Findings},
    grafana::GrafanaUrl,
    history::HistoryLog,
    ip_network::IpNetwork,
    keys::Keyring,
    memory::MemoryBudget,
    store::{ArtifactFiles, Store},
    telemetry::{METRICS_CONTENT_TYPE, measure_http},
};

pub use auth::Credentials;
pub(crate) use auth::{bearer, bearer_of};
pub(crate) use requests::MAX_TRACES;

/// The header of answers that are not to be kept by anything on their way: streams, and those with secrets.
const NO_STORE: (HeaderName, &str) = (header::CACHE_CONTROL, "no-store");
/// The largest number of bytes of a JSON body.
const JSON_LIMIT: u64 = 1 << 20;
/// The largest number of bytes of profiles, and of an agent's status, which may contain profiles.
const PROFILES_LIMIT: u64 = 16 << 20;
/// The largest number of bytes of a body that anybody may send.
const SIGN_IN_LIMIT: u64 = 4 << 10;
/// The longest time for a whole body.
const BODY_TIME: Duration = Duration::from_mins(1);
/// The memory for the bodies of all who may change something, in bytes.
const ADMIN_MEMORY: u64 = 128 << 20;
/// The memory for the bodies of all agents, in bytes: nobody else's take it from them.
const AGENT_MEMORY: u64 = 128 << 20;
/// The memory for the bodies of all who sign in, in bytes.
const SIGN_IN_MEMORY: u64 = 1 << 20;

/// The state that the handlers share.
#[derive(Clone, Debug)]
pub struct Admin {
    /// The tokens.
    pub credentials: Credentials,
    /// The API keys.
    pub keys: Keyring,
    /// The control plane.
    pub controller: Controller,
    /// The data plane, for goodput and metrics.
    pub data_plane: DataPlane,
    /// The state of the inference listener, for requests that an admin tries.
    pub inference: Inference,
    /// The events of the cluster.
    pub events: EventLog,
    /// The findings of the cluster.
    pub findings: Findings,
    /// The last day of all models and devices.
    pub history: HistoryLog,
    /// The stored model files.
    pub artifacts: ArtifactFiles,
    /// The database, for the history of plans.
    pub store: Store,
    /// One permit for each trace that may be written.
    pub traces: Arc<Semaphore>,
    /// The time without a byte after which a body is given up.
    pub body_timeout: Duration,
    /// The networks on which workers may listen that are not at their agent's address.
    pub worker_networks: Arc<[IpNetwork]>,
    /// The hosts that the listener answers for, and the web pages that may use it.
    pub web: WebPolicy,
    /// True if the listener uses TLS.
    pub uses_tls: bool,
    /// The files with the tokens that a backup contains, as far as they exist.
    pub token_files: Arc<[PathBuf]>,
    /// The Grafana to which the dashboard links.
    pub grafana_url: Option<GrafanaUrl>,
}

/// The general part of the OpenAPI document.
#[derive(OpenApi)]
#[openapi(
    info(
        title = "Packhorse",
        description = "The inference listener serves the Open Inference Protocol under `/v2`, and calls of text models as their own clients \
            make them; the admin listener serves all other routes under `/v1`. The body of an error is `{\"error\": ...}`, but for those \
            calls, whose clients know other ones.",
        license(name = "Apache-2.0", identifier = "Apache-2.0"),
    ),
    tags(
        (name = "inference", description = "The Open Inference Protocol and calls of text models, on the inference listener"),
        (name = "models", description = "Registered models and their state"),
        (name = "artifacts", description = "Model files"),
        (name = "profiles", description = "Measurements of models"),
        (name = "nodes", description = "Machines and their devices"),
        (name = "plans", description = "Plans, placement policies and goodput"),
        (name = "events", description = "What happens in the cluster, and what is wrong"),
        (name = "requests", description = "Single requests and where their time went"),
        (name = "metrics", description = "Metrics of the gateway"),
        (name = "agents", description = "Messages of agents"),
        (name = "keys", description = "API keys, and sessions of browsers"),
        (name = "audit", description = "What admins did"),
        (name = "backup", description = "Backups of the gateway's state"),
    ),
    modifiers(&Tokens)
)]
struct ApiDocument;

/// Adds the two tokens to the document's security schemes.
struct Tokens;

impl Modify for Tokens {
    fn modify(&self, openapi: &mut utoipa::openapi::OpenApi) {
        let components = openapi.components.get_or_insert_default();
        for name in ["admin", "agent"] {
            let scheme = SecurityScheme::Http(Http::new(HttpAuthScheme::Bearer));
            components.add_security_scheme(name, scheme);
        }
    }
}

/// Returns the routes of the admin listener. `inference` is the document of the inference listener; the served document describes
/// both.
pub fn router(admin: Admin, inference: utoipa::openapi::OpenApi) -> Router {
    let credentials = admin.credentials.clone();
    let telemetry = admin.data_plane.telemetry().clone();
    let body_timeout = admin.body_timeout;
    let web = admin.web.clone();
    let admin_memory = MemoryBudget::new(ADMIN_MEMORY);
    let guarded = admin_routes(&admin_memory);
    let known = KnownParameters::new(guarded.get_openapi());
    // Layers that are added later see a request first: who may not ask learns nothing else.
    let guarded = guarded
        .route_layer(middleware::from_fn_with_state(
            known,
            query_parameters::known_only,
        ))
        .route_layer(middleware::from_fn_with_state(
            credentials.clone(),
            auth::admin_only,
        ));
    let guarded = guarded.route_layer(Extension(BodyLimits {
        bytes: JSON_LIMIT,
        time: BODY_TIME,
        memory: admin_memory,
    }));
    let agents = agent_routes().route_layer(middleware::from_fn_with_state(
        credentials,
        auth::agent_or_admin,
    ));
    let agents = agents.route_layer(Extension(BodyLimits {
        bytes: PROFILES_LIMIT,
        time: BODY_TIME,
        memory: MemoryBudget::new(AGENT_MEMORY),
    }));
    let sessions = session_routes().route_layer(Extension(BodyLimits {
        bytes: SIGN_IN_LIMIT,
        time: body_timeout,
        memory: MemoryBudget::new(SIGN_IN_MEMORY),
    }));
    let (routes, mut document) = OpenApiRouter::with_openapi(ApiDocument::openapi())
        .merge(guarded)
        .merge(agents)
        .merge(sessions)
        .routes(routes!(metrics))
        .with_state(admin)
        .split_for_parts();
    document.merge(inference);
    document::tighten(&mut document);
    let text = document.to_pretty_json().expect("the document is JSON");
    let docs = SwaggerUi::new("/docs").config(utoipa_swagger_ui::Config::from("/openapi.json"));
    routes
        .route("/openapi.json", get(openapi))
        .with_state(Bytes::from(text + "\n"))
        .merge(docs)
        .merge(dashboard::routes())
        .method_not_allowed_fallback(method_not_allowed)
        .fallback(not_found)
        .layer(
            CompressionLayer::new()
                .quality(CompressionLevel::Fastest)
                .compress_when(SizeAbove::default().and(is_text)),
        )
        .layer(RequestBodyTimeoutLayer::new(body_timeout))
        .layer(CatchPanicLayer::custom(panic_response))
        .layer(middleware::from_fn_with_state(web, from_known_pages))
        .layer(middleware::from_fn_with_state(telemetry, measure_http))
}

/// Middleware that refuses what a web page of another site sends.
async fn from_known_pages(
    State(web): State<WebPolicy>,
    request: Request,
    next: middleware::Next,
) -> Response {
    match web.refusal(&request) {
        None => next.run(request).await,
        Some(refusal) => ApiError::new(WebRefusal::STATUS, refusal.to_string()).into_response(),
    }
}

/// Returns true for answers that are compressed where the client accepts it: metrics and listings grow with the number of models. Not
/// the stream of events, whose frames must not wait, and not files.
fn is_text(_: StatusCode, _: Version, headers: &HeaderMap, _: &Extensions) -> bool {
    let kind = headers.get(header::CONTENT_TYPE);
    let kind = kind.and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    [
        "application/json",
        "application/openmetrics-text",
        "text/plain",
        "text/csv",
    ]
    .iter()
    .any(|text| kind.starts_with(text))
}

/// Returns the routes that require the admin token.
fn admin_routes(memory: &MemoryBudget) -> OpenApiRouter<Admin> {
    let profiles = routes!(profiles::export, profiles::import);
    let large = Extension(BodyLimits {
        bytes: PROFILES_LIMIT,
        time: BODY_TIME,
        memory: memory.clone(),
    });
    OpenApiRouter::new()
        .routes(routes!(models::list, models::register))
        .routes(routes!(models::show, models::change, models::remove))
        .routes(routes!(models::promote))
        .routes(routes!(models::roll_back))
        .routes(routes!(artifacts::list))
        .routes(routes!(artifacts::put))
        .routes(profiles.layer(large))
        .routes(routes!(profiles::kernels))
        .routes(routes!(profiles::learned))
        .routes(routes!(profiles::pairs, profiles::import_pairs))
        .routes(routes!(nodes::list))
        .routes(routes!(nodes::cordon))
        .routes(routes!(nodes::uncordon))
        .routes(routes!(nodes::drain))
        .routes(routes!(nodes::remove))
        .routes(routes!(node_tokens::create))
        .routes(routes!(keys::list, keys::create))
        .routes(routes!(keys::show, keys::change, keys::delete))
        .routes(routes!(keys::rotate))
        .routes(routes!(audit::list))
        .routes(routes!(plans::current))
        .routes(routes!(plans::scenario))
        .routes(routes!(plans::list))
        .routes(routes!(plans::show))
        .routes(routes!(plans::difference))
        .routes(routes!(plans::preview))
        .routes(routes!(plans::policy, plans::change_policy))
        .routes(routes!(plans::goodput))
        .routes(routes!(history::show))
        .routes(routes!(backup::download))
        .routes(routes!(events::stream))
        .routes(routes!(events::findings))
        .routes(routes!(events::incidents))
        .routes(routes!(repository::put_problems))
        .routes(routes!(requests::list))
        .routes(routes!(requests::one))
        .routes(routes!(requests::trace))
        .routes(routes!(requests::try_request))
}

/// Returns the routes that accept the agent token and the admin token.
fn agent_routes() -> OpenApiRouter<Admin> {
    OpenApiRouter::new()
        .routes(routes!(artifacts::show))
        .routes(routes!(agents::lease))
        .routes(routes!(agents::wanted))
        .routes(routes!(agents::status))
}

/// Returns the routes of sessions, which find out by themselves who asks.
fn session_routes() -> OpenApiRouter<Admin> {
    OpenApiRouter::new()
        .routes(routes!(sessions::show, sessions::create, sessions::delete))
        .routes(routes!(sessions::create_code))
}

/// Returns the metrics, in the Prometheus text format.
#[utoipa::path(
    get, path = "/metrics", tag = "metrics",
    responses((status = 200, description = "The metrics", body = String, content_type = "text/plain"))
)]
async fn metrics(State(admin): State<Admin>) -> impl IntoResponse {
    (
        [(header::CONTENT_TYPE, METRICS_CONTENT_TYPE)],
        admin.data_plane.telemetry().metrics_text(),
    )
}

async fn openapi(State(document): State<Bytes>) -> impl IntoResponse {
    ([(header::CONTENT_TYPE, "application/json")], document)
}

async fn not_found() -> ApiError {
    ApiError::not_found("the admin listener has no such path")
}

async fn method_not_allowed() -> ApiError {
    ApiError::new(
        StatusCode::METHOD_NOT_ALLOWED,
        "this path does not support this method",
    )
}

#[expect(
    clippy::needless_pass_by_value,
    reason = "the layer hands it over like this"
)]
fn panic_response(cause: Box<dyn Any + Send>) -> Response {
    let text = cause.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| cause.downcast_ref::<&str>().copied());
    tracing::error!(error = text.unwrap_or("no message"), "a handler panicked");
    ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, INTERNAL_ERROR).into_response()
}
