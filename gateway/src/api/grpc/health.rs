//! The health service, for balancers and orchestrators.

use std::time::Duration;

use axum::{
    extract::{Request, State},
    http::{Extensions, StatusCode},
    response::{IntoResponse as _, Response},
};
use packhorse_grpc::{
    SERVICES, framed,
    messages::health::{
        HealthCheckRequest, HealthCheckResponse, health_check_response::ServingStatus,
    },
};
use packhorse_protocol::ByteRope;
use prost::Message as _;
use tokio::{sync::mpsc, time::sleep};

use super::{
    call::CallHead,
    messages::MessageReader,
    reply::{Reply, many},
    state::Grpc,
    status::Status,
    unary::{Question, SMALL_MESSAGE, answer, small_message, within},
};
use crate::{
    api::inference::{InferenceLimits, error::InferenceError},
    serve::{Stopping, Watching},
    tenant::tenant_of,
};

/// The time after which the state is looked at again for those that watch it.
const LOOK_EVERY: Duration = Duration::from_secs(1);

impl Question for HealthCheckRequest {
    const NEEDS_NO_KEY: bool = true;
}

/// Returns the state of the server, or of one of its services, which are all the same.
pub(super) async fn check(State(grpc): State<Grpc>, request: Request) -> Response {
    answer(
        &grpc,
        request,
        async |asked: HealthCheckRequest, _: &Extensions| match state(&grpc, &asked) {
            ServingStatus::ServiceUnknown => Err(InferenceError::new(
                StatusCode::NOT_FOUND,
                "there is no such service",
            )),
            status => Ok(HealthCheckResponse {
                status: status.into(),
            }),
        },
    )
    .await
}

/// Tells the state of the server, or of one of its services, and each change of it.
pub(super) async fn watch(State(grpc): State<Grpc>, request: Request) -> Response {
    let stopping = Stopping::of(request.extensions());
    let (head, asked) = match asked(&grpc, request).await {
        Ok(asked) => asked,
        Err(error) => return Status::from(error).into_response(),
    };
    let (sender, receiver) = mpsc::channel(1);
    let task = tokio::spawn(async move {
        let mut told = None;
        let mut tell = async |status: ServingStatus| {
            if told.replace(status) == Some(status) {
                return true;
            }
            let response = HealthCheckResponse {
                status: status.into(),
            };
            let message = ByteRope::from(response.encode_to_vec());
            // It is short.
            let frame = framed(message, false).unwrap_or_default();
            sender.send(Ok(Reply { frame, held: None })).await.is_ok()
        };
        let watching = async {
            while tell(state(&grpc, &asked)).await {
                sleep(LOOK_EVERY).await;
            }
            Ok(())
        };
        let ended = tokio::select! {
            ended = within(head.patience, watching) => ended,
            () = stopping.cancelled() => Err(InferenceError::shutting_down()),
        };
        if stopping.is_cancelled() {
            tell(ServingStatus::NotServing).await;
        }
        let _ = sender.send(Err(ended.into())).await;
    });
    let mut response = many(receiver, task.abort_handle(), None);
    response.extensions_mut().insert(Watching);
    response
}

/// Receives what a client asks for that watches.
async fn asked(
    grpc: &Grpc,
    request: Request,
) -> Result<(CallHead, HealthCheckRequest), InferenceError> {
    let (parts, body) = request.into_parts();
    let head = CallHead::read(grpc.data_plane.clock().now(), &parts.headers)?;
    let limits = InferenceLimits {
        body_bytes: SMALL_MESSAGE,
        ..grpc.limits
    };
    let mut reader = MessageReader::new(&parts, body, limits);
    let mut memory = grpc.reservation(tenant_of(&parts.extensions));
    let prefix = reader.only().await?;
    let asked = small_message(&mut reader, prefix, &head, &mut memory).await?;
    Ok((head, asked))
}

fn state(grpc: &Grpc, asked: &HealthCheckRequest) -> ServingStatus {
    if !asked.service.is_empty() && !SERVICES.contains(&asked.service.as_str()) {
        ServingStatus::ServiceUnknown
    } else if grpc.data_plane.is_ready() {
        ServingStatus::Serving
    } else {
        ServingStatus::NotServing
    }
}
