//! Connections for a benchmark, which send one encoded request again and again.
//!
//! [`InferenceClient`](crate::InferenceClient) encodes a request, asks a pool for a connection and copies the answer, each time. A
//! benchmark that shares the machine with the gateway should cost less than what it measures: a [`LoadConnection`] writes shared bytes
//! in one vectored write, reads into memory that it keeps, and looks at no more of an answer than its head. The bytes of a large request
//! are a file in memory, whose pages the system sends as they are: sockets of one machine pass them on, and only the server copies.

use std::{
    fs::File,
    io::{self, IoSlice, Write as _},
    sync::Arc,
    time::Duration,
};

use bytes::{Buf as _, Bytes, BytesMut};
use packhorse_api::ServerTiming;
use rustix::fs::{MemfdFlags, memfd_create, sendfile};
use rustls::{ClientConfig, pki_types::ServerName};
use tokio::{
    io::{AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, Interest},
    net::TcpStream,
    task::yield_now,
    time::timeout,
};
use tokio_rustls::{TlsConnector, client::TlsStream};
use tokio_util::either::Either;

/// The most headers of an answer.
const MAX_HEADERS: usize = 64;
/// The largest head of an answer, in bytes.
const MAX_HEAD: usize = 64 << 10;
/// The largest body of an answer, in bytes: the limit of a frame between gateway and worker.
const MAX_BODY: usize = 1 << 30;
/// The most bytes of a request that are sent before other tasks of the thread may go on.
const SEND_AT_ONCE: usize = 128 << 10;
/// The size of the buffer that an answer is read to, in bytes, if it is not larger.
const READ_BUFFER: usize = 16 << 10;
/// The size of a request, in bytes, from which it is sent from a file. Smaller ones gain nothing.
const MIN_FILE: usize = 64 << 10;
/// The longest time to connect.
const CONNECT_LIMIT: Duration = Duration::from_secs(5);
/// The longest time of an exchange. It exceeds the largest timeout of an inference request.
const EXCHANGE_LIMIT: Duration = Duration::from_secs(70);

/// A request as it is sent.
#[derive(Clone, Debug)]
pub struct EncodedRequest {
    head: Bytes,
    body: Vec<Bytes>,
    /// Head and body of a large request, where the system has files in memory.
    file: Option<Arc<File>>,
}

impl EncodedRequest {
    pub(crate) fn new(head: Bytes, body: Vec<Bytes>) -> Self {
        let mut request = Self {
            head,
            body,
            file: None,
        };
        if request.byte_len() >= MIN_FILE {
            request.file = request.to_file().map(Arc::new).ok();
        }
        request
    }

    /// Returns the number of bytes of head and body.
    pub fn byte_len(&self) -> usize {
        self.head.len() + self.body_len()
    }

    /// Returns the number of bytes of the body.
    pub fn body_len(&self) -> usize {
        self.body.iter().map(Bytes::len).sum()
    }

    fn pieces(&self) -> impl Iterator<Item = &Bytes> {
        std::iter::once(&self.head).chain(&self.body)
    }

    fn to_file(&self) -> io::Result<File> {
        let mut file = File::from(memfd_create("packhorse-request", MemfdFlags::CLOEXEC)?);
        for piece in self.pieces() {
            file.write_all(piece)?;
        }
        Ok(file)
    }
}

/// The listener that connections are made to.
#[derive(Clone, Debug)]
pub(crate) struct Listener {
    pub(crate) host: String,
    pub(crate) port: u16,
    /// TLS, unless the address is an `http` one.
    pub(crate) tls: Option<Arc<ClientConfig>>,
}

/// The reason why a request got no answer.
#[derive(Debug, thiserror::Error)]
pub enum ExchangeError {
    /// No connection could be made.
    #[error("cannot connect: {0}")]
    Connect(#[source] io::Error),
    /// The connection ended before the answer was complete.
    #[error("the connection was lost: {0}")]
    Broken(#[source] io::Error),
    /// The answer did not arrive in time.
    #[error("no answer within {} s", EXCHANGE_LIMIT.as_secs())]
    Timeout,
    /// The answer is not HTTP/1.1 with a `Content-Length`.
    #[error("the answer is not HTTP/1.1 with a Content-Length of at most {MAX_BODY} bytes: {0}")]
    Malformed(String),
}

/// The head of an answer.
#[derive(Clone, Debug, PartialEq)]
pub struct AnswerHead {
    /// The HTTP status.
    pub status: u16,
    /// True if the answer names a time after which to retry.
    pub retry_after: bool,
    /// The durations of the request's stages, if the request asked for them.
    pub timing: Option<ServerTiming>,
    body_len: usize,
    closes: bool,
}

/// A kept connection. It connects with the first request, and again where the last connection has ended.
#[derive(Debug)]
pub struct LoadConnection {
    listener: Listener,
    stream: Option<Either<TcpStream, TlsStream<TcpStream>>>,
    buffer: BytesMut,
    body_len: usize,
}

impl LoadConnection {
    pub(crate) fn new(listener: Listener) -> Self {
        Self {
            listener,
            stream: None,
            buffer: BytesMut::with_capacity(READ_BUFFER),
            body_len: 0,
        }
    }

    /// Connects, if there is no connection.
    ///
    /// # Errors
    /// [`ExchangeError::Connect`].
    pub async fn connect(&mut self) -> Result<(), ExchangeError> {
        if self.stream.is_none() {
            let connected = timeout(CONNECT_LIMIT, self.listener.connect()).await;
            let stream = connected.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
            self.stream = Some(stream.map_err(ExchangeError::Connect)?);
        }
        Ok(())
    }

    /// Sends the request and reads the answer, whose body is then [`LoadConnection::body`]. A kept connection that the server has
    /// closed meanwhile is replaced.
    ///
    /// # Errors
    /// If there is no complete answer.
    pub async fn exchange(
        &mut self,
        request: &EncodedRequest,
    ) -> Result<AnswerHead, ExchangeError> {
        let exchanged = timeout(EXCHANGE_LIMIT, async {
            let was_kept = self.stream.is_some();
            match self.try_exchange(request).await {
                Err(ExchangeError::Broken(_)) if was_kept && self.buffer.is_empty() => {
                    self.stream = None;
                    self.try_exchange(request).await
                }
                exchanged => exchanged,
            }
        });
        let exchanged = exchanged.await.unwrap_or(Err(ExchangeError::Timeout));
        if exchanged.as_ref().map_or(true, |head| head.closes) {
            self.stream = None;
        }
        exchanged
    }

    /// Returns the body of the last answer.
    pub fn body(&self) -> &[u8] {
        &self.buffer[..self.body_len]
    }

    async fn try_exchange(
        &mut self,
        request: &EncodedRequest,
    ) -> Result<AnswerHead, ExchangeError> {
        self.connect().await?;
        let Self {
            stream,
            buffer,
            body_len,
            ..
        } = self;
        let stream = stream.as_mut().expect("it was just connected");
        buffer.clear();
        *body_len = 0;
        // A refusal can arrive before the request is sent, and end the sending.
        let sent = match (&*stream, &request.file) {
            (Either::Left(stream), Some(file)) => send_file(stream, file, request.byte_len()).await,
            _ => write(stream, request).await,
        };
        let head = loop {
            if let Some((head, len)) = parse_head(buffer)? {
                buffer.advance(len);
                break head;
            }
            buffer.reserve(READ_BUFFER);
            let read = stream.read_buf(buffer).await;
            let read = match sent {
                Err(error) if !matches!(read, Ok(1..)) => return Err(ExchangeError::Broken(error)),
                _ => read,
            };
            ended(read)?;
        };
        buffer.reserve(head.body_len.saturating_sub(buffer.len()));
        while buffer.len() < head.body_len {
            ended(stream.read_buf(buffer).await)?;
        }
        *body_len = head.body_len;
        Ok(AnswerHead {
            closes: head.closes || sent.is_err(),
            ..head
        })
    }
}

impl Listener {
    async fn connect(&self) -> io::Result<Either<TcpStream, TlsStream<TcpStream>>> {
        let stream = TcpStream::connect((self.host.as_str(), self.port)).await?;
        stream.set_nodelay(true)?;
        let Some(config) = &self.tls else {
            return Ok(Either::Left(stream));
        };
        let name = ServerName::try_from(self.host.clone()).map_err(io::Error::other)?;
        let connector = TlsConnector::from(Arc::clone(config));
        Ok(Either::Right(connector.connect(name, stream).await?))
    }
}

async fn write(stream: &mut (impl AsyncWrite + Unpin), request: &EncodedRequest) -> io::Result<()> {
    let pieces = request.pieces();
    let mut slices: Vec<IoSlice<'_>> = pieces.map(|piece| IoSlice::new(piece)).collect();
    let mut rest = &mut slices[..];
    IoSlice::advance_slices(&mut rest, 0);
    while !rest.is_empty() {
        match stream.write_vectored(rest).await? {
            0 => return Err(io::ErrorKind::WriteZero.into()),
            written => IoSlice::advance_slices(&mut rest, written),
        }
    }
    stream.flush().await
}

/// Sends this many bytes from the start of a file.
async fn send_file(stream: &TcpStream, file: &File, len: usize) -> io::Result<()> {
    let mut left = len;
    let mut position = 0;
    while left > 0 {
        stream.writable().await?;
        let piece = left.min(SEND_AT_ONCE);
        let take = || Ok(sendfile(stream, file, Some(&mut position), piece)?);
        match stream.try_io(Interest::WRITABLE, take) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(taken) => {
                left -= taken;
                if left > 0 {
                    // Requests that are due begin meanwhile.
                    yield_now().await;
                }
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Returns an error where nothing was read.
fn ended(read: io::Result<usize>) -> Result<(), ExchangeError> {
    match read {
        Ok(0) => Err(ExchangeError::Broken(io::ErrorKind::UnexpectedEof.into())),
        Ok(_) => Ok(()),
        Err(error) => Err(ExchangeError::Broken(error)),
    }
}

/// Returns the head of an answer and its length in bytes; `None` while it is not complete.
fn parse_head(bytes: &[u8]) -> Result<Option<(AnswerHead, usize)>, ExchangeError> {
    let malformed = |problem: String| ExchangeError::Malformed(problem);
    let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
    let mut response = httparse::Response::new(&mut headers);
    let parsed = response
        .parse(bytes)
        .map_err(|e| malformed(e.to_string()))?;
    let httparse::Status::Complete(len) = parsed else {
        if bytes.len() > MAX_HEAD {
            return Err(malformed(format!("a head over {MAX_HEAD} bytes")));
        }
        return Ok(None);
    };
    let mut head = AnswerHead {
        status: response.code.unwrap_or_default(),
        retry_after: false,
        timing: None,
        body_len: 0,
        closes: response.version == Some(0),
    };
    let mut body_len = None;
    for header in response.headers {
        let name = header.name;
        let value = String::from_utf8_lossy(header.value);
        if name.eq_ignore_ascii_case("content-length") {
            let length: usize = value
                .trim()
                .parse()
                .map_err(|_| malformed(format!("content-length is {value:?}")))?;
            body_len = Some(length);
        } else if name.eq_ignore_ascii_case("connection") {
            head.closes |= value.trim().eq_ignore_ascii_case("close");
        } else if name.eq_ignore_ascii_case("retry-after") {
            head.retry_after = true;
        } else if name.eq_ignore_ascii_case(packhorse_api::SERVER_TIMING_HEADER) {
            head.timing = value.parse().ok();
        }
    }
    head.body_len = body_len.ok_or_else(|| malformed("no content-length".to_owned()))?;
    if head.body_len > MAX_BODY {
        return Err(malformed(format!("content-length is {}", head.body_len)));
    }
    Ok(Some((head, len)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_head_is_read_once_it_is_complete() {
        let text = b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 12\r\nRetry-After: 1\r\n\
            connection: close\r\nserver-timing: compute;dur=2, total;dur=3\r\n\r\n{\"error\"";
        let end = text.len() - 8;
        for cut in 0..end {
            assert!(matches!(parse_head(&text[..cut]), Ok(None)), "{cut}");
        }
        let (head, len) = parse_head(text).unwrap().unwrap();
        assert_eq!((head.status, head.body_len, len), (503, 12, end));
        assert!(head.retry_after && head.closes);
        let timing = head.timing.unwrap();
        assert_eq!((timing.stages.compute, timing.total), (2.0, 3.0));
    }

    #[test]
    fn answers_without_a_length_are_malformed() {
        for bad in [
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n",
            "HTTP/1.1 200 OK\r\ncontent-length: -1\r\n\r\n",
            "HTTP/1.1 200 OK\r\ncontent-length: 99999999999\r\n\r\n",
            "SSH-2.0-x\r\n\r\n",
        ] {
            let parsed = parse_head(bad.as_bytes());
            assert!(matches!(parsed, Err(ExchangeError::Malformed(_))), "{bad}");
        }
        let endless = [b"HTTP/1.1 200 OK\r\nx: ".to_vec(), vec![b'a'; MAX_HEAD]].concat();
        assert!(parse_head(&endless).is_err());
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = parse_head(&bytes);
            let _ = parse_head(&[b"HTTP/1.1 200 OK\r\n".as_slice(), &bytes].concat());
        }
    }
}
