//! The pipeline on the CPU, with the stages on one thread and on three.

use std::{
    fs,
    path::Path,
    process::Command,
    thread::{self, JoinHandle},
};

use packhorse_cluster::Capacity;
use packhorse_wire::{FailureKind, ToGateway};
use packhorse_worker_agent::handoff::{PipelineSettings, ServeTask, WorkerReport, exit_code};

use crate::{
    gateway::{Link, Tensor},
    process::{Worker, program, tensor},
    torch::{affine, connect, modules, moody, one_to_one, task},
};

/// Returns the task with all pipeline settings of a CPU.
fn every_way(task: &ServeTask) -> Vec<ServeTask> {
    let pipelines = [(false, 1), (false, 2), (true, 1), (true, 2), (true, 4)];
    let with = |(streams, in_flight)| {
        let mut task = task.clone();
        task.execution.pipeline = PipelineSettings {
            in_flight,
            streams,
            graphs: false,
        };
        task
    };
    pipelines.into_iter().map(with).collect()
}

fn row(x: [f32; 3]) -> [Tensor; 1] {
    [Tensor::fp32(&[1, 3], &x)]
}

/// Sends batches as fast as the worker accepts them, on a thread of their own.
pub(crate) fn send_all(link: &Link, inputs: Vec<[Tensor; 1]>) -> JoinHandle<()> {
    let mut sender = link.clone_for_sending();
    thread::spawn(move || {
        for (id, x) in (0..).zip(&inputs) {
            let rows = x[0].header.shape().dims()[0];
            sender.send(id, u32::try_from(rows).unwrap(), x);
        }
    })
}

#[test]
fn answers_come_in_order_and_hold_what_was_computed_whatever_overlaps() {
    for task in every_way(&affine()) {
        let worker = Worker::serve(&task);
        let mut link = connect(&worker, &task);
        let value = |id: u16| f32::from(id);
        let inputs = (0..50).map(|id| row([value(id), 1.0, 2.0])).collect();
        let sending = send_all(&link, inputs);
        for id in 0..50 {
            let (header, outputs) = link.result();
            assert_eq!(header.id.0, u64::from(id));
            let y = [value(id) + 2.0 + 6.0 + 10.0, 1.0 + 20.0];
            assert_eq!(outputs, [Tensor::fp32(&[1, 2], &y)]);
        }
        sending.join().unwrap();
    }
}

#[test]
fn a_batch_that_fails_among_others_in_flight_spoils_none_of_them() {
    for task in every_way(&moody()) {
        let worker = Worker::serve(&task);
        let mut link = connect(&worker, &task);
        let moods = [8.0, 1.0, 9.0, 2.0, 5.0, 10.0];
        let inputs = moods.map(|mood| row([mood, 0.0, 0.0])).to_vec();
        let sending = send_all(&link, inputs);
        let answered = |x: f32| row([x + 1.0, 1.0, 1.0]);
        assert_eq!(link.result().1, answered(8.0));
        assert_eq!(link.failure().kind, FailureKind::ModuleThrew);
        assert_eq!(link.result().1, answered(9.0));
        assert_eq!(link.failure().kind, FailureKind::WrongOutput);
        assert_eq!(link.failure().kind, FailureKind::ModuleThrew);
        assert_eq!(link.result().1, answered(10.0));
        sending.join().unwrap();
    }
}

#[test]
fn memory_that_a_program_keeps_is_not_written_to_again() {
    let spec = |name| tensor(name, "FP32", &[-1, 3]);
    let keeper = task("Keeper", program(1, vec![spec("x")], vec![spec("y")]));
    for task in every_way(&keeper) {
        let worker = Worker::serve(&task);
        let mut link = connect(&worker, &task);
        let inputs: Vec<_> = (0..20_u16)
            .map(|id| row([f32::from(id), 0.0, 0.0]))
            .collect();
        let sending = send_all(&link, inputs.clone());
        link.result();
        for before in &inputs[..19] {
            assert_eq!(link.result().1, *before);
        }
        sending.join().unwrap();
    }
}

#[test]
fn state_that_a_program_writes_to_again_is_answered_as_it_was() {
    let program = program(
        0,
        vec![tensor("x", "FP32", &[1])],
        vec![tensor("n", "INT64", &[1])],
    );
    for task in every_way(&task("Counter", program)) {
        let worker = Worker::serve(&task);
        let mut link = connect(&worker, &task);
        let sending = send_all(&link, vec![[Tensor::fp32(&[1], &[0.0])]; 20]);
        let count =
            |link: &mut Link| i64::from_le_bytes(link.result().1[0].bytes[..].try_into().unwrap());
        let first = count(&mut link);
        for next in 1..20 {
            assert_eq!(count(&mut link), first + next);
        }
        sending.join().unwrap();
    }
}

#[test]
fn a_worker_drains_with_batches_in_all_stages() {
    for task in every_way(&affine()) {
        let mut worker = Worker::serve(&task);
        let mut link = connect(&worker, &task);
        // There are so many batches that some are still in the socket.
        for id in 0..12 {
            link.send(id, 1, &row([1.0, 0.0, 0.0]));
        }
        worker.terminate();
        link.finish();
        let mut answered = 0;
        while let Some(message) = link.message() {
            if let ToGateway::Result(header) = message {
                answered += link.outputs_of(&header).len();
            }
        }
        assert_eq!(answered, 12);
        assert_eq!(worker.exit_code(), Some(i32::from(exit_code::DONE)));
    }
}

#[test]
fn buffers_and_outputs_are_what_the_program_needs_for_every_shape() {
    let spec = |name| tensor(name, "FP32", &[-1, -1]);
    for task in every_way(&task("Echo", one_to_one(spec("x"), spec("y")))) {
        let worker = Worker::serve(&task);
        let mut link = connect(&worker, &task);
        for (id, columns) in (0..).zip([1_u16, 4000, 3, 0, 9000, 2]) {
            let values: Vec<f32> = (0..columns).map(f32::from).collect();
            let x = [Tensor::fp32(&[1, columns.into()], &values)];
            link.send(id, 1, &x);
            assert_eq!(link.result().1, x);
        }
    }
}

#[test]
fn the_batch_size_that_fits_is_found_reported_and_kept_to() {
    let spec = |name| tensor(name, "FP32", &[-1, 3]);
    let mut task = task("Greedy", program(8, vec![spec("x")], vec![spec("y")]));
    task.execution.pipeline.in_flight = 3;
    let worker = Worker::serve(&task);
    let capacity = worker.wait_for(|phase| match phase {
        WorkerReport::Ready { capacity, .. } => capacity,
        WorkerReport::Failed { reason, .. } => panic!("{reason}"),
        _ => None,
    });
    let expected = Capacity {
        batch_size: 2,
        in_flight: 3,
        multiprocessors: None,
    };
    assert_eq!(capacity, expected);
    let mut link = connect(&worker, &task);
    let rows = |count: u16| {
        let values = vec![1.0; 3 * usize::from(count)];
        [Tensor::fp32(&[count.into(), 3], &values)]
    };
    link.send(1, 2, &rows(2));
    assert_eq!(link.result().1, rows(2));
    link.send(2, 3, &rows(3));
    let failure = link.failure();
    assert_eq!(failure.kind, FailureKind::OutOfMemory);
    assert_eq!(
        failure.message,
        "out of memory: a batch of 3 rows; the memory suffices for 2"
    );
    link.send(3, 1, &rows(1));
    assert_eq!(link.result().1, rows(1));
}

#[test]
fn where_memory_runs_out_while_serving_the_batch_size_that_fits_is_found_anew() {
    let spec = |name| tensor(name, "FP32", &[-1, -1]);
    // The warm-up uses 16 columns.
    let mut batches = task("Glutton", program(64, vec![spec("x")], vec![spec("y")]));
    batches.batch_size = 8;
    for task in every_way(&batches) {
        let worker = Worker::serve(&task);
        let wait_for_batch_size = |size| {
            worker.wait_for(|phase| match phase {
                WorkerReport::Ready { capacity, .. } => {
                    capacity.filter(|capacity| capacity.batch_size == size)
                }
                WorkerReport::Failed { reason, .. } => panic!("{reason}"),
                _ => None,
            })
        };
        wait_for_batch_size(8);
        let mut link = connect(&worker, &task);
        let mut sent = 0;
        let mut ask = |rows: u32, columns: u32| {
            let values = vec![1.0; (rows * columns) as usize];
            let x = [Tensor::fp32(&[rows.into(), columns.into()], &values)];
            sent += 1;
            link.send(sent, rows, &x);
            match link.message() {
                Some(ToGateway::Failure(failure)) => Err((failure.kind, failure.message)),
                Some(ToGateway::Result(header)) => {
                    assert_eq!(link.outputs_of(&header), x);
                    Ok(())
                }
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(ask(8, 32), Ok(()));
        // Rows that are longer than those of the warm-up change nothing for others.
        for _ in 0..2 {
            let (kind, message) = ask(8, 64).unwrap_err();
            assert_eq!(kind, FailureKind::OutOfMemory);
            assert!(!message.contains("suffices"), "{message}");
            assert_eq!(ask(8, 3), Ok(()));
            assert_eq!(ask(4, 64), Ok(()));
        }
        // A request of more rows than were tried: one of the sizes below does not fit, either.
        let (kind, message) = ask(64, 16).unwrap_err();
        assert_eq!(kind, FailureKind::OutOfMemory);
        assert!(!message.contains("suffices"), "{message}");
        wait_for_batch_size(16);
        assert_eq!(ask(16, 16), Ok(()));
        let refused = "out of memory: a batch of 17 rows; the memory suffices for 16".to_owned();
        assert_eq!(ask(17, 3), Err((FailureKind::OutOfMemory, refused)));
        // No size is below one row, and other batches of one row fit.
        assert_eq!(ask(1, 300).unwrap_err().0, FailureKind::OutOfMemory);
        assert_eq!(ask(1, 256), Ok(()));
    }
}

#[test]
fn a_request_of_more_rows_than_batches_are_planned_with_is_computed() {
    let answer = |batch_size| {
        let task = ServeTask {
            batch_size,
            ..affine()
        };
        let worker = Worker::serve(&task);
        let mut link = connect(&worker, &task);
        let values: Vec<f32> = (0_u8..12).map(f32::from).collect();
        link.send(1, 4, &[Tensor::fp32(&[4, 3], &values)]);
        link.result().1
    };
    assert_eq!(answer(1), answer(4));
}

#[test]
fn a_program_that_fits_at_no_batch_size_is_out_of_memory_and_may_be_tried_again() {
    let program = program(
        0,
        vec![tensor("x", "FP32", &[3, 3])],
        vec![tensor("y", "FP32", &[3, 3])],
    );
    let mut worker = Worker::serve(&task("Greedy", program));
    let (reason, permanent) = worker.failure();
    assert!(reason.starts_with("out of memory: "), "{reason}");
    assert!(!permanent);
    assert_eq!(worker.exit_code(), Some(i32::from(exit_code::FAILED)));
}

/// Returns a command that measures a module for one second in batches of four rows of three numbers, with a file in `folder`.
pub(crate) fn bench_of(module: &str, answered: u32, folder: &Path) -> Command {
    let signature = folder.join("model.json");
    let spec = format!(
        r#"{{"name": "m", "inputs": [{{"name": "x", "datatype": "FP32", "shape": [-1, 3]}}],
            "outputs": [{{"name": "y", "datatype": "FP32", "shape": [-1, {answered}]}}]}}"#
    );
    fs::write(&signature, spec).unwrap();
    let mut bench = Command::new(env!("CARGO_BIN_EXE_packhorse-worker"));
    bench
        .arg("bench")
        .arg("--model")
        .arg(modules().join(format!("{module}.pt")))
        .arg("--signature")
        .arg(&signature)
        .args(["--batch-size", "4", "--seconds", "1"]);
    bench
}

#[test]
fn bench_measures_the_pipeline_and_the_tight_loop() {
    let dir = tempfile::tempdir().unwrap();
    let bench = |flags: &[&str]| -> serde_json::Value {
        let output = bench_of("Affine", 2, dir.path())
            .args(flags)
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
        serde_json::from_slice(&output.stdout).unwrap()
    };
    for (flags, mode) in [
        (&["--streams", "on", "--in-flight", "3"][..], "pipeline"),
        (&["--streams", "off", "--graphs", "on"], "pipeline"),
        (&["--tight"], "tight"),
        (&["--turns", "2"], "pipeline"),
    ] {
        let report = bench(flags);
        assert_eq!(report["mode"], mode);
        assert_eq!(report["input_bytes"], 48);
        assert!(report["batches"].as_u64().unwrap() > 0);
        let rows = report["batches_per_s"].as_f64().unwrap() * 4.0;
        assert!((report["requests_per_s"].as_f64().unwrap() / rows - 1.0).abs() < 1e-9);
        assert_eq!(report["stages_ms"].is_null(), mode == "tight");
        assert_eq!(report["batch_ms"].is_null(), mode != "tight");
        assert!(report["cpu_ms_per_batch"].as_f64().unwrap() > 0.0);
        assert!(report["start_s"].as_f64().unwrap() > 0.0);
        assert_eq!(report["cuda_device"], serde_json::Value::Null);
    }
    assert_eq!(bench(&["--streams", "on"])["streams"], true);
    let turns = bench(&["--turns", "2"])["turns"].clone();
    let turns = turns.as_array().unwrap();
    assert_eq!(turns.len(), 2);
    for rate in ["tight_requests_per_s", "requests_per_s"] {
        assert!(turns.iter().all(|turn| turn[rate].as_f64().unwrap() > 0.0));
    }
    let refused = bench(&["--graphs", "on"]);
    assert_eq!(
        refused["without_graphs"],
        "only CUDA devices can record graphs"
    );
}

#[test]
fn memory_of_activations_is_kept_unless_a_bench_of_the_defaults_is_wanted() {
    let dir = tempfile::tempdir().unwrap();
    let faults = |flags: &[&str]| {
        let output = bench_of("Spacious", 3, dir.path())
            .args(["--tight"])
            .args(flags)
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
        let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        report["minor_faults_per_batch"].as_f64().unwrap()
    };
    let (kept, defaults) = (faults(&[]), faults(&["--defaults"]));
    // A batch has 64 MiB of activations, 16384 pages. Where memory is kept, only the first
    // batches touch new pages, and a busy machine computes few batches to spread these over.
    assert!(
        kept < defaults / 10.0,
        "{kept} page faults per batch where memory is kept, {defaults} by default"
    );
}
