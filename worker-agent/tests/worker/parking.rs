//! Weights that leave the memory of a pool worker and come back.

use std::{
    fs,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};

use packhorse_cluster::ByteCount;
use packhorse_wire::{ToGateway, ToWorker, WeightsReport};
use packhorse_worker_agent::handoff::{ExecutorChoice, PoolTask, ServeTask};

use crate::{
    gateway::{Link, Tensor},
    pool::{PoolWorker, named, task},
    process::{Worker, execution, serve_task, tensor},
    torch::{one_to_one, written_by},
};

const MIB: u64 = 1 << 20;

/// Returns the task of a program of `parked.py` whose weights may leave.
pub(crate) fn parked(program: &str, number: u32) -> ServeTask {
    let (x, y) = (
        tensor("x", "FP32", &[-1, 64]),
        tensor("y", "FP32", &[-1, 8]),
    );
    let artifact = written_by("parked.py").join(format!("{program}.pt"));
    let torch = ExecutorChoice::Torch {
        artifact,
        cuda_device: None,
    };
    let mut execution = execution(one_to_one(x, y), torch);
    execution.parks = true;
    named(serve_task(execution), number)
}

pub(crate) fn pool_task(memory_limit: Option<u64>) -> PoolTask {
    PoolTask {
        memory_limit: memory_limit.map(ByteCount::new),
        reads: vec![written_by("parked.py")],
        ..task(60_000)
    }
}

/// Returns inputs that differ from row to row.
fn inputs(seed: u32) -> Tensor {
    let value = |place: u32| ((seed * 31 + place * 7) % 97) as f32 / 50.0 - 1.0;
    Tensor::fp32(&[2, 64], &(0..128).map(value).collect::<Vec<_>>())
}

/// Sends a batch and returns the answer, past reports on the weights.
pub(crate) fn ask(link: &mut Link, seed: u32) -> Vec<Tensor> {
    link.send(u64::from(seed), 2, &[inputs(seed)]);
    loop {
        match link.message().expect("an answer") {
            ToGateway::Weights(_) => {}
            ToGateway::Result(header) => return link.outputs_of(&header),
            other => panic!("{other:?}"),
        }
    }
}

/// Returns the report after so many orders.
pub(crate) fn report_after(link: &mut Link, orders: u32) -> WeightsReport {
    loop {
        match link.message().expect("a report") {
            ToGateway::Weights(report) if report.orders == orders => return report,
            ToGateway::Weights(_) => {}
            other => panic!("{other:?}"),
        }
    }
}

/// Returns the resident memory of a process, in bytes.
pub(crate) fn resident(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let field = { status.lines() }.find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = field.unwrap().trim().trim_end_matches(" kB");
    kib.parse::<u64>().unwrap() << 10
}

#[test]
fn weights_come_back_bit_by_bit_whatever_the_program() {
    let mut pool = PoolWorker::of(Worker::pool(&pool_task(None), &["--confine"]));
    let programs = ["Perceptron0", "Convolutions", "Recurrent", "Encoder"];
    for (program, number) in programs.into_iter().zip(1..) {
        let task = parked(program, number);
        pool.begin(&task);
        let (mut link, first) = pool.connect_deciding(&task);
        assert!(
            first.is_resident() && first.bytes > MIB / 2,
            "{program}: {first:?}"
        );
        let answers: Vec<_> = (0..3).map(|seed| ask(&mut link, seed)).collect();
        let before = resident(pool.worker.pid());

        link.send_message(&ToWorker::Unload(None));
        let unloaded = report_after(&mut link, 1);
        assert!(!unloaded.is_resident(), "{program}: {unloaded:?}");
        let left = before.saturating_sub(resident(pool.worker.pid()));
        assert!(
            left > first.bytes * 8 / 10,
            "{program}: {left} of {first:?}"
        );
        // A batch that comes meanwhile brings them back.
        assert_eq!(ask(&mut link, 1), answers[1], "{program}");

        for (seed, orders) in (0..3).zip([3, 5, 7]) {
            link.send_message(&ToWorker::Unload(None));
            link.send_message(&ToWorker::Load);
            assert!(report_after(&mut link, orders).is_resident(), "{program}");
            assert_eq!(ask(&mut link, seed), answers[seed as usize], "{program}");
        }
        println!("{program}: {} KiB in {:?}", first.bytes >> 10, first.load);
    }
}

#[test]
fn what_cannot_leave_stays_and_answers() {
    let mut pool = PoolWorker::of(Worker::pool(&pool_task(None), &[]));
    for (program, number) in [("Counter", 1), ("Quantised", 2)] {
        let task = parked(program, number);
        pool.begin(&task);
        let (mut link, first) = pool.connect_deciding(&task);
        let before = ask(&mut link, 1);
        link.send_message(&ToWorker::Unload(None));
        let report = report_after(&mut link, 1);
        if first.bytes == 0 {
            assert!(report.is_resident(), "{program}: {report:?}");
        }
        let after = ask(&mut link, 1);
        if program == "Counter" {
            assert_eq!(first.bytes, 0, "its state would be lost");
            assert_ne!(before, after, "it counts on");
        } else {
            assert_eq!(before, after, "{program}");
        }
    }
}

/// Sends a row of equal numbers, and returns the first number of the answer, which is a whole one.
fn first_for(link: &mut Link, id: u64, value: f32) -> i64 {
    link.send(id, 1, &[Tensor::fp32(&[1, 64], &[value; 64])]);
    loop {
        match link.message().expect("an answer") {
            ToGateway::Weights(_) => {}
            ToGateway::Result(header) => {
                let outputs = link.outputs_of(&header);
                return f32::from_le_bytes(outputs[0].bytes[..4].try_into().unwrap()) as i64;
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn what_a_program_writes_to_its_weights_is_not_lost() {
    let mut pool = PoolWorker::of(Worker::pool(&pool_task(None), &[]));
    let (rarely, captured) = (parked("Rarely", 1), parked("Captured", 2));
    pool.begin(&rarely);
    pool.begin(&captured);
    let (mut link, first) = pool.connect_deciding(&rarely);
    assert!(first.bytes > MIB, "it seems to write nothing: {first:?}");
    assert_eq!(first_for(&mut link, 1, 0.5), 0);
    link.send_message(&ToWorker::Unload(None));
    assert!(!report_after(&mut link, 1).is_resident());
    assert_eq!(first_for(&mut link, 2, 1e6), 1);
    // From now on its weights are others than those of the file.
    link.send_message(&ToWorker::Unload(None));
    let report = report_after(&mut link, 2);
    assert!(report.is_resident() && report.bytes == 0, "{report:?}");
    assert_eq!(first_for(&mut link, 3, 1e6), 2);

    let (mut link, first) = pool.connect_deciding(&captured);
    assert_eq!(first.bytes, 0, "it writes in every run");
    let before = first_for(&mut link, 1, 0.5);
    assert_eq!(first_for(&mut link, 2, 0.5), before + 1);
}

#[test]
fn memory_that_batches_leave_free_is_there_for_weights_again() {
    let mut pool = PoolWorker::of(Worker::pool(&pool_task(Some(480 * MIB)), &[]));
    let spread = parked("Spread", 1);
    let others: Vec<ServeTask> = (0..8)
        .map(|number| parked(&format!("Perceptron{number}"), number + 2))
        .collect();
    for task in others.iter().chain([&spread]) {
        pool.begin(task);
    }
    let mut links: Vec<Link> = { others.iter() }
        .map(|task| pool.connect_deciding(task).0)
        .collect();
    let first: Vec<_> = { links.iter_mut() }.map(|link| ask(link, 5)).collect();
    let (mut link, _) = pool.connect_deciding(&spread);
    for round in 0..3 {
        // One batch takes more than there is.
        ask(&mut link, 1);
        for (number, link) in links.iter_mut().enumerate() {
            assert_eq!(
                ask(link, 5),
                first[number],
                "round {round}, program {number}"
            );
        }
    }
}

#[test]
fn a_pool_stays_within_its_memory_whatever_comes() {
    let small = PoolWorker::of(Worker::pool(&pool_task(None), &[]));
    let base = {
        let mut small = small;
        let first = parked("Perceptron0", 1);
        small.begin(&first);
        ask(&mut small.connect_deciding(&first).0, 1);
        resident(small.worker.pid())
    };
    // Room for the process with its first program, for a load, and for a few programs more.
    let limit = base + 70 * MIB;
    let mut pool = PoolWorker::of(Worker::pool(&pool_task(Some(limit)), &[]));
    let pid = pool.worker.pid();
    let (most, ends) = (
        Arc::new(AtomicU64::new(0)),
        Arc::new(AtomicBool::new(false)),
    );
    let watch = thread::spawn({
        let (most, ends) = (Arc::clone(&most), Arc::clone(&ends));
        move || {
            while !ends.load(Ordering::Relaxed) {
                most.fetch_max(resident(pid), Ordering::Relaxed);
                thread::sleep(Duration::from_millis(1));
            }
        }
    });
    let tasks: Vec<ServeTask> = (0..12)
        .map(|number| parked(&format!("Perceptron{number}"), number + 1))
        .collect();
    for task in &tasks {
        pool.begin(task);
    }
    let mut links: Vec<Link> = { tasks.iter() }
        .map(|task| pool.connect_deciding(task).0)
        .collect();
    let first: Vec<_> = { links.iter_mut() }.map(|link| ask(link, 5)).collect();
    for round in 0..5 {
        for (number, link) in links.iter_mut().enumerate() {
            assert_eq!(
                ask(link, 5),
                first[number],
                "round {round}, program {number}"
            );
        }
    }
    ends.store(true, Ordering::Relaxed);
    watch.join().unwrap();
    let most = most.load(Ordering::Relaxed);
    println!(
        "base {} MiB, limit {} MiB, most {} MiB",
        base / MIB,
        limit / MIB,
        most / MIB
    );
    assert!(most <= limit, "{most} of {limit}");
    // All answer differently, so that none has the weights of another.
    let distinct: std::collections::BTreeSet<_> =
        first.iter().map(|answer| &answer[0].bytes).collect();
    assert_eq!(distinct.len(), tasks.len());
}
