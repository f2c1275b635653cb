//! Torchvision's operators for detection, which a worker has without torchvision.

use std::{fs, path::PathBuf};

use packhorse_cluster::{Program, TensorSpec};
use packhorse_worker_agent::handoff::ExecutorChoice;
use serde::Deserialize;

use crate::{
    gateway::{Link, Tensor},
    process::{Worker, execution, program, serve_task, tensor},
    torch::written_by,
};

/// The answers of torchvision itself.
#[derive(Deserialize)]
struct Cases {
    nms: Vec<Suppression>,
    align: Vec<Alignment>,
}

#[derive(Deserialize)]
struct Suppression {
    boxes: Vec<f32>,
    scores: Vec<f32>,
    /// The number of boxes and the threshold.
    options: [f32; 2],
    kept: Vec<f32>,
}

#[derive(Deserialize)]
struct Alignment {
    x: Vec<f32>,
    rois: Vec<f32>,
    /// The scale, the samples, whether corners are aligned, and whether it computes in BF16.
    options: [f32; 4],
    answer: Vec<f32>,
}

fn folder() -> PathBuf {
    written_by("detection.py")
}

fn cases() -> Cases {
    serde_json::from_slice(&fs::read(folder().join("cases.json")).unwrap()).unwrap()
}

/// Serves a program without batches, and answers each batch of inputs.
fn answers(
    module: &str,
    inputs: Vec<TensorSpec>,
    output: TensorSpec,
    batches: &[Vec<Tensor>],
) -> Vec<Vec<f32>> {
    let executor = ExecutorChoice::Torch {
        artifact: folder().join(format!("{module}.pt")),
        cuda_device: None,
    };
    let program: Program = program(0, inputs, vec![output]);
    let task = serve_task(execution(program, executor));
    let worker = Worker::serve(&task);
    let mut link = Link::connect(worker.address(), &task, b"").unwrap();
    let answer = |(id, batch): (u64, &Vec<Tensor>)| {
        link.send(id, 1, batch);
        let (_, outputs) = link.result();
        let values = outputs[0].bytes.chunks_exact(4);
        values
            .map(|value| f32::from_le_bytes(value.try_into().unwrap()))
            .collect()
    };
    (0..).zip(batches).map(answer).collect()
}

#[test]
fn boxes_are_suppressed_as_torchvision_does_with_ties_without_areas_and_without_boxes() {
    let cases = cases().nms;
    let batches: Vec<_> = cases
        .iter()
        .map(|case| {
            vec![
                Tensor::fp32(&[40, 4], &case.boxes),
                Tensor::fp32(&[40], &case.scores),
                Tensor::fp32(&[2], &case.options),
            ]
        })
        .collect();
    let inputs = vec![
        tensor("boxes", "FP32", &[-1, 4]),
        tensor("scores", "FP32", &[-1]),
        tensor("options", "FP32", &[2]),
    ];
    let answers = answers("Nms", inputs, tensor("kept", "FP32", &[-1]), &batches);
    for (case, answer) in cases.iter().zip(answers) {
        assert_eq!(answer[0] as usize, case.kept.len());
        assert_eq!(answer[1..=case.kept.len()], case.kept);
    }
}

/// Those in BF16 are computed by operators of libtorch, as on a GPU.
#[test]
fn regions_are_aligned_as_torchvision_does() {
    let cases = cases().align;
    let batches: Vec<_> = cases
        .iter()
        .map(|case| {
            vec![
                Tensor::fp32(&[2, 3, 9, 11], &case.x),
                Tensor::fp32(&[6, 5], &case.rois),
                Tensor::fp32(&[4], &case.options),
            ]
        })
        .collect();
    let inputs = vec![
        tensor("x", "FP32", &[2, 3, 9, 11]),
        tensor("rois", "FP32", &[-1, 5]),
        tensor("options", "FP32", &[4]),
    ];
    let output = tensor("y", "FP32", &[-1, 3, 3, 2]);
    let answers = answers("RoiAlign", inputs, output, &batches);
    for (case, answer) in cases.iter().zip(answers) {
        assert_eq!(answer.len(), case.answer.len());
        let tolerance = if case.options[3] > 0.0 { 0.05 } else { 1e-4 };
        for (ours, theirs) in answer.iter().zip(&case.answer) {
            assert!(
                (ours - theirs).abs() <= tolerance,
                "{:?}: {ours}, not {theirs}",
                case.options
            );
        }
    }
}
