//! A connection to a worker, from the handshake to its end.

use std::{io, sync::Arc, time::Duration};

use bytes::{Buf, Bytes, BytesMut};
use packhorse_mapped::OutOfRange;
use packhorse_wire::{
    Agreement, ByteRange, ClientHandshake, ClientStep, Decoder, Features, ResultHeader,
    TensorHeader, ToGateway, ToWorker,
};
use socket2::SockRef;
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    time::interval,
};

use super::{
    connection_error::ConnectionError,
    link_event::LinkEvent,
    outgoing::{BatchSender, Outstanding, Queue, Sending, send_all},
    shared_memory::SharedMemory,
    socket::{ClearStream, WorkerStream},
};
use crate::input_memory::InputMemory;

/// Reads the worker's messages from a stream.
struct MessageReader<R> {
    stream: R,
    decoder: Decoder<ToGateway>,
    /// The bytes that were read and are not yet decoded.
    read_ahead: BytesMut,
    /// The buffer that payloads are read to. Its memory is used again as soon as no slice of it is in use.
    payloads: BytesMut,
}

/// The most bytes that are read at a time while waiting for a message.
const READ_AHEAD: usize = 16 << 10;
/// The size of the buffer that smaller payloads share, in bytes.
const SMALL_PAYLOADS: usize = 64 << 10;

impl<R: AsyncRead + Unpin> MessageReader<R> {
    /// Returns the next message. If it has a payload, the caller must read it before the next message.
    async fn message(&mut self) -> Result<ToGateway, ConnectionError> {
        loop {
            let mut input = &self.read_ahead[..];
            let message = self.decoder.feed(&mut input)?;
            let taken = self.read_ahead.len() - input.len();
            self.read_ahead.advance(taken);
            if let Some(message) = message {
                return Ok(message);
            }
            self.read_ahead.reserve(READ_AHEAD);
            match self.stream.read_buf(&mut self.read_ahead).await {
                Ok(0) => return Err(ConnectionError::Closed),
                Ok(_) => {}
                // Within TLS a process that ended says no farewell.
                Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => {
                    return Err(ConnectionError::Closed);
                }
                Err(e) => return Err(e.into()),
            }
        }
    }

    /// Returns the payload of a result, output by output. The decoder has checked its length against the limit.
    async fn payload(&mut self, result: &ResultHeader) -> Result<Vec<Bytes>, ConnectionError> {
        let length = self.reserve_payload(result);
        let start = self.read_ahead.split_to(length.min(self.read_ahead.len()));
        self.payloads.extend_from_slice(&start);
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
        Ok(self.take_payload(result))
    }
}

impl<R> MessageReader<R> {
    /// Makes room for the payload of a result, and returns its length.
    fn reserve_payload(&mut self, result: &ResultHeader) -> usize {
        let lengths = result.outputs.iter().map(TensorHeader::byte_len);
        let length = lengths.sum::<u64>() as usize;
        if self.payloads.capacity() < length {
            self.payloads.reserve(length.max(SMALL_PAYLOADS));
        }
        length
    }

    /// Takes the payload of a result, output by output.
    fn take_payload(&mut self, result: &ResultHeader) -> Vec<Bytes> {
        let mut payload = self.payloads.split().freeze();
        let outputs = result.outputs.iter();
        outputs
            .map(|output| payload.split_to(output.byte_len() as usize))
            .collect()
    }

    /// Returns the payload of a result that lies in these ranges of the worker's memory.
    fn shared_payload(
        &mut self,
        memory: &SharedMemory,
        result: &ResultHeader,
        ranges: &[ByteRange],
    ) -> Result<Vec<Bytes>, ConnectionError> {
        self.reserve_payload(result);
        memory
            .copy_result(result.id, ranges, &mut self.payloads)
            .map_err(|OutOfRange| ConnectionError::OutOfRange(result.id.0))?;
        Ok(self.take_payload(result))
    }

    /// Takes the stream out, so that the rest goes on with a half of it.
    fn without_stream(self) -> (R, MessageReader<()>) {
        let Self {
            stream,
            decoder,
            read_ahead,
            payloads,
        } = self;
        let rest = MessageReader {
            stream: (),
            decoder,
            read_ahead,
            payloads,
        };
        (stream, rest)
    }

    fn with_stream<S>(self, stream: S) -> MessageReader<S> {
        MessageReader {
            stream,
            decoder: self.decoder,
            read_ahead: self.read_ahead,
            payloads: self.payloads,
        }
    }
}

/// A connection after its handshake.
pub(super) struct Connection {
    reader: MessageReader<WorkerStream>,
    agreement: Agreement,
    in_flight: u32,
    shared: Option<SharedMemory>,
}

impl Connection {
    /// Performs the handshake. The worker takes `in_flight` batches before it has answered one.
    pub(super) async fn open(
        stream: WorkerStream,
        mut handshake: ClientHandshake,
        payload_limit: u64,
        in_flight: u32,
    ) -> Result<Self, ConnectionError> {
        let mut reader = MessageReader {
            stream,
            decoder: Decoder::new(payload_limit),
            read_ahead: BytesMut::new(),
            payloads: BytesMut::new(),
        };
        send(&mut reader.stream, &handshake.hello()).await?;
        let agreement = loop {
            match handshake.handle(reader.message().await?)? {
                ClientStep::Send(message) => send(&mut reader.stream, &message).await?,
                ClientStep::Accepted(agreement) => break agreement,
            }
        };
        Ok(Self {
            reader,
            agreement,
            in_flight,
            shared: None,
        })
    }

    /// Shares memory with the worker, if both can.
    pub(super) async fn share_memory(
        &mut self,
        inputs: &InputMemory,
    ) -> Result<(), ConnectionError> {
        if !self.agreement.features.contains(Features::SHARED_MEMORY) {
            return Ok(());
        }
        // A worker that shares memory waits for the gateway's.
        if !self.reader.read_ahead.is_empty() {
            return Err(ConnectionError::UnexpectedMessage);
        }
        if let WorkerStream::Left(ClearStream::Right(socket)) = &mut self.reader.stream {
            self.shared = Some(SharedMemory::exchange(socket, inputs.link()?).await?);
        }
        Ok(())
    }

    /// Reports that it is up, sends batches and reports their results, until the connection ends.
    pub(super) async fn serve(
        self,
        batch_time: Duration,
        report: impl Fn(LinkEvent),
    ) -> ConnectionError {
        let (stream, reader) = self.reader.without_stream();
        let socket = match &stream {
            WorkerStream::Left(ClearStream::Left(stream)) => Some(SockRef::from(stream)),
            WorkerStream::Left(ClearStream::Right(stream)) => Some(SockRef::from(stream)),
            WorkerStream::Right(_) => None,
        };
        // Without a second handle the task sends all batches.
        let socket = socket.and_then(|socket| socket.try_clone().ok());
        let (sender, sending, queue) = BatchSender::new(self.in_flight, self.shared, socket);
        report(LinkEvent::Up(sender));
        let traffic = Traffic {
            sending,
            queue,
            batch_time,
            report,
        };
        match stream {
            WorkerStream::Left(ClearStream::Left(mut stream)) => {
                let (read, write) = stream.split();
                traffic.exchange(reader.with_stream(read), write).await
            }
            WorkerStream::Left(ClearStream::Right(mut stream)) => {
                let (read, write) = stream.split();
                traffic.exchange(reader.with_stream(read), write).await
            }
            WorkerStream::Right(stream) => {
                let (read, write) = tokio::io::split(stream);
                traffic.exchange(reader.with_stream(read), write).await
            }
        }
    }
}

/// The batches and results of a connection, whatever its stream is.
struct Traffic<F> {
    sending: Arc<Sending>,
    queue: Queue,
    batch_time: Duration,
    report: F,
}

impl<F: Fn(LinkEvent)> Traffic<F> {
    /// Sends and receives until the connection ends.
    async fn exchange(
        self,
        reader: MessageReader<impl AsyncRead + Unpin>,
        write: impl AsyncWrite + Unpin,
    ) -> ConnectionError {
        let Sending {
            outstanding,
            shared,
            ..
        } = &*self.sending;
        tokio::select! {
            error = receive(reader, outstanding, shared.as_ref(), self.report) => error,
            error = send_all(write, self.queue, &self.sending) => error,
            error = watch(outstanding, self.batch_time) => error,
        }
    }
}

/// Reads and reports the worker's messages until the connection ends.
async fn receive<R: AsyncRead + Unpin>(
    mut reader: MessageReader<R>,
    outstanding: &Outstanding,
    shared: Option<&SharedMemory>,
    report: impl Fn(LinkEvent),
) -> ConnectionError {
    loop {
        match receive_one(&mut reader, outstanding, shared).await {
            Ok(event) => report(event),
            Err(error) => return error,
        }
    }
}

async fn receive_one<R: AsyncRead + Unpin>(
    reader: &mut MessageReader<R>,
    outstanding: &Outstanding,
    shared: Option<&SharedMemory>,
) -> Result<LinkEvent, ConnectionError> {
    match reader.message().await? {
        ToGateway::Result(result) => {
            // Checked before the payload is read: an answer to an unknown batch must not cost its memory.
            outstanding.remove(result.id)?;
            let payload = reader.payload(&result).await?;
            Ok(LinkEvent::BatchComputed(result, payload))
        }
        ToGateway::SharedResult(result, ranges) => {
            let memory = shared.ok_or(ConnectionError::UnexpectedMessage)?;
            outstanding.remove(result.id)?;
            let payload = reader.shared_payload(memory, &result, &ranges)?;
            Ok(LinkEvent::BatchComputed(result, payload))
        }
        ToGateway::Failure(failure) => {
            outstanding.remove(failure.id)?;
            Ok(LinkEvent::BatchFailed(failure))
        }
        ToGateway::Draining => Ok(LinkEvent::Draining),
        ToGateway::Close(reason) => Err(ConnectionError::ClosedWithReason(reason)),
        ToGateway::Challenge(_) | ToGateway::Accept | ToGateway::Memory(_) => {
            Err(ConnectionError::UnexpectedMessage)
        }
    }
}

async fn send(stream: &mut (impl AsyncWrite + Unpin), message: &ToWorker) -> io::Result<()> {
    let mut bytes = Vec::new();
    message.encode(&mut bytes);
    stream.write_all(&bytes).await?;
    stream.flush().await
}

/// Ends the connection if the worker has held a batch for too long. The worker's own watchdog should have ended it before: this
/// is for a worker that was stopped, or whose clock was.
async fn watch(outstanding: &Outstanding, batch_time: Duration) -> ConnectionError {
    let mut ticks = interval((batch_time / 8).max(Duration::from_millis(10)));
    loop {
        ticks.tick().await;
        if outstanding
            .oldest_sent()
            .is_some_and(|sent| sent.elapsed() > batch_time)
        {
            return ConnectionError::BatchTimeout(batch_time);
        }
    }
}
