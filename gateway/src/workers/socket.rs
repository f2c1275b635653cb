//! The socket options of a connection to a worker.

use std::{io, net::SocketAddr, time::Duration};

use socket2::{SockRef, TcpKeepalive};
use tokio::net::TcpStream;

/// The idle time after which the kernel sends the first keepalive probe.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(3);
/// The time between keepalive probes.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(1);
/// The number of unanswered keepalive probes after which the connection is lost.
const KEEPALIVE_RETRIES: u32 = 3;
/// The time after which the connection is lost if sent data is not acknowledged.
const USER_TIMEOUT: Duration = Duration::from_secs(5);

/// Connects. If the peer's machine fails, the connection is lost within [`USER_TIMEOUT`], or a little more if no data was in
/// flight; if the peer's process ends, at once. The buffer sizes are left to the kernel, which raises them further than an
/// application may.
pub(super) async fn connect(address: SocketAddr) -> io::Result<TcpStream> {
    let stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    let socket = SockRef::from(&stream);
    let keepalive = TcpKeepalive::new()
        .with_time(KEEPALIVE_IDLE)
        .with_interval(KEEPALIVE_INTERVAL)
        .with_retries(KEEPALIVE_RETRIES);
    socket.set_tcp_keepalive(&keepalive)?;
    socket.set_tcp_user_timeout(Some(USER_TIMEOUT))?;
    Ok(stream)
}
