//! The version and the limits of the protocol.

use packhorse_cluster::Program;

/// The version of the frame's layout, which is the same in all versions of the protocol that negotiate ([`crate::VersionRange`]).
pub const FRAME_VERSION: u16 = 2;
/// The largest metadata of a frame, in bytes: all tensors at full rank take a little over half of it.
pub const MAX_METADATA: usize = 16 << 10;
/// The largest payload, in bytes: the tensors that a worker takes with one batch, and a gateway with one result. Batches must be
/// formed so that they stay within it.
pub const MAX_PAYLOAD: u64 = 1 << 30;
/// The most tensors in one message.
pub const MAX_TENSORS: usize = Program::MAX_TENSORS;
/// The most pieces of a payload in shared memory.
pub const MAX_RANGES: usize = 256;
/// The longest reason or failure message, in bytes; longer ones are cut when they are sent.
pub const MAX_TEXT: usize = 1024;
