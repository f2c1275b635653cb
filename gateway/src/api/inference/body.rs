//! Receiving the body of a request: within time, limit and budget, and without copying it together.

use std::time::Duration;

use axum::{
    body::Body,
    http::{HeaderMap, StatusCode, header},
};
use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::body::Body as _;
use packhorse_cluster::ModelSpec;
use packhorse_protocol::ByteRope;
use tokio::time::{Instant, timeout, timeout_at};

use super::{
    InferenceLimits,
    budget::Reservation,
    error::InferenceError,
    inflate::{Encoding, inflate, over_budget, too_large},
};

/// A whole body may take so long: nobody waits longer for an answer.
const WHOLE_BODY_TIME: Duration = ModelSpec::MAX_SLO;

/// What is still to come of a body that nobody wants is read and thrown away for at most so long,
const DRAIN_TIME: Duration = Duration::from_secs(2);
/// as long as it keeps coming.
const DRAIN_PAUSE: Duration = Duration::from_millis(200);

/// A body on its way.
pub(super) struct IncomingBody {
    body: Body,
    /// The client sends it only when it is asked to, which is by the first attempt to read it.
    waits_for_us: bool,
}

impl IncomingBody {
    pub(super) fn new(headers: &HeaderMap, body: Body) -> Self {
        Self {
            body,
            waits_for_us: headers.contains_key(header::EXPECT),
        }
    }

    /// The whole body, inflated. Its bytes stay in `reservation`.
    pub(super) async fn receive(
        &mut self,
        headers: &HeaderMap,
        limits: &InferenceLimits,
        reservation: &mut Reservation,
    ) -> Result<ByteRope, InferenceError> {
        let encoding = Encoding::of(headers)?;
        if self.body.size_hint().lower() > limits.body_bytes {
            return Err(too_large(limits.body_bytes));
        }
        self.waits_for_us = false;
        let end = Instant::now() + WHOLE_BODY_TIME;
        let mut body = ByteRope::new();
        while let Some(chunk) = self.chunk(end, limits.body_timeout).await? {
            if body.len() as u64 + chunk.len() as u64 > limits.body_bytes {
                return Err(too_large(limits.body_bytes));
            }
            reservation
                .grow(chunk.len() as u64)
                .map_err(|_| over_budget())?;
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
            let slow =
                |_| InferenceError::new(StatusCode::REQUEST_TIMEOUT, "the body came too slowly");
            let frame = match timeout_at(until, self.body.frame()).await.map_err(slow)? {
                None => return Ok(None),
                Some(Ok(frame)) => frame,
                Some(Err(_)) => {
                    return Err(InferenceError::bad_request(
                        "the body ended early or is badly framed",
                    ));
                }
            };
            // Trailers say nothing to us.
            if let Ok(chunk) = frame.into_data() {
                return Ok(Some(chunk));
            }
        }
    }

    /// Takes what is still to come, for a client that does not read its answer before it has sent everything: closing the
    /// connection on it would cost it the answer.
    pub(super) async fn drain(mut self) {
        if self.waits_for_us || self.body.is_end_stream() {
            return;
        }
        let rest =
            async { while let Ok(Some(Ok(_))) = timeout(DRAIN_PAUSE, self.body.frame()).await {} };
        // Whoever still sends after that is cut off.
        let _ = timeout(DRAIN_TIME, rest).await;
    }
}
