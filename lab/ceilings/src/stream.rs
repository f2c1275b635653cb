//! Messages over one TCP connection of this machine, from kept memory to kept memory: figure 4.4 of the thesis, without a protocol.

use std::{
    io::{Read as _, Write as _},
    net::{TcpListener, TcpStream},
    thread,
    time::{Duration, Instant},
};

use anyhow::Context as _;
use serde::Serialize;

/// The result.
#[derive(Serialize)]
struct Streamed {
    bytes: usize,
    messages: u64,
    seconds: f64,
    bytes_per_s: f64,
}

/// Sends messages for this long, each after the answer to the last but one, and prints the rate as JSON.
#[expect(clippy::disallowed_methods, reason = "a benchmark measures")]
pub(crate) fn run(bytes: usize, length: Duration) -> anyhow::Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0").context("listen")?;
    let address = listener.local_addr().context("listen")?;
    let reader = thread::spawn(move || read(&listener, bytes));
    let mut stream = TcpStream::connect(address).context("connect")?;
    stream.set_nodelay(true).context("connect")?;
    let message = vec![1; bytes];
    let start = Instant::now();
    let mut messages = 0_u64;
    let mut answer = [0; 1];
    stream.write_all(&message).context("send")?;
    while start.elapsed() < length {
        // One more is on its way while the last is answered, as with two batches in flight.
        stream.write_all(&message).context("send")?;
        stream.read_exact(&mut answer).context("read an answer")?;
        messages += 1;
    }
    let seconds = start.elapsed().as_secs_f64();
    drop(stream);
    reader.join().expect("reading does not panic")?;
    let streamed = Streamed {
        bytes,
        messages,
        seconds,
        bytes_per_s: bytes as f64 * messages as f64 / seconds,
    };
    println!("{}", serde_json::to_string(&streamed)?);
    Ok(())
}

fn read(listener: &TcpListener, bytes: usize) -> anyhow::Result<()> {
    let (mut stream, _) = listener.accept().context("accept")?;
    stream.set_nodelay(true).context("accept")?;
    let mut memory = vec![0; bytes];
    // The sender closes the connection, or goes without the last answer.
    while stream.read_exact(&mut memory).is_ok() {
        if stream.write_all(&[1]).is_err() {
            break;
        }
    }
    Ok(())
}
