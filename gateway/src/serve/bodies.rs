//! The bodies of a request and of its answer, which tell the connection how far they are.

use std::{
    pin::Pin,
    task::{Context, Poll},
};

use axum::body::Body;
use bytes::Bytes;
use hyper::body::{Body as HttpBody, Frame, Incoming, SizeHint};

use super::held::HeldUntilSent;

/// A watch that is told of a request's body.
pub(super) trait RequestWatch: Unpin {
    /// Nothing of the body is here that was not read.
    fn waits(&mut self) {}

    /// A part was read. Others may be here.
    fn read(&mut self) {}

    /// The body is complete, or is not needed. It may be told several times.
    fn ends(&mut self);
}

/// A request's body, of which its watch is told.
pub(super) struct RequestBody<W: RequestWatch> {
    body: Incoming,
    watch: W,
}

impl<W: RequestWatch> RequestBody<W> {
    /// Creates the body. One that is empty ends now.
    pub(super) fn new(body: Incoming, mut watch: W) -> Self {
        if body.is_end_stream() {
            watch.ends();
        }
        Self { body, watch }
    }
}

impl<W: RequestWatch> HttpBody for RequestBody<W> {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let frame = Pin::new(&mut self.body).poll_frame(context);
        match &frame {
            _ if self.body.is_end_stream() => self.watch.ends(),
            Poll::Ready(None) => self.watch.ends(),
            Poll::Ready(Some(_)) => self.watch.read(),
            Poll::Pending => self.watch.waits(),
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl<W: RequestWatch> Drop for RequestBody<W> {
    fn drop(&mut self) {
        self.watch.ends();
    }
}

/// A watch that is told of an answer's body. Once it is dropped, everything of the answer has been passed on.
pub(super) trait AnswerWatch: Unpin {
    /// The connection asks for the next part, because its client has room for some of it; or nothing is left for which room is needed.
    fn has_room(&self) {}

    /// A part was passed on to the connection.
    fn passed_on(&self) {}
}

/// An answer's body, of which its watch is told.
pub(super) struct AnswerBody<W: AnswerWatch> {
    body: Body,
    watch: W,
    _held: Option<HeldUntilSent>,
}

impl<W: AnswerWatch> AnswerBody<W> {
    /// Creates the body, which holds something as long as it is there.
    pub(super) fn new(body: Body, watch: W, held: Option<HeldUntilSent>) -> Self {
        Self {
            body,
            watch,
            _held: held,
        }
    }
}

impl<W: AnswerWatch> HttpBody for AnswerBody<W> {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        self.watch.has_room();
        let frame = Pin::new(&mut self.body).poll_frame(context);
        let part = match &frame {
            Poll::Ready(Some(Ok(frame))) => Some(frame),
            _ => None,
        };
        if part.is_some_and(Frame::is_data) {
            self.watch.passed_on();
        }
        let is_last = part.is_some_and(Frame::is_trailers) || matches!(frame, Poll::Ready(None));
        if is_last || self.body.is_end_stream() {
            self.watch.has_room();
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
