//! The sending half of a connection to a worker. A small batch for which the socket or pipe has room is sent by the thread that forms it, because
//! waking another costs more than sending; all others wait for a task of the connection.

use std::{
    collections::BTreeMap,
    io::{self, IoSlice, Write as _},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
};

use bytes::Bytes;
use packhorse_cluster::Program;
use packhorse_wire::{BatchHeader, BatchId, ToWorker};
use tokio::{
    io::{AsyncWrite, AsyncWriteExt as _},
    sync::{Notify, mpsc},
    time::Instant,
};

use super::{connection_error::ConnectionError, directions::WriteEnd, shared_memory::SharedMemory};

/// The most bytes that the forming thread sends: for more, copying them takes as long as waking the task.
const DIRECT_LIMIT: usize = 16 << 10;

/// A batch to be sent.
#[derive(Debug)]
pub(crate) struct OutgoingBatch {
    /// The header of the batch.
    pub(crate) header: BatchHeader,
    /// The bytes of its inputs, in pieces.
    pub(crate) payload: Vec<Bytes>,
}

/// The way of batches to a worker. Dropping it tells the worker that there will be no more.
#[derive(Debug)]
pub(crate) struct BatchSender {
    sending: Arc<Sending>,
    queue: mpsc::UnboundedSender<Outgoing>,
    /// The connection; `None` within TLS, which the task must encrypt.
    to_worker: Option<Arc<WriteEnd>>,
}

/// The receiving end of the batches that are not sent at once.
pub(super) type Queue = mpsc::UnboundedReceiver<Outgoing>;

/// Something for the task to send.
#[derive(Debug)]
pub(super) enum Outgoing {
    Batch(OutgoingBatch),
    /// The rest of a batch that the connection did not take at once.
    Rest(Vec<Bytes>),
}

/// The state that both senders of a connection share with its receiver.
#[derive(Debug)]
pub(super) struct Sending {
    /// The program that the worker runs.
    pub(super) program: Arc<Program>,
    pub(super) outstanding: Outstanding,
    pub(super) shared: Option<SharedMemory>,
    /// The number of batches, and rests of them, that the task has not sent yet.
    queued: AtomicUsize,
}

impl BatchSender {
    /// Creates both ends. The worker takes `in_flight` batches before it has answered one.
    pub(super) fn new(
        program: Arc<Program>,
        in_flight: u32,
        shared: Option<SharedMemory>,
        to_worker: Option<Arc<WriteEnd>>,
    ) -> (Self, Arc<Sending>, Queue) {
        let sending = Arc::new(Sending {
            program,
            outstanding: Outstanding::new(in_flight),
            shared,
            queued: AtomicUsize::new(0),
        });
        let (queue, queued) = mpsc::unbounded_channel();
        let sender = Self {
            sending: Arc::clone(&sending),
            queue,
            to_worker,
        };
        (sender, sending, queued)
    }

    /// Returns true if inputs may lie in memory that is shared with the worker.
    pub(crate) fn shares_memory(&self) -> bool {
        self.sending.shared.is_some()
    }

    /// Sends an order about the program's weights after the batches before it.
    pub(crate) fn order(&mut self, order: &ToWorker) {
        let mut frame = Vec::new();
        order.encode(&mut frame);
        let queued = self.sending.queued.load(Ordering::Acquire) > 0;
        let to_worker = self.to_worker.as_ref().filter(|_| !queued);
        // The connection is full, or broken: the task waits, or ends it.
        let sent = to_worker.map_or(0, |to_worker| (&**to_worker).write(&frame).unwrap_or(0));
        if sent < frame.len() {
            self.queue(Outgoing::Rest(vec![Bytes::from(frame).slice(sent..)]));
        }
    }

    /// Leaves something to the task.
    fn queue(&mut self, outgoing: Outgoing) {
        self.sending.queued.fetch_add(1, Ordering::Relaxed);
        // After the end of the connection nobody receives, and an event tells of the end.
        let _ = self.queue.send(outgoing);
    }

    /// Sends a batch after those before it. The owner limits their number. What happens to it is told as an event of the link.
    pub(crate) fn send(&mut self, batch: OutgoingBatch) {
        // Only this function adds to the queue: where it is empty, the task does not write.
        let rest = if self.sending.queued.load(Ordering::Acquire) == 0 {
            self.send_at_once(batch)
        } else {
            Some(Outgoing::Batch(batch))
        };
        if let Some(rest) = rest {
            self.queue(rest);
        }
    }

    /// Sends a small batch, as far as that needs no waiting. Returns what is left for the task.
    fn send_at_once(&self, batch: OutgoingBatch) -> Option<Outgoing> {
        let outstanding = &self.sending.outstanding;
        let to_worker = self.to_worker.as_ref();
        let Some(to_worker) = to_worker.filter(|_| outstanding.has_room()) else {
            return Some(Outgoing::Batch(batch));
        };
        let shared = self.sending.shared.as_ref();
        let placed = shared.and_then(|memory| memory.find(&batch.payload));
        let length: usize = batch.payload.iter().map(Bytes::len).sum();
        if placed.is_none() && length > DIRECT_LIMIT {
            return Some(Outgoing::Batch(batch));
        }
        let mut frame = Vec::with_capacity(256 + length.min(DIRECT_LIMIT));
        if let Some(memory) = shared {
            memory.encode_releases(&mut frame);
        }
        if let Some(placed) = placed {
            outstanding.insert(&batch.header, placed.kept);
            ToWorker::SharedBatch(batch.header, placed.ranges).encode(&mut frame);
        } else {
            outstanding.insert(&batch.header, Vec::new());
            ToWorker::Batch(batch.header).encode(&mut frame);
            for piece in &batch.payload {
                frame.extend_from_slice(piece);
            }
        }
        // The connection is full, or broken: the task waits, or ends it.
        let sent = (&**to_worker).write(&frame).unwrap_or(0);
        (sent < frame.len()).then(|| Outgoing::Rest(vec![Bytes::from(frame).slice(sent..)]))
    }
}

/// Sends what is queued until the queue ends, and then closes this half of the connection.
pub(super) async fn send_all(
    mut stream: impl AsyncWrite + Unpin,
    mut queue: Queue,
    sending: &Sending,
) -> ConnectionError {
    let (outstanding, shared) = (&sending.outstanding, sending.shared.as_ref());
    let mut head = Vec::new();
    while let Some(outgoing) = queue.recv().await {
        head.clear();
        let payload = match outgoing {
            Outgoing::Rest(rest) => rest,
            Outgoing::Batch(OutgoingBatch {
                header,
                mut payload,
            }) => {
                outstanding.wait_for_room().await;
                if let Some(memory) = shared {
                    memory.encode_releases(&mut head);
                }
                if let Some(placed) = shared.and_then(|memory| memory.place(&payload)) {
                    outstanding.insert(&header, placed.kept);
                    payload.clear();
                    ToWorker::SharedBatch(header, placed.ranges).encode(&mut head);
                } else {
                    outstanding.insert(&header, Vec::new());
                    ToWorker::Batch(header).encode(&mut head);
                }
                payload
            }
        };
        let mut slices = Vec::with_capacity(1 + payload.len());
        slices.push(IoSlice::new(&head));
        slices.extend(payload.iter().map(|piece| IoSlice::new(piece)));
        let sent = async {
            write_all_vectored(&mut stream, &mut slices).await?;
            // TLS holds back what the socket did not take at once.
            stream.flush().await
        };
        if let Err(error) = sent.await {
            return error.into();
        }
        sending.queued.fetch_sub(1, Ordering::Release);
    }
    match stream.shutdown().await {
        // A pipe ends when its last handle is dropped. The receiving half handles what is still to come.
        Ok(()) => {
            drop(stream);
            std::future::pending().await
        }
        Err(error) => error.into(),
    }
}

async fn write_all_vectored(
    stream: &mut (impl AsyncWrite + Unpin),
    mut slices: &mut [IoSlice<'_>],
) -> io::Result<()> {
    // Without this line, leading empty slices would look like a closed connection.
    IoSlice::advance_slices(&mut slices, 0);
    while !slices.is_empty() {
        match stream.write_vectored(slices).await? {
            0 => return Err(io::ErrorKind::WriteZero.into()),
            written => IoSlice::advance_slices(&mut slices, written),
        }
    }
    Ok(())
}

/// A batch that was sent and not answered.
#[derive(Debug)]
struct SentBatch {
    at: Instant,
    rows: u32,
    /// The inputs in shared memory, which the worker may be reading.
    _inputs: Vec<Bytes>,
}

/// The batches that were sent and not answered.
#[derive(Debug)]
pub(super) struct Outstanding {
    /// The most batches that the worker gets without having answered one: those that it may have in flight and one that it
    /// receives. More would wait in the socket, where a worker that does not read looks like one that is gone.
    limit: usize,
    batches: Mutex<BTreeMap<BatchId, SentBatch>>,
    /// The number of batches that were sent so far.
    sent: AtomicU64,
    began: Notify,
    ended: Notify,
}

impl Outstanding {
    fn new(in_flight: u32) -> Self {
        Self {
            limit: in_flight as usize + 1,
            batches: Mutex::default(),
            sent: AtomicU64::new(0),
            began: Notify::new(),
            ended: Notify::new(),
        }
    }

    fn with<T>(&self, f: impl FnOnce(&mut BTreeMap<BatchId, SentBatch>) -> T) -> T {
        f(&mut self.batches.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn has_room(&self) -> bool {
        self.with(|batches| batches.len() < self.limit)
    }

    /// Waits until the worker may get another batch.
    async fn wait_for_room(&self) {
        while !self.has_room() {
            self.ended.notified().await;
        }
    }

    fn insert(&self, batch: &BatchHeader, inputs: Vec<Bytes>) {
        let sent = SentBatch {
            at: Instant::now(),
            rows: batch.rows,
            _inputs: inputs,
        };
        self.with(|batches| batches.insert(batch.id, sent));
        self.sent.fetch_add(1, Ordering::Relaxed);
        self.began.notify_one();
    }

    /// Waits until a batch is not answered, or until one was sent after the `seen` first ones.
    pub(super) async fn wait_for_batch(&self, seen: &mut u64) {
        loop {
            let sent = self.sent.load(Ordering::Relaxed);
            if std::mem::replace(seen, sent) != sent || self.with(|batches| !batches.is_empty()) {
                return;
            }
            self.began.notified().await;
        }
    }

    /// Returns the number of rows of a batch that is to be answered.
    pub(super) fn rows(&self, batch: BatchId) -> Result<u32, ConnectionError> {
        let rows = self.with(|batches| batches.get(&batch).map(|batch| batch.rows));
        rows.ok_or(ConnectionError::UnknownBatch(batch.0))
    }

    /// Removes a batch that was answered.
    pub(super) fn remove(&self, batch: BatchId) -> Result<(), ConnectionError> {
        match self.with(|batches| batches.remove(&batch)) {
            Some(_) => {
                self.ended.notify_one();
                Ok(())
            }
            None => Err(ConnectionError::UnknownBatch(batch.0)),
        }
    }

    pub(super) fn oldest_sent(&self) -> Option<Instant> {
        self.with(|batches| batches.values().map(|batch| batch.at).min())
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use bytes::Buf as _;

    use packhorse_cluster::{Datatype, Shape};
    use packhorse_wire::{Decoder, MAX_PAYLOAD, TensorHeader};
    use tokio::{
        io::{AsyncRead, AsyncReadExt as _},
        net::unix::pipe,
    };

    use super::*;
    use crate::{
        test_programs::program_to,
        workers::directions::{Directions, PatientWriter},
    };

    fn program() -> Arc<Program> {
        Arc::new(program_to(0, &[-1]))
    }

    fn batch(id: u64, bytes: usize) -> OutgoingBatch {
        let shape = Shape::new(&[bytes.try_into().unwrap()]).unwrap();
        OutgoingBatch {
            header: BatchHeader {
                id: BatchId(id),
                rows: 1,
                inputs: vec![TensorHeader::new(Datatype::Uint8, shape).unwrap()],
            },
            payload: vec![Bytes::from(vec![id as u8; bytes])],
        }
    }

    /// Reads batches of one input from a stream until it ends, and returns their numbers.
    async fn ids(mut stream: impl AsyncRead + Unpin) -> Vec<u64> {
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes).await.unwrap();
        let (mut input, mut ids) = (&bytes[..], Vec::new());
        let mut decoder: Decoder<ToWorker> = Decoder::new(MAX_PAYLOAD);
        while let Some(message) = decoder.feed(&mut input).unwrap() {
            let ToWorker::Batch(header) = message else {
                panic!("{message:?}");
            };
            let length = ToWorker::Batch(header.clone()).payload_len() as usize;
            assert!(
                input[..length]
                    .iter()
                    .all(|&byte| byte == header.id.0 as u8)
            );
            input.advance(length);
            ids.push(header.id.0);
        }
        assert!(input.is_empty());
        ids
    }

    /// The worker's end of a connection.
    type Batches = Box<dyn AsyncRead + Unpin>;

    /// Returns a connection of each kind: the gateway's end, and the worker's.
    fn connections() -> [(Arc<WriteEnd>, Batches); 2] {
        let (ours, theirs) = UnixStream::pair().unwrap();
        for stream in [&ours, &theirs] {
            stream.set_nonblocking(true).unwrap();
        }
        let socket = Directions::of_socket(ours.into()).unwrap();
        let theirs = tokio::net::UnixStream::from_std(theirs).unwrap();
        let (batches, to_worker) = io::pipe().unwrap();
        let (from_worker, _answers) = io::pipe().unwrap();
        let pipes = Directions::of_pipes(from_worker, to_worker).unwrap();
        let batches = pipe::Receiver::from_owned_fd(batches.into()).unwrap();
        [
            (socket.to_worker, Box::new(theirs)),
            (pipes.to_worker, Box::new(batches)),
        ]
    }

    /// Runs the task of the connection until all batches have arrived, and returns their numbers.
    async fn send_and_receive(
        to_worker: Arc<WriteEnd>,
        batches: Batches,
        queue: Queue,
        sending: &Sending,
    ) -> Vec<u64> {
        tokio::select! {
            error = send_all(PatientWriter::new(to_worker), queue, sending) => panic!("{error}"),
            received = ids(batches) => received,
        }
    }

    #[tokio::test]
    async fn batches_arrive_whole_and_in_order_whoever_sends_them() {
        for (to_worker, batches) in connections() {
            let (mut sender, sending, queue) =
                BatchSender::new(program(), 1000, None, Some(Arc::clone(&to_worker)));
            sender.send(batch(0, 100));
            assert_eq!(
                sending.queued.load(Ordering::Relaxed),
                0,
                "a small batch is sent at once"
            );
            sender.send(batch(1, DIRECT_LIMIT + 1));
            sender.send(batch(2, 100));
            assert_eq!(
                sending.queued.load(Ordering::Relaxed),
                2,
                "a large one waits for the task, and what follows waits behind it"
            );
            // The connection's buffer fills up in the middle of one.
            for id in 3..200 {
                sender.send(batch(id, DIRECT_LIMIT / 2));
            }
            drop(sender);
            let received = send_and_receive(to_worker, batches, queue, &sending).await;
            assert_eq!(received, (0..200).collect::<Vec<_>>());
            assert_eq!(sending.queued.load(Ordering::Relaxed), 0);
        }
    }

    #[tokio::test]
    async fn the_rest_of_a_batch_is_sent_by_the_task() {
        for (to_worker, batches) in connections() {
            let (mut sender, sending, queue) =
                BatchSender::new(program(), u32::MAX - 1, None, Some(Arc::clone(&to_worker)));
            let mut count = 0;
            while sending.queued.load(Ordering::Relaxed) == 0 {
                sender.send(batch(count, DIRECT_LIMIT));
                count += 1;
                assert!(count < 10_000, "the connection's buffer has no end");
            }
            sender.send(batch(count, 10));
            drop(sender);
            let received = send_and_receive(to_worker, batches, queue, &sending).await;
            assert_eq!(received, (0..=count).collect::<Vec<_>>());
        }
    }

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
