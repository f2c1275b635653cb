//! `/v1/nodes`: nodes and their scheduling.

use std::time::Duration;

use axum::{Extension, Json, extract::State};
use packhorse_api::{AuditActor, ChangeAnswer, ErrorBody, NodeView, RemovedNode};
use packhorse_cluster::{NodeName, Scheduling};
use packhorse_control::Command;
use serde::Deserialize;
use utoipa::IntoParams;

use super::{
    Admin,
    consequences::{self, Rehearsed},
};
use crate::api::error::{ApiError, Path, Query};

/// The time that a drain is given, and the choice between the drain and its dry run.
#[derive(Clone, Copy, Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct Drain {
    /// The time in seconds after which models that have no place elsewhere lose their replicas on the node, 0 to 86400. Without it
    /// the drain waits for them.
    #[param(maximum = 86400)]
    deadline_s: Option<u64>,
    /// True to check the change and answer its consequences, without making it.
    #[serde(default)]
    dry_run: bool,
}

impl Drain {
    /// The largest `deadline_s`.
    const MAX_S: u64 = 86_400;
}

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
    params(("node" = String, Path, description = "The node's name"), Rehearsed),
    responses(
        (status = 200, description = "The node, or after a dry run the consequences alone", body = ChangeAnswer<NodeView>),
        (status = 404, description = "No node has this name", body = ErrorBody),
        (status = "default", description = "Any other failure", body = ErrorBody),
    )
)]
pub(super) async fn cordon(
    admin: State<Admin>,
    actor: Extension<AuditActor>,
    node: Path<NodeName>,
    Query(Rehearsed { dry_run }): Query<Rehearsed>,
) -> Result<Json<ChangeAnswer<NodeView>>, ApiError> {
    schedule(admin, actor, node, dry_run, Scheduling::Cordoned, None).await
}

/// Uncordons a node: it gets replicas again.
#[utoipa::path(
    post, path = "/v1/nodes/{node}/uncordon", tag = "nodes", security(("admin" = [])),
    params(("node" = String, Path, description = "The node's name"), Rehearsed),
    responses(
        (status = 200, description = "The node, or after a dry run the consequences alone", body = ChangeAnswer<NodeView>),
        (status = 404, description = "No node has this name", body = ErrorBody),
        (status = "default", description = "Any other failure", body = ErrorBody),
    )
)]
pub(super) async fn uncordon(
    admin: State<Admin>,
    actor: Extension<AuditActor>,
    node: Path<NodeName>,
    Query(Rehearsed { dry_run }): Query<Rehearsed>,
) -> Result<Json<ChangeAnswer<NodeView>>, ApiError> {
    schedule(admin, actor, node, dry_run, Scheduling::Open, None).await
}

/// Drains a node: its replicas move to other nodes, and it gets no new ones. A replica stays until its model is served elsewhere;
/// `GET /v1/findings` says which models the drain waits for.
#[utoipa::path(
    post, path = "/v1/nodes/{node}/drain", tag = "nodes", security(("admin" = [])),
    params(("node" = String, Path, description = "The node's name"), Drain),
    responses(
        (status = 200, description = "The node, or after a dry run the consequences alone", body = ChangeAnswer<NodeView>),
        (status = 400, description = "deadline_s is out of its limits", body = ErrorBody),
        (status = 404, description = "No node has this name", body = ErrorBody),
        (status = "default", description = "Any other failure", body = ErrorBody),
    )
)]
pub(super) async fn drain(
    admin: State<Admin>,
    actor: Extension<AuditActor>,
    node: Path<NodeName>,
    Query(Drain {
        deadline_s,
        dry_run,
    }): Query<Drain>,
) -> Result<Json<ChangeAnswer<NodeView>>, ApiError> {
    if deadline_s.is_some_and(|seconds| seconds > Drain::MAX_S) {
        let max = Drain::MAX_S;
        return Err(ApiError::bad_request(format!(
            "deadline_s: expected at most {max}"
        )));
    }
    let time = deadline_s.map(Duration::from_secs);
    schedule(admin, actor, node, dry_run, Scheduling::Draining, time).await
}

/// Removes a node that holds no lease. It may come back, as a new node. Plans have no place on such a node, so that its removal takes none
/// away; it ends the replicas of the node that still serve because their models have no place elsewhere.
#[utoipa::path(
    delete, path = "/v1/nodes/{node}", tag = "nodes", security(("admin" = [])),
    params(("node" = String, Path, description = "The node's name"), Rehearsed),
    responses(
        (status = 200, description = "The node is removed, or after a dry run the consequences alone", body = ChangeAnswer<RemovedNode>),
        (status = 404, description = "No node has this name", body = ErrorBody),
        (status = 409, description = "The node's agent holds the lease", body = ErrorBody),
        (status = "default", description = "Any other failure", body = ErrorBody),
    )
)]
pub(super) async fn remove(
    State(admin): State<Admin>,
    Extension(actor): Extension<AuditActor>,
    Path(node): Path<NodeName>,
    Query(Rehearsed { dry_run }): Query<Rehearsed>,
) -> Result<Json<ChangeAnswer<RemovedNode>>, ApiError> {
    let controller = admin.controller.by(actor);
    let command = Command::RemoveNode(node.clone());
    let make = async {
        controller.remove_node(node.clone()).await??;
        let credentials = &admin.credentials;
        credentials.remove_node_token(&admin.store, &node).await?;
        Ok(RemovedNode { removed: node })
    };
    let answer = consequences::change(&controller, dry_run, vec![command], make).await?;
    Ok(Json(answer))
}

async fn schedule(
    State(admin): State<Admin>,
    Extension(actor): Extension<AuditActor>,
    Path(node): Path<NodeName>,
    dry_run: bool,
    scheduling: Scheduling,
    time: Option<Duration>,
) -> Result<Json<ChangeAnswer<NodeView>>, ApiError> {
    let controller = admin.controller.by(actor);
    let command = Command::ScheduleNode(node.clone(), scheduling, time);
    let make = async { Ok(controller.schedule_node(node, scheduling, time).await??) };
    let answer = consequences::change(&controller, dry_run, vec![command], make).await?;
    Ok(Json(answer))
}
