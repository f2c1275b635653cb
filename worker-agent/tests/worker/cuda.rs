//! The worker on a CUDA device, tested without one: with the real libtorch on a stand-in for the CUDA runtime (`stand-ins/cudart.cpp`),
//! which does work that no event orders in any order.

use std::{
    collections::BTreeSet,
    fs,
    io::{BufRead as _, BufReader},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use packhorse_cluster::{Capacity, ProfileRow, ProfileTable, Program, TensorSpec};
use packhorse_wire::FailureKind;
use packhorse_worker_agent::handoff::{
    ExecutorChoice, Optimize, PipelineSettings, PoolTask, ProfileTask, ServeTask, WorkerReport,
    exit_code,
};
use tempfile::TempDir;

use crate::{
    gateway::Tensor,
    pipeline::{bench_of, send_all},
    pool::PoolWorker,
    process::{Worker, execution, program, serve_task, tensor},
    torch::{connect, made_once, modules},
};

/// A node with a stand-in device.
pub(crate) struct Node {
    dir: TempDir,
    environment: Vec<(&'static str, String)>,
}

impl Node {
    pub(crate) fn new(environment: &[(&'static str, &str)]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let runtime = stand_in();
        let path = |name| dir.path().join(name).display().to_string();
        let mut all = vec![
            ("LD_PRELOAD", runtime.display().to_string()),
            (
                "LD_LIBRARY_PATH",
                runtime.parent().unwrap().display().to_string(),
            ),
            ("CUDA_FAKE_LOG", path("log")),
            ("CUDA_FAKE_FAULTS", path("")),
        ];
        let given = environment.iter();
        all.extend(given.map(|(name, value)| (*name, (*value).to_owned())));
        Self {
            dir,
            environment: all,
        }
    }

    pub(crate) fn serve(&self, task: &ServeTask) -> Worker {
        Worker::serve_with(task, &self.environment)
    }

    pub(crate) fn pool(&self, task: &PoolTask) -> PoolWorker {
        PoolWorker::of(Worker::pool_with(task, &[], &self.environment))
    }

    /// Returns the device's log from this line on: `WHAT [STREAM [BYTES]]`.
    pub(crate) fn log(&self, since: usize) -> Vec<String> {
        let log = fs::read_to_string(self.dir.path().join("log")).unwrap();
        log.lines().skip(since).map(str::to_owned).collect()
    }

    pub(crate) fn break_device(&self) {
        fs::write(self.dir.path().join("0"), "").unwrap();
    }
}

/// Returns the path of the stand-in for the CUDA runtime.
fn stand_in() -> PathBuf {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/stand-ins");
    let build = sources.join("build.sh");
    let folder = made_once("cuda", &[&build, &sources.join("cudart.cpp")], |folder| {
        let status = Command::new(&build).arg("cuda").arg(folder).status();
        assert!(status.unwrap().success(), "the stand-in for CUDA is built");
    });
    folder.join("libcudart.so.13")
}

fn task(
    module: &str,
    max_batch_size: u32,
    tensor: &TensorSpec,
    pipeline: PipelineSettings,
) -> ServeTask {
    let output = TensorSpec {
        name: "y".to_owned(),
        ..tensor.clone()
    };
    let program = program(max_batch_size, vec![tensor.clone()], vec![output]);
    task_of(module, program, pipeline)
}

/// Returns the task to serve a program on the device. Its answers are not compared with those of the program as it is: that runs batches, and
/// these tests count what runs.
pub(crate) fn task_of(module: &str, program: Program, pipeline: PipelineSettings) -> ServeTask {
    let artifact = modules().join(format!("{module}.pt"));
    let mut execution = execution(
        program,
        ExecutorChoice::Torch {
            artifact,
            cuda_device: Some(0),
        },
    );
    execution.pipeline = pipeline;
    execution.optimize = Optimize::Trust;
    serve_task(execution)
}

fn rows_of_three() -> TensorSpec {
    tensor("x", "FP32", &[-1, 3])
}

/// Returns all combinations of pipeline settings on a device.
pub(crate) fn every_way() -> impl Iterator<Item = PipelineSettings> {
    let ways = [(false, 1), (false, 3), (true, 1), (true, 2), (true, 4)];
    ways.into_iter().flat_map(|(streams, in_flight)| {
        [false, true].map(|graphs| PipelineSettings {
            in_flight,
            streams,
            graphs,
        })
    })
}

fn batch(id: u16, rows: u16) -> Tensor {
    let values = (0..rows * 3).map(|i| f32::from(id) * 16.0 + f32::from(i));
    Tensor::fp32(&[rows.into(), 3], &values.collect::<Vec<_>>())
}

fn doubled(id: u16, rows: u16) -> Tensor {
    let values = (0..rows * 3).map(|i| f32::from(id) * 32.0 + f32::from(i) * 2.0);
    Tensor::fp32(&[rows.into(), 3], &values.collect::<Vec<_>>())
}

fn ready(worker: &Worker) -> WorkerReport {
    worker.wait_for(|phase| match phase {
        WorkerReport::Ready { .. } => Some(phase),
        WorkerReport::Failed { reason, .. } => panic!("{reason}"),
        _ => None,
    })
}

#[test]
fn batches_in_flight_are_ordered_by_events_alone() {
    for (seed, pipeline) in (1..).zip(every_way()) {
        let node = Node::new(&[("CUDA_FAKE_SEED", &format!("{seed}"))]);
        let task = task("Twice", 4, &rows_of_three(), pipeline);
        let worker = node.serve(&task);
        let mut link = connect(&worker, &task);
        let warm = node.log(0).len();
        let rows = |id: u16| id % 4 + 1;
        let sending = send_all(&link, (0..60).map(|id| [batch(id, rows(id))]).collect());
        for id in 0..60 {
            let (header, outputs) = link.result();
            assert_eq!(header.id.0, u64::from(id));
            assert_eq!(outputs, [doubled(id, rows(id))], "{pipeline:?} seed {seed}");
        }
        sending.join().unwrap();

        // While it serves, the worker neither synchronizes the whole device nor allocates or frees memory.
        let (mut streams, mut told) = (BTreeSet::new(), BTreeSet::new());
        for line in node.log(warm) {
            let mut words = line.split(' ');
            told.insert(words.next().unwrap().to_owned());
            streams.extend(words.next().map(str::to_owned));
        }
        let compute = if pipeline.graphs { "replay" } else { "compute" };
        let mut expected = BTreeSet::from(["copy-in", "copy-out", compute].map(str::to_owned));
        if pipeline.graphs {
            // Inputs are copied to the memory that the graph reads, and outputs from the memory that it writes.
            expected.insert("copy-within".to_owned());
        }
        assert_eq!(told, expected, "{pipeline:?}");
        assert_eq!(streams.len(), if pipeline.streams { 3 } else { 1 });
    }
}

#[test]
fn a_batch_that_is_not_recorded_is_padded_to_one_that_is() {
    let node = Node::new(&[]);
    let pipeline = PipelineSettings {
        in_flight: 2,
        streams: true,
        graphs: true,
    };
    // A batch of three rows cannot run before the worker serves, so that it is not recorded.
    let task = task("TwiceExceptThree", 4, &rows_of_three(), pipeline);
    let worker = node.serve(&task);
    let mut link = connect(&worker, &task);
    let warm = node.log(0).len();
    let sending = send_all(&link, vec![[batch(0, 3)], [batch(1, 4)], [batch(2, 3)]]);
    for (id, rows) in [(0, 3), (1, 4), (2, 3)] {
        assert_eq!(link.result().1, [doubled(id, rows)]);
    }
    sending.join().unwrap();
    let log = node.log(warm);
    let told = |what: &str| log.iter().filter(|line| line.starts_with(what)).count();
    assert_eq!((told("replay"), told("compute")), (3, 0), "{log:?}");
}

#[test]
fn recorded_runs_are_compared_with_the_program_as_it_is() {
    let node = Node::new(&[]);
    let pipeline = PipelineSettings {
        graphs: true,
        ..PipelineSettings::default()
    };
    let mut task = task("Twice", 4, &rows_of_three(), pipeline);
    task.execution.optimize = Optimize::Verify;
    let worker = node.serve(&task);
    let WorkerReport::Ready { verification, .. } = ready(&worker) else {
        unreachable!("it is ready")
    };
    let verification = verification.unwrap();
    assert_eq!((verification.compared, verification.dropped), (3, vec![]));
    assert!(node.log(0).iter().any(|line| line.starts_with("replay ")));
}

#[test]
fn capacity_and_memory_of_a_device_are_reported() {
    let node = Node::new(&[("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "25")]);
    let pipeline = PipelineSettings {
        in_flight: 2,
        streams: true,
        graphs: false,
    };
    let worker = node.serve(&task("Twice", 1, &rows_of_three(), pipeline));
    let WorkerReport::Ready {
        capacity, memory, ..
    } = ready(&worker)
    else {
        unreachable!("it is ready")
    };
    let expected = Capacity {
        batch_size: 1,
        in_flight: 2,
        multiprocessors: Some(33),
    };
    assert_eq!(capacity, Some(expected));
    // The peak memory is all that was allocated, because nothing was freed.
    let allocated = node.log(0).into_iter().filter_map(|line| {
        let bytes = line.strip_prefix("allocate ")?;
        Some(bytes.parse::<u64>().unwrap())
    });
    assert_eq!(memory.unwrap().as_u64(), allocated.sum::<u64>());
}

#[test]
fn the_batch_size_that_fits_into_the_device_is_found() {
    // Rows have 4 MiB of inputs and 4 MiB of outputs.
    let node = Node::new(&[("CUDA_FAKE_MEMORY_MIB", "100")]);
    let rows = tensor("x", "FP32", &[-1, 1 << 20]);
    // Recorded runs need the inputs and outputs twice, for which there is no room, so that none are kept.
    for (streams, graphs) in [(false, false), (true, false), (true, true)] {
        let pipeline = PipelineSettings {
            in_flight: 1,
            streams,
            graphs,
        };
        let task = task("Twice", 64, &rows, pipeline);
        let worker = node.serve(&task);
        let WorkerReport::Ready { capacity, .. } = ready(&worker) else {
            unreachable!("it is ready")
        };
        assert_eq!(capacity.unwrap().batch_size, 8);
        let mut link = connect(&worker, &task);
        let x = Tensor::fp32(&[8, 1 << 20], &vec![1.5; 8 << 20]);
        for id in 0..3 {
            link.send(id, 8, std::slice::from_ref(&x));
            let y = Tensor::fp32(&[8, 1 << 20], &vec![3.0; 8 << 20]);
            assert!(link.result().1 == [y]);
        }
        link.send(3, 16, &[Tensor::fp32(&[16, 1 << 20], &vec![1.5; 16 << 20])]);
        assert_eq!(link.failure().kind, FailureKind::OutOfMemory);
    }
}

#[test]
fn recorded_runs_share_their_memory() {
    const ROW: u64 = 4 << 20;
    let node = Node::new(&[]);
    let rows = tensor("x", "FP32", &[-1, 1 << 20]);
    let pipeline = PipelineSettings {
        in_flight: 1,
        streams: true,
        graphs: true,
    };
    let worker = node.serve(&task("Twice", 8, &rows, pipeline));
    let WorkerReport::Ready { memory, .. } = ready(&worker) else {
        unreachable!("it is ready")
    };
    let captures = node
        .log(0)
        .iter()
        .filter(|line| line.starts_with("capture "))
        .count();
    assert_eq!(captures, 8, "one for each batch size");
    // The inputs and outputs of the largest batch, and those that the graph reads and writes.
    let memory = memory.unwrap().as_u64();
    assert!(
        (4 * 8 * ROW..6 * 8 * ROW).contains(&memory),
        "{memory} bytes"
    );
}

#[test]
fn a_program_with_state_is_not_recorded() {
    let node = Node::new(&[]);
    let pipeline = PipelineSettings {
        in_flight: 1,
        streams: true,
        graphs: true,
    };
    let task = task("Keeper", 1, &rows_of_three(), pipeline);
    let worker = node.serve(&task);
    let mut link = connect(&worker, &task);
    for id in 0..4 {
        link.send(id.into(), 1, &[batch(id, 1)]);
        let (_, outputs) = link.result();
        if id > 0 {
            assert_eq!(outputs, [batch(id - 1, 1)]);
        }
    }
}

#[test]
fn a_measurement_replays_every_batch_size() {
    let measure = |graphs| {
        let node = Node::new(&[]);
        let pipeline = PipelineSettings {
            graphs,
            ..PipelineSettings::default()
        };
        let rows = tensor("x", "FP32", &[-1, 1 << 20]);
        let task = ProfileTask {
            execution: task("Twice", 8, &rows, pipeline).execution,
            device_kind: "gpu-test".parse().unwrap(),
            time_limit_ms: 60_000,
            inspect: false,
        };
        let worker = Worker::profile_with(&task, &node.environment);
        let csv = worker.wait_for(|phase| match phase {
            WorkerReport::Measured { csv, .. } => Some(csv),
            WorkerReport::Failed { reason, .. } => panic!("{reason}"),
            _ => None,
        });
        (node.log(0), ProfileTable::from_csv(&csv).unwrap())
    };
    let rows = |table: &ProfileTable| -> Vec<ProfileRow> {
        let (.., profile) = table.iter().next().unwrap();
        profile.rows().to_vec()
    };
    let (log, recorded) = measure(true);
    let count = |what: &str| log.iter().filter(|line| line.starts_with(what)).count();
    // Only the runs before a recording are not replayed.
    assert!(
        count("capture ") >= 4 && count("compute ") < 30 && count("replay ") > 200,
        "{log:?}"
    );
    let (log, plain) = measure(false);
    assert!(!log.iter().any(|line| line.starts_with("capture ")));
    // The largest size needs the inputs and outputs twice, but no memory for the graphs of the others.
    let memory = |table: &ProfileTable| rows(table).last().unwrap().memory.unwrap().as_u64();
    let (recorded, plain) = (memory(&recorded), memory(&plain));
    assert!(
        recorded <= 2 * plain + (4 << 20),
        "{recorded} and {plain} bytes"
    );
}

#[test]
fn a_device_that_fails_ends_the_worker() {
    for pipeline in every_way() {
        let node = Node::new(&[]);
        let task = task("Twice", 4, &rows_of_three(), pipeline);
        let mut worker = node.serve(&task);
        let mut link = connect(&worker, &task);
        // The device fails at an arbitrary point of these batches.
        for id in 1..=40 {
            link.send(id.into(), 1, &[batch(id, 1)]);
        }
        assert_eq!(link.result().1, [doubled(1, 1)]);
        node.break_device();
        let (reason, permanent) = worker.wait_for(|phase| match phase {
            WorkerReport::Failed { reason, permanent } => Some((reason, permanent)),
            _ => None,
        });
        assert!(
            reason.starts_with("the device failed: ") && reason.contains("illegal memory access"),
            "{reason}"
        );
        assert!(!permanent);
        assert_eq!(worker.exit_code(), Some(i32::from(exit_code::FAILED)));
    }
}

#[test]
fn a_program_that_throws_is_no_failure_of_the_device() {
    // With graphs the batch is padded to one that does not throw.
    for pipeline in every_way().filter(|pipeline| !pipeline.graphs) {
        let node = Node::new(&[]);
        let task = task("TwiceExceptThree", 4, &rows_of_three(), pipeline);
        let worker = node.serve(&task);
        let mut link = connect(&worker, &task);
        for id in 0..8 {
            link.send(id.into(), 3, &[batch(id, 3)]);
            let failure = link.failure();
            assert_eq!(failure.kind, FailureKind::ModuleThrew, "{pipeline:?}");
            assert!(failure.message.contains("three rows"), "{failure:?}");
            link.send(id.into(), 2, &[batch(id, 2)]);
            assert_eq!(link.result().1, [doubled(id, 2)]);
        }
    }
}

#[test]
fn a_device_that_fails_ends_a_measurement_with_the_reason() {
    let node = Node::new(&[]);
    let task = task("Twice", 64, &rows_of_three(), PipelineSettings::default());
    let task = ProfileTask {
        execution: task.execution,
        device_kind: "gpu-test".parse().unwrap(),
        time_limit_ms: 60_000,
        inspect: false,
    };
    let mut worker = Worker::profile_with(&task, &node.environment);
    worker.wait_for(|phase| match phase {
        WorkerReport::Measuring { .. } => Some(()),
        WorkerReport::Failed { reason, .. } => panic!("{reason}"),
        _ => None,
    });
    node.break_device();
    let (reason, permanent) = worker.failure();
    assert!(reason.contains("the device failed: "), "{reason}");
    assert!(!permanent);
    assert_eq!(worker.exit_code(), Some(i32::from(exit_code::FAILED)));
}

#[test]
fn a_bench_whose_device_fails_says_so() {
    for mode in [
        &["--streams", "on"][..],
        &["--streams", "off"],
        &["--tight"],
    ] {
        let node = Node::new(&[]);
        let mut bench = bench_of("Twice", 3, node.dir.path())
            .args(["--wait", "--cuda-device", "0"])
            .args(mode)
            .envs(node.environment.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut said = BufReader::new(bench.stderr.take().unwrap()).lines();
        let warm = said.find(|line| line.as_ref().unwrap() == "warm");
        assert!(warm.is_some(), "{:?}", bench.wait());
        node.break_device();
        drop(bench.stdin.take());
        let last_words = said.last().unwrap().unwrap();
        assert!(
            last_words.starts_with("packhorse-worker bench: the device failed: "),
            "{last_words}"
        );
        let output = bench.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(1));
        assert_eq!(String::from_utf8_lossy(&output.stdout), "");
    }
}

#[test]
fn nothing_is_compiled_while_batches_wait_for_it() {
    for pipeline in every_way() {
        let node = Node::new(&[]);
        let task = task("Chain", 4, &rows_of_three(), pipeline);
        let worker = node.serve(&task);
        let mut link = connect(&worker, &task);
        for id in 0..8 {
            let rows = id % 4 + 1;
            let y = (0..rows * 3).map(|i| (f32::from(id) * 32.0 + f32::from(i) * 2.0 + 1.0) * 4.0);
            link.send(id.into(), rows.into(), &[batch(id, rows)]);
            let y = Tensor::fp32(&[rows.into(), 3], &y.collect::<Vec<_>>());
            assert_eq!(link.result().1, [y]);
        }
    }
}
