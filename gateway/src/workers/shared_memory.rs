//! The memory that a link and a worker of this host share: inputs are in the gateway's, outputs in the worker's.

use std::{
    io,
    os::fd::{AsFd as _, OwnedFd},
    sync::{Mutex, MutexGuard, PoisonError},
};

use bytes::{Bytes, BytesMut};
use packhorse_mapped::{OutOfRange, View, receive_with_descriptors, send_with_descriptors};
use packhorse_wire::{BatchId, ByteRange, Decoder, MAX_PAYLOAD, MAX_RANGES, ToGateway, ToWorker};
use tokio::{
    io::{AsyncWriteExt as _, Interest},
    net::UnixStream,
};

use super::directions::Directions;
use crate::input_memory::LinkedInputs;

/// The size of a batch in bytes from which on it is shared. A smaller one costs less to send than to place.
pub(super) const SHARED_FROM: usize = 16 << 10;

/// The memory of both sides of a connection.
#[derive(Debug)]
pub(super) struct SharedMemory {
    inputs: LinkedInputs,
    outputs: View,
    /// The results that were copied, of which the worker will be told with the next batch.
    copied: Mutex<Vec<BatchId>>,
}

/// A batch's inputs in shared memory.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct SharedInputs {
    /// Their places, one after the other.
    pub(super) ranges: Vec<ByteRange>,
    /// Their bytes, which must be kept until the batch is answered.
    pub(super) kept: Vec<Bytes>,
}

impl SharedMemory {
    /// Names the gateway's memory after the handshake, and receives the worker's. Messages go through two pipes from then on, of which the worker
    /// gets its ends.
    ///
    /// # Errors
    /// The worker does something else, or its memory is unusable.
    pub(super) async fn exchange(
        socket: &mut UnixStream,
        inputs: LinkedInputs,
    ) -> io::Result<(Self, Directions)> {
        let (batches, to_worker) = io::pipe()?;
        let (from_worker, answers) = io::pipe()?;
        let arena = inputs.arena();
        let mut message = Vec::new();
        ToWorker::Memory(arena.size() as u64).encode(&mut message);
        let descriptors = [arena.as_fd(), batches.as_fd(), answers.as_fd()];
        let pass = || send_with_descriptors(socket.as_fd(), &message, descriptors);
        let sent = socket.async_io(Interest::WRITABLE, pass).await?;
        socket.write_all(&message[sent..]).await?;
        let (size, file) = receive_memory(socket).await?;
        let shared = Self {
            inputs,
            outputs: View::open(file, size, MAX_PAYLOAD)?,
            copied: Mutex::default(),
        };
        let directions = Directions::of_pipes(from_worker, to_worker)?;
        Ok((shared, directions))
    }

    /// Returns the inputs as ranges of the shared memory; those that are elsewhere are copied to it. `None` if they are better sent in line:
    /// they are few, in too many pieces, or there is no room.
    pub(super) fn place(&self, pieces: &[Bytes]) -> Option<SharedInputs> {
        self.ranges(pieces, |piece| {
            let mut copy = self.inputs.take(piece.len())?;
            copy.push(piece);
            Some(Bytes::from_owner(copy))
        })
    }

    /// Returns the inputs as ranges of the shared memory if they are all there, and are better not sent in line.
    pub(super) fn find(&self, pieces: &[Bytes]) -> Option<SharedInputs> {
        self.ranges(pieces, |_| None)
    }

    fn ranges(
        &self,
        pieces: &[Bytes],
        copy: impl Fn(&Bytes) -> Option<Bytes>,
    ) -> Option<SharedInputs> {
        if pieces.iter().map(Bytes::len).sum::<usize>() < SHARED_FROM {
            return None;
        }
        let mut ranges: Vec<ByteRange> = Vec::with_capacity(pieces.len().min(MAX_RANGES));
        let mut kept = Vec::with_capacity(pieces.len());
        for piece in pieces.iter().filter(|piece| !piece.is_empty()) {
            let (offset, piece) = if let Some(offset) = self.inputs.arena().offset_of(piece) {
                (offset, piece.clone())
            } else {
                let copy = copy(piece)?;
                (self.inputs.arena().offset_of(&copy)?, copy)
            };
            let length = piece.len() as u64;
            kept.push(piece);
            match ranges.last_mut() {
                Some(last) if last.offset + last.length == offset => last.length += length,
                _ => ranges.push(ByteRange { offset, length }),
            }
            if ranges.len() > MAX_RANGES {
                return None;
            }
        }
        Some(SharedInputs { ranges, kept })
    }

    /// Appends a result that lies in these ranges. The worker may use them again.
    ///
    /// # Errors
    /// They are not within the worker's memory.
    pub(super) fn copy_result(
        &self,
        batch: BatchId,
        ranges: &[ByteRange],
        to: &mut BytesMut,
    ) -> Result<(), OutOfRange> {
        for range in ranges {
            self.outputs.append_to(range.offset, range.length, to)?;
        }
        self.copied().push(batch);
        Ok(())
    }

    /// Gives a result back that is not copied.
    pub(super) fn give_back(&self, batch: BatchId) {
        self.copied().push(batch);
    }

    /// Appends the messages that give the worker its copied results back.
    pub(super) fn encode_releases(&self, out: &mut Vec<u8>) {
        for batch in self.copied().drain(..) {
            ToWorker::Release(batch).encode(out);
        }
    }

    fn copied(&self) -> MutexGuard<'_, Vec<BatchId>> {
        self.copied.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Receives the message that names the worker's memory, and nothing after it: its length is known.
async fn receive_memory(socket: &UnixStream) -> io::Result<(u64, OwnedFd)> {
    let invalid = |problem| io::Error::new(io::ErrorKind::InvalidData, problem);
    let mut expected = Vec::new();
    ToGateway::Memory(0).encode(&mut expected);
    let (mut buffer, mut filled) = (expected, 0);
    let mut file = None;
    while filled < buffer.len() {
        let rest = &mut buffer[filled..];
        let receive = || receive_with_descriptors(socket.as_fd(), rest);
        let (length, received) = socket.async_io(Interest::READABLE, receive).await?;
        if length == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        filled += length;
        file = received.or(file);
    }
    match (Decoder::new(0).feed(&mut &buffer[..]), file) {
        (Ok(Some(ToGateway::Memory(size))), Some([file])) => Ok((size, file)),
        _ => Err(invalid("expected the worker's memory")),
    }
}

#[cfg(test)]
mod tests {
    use packhorse_mapped::Arena;

    use super::*;
    use crate::{input_memory::InputMemories, memory::MemoryBudget};

    const SIZE: usize = 1 << 20;

    /// A link's memory, that of its model, the worker's view and the worker's arena.
    async fn connected() -> (SharedMemory, InputMemories, View, Arena) {
        let (mut gateway, worker) = UnixStream::pair().unwrap();
        let memories = InputMemories::new(MemoryBudget::new(4 * SIZE as u64));
        let inputs = memories.of(&"m:1".parse().unwrap()).link().unwrap();
        let outputs = Arena::new(SIZE).unwrap();
        let answering = async {
            let mut buffer = [0; 256];
            let receive = || receive_with_descriptors(worker.as_fd(), &mut buffer);
            let (length, descriptors) = worker.async_io(Interest::READABLE, receive).await.unwrap();
            let message = Decoder::new(0).feed(&mut &buffer[..length]).unwrap();
            assert_eq!(message, Some(ToWorker::Memory(SIZE as u64)));
            let mut message = Vec::new();
            ToGateway::Memory(SIZE as u64).encode(&mut message);
            send_with_descriptors(worker.as_fd(), &message, [outputs.as_fd()]).unwrap();
            let [file, _batches, _answers] = descriptors.unwrap();
            View::open(file, SIZE as u64, SIZE as u64).unwrap()
        };
        let (memory, view) = tokio::join!(SharedMemory::exchange(&mut gateway, inputs), answering);
        (memory.unwrap().0, memories, view, outputs)
    }

    #[tokio::test]
    async fn a_body_in_shared_memory_is_sent_as_it_is_and_another_is_copied_to_it() {
        let (memory, memories, view, _outputs) = connected().await;
        let mut body = memories.of(&"m:1".parse().unwrap()).take(40_000).unwrap();
        body.push(&vec![7; body.as_ref().len()]);
        let body = Bytes::from_owner(body);
        let elsewhere = Bytes::from(vec![9; 20_000]);
        let pieces = [
            body.slice(8..16_008),
            body.slice(16_008..30_000),
            Bytes::new(),
            elsewhere,
        ];
        let placed = memory.place(&pieces).unwrap();
        let [first, second] = placed.ranges[..] else {
            panic!("{:?}", placed.ranges);
        };
        assert_eq!(
            (first.offset, first.length),
            (8, 29_992),
            "pieces are joined"
        );
        let mut copy = vec![0; 20_000];
        view.copy_to(second.offset, &mut copy).unwrap();
        assert!(copy.iter().all(|&byte| byte == 9));
        let next = memory.place(&[Bytes::from(vec![1; 20_000])]).unwrap();
        assert_ne!(
            next.ranges[0].offset, second.offset,
            "the batch is not answered"
        );
        drop(placed);
        let next = memory.place(&[Bytes::from(vec![1; 20_000])]).unwrap();
        assert_eq!(next.ranges[0].offset, second.offset);
    }

    #[tokio::test]
    async fn what_does_not_fit_is_sent_in_line() {
        let (memory, ..) = connected().await;
        assert_eq!(memory.place(&[Bytes::from(vec![1; SHARED_FROM - 1])]), None);
        assert_eq!(memory.place(&[Bytes::from(vec![1; SIZE + 1])]), None);
        let held: Vec<_> = (0..2 * MAX_RANGES)
            .map(|_| {
                let mut bytes = memory.inputs.take(64).unwrap();
                bytes.push(&[1; 64]);
                Bytes::from_owner(bytes)
            })
            .collect();
        let scattered: Vec<Bytes> = held.iter().step_by(2).cloned().collect();
        assert_eq!(memory.place(&scattered).unwrap().ranges.len(), MAX_RANGES);
        let one_more: Vec<Bytes> = scattered.iter().chain(&held[1..2]).cloned().collect();
        assert_eq!(memory.place(&one_more), None, "too many ranges");
    }

    #[tokio::test]
    async fn a_copied_result_is_released_and_one_outside_is_an_error() {
        let (memory, _, _, outputs) = connected().await;
        let mut output = outputs.take(5).unwrap();
        output.copy_from_slice(b"hello");
        let range = |length| ByteRange {
            offset: output.offset(),
            length,
        };
        let mut to = BytesMut::new();
        memory
            .copy_result(BatchId(3), &[range(5)], &mut to)
            .unwrap();
        assert_eq!(to, "hello");
        let outside = memory.copy_result(BatchId(4), &[range(SIZE as u64 + 1)], &mut to);
        assert_eq!(outside, Err(OutOfRange));
        let mut releases = Vec::new();
        memory.encode_releases(&mut releases);
        let message = Decoder::new(0).feed(&mut &releases[..]);
        assert_eq!(message, Ok(Some(ToWorker::Release(BatchId(3)))));
        releases.clear();
        memory.encode_releases(&mut releases);
        assert!(releases.is_empty(), "once");
    }

    #[tokio::test]
    async fn a_worker_that_names_no_memory_is_left() {
        let (mut gateway, mut worker) = UnixStream::pair().unwrap();
        let memories = InputMemories::new(MemoryBudget::new(4 * SIZE as u64));
        let mut message = Vec::new();
        ToGateway::Memory(SIZE as u64).encode(&mut message);
        worker.write_all(&message).await.unwrap();
        let inputs = memories.of(&"m:1".parse().unwrap()).link().unwrap();
        assert!(SharedMemory::exchange(&mut gateway, inputs).await.is_err());
    }
}
