//! How the socket to a worker is set up.

use std::{io, net::SocketAddr, time::Duration};

use socket2::{SockRef, TcpKeepalive};
use tokio::net::TcpStream;

/// An idle peer is asked after this long whether it is still there,
const KEEPALIVE_IDLE: Duration = Duration::from_secs(3);
/// again after this long,
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(1);
/// and given up after so many questions.
const KEEPALIVE_RETRIES: u32 = 3;
/// A peer that does not acknowledge what was sent is given up after this long.
const USER_TIMEOUT: Duration = Duration::from_secs(5);

/// Connects. A peer whose machine is gone is noticed within [`USER_TIMEOUT`], or a little more if nothing was under way; one
/// whose process is gone at once. The sizes of the buffers are left to the kernel: it grows them further than it lets us.
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
