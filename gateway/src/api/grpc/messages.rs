//! The messages of a call's body, received piece by piece within time, limit and budget.

use std::{pin::pin, time::Duration};

use axum::{body::Body, http::request::Parts};
use bytes::{Buf as _, Bytes, BytesMut};
use packhorse_grpc::{Beginning, Prefix, SOUGHT, beginning};
use packhorse_protocol::ByteRope;
use tokio::time::{Instant, timeout_at};

use super::compression::Compression;
use crate::{
    api::inference::{
        InferenceLimits,
        body::{BODY_TIME, IncomingBody, Place, ReceivedBody},
        error::InferenceError,
    },
    memory::Reservation,
    serve::UnreadBodies,
};

/// The most bytes of a compressed message at whose beginning its model is looked for: what is left of them after headers and tables is more than a name
/// needs.
const SOUGHT_COMPRESSED: usize = 4 << 10;

/// A body that is read message by message.
pub(super) struct MessageReader {
    body: IncomingBody,
    limits: InferenceLimits,
    /// The bytes that came and were not read yet.
    rest: Bytes,
    /// The bytes of the present message that were not read yet, and those that will come.
    left: usize,
    /// The time by which the present message must have come.
    end: Due,
    /// The bodies of the connection that nobody reads.
    unread: UnreadBodies,
}

/// The time by which something must have come. It moves on while a body of the connection is not read, because its client may have to wait for that.
#[derive(Clone, Copy)]
struct Due {
    at: Instant,
    /// The time for which a body was not read before.
    unread: Duration,
}

impl Due {
    fn after(limit: Duration, unread: &UnreadBodies) -> Self {
        Self {
            at: Instant::now() + limit,
            unread: unread.time(),
        }
    }

    fn with(self, unread: &UnreadBodies) -> Instant {
        self.at + unread.time().saturating_sub(self.unread)
    }
}

/// Waits for something until the first of the times; `None` if it did not come.
async fn by<T>(due: &[Due], unread: &UnreadBodies, event: impl Future<Output = T>) -> Option<T> {
    let mut event = pin!(event);
    loop {
        let first = due.iter().map(|due| due.with(unread)).min()?;
        if let Ok(come) = timeout_at(first, event.as_mut()).await {
            return Some(come);
        }
        let first = due.iter().map(|due| due.with(unread)).min()?;
        if first <= Instant::now() {
            return None;
        }
    }
}

impl MessageReader {
    /// Creates a reader of the messages of a request with this head.
    pub(super) fn new(head: &Parts, body: Body, limits: InferenceLimits) -> Self {
        let unread = head.extensions.get::<UnreadBodies>().cloned();
        let unread = unread.unwrap_or_default();
        Self {
            body: IncomingBody::new(&head.headers, body),
            limits,
            rest: Bytes::new(),
            left: 0,
            end: Due::after(BODY_TIME, &unread),
            unread,
        }
    }

    /// Returns the beginning of the only message of a call, which must begin within the longest pause.
    pub(super) async fn only(&mut self) -> Result<Prefix, InferenceError> {
        let first = self.soon().await?;
        first
            .ok_or_else(|| InferenceError::bad_request("expected a message, and the body is empty"))
    }

    /// Returns the beginning of the next message, which must begin within the longest pause; `None` at the end of the body.
    pub(super) async fn soon(&mut self) -> Result<Option<Prefix>, InferenceError> {
        let (pause, unread) = (self.limits.body_timeout, self.unread.clone());
        let due = Due::after(pause, &unread);
        let next = by(&[due], &unread, self.next()).await;
        next.ok_or_else(|| InferenceError::body_too_slow(pause, BODY_TIME))?
    }

    /// Returns the beginning of the next message; `None` at the end of the body. What is left of the present one is discarded. The wait for a message
    /// that has not begun has no limit here.
    pub(super) async fn next(&mut self) -> Result<Option<Prefix>, InferenceError> {
        while self.left > 0 {
            if self.rest.is_empty() {
                self.rest = self.piece().await?;
            }
            let skipped = self.left.min(self.rest.len());
            self.rest.advance(skipped);
            self.left -= skipped;
        }
        while self.rest.is_empty() {
            match self.body.next_chunk().await? {
                Some(chunk) => self.rest = chunk,
                None => return Ok(None),
            }
        }
        self.end = Due::after(BODY_TIME, &self.unread);
        while self.rest.len() < Prefix::BYTES {
            let piece = self.piece().await?;
            self.join(&piece);
        }
        let prefix = self.rest.split_to(Prefix::BYTES);
        let prefix = prefix.as_ref().try_into();
        let prefix = Prefix::read(prefix.expect("as many bytes as a prefix has"));
        let prefix = prefix.map_err(|e| InferenceError::bad_request(e.to_string()))?;
        self.left = prefix.length as usize;
        if u64::from(prefix.length) > self.limits.body_bytes {
            return Err(InferenceError::body_too_large(self.limits.body_bytes));
        }
        Ok(Some(prefix))
    }

    /// Returns the model and its version at the beginning of the present message, a `ModelInferRequest`; `None` if they are not there.
    pub(super) async fn model(
        &mut self,
        compression: Option<Compression>,
    ) -> Result<Option<(String, String)>, InferenceError> {
        loop {
            let known = self.left.min(self.rest.len());
            let (part, has_all) = (&self.rest[..known], known == self.left);
            let inflated = compression.map(|compression| compression.beginning(part, SOUGHT));
            let found = match &inflated {
                None => beginning(part, has_all),
                Some(inflated) => beginning(inflated, false),
            };
            match found {
                Beginning::Model { name, version } => {
                    return Ok(Some((name.to_owned(), version.to_owned())));
                }
                Beginning::Elsewhere => return Ok(None),
                Beginning::NeedsMore if has_all || known >= SOUGHT_COMPRESSED => return Ok(None),
                Beginning::NeedsMore => {
                    let piece = self.piece().await?;
                    self.join(&piece);
                }
            }
        }
    }

    /// Returns the present message. Its bytes are reserved.
    pub(super) async fn receive(
        &mut self,
        place: Place,
        memory: &mut Reservation,
    ) -> Result<ByteRope, InferenceError> {
        let mut received = ReceivedBody::new(place);
        while self.left > 0 {
            if self.rest.is_empty() {
                self.rest = self.piece().await?;
            }
            let piece = self.rest.split_to(self.left.min(self.rest.len()));
            self.left -= piece.len();
            memory.grow(piece.len() as u64)?;
            received.push(&piece, self.left as u64);
        }
        Ok(received.finish())
    }

    /// Returns the next bytes of a message that has begun.
    async fn piece(&mut self) -> Result<Bytes, InferenceError> {
        let pause = self.limits.body_timeout;
        loop {
            let due = [Due::after(pause, &self.unread), self.end];
            let piece = by(&due, &self.unread, self.body.next_chunk()).await;
            let piece = piece.ok_or_else(|| InferenceError::body_too_slow(pause, BODY_TIME))??;
            let cut_off = || InferenceError::bad_request("the body ends within a message");
            let piece = piece.ok_or_else(cut_off)?;
            if !piece.is_empty() {
                return Ok(piece);
            }
        }
    }

    /// Adds bytes to few others.
    fn join(&mut self, piece: &Bytes) {
        let mut joined = BytesMut::with_capacity(self.rest.len() + piece.len());
        joined.extend_from_slice(&self.rest);
        joined.extend_from_slice(piece);
        self.rest = joined.freeze();
    }
}
