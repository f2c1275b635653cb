//! One connection to a worker, from the handshake to its end.

use std::{
    collections::BTreeMap,
    io::{self, IoSlice},
    sync::{Mutex, PoisonError},
    time::Duration,
};

use bytes::{Buf, Bytes, BytesMut};
use packhorse_wire::{
    BatchId, ClientHandshake, ClientStep, DecodeError, Decoder, HandshakeError, ResultHeader,
    ToGateway, ToWorker,
};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::TcpStream,
    sync::{Notify, mpsc},
    time::{Instant, interval},
};

use super::{BatchEnd, LinkEvent, OutgoingBatch};

/// Why a connection ended, or did not come about.
#[derive(Debug, thiserror::Error)]
pub(super) enum ConnectionError {
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("the worker closed the connection")]
    Closed,
    #[error("the worker closed the connection: {0}")]
    ClosedBecause(String),
    #[error("protocol: {0}")]
    Decode(#[from] DecodeError),
    #[error("handshake: {0}")]
    Handshake(#[from] HandshakeError),
    #[error("handshake: no answer within {0:?}")]
    HandshakeTime(Duration),
    #[error("connecting took more than {0:?}")]
    ConnectTime(Duration),
    #[error("the worker answered batch {0}, which it does not have")]
    UnknownBatch(u64),
    #[error("the worker sent a message that has no place here")]
    Unexpected,
    #[error("a batch was not answered within {0:?}")]
    BatchTime(Duration),
}

/// What comes from a worker, message by message.
struct Incoming<R> {
    stream: R,
    decoder: Decoder<ToGateway>,
    /// What was read and is not yet decoded.
    ahead: BytesMut,
    /// Where payloads are read to. Its memory is used again as soon as nobody holds a slice of it.
    payloads: BytesMut,
}

/// How much is read at a time while waiting for a message.
const READ_AHEAD: usize = 16 << 10;
/// Payloads below this size share a buffer.
const SMALL_PAYLOADS: usize = 64 << 10;

impl<R: AsyncRead + Unpin> Incoming<R> {
    /// The next message; its payload, if it has one, is to be taken before the next.
    async fn message(&mut self) -> Result<ToGateway, ConnectionError> {
        loop {
            let mut input = &self.ahead[..];
            let message = self.decoder.feed(&mut input)?;
            let taken = self.ahead.len() - input.len();
            self.ahead.advance(taken);
            if let Some(message) = message {
                return Ok(message);
            }
            self.ahead.reserve(READ_AHEAD);
            if self.stream.read_buf(&mut self.ahead).await? == 0 {
                return Err(ConnectionError::Closed);
            }
        }
    }

    /// The payload of a result, output by output. Its length was checked against the limit by the decoder.
    async fn payload(&mut self, result: &ResultHeader) -> Result<Vec<Bytes>, ConnectionError> {
        let lengths: Vec<usize> = result
            .outputs
            .iter()
            .map(|output| output.byte_len() as usize)
            .collect();
        let length = lengths.iter().sum();
        if self.payloads.capacity() < length {
            self.payloads.reserve(length.max(SMALL_PAYLOADS));
        }
        let ahead = self.ahead.split_to(length.min(self.ahead.len()));
        self.payloads.extend_from_slice(&ahead);
        while self.payloads.len() < length {
            let missing = length - self.payloads.len();
            if (&mut self.stream)
                .take(missing as u64)
                .read_buf(&mut self.payloads)
                .await?
                == 0
            {
                return Err(ConnectionError::Closed);
            }
        }
        let mut payload = self.payloads.split().freeze();
        Ok(lengths
            .into_iter()
            .map(|length| payload.split_to(length))
            .collect())
    }
}

/// A connection that the worker has accepted.
pub(super) struct Connection {
    stream: TcpStream,
    in_flight: u32,
    decoder: Decoder<ToGateway>,
    ahead: BytesMut,
}

impl Connection {
    /// Proves to each side that the other is who it should be. The worker takes `in_flight` batches before it has answered one.
    pub(super) async fn open(
        mut stream: TcpStream,
        mut handshake: ClientHandshake,
        payload_limit: u64,
        in_flight: u32,
    ) -> Result<Self, ConnectionError> {
        let (read, mut write) = stream.split();
        let mut incoming = Incoming {
            stream: read,
            decoder: Decoder::new(payload_limit),
            ahead: BytesMut::new(),
            payloads: BytesMut::new(),
        };
        send(&mut write, &handshake.hello()).await?;
        while let ClientStep::Send(message) = handshake.handle(incoming.message().await?)? {
            send(&mut write, &message).await?;
        }
        let Incoming { decoder, ahead, .. } = incoming;
        Ok(Self {
            stream,
            in_flight,
            decoder,
            ahead,
        })
    }

    /// Sends the batches and reports their ends, until the connection ends.
    pub(super) async fn serve(
        mut self,
        batches: mpsc::UnboundedReceiver<OutgoingBatch>,
        batch_time: Duration,
        report: impl Fn(LinkEvent),
    ) -> ConnectionError {
        let outstanding = Outstanding::new(self.in_flight);
        let (read, write) = self.stream.split();
        let incoming = Incoming {
            stream: read,
            decoder: self.decoder,
            ahead: self.ahead,
            payloads: BytesMut::new(),
        };
        tokio::select! {
            error = receive(incoming, &outstanding, report) => error,
            error = send_all(write, batches, &outstanding) => error,
            error = watch(&outstanding, batch_time) => error,
        }
    }
}

/// The batches that the worker has, and since when. Shared by the halves of one task; the lock is never held over an await.
struct Outstanding {
    /// So many batches the worker gets without having answered one: those it may have in flight and one that it receives. More
    /// would wait in the socket, where a worker that does not read looks like one that is gone.
    limit: usize,
    batches: Mutex<BTreeMap<BatchId, Instant>>,
    ended: Notify,
}

impl Outstanding {
    fn new(in_flight: u32) -> Self {
        Self {
            limit: in_flight as usize + 1,
            batches: Mutex::default(),
            ended: Notify::new(),
        }
    }

    fn with<T>(&self, f: impl FnOnce(&mut BTreeMap<BatchId, Instant>) -> T) -> T {
        f(&mut self.batches.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Waits until the worker may get another batch.
    async fn room(&self) {
        while self.with(|batches| batches.len() >= self.limit) {
            self.ended.notified().await;
        }
    }

    fn sent(&self, batch: BatchId) {
        self.with(|batches| batches.insert(batch, Instant::now()));
    }

    fn ended(&self, batch: BatchId) -> Result<(), ConnectionError> {
        match self.with(|batches| batches.remove(&batch)) {
            Some(_) => {
                self.ended.notify_one();
                Ok(())
            }
            None => Err(ConnectionError::UnknownBatch(batch.0)),
        }
    }

    fn oldest(&self) -> Option<Instant> {
        self.with(|batches| batches.values().min().copied())
    }
}

/// Takes what the worker says until it says nothing more.
async fn receive<R: AsyncRead + Unpin>(
    mut incoming: Incoming<R>,
    outstanding: &Outstanding,
    report: impl Fn(LinkEvent),
) -> ConnectionError {
    loop {
        match receive_one(&mut incoming, outstanding).await {
            Ok(event) => report(event),
            Err(error) => return error,
        }
    }
}

async fn receive_one<R: AsyncRead + Unpin>(
    incoming: &mut Incoming<R>,
    outstanding: &Outstanding,
) -> Result<LinkEvent, ConnectionError> {
    match incoming.message().await? {
        ToGateway::Result(result) => {
            // Before its payload is read: an answer to nothing must not cost its memory.
            outstanding.ended(result.id)?;
            let payload = incoming.payload(&result).await?;
            let outputs = result.outputs.into_iter().zip(payload).collect();
            Ok(LinkEvent::BatchEnded(
                result.id,
                BatchEnd::Done {
                    outputs,
                    stages: result.stages,
                },
            ))
        }
        ToGateway::Failure(failure) => {
            outstanding.ended(failure.id)?;
            let end = BatchEnd::Failed {
                kind: failure.kind,
                message: failure.message,
            };
            Ok(LinkEvent::BatchEnded(failure.id, end))
        }
        ToGateway::Draining => Ok(LinkEvent::Draining),
        ToGateway::Close(reason) => Err(ConnectionError::ClosedBecause(reason)),
        ToGateway::Challenge(_) | ToGateway::Accept => Err(ConnectionError::Unexpected),
    }
}

/// Sends batches until there will be no more, and then says so by closing this half of the connection.
async fn send_all(
    mut stream: impl AsyncWrite + Unpin,
    mut batches: mpsc::UnboundedReceiver<OutgoingBatch>,
    outstanding: &Outstanding,
) -> ConnectionError {
    let mut head = Vec::new();
    while let Some(batch) = batches.recv().await {
        outstanding.room().await;
        outstanding.sent(batch.header.id);
        head.clear();
        ToWorker::Batch(batch.header).encode(&mut head);
        let mut slices = Vec::with_capacity(1 + batch.payload.len());
        slices.push(IoSlice::new(&head));
        slices.extend(batch.payload.iter().map(|piece| IoSlice::new(piece)));
        if let Err(error) = write_all_vectored(&mut stream, &mut slices).await {
            return error.into();
        }
    }
    match stream.shutdown().await {
        // What is still to come is the receiving half's business.
        Ok(()) => std::future::pending().await,
        Err(error) => error.into(),
    }
}

async fn write_all_vectored(
    stream: &mut (impl AsyncWrite + Unpin),
    mut slices: &mut [IoSlice<'_>],
) -> io::Result<()> {
    // Without this, leading empty slices would look like a closed connection.
    IoSlice::advance_slices(&mut slices, 0);
    while !slices.is_empty() {
        match stream.write_vectored(slices).await? {
            0 => return Err(io::ErrorKind::WriteZero.into()),
            written => IoSlice::advance_slices(&mut slices, written),
        }
    }
    Ok(())
}

async fn send(stream: &mut (impl AsyncWrite + Unpin), message: &ToWorker) -> io::Result<()> {
    let mut bytes = Vec::new();
    message.encode(&mut bytes);
    stream.write_all(&bytes).await
}

/// Gives a worker up that has a batch for too long. Its own watchdog should have ended it before: this is for one that was
/// stopped, or whose clock was.
async fn watch(outstanding: &Outstanding, batch_time: Duration) -> ConnectionError {
    let mut ticks = interval((batch_time / 8).max(Duration::from_millis(10)));
    loop {
        ticks.tick().await;
        if outstanding
            .oldest()
            .is_some_and(|sent| sent.elapsed() > batch_time)
        {
            return ConnectionError::BatchTime(batch_time);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn pieces_of_any_size_arrive_in_order() {
        let (mut ours, mut theirs) = tokio::io::duplex(7);
        let pieces: Vec<Bytes> = (0..50_u8)
            .map(|i| Bytes::from(vec![i; usize::from(i)]))
            .collect();
        let expected = pieces.concat();
        let mut received = Vec::new();
        let sending = async {
            let mut slices: Vec<IoSlice<'_>> =
                pieces.iter().map(|piece| IoSlice::new(piece)).collect();
            write_all_vectored(&mut ours, &mut slices).await.unwrap();
            drop(ours);
        };
        let ((), read) = tokio::join!(sending, theirs.read_to_end(&mut received));
        read.unwrap();
        assert_eq!(received, expected);
    }
}
