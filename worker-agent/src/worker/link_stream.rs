//! The stream of a gateway's connection: in clear text, within TLS, or two pipes on this host.
//!
//! One thread reads it while another writes. A connection of rustls is one object for both directions, so that the two threads share it
//! behind a lock; neither holds the lock while it waits for the socket.

use std::{
    io::{self, IoSlice, PipeReader, PipeWriter, Read, Write},
    net::{Shutdown, TcpStream},
    ops::Range,
    os::{fd::AsFd, unix::net::UnixStream},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::{Errno, ioctl_fionbio},
};
use rustls::{ServerConfig, ServerConnection};
use socket2::{SockRef, Socket};

use crate::clock::now;

/// The most encrypted bytes that are read at a time.
const RECEIVE_BUFFER: usize = 64 << 10;

/// The time without progress after which a gateway that receives an answer is given up.
pub(super) const WRITE_LIMIT: Duration = Duration::from_secs(30);
/// Linux's `MSG_DONTWAIT`, which is the same on all its architectures: the call returns an error instead of waiting.
const DONT_WAIT: i32 = 0x40;

/// The stream of a gateway's connection. References to it can be read and written at the same time.
pub(super) enum LinkStream {
    /// Clear text.
    Plain(TcpStream),
    /// TLS.
    Tls(Box<TlsStream>),
    /// A Unix socket, until both sides have passed their pipes.
    Local(UnixStream),
    /// Two pipes. A message costs half as much as through a Unix socket, which also wakes a reader whenever its peer has read.
    Pipes(Pipes),
}

/// The worker's ends of two pipes.
pub(super) struct Pipes {
    batches: PipeReader,
    /// Does not wait.
    answers: PipeWriter,
}

/// The reading of a stream, with a time limit for each read.
pub(super) struct LinkReader<'a> {
    stream: &'a LinkStream,
    /// The limit where the kernel keeps none: that of pipes.
    limit: Option<Duration>,
}

/// A second handle of a stream in clear text, which is written to without waiting.
pub(super) enum ImmediateWriter {
    Socket(Socket),
    Pipe(PipeWriter),
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

    /// Returns the socket, to set its options and to end it; pipes have none.
    pub(super) fn socket(&self) -> Option<SockRef<'_>> {
        match self {
            Self::Plain(socket) => Some(SockRef::from(socket)),
            Self::Local(socket) => Some(SockRef::from(socket)),
            Self::Tls(tls) => Some(SockRef::from(&tls.socket)),
            Self::Pipes(_) => None,
        }
    }

    /// Returns a second handle that can be written to without waiting. There is none within TLS, where a record may have to wait for others.
    pub(super) fn immediate_writer(&self) -> Option<ImmediateWriter> {
        match self {
            Self::Plain(socket) => {
                let second = SockRef::from(socket).try_clone().ok()?;
                Some(ImmediateWriter::Socket(second))
            }
            Self::Pipes(pipes) => Some(ImmediateWriter::Pipe(pipes.answers.try_clone().ok()?)),
            Self::Tls(_) | Self::Local(_) => None,
        }
    }

    /// Ends the connection for the thread that reads it. Pipes go on until the gateway ends them, which it does when a batch is not answered.
    pub(super) fn end(&self) {
        if let Some(socket) = self.socket() {
            let _ = socket.shutdown(Shutdown::Both);
        }
    }
}

impl Pipes {
    /// Returns the stream of two pipes, of which the gateway has the other ends.
    pub(super) fn new(batches: PipeReader, answers: PipeWriter) -> io::Result<Self> {
        ioctl_fionbio(&answers, true)?;
        Ok(Self { batches, answers })
    }

    fn write_vectored(&self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        loop {
            match (&self.answers).write_vectored(slices) {
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                    wait_for(&self.answers, PollFlags::OUT, WRITE_LIMIT)?;
                }
                written => return written,
            }
        }
    }
}

/// Waits until a descriptor can be read or written.
///
/// # Errors
/// [`io::ErrorKind::TimedOut`]: it takes longer than the limit.
fn wait_for(descriptor: &impl AsFd, events: PollFlags, limit: Duration) -> io::Result<()> {
    let limit = Timespec::try_from(limit).map_err(io::Error::other)?;
    loop {
        match poll(&mut [PollFd::new(descriptor, events)], Some(&limit)) {
            Ok(0) => return Err(io::ErrorKind::TimedOut.into()),
            Ok(_) => return Ok(()),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

impl<'a> LinkReader<'a> {
    /// Returns a reader without a limit.
    pub(super) fn new(stream: &'a LinkStream) -> Self {
        Self {
            stream,
            limit: None,
        }
    }

    /// Changes the limit of a read, which is more than zero.
    pub(super) fn set_limit(&mut self, limit: Option<Duration>) -> io::Result<()> {
        if let Some(socket) = self.stream.socket() {
            return socket.set_read_timeout(limit);
        }
        self.limit = limit;
        Ok(())
    }
}

impl Read for LinkReader<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self.stream {
            LinkStream::Plain(socket) => (&mut &*socket).read(buffer),
            LinkStream::Local(socket) => (&mut &*socket).read(buffer),
            LinkStream::Tls(tls) => tls.read(buffer),
            LinkStream::Pipes(pipes) => {
                if let Some(limit) = self.limit {
                    wait_for(&pipes.batches, PollFlags::IN, limit)?;
                }
                (&pipes.batches).read(buffer)
            }
        }
    }
}

impl ImmediateWriter {
    /// Writes what can be written without waiting. Returns how many bytes that is.
    pub(super) fn write(&self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Socket(socket) => socket.send_with_flags(bytes, DONT_WAIT),
            Self::Pipe(pipe) => (&mut &*pipe).write(bytes),
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

impl Write for &LinkStream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_vectored(&[IoSlice::new(bytes)])
    }

    fn write_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        match self {
            LinkStream::Plain(socket) => (&mut &*socket).write_vectored(slices),
            LinkStream::Local(socket) => (&mut &*socket).write_vectored(slices),
            LinkStream::Pipes(pipes) => pipes.write_vectored(slices),
            LinkStream::Tls(tls) => tls.write_vectored(slices),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
