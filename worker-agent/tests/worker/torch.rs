//! Real TorchScript programs on libtorch.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    process::Command,
    slice,
};

use packhorse_cluster::{Datatype, Dim, ProfileTable, Program, TensorSpec, TypicalShapes};
use packhorse_estimator::OperatorGraph;
use packhorse_wire::FailureKind;
use packhorse_worker_agent::handoff::{
    ExecutorChoice, ProfileTask, ServeTask, WorkerReport, exit_code,
};

use crate::{
    gateway::{Link, Tensor},
    process::{Worker, execution, file, program, serve_task, tensor},
};

/// Returns the folder with the programs of `modules.py`.
pub(crate) fn modules() -> PathBuf {
    written_by("modules.py")
}

/// Returns the folder with the output of a Python script in this folder.
pub(crate) fn written_by(script: &str) -> PathBuf {
    let project = Path::new(env!("CARGO_MANIFEST_DIR"));
    let name = script.trim_end_matches(".py");
    let script = project.join("tests/worker").join(script);
    made_once(name, &[&script], |folder| {
        let python = project.join("../.venv/bin/python");
        let status = Command::new(python).arg(&script).arg(folder).status();
        assert!(
            status
                .expect("`cargo xtask setup` has made .venv")
                .success()
        );
    })
}

/// Returns a folder with the output of `make`, which runs once per build folder and content of the source files.
pub(crate) fn made_once(name: &str, sources: &[&Path], make: impl FnOnce(&Path)) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    fs::create_dir_all(&folder).unwrap();
    // Tests run in several processes at the same time.
    let lock = File::create(folder.join("lock")).unwrap();
    lock.lock().unwrap();
    let made_from = folder.join("made-from");
    let content: Vec<u8> = sources.iter().flat_map(|s| fs::read(s).unwrap()).collect();
    if fs::read(&made_from).is_ok_and(|from| from == content) {
        return folder;
    }
    make(&folder);
    fs::write(made_from, content).unwrap();
    folder
}

pub(crate) fn torch(module: &str) -> ExecutorChoice {
    ExecutorChoice::Torch {
        artifact: modules().join(format!("{module}.pt")),
        cuda_device: None,
    }
}

pub(crate) fn task(module: &str, program: Program) -> ServeTask {
    serve_task(execution(program, torch(module)))
}

/// Returns a program with one input and one output, in batches of at most four rows.
pub(crate) fn one_to_one(input: TensorSpec, output: TensorSpec) -> Program {
    program(4, vec![input], vec![output])
}

pub(crate) fn affine() -> ServeTask {
    let (x, y) = (tensor("x", "FP32", &[-1, 3]), tensor("y", "FP32", &[-1, 2]));
    task("Affine", one_to_one(x, y))
}

pub(crate) fn moody() -> ServeTask {
    let (x, y) = (tensor("x", "FP32", &[-1, 3]), tensor("y", "FP32", &[-1, 3]));
    task("Moody", one_to_one(x, y))
}

pub(crate) fn connect(worker: &Worker, task: &ServeTask) -> Link {
    Link::connect(worker.address(), task, b"").unwrap()
}

#[test]
fn a_program_answers_what_it_computes_at_every_batch_size() {
    let task = affine();
    let worker = Worker::serve(&task);
    let mut link = connect(&worker, &task);
    for (id, rows) in (0..).zip([1_u16, 4, 2, 3, 1]) {
        let first = |row: u16| f32::from(row * 3);
        let x: Vec<_> = (0..rows)
            .flat_map(|row| [first(row), first(row) + 1.0, first(row) + 2.0])
            .collect();
        link.send(id, rows.into(), &[Tensor::fp32(&[rows.into(), 3], &x)]);
        let y: Vec<_> = x
            .chunks(3)
            .flat_map(|x| [x[0] + 2.0 * x[1] + 3.0 * x[2] + 10.0, x[1] + 20.0])
            .collect();
        let (header, outputs) = link.result();
        assert_eq!(header.id.0, id);
        assert_eq!(outputs, [Tensor::fp32(&[rows.into(), 2], &y)]);
        assert!(!header.stages.compute.is_zero());
    }
    let memory = worker.wait_for(|phase| match phase {
        WorkerReport::Ready { memory, .. } => memory,
        _ => None,
    });
    assert!((0.5..2000.0).contains(&memory.as_mib_f64()), "{memory}");
    // Most of it is what libtorch takes in every process, and no other process shares.
    let status = fs::read_to_string(format!("/proc/{}/status", worker.pid())).unwrap();
    let own = status
        .lines()
        .find_map(|line| line.strip_prefix("RssAnon:"));
    let own: u64 = own.unwrap().trim().trim_end_matches(" kB").parse().unwrap();
    assert!(memory.as_u64() >= own << 10, "{memory}, not {own} KiB");
}

#[test]
fn several_inputs_and_outputs_keep_their_order() {
    let side = |names: [&str; 2]| {
        names
            .iter()
            .map(|name| tensor(name, "INT64", &[-1, 2]))
            .collect()
    };
    let task = task(
        "SumAndDifference",
        program(2, side(["a", "b"]), side(["sum", "difference"])),
    );
    let worker = Worker::serve(&task);
    let mut link = connect(&worker, &task);
    let int64 = |values: [i64; 4]| {
        let bytes = values
            .iter()
            .flat_map(|value| value.to_le_bytes())
            .collect();
        Tensor::new(Datatype::Int64, &[2, 2], bytes)
    };
    link.send(1, 2, &[int64([1, 2, 3, 4]), int64([10, 20, 30, 40])]);
    assert_eq!(
        link.result().1,
        [int64([11, 22, 33, 44]), int64([-9, -18, -27, -36])]
    );
}

#[test]
fn outputs_of_a_dict_are_those_with_their_names_as_keys() {
    let spec = |name| tensor(name, "FP32", &[-1, 3]);
    let declared = program(
        4,
        vec![spec("x")],
        vec![spec("early.twice"), spec("late.sum")],
    );
    let task = task("Keyed", declared);
    let worker = Worker::serve(&task);
    let mut link = connect(&worker, &task);
    link.send(1, 1, &[Tensor::fp32(&[1, 3], &[1.0, 2.0, 3.0])]);
    assert_eq!(
        link.result().1,
        [
            Tensor::fp32(&[1, 3], &[2.0, 4.0, 6.0]),
            Tensor::fp32(&[1, 3], &[2.0, 3.0, 4.0]),
        ]
    );
}

#[test]
fn outputs_within_tuples_and_lists_and_numbers_are_in_their_order() {
    let x = || tensor("x", "FP32", &[1, -1, 2]);
    let outputs = vec![
        tensor("boxes", "FP32", &[-1, 2]),
        tensor("labels", "INT64", &[-1]),
        tensor("scores", "FP32", &[-1]),
    ];
    let detections = task("Detections", program(0, vec![x()], outputs));
    let worker = Worker::serve(&detections);
    let mut link = connect(&worker, &detections);
    let boxes = [1.0, 0.25, 2.0, 0.5];
    link.send(1, 1, &[Tensor::fp32(&[1, 2, 2], &boxes)]);
    let int64 = |values: &[i64]| {
        values
            .iter()
            .flat_map(|value| value.to_le_bytes())
            .collect()
    };
    assert_eq!(
        link.result().1,
        [
            Tensor::fp32(&[2, 2], &boxes),
            Tensor::new(Datatype::Int64, &[2], int64(&[1, 2])),
            Tensor::fp32(&[2], &[0.25, 0.5]),
        ]
    );
    let outputs = vec![
        x(),
        tensor("rows", "INT64", &[]),
        tensor("half", "FP64", &[]),
        tensor("yes", "BOOL", &[]),
    ];
    let numbers = task("Numbers", program(0, vec![x()], outputs));
    let worker = Worker::serve(&numbers);
    let mut link = connect(&worker, &numbers);
    link.send(1, 1, &[Tensor::fp32(&[1, 2, 2], &boxes)]);
    assert_eq!(
        link.result().1,
        [
            Tensor::fp32(&[1, 2, 2], &boxes),
            Tensor::new(Datatype::Int64, &[], int64(&[1])),
            Tensor::new(Datatype::Fp64, &[], 0.5_f64.to_le_bytes().to_vec()),
            Tensor::new(Datatype::Bool, &[], vec![1]),
        ]
    );
}

#[test]
fn a_program_in_training_mode_with_more_methods_and_a_named_tuple_answers_as_in_evaluation_mode() {
    let spec = |name| tensor(name, "FP32", &[-1, 3]);
    let program = program(4, vec![spec("x")], vec![spec("half"), spec("twice")]);
    let task = task("Versatile", program);
    let worker = Worker::serve(&task);
    let mut link = connect(&worker, &task);
    link.send(1, 1, &[Tensor::fp32(&[1, 3], &[3.0, 8.0, 3.0])]);
    let answer = [[1.0, 3.0, 0.0], [6.0, 16.0, 6.0]].map(|y| Tensor::fp32(&[1, 3], &y));
    assert_eq!(link.result().1, answer);
}

#[test]
fn every_datatype_goes_in_and_comes_out_unchanged() {
    for datatype in Datatype::ALL {
        let Some(width) = datatype.width() else {
            continue;
        };
        let spec = |name| tensor(name, datatype.as_str(), &[-1, -1]);
        let task = task("Echo", one_to_one(spec("x"), spec("y")));
        let worker = Worker::serve(&task);
        let mut link = connect(&worker, &task);
        // A boolean is 0 or 1.
        let bytes = (0..8 * width)
            .map(|i| if width == 1 { i % 2 } else { i } as u8)
            .collect();
        let x = Tensor::new(datatype, &[2, 4], bytes);
        link.send(1, 2, slice::from_ref(&x));
        assert_eq!(link.result().1, [x]);
        let empty = Tensor::new(datatype, &[2, 0], Vec::new());
        link.send(2, 2, slice::from_ref(&empty));
        assert_eq!(link.result().1, [empty]);
    }
}

#[test]
fn memory_of_batches_is_used_again_instead_of_faulted_in_anew() {
    let shape = [1, 3, 224, 224];
    let spec = |name| tensor(name, "FP32", &[-1, 3, 224, 224]);
    let task = task("Echo", one_to_one(spec("x"), spec("y")));
    let worker = Worker::serve(&task);
    let mut link = connect(&worker, &task);
    let x = [Tensor::fp32(&shape, &vec![0.5; 3 * 224 * 224])];
    let mut run = |batches| {
        for id in 0..batches {
            link.send(id, 1, &x);
            assert_eq!(link.result().1, x);
        }
        worker.page_faults()
    };
    let before = run(20);
    let per_batch = (run(50) - before) / 50;
    // A batch and its answer have 294 pages.
    assert!(per_batch < 30, "{per_batch} page faults per batch");
}

#[test]
fn views_are_made_contiguous() {
    let (x, y) = (
        tensor("x", "FP32", &[-1, 2, 3]),
        tensor("y", "FP32", &[-1, 3, 2]),
    );
    let task = task("Transposed", one_to_one(x, y));
    let worker = Worker::serve(&task);
    let mut link = connect(&worker, &task);
    link.send(
        1,
        1,
        &[Tensor::fp32(&[1, 2, 3], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0])],
    );
    assert_eq!(
        link.result().1,
        [Tensor::fp32(&[1, 3, 2], &[1.0, 4.0, 2.0, 5.0, 3.0, 6.0])]
    );
}

#[test]
fn an_answer_does_not_change_when_the_program_writes_to_its_state_again() {
    let program = program(
        0,
        vec![tensor("x", "FP32", &[1])],
        vec![tensor("n", "INT64", &[1])],
    );
    let task = task("Counter", program);
    let worker = Worker::serve(&task);
    let mut link = connect(&worker, &task);
    for id in 0..6 {
        link.send(id, 1, &[Tensor::fp32(&[1], &[0.0])]);
    }
    let counts: Vec<_> = (0..6)
        .map(|_| i64::from_le_bytes(link.result().1[0].bytes[..].try_into().unwrap()))
        .collect();
    let consecutive: Vec<_> = (counts[0]..).take(6).collect();
    assert_eq!(counts, consecutive);
}

#[test]
fn a_program_that_throws_or_answers_something_else_fails_that_batch_only() {
    let task = moody();
    let worker = Worker::serve(&task);
    let mut link = connect(&worker, &task);
    let mut failure = |mood: f32| {
        link.send(1, 1, &[Tensor::fp32(&[1, 3], &[mood, 0.0, 0.0])]);
        let failure = link.failure();
        link.send(2, 1, &[Tensor::fp32(&[1, 3], &[8.0, 0.0, 0.0])]);
        assert_eq!(link.result().1, [Tensor::fp32(&[1, 3], &[9.0, 1.0, 1.0])]);
        (failure.kind, failure.message)
    };
    let (kind, message) = failure(1.0);
    assert_eq!(kind, FailureKind::ModuleThrew);
    assert!(
        message.starts_with("the model threw: ") && message.contains("the mood is 1"),
        "{message}"
    );
    let (kind, message) = failure(2.0);
    assert_eq!(kind, FailureKind::WrongOutput);
    assert_eq!(
        message,
        "the model answered shape [1,1] as outputs[0] (\"y\"); declared is [-1,3] with a batch of 1"
    );
    let (kind, message) = failure(3.0);
    assert_eq!(kind, FailureKind::WrongOutput);
    assert!(message.contains("FP64 as outputs[0]"), "{message}");
    let (kind, message) = failure(5.0);
    assert_eq!(kind, FailureKind::ModuleThrew);
    assert!(message.contains("shapes cannot be multiplied"), "{message}");
    assert!(
        !message.contains(".cpp") && !message.contains('/') && !message.contains('\n'),
        "{message}"
    );
}

#[test]
fn a_program_that_never_returns_is_answered_for_and_ends_the_process() {
    let mut task = moody();
    task.batch_limit_ms = 300;
    let mut worker = Worker::serve(&task);
    let mut link = connect(&worker, &task);
    for (id, mood) in [(1, 4.0), (2, 0.0), (3, 0.0)] {
        link.send(id, 1, &[Tensor::fp32(&[1, 3], &[mood, 0.0, 0.0])]);
    }
    // Those behind it were not begun: the gateway gives them to another worker.
    let [hung, behind] = [FailureKind::TimedOut, FailureKind::NotBegun];
    for (id, kind) in [(1, hung), (2, behind), (3, behind)] {
        let failure = link.failure();
        assert_eq!((failure.id.0, failure.kind), (id, kind));
    }
    assert_eq!(
        worker.exit_code(),
        Some(i32::from(exit_code::BATCH_TIMED_OUT))
    );
}

#[test]
fn on_sigterm_the_worker_answers_and_exits_cleanly() {
    let task = affine();
    let mut worker = Worker::serve(&task);
    let mut link = connect(&worker, &task);
    link.send(1, 1, &[Tensor::fp32(&[1, 3], &[0.0; 3])]);
    link.result();
    worker.terminate();
    assert_eq!(link.message(), Some(packhorse_wire::ToGateway::Draining));
    link.finish();
    assert_eq!(link.message(), None);
    assert_eq!(worker.exit_code(), Some(i32::from(exit_code::DONE)));
}

/// Returns the reason for which a worker refuses a program, which must be permanent and have no paths.
fn refusal(task: &ServeTask) -> String {
    let mut worker = Worker::serve(task);
    let (reason, permanent) = worker.failure();
    assert!(permanent, "{reason}");
    assert!(!reason.contains('/') && !reason.contains('\n'), "{reason}");
    assert_eq!(worker.exit_code(), Some(i32::from(exit_code::FAILED)));
    reason
}

#[test]
fn a_file_that_people_take_for_a_program_is_refused_with_what_it_is_and_what_to_do() {
    for (saved, words) in [
        (
            "weights",
            "the file has weights (a state_dict) and no program: load them",
        ),
        (
            "old-weights",
            "the file has weights (a state_dict) and no program: load them",
        ),
        (
            "module",
            "the file is a pickled Python object of the class torch.nn.modules.linear.Linear",
        ),
        (
            "exported",
            "the file is a program of torch.export.save, which is not compiled",
        ),
    ] {
        let mut task = affine();
        task.execution.executor = ExecutorChoice::Torch {
            artifact: modules().join(saved),
            cuda_device: None,
        };
        let reason = refusal(&task);
        assert!(reason.starts_with(words), "{reason}");
    }
}

#[test]
fn a_file_that_is_not_torchscript_is_refused_for_good() {
    let dir = tempfile::tempdir().unwrap();
    let whole = fs::read(modules().join("Affine.pt")).unwrap();
    for (content, expected) in [
        (&b"not a model"[..], "cannot be loaded as TorchScript: "),
        (
            &whole[..whole.len() / 2],
            "the file is an archive that ends too early: ",
        ),
    ] {
        let mut task = affine();
        task.execution.executor = ExecutorChoice::Torch {
            artifact: file(&dir, "model.pt", content),
            cuda_device: None,
        };
        let reason = refusal(&task);
        assert!(reason.starts_with(expected), "{reason}");
    }
}

#[test]
fn a_program_that_is_not_as_declared_is_refused_for_good() {
    let x = || tensor("x", "FP32", &[-1, 3]);
    let y = || tensor("y", "FP32", &[-1, 2]);
    let refused = |module, inputs, outputs| refusal(&task(module, program(4, inputs, outputs)));
    assert_eq!(
        refused("Affine", vec![x(), tensor("z", "FP32", &[-1])], vec![y()]),
        "the program takes 1 arguments; 2 inputs are declared"
    );
    assert_eq!(
        refused("Affine", vec![x()], vec![y(), tensor("z", "FP32", &[-1])]),
        "the model answered 1 outputs; declared are 2"
    );
    assert_eq!(
        refused("Affine", vec![x()], vec![tensor("y", "FP64", &[-1, 2])]),
        "the model answered FP32 as outputs[0] (\"y\"); declared is FP64"
    );
    assert_eq!(
        refused("Affine", vec![x()], vec![tensor("y", "FP32", &[-1, 9])]),
        "the model answered shape [1,2] as outputs[0] (\"y\"); declared is [-1,9] with a batch of 1"
    );
    assert_eq!(
        refused("Dictionary", vec![x()], vec![y()]),
        "the model answered a dict with the keys x; the output \"y\" is none of them"
    );
    let titled = refused("Titled", vec![x()], vec![tensor("x", "FP32", &[-1, 3])]);
    assert_eq!(
        titled,
        "the model answered a text at 1.0; a program returns tensors, numbers, and tuples, lists and dicts of them with texts as keys"
    );
    let reason = refused("Affine", vec![tensor("x", "FP32", &[-1, 5])], vec![y()]);
    assert!(reason.contains("shapes cannot be multiplied"), "{reason}");
}

#[test]
fn a_program_that_takes_no_made_up_ones_is_tried_with_zeros() {
    let (x, y) = (
        tensor("index", "INT64", &[-1]),
        tensor("row", "FP32", &[-1, 2]),
    );
    let task = task("Lookup", one_to_one(x, y));
    Worker::serve(&task).address();
}

#[test]
fn a_program_that_takes_neither_is_tried_with_fractions() {
    let spec = |name| tensor(name, "FP32", &[-1, 3, 3]);
    let task = task("Inverse", one_to_one(spec("x"), spec("y")));
    let worker = Worker::serve(&task);
    let mut link = connect(&worker, &task);
    let x = [2.0, 0.0, 0.0, 0.0, 4.0, 0.0, 0.0, 0.0, 8.0];
    link.send(1, 1, &[Tensor::fp32(&[1, 3, 3], &x)]);
    let y = [0.5, 0.0, 0.0, 0.0, 0.25, 0.0, 0.0, 0.0, 0.125];
    assert_eq!(link.result().1, [Tensor::fp32(&[1, 3, 3], &y)]);
}

#[test]
fn a_program_is_tried_and_measured_with_its_typical_shape() {
    let spec = |name| tensor(name, "FP32", &[-1, -1]);
    let mut task = task("Windows", program(2, vec![spec("x")], vec![spec("y")]));
    let reason = refusal(&task);
    assert!(
        reason.ends_with(
            "; it was tried with zeros, ones and random numbers and 16 in its variable dimensions: declare typical_shape and example of its inputs if it takes others"
        ),
        "{reason}"
    );
    let typical = [-1, 300].map(|dim| Dim::try_from(dim).unwrap());
    task.execution.program.inputs[0].typical_shape = Some(TypicalShapes::one(typical.to_vec()));
    let worker = Worker::serve(&task);
    let mut link = connect(&worker, &task);
    link.send(1, 1, &[Tensor::fp32(&[1, 200], &[1.0; 200])]);
    assert_eq!(link.result().1, [Tensor::fp32(&[1, 2], &[100.0, 100.0])]);
    assert_eq!(measured_or_refused(&task), None);
}

/// Measures the program of a task; the reason if it is refused.
fn measured_or_refused(task: &ServeTask) -> Option<String> {
    let measurement = ProfileTask {
        execution: task.execution.clone(),
        device_kind: "cpu-test".parse().unwrap(),
        time_limit_ms: 1000,
        inspect: false,
    };
    Worker::profile(&measurement).wait_for(|phase| match phase {
        WorkerReport::Measured { .. } => Some(None),
        WorkerReport::Failed { reason, .. } => Some(Some(reason.clone())),
        _ => None,
    })
}

#[test]
fn a_program_is_tried_and_measured_with_each_of_its_usual_shapes() {
    let spec = |name| tensor(name, "FP32", &[-1, -1]);
    let mut task = task("Windows", program(2, vec![spec("x")], vec![spec("y")]));
    let mut declare = |sizes: [u32; 2]| {
        let shapes = sizes.map(|size| serde_json::json!({"shape": [-1, size], "weight": size}));
        let shapes = serde_json::from_value(shapes.to_vec().into()).unwrap();
        task.execution.program.inputs[0].typical_shape = Some(shapes);
        task.clone()
    };
    let suited = declare([200, 300]);
    let worker = Worker::serve(&suited);
    let mut link = connect(&worker, &suited);
    link.send(1, 1, &[Tensor::fp32(&[1, 200], &[1.0; 200])]);
    assert_eq!(link.result().1, [Tensor::fp32(&[1, 2], &[100.0, 100.0])]);
    assert_eq!(measured_or_refused(&suited), None);
    // The lighter one is too short for the program.
    let short = declare([20, 300]);
    assert!(refusal(&short).contains("20 but size is 100"));
    assert!(
        measured_or_refused(&short)
            .unwrap()
            .contains("20 but size is 100")
    );
}

#[test]
fn a_missing_file_or_device_is_no_fault_of_the_program() {
    let missing = ExecutorChoice::Torch {
        artifact: modules().join("missing.pt"),
        cuda_device: None,
    };
    let elsewhere = ExecutorChoice::Torch {
        artifact: modules().join("Affine.pt"),
        cuda_device: Some(99),
    };
    for executor in [missing, elsewhere] {
        let mut task = affine();
        task.execution.executor = executor;
        let (reason, permanent) = Worker::serve(&task).failure();
        assert!(!permanent, "{reason}");
        assert!(!reason.contains('/'), "{reason}");
    }
}

#[test]
fn a_measurement_covers_every_batch_size_with_latency_and_memory() {
    let mut program = affine().execution.program;
    program.max_batch_size = 6;
    let kind: packhorse_cluster::DeviceKind = "cpu-test".parse().unwrap();
    let mut worker = Worker::profile(&ProfileTask {
        execution: execution(program.clone(), torch("Affine")),
        device_kind: kind.clone(),
        time_limit_ms: 20_000,
        inspect: false,
    });
    let csv = worker.wait_for(|phase| match phase {
        WorkerReport::Measured {
            done: 4,
            total: 4,
            csv,
            kernels: None,
            operators: None,
        } => Some(csv),
        WorkerReport::Failed { reason, .. } => panic!("{reason}"),
        _ => None,
    });
    let table = ProfileTable::from_csv(&csv).unwrap();
    let rows = table.get(&program.model, &kind).unwrap().rows();
    assert_eq!(
        rows.iter().map(|row| row.batch_size).collect::<Vec<_>>(),
        [1, 2, 4, 6]
    );
    for row in rows {
        assert!(row.latency_p99.unwrap() >= row.latency);
        assert!(row.memory.unwrap().as_u64() > 0);
    }
    assert_eq!(worker.exit_code(), Some(i32::from(exit_code::DONE)));
}

#[test]
fn a_measurement_reports_the_operators_if_they_are_wanted_and_known() {
    let wanted = |task: ServeTask| ProfileTask {
        execution: task.execution,
        device_kind: "cpu-test".parse().unwrap(),
        time_limit_ms: 0,
        inspect: true,
    };
    let measured = |worker: &Worker| {
        worker.wait_for(|phase| match phase {
            WorkerReport::Measured { operators, .. } => Some(operators),
            WorkerReport::Failed { reason, .. } => panic!("{reason}"),
            _ => None,
        })
    };
    let worker = Worker::profile(&wanted(affine()));
    let early = worker.wait_for(|phase| match phase {
        WorkerReport::Measuring { operators, .. } | WorkerReport::Measured { operators, .. } => {
            Some(operators)
        }
        _ => None,
    });
    let graph = OperatorGraph::from_json(&early.unwrap()).unwrap();
    assert_eq!(graph.operators[0].name, "addmm");
    assert_eq!(measured(&worker), Some(graph.to_json()));
    let files = fs::read_dir(worker.handoff().temporary_dir()).unwrap();
    assert_eq!(files.count(), 0, "the files of the inspection are removed");
    // Its course depends on its data, which an inspection does not have.
    assert_eq!(measured(&Worker::profile(&wanted(moody()))), None);
}

#[test]
fn a_measurement_out_of_time_keeps_what_it_has() {
    let program = affine().execution.program;
    let worker = Worker::profile(&ProfileTask {
        execution: execution(program, torch("Affine")),
        device_kind: "cpu-test".parse().unwrap(),
        time_limit_ms: 0,
        inspect: false,
    });
    worker.wait_for(|phase| match phase {
        WorkerReport::Measured {
            done: 1, total: 3, ..
        } => Some(()),
        WorkerReport::Failed { reason, .. } => panic!("{reason}"),
        _ => None,
    });
}

#[test]
fn the_agent_does_not_need_libtorch() {
    // As in the table of names of the dynamic linker; the agent also knows where the file is.
    const NEEDED: &[u8] = b"\0libtorch_cpu.so\0";
    let needs_libtorch = |binary: &str| {
        let bytes = fs::read(binary).unwrap();
        bytes.windows(NEEDED.len()).any(|window| window == NEEDED)
    };
    assert!(needs_libtorch(env!("CARGO_BIN_EXE_packhorse-worker")));
    assert!(!needs_libtorch(env!("CARGO_BIN_EXE_packhorse-agent")));
}
