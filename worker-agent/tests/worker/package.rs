//! Real packages that were compiled ahead of time, on libtorch.

use std::{fs, path::PathBuf};

use packhorse_cluster::Program;
use packhorse_worker_agent::handoff::{ExecutorChoice, ServeTask, exit_code};
use serde::Deserialize;

use crate::{
    gateway::{Link, Tensor},
    process::{Worker, execution, program, serve_task, tensor},
    torch::written_by,
};

fn folder() -> PathBuf {
    written_by("packages.py")
}

fn net(program: Program) -> ServeTask {
    of_package("Net.pt2", program)
}

fn of_package(file: &str, program: Program) -> ServeTask {
    let executor = ExecutorChoice::Torch {
        artifact: folder().join(file),
        cuda_device: None,
    };
    serve_task(execution(program, executor))
}

/// Returns the program as the package was compiled, for batches of at most four rows.
fn declared() -> Program {
    let (x, y) = (
        tensor("x", "FP32", &[-1, 1, 8, 8]),
        tensor("y", "FP32", &[-1, 2]),
    );
    program(4, vec![x], vec![y])
}

/// The outputs of eager PyTorch for four rows.
#[derive(Deserialize)]
struct Eager {
    x: Vec<f32>,
    y: Vec<f32>,
}

#[test]
fn a_package_answers_what_eager_pytorch_computes_at_every_batch_size() {
    answers_like_eager("Net.pt2");
}

/// The package has programs for one and for four rows, so that batches of two and three are padded.
#[test]
fn a_package_with_a_program_per_batch_size_answers_the_same() {
    answers_like_eager("Sizes.pt2");
}

fn answers_like_eager(file: &str) {
    let task = of_package(file, declared());
    let worker = Worker::serve(&task);
    let mut link = Link::connect(worker.address(), &task, b"").unwrap();
    let eager: Eager =
        serde_json::from_slice(&fs::read(folder().join("Net.json")).unwrap()).unwrap();
    for (id, rows) in (0..).zip([3_u16, 1, 4, 2, 3]) {
        let wide = usize::from(rows);
        let x = Tensor::fp32(&[rows.into(), 1, 8, 8], &eager.x[..64 * wide]);
        link.send(id, rows.into(), &[x]);
        let (header, outputs) = link.result();
        assert_eq!(header.id.0, id);
        let y = outputs[0].bytes.chunks_exact(4);
        let y: Vec<f32> = y
            .map(|y| f32::from_le_bytes(y.try_into().unwrap()))
            .collect();
        assert_eq!(y.len(), 2 * wide);
        for (ours, eager) in y.iter().zip(&eager.y) {
            assert!(
                (ours - eager).abs() <= 1e-4,
                "{rows} rows: {ours}, not {eager}"
            );
        }
    }
    let unpacked = fs::read_dir(worker.handoff().temporary_dir()).unwrap();
    assert!(
        unpacked.count() > 0,
        "it unpacks itself into a folder of its own"
    );
}

fn refusal(program: Program) -> String {
    refusal_of(&net(program))
}

fn refusal_of(task: &ServeTask) -> String {
    let mut worker = Worker::serve(task);
    let (reason, permanent) = worker.failure();
    assert!(permanent, "{reason}");
    assert_eq!(worker.exit_code(), Some(exit_code::FAILED.into()));
    reason
}

#[test]
fn a_package_is_refused_for_inputs_that_it_was_not_compiled_for() {
    let (x, y) = (
        tensor("x", "FP32", &[-1, 1, 9, 9]),
        tensor("y", "FP32", &[-1, 2]),
    );
    refusal(program(4, vec![x], vec![y]));
    let reason = refusal(Program {
        max_batch_size: 64,
        ..declared()
    });
    assert!(!reason.contains('/'), "{reason}");
    let twice = vec![
        declared().inputs[0].clone(),
        tensor("z", "FP32", &[-1, 1, 8, 8]),
    ];
    let reason = refusal(Program {
        inputs: twice,
        ..declared()
    });
    assert_eq!(
        reason,
        "the program takes 1 arguments; 2 inputs are declared"
    );
}

#[test]
fn a_package_is_refused_where_its_largest_program_is_too_small() {
    let reason = refusal_of(&of_package(
        "Sizes.pt2",
        Program {
            max_batch_size: 8,
            ..declared()
        },
    ));
    assert_eq!(
        reason,
        "the package accepts batches of at most 4 rows; max_batch_size is 8"
    );
}
