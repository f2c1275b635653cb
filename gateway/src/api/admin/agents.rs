//! `/v1/agents`: leases, wanted states and statuses of nodes.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use axum::{
    Json,
    extract::{ConnectInfo, State},
    http::{HeaderMap, StatusCode},
};
use packhorse_api::{
    ErrorBody,
    agent::{AgentStatus, GpuStatus, LeaseGrant, LeaseRequest, WantedState},
};
use packhorse_cluster::NodeName;
use packhorse_control::{LeaseClaim, NodeReport};
use serde::Deserialize;
use utoipa::IntoParams;

use super::{Admin, worker_addresses};
use crate::{
    api::{
        body::{Body, JsonBody},
        error::{ApiError, Path, Query, off_reactor, parse_json},
    },
    printable::printable,
};

/// The largest status that is read where it is received, in bytes.
const INLINE_STATUS: usize = 64 << 10;

/// The wanted state that an agent has, and its patience.
#[derive(Clone, Copy, Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct Known {
    /// The epoch of the wanted state that the agent has; 0 for none.
    #[serde(default)]
    epoch: u64,
    /// The revision of the wanted state that the agent has.
    #[serde(default)]
    revision: u64,
    /// The time to wait for a newer wanted state, in milliseconds; at most 30000.
    #[param(maximum = 30000)]
    #[serde(default)]
    wait_ms: u64,
}

impl Known {
    /// The largest `wait_ms`.
    const MAX_WAIT_MS: u64 = 30_000;
}

/// Takes or renews the lease of a node, and reports the node's devices.
#[utoipa::path(
    put, path = "/v1/agents/{node}/lease", tag = "agents", security(("agent" = []), ("admin" = [])),
    params(("node" = String, Path, description = "The node's name")),
    request_body = LeaseRequest,
    responses(
        (status = 200, body = LeaseGrant),
        (status = 400, description = "A field is out of its limits", body = ErrorBody),
        (status = 409, description = "Another agent holds the lease", body = ErrorBody),
        (status = "default", description = "Any other failure", body = ErrorBody),
    )
)]
pub(super) async fn lease(
    State(admin): State<Admin>,
    Path(node): Path<NodeName>,
    headers: HeaderMap,
    JsonBody(request): JsonBody<LeaseRequest>,
) -> Result<Json<LeaseGrant>, ApiError> {
    request.validate()?;
    let claim = LeaseClaim {
        instance: request.instance,
        agent_version: request.agent_version,
        libtorch: request.libtorch,
        devices: request.devices,
        cluster_id: request.cluster_id.clone(),
        highest_epoch: request.highest_epoch,
    };
    let mut grant = admin.controller.lease(node, claim).await??;
    if let (Some(ours), Some(nonce)) = (&grant.cluster_id, request.nonce)
        && request.cluster_id.as_ref() != Some(ours)
    {
        grant.proof = Some(admin.credentials.prove_cluster(&headers, &nonce, ours));
    }
    Ok(Json(grant))
}

/// Returns the wanted state of a node as soon as it is newer than the agent's, at the latest after `wait_ms`.
#[utoipa::path(
    get, path = "/v1/agents/{node}/wanted", tag = "agents", security(("agent" = []), ("admin" = [])),
    params(("node" = String, Path, description = "The node's name"), Known),
    responses(
        (status = 200, body = WantedState),
        (status = 409, description = "No agent holds the lease, or the node has not reported its status yet", body = ErrorBody),
        (status = "default", description = "Any other failure", body = ErrorBody),
    )
)]
pub(super) async fn wanted(
    State(admin): State<Admin>,
    Path(node): Path<NodeName>,
    Query(known): Query<Known>,
) -> Result<Json<Arc<WantedState>>, ApiError> {
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

/// Reports the whole state of a node.
#[utoipa::path(
    put, path = "/v1/agents/{node}/status", tag = "agents", security(("agent" = []), ("admin" = [])),
    params(("node" = String, Path, description = "The node's name")),
    request_body = AgentStatus,
    responses(
        (status = 204, description = "Accepted"),
        (status = 400, description = "A field is out of its limits, or an address is not the node's", body = ErrorBody),
        (status = 409, description = "This agent does not hold the lease", body = ErrorBody),
        (status = "default", description = "Any other failure", body = ErrorBody),
    )
)]
pub(super) async fn status(
    State(admin): State<Admin>,
    Path(node): Path<NodeName>,
    ConnectInfo(peer): ConnectInfo<SocketAddr>,
    Body(body): Body,
) -> Result<StatusCode, ApiError> {
    let networks = Arc::clone(&admin.worker_networks);
    let inline = body.len() <= INLINE_STATUS;
    let read = move || {
        let status: AgentStatus = parse_json(&body)?;
        status.validate()?;
        worker_addresses::check(&status, peer.ip(), &networks)?;
        Ok::<_, ApiError>(status)
    };
    // A status with the results of measurements may be megabytes, one without them is read in microseconds.
    let status = if inline {
        read()?
    } else {
        off_reactor(read).await??
    };
    let (report, gpus) = report_of(status);
    admin.controller.report(node, report, gpus).await??;
    Ok(StatusCode::NO_CONTENT)
}

/// Separates the readings of the GPUs, which only telemetry uses, from the report of a checked status.
fn report_of(status: AgentStatus) -> (NodeReport, Vec<GpuStatus>) {
    let replicas = status.replicas.into_iter().map(|mut replica| {
        replica.reason = replica.reason.as_deref().map(printable);
        (replica.id, replica)
    });
    let mut gpus = status.gpus;
    for gpu in &mut gpus {
        gpu.mps_reason = gpu.mps_reason.as_deref().map(printable);
        for reason in &mut gpu.throttle_reasons {
            *reason = printable(reason);
        }
    }
    let mut profiles = status.profiles;
    for profile in &mut profiles {
        profile.error = profile.error.as_deref().map(printable);
    }
    let report = NodeReport {
        instance: status.instance,
        epoch: status.epoch,
        revision: status.revision,
        replicas: replicas.collect(),
        profiles,
        inspections: status.inspections,
    };
    (report, gpus)
}
