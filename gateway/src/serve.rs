//! A server of HTTP/1.1, or of HTTP/2 for gRPC, with limits on its connections.

mod activity;
mod address_shares;
mod bodies;
mod certificates;
mod connection;
mod control_frames;
mod handshake;
mod held;
mod limits;
mod local_client;
mod multiplexed;
mod overflow;
mod parse_errors;
mod receive_window;
mod server;
mod stream;
mod streams;
mod unknown_clients;
mod unread;

pub(crate) use certificates::{Certificate, watch};
pub(crate) use held::HeldUntilSent;
pub use limits::{ConnectionLimits, HEAD_LIMIT};
pub(crate) use local_client::LocalClient;
pub use multiplexed::{CONNECTION_WINDOW, MAX_STREAMS, Stopping};
pub(crate) use multiplexed::{STREAM_WINDOW, Watching};
pub(crate) use overflow::OVERFLOW_CONNECTIONS;
pub use server::Server;
pub use unknown_clients::ClientMark;
pub(crate) use unread::UnreadBodies;
