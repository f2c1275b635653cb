//! The limits of a listener's connections.

use std::time::Duration;

/// The largest head of a request in bytes, and the size of a connection's buffers: what a kept connection holds while it is idle.
/// hyper answers a longer head with 431.
pub const HEAD_LIMIT: usize = 16 << 10;

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
    /// The beginning of the paths that are answered even to connections above the limit.
    pub always_answered: &'static str,
}
