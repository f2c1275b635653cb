//! `/v1/agents`: what agents say and ask.

use std::time::Duration;

use axum::{Json, extract::State, http::StatusCode};
use packhorse_api::{
    ErrorBody,
    agent::{AgentStatus, LeaseGrant, LeaseRequest, WantedState},
};
use packhorse_cluster::NodeName;
use serde::Deserialize;
use utoipa::IntoParams;

use super::Admin;
use crate::api::error::{ApiError, JsonBody, Path, Query};

/// What an agent knows already, and how long it waits for news.
#[derive(Clone, Copy, Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct Known {
    /// The epoch of the wanted state it knows; 0 if it knows none.
    #[serde(default)]
    epoch: u64,
    /// The revision of it.
    #[serde(default)]
    revision: u64,
    /// How long it waits for a newer one, in milliseconds; at most 30000.
    #[param(maximum = 30000)]
    #[serde(default)]
    wait_ms: u64,
}

impl Known {
    const MAX_WAIT_MS: u64 = 30_000;
}

/// Takes or renews the lease of a node, and says what it has.
#[utoipa::path(
    put, path = "/v1/agents/{node}/lease", tag = "agents", security(("agent" = []), ("admin" = [])),
    params(("node" = String, Path, description = "The node's name")),
    request_body = LeaseRequest,
    responses(
        (status = 200, body = LeaseGrant),
        (status = 400, description = "A field is out of its limits", body = ErrorBody),
        (status = 409, description = "Another agent holds it", body = ErrorBody),
        (status = "default", description = "Any other failure", body = ErrorBody),
    )
)]
pub(super) async fn lease(
    State(admin): State<Admin>,
    Path(node): Path<NodeName>,
    JsonBody(request): JsonBody<LeaseRequest>,
) -> Result<Json<LeaseGrant>, ApiError> {
    Ok(Json(admin.controller.lease(node, request).await??))
}

/// What is wanted of a node: at once if that is newer than what the agent knows, else as soon as it is, else after `wait_ms`.
#[utoipa::path(
    get, path = "/v1/agents/{node}/wanted", tag = "agents", security(("agent" = []), ("admin" = [])),
    params(("node" = String, Path, description = "The node's name"), Known),
    responses(
        (status = 200, body = WantedState),
        (status = 409, description = "The lease is not held, or the node has not reported its status yet", body = ErrorBody),
        (status = "default", description = "Any other failure", body = ErrorBody),
    )
)]
pub(super) async fn wanted(
    State(admin): State<Admin>,
    Path(node): Path<NodeName>,
    Query(known): Query<Known>,
) -> Result<Json<WantedState>, ApiError> {
    if known.wait_ms > Known::MAX_WAIT_MS {
        let max = Known::MAX_WAIT_MS;
        return Err(ApiError::bad_request(format!(
            "wait_ms: expected at most {max}"
        )));
    }
    let wait = Duration::from_millis(known.wait_ms);
    let newest = (known.epoch, known.revision);
    Ok(Json(admin.controller.wanted(node, newest, wait).await??))
}

/// The full state of a node.
#[utoipa::path(
    put, path = "/v1/agents/{node}/status", tag = "agents", security(("agent" = []), ("admin" = [])),
    params(("node" = String, Path, description = "The node's name")),
    request_body = AgentStatus,
    responses(
        (status = 204, description = "Taken"),
        (status = 409, description = "This agent does not hold the lease", body = ErrorBody),
        (status = "default", description = "Any other failure", body = ErrorBody),
    )
)]
pub(super) async fn status(
    State(admin): State<Admin>,
    Path(node): Path<NodeName>,
    JsonBody(status): JsonBody<AgentStatus>,
) -> Result<StatusCode, ApiError> {
    admin.controller.status(node, status).await??;
    Ok(StatusCode::NO_CONTENT)
}
