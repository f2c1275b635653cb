//! The bodies of answers: messages in frames, sent from where they lie in memory, and the status in the trailers.

use std::{
    convert::Infallible,
    pin::Pin,
    task::{Context, Poll, ready},
};

use axum::{
    body::Body,
    http::{StatusCode, header},
    response::Response,
};
use bytes::Bytes;
use hyper::body::{Body as HttpBody, Frame};
use packhorse_protocol::ByteRope;
use tokio::{sync::mpsc, task::AbortHandle};

use super::{
    compression::{ACCEPTED, Compression, ENCODING, UNDERSTOOD},
    status::{CONTENT_TYPE, CallCount, Status},
};
use crate::{api::pieces::Pieces, serve::HeldUntilSent};

/// A message of an answer, in its frame.
pub(super) struct Reply {
    /// The frame.
    pub(super) frame: ByteRope,
    /// What lasts until it was passed on.
    pub(super) held: Option<HeldUntilSent>,
}

/// The body of an answer.
struct ReplyBody {
    /// The present message.
    pieces: Pieces,
    held: Option<HeldUntilSent>,
    more: Option<Replies>,
    /// The status at the end; `None` once it was passed on.
    status: Option<Status>,
}

/// Messages that a task makes.
struct Replies {
    messages: mpsc::Receiver<Result<Reply, Status>>,
    task: AbortHandle,
}

impl Drop for Replies {
    fn drop(&mut self) {
        // The client has gone, or the task has ended.
        self.task.abort();
    }
}

impl HttpBody for ReplyBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        loop {
            if let Some(piece) = ready!(self.pieces.poll_next(context)) {
                return Poll::Ready(Some(Ok(Frame::data(piece))));
            }
            self.held = None;
            let next = match &mut self.more {
                Some(more) => ready!(more.messages.poll_recv(context)),
                None => None,
            };
            match next {
                Some(Ok(reply)) => {
                    self.pieces.refill(reply.frame);
                    self.held = reply.held;
                }
                Some(Err(status)) => {
                    self.more = None;
                    self.status = Some(status);
                }
                None => {
                    let status = self.status.take();
                    return Poll::Ready(
                        status.map(|status| Ok(Frame::trailers(status.trailers()))),
                    );
                }
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.status.is_none()
    }
}

/// Returns the answer of a call with one message.
pub(super) fn one(reply: Reply, compression: Option<Compression>) -> Response {
    response(
        ReplyBody {
            pieces: Pieces::of(reply.frame),
            held: reply.held,
            more: None,
            status: Some(Status::ok()),
        },
        compression,
    )
}

/// Returns the answer of a call whose messages a task makes; the task ends with the call.
pub(super) fn many(
    messages: mpsc::Receiver<Result<Reply, Status>>,
    task: AbortHandle,
    compression: Option<Compression>,
) -> Response {
    response(
        ReplyBody {
            pieces: Pieces::default(),
            held: None,
            more: Some(Replies { messages, task }),
            // The task says how the call ended, unless it panicked.
            status: Some(Status::failed()),
        },
        compression,
    )
}

fn response(body: ReplyBody, compression: Option<Compression>) -> Response {
    let mut response = Response::new(Body::new(body));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, CONTENT_TYPE);
    headers.insert(&ACCEPTED, UNDERSTOOD);
    if let Some(encoding) = compression.and_then(Compression::header) {
        headers.insert(&ENCODING, encoding);
    }
    let count = CallCount::Once(StatusCode::OK);
    response.extensions_mut().insert(count);
    response
}
