//! The bodies of answers: messages in frames, sent from where they lie in memory, and the status in the trailers.

use std::{
    collections::VecDeque,
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
use crate::serve::HeldUntilSent;

/// The most bytes that are passed on at a time.
const PIECE_BYTES: usize = 64 << 10;

/// A message of an answer, in its frame.
pub(super) struct Reply {
    /// The frame.
    pub(super) frame: ByteRope,
    /// What lasts until it was passed on.
    pub(super) held: Option<HeldUntilSent>,
}

/// The body of an answer.
struct ReplyBody {
    /// The pieces of the present message; none is empty.
    chunks: VecDeque<Bytes>,
    held: Option<HeldUntilSent>,
    more: Option<Replies>,
    /// The status at the end; `None` once it was passed on.
    status: Option<Status>,
    /// True if a piece was passed on since the last turn of others.
    passed: bool,
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
        if std::mem::take(&mut self.passed) {
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        loop {
            if let Some(mut chunk) = self.chunks.pop_front() {
                if chunk.len() > PIECE_BYTES {
                    let rest = chunk.split_off(PIECE_BYTES);
                    self.chunks.push_front(rest);
                }
                // A small piece is not worth a turn.
                self.passed = chunk.len() >= PIECE_BYTES / 2;
                return Poll::Ready(Some(Ok(Frame::data(chunk))));
            }
            self.held = None;
            let next = match &mut self.more {
                Some(more) => ready!(more.messages.poll_recv(context)),
                None => None,
            };
            match next {
                Some(Ok(reply)) => {
                    self.chunks = reply.frame.into_chunks().collect();
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
            chunks: reply.frame.into_chunks().collect(),
            held: reply.held,
            more: None,
            status: Some(Status::ok()),
            passed: false,
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
            chunks: VecDeque::new(),
            held: None,
            more: Some(Replies { messages, task }),
            // The task says how the call ended, unless it panicked.
            status: Some(Status::failed()),
            passed: false,
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
