//! Programs that leave the memory of a pool worker, and are loaded again from their files.

use std::{fs, path::Path, process::Command, thread};

use packhorse_cluster::ByteCount;
use packhorse_wire::{ToGateway, ToWorker, WeightsPlace, WeightsReport};
use packhorse_worker_agent::handoff::{ExecutorChoice, PoolTask, ServeTask};

use crate::{
    gateway::Link,
    parking::{ask, parked, pool_task, report_after, resident},
    pool::PoolWorker,
    process::Worker,
    torch::written_by,
};

/// Starts a pool worker that keeps so many bytes of warm weights.
fn pool(warm_limit: u64, reads: &Path) -> PoolWorker {
    let mut task = PoolTask {
        warm_limit: Some(ByteCount::new(warm_limit)),
        ..pool_task(None)
    };
    task.reads.push(reads.to_owned());
    PoolWorker::of(Worker::pool(&task, &["--confine"]))
}

/// Returns the report of weights that have left memory, after so many orders: at once, or with the end of the last batch.
fn cold_after(link: &mut Link, orders: u32) -> WeightsReport {
    loop {
        match link.message().expect("a report") {
            ToGateway::Weights(report)
                if report.orders == orders && report.place == WeightsPlace::Cold =>
            {
                return report;
            }
            ToGateway::Weights(_) => {}
            other => panic!("{other:?}"),
        }
    }
}

/// Returns the task of a program with a file of its own in this folder.
fn with_own_file(folder: &Path, program: &str, number: u32) -> (ServeTask, std::path::PathBuf) {
    let mut task = parked(program, number);
    let file = folder.join(format!("{program}.pt"));
    fs::copy(written_by("parked.py").join(format!("{program}.pt")), &file).unwrap();
    task.execution.executor = ExecutorChoice::Torch {
        artifact: file.clone(),
        cuda_device: None,
    };
    (task, file)
}

#[test]
fn programs_are_loaded_again_from_their_files_and_answer_the_same() {
    let mut pool = pool(0, &written_by("parked.py"));
    let programs = ["Perceptron0", "Convolutions", "Recurrent", "Encoder"];
    for (program, number) in programs.into_iter().zip(1..) {
        let task = parked(program, number);
        pool.begin(&task);
        let (mut link, first) = pool.connect_deciding(&task);
        assert!(!first.cold_load.is_zero(), "{program}: {first:?}");
        let answers: Vec<_> = (0..3).map(|seed| ask(&mut link, seed)).collect();
        let before = resident(pool.worker.pid());
        for (seed, orders) in (0..3).zip([1, 3, 5]) {
            link.send_message(&ToWorker::Unload(None));
            let cold = cold_after(&mut link, orders);
            assert_eq!(cold.bytes, first.bytes, "{program}");
            let left = before.saturating_sub(resident(pool.worker.pid()));
            assert!(left > first.bytes / 2, "{program}: {left} of {first:?}");
            link.send_message(&ToWorker::Load);
            let loaded = report_after(&mut link, orders + 1);
            assert_eq!(loaded.place, WeightsPlace::Resident, "{program}");
            assert_eq!(ask(&mut link, seed), answers[seed as usize], "{program}");
        }
        // A batch that comes meanwhile has the program loaded.
        link.send_message(&ToWorker::Unload(None));
        cold_after(&mut link, 7);
        assert_eq!(ask(&mut link, 1), answers[1], "{program}");
    }
}

#[test]
fn those_leave_memory_that_were_used_least_recently_and_those_whose_weights_stay_never_do() {
    let one = {
        let mut pool = pool(0, &written_by("parked.py"));
        let task = parked("Perceptron0", 1);
        pool.begin(&task);
        pool.connect_deciding(&task).1.bytes
    };
    let mut pool = pool(2 * one + one / 2, &written_by("parked.py"));
    let counter = parked("Counter", 9);
    pool.begin(&counter);
    let (mut of_counter, _) = pool.connect_deciding(&counter);
    let answered = ask(&mut of_counter, 1);
    let tasks: Vec<ServeTask> = (0..3)
        .map(|number| parked(&format!("Perceptron{number}"), number + 1))
        .collect();
    let mut links = Vec::new();
    for task in &tasks {
        pool.begin(task);
        links.push(pool.connect_deciding(task).0);
    }
    for (seed, link) in [(1, 1), (2, 0), (3, 2)] {
        ask(&mut links[link], seed);
    }
    for link in &mut links {
        link.send_message(&ToWorker::Unload(None));
    }
    assert_eq!(cold_after(&mut links[1], 1).bytes, one, "it was used first");
    for link in [0, 2] {
        assert_eq!(report_after(&mut links[link], 1).place, WeightsPlace::Warm);
    }
    of_counter.send_message(&ToWorker::Unload(None));
    assert!(report_after(&mut of_counter, 1).is_resident());
    assert_ne!(ask(&mut of_counter, 1), answered, "it counts on");
}

#[test]
fn a_program_that_is_loaded_in_the_place_of_another_does_not_leave_memory_for_it() {
    let mut pool = pool(12 << 20, &written_by("parked.py"));
    let tasks = [0, 1, 2].map(|number| parked(&format!("Perceptron{number}"), number + 1));
    let mut links = Vec::new();
    for task in &tasks {
        pool.begin(task);
        let (link, first) = pool.connect_deciding(task);
        // There is room for one of them, and not for two.
        assert!((7 << 20..12 << 20).contains(&first.bytes), "{first:?}");
        links.push(link);
    }
    ask(&mut links[1], 1);
    links[0].send_message(&ToWorker::Unload(None));
    assert_eq!(report_after(&mut links[0], 1).place, WeightsPlace::Warm);
    // Each is loaded in the place of the one before it, when it was used less recently.
    let mut orders = [1, 0];
    for turn in 0..6 {
        let (wanted, gone) = (turn % 2, (turn + 1) % 2);
        links[gone].send_message(&ToWorker::Unload(Some(tasks[wanted].replica)));
        orders[gone] += 1;
        let left = report_after(&mut links[gone], orders[gone]);
        assert_eq!(left.place, WeightsPlace::Warm, "turn {turn}");
        links[wanted].send_message(&ToWorker::Load);
        orders[wanted] += 1;
        loop {
            match links[wanted].message().expect("a report") {
                ToGateway::Weights(report) if report.is_resident() => break,
                ToGateway::Weights(report) => {
                    assert_eq!(report.place, WeightsPlace::Warm, "turn {turn}");
                }
                other => panic!("{other:?}"),
            }
        }
    }
    // Without one that is wanted, the one that was used least recently leaves.
    links[2].send_message(&ToWorker::Unload(None));
    assert_eq!(report_after(&mut links[2], 1).place, WeightsPlace::Cold);
}

#[test]
fn a_program_whose_file_is_gone_fails_alone_and_serves_again_once_it_is_back() {
    let folder = tempfile::tempdir().unwrap();
    let mut pool = pool(0, folder.path());
    let (first, file) = with_own_file(folder.path(), "Perceptron0", 1);
    let (second, _) = with_own_file(folder.path(), "Perceptron1", 2);
    pool.begin(&first);
    pool.begin(&second);
    let (mut of_first, _) = pool.connect_deciding(&first);
    let (mut of_second, _) = pool.connect_deciding(&second);
    let answers = (ask(&mut of_first, 1), ask(&mut of_second, 1));
    of_first.send_message(&ToWorker::Unload(None));
    cold_after(&mut of_first, 1);
    let kept = folder.path().join("kept");
    fs::rename(&file, &kept).unwrap();
    of_first.send_message(&ToWorker::Load);
    let (reason, permanent) = pool.failure_of_served(&first);
    assert!(!permanent && reason.contains("file"), "{reason}");
    assert_eq!(ask(&mut of_second, 1), answers.1);
    fs::rename(&kept, &file).unwrap();
    pool.begin(&first);
    assert_eq!(ask(&mut pool.connect_deciding(&first).0, 1), answers.0);
}

#[test]
fn a_load_that_takes_long_keeps_no_batch_of_others_waiting() {
    let folder = tempfile::tempdir().unwrap();
    let mut pool = pool(0, folder.path());
    let (slow, file) = with_own_file(folder.path(), "Perceptron0", 1);
    let (other, _) = with_own_file(folder.path(), "Perceptron1", 2);
    pool.begin(&slow);
    pool.begin(&other);
    let (mut of_slow, _) = pool.connect_deciding(&slow);
    let (mut of_other, _) = pool.connect_deciding(&other);
    of_slow.send_message(&ToWorker::Unload(None));
    cold_after(&mut of_slow, 1);
    // Who opens it waits until somebody writes to it.
    fs::remove_file(&file).unwrap();
    assert!(
        Command::new("mkfifo")
            .arg(&file)
            .status()
            .unwrap()
            .success()
    );
    of_slow.send_message(&ToWorker::Load);
    for orders in 1..4 {
        ask(&mut of_other, orders);
    }
    // Whoever has opened it finds its end, however often it is opened.
    thread::spawn(move || while fs::File::options().write(true).open(&file).is_ok() {});
    pool.failure_of_served(&slow);
    ask(&mut of_other, 5);
}
