//! `/v1/nodes`: nodes and their scheduling.

use axum::{Json, extract::State};
use packhorse_api::{ErrorBody, NodeView};
use packhorse_cluster::NodeName;

use super::Admin;
use crate::{
    api::error::{ApiError, Path},
    store::Scheduling,
};

/// Returns all nodes with their devices.
#[utoipa::path(
    get, path = "/v1/nodes", tag = "nodes", security(("admin" = [])),
    responses((status = 200, body = [NodeView]), (status = "default", description = "Any failure", body = ErrorBody))
)]
pub(super) async fn list(State(admin): State<Admin>) -> Result<Json<Vec<NodeView>>, ApiError> {
    Ok(Json(admin.controller.nodes().await?))
}

/// Cordons a node: it keeps its replicas and gets no new ones.
#[utoipa::path(
    post, path = "/v1/nodes/{node}/cordon", tag = "nodes", security(("admin" = [])),
    params(("node" = String, Path, description = "The node's name")),
    responses(
        (status = 200, body = NodeView),
        (status = 404, description = "No node has this name", body = ErrorBody),
        (status = "default", description = "Any other failure", body = ErrorBody),
    )
)]
pub(super) async fn cordon(
    admin: State<Admin>,
    node: Path<NodeName>,
) -> Result<Json<NodeView>, ApiError> {
    schedule(admin, node, Scheduling::Cordoned).await
}

/// Uncordons a node: it gets replicas again.
#[utoipa::path(
    post, path = "/v1/nodes/{node}/uncordon", tag = "nodes", security(("admin" = [])),
    params(("node" = String, Path, description = "The node's name")),
    responses(
        (status = 200, body = NodeView),
        (status = 404, description = "No node has this name", body = ErrorBody),
        (status = "default", description = "Any other failure", body = ErrorBody),
    )
)]
pub(super) async fn uncordon(
    admin: State<Admin>,
    node: Path<NodeName>,
) -> Result<Json<NodeView>, ApiError> {
    schedule(admin, node, Scheduling::Open).await
}

/// Drains a node: its replicas move to other nodes, and it gets no new ones.
#[utoipa::path(
    post, path = "/v1/nodes/{node}/drain", tag = "nodes", security(("admin" = [])),
    params(("node" = String, Path, description = "The node's name")),
    responses(
        (status = 200, body = NodeView),
        (status = 404, description = "No node has this name", body = ErrorBody),
        (status = "default", description = "Any other failure", body = ErrorBody),
    )
)]
pub(super) async fn drain(
    admin: State<Admin>,
    node: Path<NodeName>,
) -> Result<Json<NodeView>, ApiError> {
    schedule(admin, node, Scheduling::Draining).await
}

async fn schedule(
    State(admin): State<Admin>,
    Path(node): Path<NodeName>,
    scheduling: Scheduling,
) -> Result<Json<NodeView>, ApiError> {
    let view = admin.controller.schedule_node(node, scheduling);
    Ok(Json(view.await??))
}
