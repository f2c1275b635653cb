//! The writing half of a gateway's connection: a thread that sends answers, and small answers that need not wake it.
//!
//! The pipeline must not wait for a gateway that does not read: other gateways have batches in it, too. Therefore answers are sent by a
//! thread of their connection. An answer of a few hundred bytes costs less to send than to hand over, though, and nearly always fits into
//! the socket or pipe; the thread that has computed it tries to send it without waiting, and hands over what did not fit. Frames
//! stay whole because either thread holds a lock while it writes, under which lies the rest of a frame that has begun. Their order does not
//! matter: an answer names its batch.

use std::{
    io::{self, IoSlice, Write},
    sync::{
        Arc, Mutex, PoisonError, TryLockError,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
};

use packhorse_wire::ToGateway;

use crate::{
    executor::OutputTensor,
    link_stream::{ImmediateWriter, LinkStream},
    residency::InUse,
    semaphore::Permit,
    shared_memory::SharedMemory,
};

/// The largest answer that the computing thread sends, in bytes. It is copied together.
const DIRECT_LIMIT: usize = 4096;

/// A batch's permits of its connection and of the worker, and its use of a program that may leave memory otherwise.
pub(super) type BatchPermits = (Permit, Permit, Option<InUse>);

/// A message to the gateway, with the permits of the batch that it answers. They are released when it is sent.
pub(super) struct Answer {
    /// `None` if only the rest of a frame is to be sent.
    pub(super) message: Option<ToGateway>,
    outputs: Vec<OutputTensor>,
    _permits: Option<BatchPermits>,
}

impl Answer {
    /// Returns the answer to a batch.
    pub(super) fn of_batch(
        message: ToGateway,
        outputs: Vec<OutputTensor>,
        permits: BatchPermits,
    ) -> Self {
        Self {
            message: Some(message),
            outputs,
            _permits: Some(permits),
        }
    }

    /// Returns a message that answers no batch.
    pub(super) fn without_batch(message: ToGateway) -> Self {
        Self {
            message: Some(message),
            outputs: Vec::new(),
            _permits: None,
        }
    }
}

/// The right to write to a connection.
pub(super) struct AnswerWriter {
    /// Without it all answers are handed over.
    immediate: Option<ImmediateWriter>,
    /// The memory for large answers, if the connection shares memory.
    shared: Option<Arc<SharedMemory>>,
    /// The bytes of a frame that are not sent yet. Its lock is held while a frame is written.
    rest: Mutex<Vec<u8>>,
}

impl AnswerWriter {
    /// Returns the writer of a connection.
    pub(super) fn new(stream: &LinkStream, shared: Option<Arc<SharedMemory>>) -> Self {
        Self {
            immediate: stream.immediate_writer(),
            shared,
            rest: Mutex::default(),
        }
    }

    /// Sends a small answer if that needs no waiting. Otherwise returns what is left of it, for [`AnswerWriter::send_all`].
    pub(super) fn try_send(&self, answer: Answer) -> Option<Answer> {
        let (Some(immediate), Some(message)) = (&self.immediate, &answer.message) else {
            return Some(answer);
        };
        let outputs = answer.outputs.iter();
        let payload: u64 = outputs.map(|output| output.header.byte_len()).sum();
        if payload > DIRECT_LIMIT as u64 {
            return Some(answer);
        }
        let mut rest = match self.rest.try_lock() {
            Ok(rest) => rest,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return Some(answer),
        };
        if !rest.is_empty() {
            return Some(answer);
        }
        message.encode(&mut rest);
        for output in &answer.outputs {
            rest.extend_from_slice((*output.bytes).as_ref());
        }
        let sent = if rest.len() <= DIRECT_LIMIT {
            immediate.write(&rest).ok()
        } else {
            None
        };
        // Of a connection that is full or broken the other thread waits for room, or ends it.
        let Some(sent) = sent else {
            rest.clear();
            return Some(answer);
        };
        rest.drain(..sent);
        (!rest.is_empty()).then(|| Answer {
            message: None,
            outputs: Vec::new(),
            ..answer
        })
    }

    /// Sends answers until all of their senders are gone.
    pub(super) fn send_all(
        &self,
        stream: &LinkStream,
        answers: mpsc::Receiver<Answer>,
        broken: &AtomicBool,
    ) {
        for answer in answers {
            if broken.load(Ordering::Relaxed) {
                continue;
            }
            if let Err(error) = self.send(stream, &answer) {
                tracing::warn!(%error, "an answer cannot be sent to the gateway");
                stream.end();
                broken.store(true, Ordering::Relaxed);
            }
        }
    }
}

impl AnswerWriter {
    /// Sends the rest of a frame, and then an answer.
    fn send(&self, mut stream: &LinkStream, answer: &Answer) -> io::Result<()> {
        let mut rest = self.rest.lock().unwrap_or_else(PoisonError::into_inner);
        stream.write_all(&rest)?;
        rest.clear();
        let Some(message) = &answer.message else {
            return Ok(());
        };
        let shared = self.shared.as_ref();
        match shared.and_then(|memory| memory.place(message, &answer.outputs)) {
            Some(placed) => send(stream, &placed, &[]),
            None => send(stream, message, &answer.outputs),
        }
    }
}

/// Sends a message with header, metadata and tensors, in one vectored write if the connection accepts all of it.
pub(super) fn send(
    mut stream: &LinkStream,
    message: &ToGateway,
    outputs: &[OutputTensor],
) -> io::Result<()> {
    let mut head = Vec::new();
    message.encode(&mut head);
    let tensors = outputs.iter().map(|output| (*output.bytes).as_ref());
    let mut slices: Vec<_> = std::iter::once(&head[..])
        .chain(tensors)
        .map(IoSlice::new)
        .collect();
    let mut rest = &mut slices[..];
    // Skips empty tensors at the front, with which a write of 0 bytes would look like a closed socket.
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

#[cfg(test)]
mod tests {
    use std::{
        io::Read,
        net::{TcpListener, TcpStream},
        sync::{Arc, atomic::AtomicBool, mpsc},
        thread,
    };

    use packhorse_cluster::{Datatype, Shape};
    use packhorse_wire::{
        BatchId, Decoder, FailureHeader, FailureKind, MAX_PAYLOAD, ResultHeader, StageDurations,
        TensorHeader,
    };

    use super::*;
    use crate::link_stream::Pipes;

    /// A connection of each kind in clear text: the worker's end and the gateway's.
    fn connections() -> [(LinkStream, Box<dyn Read + Send>); 2] {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let gateway = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (worker, _) = listener.accept().unwrap();
        let (batches, _) = io::pipe().unwrap();
        let (from_worker, answers) = io::pipe().unwrap();
        let pipes = Pipes::new(batches, answers).unwrap();
        [
            (LinkStream::Plain(worker), Box::new(gateway)),
            (LinkStream::Pipes(pipes), Box::new(from_worker)),
        ]
    }

    fn failure(id: u64, text: usize) -> Answer {
        Answer::without_batch(ToGateway::Failure(FailureHeader {
            id: BatchId(id),
            kind: FailureKind::ModuleThrew,
            message: "x".repeat(text),
        }))
    }

    fn result(id: u64, bytes: usize) -> Answer {
        let shape = Shape::new(&[bytes.try_into().unwrap()]).unwrap();
        let header = TensorHeader::new(Datatype::Uint8, shape).unwrap();
        let message = ToGateway::Result(ResultHeader {
            id: BatchId(id),
            outputs: vec![header.clone()],
            stages: StageDurations::default(),
        });
        Answer {
            message: Some(message),
            outputs: vec![OutputTensor {
                header,
                bytes: Box::new(vec![1; bytes]),
            }],
            _permits: None,
        }
    }

    /// Reads messages until the connection ends, and returns the batches that they name.
    fn ids(mut gateway: impl Read) -> Vec<u64> {
        let mut bytes = Vec::new();
        gateway.read_to_end(&mut bytes).unwrap();
        let (mut input, mut ids) = (&bytes[..], Vec::new());
        let mut decoder: Decoder<ToGateway> = Decoder::new(MAX_PAYLOAD);
        while let Some(message) = decoder.feed(&mut input).unwrap() {
            let ToGateway::Failure(failure) = message else {
                panic!("{message:?}");
            };
            ids.push(failure.id.0);
        }
        assert!(input.is_empty());
        ids
    }

    #[test]
    fn small_answers_are_sent_at_once_and_others_are_returned() {
        for (stream, gateway) in connections() {
            let writer = AnswerWriter::new(&stream, None);
            assert!(writer.try_send(failure(7, 10)).is_none());
            assert!(writer.try_send(result(8, DIRECT_LIMIT)).is_some());
            let rest = writer.rest.lock().unwrap();
            assert!(writer.try_send(failure(9, 10)).is_some());
            drop(rest);
            drop((stream, writer));
            assert_eq!(ids(gateway), [7]);
        }
    }

    #[test]
    fn a_gateway_that_does_not_read_gets_no_answer_at_once_and_all_of_them_whole_later() {
        for (stream, gateway) in connections() {
            answer_before_and_while_the_gateway_reads(stream, gateway);
        }
    }

    fn answer_before_and_while_the_gateway_reads(
        stream: LinkStream,
        gateway: Box<dyn Read + Send>,
    ) {
        let writer = Arc::new(AnswerWriter::new(&stream, None));
        let mut sent = 0;
        let handed_over = loop {
            match writer.try_send(failure(sent, 900)) {
                None => sent += 1,
                Some(answer) => break answer,
            }
            assert!(sent < 1_000_000, "the connection's buffer has no end");
        };
        let (answers, to_answer) = mpsc::channel();
        answers.send(handed_over).unwrap();
        let sending = thread::spawn({
            let writer = Arc::clone(&writer);
            move || writer.send_all(&stream, to_answer, &AtomicBool::new(false))
        });
        let computing = thread::spawn(move || {
            // While the other thread waits for the gateway, and after it.
            for id in sent + 1..sent + 2000 {
                if let Some(answer) = writer.try_send(failure(id, 900)) {
                    answers.send(answer).unwrap();
                }
            }
        });
        let reading = thread::spawn(move || ids(gateway));
        computing.join().unwrap();
        sending.join().unwrap();
        let mut ids = reading.join().unwrap();
        ids.sort_unstable();
        assert_eq!(ids, (0..sent + 2000).collect::<Vec<_>>());
    }
}
