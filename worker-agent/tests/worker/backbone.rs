//! Workers that run several replicas, whose programs share a backbone.

use std::{collections::BTreeSet, fs, net::SocketAddr};

use packhorse_estimator::OperatorGraph;
use packhorse_wire::{FailureKind, ToGateway};
use packhorse_worker_agent::handoff::{AlsoServed, ServeTask, WorkerReport};

use crate::{
    gateway::{Link, Tensor},
    inspect::inspect,
    process::{Worker, execution, program, serve_task, tensor},
    torch::{modules, torch},
};

/// The elements of an input.
const ELEMENTS: usize = 3 * 8 * 8;

/// The task of a worker for these modules, of which the first is its own.
fn task(modules: &[(&str, i64)], input: &[i64]) -> ServeTask {
    let execution = |(module, outputs): &(&str, i64)| {
        let x = tensor("x", "FP32", &[&[-1], input].concat());
        let y = tensor("y", "FP32", &[-1, *outputs]);
        execution(program(8, vec![x], vec![y]), torch(module))
    };
    let mut task = serve_task(execution(&modules[0]));
    let also = modules[1..].iter().zip(2..);
    task.also = also
        .map(|(module, number)| AlsoServed {
            replica: format!("5-{number}").parse().unwrap(),
            execution: execution(module),
        })
        .collect();
    task
}

/// Connects to each replica of a worker.
fn connect_all(worker: &Worker, task: &ServeTask) -> Vec<Link> {
    let mut addresses: Vec<SocketAddr> = vec![worker.address()];
    addresses.extend(worker.wait_for(|phase| match phase {
        WorkerReport::Ready { also, .. } => {
            Some(also.iter().map(|also| also.address).collect::<Vec<_>>())
        }
        _ => None,
    }));
    let mut tasks = vec![task.clone()];
    tasks.extend(task.also.iter().map(|also| ServeTask {
        replica: also.replica,
        execution: also.execution.clone(),
        ..task.clone()
    }));
    assert_eq!(addresses.len(), tasks.len());
    let links = addresses.into_iter().zip(&tasks);
    links
        .map(|(address, task)| Link::connect(address, task, b"").unwrap())
        .collect()
}

/// A batch of rows that differ from each other and from those of other seeds.
fn batch(rows: i64, seed: usize) -> Tensor {
    let elements = ELEMENTS * usize::try_from(rows).unwrap();
    let values = (0..elements).map(|i| ((i * 7919 + seed * 104_729) % 997) as f32 / 498.5 - 1.0);
    Tensor::fp32(&[rows, 3, 8, 8], &values.collect::<Vec<_>>())
}

const HEADED: [(&str, i64); 4] = [
    ("HeadedLinear", 2),
    ("HeadedSoftmax", 5),
    ("HeadedIdentity", 32),
    ("HeadedInPlace", 32),
];

#[test]
fn programs_that_share_a_worker_answer_bit_for_bit_what_they_answer_alone() {
    let together = task(&HEADED, &[3, 8, 8]);
    let worker = Worker::serve(&together);
    let mut links = connect_all(&worker, &together);
    for (link, module) in links.iter_mut().zip(HEADED) {
        let alone = task(&[module], &[3, 8, 8]);
        let other = Worker::serve(&alone);
        let mut reference = Link::connect(other.address(), &alone, b"").unwrap();
        for rows in [1, 3, 8] {
            let x = [batch(rows, 1)];
            link.send(1, u32::try_from(rows).unwrap(), &x);
            reference.send(1, u32::try_from(rows).unwrap(), &x);
            assert_eq!(link.result().1, reference.result().1, "{module:?} {rows}");
        }
    }
}

#[test]
fn batches_of_several_programs_that_wait_are_computed_together_and_each_gets_its_rows() {
    let together = task(&HEADED, &[3, 8, 8]);
    let worker = Worker::serve(&together);
    let mut links = connect_all(&worker, &together);
    // What each answers while nothing else waits.
    let mut expected = Vec::new();
    for (i, link) in links.iter_mut().enumerate() {
        let x = [batch(2, i)];
        link.send(0, 2, &x);
        expected.push(link.result().1);
    }
    let log = fs::read_to_string(worker.handoff().log_path()).unwrap();
    assert!(log.contains("keeps_rows=true"), "{log}");
    let mut together = 0;
    for id in 1..100 {
        for (i, link) in links.iter_mut().enumerate() {
            link.send(id, 2, &[batch(2, i)]);
        }
        let mut durations = BTreeSet::new();
        for (link, expected) in links.iter_mut().zip(&expected) {
            let (header, outputs) = link.result();
            assert_eq!(header.id.0, id);
            for (output, expected) in outputs.iter().zip(expected) {
                assert_close(output, expected);
            }
            durations.insert(header.stages.compute.as_micros());
        }
        together += usize::from(durations.len() < HEADED.len());
    }
    // Batches that run together report the same time.
    assert!(together > 25, "in {together} of 99 rounds");
}

/// The rows of a larger product may be summed in another order.
fn assert_close(one: &Tensor, other: &Tensor) {
    assert_eq!(one.header, other.header);
    let numbers = |tensor: &Tensor| {
        let chunks = tensor.bytes.chunks_exact(4);
        chunks
            .map(|bytes| f32::from_le_bytes(bytes.try_into().unwrap()))
            .collect::<Vec<f32>>()
    };
    for (a, b) in numbers(one).into_iter().zip(numbers(other)) {
        assert!((a - b).abs() <= 1e-5 * a.abs().max(1.0), "{a} {b}");
    }
}

#[test]
fn a_batch_that_fails_spoils_none_that_is_computed_with_it() {
    let modules = [("HeadedLinear", 2), ("HeadedPicky", 32)];
    let together = task(&modules, &[3, 8, 8]);
    let worker = Worker::serve(&together);
    let mut links = connect_all(&worker, &together);
    let good = [batch(1, 3)];
    let bad = [Tensor::fp32(&[1, 3, 8, 8], &[1e6; ELEMENTS])];
    let [linear, picky] = &mut links[..] else {
        panic!("two replicas")
    };
    linear.send(0, 1, &good);
    let expected = linear.result().1;
    for id in 1..50 {
        picky.send(id, 1, &bad);
        linear.send(id, 1, &good);
        picky.send(100 + id, 1, &good);
        assert_close(&linear.result().1[0], &expected[0]);
        // Answers may overtake each other.
        for _ in 0..2 {
            match picky.message() {
                Some(ToGateway::Failure(failure)) => {
                    assert_eq!((failure.id.0, failure.kind), (id, FailureKind::ModuleThrew));
                    assert!(failure.message.contains("it is too large"), "{failure:?}");
                }
                Some(ToGateway::Result(header)) => {
                    assert_eq!(header.id.0, 100 + id);
                    picky.outputs_of(&header);
                }
                other => panic!("{other:?}"),
            }
        }
    }
}

#[test]
fn programs_with_other_weights_or_rows_elsewhere_are_served_by_one_worker_all_the_same() {
    let other = [("HeadedLinear", 2), ("HeadedOther", 2)];
    let upright = [("UprightOnce", 4), ("UprightTwice", 4)];
    for (modules, input, shape) in [
        (other, &[3, 8, 8][..], &[2, 3, 8, 8][..]),
        (upright, &[3], &[2, 3]),
    ] {
        let together = task(&modules, input);
        let worker = Worker::serve(&together);
        let mut links = connect_all(&worker, &together);
        let log = fs::read_to_string(worker.handoff().log_path()).unwrap();
        assert!(log.contains("keeps_rows=false"), "{log}");
        let elements: i64 = shape.iter().product();
        let x = [Tensor::fp32(
            shape,
            &vec![0.5; usize::try_from(elements).unwrap()],
        )];
        for id in 1..20 {
            for link in &mut links {
                link.send(id, 2, &x);
            }
            let answers: Vec<_> = links.iter_mut().map(|link| link.result().1).collect();
            assert_ne!(answers[0], answers[1], "{modules:?}");
        }
    }
}

#[test]
fn what_two_programs_share_is_told_by_the_digests_of_their_weights() {
    let weights = |module: &str| {
        let output = inspect(&modules().join(format!("{module}.pt")), "[-1, 3, 8, 8]");
        let text = String::from_utf8(output.stdout).unwrap();
        let graph = OperatorGraph::from_json(&text).unwrap();
        graph.weights
    };
    let (linear, softmax, other) = (
        weights("HeadedLinear"),
        weights("HeadedSoftmax"),
        weights("HeadedOther"),
    );
    let digests: BTreeSet<u64> = linear.iter().map(|w| w.digest).collect();
    let shared: u64 = softmax
        .iter()
        .filter(|w| digests.contains(&w.digest))
        .map(|w| w.bytes)
        .sum();
    // A convolution, a normalization with four numbers for each channel, and a convolution with a bias.
    assert_eq!(shared, 4 * (16 * 3 * 9 + 4 * 16 + 32 * 16 * 9 + 32));
    let all: u64 = softmax.iter().map(|w| w.bytes).sum();
    assert_eq!(all - shared, 4 * (32 * 5 + 5));
    assert!(other.iter().all(|w| !digests.contains(&w.digest)));
}

#[test]
fn a_worker_of_several_replicas_drains_for_all_of_them() {
    let together = task(&HEADED[..2], &[3, 8, 8]);
    let mut worker = Worker::serve(&together);
    let mut links = connect_all(&worker, &together);
    for link in &mut links {
        link.send(1, 1, &[batch(1, 0)]);
        link.result();
    }
    worker.terminate();
    for link in &mut links {
        assert_eq!(link.message(), Some(ToGateway::Draining));
        link.finish();
    }
    assert_eq!(worker.exit_code(), Some(0));
}

#[test]
fn a_program_that_cannot_be_served_is_no_permanent_failure_of_those_beside_it() {
    // The second has five outputs.
    let wrong = [("HeadedLinear", 2), ("HeadedSoftmax", 4)];
    let (reason, permanent) = Worker::serve(&task(&wrong, &[3, 8, 8])).failure();
    assert!(!permanent, "{reason}");
    let (reason, permanent) = Worker::serve(&task(&wrong[1..], &[3, 8, 8])).failure();
    assert!(permanent, "{reason}");
}

#[test]
fn programs_of_which_one_cannot_be_frozen_are_each_loaded_whole() {
    // Its state is written to, so that it is no constant.
    let modules = [("Counting", 3), ("Echo", 3)];
    let together = task(&modules, &[3]);
    let worker = Worker::serve(&together);
    let mut links = connect_all(&worker, &together);
    let log = fs::read_to_string(worker.handoff().log_path()).unwrap();
    assert!(log.contains("do not share a backbone"), "{log}");
    let x = Tensor::fp32(&[2, 3], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    for id in 1..20 {
        for link in &mut links {
            link.send(id, 2, std::slice::from_ref(&x));
        }
        for (link, (module, _)) in links.iter_mut().zip(modules) {
            assert_eq!(link.result().1, std::slice::from_ref(&x), "{module}");
        }
    }
}
