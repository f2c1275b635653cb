//! A client's stream that reports what arrives, and fails if the client takes nothing of its answer for too long.

use std::{
    io::{self, IoSlice},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::{Buf as _, Bytes};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::{Instant, Sleep, sleep},
};

use super::{
    activity::Activity, control_frames::ControlFrames, handshake::Transport,
    parse_errors::with_body,
};

/// A client's stream with a limit on the pauses in writing.
#[derive(Debug)]
pub(super) struct ClientStream {
    stream: Transport,
    activity: Arc<Activity>,
    write_timeout: Duration,
    /// The end of the present pause in writing; `None` while the client takes what is written.
    stalled: Option<Pin<Box<Sleep>>>,
    /// The rest of an answer that is sent in place of one without a body.
    replacement: Bytes,
    /// The limit of frames, on a connection of HTTP/2.
    frames: Option<ControlFrames>,
}

impl ClientStream {
    pub(super) fn new(
        stream: Transport,
        activity: Arc<Activity>,
        write_timeout: Duration,
        frames: Option<ControlFrames>,
    ) -> Self {
        Self {
            stream,
            activity,
            write_timeout,
            stalled: None,
            replacement: Bytes::new(),
            frames,
        }
    }

    /// Sends an answer that has a body in place of one of hyper's own.
    fn poll_replacement(
        &mut self,
        context: &mut Context<'_>,
        buffer: &[u8],
    ) -> Poll<io::Result<usize>> {
        while !self.replacement.is_empty() {
            let progress = Pin::new(&mut self.stream).poll_write(context, &self.replacement);
            let sent = ready!(self.limit_pause(context, progress))?;
            if sent == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.replacement.advance(sent);
        }
        Poll::Ready(Ok(buffer.len()))
    }

    /// Returns true if another answer is sent in place of these bytes, or is being sent.
    fn is_replaced(&mut self, buffer: &[u8]) -> bool {
        // Between requests there are but the rest of an answer, and what hyper answers by itself.
        if self.replacement.is_empty() && self.activity.is_between_requests() {
            self.replacement = with_body(buffer).map(Bytes::from).unwrap_or_default();
        }
        !self.replacement.is_empty()
    }

    /// Counts the bytes of an answer that the client's end of the connection has taken.
    fn count_sent(&mut self, progress: &Poll<io::Result<usize>>) {
        if let Poll::Ready(Ok(sent)) = progress {
            self.activity.moved();
            if let Some(frames) = &mut self.frames {
                frames.sent(*sent);
            }
        }
    }

    /// Limits the time for which an operation of the writing half makes no progress.
    fn limit_pause<T>(
        &mut self,
        context: &mut Context<'_>,
        progress: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if progress.is_ready() {
            self.stalled = None;
            return progress;
        }
        let timeout = self.write_timeout;
        let stalled = self.stalled.get_or_insert_with(|| Box::pin(sleep(timeout)));
        ready!(stalled.as_mut().poll(context));
        Poll::Ready(Err(io::Error::new(
            io::ErrorKind::TimedOut,
            "the client did not read its answer",
        )))
    }
}

impl AsyncRead for ClientStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(context, buffer))?;
        let read = &buffer.filled()[before..];
        if !read.is_empty() {
            let client = &mut *self;
            client.activity.received();
            client.activity.moved();
            if let Some(frames) = &mut client.frames {
                frames.received(read, Instant::now())?;
            }
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for ClientStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &[u8],
    ) -> Poll<io::Result<usize>> {
        if self.is_replaced(buffer) {
            return self.poll_replacement(context, buffer);
        }
        let progress = Pin::new(&mut self.stream).poll_write(context, buffer);
        self.count_sent(&progress);
        self.limit_pause(context, progress)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffers: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        if let [only] = buffers
            && self.is_replaced(only)
        {
            return self.poll_replacement(context, only);
        }
        let progress = Pin::new(&mut self.stream).poll_write_vectored(context, buffers);
        self.count_sent(&progress);
        self.limit_pause(context, progress)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let progress = Pin::new(&mut self.stream).poll_flush(context);
        self.limit_pause(context, progress)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
