//! Frames: the form of a message on a stream of HTTP/2.

use bytes::{BufMut as _, Bytes, BytesMut};
use packhorse_protocol::ByteRope;

/// The beginning of a frame: whether its message is compressed, and how long it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prefix {
    /// True if the message is compressed as the stream's `grpc-encoding` says.
    pub is_compressed: bool,
    /// The number of bytes of the message.
    pub length: u32,
}

/// The first byte of a frame is no flag.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a message begins with byte {0}: expected 0, or 1 for a compressed message")]
pub struct BadFlag(pub u8);

impl Prefix {
    /// The number of bytes of a prefix.
    pub const BYTES: usize = 5;

    /// Reads a prefix.
    ///
    /// # Errors
    /// The flag is neither 0 nor 1.
    pub fn read(bytes: [u8; Self::BYTES]) -> Result<Self, BadFlag> {
        let [flag, length @ ..] = bytes;
        let is_compressed = match flag {
            0 => false,
            1 => true,
            other => return Err(BadFlag(other)),
        };
        Ok(Self {
            is_compressed,
            length: u32::from_be_bytes(length),
        })
    }

    /// Returns the bytes of the prefix.
    pub fn bytes(self) -> [u8; Self::BYTES] {
        let [a, b, c, d] = self.length.to_be_bytes();
        [u8::from(self.is_compressed), a, b, c, d]
    }
}

/// Returns a message as a frame; `None` if it is longer than a frame can be.
pub fn framed(message: ByteRope, is_compressed: bool) -> Option<ByteRope> {
    let length = u32::try_from(message.len()).ok()?;
    let prefix = Prefix {
        is_compressed,
        length,
    };
    let mut head = BytesMut::with_capacity(Prefix::BYTES);
    head.put_slice(&prefix.bytes());
    let mut chunks = message.into_chunks();
    let mut frame = ByteRope::new();
    // One piece for a small message: two would be two writes.
    let first = chunks.next().unwrap_or_default();
    if first.len() < ByteRope::SMALL {
        head.extend_from_slice(&first);
        frame.push(head.freeze());
    } else {
        frame.push(head.freeze());
        frame.push(first);
    }
    chunks.for_each(|chunk: Bytes| frame.push(chunk));
    Some(frame)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_is_restored_and_other_flags_are_refused() {
        for prefix in [
            (false, 0),
            (true, 1),
            (false, 0x0102_0304),
            (true, u32::MAX),
        ] {
            let (is_compressed, length) = prefix;
            let prefix = Prefix {
                is_compressed,
                length,
            };
            assert_eq!(Prefix::read(prefix.bytes()), Ok(prefix));
        }
        assert_eq!(Prefix::read(*b"PRI *"), Err(BadFlag(b'P')));
    }

    #[test]
    fn large_chunks_of_a_frame_are_not_copied() {
        let large = Bytes::from(vec![7; 5000]);
        let message: ByteRope = [Bytes::from_static(b"head"), large.clone()]
            .into_iter()
            .collect();
        let frame = framed(message, false).unwrap();
        assert_eq!(&frame.to_bytes()[..9], b"\0\0\0\x13\x8chead");
        let chunks: Vec<&Bytes> = frame.chunks().collect();
        assert_eq!((chunks.len(), chunks[1].as_ptr()), (2, large.as_ptr()));
        assert_eq!(
            framed(ByteRope::new(), true).unwrap().to_bytes(),
            &b"\x01\0\0\0\0"[..]
        );
    }
}
