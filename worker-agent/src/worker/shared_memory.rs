//! The memory that a gateway of this host and the worker share on one connection: the inputs are in the gateway's, the outputs in the worker's.
//!
//! The gateway's memory is mapped for reading. The executor takes a batch from there where it can: a CPU computes from the memory itself if the
//! batch lies there in one piece, and a GPU copies large pieces straight from it. Otherwise the batch is gathered into the executor's own buffer,
//! which is pinned for a GPU and may be written by the program. Outputs are copied to the arena, where they stay until the gateway releases them.

use std::{
    collections::BTreeMap,
    io::{self, Write as _},
    os::{
        fd::{AsFd as _, OwnedFd},
        unix::net::UnixStream,
    },
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use packhorse_mapped::{
    Arena, ArenaBytes, OutOfRange, View, receive_with_descriptors, send_with_descriptors,
};
use packhorse_wire::{
    BatchId, ByteRange, Decoder, MAX_PAYLOAD, MAX_RANGES, TensorHeader, ToGateway, ToWorker,
};

use crate::{
    executor::{InputMemory, OutputTensor, PreparedBatch, pieces},
    link_stream::Pipes,
};

/// The size of the memory for outputs of one connection, in bytes. Pages that no output has ever used take no memory.
const OUTPUT_MEMORY: usize = 64 << 20;
/// The size of a result in bytes from which on it is shared. A smaller one costs less to send than to place, and to release.
const SHARED_FROM: u64 = 16 << 10;

/// The memory of both sides.
pub(super) struct SharedMemory {
    inputs: Arc<dyn InputMemory>,
    outputs: Arena,
    /// The outputs that the gateway has not released.
    unreleased: Mutex<BTreeMap<BatchId, Vec<ArenaBytes>>>,
}

impl SharedMemory {
    /// Receives the gateway's memory, which it names right after the handshake, and names the worker's. Messages go from then on
    /// through the two pipes of which the gateway passes an end each. `prepare` is the executor's
    /// [`prepare_memory`](crate::executor::Executor::prepare_memory).
    ///
    /// # Errors
    /// The gateway does something else, or there is no memory.
    pub(super) fn exchange(
        socket: &UnixStream,
        prepare: impl FnOnce(View) -> Arc<dyn InputMemory>,
    ) -> io::Result<(Self, Pipes)> {
        let (size, [file, batches, answers]) = receive_memory(socket)?;
        let inputs = View::open(file, size, MAX_PAYLOAD)?;
        let outputs = Arena::new(OUTPUT_MEMORY)?;
        let mut message = Vec::new();
        ToGateway::Memory(outputs.size() as u64).encode(&mut message);
        let sent = send_with_descriptors(socket.as_fd(), &message, [outputs.as_fd()])?;
        (&mut &*socket).write_all(&message[sent..])?;
        let shared = Self {
            inputs: prepare(inputs),
            outputs,
            unreleased: Mutex::default(),
        };
        Ok((shared, Pipes::new(batches.into(), answers.into())?))
    }

    /// Gives a batch its inputs, which lie in these ranges one after the other.
    pub(super) fn load(
        &self,
        ranges: &[ByteRange],
        headers: &[TensorHeader],
        batch: &mut dyn PreparedBatch,
    ) -> Result<(), OutOfRange> {
        for range in ranges.iter().filter(|range| range.length > 0) {
            let length = usize::try_from(range.length).map_err(|_| OutOfRange)?;
            self.inputs.view().address(range.offset, length)?;
        }
        if !batch.map_inputs(&self.inputs, ranges) {
            self.gather(ranges, headers, batch);
        }
        Ok(())
    }

    /// Copies a payload that lies in these ranges of the memory to the inputs of a batch, one after the other.
    fn gather(
        &self,
        ranges: &[ByteRange],
        headers: &[TensorHeader],
        batch: &mut dyn PreparedBatch,
    ) {
        let lengths = headers.iter().map(TensorHeader::byte_len);
        for (index, pieces) in pieces(ranges, lengths, u64::MAX).into_iter().enumerate() {
            let mut input = batch.input_mut(index);
            for ByteRange { offset, length } in pieces {
                let (piece, rest) = input.split_at_mut(length as usize);
                let copied = self.inputs.view().copy_to(offset, piece);
                copied.expect("the ranges are within the memory");
                input = rest;
            }
        }
    }

    /// Places the outputs of a large result in the worker's memory, and returns the message that says where they are. `None` if they are
    /// better sent in line, or the memory is full of results that were not released.
    pub(super) fn place(&self, message: &ToGateway, outputs: &[OutputTensor]) -> Option<ToGateway> {
        let ToGateway::Result(result) = message else {
            return None;
        };
        if message.payload_len() < SHARED_FROM || outputs.len() > MAX_RANGES {
            return None;
        }
        let mut placed = Vec::with_capacity(outputs.len());
        for output in outputs {
            let bytes = (*output.bytes).as_ref();
            let mut place = self.outputs.take(bytes.len())?;
            place.copy_from_slice(bytes);
            placed.push(place);
        }
        let range = |place: &ArenaBytes| ByteRange {
            offset: place.offset(),
            length: place.len() as u64,
        };
        let ranges = placed.iter().map(range).collect();
        self.unreleased().insert(result.id, placed);
        Some(ToGateway::SharedResult(result.clone(), ranges))
    }

    /// Takes the outputs of a batch back. Returns false if the gateway does not have them.
    pub(super) fn release(&self, batch: BatchId) -> bool {
        self.unreleased().remove(&batch).is_some()
    }

    fn unreleased(&self) -> MutexGuard<'_, BTreeMap<BatchId, Vec<ArenaBytes>>> {
        self.unreleased
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

/// Receives a message that names the gateway's memory with its descriptors, and nothing after it.
fn receive_memory(socket: &UnixStream) -> io::Result<(u64, [OwnedFd; 3])> {
    let invalid = |problem| io::Error::new(io::ErrorKind::InvalidData, problem);
    let mut decoder = Decoder::<ToWorker>::new(0);
    let mut descriptors = None;
    let mut buffer = [0; 256];
    loop {
        let (length, received) = receive_with_descriptors(socket.as_fd(), &mut buffer)?;
        if length == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        descriptors = received.or(descriptors);
        let mut bytes = &buffer[..length];
        let message = decoder.feed(&mut bytes);
        match (message.map_err(io::Error::other)?, descriptors.take()) {
            (None, received) => descriptors = received,
            (Some(ToWorker::Memory(size)), Some(descriptors)) if bytes.is_empty() => {
                return Ok((size, descriptors));
            }
            _ => return Err(invalid("expected the gateway's memory")),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{os::fd::AsFd as _, thread};

    use packhorse_cluster::{Datatype, Shape};
    use packhorse_wire::{ResultHeader, StageDurations};

    use super::*;

    const SIZE: usize = 1 << 20;

    fn exchange(worker: &UnixStream) -> io::Result<SharedMemory> {
        let (memory, _) = SharedMemory::exchange(worker, |view| Arc::new(view))?;
        Ok(memory)
    }

    /// Both sides of a connection: the worker's memory, and the gateway's arena and view.
    fn connected() -> (SharedMemory, Arena, View) {
        let (worker, gateway) = UnixStream::pair().unwrap();
        let exchanging = thread::spawn(move || exchange(&worker).unwrap());
        let (batches, answers) = io::pipe().unwrap();
        let inputs = Arena::new(SIZE).unwrap();
        let mut message = Vec::new();
        ToWorker::Memory(SIZE as u64).encode(&mut message);
        // The message arrives in two parts.
        let (first, rest) = message.split_at(5);
        let passed = [inputs.as_fd(), batches.as_fd(), answers.as_fd()];
        send_with_descriptors(gateway.as_fd(), first, passed).unwrap();
        (&mut &gateway).write_all(rest).unwrap();
        let mut buffer = [0; 64];
        let (length, descriptors) = receive_with_descriptors(gateway.as_fd(), &mut buffer).unwrap();
        let message = Decoder::<ToGateway>::new(0).feed(&mut &buffer[..length]);
        let Ok(Some(ToGateway::Memory(size))) = message else {
            panic!("{message:?}");
        };
        let [file] = descriptors.unwrap();
        let outputs = View::open(file, size, size).unwrap();
        (exchanging.join().unwrap(), inputs, outputs)
    }

    fn output(bytes: Vec<u8>) -> OutputTensor {
        let shape = Shape::new(&[bytes.len().cast_signed() as i64]).unwrap();
        OutputTensor {
            header: TensorHeader::new(Datatype::Uint8, shape).unwrap(),
            bytes: Box::new(bytes),
        }
    }

    fn result(id: u64, outputs: &[OutputTensor]) -> ToGateway {
        ToGateway::Result(ResultHeader {
            id: BatchId(id),
            outputs: outputs.iter().map(|output| output.header.clone()).collect(),
            stages: StageDurations::default(),
        })
    }

    #[test]
    fn outputs_stay_where_they_are_until_they_are_released() {
        let (memory, _, view) = connected();
        let half = OUTPUT_MEMORY / 2;
        let outputs = [output(vec![1; half]), output(vec![]), output(vec![2; 7])];
        let placed = memory.place(&result(3, &outputs), &outputs);
        let Some(ToGateway::SharedResult(header, ranges)) = placed else {
            panic!("{placed:?}");
        };
        assert_eq!((header.id, ranges.len()), (BatchId(3), 3));
        let mut last = [0; 7];
        view.copy_to(ranges[2].offset, &mut last).unwrap();
        assert_eq!(last, [2; 7]);
        let next = [output(vec![3; half])];
        assert!(
            memory.place(&result(4, &next), &next).is_none(),
            "it is full"
        );
        assert!(!memory.release(BatchId(4)), "it was sent in line");
        assert!(memory.release(BatchId(3)));
        assert!(!memory.release(BatchId(3)), "once");
        assert!(memory.place(&result(5, &next), &next).is_some());
    }

    #[test]
    fn a_small_result_and_a_failure_are_sent_in_line() {
        let (memory, ..) = connected();
        let small = [output(vec![1; SHARED_FROM as usize - 1])];
        assert!(memory.place(&result(3, &small), &small).is_none());
        assert!(memory.place(&ToGateway::Draining, &[]).is_none());
    }

    #[test]
    fn what_does_not_name_memory_ends_the_connection() {
        let (worker, gateway) = UnixStream::pair().unwrap();
        let mut message = Vec::new();
        ToWorker::Memory(SIZE as u64).encode(&mut message);
        (&mut &gateway).write_all(&message).unwrap();
        assert!(exchange(&worker).is_err(), "no descriptor");
        let arena = Arena::new(SIZE).unwrap();
        let (batches, answers) = io::pipe().unwrap();
        let passed = [arena.as_fd(), batches.as_fd(), answers.as_fd()];
        let mut message = Vec::new();
        ToWorker::Memory(SIZE as u64 + 1).encode(&mut message);
        send_with_descriptors(gateway.as_fd(), &message, passed).unwrap();
        assert!(exchange(&worker).is_err(), "another size");
        let mut message = Vec::new();
        ToWorker::Proof([0; 32]).encode(&mut message);
        send_with_descriptors(gateway.as_fd(), &message, passed).unwrap();
        assert!(exchange(&worker).is_err(), "another message");
    }
}
