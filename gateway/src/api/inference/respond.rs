//! Responses whose body is sent from where it lies in memory.

use std::{
    convert::Infallible,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use axum::{
    body::Body,
    http::{HeaderValue, header},
    response::Response,
};
use bytes::Bytes;
use hyper::body::{Body as HttpBody, Frame, SizeHint};
use packhorse_protocol::Message;

use super::header_names::HEADER_LENGTH;
use crate::{api::pieces::Pieces, memory::Reservation};

/// A body of known length.
struct MessageBody {
    pieces: Pieces,
    left: u64,
}

impl HttpBody for MessageBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let piece = ready!(self.pieces.poll_next(context));
        self.left -= piece.as_ref().map_or(0, |piece| piece.len() as u64);
        Poll::Ready(piece.map(|piece| Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.left == 0
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left)
    }
}

/// Returns the response with a message as its body. The reservation lasts until the JSON part, which is sent first, was passed on;
/// binary tensors hold their own.
pub(super) fn response(message: Message, memory: Reservation) -> Response {
    let message = Message {
        head: Arc::new(memory).hold(message.head),
        ..message
    };
    let content_type = HeaderValue::from_static(message.content_type());
    let header_length = message.header_length();
    let body = message.into_body();
    let left = body.len() as u64;
    let mut response = Response::new(Body::new(MessageBody {
        pieces: Pieces::of(body),
        left,
    }));
    response
        .headers_mut()
        .insert(header::CONTENT_TYPE, content_type);
    if let Some(length) = header_length {
        response.headers_mut().insert(&HEADER_LENGTH, length.into());
    }
    response
}
