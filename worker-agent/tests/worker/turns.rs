//! The turns of a device's workers: the test holds the lock of the device in place of another worker.

use std::{
    fs::{self, File},
    path::Path,
    thread,
    time::{Duration, Instant},
};

use packhorse_worker_agent::handoff::{Execution, ProfileTask, WorkerReport};

use crate::{
    process::{LIMIT, Worker, serve_task},
    torch::affine,
};

/// Returns the lock's file, and a program on its device.
fn device(folder: &Path) -> (File, Execution) {
    let path = folder.join("cpu");
    let file = File::create(&path).unwrap();
    let mut execution = affine().execution;
    execution.device_lock = Some(path);
    (file, execution)
}

/// Waits until the worker waits for a lock, as `/proc/locks` shows.
fn wait_until_it_waits(worker: &Worker) {
    let pid = worker.pid().to_string();
    let end = Instant::now() + LIMIT;
    let waits = |line: &str| line.contains("-> FLOCK") && line.split(' ').any(|word| word == pid);
    while !fs::read_to_string("/proc/locks")
        .unwrap()
        .lines()
        .any(waits)
    {
        assert!(Instant::now() < end, "the worker does not wait");
        thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_replica_starts_beside_others_but_not_beside_a_measurement() {
    let folder = tempfile::tempdir().unwrap();
    let (lock, execution) = device(folder.path());
    let task = serve_task(execution);
    lock.lock_shared().unwrap();
    Worker::serve(&task).address();

    lock.lock().unwrap();
    let worker = Worker::serve(&task);
    wait_until_it_waits(&worker);
    lock.unlock().unwrap();
    worker.address();
    // A replica that serves does not hold it.
    lock.lock().unwrap();
}

#[test]
fn a_measurement_waits_while_a_replica_starts() {
    let folder = tempfile::tempdir().unwrap();
    let (lock, execution) = device(folder.path());
    lock.lock_shared().unwrap();
    let worker = Worker::profile(&ProfileTask {
        execution,
        device_kind: "cpu-test".parse().unwrap(),
        time_limit_ms: 60_000,
        inspect: false,
    });
    wait_until_it_waits(&worker);
    let done = worker.wait_for(|phase| match phase {
        WorkerReport::Measuring { done, .. } => Some(done),
        phase => panic!("{phase:?}"),
    });
    assert_eq!(done, 0);
    lock.unlock().unwrap();
    let (done, total) = worker.wait_for(|phase| match phase {
        WorkerReport::Measured { done, total, .. } => Some((done, total)),
        WorkerReport::Failed { reason, .. } => panic!("{reason}"),
        _ => None,
    });
    assert_eq!(done, total);
}
