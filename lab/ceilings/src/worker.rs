//! The worker of `front`: reads each message whole, adds its numbers up if it shall, and answers it.

use std::{
    io::{self, BufReader, Read as _, Write as _},
    net::{TcpListener, TcpStream},
};

use anyhow::{Context as _, ensure};

use crate::BODY_LIMIT;

/// The size of the buffer for the heads of messages, in bytes. Larger bodies are read without it.
const READ_BUFFER: usize = 16 << 10;

/// Serves one connection on a free port, whose address is the first line of the output.
pub(crate) fn run(kept: bool, sum: bool) -> anyhow::Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0").context("listen")?;
    println!("{}", listener.local_addr().context("listen")?);
    let (stream, _) = listener.accept().context("accept a connection")?;
    stream.set_nodelay(true).context("accept a connection")?;
    serve(&stream, kept, sum)
}

fn serve(stream: &TcpStream, kept: bool, sum: bool) -> anyhow::Result<()> {
    let mut reader = BufReader::with_capacity(READ_BUFFER, stream);
    let mut memory = Vec::new();
    loop {
        let mut head = [0; 8];
        match reader.read_exact(&mut head) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
            read => read.context("read a message")?,
        }
        let length = usize::try_from(u64::from_le_bytes(head))?;
        ensure!(length <= BODY_LIMIT, "a message of {length} bytes");
        if kept {
            memory.resize(length, 0);
        } else {
            memory = vec![0; length];
        }
        reader.read_exact(&mut memory).context("read a message")?;
        let answer = if sum { add_up(&memory) } else { 0.0 };
        let mut writer = stream;
        let sent = writer.write_all(&answer.to_le_bytes());
        sent.context("answer a message")?;
    }
}

/// Returns the sum of the 32-bit floats, as many at a time as a processor adds in one step.
fn add_up(bytes: &[u8]) -> f32 {
    const AT_ONCE: usize = 16;
    let (numbers, _) = bytes.as_chunks();
    let mut sums = [0.0; AT_ONCE];
    for several in numbers.chunks(AT_ONCE) {
        for (sum, number) in sums.iter_mut().zip(several) {
            *sum += f32::from_le_bytes(*number);
        }
    }
    sums.iter().sum()
}
