//! A link on the worker's host: it begins on a Unix socket, and goes on through pipes and memory that both sides share.

use std::{
    io::{self, Read, Write},
    os::{fd::AsFd as _, unix::net::UnixStream},
};

use packhorse_mapped::{Arena, View, receive_with_descriptors, send_with_descriptors};
use packhorse_wire::{
    BatchHeader, BatchId, ByteRange, ClientHandshake, ClientStep, Decoder, Features, Hello,
    LinkSecret, MAX_PAYLOAD, ToGateway, ToWorker, WorkerIdentity,
};
use packhorse_worker_agent::handoff::{ServeTask, WorkerReport};

use crate::{
    gateway::Tensor,
    process::{LIMIT, Worker, execution, program, serve_task, tensor},
    simulated::{connect, simulated},
};

/// The numbers in a row: 80 kB, which are worth to be shared.
const WIDTH: usize = 20_000;
const MEMORY: usize = 1 << 20;

/// Returns a task of at most four rows with outputs as large as the inputs.
fn task() -> ServeTask {
    let [inputs, outputs] = ["x", "y"].map(|name| vec![tensor(name, "FP32", &[-1, -1])]);
    serve_task(execution(program(4, inputs, outputs), simulated(1)))
}

/// The gateway's side of a local link.
pub(crate) struct LocalLink {
    to_worker: Box<dyn Write>,
    from_worker: Box<dyn Read>,
    decoder: Decoder<ToGateway>,
}

impl LocalLink {
    /// Connects and performs the handshake with these features. Returns the socket, too.
    fn connect(worker: &Worker, task: &ServeTask, features: Features) -> (Self, UnixStream) {
        let path = worker.wait_for(|phase| match phase {
            WorkerReport::Ready { local_path, .. } => local_path,
            _ => None,
        });
        let stream = UnixStream::connect(path).unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        let mut link = Self {
            to_worker: Box::new(stream.try_clone().unwrap()),
            from_worker: Box::new(stream.try_clone().unwrap()),
            decoder: Decoder::new(MAX_PAYLOAD),
        };
        let identity = WorkerIdentity {
            replica: task.replica,
            artifact: task.execution.program.artifact,
            batch_size: task.batch_size,
        };
        let hello = Hello::new(features, [7; 32]);
        let mut handshake = ClientHandshake::new(LinkSecret::none(), hello, identity);
        link.send(&handshake.hello());
        loop {
            match handshake.handle(link.message()).unwrap() {
                ClientStep::Send(message) => link.send(&message),
                ClientStep::Accepted(agreement) => {
                    assert_eq!(agreement.features, features);
                    return (link, stream);
                }
            }
        }
    }

    /// Connects, shares memory and goes on through pipes. Returns the gateway's memory and the worker's, too.
    fn share(worker: &Worker, task: &ServeTask) -> (Self, Arena, View) {
        Self::share_memory(worker, task, MEMORY)
    }

    /// Connects like `share`, with this many bytes of memory.
    pub(crate) fn share_memory(
        worker: &Worker,
        task: &ServeTask,
        size: usize,
    ) -> (Self, Arena, View) {
        let (mut link, socket) = Self::connect(worker, task, Features::SHARED_MEMORY);
        let inputs = Arena::new(size).unwrap();
        let (batches, to_worker) = io::pipe().unwrap();
        let (from_worker, answers) = io::pipe().unwrap();
        let mut message = Vec::new();
        ToWorker::Memory(size as u64).encode(&mut message);
        let passed = [inputs.as_fd(), batches.as_fd(), answers.as_fd()];
        send_with_descriptors(socket.as_fd(), &message, passed).unwrap();
        let mut buffer = [0; 64];
        let (length, descriptors) = receive_with_descriptors(socket.as_fd(), &mut buffer).unwrap();
        let Ok(Some(ToGateway::Memory(size))) = Decoder::new(0).feed(&mut &buffer[..length]) else {
            panic!("expected the worker's memory");
        };
        let [file] = descriptors.unwrap();
        link.to_worker = Box::new(to_worker);
        link.from_worker = Box::new(from_worker);
        (link, inputs, View::open(file, size, size).unwrap())
    }

    pub(crate) fn send(&mut self, message: &ToWorker) {
        let mut bytes = Vec::new();
        message.encode(&mut bytes);
        self.to_worker.write_all(&bytes).unwrap();
    }

    pub(crate) fn message(&mut self) -> ToGateway {
        loop {
            let mut byte = [0];
            self.from_worker.read_exact(&mut byte).unwrap();
            if let Some(message) = self.decoder.feed(&mut &byte[..]).unwrap() {
                return message;
            }
        }
    }

    pub(crate) fn close_reason(&mut self) -> String {
        match self.message() {
            ToGateway::Close(reason) => reason,
            other => panic!("expected a reason, got {other:?}"),
        }
    }
}

fn batch(id: u64, rows: u32) -> (BatchHeader, Vec<u8>) {
    let values = vec![0.5; rows as usize * WIDTH];
    let input = Tensor::fp32(&[rows.into(), WIDTH.cast_signed() as i64], &values);
    let header = BatchHeader {
        id: BatchId(id),
        rows,
        inputs: vec![input.header],
    };
    (header, input.bytes)
}

#[test]
fn inputs_are_taken_from_the_gateways_memory_and_outputs_given_in_the_workers() {
    let task = task();
    let worker = Worker::serve(&task);
    let (mut link, inputs, outputs) = LocalLink::share(&worker, &task);
    for id in 1..4 {
        let (header, bytes) = batch(id, 2);
        // Two requests of a row each, which are not beside each other.
        let places: Vec<_> = (0..3)
            .map(|_| inputs.take(bytes.len() / 2).unwrap())
            .collect();
        let range = |i: usize| ByteRange {
            offset: places[i].offset(),
            length: places[i].len() as u64,
        };
        link.send(&ToWorker::SharedBatch(header, vec![range(2), range(0)]));
        let ToGateway::SharedResult(result, ranges) = link.message() else {
            panic!("a large result is shared");
        };
        assert_eq!((result.id, ranges.len()), (BatchId(id), 1));
        let mut output = vec![1; bytes.len()];
        outputs.copy_to(ranges[0].offset, &mut output).unwrap();
        assert_eq!(output, vec![0; bytes.len()]);
        link.send(&ToWorker::Release(BatchId(id)));
    }
    link.send(&ToWorker::Release(BatchId(3)));
    assert!(link.close_reason().contains("released batch 3"));
}

#[test]
fn inputs_outside_of_the_gateways_memory_end_the_link_and_no_other() {
    let task = task();
    let worker = Worker::serve(&task);
    let (mut hostile, ..) = LocalLink::share(&worker, &task);
    let (mut link, inputs, _outputs) = LocalLink::share(&worker, &task);
    let (header, bytes) = batch(5, 1);
    let outside = ByteRange {
        offset: (MEMORY - bytes.len() + 1) as u64,
        length: bytes.len() as u64,
    };
    hostile.send(&ToWorker::SharedBatch(header.clone(), vec![outside]));
    let reason = hostile.close_reason();
    assert!(reason.contains("batch 5 has inputs outside"), "{reason}");
    let place = inputs.take(bytes.len()).unwrap();
    let range = ByteRange {
        offset: place.offset(),
        length: bytes.len() as u64,
    };
    link.send(&ToWorker::SharedBatch(header, vec![range]));
    assert!(matches!(link.message(), ToGateway::SharedResult(..)));
}

#[test]
fn what_is_not_in_shared_memory_is_sent_in_line_and_the_link_ends_with_its_last_answer() {
    let task = task();
    let worker = Worker::serve(&task);
    let (mut link, ..) = LocalLink::share(&worker, &task);
    let (header, bytes) = batch(6, 4);
    assert!(bytes.len() > 4 << 16, "more than a pipe takes");
    link.send(&ToWorker::Batch(header));
    link.to_worker.write_all(&bytes).unwrap();
    link.to_worker = Box::new(io::sink());
    let ToGateway::SharedResult(..) = link.message() else {
        panic!("a large result is shared");
    };
    let mut rest = Vec::new();
    link.from_worker.read_to_end(&mut rest).unwrap();
    assert!(rest.is_empty(), "{rest:?}");
}

#[test]
fn a_batch_in_shared_memory_ends_a_link_that_shares_none() {
    let task = task();
    let worker = Worker::serve(&task);
    let mut link = connect(&worker, &task);
    let (header, bytes) = batch(6, 1);
    let range = ByteRange {
        offset: 0,
        length: bytes.len() as u64,
    };
    let mut message = Vec::new();
    ToWorker::SharedBatch(header, vec![range]).encode(&mut message);
    link.write(&message);
    assert!(link.close_reason().contains("expects a batch"));
}

#[test]
fn a_gateway_that_does_not_share_memory_is_told_so() {
    let task = task();
    let worker = Worker::serve(&task);
    let (mut link, _) = LocalLink::connect(&worker, &task, Features::NONE);
    let reason = link.close_reason();
    assert!(reason.contains("shares memory with a gateway"), "{reason}");
}

#[cfg(feature = "torch")]
mod torch {
    use super::*;
    use crate::torch;

    /// Sends three batches of a row with the numbers 1, 2 and 3, which are overwritten after the answer. Returns the number of each answer.
    fn answers(module: &str) -> [u8; 3] {
        let [x, y] = ["x", "y"].map(|name| vec![tensor(name, "FP32", &[-1, 3])]);
        let task = torch::task(module, program(1, x, y));
        let worker = Worker::serve(&task);
        let (mut link, inputs, _) = LocalLink::share(&worker, &task);
        [1, 2, 3].map(|number: u8| {
            let input = Tensor::fp32(&[1, 3], &[number.into(); 3]);
            let mut place = inputs.take(input.bytes.len()).unwrap();
            place.copy_from_slice(&input.bytes);
            let range = ByteRange {
                offset: place.offset(),
                length: place.len() as u64,
            };
            let header = BatchHeader {
                id: BatchId(number.into()),
                rows: 1,
                inputs: vec![input.header],
            };
            link.send(&ToWorker::SharedBatch(header, vec![range]));
            let message = link.message();
            assert!(matches!(message, ToGateway::Result(_)), "{message:?}");
            place.fill(0xff);
            let mut output = [[0; 4]; 3];
            let read = link.from_worker.read_exact(output.as_flattened_mut());
            read.unwrap();
            assert_eq!(output, [output[0]; 3]);
            f32::from_le_bytes(output[0]) as u8
        })
    }

    #[test]
    fn a_program_that_only_reads_its_inputs_answers_what_it_computes_or_gets() {
        assert_eq!(answers("Twice"), [2, 4, 6]);
        assert_eq!(answers("Echo"), [1, 2, 3]);
    }

    #[test]
    fn a_program_may_write_to_its_inputs_and_keep_them() {
        assert_eq!(answers("InPlace"), [4, 6, 8]);
        // The input of the previous run, of which the first is the warm-up.
        for module in ["Keeper", "Collector"] {
            assert_eq!(answers(module)[1..], [1, 2], "{module}");
        }
    }
}
