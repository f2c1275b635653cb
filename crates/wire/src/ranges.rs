//! The places of a payload in memory that both sides share.
//!
//! On one host a gateway and a worker may agree to share memory ([`crate::Features::SHARED_MEMORY`]). Each then names a memory file of
//! its own in a `Memory` message, with its descriptor beside the bytes. A payload in such memory does not follow its message: the message
//! says where its pieces are in the sender's memory, and the sender leaves them untouched while the receiver may read them.

use crate::{
    codec::Reader,
    error::DecodeError,
    limits::{MAX_PAYLOAD, MAX_RANGES},
};

/// A range of the sender's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ByteRange {
    /// The offset of its first byte.
    pub offset: u64,
    /// Its length in bytes.
    pub length: u64,
}

/// Appends the ranges.
pub(crate) fn encode_ranges(out: &mut Vec<u8>, ranges: &[ByteRange]) {
    assert!(
        ranges.len() <= MAX_RANGES,
        "a sender joins its pieces, or sends them in line"
    );
    out.extend_from_slice(&(ranges.len() as u16).to_le_bytes());
    for ByteRange { offset, length } in ranges {
        out.extend_from_slice(&offset.to_le_bytes());
        out.extend_from_slice(&length.to_le_bytes());
    }
}

/// Reads ranges that have `needed` bytes together. Whether they are within the memory is known to the receiver only.
pub(crate) fn parse_ranges(
    reader: &mut Reader<'_>,
    needed: u64,
    payload_limit: u64,
) -> Result<Vec<ByteRange>, DecodeError> {
    let limit = payload_limit.min(MAX_PAYLOAD);
    if needed > limit {
        let length = needed;
        return Err(DecodeError::PayloadTooLong { length, limit });
    }
    let count = u16::from_le_bytes(reader.array()?);
    if usize::from(count) > MAX_RANGES {
        return Err(DecodeError::Ranges(count));
    }
    let mut announced = 0_u64;
    let mut range = |_| {
        let (offset, length) = (reader.u64()?, reader.u64()?);
        announced = announced.saturating_add(length);
        Ok::<_, DecodeError>(ByteRange { offset, length })
    };
    let ranges = (0..count).map(&mut range).collect::<Result<_, _>>()?;
    if announced == needed {
        Ok(ranges)
    } else {
        Err(DecodeError::PayloadMismatch { announced, needed })
    }
}
