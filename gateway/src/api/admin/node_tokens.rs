//! `/v1/nodes/{node}/token`: a token for the agent of one node.

use axum::{Extension, Json, extract::State, http::StatusCode, response::IntoResponse};
use packhorse_api::{AuditActor, ErrorBody, NodeTokenView};
use packhorse_cluster::NodeName;

use super::{Admin, NO_STORE};
use crate::{
    api::error::{ApiError, Path},
    audit::Act,
};

/// Makes a token for the agent of one node, in place of an earlier one. From then on the node is leased with this token only, and no
/// other node is. The node need not have joined yet. The token is shown here and never again.
#[utoipa::path(
    post, path = "/v1/nodes/{node}/token", tag = "nodes", security(("admin" = [])),
    params(("node" = String, Path, description = "The node's name")),
    responses(
        (status = 201, body = NodeTokenView),
        (status = 507, description = "Too many nodes have a token", body = ErrorBody),
        (status = "default", description = "Any other failure", body = ErrorBody),
    )
)]
pub(super) async fn create(
    State(admin): State<Admin>,
    Extension(actor): Extension<AuditActor>,
    Path(node): Path<NodeName>,
) -> Result<impl IntoResponse, ApiError> {
    let store = admin.store.acting(Act::new(actor, "node.token", &node));
    let token = admin.credentials.new_node_token(&store, &node).await?;
    tracing::info!(node.name = %node, "a token was made for a node");
    let secret = [NO_STORE];
    Ok((
        StatusCode::CREATED,
        secret,
        Json(NodeTokenView { node, token }),
    ))
}
