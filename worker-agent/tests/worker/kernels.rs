//! Recordings of libtorch's profiler with real programs, without a GPU.

use std::{
    fs,
    io::{BufRead, BufReader, Write},
    process::{Child, ChildStdout, Command, Stdio},
};

use packhorse_api::local_worker::{MeasureCommand, MeasureReply, MeasureTask};
use packhorse_cluster::{ComputeShare, ProfileTable, Program};
use packhorse_kernels::KinetoTrace;
use packhorse_worker_agent::handoff::{ProfileTask, WorkerReport};
use tempfile::TempDir;

use crate::{
    process::{Worker, execution, program, tensor},
    torch::{modules, torch},
};

fn affine() -> Program {
    let (x, y) = (tensor("x", "FP32", &[-1, 3]), tensor("y", "FP32", &[-1, 2]));
    program(4, vec![x], vec![y])
}

/// A worker on the CPU that executes the test's commands.
struct LocalWorker {
    folder: TempDir,
    child: Child,
    replies: BufReader<ChildStdout>,
}

impl LocalWorker {
    fn start(program: Program, module: &str, batch_size: u32) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let task = MeasureTask {
            program,
            artifact: modules().join(format!("{module}.pt")),
            cuda_device: None,
            batch_size,
            compute_share_pct: ComputeShare::new(50.0).unwrap(),
        };
        let file = folder.path().join("task.json");
        fs::write(&file, serde_json::to_vec(&task).unwrap()).unwrap();
        let mut child = Command::new(env!("CARGO_BIN_EXE_packhorse-worker"))
            .args(["measure", "--task"])
            .arg(file)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let replies = BufReader::new(child.stdout.take().unwrap());
        Self {
            folder,
            child,
            replies,
        }
    }

    fn reply(&mut self) -> MeasureReply {
        let mut line = String::new();
        self.replies.read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap()
    }

    fn execute(&mut self, command: &MeasureCommand) -> MeasureReply {
        let line = serde_json::to_string(command).unwrap();
        writeln!(self.child.stdin.as_mut().unwrap(), "{line}").unwrap();
        self.reply()
    }
}

impl Drop for LocalWorker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_recorded_batch_of_a_cpu_has_operators_and_no_kernels() {
    let mut worker = LocalWorker::start(affine(), "Affine", 2);
    assert_eq!(worker.reply(), MeasureReply::Ready);
    // The second recording shows that the first leaves no state behind.
    for name in ["first.json", "second.json"] {
        let trace = worker.folder.path().join(name);
        let command = MeasureCommand::Record {
            trace: trace.clone(),
        };
        assert_eq!(worker.execute(&command), MeasureReply::Done);
        let json = fs::read_to_string(trace).unwrap();
        assert_eq!(
            KinetoTrace::from_json(&json).unwrap(),
            KinetoTrace::default()
        );
        assert!(
            json.contains("\"cpu_op\"") && json.contains("aten::"),
            "{json}"
        );
    }
    assert_eq!(
        worker.execute(&MeasureCommand::UnderProfiler),
        MeasureReply::Done
    );
}

#[test]
fn batches_are_measured_within_their_window() {
    let mut worker = LocalWorker::start(affine(), "Affine", 4);
    assert_eq!(worker.reply(), MeasureReply::Ready);
    let run = |window_ms| MeasureCommand::Run {
        before_ms: 5,
        window_ms,
        after_ms: 5,
    };
    let MeasureReply::Ran {
        batches, median_ms, ..
    } = worker.execute(&run(200))
    else {
        panic!("the command fails");
    };
    assert!(
        batches > 0 && median_ms > 0.0,
        "{batches} of {median_ms} ms"
    );
    let MeasureReply::Failed { reason } = worker.execute(&run(600_000)) else {
        panic!("the command succeeds");
    };
    assert_eq!(
        reason,
        "before_ms, window_ms and after_ms add up to more than the limit of 600000 ms"
    );
}

#[test]
fn a_batch_that_the_program_does_not_take_is_refused() {
    let mut worker = LocalWorker::start(affine(), "Affine", 5);
    let reason = "batch_size: expected 1 to 4, not 5".to_owned();
    assert_eq!(worker.reply(), MeasureReply::Failed { reason });
}

#[test]
fn the_profile_of_a_cpu_has_no_occupancy() {
    let program = affine();
    let worker = Worker::profile(&ProfileTask {
        execution: execution(program.clone(), torch("Affine")),
        device_kind: "cpu-test".parse().unwrap(),
        time_limit_ms: 20_000,
        inspect: false,
    });
    let (csv, kernels) = worker.wait_for(|phase| match phase {
        WorkerReport::Measured { csv, kernels, .. } => Some((csv, kernels)),
        WorkerReport::Failed { reason, .. } => panic!("{reason}"),
        _ => None,
    });
    assert_eq!(kernels, None);
    let table = ProfileTable::from_csv(&csv).unwrap();
    let (.., profile) = table.iter().next().unwrap();
    for row in profile.rows() {
        let metrics = (
            row.achieved_occupancy,
            row.mean_occupancy,
            row.sm_utilization,
        );
        assert_eq!(metrics, (None, None, None));
    }
    let log = fs::read_to_string(worker.handoff().log_path()).unwrap();
    assert!(!log.contains("kernels"), "nothing is recorded: {log}");
    let left = fs::read_dir(worker.handoff().temporary_dir()).unwrap();
    assert_eq!(left.count(), 0, "the trace is gone");
}
