//! The two directions of a connection to a worker in clear text: a socket, or two pipes on one host.
//!
//! A message costs half as much through a pipe as through a Unix socket, whose buffers are allocated anew for each, and which wakes a reader
//! also when its peer has read.

use std::{
    io::{self, IoSlice, PipeReader, PipeWriter, Read as _, Write},
    net::Shutdown,
    os::fd::OwnedFd,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use rustix::io::ioctl_fionbio;
use socket2::Socket;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::unix::pipe,
};

/// The most bytes that are read at a time from what is there.
const READ_NOW: usize = 16 << 10;

/// The two directions of a connection. Neither waits.
#[derive(Debug)]
pub(super) struct Directions {
    /// The worker's messages. The end of a pipe reads any descriptor.
    pub(super) from_worker: PipeReader,
    /// The gateway's messages.
    pub(super) to_worker: Arc<WriteEnd>,
}

/// The end of a connection that is written to, by one thread at a time.
#[derive(Debug)]
pub(super) enum WriteEnd {
    Socket(Socket),
    /// The worker comes to the end of the stream once the last handle is dropped.
    Pipe(PipeWriter),
}

/// Reads what is there at present. Its readiness wakes nobody.
pub(super) struct ReadNow<'a> {
    from_worker: &'a PipeReader,
    /// True once there was anything to read.
    pub(super) has_read: bool,
}

/// Writes, and listens for room only while there is none: there is some anew whenever the worker reads.
pub(super) struct PatientWriter {
    to_worker: Arc<WriteEnd>,
    /// A second handle, which waits for room.
    waiting: Option<pipe::Sender>,
}

impl Directions {
    /// Returns both directions of a socket that does not wait.
    pub(super) fn of_socket(socket: Socket) -> io::Result<Self> {
        let second = OwnedFd::from(socket.try_clone()?);
        Ok(Self {
            from_worker: second.into(),
            to_worker: Arc::new(WriteEnd::Socket(socket)),
        })
    }

    /// Returns the ends of two pipes.
    pub(super) fn of_pipes(from_worker: PipeReader, to_worker: PipeWriter) -> io::Result<Self> {
        ioctl_fionbio(&from_worker, true)?;
        ioctl_fionbio(&to_worker, true)?;
        Ok(Self {
            from_worker,
            to_worker: Arc::new(WriteEnd::Pipe(to_worker)),
        })
    }
}

impl WriteEnd {
    /// Returns a second handle, which waits for room and for nothing else.
    fn waiting(&self) -> io::Result<pipe::Sender> {
        let second = match self {
            Self::Socket(socket) => socket.try_clone()?.into(),
            Self::Pipe(pipe) => pipe.try_clone()?.into(),
        };
        // The end of a pipe writes to any descriptor.
        pipe::Sender::from_owned_fd_unchecked(second)
    }
}

impl Write for &WriteEnd {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            WriteEnd::Socket(socket) => socket.send(bytes),
            WriteEnd::Pipe(pipe) => (&mut &*pipe).write(bytes),
        }
    }

    fn write_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        match self {
            WriteEnd::Socket(socket) => (&mut &*socket).write_vectored(slices),
            WriteEnd::Pipe(pipe) => (&mut &*pipe).write_vectored(slices),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> ReadNow<'a> {
    pub(super) fn new(from_worker: &'a PipeReader) -> Self {
        Self {
            from_worker,
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
        let mut from_worker = self.from_worker;
        match from_worker.read(buffer.initialize_unfilled_to(room)) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Poll::Pending,
            read => {
                buffer.advance(read?);
                self.has_read = true;
                Poll::Ready(Ok(()))
            }
        }
    }
}

impl PatientWriter {
    pub(super) fn new(to_worker: Arc<WriteEnd>) -> Self {
        Self {
            to_worker,
            waiting: None,
        }
    }
}

impl AsyncWrite for PatientWriter {
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
        match (&*self.to_worker).write_vectored(slices) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            written => return Poll::Ready(written),
        }
        let waiting = match self.waiting.take() {
            Some(waiting) => waiting,
            None => self.to_worker.waiting()?,
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
        Poll::Ready(match &*self.to_worker {
            WriteEnd::Socket(socket) => socket.shutdown(Shutdown::Write),
            WriteEnd::Pipe(_) => Ok(()),
        })
    }
}
