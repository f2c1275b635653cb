//! An HTTP/1.1 server with limits on its connections.

mod activity;
mod connection;
mod limits;
mod overflow;
mod server;
mod stream;

pub use limits::{ConnectionLimits, HEAD_LIMIT};
pub(crate) use overflow::OVERFLOW_CONNECTIONS;
pub use server::Server;
