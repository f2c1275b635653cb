//! The admin listener: the API under `/v1`, metrics, and the documentation of it all. A handler parses, asks the control plane
//! and answers; what it asks for is in `api`, what it may refuse in `errors`.

mod agents;
mod artifacts;
mod auth;
mod errors;
mod models;
mod nodes;
mod plans;
mod profiles;

use std::{any::Any, time::Duration};

use axum::{
    Router,
    extract::{DefaultBodyLimit, State},
    http::{StatusCode, header},
    middleware,
    response::{IntoResponse, Response},
    routing::get,
};
use bytes::Bytes;
use tower_http::{catch_panic::CatchPanicLayer, timeout::RequestBodyTimeoutLayer};
use utoipa::{
    Modify, OpenApi,
    openapi::security::{Http, HttpAuthScheme, SecurityScheme},
};
use utoipa_axum::{
    router::{OpenApiRouter, UtoipaMethodRouterExt as _},
    routes,
};
use utoipa_swagger_ui::SwaggerUi;

use super::ApiError;
use crate::{
    controller::Controller,
    driver::DataPlane,
    store::{ArtifactFiles, Store},
    telemetry::{METRICS_CONTENT_TYPE, measure_http},
};

pub use auth::Credentials;

/// The most bytes of a JSON body.
const JSON_LIMIT: usize = 1 << 20;
/// The most bytes of profiles, and of an agent's status, which may hold some.
const PROFILES_LIMIT: usize = 16 << 20;

/// What the handlers share.
#[derive(Clone, Debug)]
pub struct Admin {
    /// Who may ask.
    pub credentials: Credentials,
    /// The control plane.
    pub controller: Controller,
    /// The data plane, for goodput and metrics.
    pub data_plane: DataPlane,
    /// The stored model files.
    pub artifacts: ArtifactFiles,
    /// The database, for history that only it has.
    pub store: Store,
    /// A body that sends nothing for so long is given up.
    pub body_timeout: Duration,
}

/// What stands at the head of the document.
#[derive(OpenApi)]
#[openapi(
    info(
        title = "Packhorse",
        description = "The inference listener speaks the Open Inference Protocol under `/v2`; the admin listener has everything \
            under `/v1`. Every answer that is no success is `{\"error\": ...}`.",
        license(name = "Apache-2.0", identifier = "Apache-2.0"),
    ),
    tags(
        (name = "inference", description = "The Open Inference Protocol, on the inference listener"),
        (name = "models", description = "Registering models and watching them on their way"),
        (name = "artifacts", description = "Model files"),
        (name = "profiles", description = "What was measured of models"),
        (name = "nodes", description = "Machines and their devices"),
        (name = "plans", description = "What runs where, how that is decided, and how it fares"),
        (name = "metrics", description = "Everything that is measured"),
        (name = "agents", description = "What agents say and ask"),
    ),
    modifiers(&Tokens)
)]
struct Head;

/// The two tokens.
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

/// The routes of the admin listener. `inference` is the documentation of the other one: one document speaks of both.
pub fn router(admin: Admin, inference: utoipa::openapi::OpenApi) -> Router {
    let credentials = admin.credentials.clone();
    let telemetry = admin.data_plane.telemetry().clone();
    let body_timeout = admin.body_timeout;
    let guarded = admin_routes().route_layer(middleware::from_fn_with_state(
        credentials.clone(),
        auth::admin_only,
    ));
    let agents = agent_routes().route_layer(middleware::from_fn_with_state(
        credentials,
        auth::agents_too,
    ));
    let (routes, mut document) = OpenApiRouter::with_openapi(Head::openapi())
        .merge(guarded)
        .merge(agents)
        .routes(routes!(metrics))
        .with_state(admin)
        .split_for_parts();
    document.merge(inference);
    let text = document.to_pretty_json().expect("the document is JSON");
    let docs = SwaggerUi::new("/docs").config(utoipa_swagger_ui::Config::from("/openapi.json"));
    routes
        .route("/openapi.json", get(openapi))
        .with_state(Bytes::from(text + "\n"))
        .merge(docs)
        .method_not_allowed_fallback(method_not_allowed)
        .fallback(not_found)
        .layer(DefaultBodyLimit::max(JSON_LIMIT))
        .layer(RequestBodyTimeoutLayer::new(body_timeout))
        .layer(CatchPanicLayer::custom(panicked))
        .layer(middleware::from_fn_with_state(telemetry, measure_http))
}

/// The routes that want the admin's token.
fn admin_routes() -> OpenApiRouter<Admin> {
    let profiles = routes!(profiles::export, profiles::import);
    OpenApiRouter::new()
        .routes(routes!(models::list, models::register))
        .routes(routes!(models::show, models::change, models::remove))
        .routes(routes!(artifacts::list))
        .routes(routes!(artifacts::put).layer(DefaultBodyLimit::disable()))
        .routes(profiles.layer(DefaultBodyLimit::max(PROFILES_LIMIT)))
        .routes(routes!(profiles::kernels))
        .routes(routes!(profiles::pairs, profiles::import_pairs))
        .routes(routes!(nodes::list))
        .routes(routes!(nodes::cordon))
        .routes(routes!(nodes::uncordon))
        .routes(routes!(nodes::drain))
        .routes(routes!(plans::current))
        .routes(routes!(plans::list))
        .routes(routes!(plans::show))
        .routes(routes!(plans::difference))
        .routes(routes!(plans::preview))
        .routes(routes!(plans::policy, plans::change_policy))
        .routes(routes!(plans::goodput))
}

/// The routes that an agent's token opens as well.
fn agent_routes() -> OpenApiRouter<Admin> {
    OpenApiRouter::new()
        .routes(routes!(artifacts::show))
        .routes(routes!(agents::lease))
        .routes(routes!(agents::wanted))
        .routes(routes!(agents::status).layer(DefaultBodyLimit::max(PROFILES_LIMIT)))
}

/// Everything that is measured, in the Prometheus text format.
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
    ApiError::not_found("there is no such path on the admin listener")
}

async fn method_not_allowed() -> ApiError {
    ApiError::new(
        StatusCode::METHOD_NOT_ALLOWED,
        "this path does not know this method",
    )
}

#[expect(
    clippy::needless_pass_by_value,
    reason = "the layer hands it over like this"
)]
fn panicked(cause: Box<dyn Any + Send>) -> Response {
    let text = cause.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| cause.downcast_ref::<&str>().copied());
    tracing::error!(error = text.unwrap_or("no message"), "a handler panicked");
    ApiError::new(
        StatusCode::INTERNAL_SERVER_ERROR,
        "the gateway failed inside; its log says why",
    )
    .into_response()
}
