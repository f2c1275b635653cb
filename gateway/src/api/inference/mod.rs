//! The Open Inference Protocol over HTTP.
//!
//! Bodies are read as bytes, whatever their `Content-Type`, because clients send different ones; every error is `{"error": ...}`,
//! because clients read nothing else.

pub(in crate::api) mod authorize;
pub(in crate::api) mod body;
mod classes;
mod compress;
pub(in crate::api) mod computation;
pub(in crate::api) mod error;
pub(in crate::api) mod header_names;
mod infer;
pub(in crate::api) mod inflate;
pub(in crate::api) mod middleware;
pub(in crate::api) mod model;
pub(in crate::api) mod model_path;
pub(in crate::api) mod pictures;
mod platforms;
mod predictions;
mod raw_inputs;
mod raw_rows;
mod rejections;
mod respond;
pub(in crate::api) mod server;
pub(in crate::api) mod shared_memory;
pub(in crate::api) mod state;
mod text_calls;
pub(in crate::api) mod texts;
pub(in crate::api) mod work_pool;

pub(crate) use error::InferenceError;
pub(crate) use infer::{TracedAnswer, try_model};
pub use platforms::{Platform, Platforms, PlatformsError, VertexRoutes};
pub use state::{Inference, InferenceLimits};

use text_calls::{openai, rerank, tei};

use axum::{
    Router,
    http::StatusCode,
    routing::{get, post},
};
use utoipa_axum::{router::OpenApiRouter, routes};

/// Returns the routes of the inference listener, with their state and fallbacks. Every request is measured.
pub fn router(inference: &Inference) -> OpenApiRouter {
    let (routes, api) = OpenApiRouter::new()
        .routes(routes!(infer::infer))
        .routes(routes!(infer::infer_version))
        .routes(routes!(server::metadata))
        .routes(routes!(server::live))
        .routes(routes!(server::ready))
        .routes(routes!(server::repository_index))
        .routes(routes!(model::all_stats))
        .routes(routes!(model::metadata))
        .routes(routes!(model::version_metadata))
        .routes(routes!(model::ready))
        .routes(routes!(model::version_ready))
        .routes(routes!(model::config))
        .routes(routes!(model::version_config))
        .routes(routes!(model::stats))
        .routes(routes!(model::version_stats))
        .routes(routes!(shared_memory::routes::all_status))
        .routes(routes!(shared_memory::routes::status))
        .routes(routes!(shared_memory::routes::register))
        .routes(routes!(shared_memory::routes::unregister))
        .routes(routes!(shared_memory::routes::unregister_all))
        .routes(routes!(openai::embeddings))
        .routes(routes!(rerank::rerank))
        .routes(routes!(tei::any))
        .routes(routes!(tei::embed))
        .routes(routes!(tei::predict))
        .routes(routes!(tei::rerank))
        .routes(routes!(tei::info))
        .routes(routes!(tei::health))
        .split_for_parts();
    let routes = platforms::add_to(routes, &inference.platforms);
    let routes: Router = routes
        .route("/v2/", get(server::metadata))
        .route("/v1/rerank", post(rerank::rerank))
        // The document has these paths for the admin listener.
        .route("/v1/models", get(openai::models))
        .route("/v1/models/{model}", get(openai::model))
        .route(
            "/v2/repository/models/{model}/load",
            post(server::refuse_loading),
        )
        .route(
            "/v2/repository/models/{model}/unload",
            post(server::refuse_loading),
        )
        .method_not_allowed_fallback(server::method_not_allowed)
        .fallback(not_found)
        .layer(axum::middleware::from_fn_with_state(
            inference.clone(),
            middleware::answer,
        ))
        .with_state(inference.clone());
    let routes = platforms::with_vertex(routes, inference);
    let api = api.merge_from(platforms::document());
    OpenApiRouter::with_openapi(api).merge(routes.into())
}

async fn not_found() -> InferenceError {
    InferenceError::new(StatusCode::NOT_FOUND, "there is no such path")
}
