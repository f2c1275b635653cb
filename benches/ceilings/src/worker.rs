//! The worker of `front`: reads each message whole and answers it.

use std::{
    io::{self, BufReader, Read as _, Write as _},
    net::{TcpListener, TcpStream},
};

use anyhow::{Context as _, ensure};

use crate::BODY_LIMIT;

/// The size of the buffer for the heads of messages, in bytes. Larger bodies are read without it.
const READ_BUFFER: usize = 16 << 10;

/// Serves one connection on a free port, whose address is the first line of the output.
pub(crate) fn run(kept: bool) -> anyhow::Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0").context("listen")?;
    println!("{}", listener.local_addr().context("listen")?);
    let (stream, _) = listener.accept().context("accept a connection")?;
    stream.set_nodelay(true).context("accept a connection")?;
    serve(&stream, kept)
}

fn serve(stream: &TcpStream, kept: bool) -> anyhow::Result<()> {
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
        let mut writer = stream;
        writer.write_all(&[0; 4]).context("answer a message")?;
    }
}
