//! The errors of decoding.

use packhorse_cluster::ShapeError;

use crate::limits::{FRAME_VERSION, MAX_METADATA, MAX_RANGES, MAX_TENSORS, MAX_TEXT};

/// The reason why bytes are no message. The connection that they came on cannot be used any further.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// The peer uses another protocol.
    #[error("this is not the Packhorse worker protocol")]
    Magic,
    /// The peer uses another layout of frames.
    #[error("frame version {0} is not supported; this side uses version {FRAME_VERSION}")]
    Version(u16),
    /// No message of this kind goes in this direction.
    #[error("message kind {0} is unknown")]
    Kind(u8),
    /// The metadata is longer than that of any message.
    #[error("metadata of {0} bytes is over the limit of {MAX_METADATA} bytes")]
    MetadataTooLong(u32),
    /// The payload is longer than the receiver accepts.
    #[error("payload of {length} bytes is over the limit of {limit} bytes")]
    PayloadTooLong {
        /// The announced length, in bytes.
        length: u64,
        /// The most bytes that the receiver accepts.
        limit: u64,
    },
    /// The payload does not have the length of the tensors in it.
    #[error("payload has {announced} bytes, but its tensors have {needed}")]
    PayloadMismatch {
        /// The length by the header, in bytes.
        announced: u64,
        /// The length by datatypes and shapes, in bytes.
        needed: u64,
    },
    /// The metadata ends before the message does.
    #[error("metadata is too short for its message")]
    MetadataTooShort,
    /// The metadata continues after the message.
    #[error("metadata has {0} bytes more than its message")]
    MetadataLeftOver(usize),
    /// Bytes that must be zero have another value.
    #[error("reserved bytes are not zero")]
    Reserved,
    /// The number stands for no datatype with a fixed width.
    #[error("datatype {0} is unknown")]
    Datatype(u8),
    /// The shape is outside its limits.
    #[error(transparent)]
    Shape(#[from] ShapeError),
    /// The message has more tensors than allowed.
    #[error("{0} tensors are over the limit of {MAX_TENSORS}")]
    Tensors(u8),
    /// The payload has more pieces in shared memory than allowed.
    #[error("{0} ranges are over the limit of {MAX_RANGES}")]
    Ranges(u16),
    /// The number stands for no kind of failure.
    #[error("failure kind {0} is unknown")]
    FailureKind(u8),
    /// A text is not UTF-8, or longer than allowed.
    #[error("text is not UTF-8 of at most {MAX_TEXT} bytes")]
    Text,
}
