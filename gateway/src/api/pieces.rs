//! Bytes that are passed on to a connection piece by piece.

use std::{
    collections::VecDeque,
    task::{Context, Poll},
};

use bytes::Bytes;
use packhorse_protocol::ByteRope;

/// The most bytes that are passed on at a time. They may be compressed on the thread that serves other clients, too: half a
/// millisecond.
const PIECE_BYTES: usize = 64 << 10;

/// Bytes that are passed on piece by piece. Between two pieces other tasks get a turn: a compressor would otherwise take all of a
/// body that compresses well at once.
#[derive(Debug, Default)]
pub(super) struct Pieces {
    /// The chunks that are left; none is empty.
    chunks: VecDeque<Bytes>,
    /// True if a large piece was passed on since the last turn of others.
    passed: bool,
}

impl Pieces {
    /// Creates the pieces of bytes.
    pub(super) fn of(bytes: ByteRope) -> Self {
        Self {
            chunks: bytes.into_chunks().collect(),
            passed: false,
        }
    }

    /// Replaces the bytes, all of which were passed on. The next turn is that of others as before.
    pub(super) fn refill(&mut self, bytes: ByteRope) {
        self.chunks = bytes.into_chunks().collect();
    }

    /// Returns the next piece, unless others get a turn; `None` at the end.
    pub(super) fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Bytes>> {
        if std::mem::take(&mut self.passed) {
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        let Some(mut piece) = self.chunks.pop_front() else {
            return Poll::Ready(None);
        };
        if piece.len() > PIECE_BYTES {
            let rest = piece.split_off(PIECE_BYTES);
            self.chunks.push_front(rest);
        }
        // A small piece is not worth a turn.
        self.passed = piece.len() >= PIECE_BYTES / 2;
        Poll::Ready(Some(piece))
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use super::*;

    #[tokio::test]
    async fn others_get_a_turn_between_the_pieces_of_many_bytes() {
        let bytes = [
            Bytes::from(vec![1; 3 * PIECE_BYTES]),
            Bytes::from_static(b"end"),
        ];
        let mut pieces = Pieces::of(bytes.into_iter().collect());
        let (mut turns, mut bytes) = (0, 0);
        loop {
            let polled = poll_fn(|context| Poll::Ready(pieces.poll_next(context))).await;
            match polled {
                Poll::Pending => turns += 1,
                Poll::Ready(Some(piece)) => {
                    assert!(piece.len() <= PIECE_BYTES);
                    bytes += piece.len();
                }
                Poll::Ready(None) => break,
            }
        }
        assert_eq!((turns, bytes), (3, 3 * PIECE_BYTES + 3));
    }
}
