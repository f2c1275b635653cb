//! A connection of a gateway: a thread that receives batches, and one that answers them.

use std::{
    collections::BTreeMap,
    io::{self, BufRead, BufReader, Read},
    net::{Shutdown, TcpStream},
    os::{fd::AsFd as _, unix::net::UnixStream},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};

use packhorse_cluster::Program;
use packhorse_mapped::{OutOfRange, peer_uid};
use packhorse_service::is_of_this_machine;
use packhorse_tls::{Refresh, begins_tls};
use packhorse_wire::{
    Agreement, BatchHeader, ByteRange, DecodeError, Decoder, FailureHeader, FailureKind, Features,
    HandshakeError, Hello, MAX_PAYLOAD, ResultHeader, ServerHandshake, ServerStep, StageDurations,
    TensorHeader, ToGateway, ToWorker, WorkerIdentity,
};
use packhorse_worker_agent::handoff::PipelineSettings;
use socket2::{SockRef, TcpKeepalive};

use crate::{
    answer_writer::{Answer, AnswerWriter, BatchPermits, send},
    batch_limit::BatchLimit,
    clock::now,
    executor::{ExecutionError, Executor, OutputTensor, PreparedBatch, check_batch},
    link_stream::{self, LinkReader, LinkStream, WRITE_LIMIT},
    pipeline::{BatchReply, Pipeline, ReceivedBatch},
    proofs::Proofs,
    residency::{InUse, MemberWeights},
    semaphore::Semaphore,
    shared_memory::SharedMemory,
};

/// The time limit of the handshake.
const HANDSHAKE_LIMIT: Duration = Duration::from_secs(5);
/// The time without progress after which a gateway that sends a batch is given up: the batch holds memory for which others wait.
const READ_LIMIT: Duration = Duration::from_secs(30);
/// The idle time after which a connection is probed, to notice that the gateway's machine is gone.
const KEEPALIVE: Duration = Duration::from_secs(10);
/// The time for which the rest of a connection is read after the reason of its close was sent: closing it with unread bytes would discard
/// the reason.
const LINGER: Duration = Duration::from_secs(1);
/// The most unanswered batches of one connection, in any stage. Memory limits the batches of all connections further.
const BATCHES_PER_CONNECTION: usize = PipelineSettings::MAX_IN_FLIGHT as usize + 1;
/// The size of the buffer for headers, in bytes. Larger inputs are read without it.
const READ_BUFFER: usize = 16 << 10;

/// The state that all connections to a replica of a worker share.
pub(super) struct Link {
    /// The identity that the worker proves to gateways.
    pub(super) identity: WorkerIdentity,
    /// The proofs of the worker and of gateways.
    pub(super) proofs: Proofs,
    /// The program.
    pub(super) program: Arc<Program>,
    /// The most rows that fit into memory.
    pub(super) batch_limit: Arc<BatchLimit>,
    /// The executor, which provides the memory for inputs.
    pub(super) executor: Arc<dyn Executor>,
    /// The pipeline, which computes the batches.
    pub(super) pipeline: Arc<Pipeline>,
    /// The semaphore of the batches of all connections, from the header to the answer.
    pub(super) batches: Arc<Semaphore>,
    /// The connections that have completed their handshake.
    pub(super) open: Arc<OpenConnections>,
    /// The weights of the program, if gateways decide about them.
    pub(super) weights: Option<Arc<MemberWeights>>,
    /// True if gateways of the worker's group may connect on this host, whatever their user.
    pub(super) for_group: bool,
}

/// The connections that have completed their handshake.
#[derive(Default)]
pub(super) struct OpenConnections(Mutex<Open>);

#[derive(Default)]
struct Open {
    draining: bool,
    next_key: u64,
    connections: BTreeMap<u64, OpenConnection>,
    /// The weights of the program, if gateways decide about them.
    weights: Option<Arc<MemberWeights>>,
}

/// A connection that has completed its handshake.
struct OpenConnection {
    answers: mpsc::Sender<Answer>,
    /// The number of orders about the weights that were carried out; `None` if this gateway gives none.
    orders: Option<u32>,
}

impl OpenConnections {
    /// Tells all gateways to send no more batches. Later handshakes are refused.
    pub(super) fn drain(&self) {
        let mut open = self.0.lock().expect("no holder panics");
        open.draining = true;
        for connection in open.connections.values() {
            let draining = Answer::without_batch(ToGateway::Draining);
            let _ = connection.answers.send(draining);
        }
    }

    /// Sets the weights that gateways are told of.
    pub(super) fn set_weights(&self, weights: &Arc<MemberWeights>) {
        self.0.lock().expect("no holder panics").weights = Some(Arc::clone(weights));
    }

    /// Tells all gateways that decide about the weights where these are. Returns false if there are none.
    pub(super) fn report_weights(&self) -> bool {
        let open = self.0.lock().expect("no holder panics");
        let Some(weights) = open.weights.clone() else {
            return false;
        };
        let told = open.connections.values();
        let told = told.filter_map(|open| Some((open.answers.clone(), open.orders?)));
        let told: Vec<_> = told.collect();
        drop(open);
        let is_told = !told.is_empty();
        for (answers, orders) in told {
            let report = ToGateway::Weights(weights.report(orders));
            let _ = answers.send(Answer::without_batch(report));
        }
        is_told
    }

    /// Counts an order of a connection that was carried out, and tells of it.
    fn ordered(&self, key: u64) {
        let mut open = self.0.lock().expect("no holder panics");
        let connection = open.connections.get_mut(&key);
        if let Some(orders) = connection.and_then(|connection| connection.orders.as_mut()) {
            *orders = orders.wrapping_add(1);
        }
        drop(open);
        self.report_weights();
    }

    /// Returns true if all gateways are told to send no more batches.
    pub(super) fn is_draining(&self) -> bool {
        self.0.lock().expect("no holder panics").draining
    }

    /// Adds a connection and returns its key. If the worker began to drain since the handshake, the gateway is told, and what it has sent by then is
    /// answered.
    fn add(&self, answers: mpsc::Sender<Answer>, decides_about_weights: bool) -> u64 {
        let mut open = self.0.lock().expect("no holder panics");
        if open.draining {
            let _ = answers.send(Answer::without_batch(ToGateway::Draining));
        }
        let key = open.next_key;
        open.next_key += 1;
        let orders = decides_about_weights.then_some(0);
        { &mut open.connections }.insert(key, OpenConnection { answers, orders });
        key
    }

    fn remove(&self, key: u64) {
        self.0
            .lock()
            .expect("no holder panics")
            .connections
            .remove(&key);
    }
}

/// The reply to a batch of a connection.
struct ConnectionReply {
    batch: BatchHeader,
    batch_limit: Arc<BatchLimit>,
    answers: mpsc::Sender<Answer>,
    writer: Arc<AnswerWriter>,
    permits: BatchPermits,
    /// True if the connection is broken, so that nothing can be sent any more.
    broken: Arc<AtomicBool>,
}

impl BatchReply for ConnectionReply {
    fn is_wanted(&self) -> bool {
        !self.broken.load(Ordering::Relaxed)
    }

    fn send_result(self: Box<Self>, outputs: Vec<OutputTensor>, stages: StageDurations) {
        let headers = outputs.iter().map(|output| output.header.clone()).collect();
        let message = ToGateway::Result(ResultHeader {
            id: self.batch.id,
            outputs: headers,
            stages,
        });
        self.send(message, outputs);
    }

    fn send_failure(self: Box<Self>, error: ExecutionError) {
        let kind = failure_kind(&error);
        if kind == FailureKind::OutOfMemory {
            self.report_shortage();
        }
        self.send_failure_kind(kind, error.to_string());
    }
}

impl ConnectionReply {
    fn report_shortage(&self) {
        self.batch_limit
            .report_shortage(self.batch.rows, &self.batch.inputs);
    }

    fn send_failure_kind(self, kind: FailureKind, message: String) {
        let message = ToGateway::Failure(FailureHeader {
            id: self.batch.id,
            kind,
            message,
        });
        self.send(message, Vec::new());
    }

    fn send(self, message: ToGateway, outputs: Vec<OutputTensor>) {
        let answer = Answer::of_batch(message, outputs, self.permits);
        // The answering thread outlives all replies. If the connection is broken, it drops the answers.
        let _ = match self.writer.try_send(answer) {
            None => Ok(()),
            Some(answer) => self.answers.send(answer),
        };
    }
}

/// Returns the protocol's kind of a failure.
fn failure_kind(error: &ExecutionError) -> FailureKind {
    match error {
        ExecutionError::ModuleThrew(_) => FailureKind::ModuleThrew,
        ExecutionError::WrongOutput(_) => FailureKind::WrongOutput,
        ExecutionError::OutOfMemory(_) => FailureKind::OutOfMemory,
        ExecutionError::TimedOut(_) => FailureKind::TimedOut,
        ExecutionError::NotBegun(_) => FailureKind::NotBegun,
        ExecutionError::DeviceFailed(_) => {
            unreachable!("the pipeline does not answer batches of a failed device")
        }
    }
}

/// The reason why the worker ends a connection.
#[derive(Debug, thiserror::Error)]
enum ConnectionError {
    #[error("the connection broke: {0}")]
    Io(#[from] io::Error),
    #[error("TLS handshake: {0}")]
    Tls(#[source] io::Error),
    #[error(
        "this worker speaks with other machines over TLS only; start the gateway with the --link-tls of the worker's agent"
    )]
    NotTls,
    #[error(transparent)]
    Decode(#[from] DecodeError),
    #[error("handshake: {0}")]
    Handshake(#[from] HandshakeError),
    #[error("the gateway runs as user {0}, not as this worker's")]
    OtherUser(u32),
    #[error(
        "this worker shares memory with a gateway of its host, and this gateway does not, or is of another version"
    )]
    NoSharedMemory,
    #[error("this worker expects a batch, in line or in memory that is shared")]
    NoBatch,
    #[error("batch {0} has inputs outside of the shared memory")]
    OutOfRange(u64),
    #[error("the gateway released batch {0}, whose outputs it does not have")]
    Release(u64),
    #[error("batch {id}: {problem}")]
    Batch { id: u64, problem: String },
    #[error("this worker is draining")]
    Draining,
}

/// Serves one connection from anywhere until it ends.
pub(super) fn serve(stream: TcpStream, link: &Link) {
    serve_begun(begin(stream, link), link);
}

/// Serves one connection of this host until it ends.
pub(super) fn serve_local(stream: UnixStream, link: &Link) {
    serve_begun(begin_local(stream, link.for_group), link);
}

fn serve_begun(begun: Result<LinkStream, ConnectionError>, link: &Link) {
    let stream = match begun {
        Ok(stream) => stream,
        Err(error) => return tracing::warn!(%error, "connection refused"),
    };
    match try_serve(&stream, link) {
        Ok(()) => tracing::debug!("the gateway closed the connection"),
        Err(error) => {
            tracing::warn!(%error, "connection closed");
            linger(&stream);
        }
    }
}

/// Begins a connection: in clear text if the worker has no certificate or the gateway is on this machine and wants none, else within TLS.
fn begin(stream: TcpStream, link: &Link) -> Result<LinkStream, ConnectionError> {
    configure_socket(&stream)?;
    let Some(tls) = &link.proofs.tls else {
        return Ok(LinkStream::Plain(stream));
    };
    let mut first = [0];
    stream.set_read_timeout(Some(HANDSHAKE_LIMIT))?;
    let closed = stream.peek(&mut first)? == 0;
    if !closed && begins_tls(first[0]) {
        if let Refresh::Broken(error) = tls.refresh() {
            tracing::error!(%error, "the certificate cannot be replaced; the former one stays in use");
        }
        let config = Arc::clone(&tls.get().config);
        return match link_stream::shake_hands(&stream, config, now() + HANDSHAKE_LIMIT) {
            Ok(connection) => Ok(LinkStream::tls(stream, connection)),
            Err(error) => {
                linger(&LinkStream::Plain(stream));
                Err(ConnectionError::Tls(error))
            }
        };
    }
    let peer = stream.peer_addr()?.ip().to_canonical();
    let stream = LinkStream::Plain(stream);
    if closed || is_of_this_machine(peer) {
        return Ok(stream);
    }
    let _ = send(
        &stream,
        &ToGateway::Close(ConnectionError::NotTls.to_string()),
        &[],
    );
    linger(&stream);
    Err(ConnectionError::NotTls)
}

/// Begins a connection of this host, with a gateway that runs as the worker's user: any other may not read its requests. Whom a socket for the group
/// lets in the kernel has decided.
fn begin_local(stream: UnixStream, for_group: bool) -> Result<LinkStream, ConnectionError> {
    let peer = peer_uid(stream.as_fd())?;
    if !for_group && peer != nix::unistd::geteuid().as_raw() {
        return Err(ConnectionError::OtherUser(peer));
    }
    stream.set_write_timeout(Some(WRITE_LIMIT))?;
    Ok(LinkStream::Local(stream))
}

fn configure_socket(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    stream.set_write_timeout(Some(WRITE_LIMIT))?;
    SockRef::from(stream).set_tcp_keepalive(&TcpKeepalive::new().with_time(KEEPALIVE))
}

fn try_serve(stream: &LinkStream, link: &Link) -> Result<(), ConnectionError> {
    let mut receiver = Receiver::new(stream);
    let agreement = shake_hands(&mut receiver, stream, link).map_err(|e| close(stream, e))?;
    let LinkStream::Local(socket) = stream else {
        return exchange_batches(receiver, stream, agreement, None, link);
    };
    if !agreement.features.contains(Features::SHARED_MEMORY) {
        return Err(close(stream, ConnectionError::NoSharedMemory));
    }
    let exchanged = SharedMemory::exchange(socket, |memory| link.executor.prepare_memory(memory));
    let (shared, pipes) = exchanged.map_err(|e| close(stream, e.into()))?;
    let pipes = LinkStream::Pipes(pipes);
    let receiver = Receiver::new(&pipes);
    let shared = Arc::new(shared);
    let outcome = exchange_batches(receiver, &pipes, agreement, Some(&shared), link);
    if outcome.is_err() {
        linger(&pipes);
    }
    outcome
}

/// Tells the gateway why the connection ends.
fn close(stream: &LinkStream, error: ConnectionError) -> ConnectionError {
    let _ = send(stream, &ToGateway::Close(error.to_string()), &[]);
    error
}

/// Receives and answers batches until the gateway shuts down its side.
fn exchange_batches(
    mut receiver: Receiver<'_>,
    stream: &LinkStream,
    agreement: Agreement,
    shared: Option<&Arc<SharedMemory>>,
    link: &Link,
) -> Result<(), ConnectionError> {
    let (answers, to_answer) = mpsc::channel();
    let decides = agreement.features.contains(Features::RESIDENCY);
    let key = link.open.add(answers.clone(), decides);
    if let Some(weights) = link.weights.as_ref().filter(|_| decides) {
        // They may have moved since the handshake.
        let report = ToGateway::Weights(weights.report(0));
        let _ = answers.send(Answer::without_batch(report));
    }
    let broken = Arc::new(AtomicBool::new(false));
    let writer = Arc::new(AnswerWriter::new(stream, shared.cloned()));
    let outcome = thread::scope(|scope| {
        scope.spawn(|| writer.send_all(stream, to_answer, &broken));
        let answering = Answering {
            key,
            answers: &answers,
            writer: &writer,
            broken: &broken,
        };
        let outcome = receive_batches(
            &mut receiver,
            link,
            shared.map(|shared| &**shared),
            &answering,
        );
        if matches!(outcome, Err(ConnectionError::Io(_))) {
            broken.store(true, Ordering::Relaxed);
        }
        // The answering thread ends with the last reply.
        link.open.remove(key);
        drop(answers);
        outcome
    });
    // Sent last: the batches before the error are answered.
    outcome.map_err(|e| close(stream, e))
}

/// Receives the messages of a connection.
struct Receiver<'a> {
    reader: BufReader<LinkReader<'a>>,
    decoder: Decoder<ToWorker>,
}

impl<'a> Receiver<'a> {
    fn new(stream: &'a LinkStream) -> Self {
        Self {
            reader: BufReader::with_capacity(READ_BUFFER, LinkReader::new(stream)),
            decoder: Decoder::new(MAX_PAYLOAD),
        }
    }

    /// Returns the next message; `None` at the end of the connection.
    fn next_message(
        &mut self,
        deadline: Option<Instant>,
    ) -> Result<Option<ToWorker>, ConnectionError> {
        loop {
            if let Some(deadline) = deadline {
                let left = deadline.saturating_duration_since(now());
                // Zero is not a valid limit.
                let left = left.max(Duration::from_millis(1));
                self.reader.get_mut().set_limit(Some(left))?;
            }
            let mut bytes = self.reader.fill_buf()?;
            let available = bytes.len();
            if available == 0 {
                return if self.decoder.is_within_message() {
                    Err(io::Error::from(io::ErrorKind::UnexpectedEof).into())
                } else {
                    Ok(None)
                };
            }
            let message = self.decoder.feed(&mut bytes)?;
            let used = available - bytes.len();
            self.reader.consume(used);
            if message.is_some() {
                return Ok(message);
            }
        }
    }
}

fn shake_hands(
    receiver: &mut Receiver<'_>,
    stream: &LinkStream,
    link: &Link,
) -> Result<Agreement, ConnectionError> {
    let mut features = match stream {
        LinkStream::Local(_) => Features::SHARED_MEMORY,
        _ => Features::NONE,
    };
    if link.weights.is_some() {
        features = features.with(Features::RESIDENCY);
    }
    // The thread's generator is cryptographic and seeded by the operating system.
    let hello = Hello::new(features, rand::random());
    let mut handshake = ServerHandshake::new(link.proofs.secret.clone(), hello, link.identity);
    let deadline = now() + HANDSHAKE_LIMIT;
    loop {
        let Some(message) = receiver.next_message(Some(deadline))? else {
            return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
        };
        match handshake.handle(&message)? {
            ServerStep::Send(challenge) => send(stream, &challenge, &[])?,
            ServerStep::Accept(..) if link.open.is_draining() => {
                return Err(ConnectionError::Draining);
            }
            ServerStep::Accept(accept, agreement) => {
                send(stream, &accept, &[])?;
                if let Some(weights) = &link.weights
                    && agreement.features.contains(Features::RESIDENCY)
                {
                    send(stream, &ToGateway::Weights(weights.report(0)), &[])?;
                }
                receiver.reader.get_mut().set_limit(None)?;
                return Ok(agreement);
            }
        }
    }
}

/// The answering half of a connection, of which each reply has a part.
struct Answering<'a> {
    /// The connection's key.
    key: u64,
    answers: &'a mpsc::Sender<Answer>,
    writer: &'a Arc<AnswerWriter>,
    broken: &'a Arc<AtomicBool>,
}

/// The place of a batch's inputs.
enum Payload<'a> {
    /// They follow on the connection.
    InLine,
    /// They are in the gateway's memory.
    Shared(&'a SharedMemory, Vec<ByteRange>),
}

/// Receives batches until the gateway shuts down its side.
fn receive_batches(
    receiver: &mut Receiver<'_>,
    link: &Link,
    shared: Option<&SharedMemory>,
    answering: &Answering<'_>,
) -> Result<(), ConnectionError> {
    let unanswered = Semaphore::new(BATCHES_PER_CONNECTION);
    while let Some(message) = receiver.next_message(None)? {
        let (header, payload) = match (message, shared) {
            (ToWorker::Batch(header), _) => (header, Payload::InLine),
            (ToWorker::SharedBatch(header, ranges), Some(shared)) => {
                (header, Payload::Shared(shared, ranges))
            }
            (ToWorker::Release(batch), Some(shared)) => {
                if shared.release(batch) {
                    continue;
                }
                return Err(ConnectionError::Release(batch.0));
            }
            (order @ (ToWorker::Load | ToWorker::Unload(_)), _) => {
                let weights = link.weights.as_ref();
                let weights = weights.ok_or(ConnectionError::NoBatch)?;
                match order {
                    ToWorker::Unload(wanted) => weights.unload(wanted),
                    _ => {
                        weights.load();
                    }
                }
                link.open.ordered(answering.key);
                continue;
            }
            _ => return Err(ConnectionError::NoBatch),
        };
        let started = now();
        let reply = ConnectionReply {
            batch: header,
            batch_limit: Arc::clone(&link.batch_limit),
            answers: answering.answers.clone(),
            writer: Arc::clone(answering.writer),
            permits: (unanswered.acquire(), link.batches.acquire(), None),
            broken: Arc::clone(answering.broken),
        };
        receive_batch(&mut receiver.reader, link, started, &payload, reply)?;
    }
    Ok(())
}

/// Prepares a batch, for which a program that may leave memory is there until what comes with it is dropped.
fn prepare(
    link: &Link,
    header: &BatchHeader,
) -> Result<(Box<dyn PreparedBatch>, Option<InUse>), ExecutionError> {
    let kept = link.weights.as_ref().map(MemberWeights::keep).transpose();
    let in_use = kept.map_err(|error| ExecutionError::NotBegun(error.reason))?;
    Ok((link.executor.prepare(&header.inputs)?, in_use))
}

fn receive_batch(
    reader: &mut BufReader<LinkReader<'_>>,
    link: &Link,
    started: Instant,
    payload: &Payload<'_>,
    mut reply: ConnectionReply,
) -> Result<(), ConnectionError> {
    let header = &reply.batch;
    check_batch(&link.program, header).map_err(|problem| {
        let id = header.id.0;
        ConnectionError::Batch { id, problem }
    })?;
    let rows = header.rows;
    let exceeded = link.batch_limit.rows().filter(|limit| rows > *limit);
    let prepared = match exceeded {
        Some(limit) => Err(ExecutionError::OutOfMemory(format!(
            "a batch of {rows} rows; the memory suffices for {limit}"
        ))),
        None => prepare(link, header),
    };
    let mut batch = match prepared {
        Ok((batch, in_use)) => {
            reply.permits.2 = in_use;
            batch
        }
        Err(error) => {
            if let Payload::InLine = payload {
                let bytes = ToWorker::Batch(header.clone()).payload_len();
                io::copy(&mut reader.take(bytes), &mut io::sink())?;
            }
            // A device that fails here lacks memory, as a rule; if not, the next batch shows it.
            let kind = match &error {
                ExecutionError::DeviceFailed(_) => FailureKind::OutOfMemory,
                error => failure_kind(error),
            };
            if kind == FailureKind::OutOfMemory && exceeded.is_none() {
                reply.report_shortage();
            }
            reply.send_failure_kind(kind, error.to_string());
            return Ok(());
        }
    };
    match payload {
        Payload::InLine => {
            let bytes: u64 = header.inputs.iter().map(TensorHeader::byte_len).sum();
            let is_there = reader.buffer().len() as u64 >= bytes;
            if !is_there {
                reader.get_mut().set_limit(Some(READ_LIMIT))?;
            }
            for index in 0..header.inputs.len() {
                reader.read_exact(batch.input_mut(index))?;
            }
            if !is_there {
                reader.get_mut().set_limit(None)?;
            }
        }
        Payload::Shared(memory, ranges) => memory
            .load(ranges, &header.inputs, &mut *batch)
            .map_err(|OutOfRange| ConnectionError::OutOfRange(header.id.0))?,
    }
    if link.weights.as_ref().is_some_and(|weights| !weights.load()) {
        let message = "there is no room for the weights of its program".to_owned();
        reply.send_failure_kind(FailureKind::NotBegun, message);
        return Ok(());
    }
    let received_at = now();
    let received = ReceivedBatch {
        batch,
        rows,
        program: Arc::clone(&link.program),
        executor: Arc::clone(&link.executor),
        receive: received_at - started,
        received_at,
        reply: Box::new(reply),
    };
    link.pipeline.push_or_run(received);
    Ok(())
}

/// Reads the rest of a connection for a limited time, so that the gateway receives the reason of its close.
fn linger(stream: &LinkStream) {
    let end = now() + LINGER;
    if let Some(socket) = stream.socket() {
        let _ = socket.shutdown(Shutdown::Write);
    }
    let mut rest = [0; 4096];
    let mut reader = LinkReader::new(stream);
    loop {
        let left = end.saturating_duration_since(now());
        if left.is_zero() || reader.set_limit(Some(left)).is_err() {
            return;
        }
        if !matches!(reader.read(&mut rest), Ok(read) if read > 0) {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gateway_that_shook_hands_as_the_worker_began_to_drain_is_told_so_and_stays() {
        let open = OpenConnections::default();
        let (before, of_before) = mpsc::channel();
        open.add(before, false);
        open.drain();
        let (after, of_after) = mpsc::channel();
        open.add(after, false);
        for answers in [of_before, of_after] {
            let told: Vec<_> = answers.try_iter().map(|answer| answer.message).collect();
            assert_eq!(told, [Some(ToGateway::Draining)]);
        }
    }
}
