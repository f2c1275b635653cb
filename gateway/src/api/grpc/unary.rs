//! Calls with one small message: it is received and decoded, its key is used, and it is answered.

use std::time::Duration;

use axum::{
    extract::Request,
    http::{Extensions, StatusCode},
    response::{IntoResponse as _, Response},
};
use packhorse_grpc::{Prefix, framed};
use packhorse_protocol::ByteRope;
use prost::Message;
use tokio::time::timeout;

use super::{
    call::CallHead,
    messages::MessageReader,
    reply::{Reply, one},
    state::Grpc,
    status::Status,
};
use crate::{
    api::{
        bearer,
        inference::{
            InferenceLimits,
            authorize::{grant, require_key, use_key},
            body::Place,
            error::InferenceError,
        },
    },
    memory::Reservation,
    serve::HeldUntilSent,
    tenant::tenant_of,
};

/// The most bytes of such a message.
pub(super) const SMALL_MESSAGE: u64 = 64 << 10;

/// A message that asks for something.
pub(super) trait Question: Message + Default {
    /// True if balancers and orchestrators ask it, which have no key.
    const NEEDS_NO_KEY: bool = false;

    /// Returns the model that it is about, if it is about one.
    fn model(&self) -> Option<&str> {
        None
    }
}

/// Answers a call.
pub(super) async fn answer<Q: Question, A: Message>(
    grpc: &Grpc,
    request: Request,
    handle: impl AsyncFnOnce(Q, &Extensions) -> Result<A, InferenceError>,
) -> Response {
    match try_answer(grpc, request, handle).await {
        Ok(response) => response,
        Err(error) => Status::from(error).into_response(),
    }
}

async fn try_answer<Q: Question, A: Message>(
    grpc: &Grpc,
    request: Request,
    handle: impl AsyncFnOnce(Q, &Extensions) -> Result<A, InferenceError>,
) -> Result<Response, InferenceError> {
    let clock = grpc.data_plane.clock();
    let (mut parts, body) = request.into_parts();
    let head = CallHead::read(clock.now(), &parts.headers)?;
    let keys = grpc.keys.as_ref().filter(|_| !Q::NEEDS_NO_KEY);
    let key = bearer(&parts.headers);
    if let Some(keys) = keys {
        let tenant = require_key(keys, key)?;
        parts.extensions.insert(tenant);
    }
    let limits = InferenceLimits {
        body_bytes: SMALL_MESSAGE,
        ..grpc.limits
    };
    let mut reader = MessageReader::new(&parts, body, limits);
    let mut memory = grpc.reservation(tenant_of(&parts.extensions));
    let receive = async {
        let prefix = reader.only().await?;
        small_message(&mut reader, prefix, &head, &mut memory).await
    };
    let question: Q = within(head.patience, receive).await?;
    // What comes after the only message is not kept.
    drop(reader);
    let used = keys.map(|keys| use_key(keys, key, question.model()));
    let used = used.transpose()?;
    if let Some(used) = &used {
        grant(used, question.model(), &mut parts.extensions);
    }
    let answered = within(head.patience, handle(question, &parts.extensions)).await;
    let status = answered
        .as_ref()
        .err()
        .map_or(StatusCode::OK, InferenceError::status);
    let after = clock.now().saturating_since(head.at);
    let in_flight = used.and_then(|used| used.answered(status, after));
    let message = ByteRope::from(answered?.encode_to_vec());
    Ok(one(
        Reply {
            frame: framed(message, false).ok_or_else(too_long)?,
            held: in_flight.map(HeldUntilSent::new),
        },
        None,
    ))
}

/// Receives and decodes a small message.
pub(super) async fn small_message<Q: Message + Default>(
    reader: &mut MessageReader,
    prefix: Prefix,
    head: &CallHead,
    memory: &mut Reservation,
) -> Result<Q, InferenceError> {
    let mut message = reader.receive(Place::OnePiece, memory).await?;
    if prefix.is_compressed {
        message = head.compression.inflate(message, SMALL_MESSAGE, memory)?;
    }
    decoded(&message)
}

/// Waits for something until the client does not wait for it any more.
pub(super) async fn within<T>(
    patience: Option<Duration>,
    answer: impl Future<Output = Result<T, InferenceError>>,
) -> Result<T, InferenceError> {
    let Some(patience) = patience else {
        return answer.await;
    };
    timeout(patience, answer).await.unwrap_or_else(|_| {
        Err(InferenceError::new(
            StatusCode::GATEWAY_TIMEOUT,
            "the time of the call (grpc-timeout) is over",
        ))
    })
}

/// Decodes a message.
pub(super) fn decoded<Q: Message + Default>(message: &ByteRope) -> Result<Q, InferenceError> {
    // Of one piece, so that what it has of bytes are slices of it.
    let decoded = Q::decode(message.to_bytes());
    decoded.map_err(|e| InferenceError::bad_request(format!("the message cannot be decoded: {e}")))
}

/// The error of an answer that no frame can have.
pub(super) fn too_long() -> InferenceError {
    InferenceError::new(
        StatusCode::INTERNAL_SERVER_ERROR,
        "the answer is larger than a message of gRPC can be: 4 GiB",
    )
}
