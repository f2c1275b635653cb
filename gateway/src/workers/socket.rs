//! The socket of a connection to a worker, and TLS on it.

use std::{
    io::{self, IoSlice, Read as _, Write as _},
    net::{Shutdown, SocketAddr},
    os::fd::AsFd as _,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use packhorse_mapped::peer_uid;
use rustix::process::geteuid;
use rustls::{ClientConfig, pki_types::ServerName};
use socket2::{SockRef, Socket, TcpKeepalive};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpStream, UnixStream, unix::pipe},
};
use tokio_rustls::{TlsConnector, client::TlsStream};
use tokio_util::either::Either;

/// The stream of a connection to a worker in clear text: over the network, or on this host.
pub(super) type ClearStream = Either<TcpStream, UnixStream>;
/// The stream of a connection to a worker, in clear text or within TLS.
pub(super) type WorkerStream = Either<ClearStream, TlsStream<TcpStream>>;

/// The idle time after which the kernel sends the first keepalive probe.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(3);
/// The time between keepalive probes.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(1);
/// The number of unanswered keepalive probes after which the connection is lost.
const KEEPALIVE_RETRIES: u32 = 3;
/// The time after which the connection is lost if sent data is not acknowledged.
const USER_TIMEOUT: Duration = Duration::from_secs(5);

/// The most bytes that are read at a time from what is there.
const READ_NOW: usize = 16 << 10;

/// Reads what a socket has at present. Its readiness wakes nobody.
pub(super) struct ReadNow<'a> {
    socket: &'a Socket,
    /// True once there was anything to read.
    pub(super) has_read: bool,
}

/// Writes to a socket, and listens for room only while it is full: a Unix socket has some anew whenever its peer reads.
pub(super) struct SocketWriter<'a> {
    socket: &'a Socket,
    /// A second handle, which waits for room.
    waiting: Option<pipe::Sender>,
}

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

/// Connects to a worker on this host.
///
/// # Errors
/// Nobody listens there, or somebody who runs as another user and may not see requests.
pub(super) async fn connect_locally(path: &str) -> io::Result<UnixStream> {
    let stream = UnixStream::connect(path).await?;
    let peer = peer_uid(stream.as_fd())?;
    if peer == geteuid().as_raw() {
        Ok(stream)
    } else {
        let problem = format!("the worker runs as user {peer}, not as the gateway's");
        Err(io::Error::new(io::ErrorKind::PermissionDenied, problem))
    }
}

/// Performs the TLS handshake with a worker, whose certificate must name its address.
pub(super) async fn secure(
    stream: TcpStream,
    address: SocketAddr,
    config: Arc<ClientConfig>,
) -> io::Result<WorkerStream> {
    let name = ServerName::from(address.ip().to_canonical());
    let stream = TlsConnector::from(config).connect(name, stream).await?;
    Ok(Either::Right(stream))
}

impl<'a> ReadNow<'a> {
    pub(super) fn new(socket: &'a Socket) -> Self {
        Self {
            socket,
            has_read: false,
        }
    }
}

impl AsyncRead for ReadNow<'_> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let room = buffer.remaining().min(READ_NOW);
        let mut socket = self.socket;
        match socket.read(buffer.initialize_unfilled_to(room)) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Poll::Pending,
            read => {
                buffer.advance(read?);
                self.has_read = true;
                Poll::Ready(Ok(()))
            }
        }
    }
}

impl<'a> SocketWriter<'a> {
    pub(super) fn new(socket: &'a Socket) -> Self {
        Self {
            socket,
            waiting: None,
        }
    }
}

impl AsyncWrite for SocketWriter<'_> {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(context, &[IoSlice::new(bytes)])
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let mut socket = self.socket;
        match socket.write_vectored(slices) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            written => return Poll::Ready(written),
        }
        let waiting = match self.waiting.take() {
            Some(waiting) => waiting,
            // The end of a pipe listens for room only, and writes to any descriptor.
            None => pipe::Sender::from_owned_fd_unchecked(socket.try_clone()?.into())?,
        };
        Pin::new(self.waiting.insert(waiting)).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.waiting = None;
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(self.socket.shutdown(Shutdown::Write))
    }
}
