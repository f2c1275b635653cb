//! The behaviour of all workers, tested with the simulated executor.

use std::{collections::BTreeSet, thread, time::Duration};

use packhorse_cluster::{ByteCount, Datatype, ProfileTable};
use packhorse_wire::{BatchId, FailureHeader, FailureKind, HandshakeError, ToGateway};
use packhorse_worker_agent::handoff::{
    ExecutorChoice, ProfileTask, ServeTask, WorkerReport, exit_code,
};

use crate::{
    gateway::{Link, Tensor, batch_bytes},
    process::{Worker, execution, file, program, serve_task, tensor},
};

/// Returns an executor whose batches take `ms` milliseconds.
pub(crate) fn simulated(ms: u32) -> ExecutorChoice {
    let rows = format!("m,V100-SXM2-16GB,1,,{ms},,512,,,\nm,V100-SXM2-16GB,4,,{ms},,1024,,,\n");
    ExecutorChoice::Simulated {
        device_kind: "V100-SXM2-16GB".parse().unwrap(),
        profile_csv: format!("{}\n{rows}", ProfileTable::CSV_HEADER),
        compute_share: None,
        folder: tempfile::tempdir().unwrap().keep(),
    }
}

/// Returns a task of at most four rows with an input of [-1, 3] and an output of [-1, 2, -1].
fn task(ms: u32) -> ServeTask {
    let inputs = vec![tensor("x", "FP32", &[-1, 3])];
    let outputs = vec![tensor("y", "INT16", &[-1, 2, -1])];
    serve_task(execution(program(4, inputs, outputs), simulated(ms)))
}

fn rows(rows: u32) -> [Tensor; 1] {
    let values = vec![0.5; 3 * rows as usize];
    [Tensor::fp32(&[rows.into(), 3], &values)]
}

pub(crate) fn connect(worker: &Worker, task: &ServeTask) -> Link {
    Link::connect(worker.address(), task, b"").unwrap()
}

#[test]
fn a_batch_takes_its_time_and_answers_zeros_of_the_declared_shape() {
    let task = task(30);
    let worker = Worker::serve(&task);
    let mut link = connect(&worker, &task);
    link.send(11, 3, &rows(3));
    let (header, outputs) = link.result();
    assert_eq!(header.id, BatchId(11));
    assert_eq!(
        outputs,
        [Tensor::new(Datatype::Int16, &[3, 2, 1], vec![0; 12])]
    );
    assert!(header.stages.compute >= Duration::from_millis(30));
    let memory = worker.wait_for(|phase| match phase {
        WorkerReport::Ready { memory, .. } => Some(memory),
        _ => None,
    });
    assert_eq!(memory, ByteCount::from_mib(1024));
}

#[test]
fn batches_are_answered_on_the_connection_that_brought_them() {
    let task = task(1);
    let worker = Worker::serve(&task);
    let mut links: Vec<_> = (0..3).map(|_| connect(&worker, &task)).collect();
    for (i, link) in (0..).zip(&mut links) {
        for batch in 0..6 {
            link.send(100 * i + batch, 1, &rows(1));
        }
    }
    for (i, link) in (0..).zip(&mut links) {
        let answered: Vec<_> = (0..6).map(|_| link.result().0.id.0).collect();
        assert_eq!(
            answered,
            (0..6).map(|batch| 100 * i + batch).collect::<Vec<_>>()
        );
    }
}

#[test]
fn a_batch_may_come_in_small_pieces() {
    let task = task(1);
    let worker = Worker::serve(&task);
    let mut link = connect(&worker, &task);
    let bytes = [batch_bytes(1, 2, &rows(2)), batch_bytes(2, 1, &rows(1))].concat();
    for piece in bytes.chunks(7) {
        link.write(piece);
    }
    assert_eq!(link.result().0.id, BatchId(1));
    assert_eq!(link.result().0.id, BatchId(2));
}

#[test]
fn the_link_secret_keeps_strangers_out_and_lets_the_gateway_in() {
    let dir = tempfile::tempdir().unwrap();
    let mut task = task(1);
    task.links.secret_file = Some(file(&dir, "secret", b"correct horse\n"));
    let worker = Worker::serve(&task);
    let address = worker.address();
    let refused = |secret: &[u8]| Link::connect(address, &task, secret).err();
    assert_eq!(refused(b"wrong horse"), Some(HandshakeError::Proof));
    assert_eq!(refused(b""), Some(HandshakeError::Proof));
    assert_eq!(refused(b"correct horse"), None);
}

#[test]
fn batches_without_a_handshake_are_refused() {
    let task = task(1);
    let worker = Worker::serve(&task);
    let mut link = Link::raw(worker.address());
    link.send(1, 1, &rows(1));
    assert!(link.close_reason().contains("handshake"));
}

#[test]
fn what_is_not_the_protocol_is_refused_with_a_reason_and_harms_nobody() {
    let task = task(1);
    let worker = Worker::serve(&task);
    let mut link = connect(&worker, &task);
    let reason_for = |bytes: &[u8]| {
        let mut link = Link::raw(worker.address());
        link.write(bytes);
        link.close_reason()
    };
    assert!(reason_for(b"GET / HTTP/1.1\r\n\r\n").contains("not the Packhorse worker protocol"));
    assert!(reason_for(&vec![0xff; 100_000]).contains("not the Packhorse worker protocol"));
    let mut next_version = batch_bytes(1, 1, &rows(1));
    next_version[4] += 1;
    assert!(reason_for(&next_version).contains("is not supported; this side uses version"));
    let mut huge = batch_bytes(1, 1, &rows(1));
    huge[31] = 0x70;
    assert!(reason_for(&huge).contains("over the limit"));
    link.send(1, 1, &rows(1));
    assert_eq!(link.result().0.id, BatchId(1));
}

#[test]
fn a_batch_that_does_not_fit_the_model_is_refused_after_those_before_it_are_answered() {
    let task = task(20);
    let worker = Worker::serve(&task);
    let reason_for = |count: u32, inputs: &[Tensor]| {
        let mut link = connect(&worker, &task);
        link.send(1, 1, &rows(1));
        link.send(2, count, inputs);
        assert_eq!(link.result().0.id, BatchId(1));
        link.close_reason()
    };
    let wide = [Tensor::fp32(&[1, 4], &[0.0; 4])];
    let doubles = [Tensor::new(Datatype::Fp64, &[1, 3], vec![0; 24])];
    assert!(reason_for(5, &rows(5)).contains("5 rows; expected 1 to 4"));
    assert!(reason_for(0, &rows(0)).contains("0 rows"));
    assert!(reason_for(2, &rows(3)).contains("shape [3,3]"));
    assert!(reason_for(1, &wide).contains("declared is [-1,3]"));
    assert!(reason_for(1, &doubles).contains("declared is FP32"));
    assert!(reason_for(1, &[]).contains("0 inputs; declared are 1"));
}

#[test]
fn a_gateway_that_goes_away_in_the_middle_of_a_batch_harms_nobody() {
    let task = task(1);
    let worker = Worker::serve(&task);
    let bytes = batch_bytes(1, 4, &rows(4));
    for length in [1, 20, 40, bytes.len() - 1, bytes.len()] {
        connect(&worker, &task).write(&bytes[..length]);
    }
    let mut link = connect(&worker, &task);
    link.send(9, 1, &rows(1));
    assert_eq!(link.result().0.id, BatchId(9));
}

#[test]
fn on_sigterm_what_is_in_flight_is_answered_before_the_worker_exits() {
    let task = task(200);
    let mut worker = Worker::serve(&task);
    let mut link = connect(&worker, &task);
    let idle = connect(&worker, &task);
    for id in 1..=3 {
        link.send(id, 1, &rows(1));
    }
    worker.terminate();
    assert_eq!(link.message(), Some(ToGateway::Draining));
    link.finish();
    idle.finish();
    let answered: Vec<_> = (0..3).map(|_| link.result().0.id.0).collect();
    assert_eq!(answered, [1, 2, 3]);
    assert_eq!(link.message(), None);
    assert_eq!(worker.exit_code(), Some(i32::from(exit_code::DONE)));
    worker.wait_for(|phase| (phase == WorkerReport::Draining).then_some(()));
}

#[test]
fn an_idle_worker_drains_although_a_gateway_stays_connected() {
    let task = task(1);
    let mut worker = Worker::serve(&task);
    let mut link = connect(&worker, &task);
    worker.terminate();
    assert_eq!(link.message(), Some(ToGateway::Draining));
    assert_eq!(worker.exit_code(), Some(i32::from(exit_code::DONE)));
}

#[test]
fn a_batch_over_its_limit_ends_the_process_after_all_behind_it_are_told() {
    let mut task = task(60_000);
    task.batch_limit_ms = 300;
    let mut worker = Worker::serve(&task);
    let mut links = [connect(&worker, &task), connect(&worker, &task)];
    for (id, link) in (1..).zip(&mut links) {
        link.send(id, 1, &rows(1));
        link.send(id + 10, 1, &rows(1));
    }
    let (mut timed_out, mut behind) = (0, 0);
    for (id, link) in (1..).zip(&mut links) {
        let failures = [link.failure(), link.failure()];
        timed_out += failures
            .iter()
            .filter(|failure| failure.kind == FailureKind::TimedOut)
            .count();
        let not_begun = |failure: &&FailureHeader| failure.kind == FailureKind::NotBegun;
        behind += failures.iter().filter(not_begun).count();
        let ids: BTreeSet<_> = failures.iter().map(|failure| failure.id.0).collect();
        assert_eq!(ids, BTreeSet::from([id, id + 10]));
    }
    assert_eq!((timed_out, behind), (1, 3), "one was running");
    assert_eq!(
        worker.exit_code(),
        Some(i32::from(exit_code::BATCH_TIMED_OUT))
    );
    let (reason, permanent) = worker.failure();
    assert_eq!(reason, "a batch of 1 was still running after 300 ms");
    assert!(!permanent);
}

#[test]
fn many_batches_at_once_are_held_back_and_all_answered() {
    let task = task(1);
    let worker = Worker::serve(&task);
    let mut link = connect(&worker, &task);
    let mut sender = link.clone_for_sending();
    let batches = 200;
    let sending = thread::spawn(move || {
        for id in 0..batches {
            sender.send(id, 4, &rows(4));
        }
    });
    for id in 0..batches {
        assert_eq!(link.result().0.id, BatchId(id));
    }
    sending.join().unwrap();
}

#[test]
fn an_executor_that_knows_its_profile_answers_with_it() {
    let worker_task = task(25);
    let mut worker = Worker::profile(&ProfileTask {
        execution: worker_task.execution,
        device_kind: "V100-SXM2-16GB".parse().unwrap(),
        time_limit_ms: 1000,
        inspect: false,
    });
    let csv = worker.wait_for(|phase| match phase {
        WorkerReport::Measured {
            done: 2,
            total: 2,
            csv,
            kernels: None,
            operators: None,
        } => Some(csv),
        _ => None,
    });
    let ExecutorChoice::Simulated { profile_csv, .. } = simulated(25) else {
        unreachable!()
    };
    let parsed = |csv: &str| ProfileTable::from_csv(csv).unwrap();
    assert_eq!(parsed(&csv), parsed(&profile_csv));
    assert_eq!(worker.exit_code(), Some(i32::from(exit_code::DONE)));
}

#[test]
fn a_simulation_without_a_profile_is_refused_for_good() {
    let mut task = task(1);
    task.execution.program.model = "other:2".parse().unwrap();
    let mut worker = Worker::serve(&task);
    let failure = worker.failure();
    assert_eq!(
        failure,
        (
            "no profile of other:2 on V100-SXM2-16GB for the simulated device".to_owned(),
            true
        )
    );
    assert_eq!(worker.exit_code(), Some(i32::from(exit_code::FAILED)));
}

#[test]
fn a_worker_without_a_readable_secret_does_not_open_the_link() {
    let dir = tempfile::tempdir().unwrap();
    for path in [file(&dir, "empty", b" \n"), dir.path().join("missing")] {
        let mut task = task(1);
        task.links.secret_file = Some(path);
        let (reason, permanent) = Worker::serve(&task).failure();
        assert!(reason.starts_with("link secret file: "), "{reason}");
        assert!(!reason.contains(dir.path().to_str().unwrap()), "{reason}");
        assert!(!permanent);
    }
}

#[test]
fn workers_of_one_device_slow_each_other_and_a_share_binds() {
    let of = |folder: &std::path::Path, share: Option<f64>| {
        let mut task = task(300);
        let ExecutorChoice::Simulated {
            folder: own,
            compute_share,
            ..
        } = &mut task.execution.executor
        else {
            unreachable!()
        };
        folder.clone_into(own);
        *compute_share = share.map(|share| share.try_into().unwrap());
        task
    };
    let folder = tempfile::tempdir().unwrap();
    let tasks = [of(folder.path(), None), of(folder.path(), None)];
    let workers: Vec<Worker> = tasks.iter().map(Worker::serve).collect();
    let mut links: Vec<Link> = (workers.iter().zip(&tasks))
        .map(|(worker, task)| connect(worker, task))
        .collect();
    // Both compute all the time, and each needs the whole device.
    for _ in 0..2 {
        for link in &mut links {
            link.send(0, 1, &rows(1));
        }
        for link in &mut links {
            let compute = link.result().0.stages.compute;
            assert!(compute > Duration::from_millis(400), "{compute:?}");
        }
    }
    let folder = tempfile::tempdir().unwrap();
    let task = of(folder.path(), Some(25.0));
    let worker = Worker::serve(&task);
    let mut link = connect(&worker, &task);
    link.send(0, 1, &rows(1));
    let compute = link.result().0.stages.compute;
    assert!(compute >= Duration::from_millis(1200), "{compute:?}");
}
