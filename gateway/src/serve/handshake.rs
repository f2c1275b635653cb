//! The beginning of a connection: the TLS handshake, where the listener uses TLS.

use std::{io, time::Duration};

use packhorse_tls::{Reloaded, ServerTls, begins_tls};
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _},
    net::TcpStream,
    time::timeout,
};
use tokio_rustls::{TlsAcceptor, server::TlsStream};
use tokio_util::either::Either;

/// The stream of a connection, in clear text or within TLS.
pub(super) type Transport = Either<TcpStream, TlsStream<TcpStream>>;

/// The most bytes that are read and discarded after an answer, for a client that reads only after it has sent everything.
const DISCARD_BYTES: u64 = 1 << 20;

/// The answer to a client that does not speak TLS.
const NOT_TLS: &[u8] = b"HTTP/1.1 400 Bad Request\r\nconnection: close\r\ncontent-type: application/json\r\ncontent-length: 68\r\n\r\n\
    {\"error\":\"this listener uses TLS: its address begins with https://\"}";

/// Performs the handshake of a connection, if the listener uses TLS.
///
/// # Errors
/// The client does not speak TLS, and was told in the words of HTTP; or its handshake failed, or took longer than the limit.
pub(super) async fn begin(
    stream: TcpStream,
    tls: Option<&Reloaded<ServerTls>>,
    limit: Duration,
) -> io::Result<Transport> {
    let Some(tls) = tls else {
        return Ok(Either::Left(stream));
    };
    let stream = timeout(limit, shake_hands(stream, tls));
    let stream = stream.await.map_err(|_| io::ErrorKind::TimedOut)??;
    Ok(Either::Right(stream))
}

async fn shake_hands(
    mut stream: TcpStream,
    tls: &Reloaded<ServerTls>,
) -> io::Result<TlsStream<TcpStream>> {
    let mut first = [0];
    if stream.peek(&mut first).await? > 0 && !begins_tls(first[0]) {
        stream.write_all(NOT_TLS).await?;
        close(stream).await;
        return Err(io::Error::other("the client does not speak TLS"));
    }
    let config = tls.get().config.clone();
    TlsAcceptor::from(config).accept(stream).await
}

/// Closes a stream after an answer. Closing a socket with unread bytes would take the answer from the client.
pub(super) async fn close(mut stream: impl AsyncRead + AsyncWrite + Unpin) {
    if stream.shutdown().await.is_ok() {
        let mut rest = stream.take(DISCARD_BYTES);
        let _ = tokio::io::copy(&mut rest, &mut tokio::io::sink()).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_answer_to_clients_without_tls_has_its_length() {
        let text = str::from_utf8(NOT_TLS).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        let length = format!("content-length: {}", body.len());
        assert!(head.lines().any(|line| line == length), "{length}: {head}");
        let body: packhorse_api::ErrorBody = serde_json::from_str(body).unwrap();
        assert!(body.error.contains("https"));
    }
}
