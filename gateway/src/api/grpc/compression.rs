//! The compression of messages. An answer is compressed as its request was, if the client accepts that: a client that does not compress what it sends
//! has no use for the work.

use std::io::Write as _;

use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use bytes::Bytes;
use flate2::write::{GzEncoder, ZlibEncoder};
use packhorse_protocol::ByteRope;

use crate::{
    api::inference::{
        error::InferenceError,
        inflate::{Encoding, beginning, inflate},
    },
    memory::Reservation,
};

/// The header with the compression of messages.
pub(super) static ENCODING: HeaderName = HeaderName::from_static("grpc-encoding");
/// The header with the compressions that a peer understands.
pub(super) static ACCEPTED: HeaderName = HeaderName::from_static("grpc-accept-encoding");
/// The compressions that this server understands.
pub(super) const UNDERSTOOD: HeaderValue = HeaderValue::from_static("identity,deflate,gzip");

/// The compression of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Compression {
    requests: Encoding,
    answers: Encoding,
}

impl Compression {
    /// Returns the compression that a client asks for.
    ///
    /// # Errors
    /// It is unknown here.
    pub(super) fn of(headers: &HeaderMap) -> Result<Self, InferenceError> {
        let requests = match headers.get(&ENCODING).map(HeaderValue::as_bytes) {
            None | Some(b"identity") => Encoding::Identity,
            Some(b"gzip") => Encoding::Gzip,
            Some(b"deflate") => Encoding::Deflate,
            Some(other) => {
                let shown: String = String::from_utf8_lossy(other).chars().take(64).collect();
                return Err(InferenceError::new(
                    StatusCode::UNSUPPORTED_MEDIA_TYPE,
                    format!(
                        "grpc-encoding {shown:?} is not supported: use one of gzip, deflate and identity"
                    ),
                ));
            }
        };
        let accepted = headers.get_all(&ACCEPTED).iter();
        let accepted = accepted.filter_map(|value| value.to_str().ok());
        let mut accepted = accepted.flat_map(|value| value.split(','));
        let name = name(requests);
        let is_accepted = accepted.any(|accepted| accepted.trim() == name);
        Ok(Self {
            requests,
            answers: if is_accepted {
                requests
            } else {
                Encoding::Identity
            },
        })
    }

    /// Returns the header of an answer that is compressed.
    pub(super) fn header(self) -> Option<HeaderValue> {
        let is_compressed = self.answers != Encoding::Identity;
        is_compressed.then(|| HeaderValue::from_static(name(self.answers)))
    }

    /// Returns true if answers to compressed messages are compressed.
    pub(super) fn compresses(self) -> bool {
        self.answers != Encoding::Identity
    }

    /// Returns a message as it was before it was compressed, with at most `limit` bytes, which are reserved.
    ///
    /// # Errors
    /// The message is no compressed one, or is larger.
    pub(super) fn inflate(
        self,
        message: ByteRope,
        limit: u64,
        memory: &mut Reservation,
    ) -> Result<ByteRope, InferenceError> {
        if self.requests == Encoding::Identity {
            return Err(InferenceError::bad_request(
                "a message is marked as compressed, and grpc-encoding names no compression",
            ));
        }
        inflate(message, self.requests, limit, memory)
    }

    /// Returns at most `most` bytes from the beginning of a message of which a part has come: none if that is too short to tell.
    pub(super) fn beginning(self, part: &[u8], most: usize) -> Vec<u8> {
        beginning(part, self.requests, most)
    }

    /// Returns a message compressed.
    pub(super) fn deflate(self, message: &ByteRope) -> ByteRope {
        let level = flate2::Compression::fast();
        let chunks = message.chunks();
        // Writing to memory does not fail.
        let written: std::io::Result<Vec<u8>> = match self.answers {
            Encoding::Identity => return message.clone(),
            Encoding::Gzip => {
                let mut encoder = GzEncoder::new(Vec::new(), level);
                let mut chunks = chunks.map(|chunk: &Bytes| encoder.write_all(chunk));
                let all = chunks.try_for_each(|written| written);
                all.and_then(|()| encoder.finish())
            }
            Encoding::Deflate => {
                let mut encoder = ZlibEncoder::new(Vec::new(), level);
                let mut chunks = chunks.map(|chunk: &Bytes| encoder.write_all(chunk));
                let all = chunks.try_for_each(|written| written);
                all.and_then(|()| encoder.finish())
            }
        };
        written.expect("memory takes all bytes").into()
    }
}

fn name(encoding: Encoding) -> &'static str {
    match encoding {
        Encoding::Identity => "identity",
        Encoding::Gzip => "gzip",
        Encoding::Deflate => "deflate",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::MemoryBudget;

    fn compression(requests: &'static str, accepted: &'static str) -> Compression {
        let mut headers = HeaderMap::new();
        headers.insert(&ENCODING, HeaderValue::from_static(requests));
        headers.insert(&ACCEPTED, HeaderValue::from_static(accepted));
        Compression::of(&headers).unwrap()
    }

    #[test]
    fn what_is_compressed_is_inflated_within_the_limit() {
        let message = ByteRope::from(vec![7; 100_000]);
        for encoding in ["gzip", "deflate"] {
            let compression = compression(encoding, "identity, deflate, gzip");
            assert!(compression.compresses());
            let deflated = compression.deflate(&message);
            assert!(deflated.len() < 1000);
            let mut memory = MemoryBudget::new(1 << 20).model().reservation();
            memory.grow(deflated.len() as u64).unwrap();
            let inflated = compression.inflate(deflated.clone(), 100_000, &mut memory);
            assert_eq!(inflated.unwrap(), message);
            let mut memory = MemoryBudget::new(1 << 20).model().reservation();
            memory.grow(deflated.len() as u64).unwrap();
            let bomb = compression.inflate(deflated, 99_999, &mut memory);
            assert_eq!(bomb.unwrap_err().status(), 413);
        }
    }

    #[test]
    fn answers_are_compressed_as_requests_if_the_client_accepts_that() {
        assert!(!compression("gzip", "identity").compresses());
        assert!(!compression("identity", "gzip").compresses());
        let mut headers = HeaderMap::new();
        assert!(!Compression::of(&headers).unwrap().compresses());
        headers.insert(&ENCODING, HeaderValue::from_static("snappy"));
        assert_eq!(Compression::of(&headers).unwrap_err().status(), 415);
    }
}
