//! The health service, for balancers and orchestrators. It has no `Watch`, which those that ask for it take for healthy.

use axum::{
    extract::{Request, State},
    http::Extensions,
    response::Response,
};
use packhorse_grpc::{
    SERVICES,
    messages::health::{
        HealthCheckRequest, HealthCheckResponse, health_check_response::ServingStatus,
    },
};

use super::{
    state::Grpc,
    unary::{Question, answer},
};
use crate::api::inference::error::InferenceError;

impl Question for HealthCheckRequest {
    const NEEDS_NO_KEY: bool = true;
}

/// Returns the state of the server, or of one of its services, which are all the same.
pub(super) async fn check(State(grpc): State<Grpc>, request: Request) -> Response {
    answer(
        &grpc,
        request,
        async |asked: HealthCheckRequest, _: &Extensions| {
            if !asked.service.is_empty() && !SERVICES.contains(&asked.service.as_str()) {
                return Err(InferenceError::new(
                    axum::http::StatusCode::NOT_FOUND,
                    "there is no such service",
                ));
            }
            let status = if grpc.data_plane.is_ready() {
                ServingStatus::Serving
            } else {
                ServingStatus::NotServing
            };
            Ok(HealthCheckResponse {
                status: status.into(),
            })
        },
    )
    .await
}
