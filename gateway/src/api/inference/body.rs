//! The body of a request: received within time, limit and budget, and without copying it together.

use std::time::Duration;

use axum::{
    body::Body,
    http::{HeaderMap, header},
};
use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;
use hyper::body::Body as _;
use packhorse_cluster::ModelSpec;
use packhorse_protocol::ByteRope;
use tokio::time::{Instant, timeout, timeout_at};

use super::{error::InferenceError, state::InferenceLimits};
use crate::{input_memory::InputBytes, memory::Reservation};

/// The longest time for receiving a whole body: no client waits longer for an answer.
pub(in crate::api) const BODY_TIME: Duration = ModelSpec::MAX_SLO;

/// The size of a piece of a body in bytes below which it is copied: a smaller one would keep a connection's whole buffer in memory,
/// which is twice as large.
const COPY_BELOW: usize = 16 << 10;
/// The most bytes that are copied together.
const COPIED_PIECE: usize = 2 * COPY_BELOW;

/// The most memory that is taken at a time for bytes that are announced, unless as many have come.
const ANNOUNCED_PIECE: usize = 16 << 20;

/// The longest time for which the rest of a body that is not needed is read and discarded.
const DISCARD_TIME: Duration = Duration::from_secs(2);
/// The longest pause in the rest of a body before it is no longer read.
const DISCARD_PAUSE: Duration = Duration::from_millis(200);

/// A body that is being received.
pub(in crate::api) struct IncomingBody {
    body: Body,
    /// True if the client sends the body only after the first attempt to read it (`Expect: 100-continue`).
    waits_for_read: bool,
}

impl IncomingBody {
    pub(in crate::api) fn new(headers: &HeaderMap, body: Body) -> Self {
        Self {
            body,
            waits_for_read: headers.contains_key(header::EXPECT),
        }
    }

    /// Returns the least number of bytes that the body has, as far as its head tells; `None` if it does not.
    pub(in crate::api) fn announced(&self) -> Option<u64> {
        self.body.size_hint().exact()
    }

    /// Returns the whole body, as it was sent. Its bytes are reserved.
    pub(in crate::api) async fn receive(
        &mut self,
        limits: &InferenceLimits,
        place: Place,
        memory: &mut Reservation,
    ) -> Result<ByteRope, InferenceError> {
        if self.body.size_hint().lower() > limits.body_bytes {
            return Err(InferenceError::body_too_large(limits.body_bytes));
        }
        self.waits_for_read = false;
        let end = Instant::now() + BODY_TIME;
        let mut body = ReceivedBody::new(place);
        while let Some(chunk) = self.chunk(end, limits.body_timeout).await? {
            if body.len() + chunk.len() as u64 > limits.body_bytes {
                return Err(InferenceError::body_too_large(limits.body_bytes));
            }
            memory.grow(chunk.len() as u64)?;
            body.push(&chunk, self.body.size_hint().lower());
        }
        Ok(body.finish())
    }

    /// Returns the next bytes, for which the client may take `pause`, and until `end` at most; `None` at the end of the body.
    pub(in crate::api) async fn chunk(
        &mut self,
        end: Instant,
        pause: Duration,
    ) -> Result<Option<Bytes>, InferenceError> {
        let until = end.min(Instant::now() + pause);
        let slow = |_| InferenceError::body_too_slow(pause, BODY_TIME);
        timeout_at(until, self.next_chunk()).await.map_err(slow)?
    }

    /// Returns the next bytes, whenever they come; `None` at the end of the body.
    pub(in crate::api) async fn next_chunk(&mut self) -> Result<Option<Bytes>, InferenceError> {
        loop {
            let frame = match self.body.frame().await {
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

    /// Reads the rest of the body while the answer is sent, for a client that does not read the answer before it has sent everything:
    /// it would lose the answer if the connection were closed on it.
    pub(in crate::api) fn discard(mut self) {
        if self.waits_for_read || self.body.is_end_stream() {
            return;
        }
        tokio::spawn(async move {
            let rest = async {
                while let Ok(Some(Ok(_))) = timeout(DISCARD_PAUSE, self.body.frame()).await {}
            };
            // A client that still sends after that loses its connection.
            let _ = timeout(DISCARD_TIME, rest).await;
        });
    }
}

/// The place of a body that is received.
pub(in crate::api) enum Place {
    /// JSON of this length in memory of its own, and what follows in memory that is shared with workers, where tensors of a batch may lie
    /// side by side.
    Shared(usize, InputBytes),
    /// In one piece, because all of it will be read.
    OnePiece,
    /// In the pieces in which it comes.
    Pieces,
}

/// The received part of a body.
pub(in crate::api) enum ReceivedBody {
    /// In memory that is shared with workers, but for the JSON at its beginning.
    Shared(SharedBody),
    /// In one piece.
    OnePiece(BytesMut),
    /// In pieces. Small ones are joined.
    Pieces(Pieces),
}

impl ReceivedBody {
    /// Creates the part of a body before its first byte.
    pub(in crate::api) fn new(place: Place) -> Self {
        match place {
            Place::Shared(json_length, tensors) => Self::Shared(SharedBody {
                json: BytesMut::new(),
                json_length,
                tensors,
                filled: 0,
            }),
            Place::OnePiece => Self::OnePiece(BytesMut::new()),
            Place::Pieces => Self::Pieces(Pieces::default()),
        }
    }

    fn len(&self) -> u64 {
        match self {
            Self::Shared(body) => (body.json.len() + body.filled) as u64,
            Self::OnePiece(bytes) => bytes.len() as u64,
            Self::Pieces(pieces) => pieces.len(),
        }
    }

    /// Adds a piece, after which at least `more` bytes will come.
    pub(in crate::api) fn push(&mut self, piece: &Bytes, more: u64) {
        match self {
            Self::Shared(body) => body.push(piece),
            Self::OnePiece(bytes) => {
                if bytes.capacity() < bytes.len() + piece.len() {
                    let coming = usize::try_from(more).unwrap_or(usize::MAX);
                    // What a client announces and does not send costs little.
                    let most = bytes.len().max(ANNOUNCED_PIECE);
                    bytes.reserve(piece.len().saturating_add(coming.min(most)));
                }
                bytes.extend_from_slice(piece);
            }
            Self::Pieces(pieces) => pieces.push(piece, more),
        }
    }

    /// Returns the whole body.
    pub(in crate::api) fn finish(self) -> ByteRope {
        match self {
            Self::Shared(body) => body.finish(),
            Self::OnePiece(bytes) => ByteRope::from(bytes.freeze()),
            Self::Pieces(pieces) => pieces.finish(),
        }
    }
}

/// The received part of a body whose tensors are shared with workers.
pub(in crate::api) struct SharedBody {
    json: BytesMut,
    /// The length of the JSON when it is complete.
    json_length: usize,
    tensors: InputBytes,
    /// The bytes of `tensors` that have been received.
    filled: usize,
}

impl SharedBody {
    fn push(&mut self, piece: &[u8]) {
        let missing = self.json_length - self.json.len();
        let (json, tensors) = piece.split_at(missing.min(piece.len()));
        self.json.extend_from_slice(json);
        // HTTP ends the body at its announced length.
        self.tensors.push(tensors);
        self.filled += tensors.len();
    }

    fn finish(self) -> ByteRope {
        let mut rope = ByteRope::from(self.json.freeze());
        rope.push(Bytes::from_owner(self.tensors).slice(..self.filled));
        rope
    }
}

#[derive(Default)]
pub(in crate::api) struct Pieces {
    rope: ByteRope,
    /// The small pieces after those of the rope.
    joined: BytesMut,
}

impl Pieces {
    fn len(&self) -> u64 {
        self.rope.len() as u64 + self.joined.len() as u64
    }

    fn push(&mut self, piece: &Bytes, more: u64) {
        if piece.len() >= COPY_BELOW {
            self.flush();
            self.rope.push(piece.clone());
            return;
        }
        if self.joined.is_empty() {
            let coming = usize::try_from(more).unwrap_or(usize::MAX);
            let capacity = piece.len().saturating_add(coming).min(COPIED_PIECE);
            self.joined = BytesMut::with_capacity(capacity);
        }
        self.joined.extend_from_slice(piece);
        if self.joined.len() >= COPY_BELOW {
            self.flush();
        }
    }

    fn flush(&mut self) {
        self.rope.push(std::mem::take(&mut self.joined).freeze());
    }

    fn finish(mut self) -> ByteRope {
        self.flush();
        self.rope
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{input_memory::InputMemories, memory::MemoryBudget};

    #[test]
    fn small_pieces_are_copied_and_large_ones_are_not() {
        let large = Bytes::from(vec![1; COPY_BELOW]);
        let mut body = ReceivedBody::new(Place::Pieces);
        for byte in 0..200 {
            body.push(&Bytes::copy_from_slice(&[byte; 200]), 0);
        }
        body.push(&large, 0);
        body.push(&Bytes::from_static(b"end"), 0);
        assert_eq!(body.len(), 40_003 + COPY_BELOW as u64);
        let body = body.finish();
        let chunks: Vec<&Bytes> = body.chunks().collect();
        assert_eq!(chunks.len(), 5, "{body:?}");
        assert_eq!(chunks[3].as_ptr(), large.as_ptr());
        assert!(body.to_bytes().ends_with(b"end"));
    }

    #[test]
    fn tensors_begin_a_range_of_shared_memory_wherever_the_body_is_cut() {
        let memories = InputMemories::new(MemoryBudget::new(64 << 20));
        let memory = memories.of(&"m:1".parse().unwrap());
        let link = memory.link().unwrap();
        let sent: Vec<u8> = (0..=255).cycle().take(5_000).collect();
        for size in [1, 7, 30, 31, 5_000] {
            let place = Place::Shared(30, memory.take(4_970).unwrap());
            let mut body = ReceivedBody::new(place);
            for piece in sent.chunks(size) {
                body.push(&Bytes::copy_from_slice(piece), 0);
            }
            assert_eq!(body.len(), 5_000);
            let mut body = body.finish();
            assert_eq!(body.split_to(30).to_bytes(), sent[..30], "{size}");
            assert_eq!(body.chunks().count(), 1);
            let tensors = body.to_bytes();
            assert_eq!(tensors, sent[30..], "{size}");
            assert_eq!(link.arena().offset_of(&tensors), Some(0));
        }
    }

    #[test]
    fn a_body_in_one_piece_takes_its_memory_once_if_it_is_announced() {
        let piece = Bytes::from(vec![7; 100_000]);
        let mut body = ReceivedBody::new(Place::OnePiece);
        let mut places = std::collections::BTreeSet::new();
        for left in (0..20).rev() {
            body.push(&piece, left * 100_000);
            let ReceivedBody::OnePiece(bytes) = &body else {
                panic!("it is no longer in one piece");
            };
            places.insert(bytes.as_ptr());
        }
        assert_eq!(places.len(), 1);
        let body = body.finish();
        assert_eq!(body.chunks().count(), 1);
        assert!(body.to_bytes() == vec![7; 2_000_000]);
    }

    #[test]
    fn a_client_that_announces_more_than_it_sends_costs_little_memory() {
        let mut body = ReceivedBody::new(Place::OnePiece);
        body.push(&Bytes::from_static(b"x"), 1 << 40);
        let ReceivedBody::OnePiece(bytes) = &body else {
            panic!("it is no longer in one piece");
        };
        assert!(bytes.capacity() <= 2 * ANNOUNCED_PIECE);
    }
}
