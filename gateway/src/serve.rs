//! An HTTP/1.1 server with limits on its connections.

mod activity;
mod address_shares;
mod certificates;
mod connection;
mod handshake;
mod held;
mod limits;
mod local_client;
mod overflow;
mod parse_errors;
mod receive_window;
mod server;
mod stream;
mod unknown_clients;

pub(crate) use certificates::{Certificate, watch};
pub(crate) use held::HeldUntilSent;
pub use limits::{ConnectionLimits, HEAD_LIMIT};
pub(crate) use local_client::LocalClient;
pub(crate) use overflow::OVERFLOW_CONNECTIONS;
pub use server::Server;
pub use unknown_clients::ClientMark;
