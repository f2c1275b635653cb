//! The socket of a connection to a worker, and TLS on it.

use std::{io, net::SocketAddr, os::fd::AsFd as _, sync::Arc, time::Duration};

use packhorse_mapped::peer_uid;
use rustix::process::geteuid;
use rustls::{ClientConfig, pki_types::ServerName};
use socket2::{SockRef, TcpKeepalive};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::{TlsConnector, client::TlsStream};

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

/// Connects to a worker on this host, which runs as the gateway's user or that of workers.
///
/// # Errors
/// Nobody listens there, or somebody who runs as another user and may not see requests.
pub(super) async fn connect_locally(
    path: &str,
    worker_user: Option<u32>,
) -> io::Result<UnixStream> {
    let stream = UnixStream::connect(path).await?;
    let peer = peer_uid(stream.as_fd())?;
    if peer == geteuid().as_raw() || Some(peer) == worker_user {
        Ok(stream)
    } else {
        let problem = format!(
            "the worker runs as user {peer}, which is neither the gateway's nor that of --worker-user"
        );
        Err(io::Error::new(io::ErrorKind::PermissionDenied, problem))
    }
}

/// Performs the TLS handshake with a worker, whose certificate must name its address.
pub(super) async fn secure(
    stream: TcpStream,
    address: SocketAddr,
    config: Arc<ClientConfig>,
) -> io::Result<TlsStream<TcpStream>> {
    let name = ServerName::from(address.ip().to_canonical());
    TlsConnector::from(config).connect(name, stream).await
}
