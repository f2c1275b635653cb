//! One process that makes one measurement after the other, with real programs.

use std::{
    fs,
    io::{PipeWriter, Write as _},
};

use packhorse_cluster::{DeviceKind, ProfileTable, Program};
use packhorse_worker_agent::handoff::{
    ExecutorChoice, Handoff, ProfileTask, ReusedTask, WorkerReport, exit_code,
};
use tempfile::TempDir;

use crate::{
    process::{Worker, execution, tensor, wait_for_some},
    torch::{affine, modules, one_to_one, torch},
};

/// A worker that measures, and the hand-over folders of its tasks.
struct Measuring {
    worker: Worker,
    input: PipeWriter,
    folders: TempDir,
    tasks: usize,
}

impl Measuring {
    fn start() -> Self {
        let folders = tempfile::tempdir().unwrap();
        let task = ReusedTask {
            reads: vec![modules()],
            writes: vec![folders.path().to_owned()],
        };
        let (worker, input) = Worker::profile_reused(&task);
        Self {
            worker,
            input,
            folders,
            tasks: 0,
        }
    }

    /// Has a program measured, and returns the last report.
    fn measure(&mut self, program: Program, executor: ExecutorChoice) -> WorkerReport {
        let folder = self.folders.path().join(self.tasks.to_string());
        self.tasks += 1;
        fs::create_dir_all(folder.join("tmp")).unwrap();
        let handoff = Handoff::new(&folder);
        let task = ProfileTask {
            execution: execution(program, executor),
            device_kind: kind(),
            time_limit_ms: 20_000,
            inspect: true,
        };
        handoff.write_task(&task).unwrap();
        writeln!(self.input, "{}", folder.display()).unwrap();
        let last = wait_for_some(|| {
            let status = handoff.read_status().unwrap()?;
            assert_eq!(status.process.pid, self.worker.pid());
            status.phase.is_final().then_some(status.phase)
        });
        last.expect("a result")
    }

    /// Returns the memory, in MiB, that a program is measured to need for a row.
    fn memory_mib(&mut self, module: &str, program: &Program) -> u64 {
        let WorkerReport::Measured { csv, .. } = self.measure(program.clone(), torch(module))
        else {
            panic!("{module} can be measured");
        };
        let table = ProfileTable::from_csv(&csv).unwrap();
        let row = table.get(&program.model, &kind()).unwrap().rows()[0];
        row.memory.unwrap().as_u64() >> 20
    }
}

fn kind() -> DeviceKind {
    "cpu-test".parse().unwrap()
}

#[test]
fn each_program_is_measured_for_itself_and_one_that_cannot_be_leaves_the_process_to_the_next() {
    let mut measuring = Measuring::start();
    let affine = affine().execution.program;
    let report = measuring.measure(affine.clone(), torch("Affine"));
    let WorkerReport::Measured { operators, .. } = report else {
        panic!("{report:?}");
    };
    assert!(operators.unwrap().contains("addmm"));
    let wide = one_to_one(tensor("x", "FP32", &[-1, 3]), tensor("y", "FP32", &[-1, 3]));
    let other = measuring.measure(wide.clone(), torch("Affine"));
    let WorkerReport::Failed { permanent, .. } = other else {
        panic!("{other:?}");
    };
    assert!(permanent, "its output is narrower");
    let small = measuring.memory_mib("Affine", &affine);
    let large = measuring.memory_mib("Spacious", &wide);
    let again = measuring.memory_mib("Affine", &affine);
    println!("{small}, {large} and {again} MiB");
    assert!(large >= small + 50, "64 MiB of activations count");
    assert!(again <= small + 16, "those of an earlier program do not");

    let Measuring {
        mut worker, input, ..
    } = measuring;
    drop(input);
    let left = fs::read_dir(worker.handoff().temporary_dir()).unwrap();
    assert_eq!(left.count(), 0);
    assert_eq!(worker.exit_code(), Some(i32::from(exit_code::DONE)));
}
