//! Inputs that a CUDA device copies from the memory of a gateway, tested with the stand-in for the CUDA runtime. It refuses a copy over the
//! boundary of two registrations, and ends the process if memory is unregistered before a copy from it is done.

use std::{
    collections::{BTreeSet, VecDeque},
    fs,
    ops::Range,
    thread,
    time::{Duration, Instant},
};

use packhorse_cluster::TensorSpec;
use packhorse_mapped::{Arena, ArenaBytes, View};
use packhorse_wire::{BatchHeader, BatchId, ByteRange, ToGateway, ToWorker};
use packhorse_worker_agent::handoff::{PipelineSettings, ServeTask};

use crate::{
    cuda::{Node, every_way, task_of},
    gateway::Tensor,
    local::LocalLink,
    process::{LIMIT, Worker, program, tensor},
};

const MIB: usize = 1 << 20;
/// The size of the parts in which memory is registered.
const CHUNK: usize = 4 * MIB;

/// Returns the task to double each input, of rows with this many bytes.
fn task(inputs: usize, row: usize, pipeline: PipelineSettings) -> ServeTask {
    task_with(["Twice", "TwiceEach"][inputs - 1], inputs, row, pipeline)
}

fn task_with(module: &str, inputs: usize, row: usize, pipeline: PipelineSettings) -> ServeTask {
    let width = (row / 4).cast_signed() as i64;
    let specs = |prefix: &str| -> Vec<TensorSpec> {
        let spec = |i| tensor(&format!("{prefix}{i}"), "FP32", &[-1, width]);
        (0..inputs).map(spec).collect()
    };
    task_of(module, program(4, specs("x"), specs("y")), pipeline)
}

fn overlapping() -> PipelineSettings {
    PipelineSettings {
        in_flight: 2,
        streams: true,
        graphs: false,
    }
}

/// A link whose memory is shared.
struct SharingLink {
    link: LocalLink,
    inputs: Arena,
    outputs: View,
}

impl SharingLink {
    fn new(worker: &Worker, task: &ServeTask, size: usize) -> Self {
        let (link, inputs, outputs) = LocalLink::share_memory(worker, task, size);
        Self {
            link,
            inputs,
            outputs,
        }
    }

    /// Sends a batch whose inputs lie in these ranges.
    fn send_ranges(&mut self, id: u16, inputs: &[Tensor], ranges: Vec<ByteRange>) {
        let header = BatchHeader {
            id: BatchId(id.into()),
            rows: inputs[0].header.shape().dims()[0] as u32,
            inputs: inputs.iter().map(|input| input.header.clone()).collect(),
        };
        self.link.send(&ToWorker::SharedBatch(header, ranges));
    }

    /// Sends a batch whose bytes lie in pieces of these lengths. Returns them; they must not be used again before the answer.
    fn send(&mut self, id: u16, inputs: &[Tensor], lengths: &[usize]) -> Vec<ArenaBytes> {
        let bytes: Vec<u8> = inputs.iter().flat_map(|x| x.bytes.clone()).collect();
        let mut rest = &bytes[..];
        let place = |length: &usize| {
            let mut place = self.inputs.take(*length).unwrap();
            let (piece, after) = rest.split_at(*length);
            place.copy_from_slice(piece);
            rest = after;
            place
        };
        let places: Vec<ArenaBytes> = lengths.iter().map(place).collect();
        assert!(rest.is_empty(), "pieces of all inputs");
        let range = |place: &ArenaBytes| ByteRange {
            offset: place.offset(),
            length: place.len() as u64,
        };
        let ranges = places.iter().map(range).collect();
        self.send_ranges(id, inputs, ranges);
        places
    }

    /// Receives the answer to a batch, which is each input times two.
    fn expect_doubled(&mut self, id: u16, inputs: &[Tensor]) {
        let message = self.link.message();
        let ToGateway::SharedResult(result, ranges) = message else {
            panic!("a large result is shared, not {message:?}");
        };
        assert_eq!(result.id, BatchId(id.into()));
        assert_eq!(ranges.len(), inputs.len());
        for (range, input) in ranges.iter().zip(inputs) {
            let mut output = vec![0; range.length as usize];
            self.outputs.copy_to(range.offset, &mut output).unwrap();
            assert!(output == doubled(input).bytes, "batch {id}");
        }
        self.link.send(&ToWorker::Release(BatchId(id.into())));
    }
}

/// Returns rows of this many bytes, whose numbers depend on the batch, the row and the place in it.
fn rows(id: u16, rows: Range<u16>, row: usize) -> Tensor {
    let width = row / 4;
    let shape = [rows.len(), width].map(|dim| dim.cast_signed() as i64);
    let number = |row: u16, i: usize| f32::from(id) * 64.0 + f32::from(row) + (i % 1024) as f32;
    let values: Vec<f32> = rows
        .flat_map(|row| (0..width).map(move |i| number(row, i)))
        .collect();
    Tensor::fp32(&shape, &values)
}

fn doubled(input: &Tensor) -> Tensor {
    let double = |bytes: &[u8]| {
        let number = f32::from_le_bytes(bytes.try_into().unwrap());
        (number * 2.0).to_le_bytes()
    };
    let bytes = input.bytes.chunks_exact(4).flat_map(double).collect();
    Tensor {
        header: input.header.clone(),
        bytes,
    }
}

/// Returns the numbers of bytes that the device registered, unregistered, or copied in, in order.
fn sizes(log: &[String], what: &str) -> Vec<usize> {
    let of_line = |line: &String| {
        let mut words = line.split(' ');
        let size = (words.next() == Some(what)).then(|| words.next_back().unwrap());
        size.map(|size| size.parse().unwrap())
    };
    log.iter().filter_map(of_line).collect()
}

/// Waits until chunks with so many bytes have been unregistered.
fn wait_until_unregistered(node: &Node, since: usize, bytes: usize) {
    let end = Instant::now() + LIMIT;
    while sizes(&node.log(since), "unregister").iter().sum::<usize>() < bytes {
        assert!(Instant::now() < end, "{:?}", node.log(since));
        thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn large_inputs_are_copied_from_where_they_lie() {
    const ROW: usize = 256 << 10;
    for (seed, pipeline) in (1..).zip(every_way()) {
        let node = Node::new(&[("CUDA_FAKE_SEED", &format!("{seed}"))]);
        let task = task(1, ROW, pipeline);
        let worker = node.serve(&task);
        let mut link = SharingLink::new(&worker, &task, 16 * MIB);
        let warm = node.log(0).len();
        let mut sent = VecDeque::new();
        for id in 0..24 {
            let count = id % 4 + 1;
            let x = rows(id, 0..count, ROW);
            let places = link.send(id, std::slice::from_ref(&x), &vec![ROW; count.into()]);
            sent.push_back((id, x, places));
            if sent.len() == 3 || id == 23 {
                for (id, x, _) in sent.drain(..) {
                    link.expect_doubled(id, &[x]);
                }
            }
        }
        let log = node.log(warm);
        let copied: BTreeSet<usize> = sizes(&log, "copy-in").into_iter().collect();
        assert_eq!(copied, BTreeSet::from([ROW]), "{pipeline:?}");
        assert_eq!(sizes(&log, "register"), [CHUNK], "no untouched memory");
        let forbidden = ["pageable", "pin", "allocate", "free", "synchronize"];
        let of_these = |line: &&String| forbidden.iter().any(|what| line.contains(what));
        assert_eq!(log.iter().find(of_these), None, "{pipeline:?}");
    }
}

#[test]
fn pieces_end_with_inputs_ranges_and_chunks() {
    const ROW: usize = 3 * MIB;
    const SIZE: usize = CHUNK + 3 * MIB + 4096;
    let node = Node::new(&[]);
    let task = task(2, ROW, overlapping());
    let worker = node.serve(&task);
    let mut link = SharingLink::new(&worker, &task, SIZE);
    let warm = node.log(0).len();
    let x = [rows(1, 0..1, ROW), rows(2, 0..1, ROW)];
    // The first range ends within the second input, and within the second chunk.
    let lengths = [ROW + 3 * MIB / 2, 3 * MIB / 2];
    for id in 0..2 {
        let _places = link.send(id, &x, &lengths);
        link.expect_doubled(id, &x);
    }
    let log = node.log(warm);
    assert_eq!(sizes(&log, "register"), [CHUNK, 3 * MIB + 4096]);
    let copies = [3 * MIB, MIB, MIB / 2, 3 * MIB / 2].repeat(2);
    assert_eq!(sizes(&log, "copy-in"), copies);
}

#[test]
fn small_inputs_are_gathered() {
    const ROW: usize = 32 << 10;
    let node = Node::new(&[]);
    let task = task(1, ROW, overlapping());
    let worker = node.serve(&task);
    let mut link = SharingLink::new(&worker, &task, MIB);
    let warm = node.log(0).len();
    let x = [rows(1, 0..4, ROW)];
    let _places = link.send(1, &x, &[ROW; 4]);
    link.expect_doubled(1, &x);
    let log = node.log(warm);
    assert_eq!(sizes(&log, "copy-in"), [4 * ROW]);
    assert!(sizes(&log, "register").is_empty());
    // The same rows in one piece.
    let _places = link.send(2, &x, &[4 * ROW]);
    link.expect_doubled(2, &x);
    assert_eq!(sizes(&node.log(warm), "register"), [MIB]);
}

#[test]
fn batches_are_gathered_from_memory_that_cannot_be_registered() {
    const ROW: usize = 3 * MIB;
    for (limit, direct) in [(0, 0), (CHUNK, 1)] {
        let node = Node::new(&[("CUDA_FAKE_REGISTERED_LIMIT", &format!("{limit}"))]);
        let task = task(1, ROW, overlapping());
        let worker = node.serve(&task);
        let mut link = SharingLink::new(&worker, &task, 16 * MIB);
        let warm = node.log(0).len();
        let mut kept = Vec::new();
        for id in 0..4 {
            let x = [rows(id, 0..1, ROW)];
            kept.extend(link.send(id, &x, &[ROW]));
            link.expect_doubled(id, &x);
        }
        let log = node.log(warm);
        assert_eq!(sizes(&log, "copy-in"), [ROW; 4]);
        // It is tried once more, and never again.
        assert_eq!(sizes(&log, "register"), vec![CHUNK; direct + 1]);
        let said = fs::read_to_string(worker.handoff().log_path()).unwrap();
        let reason = "reason=\"CUDA error: out of memory\"";
        assert_eq!(said.matches(reason).count(), 1, "{said}");
        drop((link, kept));
        wait_until_unregistered(&node, warm, direct * CHUNK);
    }
}

#[test]
fn memory_is_unregistered_when_its_connection_has_ended() {
    const ROW: usize = MIB;
    for pipeline in [PipelineSettings::default(), overlapping()] {
        let node = Node::new(&[]);
        let task = task(1, ROW, pipeline);
        let worker = node.serve(&task);
        for _ in 0..4 {
            let mut link = SharingLink::new(&worker, &task, 16 * MIB);
            let warm = node.log(0).len();
            let x = [rows(1, 0..2, ROW)];
            let _places = link.send(1, &x, &[ROW; 2]);
            link.expect_doubled(1, &x);
            let mut kept = Vec::new();
            for id in 2..4 {
                kept.extend(link.send(id, &x, &[ROW; 2]));
            }
            // The last batches are still under way.
            drop(link);
            wait_until_unregistered(&node, warm, 2 * CHUNK);
            let log = node.log(warm);
            assert_eq!(sizes(&log, "register"), [CHUNK; 2]);
            assert_eq!(sizes(&log, "unregister"), [CHUNK; 2]);
        }
    }
}

#[test]
fn memory_stays_registered_until_the_device_has_copied_the_inputs_of_a_batch_that_failed() {
    const ROW: usize = MIB;
    for pipeline in [PipelineSettings::default(), overlapping()] {
        let node = Node::new(&[]);
        let task = task_with("TwiceExceptThree", 1, ROW, pipeline);
        let worker = node.serve(&task);
        let x = [rows(1, 0..3, ROW)];
        for _ in 0..6 {
            let mut link = SharingLink::new(&worker, &task, 16 * MIB);
            let warm = node.log(0).len();
            let mut kept = Vec::new();
            for id in 1..4 {
                // The program throws while the device copies.
                kept.extend(link.send(id, &x, &[ROW; 3]));
            }
            drop(link);
            wait_until_unregistered(&node, warm, 3 * CHUNK);
        }
        let mut link = SharingLink::new(&worker, &task, 16 * MIB);
        let x = [rows(1, 0..2, ROW)];
        let _places = link.send(1, &x, &[ROW; 2]);
        link.expect_doubled(1, &x);
    }
}

#[test]
fn inputs_outside_of_the_memory_end_the_link_and_no_other() {
    const ROW: usize = MIB;
    let node = Node::new(&[]);
    let task = task(1, ROW, overlapping());
    let worker = node.serve(&task);
    let mut hostile = SharingLink::new(&worker, &task, 2 * MIB);
    let warm = node.log(0).len();
    let x = [rows(5, 0..2, ROW)];
    let range = |offset: u64| ByteRange {
        offset,
        length: ROW as u64,
    };
    hostile.send_ranges(5, &x, vec![range(0), range(MIB as u64 + 1)]);
    let reason = hostile.link.close_reason();
    assert!(reason.contains("batch 5 has inputs outside"), "{reason}");
    for offset in [2 * MIB as u64, u64::MAX - 1] {
        let mut hostile = SharingLink::new(&worker, &task, 2 * MIB);
        hostile.send_ranges(5, &x, vec![range(offset), range(0)]);
        let reason = hostile.link.close_reason();
        assert!(reason.contains("batch 5 has inputs outside"), "{reason}");
    }
    assert!(sizes(&node.log(warm), "register").is_empty());
    let mut link = SharingLink::new(&worker, &task, 2 * MIB);
    let _places = link.send(6, &x, &[ROW; 2]);
    link.expect_doubled(6, &x);
}
