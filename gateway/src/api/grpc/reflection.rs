//! The reflection service: tools ask it for the services and messages of this server.

use axum::{
    extract::{Request, State},
    http::request::Parts,
    response::{IntoResponse as _, Response},
};
use packhorse_grpc::{framed, reflected};
use packhorse_protocol::ByteRope;
use prost::Message as _;
use tokio::sync::mpsc;

use super::{
    call::CallHead,
    messages::MessageReader,
    reply::{Reply, many},
    state::Grpc,
    status::Status,
    unary::{SMALL_MESSAGE, small_message, too_long, within},
};
use crate::{
    api::{
        bearer,
        inference::{InferenceLimits, authorize::require_key, error::InferenceError},
    },
    memory::Reservation,
    serve::Stopping,
    tenant::tenant_of,
};

/// Answers the questions of a stream, in their order.
pub(super) async fn info(State(grpc): State<Grpc>, request: Request) -> Response {
    let stopping = Stopping::of(request.extensions());
    let (mut parts, body) = request.into_parts();
    let (head, unread) = match admit(&grpc, &mut parts) {
        Ok(admitted) => admitted,
        Err(error) => return Status::from(error).into_response(),
    };
    let limits = InferenceLimits {
        body_bytes: SMALL_MESSAGE,
        ..grpc.limits
    };
    let mut reader = MessageReader::new(&parts, body, limits);
    let mut memory = grpc.reservation(tenant_of(&parts.extensions));
    let (sender, receiver) = mpsc::channel(1);
    let task = tokio::spawn(async move {
        let _unread = unread;
        let answers = async {
            while let Some(frame) = next(&head, &mut reader, &mut memory).await? {
                let reply = Reply { frame, held: None };
                if sender.send(Ok(reply)).await.is_err() {
                    // The client has gone.
                    break;
                }
            }
            Ok(())
        };
        let ended = tokio::select! {
            ended = within(head.patience, answers) => ended,
            () = stopping.cancelled() => Err(InferenceError::shutting_down()),
        };
        let _ = sender.send(Err(ended.into())).await;
    });
    many(receiver, task.abort_handle(), None)
}

/// Reads the head of a call, and refuses one without a key where it needs one. Also returns the memory for what is not read.
fn admit(grpc: &Grpc, parts: &mut Parts) -> Result<(CallHead, Reservation), InferenceError> {
    let head = CallHead::read(grpc.data_plane.clock().now(), &parts.headers)?;
    if let Some(keys) = &grpc.keys {
        let tenant = require_key(keys, bearer(&parts.headers))?;
        parts.extensions.insert(tenant);
    }
    Ok((head, grpc.unread(&parts.extensions)?))
}

/// Returns the answer to the next question; `None` at the end. Questions are asked at once: a stream without any is one that was forgotten.
async fn next(
    head: &CallHead,
    reader: &mut MessageReader,
    memory: &mut Reservation,
) -> Result<Option<ByteRope>, InferenceError> {
    let Some(prefix) = reader.soon().await? else {
        return Ok(None);
    };
    memory.resize(0)?;
    let question = small_message(reader, prefix, head, memory).await?;
    let answer = ByteRope::from(reflected(question).encode_to_vec());
    framed(answer, false).map(Some).ok_or_else(too_long)
}
