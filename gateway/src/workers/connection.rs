//! A connection to a worker, from the handshake to its end.

use std::{io, sync::Arc, time::Duration};

use packhorse_wire::{Agreement, ClientHandshake, ClientStep, Features, ToWorker};
use socket2::Socket;
use tokio::{
    io::{AsyncWrite, AsyncWriteExt},
    runtime::Handle,
    time::interval,
};

use super::{
    connection_error::ConnectionError,
    incoming::Incoming,
    link_event::LinkEvent,
    message_reader::MessageReader,
    outgoing::{BatchSender, Outstanding, send_all},
    shared_memory::SharedMemory,
    socket::{ClearStream, SocketWriter, WorkerStream},
};
use crate::input_memory::InputMemory;

/// A connection after its handshake.
pub(super) struct Connection {
    stream: WorkerStream,
    reader: MessageReader,
    agreement: Agreement,
    in_flight: u32,
    shared: Option<SharedMemory>,
}

impl Connection {
    /// Performs the handshake. The worker takes `in_flight` batches before it has answered one.
    pub(super) async fn open(
        mut stream: WorkerStream,
        mut handshake: ClientHandshake,
        payload_limit: u64,
        in_flight: u32,
    ) -> Result<Self, ConnectionError> {
        let mut reader = MessageReader::new(payload_limit);
        send(&mut stream, &handshake.hello()).await?;
        let agreement = loop {
            match handshake.handle(reader.message(&mut stream).await?)? {
                ClientStep::Send(message) => send(&mut stream, &message).await?,
                ClientStep::Accepted(agreement) => break agreement,
            }
        };
        Ok(Self {
            stream,
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
        if self.reader.has_more() {
            return Err(ConnectionError::UnexpectedMessage);
        }
        if let WorkerStream::Left(ClearStream::Right(socket)) = &mut self.stream {
            self.shared = Some(SharedMemory::exchange(socket, inputs.link()?).await?);
        }
        Ok(())
    }

    /// Reports that it is up, sends batches and reports their results, until the connection ends. Results in clear text are read by `http`, the
    /// runtime of HTTP.
    pub(super) async fn serve(
        self,
        batch_time: Duration,
        http: &Handle,
        report: impl Fn(LinkEvent) + Send + Sync + 'static,
    ) -> ConnectionError {
        let (socket, encrypted) = match self.stream {
            WorkerStream::Left(stream) => match into_socket(stream) {
                Ok(socket) => (Some(socket), None),
                Err(error) => return error.into(),
            },
            WorkerStream::Right(stream) => (None, Some(stream)),
        };
        let (sender, sending, queue) = BatchSender::new(self.in_flight, self.shared, socket);
        report(LinkEvent::Up(sender));
        let incoming = Incoming::new(self.reader, Arc::clone(&sending), report);
        let sending = &*sending;
        let exchange = async {
            match (encrypted, &sending.socket) {
                (Some(stream), _) => {
                    let (read, write) = tokio::io::split(stream);
                    tokio::select! {
                        error = incoming.receive(read) => error,
                        error = send_all(write, queue, sending) => error,
                    }
                }
                (None, Some(socket)) => tokio::select! {
                    error = incoming.receive_quickly(http, socket) => error,
                    error = send_all(SocketWriter::new(socket), queue, sending) => error,
                },
                (None, None) => unreachable!("a stream is a socket or encrypted"),
            }
        };
        tokio::select! {
            error = exchange => error,
            error = watch(&sending.outstanding, batch_time) => error,
        }
    }
}

/// Takes a socket from the runtime, which listens for all of its events.
fn into_socket(stream: ClearStream) -> io::Result<Socket> {
    match stream {
        ClearStream::Left(stream) => stream.into_std().map(Socket::from),
        ClearStream::Right(stream) => stream.into_std().map(Socket::from),
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
