//! The Open Inference Protocol over gRPC, with the health and the reflection service.
//!
//! Framing and statuses are here and not in a library of gRPC, because such a library gives a handler whole messages: it would receive them before
//! their tenant, model and memory are known. A `messages::MessageReader` asks for each piece, as HTTP's bodies are received; the rest of
//! a request is HTTP's own, `inference::computation`.

mod call;
mod caller;
mod compression;
mod decoding;
mod health;
mod infer;
mod messages;
mod queries;
mod reflection;
mod reply;
mod state;
mod status;
mod stream;
mod turn;
mod unary;
mod writing;

use axum::{Router, routing::post};

use self::state::Grpc;
use super::inference::Inference;

/// Returns the routes of the gRPC listener. Every request is measured.
pub fn router(inference: Inference) -> Router {
    let grpc = Grpc::new(inference);
    let of_inference = |method: &str| format!("/inference.GRPCInferenceService/{method}");
    Router::new()
        .route(&of_inference("ServerLive"), post(queries::server_live))
        .route(&of_inference("ServerReady"), post(queries::server_ready))
        .route(&of_inference("ModelReady"), post(queries::model_ready))
        .route(
            &of_inference("ServerMetadata"),
            post(queries::server_metadata),
        )
        .route(
            &of_inference("ModelMetadata"),
            post(queries::model_metadata),
        )
        .route(&of_inference("ModelConfig"), post(queries::model_config))
        .route(
            &of_inference("ModelStatistics"),
            post(queries::model_statistics),
        )
        .route(
            &of_inference("RepositoryIndex"),
            post(queries::repository_index),
        )
        .route(&of_inference("RepositoryModelLoad"), post(queries::load))
        .route(
            &of_inference("RepositoryModelUnload"),
            post(queries::unload),
        )
        .route(
            &of_inference("SystemSharedMemoryStatus"),
            post(queries::shared_memory_status),
        )
        .route(
            &of_inference("SystemSharedMemoryRegister"),
            post(queries::shared_memory_register),
        )
        .route(
            &of_inference("SystemSharedMemoryUnregister"),
            post(queries::shared_memory_unregister),
        )
        .route(&of_inference("ModelInfer"), post(infer::model_infer))
        .route(
            &of_inference("ModelStreamInfer"),
            post(stream::model_stream_infer),
        )
        .route("/grpc.health.v1.Health/Check", post(health::check))
        .route("/grpc.health.v1.Health/Watch", post(health::watch))
        .route(
            "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
            post(reflection::info),
        )
        // The same messages under their former name, which some tools still ask for first.
        .route(
            "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
            post(reflection::info),
        )
        .method_not_allowed_fallback(call::not_post)
        .fallback(call::no_such_method)
        .layer(axum::middleware::from_fn_with_state(
            grpc.clone(),
            call::answer,
        ))
        .with_state(grpc)
}
