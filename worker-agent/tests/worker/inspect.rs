//! The operators of programs, which `packhorse-worker inspect` finds without running them.

use std::{
    fs,
    path::Path,
    process::{Command, Output},
};

use packhorse_estimator::OperatorGraph;
use packhorse_worker_agent::handoff::{WorkerReport, exit_code};

use crate::{
    process::Worker,
    torch::{affine, modules, moody, written_by},
};

/// Inspects a file whose program has one input of 32-bit numbers with these dimensions and any output.
pub(crate) fn inspect(file: &Path, dims: &str) -> Output {
    let folder = tempfile::tempdir().unwrap();
    let signature = folder.path().join("model.json");
    let text = format!(
        r#"{{"max_batch_size": 4, "outputs": [],
            "inputs": [{{"name": "x", "datatype": "FP32", "shape": {dims}}}]}}"#
    );
    fs::write(&signature, text).unwrap();
    Command::new(env!("CARGO_BIN_EXE_packhorse-worker"))
        .args(["inspect", "--model"])
        .arg(file)
        .arg("--signature")
        .arg(&signature)
        .output()
        .unwrap()
}

#[test]
fn the_operators_of_a_linear_layer_are_one_product_of_its_inputs_and_parameters() {
    let output = inspect(&modules().join("Affine.pt"), "[-1, 3]");
    let graph = OperatorGraph::from_json(&String::from_utf8(output.stdout).unwrap()).unwrap();
    // A matrix of 2 x 3 and two biases.
    assert_eq!((graph.parameters, graph.parameter_bytes), (8, 32));
    let [product] = &graph.operators[..] else {
        panic!("{graph:?}")
    };
    assert_eq!((product.name.as_str(), product.count), ("addmm", 1));
    // Two sums of three products.
    assert_eq!(product.operations, (0, 12).into());
    assert_eq!(product.parameter_bytes, 32);
    assert_eq!(product.read_bytes, (0, 12).into());
    assert_eq!(product.written_bytes, (0, 8).into());
    assert_eq!(product.elements, (0, 2).into());
    assert_eq!(graph.activation_bytes, (0, 8).into());
}

#[test]
fn the_operators_of_a_program_that_forks_are_those_of_its_tasks() {
    let output = inspect(&modules().join("Forked.pt"), "[-1, 3]");
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(0), "{:?} {error}", output.status);
    let graph = OperatorGraph::from_json(&String::from_utf8(output.stdout).unwrap()).unwrap();
    let operators = graph.operators.iter();
    let products = operators.filter(|operator| operator.name == "addmm");
    assert_eq!(products.map(|operator| operator.count).sum::<u64>(), 2);
}

#[test]
fn attention_is_one_operator_that_keeps_no_scores() {
    let output = inspect(&modules().join("Attention.pt"), "[-1, 5, 8]");
    let graph = OperatorGraph::from_json(&String::from_utf8(output.stdout).unwrap()).unwrap();
    let [attention] = &graph.operators[..] else {
        panic!("{graph:?}")
    };
    assert_eq!(attention.name, "scaled_dot_product_attention");
    // Two products for 25 pairs of tokens, each of 2 heads with 4 numbers: sums count twice.
    assert_eq!(attention.operations, (0, 2 * 2 * 25 * 2 * 4).into());
    assert_eq!(attention.read_bytes, (0, 3 * 5 * 8 * 4).into());
    // The input, which is seen through a view, and the result, which needs no reordering.
    assert_eq!(graph.activation_bytes, (0, 2 * 5 * 8 * 4).into());
}

#[test]
fn a_program_whose_course_depends_on_its_data_has_no_operators_to_tell() {
    let output = inspect(&modules().join("Moody.pt"), "[-1, 3]");
    assert_eq!(output.status.code(), Some(i32::from(exit_code::FAILED)));
    let reason = String::from_utf8(output.stderr).unwrap();
    assert!(reason.contains("no operators: "), "{reason}");
    assert!(output.stdout.is_empty());
}

#[test]
fn a_package_has_no_operators_to_tell() {
    let output = inspect(&written_by("packages.py").join("Net.pt2"), "[-1, 1, 8, 8]");
    let reason = String::from_utf8(output.stderr).unwrap();
    assert!(reason.contains("compiled ahead of time"), "{reason}");
}

#[test]
fn an_agent_is_told_the_operators_or_why_there_are_none() {
    let mut worker = Worker::operators(&affine().execution);
    let operators = worker.wait_for(|phase| match phase {
        WorkerReport::Inspected { operators } => Some(operators),
        WorkerReport::Failed { reason, .. } => panic!("{reason}"),
        _ => None,
    });
    let graph = OperatorGraph::from_json(&operators).unwrap();
    assert_eq!(graph.operators[0].name, "addmm");
    assert_eq!(worker.exit_code(), Some(i32::from(exit_code::DONE)));

    let mut worker = Worker::operators(&moody().execution);
    let (reason, permanent) = worker.failure();
    assert!(permanent, "{reason}");
    assert_eq!(worker.exit_code(), Some(i32::from(exit_code::FAILED)));
}
