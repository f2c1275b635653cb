//! A connection to a worker, from the handshake to its end.

use std::{io, sync::Arc, time::Duration};

use packhorse_cluster::Program;
use packhorse_wire::{
    Agreement, ClientHandshake, ClientStep, Features, ToGateway, ToWorker, WeightsReport,
};
use socket2::Socket;
use tokio::{
    io::{AsyncRead, AsyncWrite, AsyncWriteExt},
    net::{TcpStream, UnixStream},
    runtime::Handle,
    time::interval,
};
use tokio_rustls::client::TlsStream;
use tokio_util::either::Either;

use super::{
    connection_error::ConnectionError,
    directions::{Directions, PatientWriter},
    incoming::Incoming,
    link_event::LinkEvent,
    message_reader::MessageReader,
    outgoing::{BatchSender, Outstanding, send_all},
    shared_memory::SharedMemory,
};
use crate::input_memory::InputMemory;

/// A stream to a worker over the network, in clear text or within TLS.
pub(super) type NetworkStream = Either<TcpStream, TlsStream<TcpStream>>;

/// The limits of a link's connections.
pub(super) struct ConnectionLimits {
    /// The program that the worker runs, whose signature limits results.
    pub(super) program: Arc<Program>,
    /// The largest result of one batch, in bytes.
    pub(super) payload: u64,
    /// The number of batches that the worker takes before it has answered one.
    pub(super) in_flight: u32,
}

/// A connection after its handshake.
pub(super) struct Connection {
    stream: Either<Directions, TlsStream<TcpStream>>,
    reader: MessageReader,
    program: Arc<Program>,
    in_flight: u32,
    shared: Option<SharedMemory>,
    /// The place of the program's weights at first, if this gateway decides about it.
    weights: Option<WeightsReport>,
}

impl Connection {
    /// Performs the handshake over the network.
    pub(super) async fn open(
        mut stream: NetworkStream,
        handshake: ClientHandshake,
        limits: &ConnectionLimits,
    ) -> Result<Self, ConnectionError> {
        let mut reader = MessageReader::new(limits.payload);
        let (_, weights) = shake_hands(&mut stream, &mut reader, handshake).await?;
        let stream = match stream {
            Either::Left(stream) => {
                Either::Left(Directions::of_socket(Socket::from(stream.into_std()?))?)
            }
            Either::Right(stream) => Either::Right(stream),
        };
        Ok(Self {
            stream,
            reader,
            program: Arc::clone(&limits.program),
            in_flight: limits.in_flight,
            shared: None,
            weights,
        })
    }

    /// Performs the handshake on this host, and shares memory with the worker.
    pub(super) async fn open_locally(
        mut socket: UnixStream,
        handshake: ClientHandshake,
        limits: &ConnectionLimits,
        inputs: &InputMemory,
    ) -> Result<Self, ConnectionError> {
        let mut reader = MessageReader::new(limits.payload);
        let (agreement, weights) = shake_hands(&mut socket, &mut reader, handshake).await?;
        if !agreement.features.contains(Features::SHARED_MEMORY) {
            return Err(ConnectionError::NoSharedMemory);
        }
        // The worker waits for the gateway's memory.
        if reader.has_more() {
            return Err(ConnectionError::UnexpectedMessage);
        }
        let (shared, directions) = SharedMemory::exchange(&mut socket, inputs.link()?).await?;
        Ok(Self {
            stream: Either::Left(directions),
            reader,
            program: Arc::clone(&limits.program),
            in_flight: limits.in_flight,
            shared: Some(shared),
            weights,
        })
    }

    /// Reports that it is up, sends batches and reports their results, until the connection ends. Results in clear text are read by `http`, the
    /// runtime of HTTP.
    pub(super) async fn serve(
        self,
        batch_time: Duration,
        http: &Handle,
        report: impl Fn(LinkEvent) + Send + Sync + 'static,
    ) -> ConnectionError {
        let to_worker = match &self.stream {
            Either::Left(directions) => Some(Arc::clone(&directions.to_worker)),
            Either::Right(_) => None,
        };
        let (sender, sending, queue) =
            BatchSender::new(self.program, self.in_flight, self.shared, to_worker);
        report(LinkEvent::Up(sender, self.weights));
        let incoming = Incoming::new(self.reader, Arc::clone(&sending), report);
        let sending = &*sending;
        let exchange = async {
            match self.stream {
                Either::Left(Directions {
                    from_worker,
                    to_worker,
                }) => tokio::select! {
                    error = incoming.receive_quickly(http, &from_worker) => error,
                    error = send_all(PatientWriter::new(to_worker), queue, sending) => error,
                },
                Either::Right(stream) => {
                    let (read, write) = tokio::io::split(stream);
                    tokio::select! {
                        error = incoming.receive(read) => error,
                        error = send_all(write, queue, sending) => error,
                    }
                }
            }
        };
        tokio::select! {
            error = exchange => error,
            error = watch(&sending.outstanding, batch_time) => error,
        }
    }
}

/// Performs the handshake. Also returns the worker's first report on the weights, if there are any.
async fn shake_hands(
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    reader: &mut MessageReader,
    mut handshake: ClientHandshake,
) -> Result<(Agreement, Option<WeightsReport>), ConnectionError> {
    send(stream, &handshake.hello()).await?;
    let agreement = loop {
        match handshake.handle(reader.message(stream).await?)? {
            ClientStep::Send(message) => send(stream, &message).await?,
            ClientStep::Accepted(agreement) => break agreement,
        }
    };
    if !agreement.features.contains(Features::RESIDENCY) {
        return Ok((agreement, None));
    }
    match reader.message(stream).await? {
        ToGateway::Weights(report) => Ok((agreement, Some(report))),
        _ => Err(ConnectionError::UnexpectedMessage),
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
