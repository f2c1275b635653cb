//! The limits of a listener's connections.

use std::time::Duration;

/// The largest head of a request in bytes. hyper answers a longer one with 431.
pub const HEAD_LIMIT: usize = 16 << 10;

/// The size of a connection's buffers in bytes, and what a kept connection may hold while it is idle: hyper does not give its buffer
/// back. Half of it would cost a body of 0.6 MB a quarter more of the processor.
pub(crate) const BUFFER_BYTES: usize = 32 << 10;

/// The limits of the connections of a listener.
#[derive(Clone, Copy, Debug)]
pub struct ConnectionLimits {
    /// The most connections at a time; a further one is answered 503 and closed.
    pub connections: usize,
    /// The longest time for a request's head, from the beginning of the connection or from the head's first byte.
    pub head_timeout: Duration,
    /// The longest time for which a connection is kept between two requests.
    pub idle_timeout: Duration,
    /// The longest time for which a client may take nothing of its answer.
    pub write_timeout: Duration,
    /// True if the oldest connection whose client has not proved who he is gives its place to a further one.
    pub unknown_yield: bool,
    /// The beginning of the paths that are answered even to connections above the limit.
    pub always_answered: &'static str,
}
