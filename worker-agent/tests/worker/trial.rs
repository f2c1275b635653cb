//! The trial of programs of which only the inputs are known.

use std::{fs, path::Path, process::Command};

use packhorse_api::local_worker::{TrialReply, TriedOutput};
use packhorse_cluster::{Datatype, Dim};
use serde_json::json;

use crate::torch::modules;

/// Tries a module with one input of this datatype and these dimensions.
fn tried(module: &str, max_batch_size: u32, datatype: &str, shape: &str) -> TrialReply {
    let folder = tempfile::tempdir().unwrap();
    let shape: Vec<i64> = serde_json::from_str(shape).unwrap();
    let task = json!({
        "artifact": modules().join(module),
        "max_batch_size": max_batch_size,
        "inputs": [{"name": "x", "datatype": datatype, "shape": shape}],
    });
    fs::write(folder.path().join("task.json"), task.to_string()).unwrap();
    run(folder.path())
}

fn run(folder: &Path) -> TrialReply {
    let output = Command::new(env!("CARGO_BIN_EXE_packhorse-worker"))
        .args(["trial", "--task"])
        .arg(folder.join("task.json"))
        .env("TMPDIR", folder)
        .output()
        .unwrap();
    serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{e}: {output:?}"))
}

fn reason(reply: TrialReply) -> String {
    match reply {
        TrialReply::Failed { reason } => reason,
        TrialReply::Ran { outputs } => panic!("{outputs:?}"),
    }
}

#[test]
fn the_outputs_of_a_batch_and_of_sizes_that_vary_are_found() {
    let output = |datatype, shape: &[i64]| TriedOutput {
        name: None,
        datatype,
        shape: shape
            .iter()
            .map(|dim| Dim::try_from(*dim).unwrap())
            .collect(),
    };
    let ran = |output| TrialReply::Ran {
        outputs: vec![output],
    };
    let affine = tried("Affine.pt", 8, "FP32", "[-1, 3]");
    assert_eq!(affine, ran(output(Datatype::Fp32, &[-1, 2])));
    let twice = tried("Twice.pt", 8, "FP16", "[-1, -1, 5]");
    assert_eq!(twice, ran(output(Datatype::Fp16, &[-1, -1, 5])));
    let alone = tried("Twice.pt", 0, "FP64", "[4]");
    assert_eq!(alone, ran(output(Datatype::Fp64, &[4])));
}

#[test]
fn the_outputs_of_a_dict_have_its_keys_as_names() {
    let TrialReply::Ran { outputs } = tried("Keyed.pt", 8, "FP32", "[-1, 3]") else {
        panic!("it runs");
    };
    let names: Vec<_> = outputs
        .iter()
        .filter_map(|output| output.name.as_deref())
        .collect();
    assert_eq!(names, ["late.sum", "late.difference", "early.twice"]);
}

#[test]
fn rows_that_are_no_batch_are_refused_with_the_reason() {
    // It answers eight zeros, whatever it is asked.
    let reader = reason(tried("Reader.pt", 8, "INT64", "[-1]"));
    let expected = "output 0 is [8] for a batch of 2: its first dimension is not the batch";
    assert_eq!(reader, expected);
}

#[test]
fn a_program_that_does_not_run_says_why() {
    let wrong = reason(tried("Affine.pt", 8, "FP32", "[-1, 4]"));
    assert!(wrong.starts_with("the model threw"), "{wrong}");
    let many = reason(tried("SumAndDifference.pt", 8, "FP32", "[-1, 3]"));
    assert!(
        many.contains("takes 2 arguments; 1 inputs are declared"),
        "{many}"
    );
    let counter = reason(tried("Counter.pt", 0, "FP32", "[3]"));
    assert!(
        counter.starts_with("it answers the same inputs differently each time"),
        "{counter}"
    );
    let titled = reason(tried("Titled.pt", 8, "FP32", "[-1, 3]"));
    assert!(titled.contains("a text at 1.0"), "{titled}");
}

#[test]
fn a_program_of_embeddings_is_tried_with_small_indices() {
    let lookup = tried("Lookup.pt", 8, "INT64", "[-1]");
    assert!(matches!(lookup, TrialReply::Ran { .. }), "{lookup:?}");
}
