//! Responses whose body is sent from where it lies in memory.

use std::{
    collections::VecDeque,
    convert::Infallible,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
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
use crate::memory::Reservation;

/// The most bytes of a body that are passed on at a time. They may be compressed on the thread that serves other clients, too: half a
/// millisecond.
const PIECE_BYTES: usize = 64 << 10;

/// A body of known length, sent piece by piece. Between two pieces other tasks get a turn: a compressor would otherwise take all of a
/// body that compresses well at once.
struct Pieces {
    /// The chunks that are left; none is empty.
    chunks: VecDeque<Bytes>,
    left: u64,
    /// True if a piece was passed on since the last turn of others.
    passed: bool,
}

impl HttpBody for Pieces {
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
        let Some(mut chunk) = self.chunks.pop_front() else {
            return Poll::Ready(None);
        };
        let piece = if chunk.len() > PIECE_BYTES {
            let piece = chunk.split_to(PIECE_BYTES);
            self.chunks.push_front(chunk);
            piece
        } else {
            chunk
        };
        self.left -= piece.len() as u64;
        // A small piece is not worth a turn.
        self.passed = piece.len() >= PIECE_BYTES / 2 && self.left > 0;
        Poll::Ready(Some(Ok(Frame::data(piece))))
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
    let mut response = Response::new(Body::new(Pieces {
        chunks: body.into_chunks().collect(),
        left,
        passed: false,
    }));
    response
        .headers_mut()
        .insert(header::CONTENT_TYPE, content_type);
    if let Some(length) = header_length {
        response.headers_mut().insert(&HEADER_LENGTH, length.into());
    }
    response
}

#[cfg(test)]
mod tests {
    use futures_util::poll;
    use http_body_util::BodyExt as _;

    use super::*;

    #[tokio::test]
    async fn others_get_a_turn_between_the_pieces_of_a_large_body() {
        let mut body = Pieces {
            chunks: [
                Bytes::from(vec![1; 3 * PIECE_BYTES]),
                Bytes::from_static(b"end"),
            ]
            .into(),
            left: 3 * PIECE_BYTES as u64 + 3,
            passed: false,
        };
        let (mut turns, mut bytes) = (0, 0);
        while !body.is_end_stream() {
            match poll!(body.frame()) {
                Poll::Pending => turns += 1,
                Poll::Ready(frame) => {
                    let piece = frame.unwrap().unwrap().into_data().unwrap();
                    assert!(piece.len() <= PIECE_BYTES);
                    bytes += piece.len();
                }
            }
        }
        assert_eq!((turns, bytes), (3, 3 * PIECE_BYTES + 3));
    }
}
