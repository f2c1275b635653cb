//! The part of HTTP/1.1 that requests to a gateway on this machine need: one kept connection, bodies with a length.

use std::{
    io::{self, BufRead as _, BufReader, Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    time::Duration,
};

/// The largest header section and the largest body, in bytes.
const LIMIT: u64 = 1 << 26;

/// A connection to one address.
pub(crate) struct Connection {
    stream: BufReader<TcpStream>,
}

/// A response.
pub(crate) struct Response {
    /// The status code.
    pub(crate) status: u16,
    /// The body.
    pub(crate) body: Vec<u8>,
}

/// Returns the bytes of a request.
pub(crate) fn message(method: &str, path: &str, headers: &str, body: &[u8]) -> Vec<u8> {
    let length = body.len();
    let head = format!(
        "{method} {path} HTTP/1.1\r\nhost: localhost\r\n{headers}content-length: {length}\r\n\r\n"
    );
    [head.as_bytes(), body].concat()
}

impl Connection {
    /// Connects. Every later read and write has the same time limit.
    pub(crate) fn open(address: SocketAddr, limit: Duration) -> io::Result<Self> {
        let stream = TcpStream::connect_timeout(&address, limit)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(limit))?;
        stream.set_write_timeout(Some(limit))?;
        Ok(Self {
            stream: BufReader::new(stream),
        })
    }

    /// Sends a request, made by [`message`], and reads the response.
    pub(crate) fn exchange(&mut self, message: &[u8]) -> io::Result<Response> {
        self.stream.get_mut().write_all(message)?;
        self.answer()
    }

    fn answer(&mut self) -> io::Result<Response> {
        let bad = |what| io::Error::new(io::ErrorKind::InvalidData, what);
        let mut head = (&mut self.stream).take(LIMIT);
        let mut line = String::new();
        head.read_line(&mut line)?;
        let status = line
            .split(' ')
            .nth(1)
            .and_then(|code| code.parse().ok())
            .ok_or_else(|| bad("no status line"))?;
        let mut length = 0;
        loop {
            line.clear();
            head.read_line(&mut line)?;
            let Some((name, value)) = line.split_once(':') else {
                break;
            };
            if name.eq_ignore_ascii_case("content-length") {
                length = value
                    .trim()
                    .parse()
                    .map_err(|_| bad("content-length is no number"))?;
            } else if name.eq_ignore_ascii_case("transfer-encoding") {
                return Err(bad("a body without a length"));
            }
        }
        if length > LIMIT {
            return Err(bad("a body over the limit"));
        }
        let mut body = vec![0; usize::try_from(length).map_err(|_| bad("a body over the limit"))?];
        self.stream.read_exact(&mut body)?;
        Ok(Response { status, body })
    }
}
