//! The body of a request: received within time, limit and budget, and without copying it together.

use std::time::Duration;

use axum::{
    body::Body,
    http::{HeaderMap, header},
};
use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::body::Body as _;
use packhorse_cluster::ModelSpec;
use packhorse_protocol::ByteRope;
use tokio::time::{Instant, timeout, timeout_at};

use super::{
    budget::Reservation,
    error::InferenceError,
    inflate::{Encoding, inflate},
    state::InferenceLimits,
};

/// The longest time for receiving a whole body: no client waits longer for an answer.
const BODY_TIME: Duration = ModelSpec::MAX_SLO;

/// The longest time for which the rest of a body that is not needed is read and discarded.
const DISCARD_TIME: Duration = Duration::from_secs(2);
/// The longest pause in the rest of a body before it is no longer read.
const DISCARD_PAUSE: Duration = Duration::from_millis(200);

/// A body that is being received.
pub(super) struct IncomingBody {
    body: Body,
    /// True if the client sends the body only after the first attempt to read it (`Expect: 100-continue`).
    waits_for_read: bool,
}

impl IncomingBody {
    pub(super) fn new(headers: &HeaderMap, body: Body) -> Self {
        Self {
            body,
            waits_for_read: headers.contains_key(header::EXPECT),
        }
    }

    /// Returns the whole body, decompressed. Its bytes stay in `reservation`.
    pub(super) async fn receive(
        &mut self,
        headers: &HeaderMap,
        limits: &InferenceLimits,
        reservation: &mut Reservation,
    ) -> Result<ByteRope, InferenceError> {
        let encoding = Encoding::from_headers(headers)?;
        if self.body.size_hint().lower() > limits.body_bytes {
            return Err(InferenceError::body_too_large(limits.body_bytes));
        }
        self.waits_for_read = false;
        let end = Instant::now() + BODY_TIME;
        let mut body = ByteRope::new();
        while let Some(chunk) = self.chunk(end, limits.body_timeout).await? {
            if body.len() as u64 + chunk.len() as u64 > limits.body_bytes {
                return Err(InferenceError::body_too_large(limits.body_bytes));
            }
            reservation
                .grow(chunk.len() as u64)
                .map_err(|_| InferenceError::over_budget())?;
            body.push(chunk);
        }
        inflate(body, encoding, limits.body_bytes, reservation).await
    }

    async fn chunk(
        &mut self,
        end: Instant,
        pause: Duration,
    ) -> Result<Option<Bytes>, InferenceError> {
        loop {
            let until = end.min(Instant::now() + pause);
            let slow = |_| InferenceError::body_too_slow(pause, BODY_TIME);
            let frame = match timeout_at(until, self.body.frame()).await.map_err(slow)? {
                None => return Ok(None),
                Some(Ok(frame)) => frame,
                Some(Err(_)) => {
                    return Err(InferenceError::bad_request(
                        "the request body ended early or its framing is invalid",
                    ));
                }
            };
            // Trailers are ignored.
            if let Ok(chunk) = frame.into_data() {
                return Ok(Some(chunk));
            }
        }
    }

    /// Reads the rest of the body, for a client that does not read the answer before it has sent everything: it would lose the
    /// answer if the connection were closed on it.
    pub(super) async fn discard(mut self) {
        if self.waits_for_read || self.body.is_end_stream() {
            return;
        }
        let rest = async {
            while let Ok(Some(Ok(_))) = timeout(DISCARD_PAUSE, self.body.frame()).await {}
        };
        // A client that still sends after that loses its connection.
        let _ = timeout(DISCARD_TIME, rest).await;
    }
}
