//! The frame of every message.
//!
//! | offset | bytes | content |
//! |---|---|---|
//! | 0 | 4 | magic, `PKHW` |
//! | 4 | 2 | version of this layout |
//! | 6 | 1 | kind of message |
//! | 7 | 1 | zero |
//! | 8 | 8 | batch id; zero in a message that is about no batch |
//! | 16 | 4 | length of the metadata |
//! | 20 | 4 | zero |
//! | 24 | 8 | length of the payload: the tensors' bytes |

use crate::{
    error::DecodeError,
    limits::{FRAME_VERSION, MAX_METADATA},
};

/// The length of a frame's header, in bytes.
pub const HEADER_LEN: usize = 32;

const MAGIC: [u8; 4] = *b"PKHW";

/// A batch's number within its connection, chosen by the gateway and repeated in the worker's answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BatchId(pub u64);

/// The checked header of a frame.
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
            u32::try_from(self.metadata_len).expect("encoded metadata is within MAX_METADATA");
        let mut bytes = [0; HEADER_LEN];
        bytes[0..4].copy_from_slice(&MAGIC);
        bytes[4..6].copy_from_slice(&FRAME_VERSION.to_le_bytes());
        bytes[6] = self.kind;
        bytes[8..16].copy_from_slice(&self.batch.0.to_le_bytes());
        bytes[16..20].copy_from_slice(&metadata_len.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.payload_len.to_le_bytes());
        bytes
    }

    /// Refuses a peer that uses another protocol at its first wrong byte, instead of waiting for a complete header.
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
        if u16_at(4) != FRAME_VERSION {
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
