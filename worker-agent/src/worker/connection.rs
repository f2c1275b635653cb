//! One connection of a gateway: a thread that receives, and one that answers.

use std::{
    collections::BTreeMap,
    io::{self, BufRead, BufReader, IoSlice, Read, Write},
    net::{Shutdown, TcpStream},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};

use packhorse_cluster::Program;
use packhorse_wire::{
    BatchHeader, DecodeError, Decoder, FailureHeader, FailureKind, HandshakeError, LinkSecret,
    MAX_PAYLOAD, ResultHeader, ServerHandshake, ServerStep, StageDurations, ToGateway, ToWorker,
    WorkerIdentity,
};
use packhorse_worker_agent::handoff;
use socket2::{SockRef, TcpKeepalive};

use super::{
    fitting::Fitting,
    gate::{Gate, Pass},
    now,
    pipeline::{Job, Pipeline, Sender},
};
use crate::executor::{ExecutionError, Executor, OutputTensor, check_batch};

/// A gateway that has not proved itself after this long is sent away.
const HANDSHAKE_LIMIT: Duration = Duration::from_secs(5);
/// A gateway that takes nothing for this long is given up.
const WRITE_LIMIT: Duration = Duration::from_secs(30);
/// A gateway that stops in the middle of a batch for this long is given up: its batch has memory that others wait for.
const READ_LIMIT: Duration = Duration::from_secs(30);
/// A silent connection is probed after this long, to notice a gateway's machine that is gone.
const KEEPALIVE: Duration = Duration::from_secs(10);
/// After saying why a connection is closed, its rest is read for so long: closing it with bytes unread would discard the
/// reason on its way.
const LINGER: Duration = Duration::from_secs(1);
/// Batches of one connection that are not answered yet, in whatever stage. Memory sets a lower limit for those of all connections.
const BATCHES_PER_CONNECTION: usize = handoff::PipelineSettings::MAX_IN_FLIGHT as usize + 1;
/// What is read at once where it is not known how much will come; larger inputs are read past it.
const READ_BUFFER: usize = 16 << 10;

/// What all connections of a worker share.
pub(super) struct Link {
    pub(super) identity: WorkerIdentity,
    pub(super) secret: LinkSecret,
    pub(super) program: Program,
    pub(super) fitting: Arc<Fitting>,
    pub(super) executor: Arc<dyn Executor>,
    pub(super) pipeline: Arc<Pipeline>,
    /// Batches of all connections, from the header to the answer.
    pub(super) batches: Arc<Gate>,
    pub(super) open: OpenConnections,
}

/// The connections that are past their handshake.
#[derive(Default)]
pub(super) struct OpenConnections(Mutex<Open>);

#[derive(Default)]
struct Open {
    draining: bool,
    next: u64,
    answers: BTreeMap<u64, mpsc::Sender<Answer>>,
}

impl OpenConnections {
    /// Asks all gateways to send no more; later ones are refused.
    pub(super) fn drain(&self) {
        let mut open = self.0.lock().expect("no holder panics");
        open.draining = true;
        for answers in open.answers.values() {
            let _ = answers.send(Answer::of(ToGateway::Draining));
        }
    }

    /// `None` if the worker takes no more connections.
    fn add(&self, answers: mpsc::Sender<Answer>) -> Option<u64> {
        let mut open = self.0.lock().expect("no holder panics");
        if open.draining {
            return None;
        }
        let key = open.next;
        open.next += 1;
        open.answers.insert(key, answers);
        Some(key)
    }

    fn remove(&self, key: u64) {
        self.0
            .lock()
            .expect("no holder panics")
            .answers
            .remove(&key);
    }
}

/// Something to send; the batch it answers is over once it is sent.
struct Answer {
    message: ToGateway,
    outputs: Vec<OutputTensor>,
    _passes: Option<Passes>,
}

type Passes = (Pass, Pass);

impl Answer {
    fn of(message: ToGateway) -> Self {
        Self {
            message,
            outputs: Vec::new(),
            _passes: None,
        }
    }
}

/// Where the answer to one batch goes.
struct Reply {
    batch: BatchHeader,
    fitting: Arc<Fitting>,
    answers: mpsc::Sender<Answer>,
    passes: Passes,
    /// The connection is broken: nobody waits for the answer any more.
    broken: Arc<AtomicBool>,
}

impl Sender for Reply {
    fn is_there(&self) -> bool {
        !self.broken.load(Ordering::Relaxed)
    }

    fn result(self: Box<Self>, outputs: Vec<OutputTensor>, stages: StageDurations) {
        let headers = outputs.iter().map(|output| output.header.clone()).collect();
        let message = ToGateway::Result(ResultHeader {
            id: self.batch.id,
            outputs: headers,
            stages,
        });
        self.send(message, outputs);
    }

    fn failure(self: Box<Self>, kind: FailureKind, message: &str) {
        if kind == FailureKind::OutOfMemory {
            self.fitting.lacked(self.batch.rows, &self.batch.inputs);
        }
        self.fail(kind, message);
    }
}

impl Reply {
    fn fail(self, kind: FailureKind, message: &str) {
        let message = ToGateway::Failure(FailureHeader {
            id: self.batch.id,
            kind,
            message: message.to_owned(),
        });
        self.send(message, Vec::new());
    }

    fn send(self, message: ToGateway, outputs: Vec<OutputTensor>) {
        // The answering thread outlives all replies; if its gateway is gone, it drops what it gets.
        let _ = self.answers.send(Answer {
            message,
            outputs,
            _passes: Some(self.passes),
        });
    }
}

/// Why a connection ends before its gateway ends it.
#[derive(Debug, thiserror::Error)]
enum ConnectionError {
    #[error("the connection broke: {0}")]
    Io(#[from] io::Error),
    #[error(transparent)]
    Decode(#[from] DecodeError),
    #[error("handshake: {0}")]
    Handshake(#[from] HandshakeError),
    #[error("this worker expects a batch, not a handshake")]
    NoBatch,
    #[error("batch {id}: {problem}")]
    Batch { id: u64, problem: String },
    #[error("this worker is draining")]
    Draining,
}

/// Serves one connection until it ends.
pub(super) fn serve(stream: &TcpStream, link: &Link) {
    let outcome = prepare_socket(stream)
        .map_err(ConnectionError::Io)
        .and_then(|()| talk(stream, link));
    match outcome {
        Ok(()) => tracing::debug!("the gateway closed the connection"),
        Err(error) => {
            tracing::warn!(%error, "connection closed");
            linger(stream);
        }
    }
}

fn prepare_socket(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    stream.set_write_timeout(Some(WRITE_LIMIT))?;
    SockRef::from(stream).set_tcp_keepalive(&TcpKeepalive::new().with_time(KEEPALIVE))
}

fn talk(stream: &TcpStream, link: &Link) -> Result<(), ConnectionError> {
    let mut receiver = Receiver::new(stream);
    // Said last: what came before the error is answered.
    let close = |error: ConnectionError| {
        let _ = send(stream, &ToGateway::Close(error.to_string()), &[]);
        error
    };
    handshake(&mut receiver, stream, link).map_err(close)?;
    let (answers, to_answer) = mpsc::channel();
    let Some(key) = link.open.add(answers.clone()) else {
        return Err(close(ConnectionError::Draining));
    };
    let broken = Arc::new(AtomicBool::new(false));
    let outcome = thread::scope(|scope| {
        scope.spawn(|| answer(stream, to_answer, &broken));
        let outcome = receive(&mut receiver, link, &answers, &broken);
        if matches!(outcome, Err(ConnectionError::Io(_))) {
            broken.store(true, Ordering::Relaxed);
        }
        // The answering thread ends with the last reply.
        link.open.remove(key);
        drop(answers);
        outcome
    });
    outcome.map_err(close)
}

/// Takes messages off a connection.
struct Receiver<'a> {
    reader: BufReader<&'a TcpStream>,
    decoder: Decoder<ToWorker>,
}

impl<'a> Receiver<'a> {
    fn new(stream: &'a TcpStream) -> Self {
        Self {
            reader: BufReader::with_capacity(READ_BUFFER, stream),
            decoder: Decoder::new(MAX_PAYLOAD),
        }
    }

    /// `None` at the connection's end.
    fn message(&mut self, deadline: Option<Instant>) -> Result<Option<ToWorker>, ConnectionError> {
        loop {
            if let Some(deadline) = deadline {
                let left = deadline.saturating_duration_since(now());
                // Zero would mean no limit.
                let left = left.max(Duration::from_millis(1));
                self.reader.get_ref().set_read_timeout(Some(left))?;
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

fn handshake(
    receiver: &mut Receiver<'_>,
    stream: &TcpStream,
    link: &Link,
) -> Result<(), ConnectionError> {
    // From the thread's cryptographic generator, which the system seeds.
    let nonce = rand::random();
    let mut handshake = ServerHandshake::new(link.secret.clone(), nonce, link.identity);
    let deadline = now() + HANDSHAKE_LIMIT;
    loop {
        let Some(message) = receiver.message(Some(deadline))? else {
            return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
        };
        match handshake.handle(&message)? {
            ServerStep::Send(challenge) => send(stream, &challenge, &[])?,
            ServerStep::Accept(accept) => {
                stream.set_read_timeout(None)?;
                return Ok(send(stream, &accept, &[])?);
            }
        }
    }
}

/// Receives batches until the gateway shuts down its side.
fn receive(
    receiver: &mut Receiver<'_>,
    link: &Link,
    answers: &mpsc::Sender<Answer>,
    broken: &Arc<AtomicBool>,
) -> Result<(), ConnectionError> {
    let unanswered = Gate::new(BATCHES_PER_CONNECTION);
    while let Some(message) = receiver.message(None)? {
        let ToWorker::Batch(header) = message else {
            return Err(ConnectionError::NoBatch);
        };
        let started = now();
        let reply = Reply {
            batch: header,
            fitting: Arc::clone(&link.fitting),
            answers: answers.clone(),
            passes: (unanswered.enter(), link.batches.enter()),
            broken: Arc::clone(broken),
        };
        receive_batch(&mut receiver.reader, link, started, reply)?;
    }
    Ok(())
}

fn receive_batch(
    reader: &mut BufReader<&TcpStream>,
    link: &Link,
    started: Instant,
    reply: Reply,
) -> Result<(), ConnectionError> {
    let header = &reply.batch;
    check_batch(&link.program, header).map_err(|problem| {
        let id = header.id.0;
        ConnectionError::Batch { id, problem }
    })?;
    let rows = header.rows;
    let too_many = link.fitting.limit().filter(|limit| rows > *limit);
    let prepared = match too_many {
        Some(limit) => Err(ExecutionError::OutOfMemory(format!(
            "a batch of {rows}; there is memory for {limit}"
        ))),
        None => link.executor.prepare(&header.inputs),
    };
    let mut batch = match prepared {
        Ok(batch) => batch,
        Err(error) => {
            let payload = ToWorker::Batch(header.clone()).payload_len();
            io::copy(&mut reader.take(payload), &mut io::sink())?;
            let reason = error.to_string();
            match too_many {
                // Known already.
                Some(_) => reply.fail(FailureKind::OutOfMemory, &reason),
                None => Box::new(reply).failure(FailureKind::OutOfMemory, &reason),
            }
            return Ok(());
        }
    };
    reader.get_ref().set_read_timeout(Some(READ_LIMIT))?;
    for index in 0..header.inputs.len() {
        reader.read_exact(batch.input_mut(index))?;
    }
    reader.get_ref().set_read_timeout(None)?;
    let received_at = now();
    link.pipeline.push(Job {
        batch,
        rows,
        receive: received_at - started,
        received_at,
        sender: Box::new(reply),
    });
    Ok(())
}

/// Sends answers until nobody can send any more.
fn answer(stream: &TcpStream, answers: mpsc::Receiver<Answer>, broken: &AtomicBool) {
    for answer in answers {
        if broken.load(Ordering::Relaxed) {
            continue;
        }
        if let Err(error) = send(stream, &answer.message, &answer.outputs) {
            tracing::warn!(%error, "the gateway takes no answers");
            // The receiving thread notices, and ends.
            let _ = stream.shutdown(Shutdown::Both);
            broken.store(true, Ordering::Relaxed);
        }
    }
}

/// One vectored write of header, metadata and tensors, if the socket takes it all at once.
fn send(mut stream: &TcpStream, message: &ToGateway, outputs: &[OutputTensor]) -> io::Result<()> {
    let mut head = Vec::new();
    message.encode(&mut head);
    let tensors = outputs.iter().map(|output| (*output.bytes).as_ref());
    let mut slices: Vec<_> = std::iter::once(&head[..])
        .chain(tensors)
        .map(IoSlice::new)
        .collect();
    let mut rest = &mut slices[..];
    // Leaves out empty tensors at the front, which would look like a socket that takes nothing.
    IoSlice::advance_slices(&mut rest, 0);
    while !rest.is_empty() {
        match stream.write_vectored(rest) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => IoSlice::advance_slices(&mut rest, written),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

fn linger(stream: &TcpStream) {
    let end = now() + LINGER;
    let _ = stream.shutdown(Shutdown::Write);
    let mut rest = [0; 4096];
    let mut reader = stream;
    loop {
        let left = end.saturating_duration_since(now());
        if left.is_zero() || stream.set_read_timeout(Some(left)).is_err() {
            return;
        }
        if !matches!(reader.read(&mut rest), Ok(read) if read > 0) {
            return;
        }
    }
}
