//! The stream of a gateway's connection: on this host, in clear text or within TLS.
//!
//! One thread reads it while another writes. A connection of rustls is one object for both directions, so that the two threads share it
//! behind a lock; neither holds the lock while it waits for the socket.

use std::{
    io::{self, IoSlice, Read, Write},
    net::TcpStream,
    ops::Range,
    os::unix::net::UnixStream,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use rustix::{
    event::{PollFd, PollFlags, poll},
    io::Errno,
};
use rustls::{ServerConfig, ServerConnection};
use socket2::SockRef;

use crate::clock::now;

/// The most encrypted bytes that are read at a time.
const RECEIVE_BUFFER: usize = 64 << 10;

/// The stream of a gateway's connection. References to it can be read and written at the same time.
pub(super) enum LinkStream {
    /// Clear text.
    Plain(TcpStream),
    /// A Unix socket, on which memory can be shared.
    Local(UnixStream),
    /// TLS.
    Tls(Box<TlsStream>),
}

/// A TLS connection.
pub(super) struct TlsStream {
    socket: TcpStream,
    connection: Mutex<ServerConnection>,
    /// The reading thread's.
    received: Mutex<Received>,
    /// The encrypted bytes that are being sent. Its lock is held from the encryption until they are with the socket, to keep their order.
    sending: Mutex<Vec<u8>>,
}

/// Encrypted bytes that were received.
struct Received {
    buffer: Vec<u8>,
    /// The bytes that are not decrypted yet.
    unread: Range<usize>,
}

/// Performs the TLS handshake on a connection.
///
/// # Errors
/// The handshake fails, or is not over by the deadline.
pub(super) fn shake_hands(
    socket: &TcpStream,
    config: Arc<ServerConfig>,
    deadline: Instant,
) -> io::Result<ServerConnection> {
    let mut connection = ServerConnection::new(config).map_err(io::Error::other)?;
    while connection.is_handshaking() {
        flush(&mut connection, socket)?;
        let left = deadline.saturating_duration_since(now());
        // Zero is not a valid limit.
        socket.set_read_timeout(Some(left.max(Duration::from_millis(1))))?;
        if connection.read_tls(&mut &*socket)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if let Err(error) = connection.process_new_packets() {
            // The alert tells the gateway why.
            let _ = flush(&mut connection, socket);
            return Err(io::Error::new(io::ErrorKind::InvalidData, error));
        }
    }
    flush(&mut connection, socket)?;
    Ok(connection)
}

impl LinkStream {
    /// Creates the stream of a TLS connection after its handshake.
    pub(super) fn tls(socket: TcpStream, connection: ServerConnection) -> Self {
        Self::Tls(Box::new(TlsStream {
            socket,
            connection: Mutex::new(connection),
            received: Mutex::new(Received {
                buffer: vec![0; RECEIVE_BUFFER],
                unread: 0..0,
            }),
            sending: Mutex::default(),
        }))
    }

    /// Returns the socket, to set its options and to end it.
    pub(super) fn socket(&self) -> SockRef<'_> {
        match self {
            Self::Plain(socket) => SockRef::from(socket),
            Self::Local(socket) => SockRef::from(socket),
            Self::Tls(tls) => SockRef::from(&tls.socket),
        }
    }

    /// Waits until there may be something to read. A thread that waits in the reading of a Unix socket would wake up also whenever the gateway
    /// has read an answer; for TCP, reading itself is the best way to wait.
    pub(super) fn wait_for_data(&self) -> io::Result<()> {
        let Self::Local(socket) = self else {
            return Ok(());
        };
        loop {
            match poll(&mut [PollFd::new(socket, PollFlags::IN)], None) {
                Err(Errno::INTR) => {}
                waited => return waited.map(|_| ()).map_err(io::Error::from),
            }
        }
    }
}

impl TlsStream {
    fn read(&self, plain: &mut [u8]) -> io::Result<usize> {
        let mut received = lock(&self.received);
        let Received { buffer, unread } = &mut *received;
        loop {
            let mut connection = lock(&self.connection);
            match connection.reader().read(plain) {
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                read => return read,
            }
            if Range::is_empty(unread) {
                drop(connection);
                // Messages have lengths of their own: an end of the connection within one is noticed without TLS.
                let read = (&self.socket).read(buffer)?;
                if read == 0 {
                    return Ok(0);
                }
                *unread = 0..read;
                continue;
            }
            unread.start += connection.read_tls(&mut &buffer[unread.clone()])?;
            let processed = connection.process_new_packets();
            processed.map_err(|e| io::Error::new(io::ErrorKind::InvalidData, e))?;
        }
    }

    fn write_vectored(&self, plain: &[IoSlice<'_>]) -> io::Result<usize> {
        let mut sending = lock(&self.sending);
        sending.clear();
        let written = {
            let mut connection = lock(&self.connection);
            let written = connection.writer().write_vectored(plain)?;
            flush(&mut connection, &mut *sending)?;
            written
        };
        (&self.socket).write_all(&sending)?;
        Ok(written)
    }
}

/// Writes what the connection has to send.
fn flush(connection: &mut ServerConnection, mut to: impl Write) -> io::Result<()> {
    while connection.wants_write() {
        connection.write_tls(&mut to)?;
    }
    Ok(())
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Read for &LinkStream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            LinkStream::Plain(socket) => (&mut &*socket).read(buffer),
            LinkStream::Local(socket) => (&mut &*socket).read(buffer),
            LinkStream::Tls(tls) => tls.read(buffer),
        }
    }
}

impl Write for &LinkStream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_vectored(&[IoSlice::new(bytes)])
    }

    fn write_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        match self {
            LinkStream::Plain(socket) => (&mut &*socket).write_vectored(slices),
            LinkStream::Local(socket) => (&mut &*socket).write_vectored(slices),
            LinkStream::Tls(tls) => tls.write_vectored(slices),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
