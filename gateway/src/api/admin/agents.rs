//! `/v1/agents`: leases, wanted states and statuses of nodes.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use axum::{Json, extract::State, http::StatusCode};
use packhorse_api::{
    ErrorBody,
    agent::{AgentStatus, GpuStatus, LeaseGrant, LeaseRequest, WantedState},
};
use packhorse_cluster::{NodeName, ReplicaId, ReplicaStatus};
use packhorse_control::{CommandError, LeaseClaim, NodeReport};
use serde::Deserialize;
use utoipa::IntoParams;

use super::Admin;
use crate::api::error::{ApiError, JsonBody, Path, Query};

/// The largest number of replicas, and of measurements, in one status.
const MAX_STATUSES: usize = 4096;
/// The largest number of GPUs in one status.
const MAX_GPUS: usize = 64;
/// The largest number of processes, and of reasons for reduced clocks, of one GPU.
const MAX_PER_GPU: usize = 1024;
/// The largest number of characters that are kept of a text from an agent.
const MAX_TEXT: usize = 2000;

/// The wanted state that an agent has, and its patience.
#[derive(Clone, Copy, Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
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
    JsonBody(request): JsonBody<LeaseRequest>,
) -> Result<Json<LeaseGrant>, ApiError> {
    let claim = LeaseClaim {
        instance: request.instance,
        agent_version: request.agent_version,
        devices: request.devices,
    };
    Ok(Json(admin.controller.lease(node, claim).await??))
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
        (status = 409, description = "This agent does not hold the lease", body = ErrorBody),
        (status = "default", description = "Any other failure", body = ErrorBody),
    )
)]
pub(super) async fn status(
    State(admin): State<Admin>,
    Path(node): Path<NodeName>,
    JsonBody(status): JsonBody<AgentStatus>,
) -> Result<StatusCode, ApiError> {
    let (report, gpus) = checked(status)?;
    admin.controller.report(node, report, gpus).await??;
    Ok(StatusCode::NO_CONTENT)
}

/// Checks a status, and separates the readings of the GPUs, which only telemetry uses, from the report.
fn checked(status: AgentStatus) -> Result<(NodeReport, Vec<GpuStatus>), CommandError> {
    let invalid = |field, problem: String| Err(CommandError::InvalidField { field, problem });
    let processes = |gpu: &GpuStatus| gpu.processes.len().max(gpu.throttle_reasons.len());
    for (field, count, limit) in [
        ("replicas", status.replicas.len(), MAX_STATUSES),
        ("profiles", status.profiles.len(), MAX_STATUSES),
        ("gpus", status.gpus.len(), MAX_GPUS),
        (
            "gpus.processes and gpus.throttle_reasons",
            status.gpus.iter().map(processes).max().unwrap_or(0),
            MAX_PER_GPU,
        ),
    ] {
        if count > limit {
            return invalid(field, format!("at most {limit} entries are allowed"));
        }
    }
    let mut replicas: BTreeMap<ReplicaId, ReplicaStatus> = BTreeMap::new();
    for mut replica in status.replicas {
        if let Some(capacity) = replica.capacity {
            if capacity.batch_size == 0 {
                return invalid(
                    "replicas.capacity.batch_size",
                    "expected at least 1".to_owned(),
                );
            }
            if capacity.in_flight == 0 {
                return invalid(
                    "replicas.capacity.in_flight",
                    "expected at least 1".to_owned(),
                );
            }
        }
        replica.reason = replica.reason.as_deref().map(truncated);
        let id = replica.id;
        if replicas.insert(id, replica).is_some() {
            return invalid("replicas.id", format!("{id} appears twice"));
        }
    }
    let mut gpus = status.gpus;
    for gpu in &mut gpus {
        gpu.mps_reason = gpu.mps_reason.as_deref().map(truncated);
        for reason in &mut gpu.throttle_reasons {
            *reason = truncated(reason);
        }
    }
    let report = NodeReport {
        instance: status.instance,
        epoch: status.epoch,
        revision: status.revision,
        replicas,
        profiles: status.profiles,
    };
    Ok((report, gpus))
}

/// Returns the first [`MAX_TEXT`] characters of a text.
fn truncated(text: &str) -> String {
    text.chars().take(MAX_TEXT).collect()
}
