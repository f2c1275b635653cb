//! The frame that every message travels in.
//!
//! | offset | bytes | what |
//! |---|---|---|
//! | 0 | 4 | magic, `PKHW` |
//! | 4 | 2 | protocol version |
//! | 6 | 1 | kind of message |
//! | 7 | 1 | zero |
//! | 8 | 8 | batch id; zero where the message is about none |
//! | 16 | 4 | length of the metadata |
//! | 20 | 4 | zero |
//! | 24 | 8 | length of the payload: the tensors' bytes |

use packhorse_cluster::ShapeError;

use crate::{MAX_TENSORS, MAX_TEXT, message::BatchId};

/// Bytes of a frame's header.
pub const HEADER_LEN: usize = 32;
/// The most metadata a frame may carry, in bytes: all tensors at full rank take a little over half of it.
pub const MAX_METADATA: usize = 16 << 10;
/// The version of the protocol that this crate speaks.
pub const VERSION: u16 = 1;

const MAGIC: [u8; 4] = *b"PKHW";

/// Why bytes are no message. The connection they came on cannot be used any further.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// The peer speaks something else.
    #[error("this is not the Packhorse worker protocol")]
    Magic,
    /// The peer speaks another version.
    #[error("protocol version {0} is not known here, only {VERSION}")]
    Version(u16),
    /// No message of this kind goes in this direction.
    #[error("message kind {0} is not known here")]
    Kind(u8),
    /// More metadata than any message has.
    #[error("metadata of {0} bytes is over the limit of {MAX_METADATA}")]
    MetadataTooLong(u32),
    /// More payload than the receiver takes.
    #[error("payload of {length} bytes is over the limit of {limit}")]
    PayloadTooLong {
        /// What was announced.
        length: u64,
        /// What the receiver takes.
        limit: u64,
    },
    /// The payload is not as long as the tensors in it.
    #[error("payload of {announced} bytes for tensors of {needed}")]
    PayloadMismatch {
        /// What the header says.
        announced: u64,
        /// What datatypes and shapes say.
        needed: u64,
    },
    /// The metadata ends before the message does.
    #[error("metadata is too short for its message")]
    MetadataTooShort,
    /// The metadata goes on after the message.
    #[error("metadata has {0} bytes more than its message")]
    MetadataLeftOver(usize),
    /// Bytes that must be zero are not.
    #[error("reserved bytes are not zero")]
    Reserved,
    /// A number that stands for no datatype with a fixed width.
    #[error("datatype {0} is not known here")]
    Datatype(u8),
    /// A shape out of its limits.
    #[error(transparent)]
    Shape(#[from] ShapeError),
    /// More tensors than a message may have.
    #[error("{0} tensors are over the limit of {MAX_TENSORS}")]
    Tensors(u8),
    /// A number that stands for no kind of failure.
    #[error("failure kind {0} is not known here")]
    FailureKind(u8),
    /// A text that is not UTF-8, or longer than allowed.
    #[error("text is not UTF-8 of at most {MAX_TEXT} bytes")]
    Text,
}

/// A frame's header, checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameHeader {
    pub(crate) kind: u8,
    pub(crate) batch: BatchId,
    pub(crate) metadata_len: usize,
    pub(crate) payload_len: u64,
}

impl FrameHeader {
    pub(crate) fn to_bytes(self) -> [u8; HEADER_LEN] {
        let metadata_len =
            u32::try_from(self.metadata_len).expect("our messages keep to MAX_METADATA");
        let mut bytes = [0; HEADER_LEN];
        bytes[0..4].copy_from_slice(&MAGIC);
        bytes[4..6].copy_from_slice(&VERSION.to_le_bytes());
        bytes[6] = self.kind;
        bytes[8..16].copy_from_slice(&self.batch.0.to_le_bytes());
        bytes[16..20].copy_from_slice(&metadata_len.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.payload_len.to_le_bytes());
        bytes
    }

    /// Refuses a peer that speaks something else at its first wrong byte, instead of waiting for a whole header.
    pub(crate) fn check_start(start: &[u8]) -> Result<(), DecodeError> {
        if start.iter().zip(&MAGIC).all(|(byte, magic)| byte == magic) {
            Ok(())
        } else {
            Err(DecodeError::Magic)
        }
    }

    pub(crate) fn parse(bytes: &[u8; HEADER_LEN], payload_limit: u64) -> Result<Self, DecodeError> {
        Self::check_start(bytes)?;
        let u16_at = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
        let u32_at = |at: usize| u32::from(u16_at(at)) | (u32::from(u16_at(at + 2)) << 16);
        let u64_at = |at: usize| u64::from(u32_at(at)) | (u64::from(u32_at(at + 4)) << 32);
        if u16_at(4) != VERSION {
            return Err(DecodeError::Version(u16_at(4)));
        }
        if bytes[7] != 0 || u32_at(20) != 0 {
            return Err(DecodeError::Reserved);
        }
        let metadata_len = u32_at(16);
        if metadata_len as usize > MAX_METADATA {
            return Err(DecodeError::MetadataTooLong(metadata_len));
        }
        let payload_len = u64_at(24);
        if payload_len > payload_limit {
            return Err(DecodeError::PayloadTooLong {
                length: payload_len,
                limit: payload_limit,
            });
        }
        Ok(Self {
            kind: bytes[6],
            batch: BatchId(u64_at(8)),
            metadata_len: metadata_len as usize,
            payload_len,
        })
    }
}
