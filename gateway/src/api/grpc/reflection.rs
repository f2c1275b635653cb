//! The reflection service: tools ask it for the services and messages of this server.

use axum::{
    extract::{Request, State},
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
    unary::{SMALL_MESSAGE, decoded, too_long, within},
};
use crate::{
    api::{
        bearer,
        inference::{InferenceLimits, authorize::require_key, body::Place, error::InferenceError},
    },
    memory::Reservation,
    tenant::tenant_of,
};

/// Answers the questions of a stream, in their order.
pub(super) async fn info(State(grpc): State<Grpc>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let now = grpc.data_plane.clock().now();
    let head = CallHead::read(now, &parts.headers);
    let keys = grpc.keys.as_ref();
    let allowed = keys.map(|keys| require_key(keys, bearer(&parts.headers)));
    let head = match head.and_then(|head| allowed.transpose().map(|_| head)) {
        Ok(head) => head,
        Err(error) => return Status::from(error).into_response(),
    };
    let limits = InferenceLimits {
        body_bytes: SMALL_MESSAGE,
        ..grpc.limits
    };
    let mut reader = MessageReader::new(&parts.headers, body, limits);
    let mut memory = grpc.reservation(tenant_of(&parts.extensions));
    let (sender, receiver) = mpsc::channel(1);
    // Questions are asked at once: a stream without any is one that was forgotten.
    let patience = head.patience.unwrap_or(grpc.limits.body_timeout);
    let task = tokio::spawn(async move {
        let end = loop {
            let question = next(&head, &mut reader, &mut memory);
            match within(Some(patience), question).await {
                Ok(Some(frame)) => {
                    let reply = Reply { frame, held: None };
                    if sender.send(Ok(reply)).await.is_err() {
                        return;
                    }
                }
                Ok(None) => break Status::ok(),
                Err(error) => break error.into(),
            }
        };
        let _ = sender.send(Err(end)).await;
    });
    many(receiver, task.abort_handle(), None)
}

/// Returns the answer to the next question; `None` at the end.
async fn next(
    head: &CallHead,
    reader: &mut MessageReader,
    memory: &mut Reservation,
) -> Result<Option<ByteRope>, InferenceError> {
    let Some(prefix) = reader.next().await? else {
        return Ok(None);
    };
    memory.resize(0)?;
    let mut message = reader.receive(Place::OnePiece, memory).await?;
    if prefix.is_compressed {
        message = head.compression.inflate(message, SMALL_MESSAGE, memory)?;
    }
    let answer = reflected(decoded(&message)?);
    let answer = ByteRope::from(answer.encode_to_vec());
    framed(answer, false).map(Some).ok_or_else(too_long)
}
