//! The outputs of a program of which only the inputs are known, and whether its rows are those of a batch: it runs on random inputs of several
//! sizes.

use packhorse_api::local_worker::TriedOutput;
use packhorse_cluster::{Dim, Program, TensorSpec, TypicalShapes};
use packhorse_wire::TensorHeader;

use super::{
    comparison::{Answer, Precision, compare},
    rows,
    sample::{Floats, Integers, Nudge, Sample},
};
use crate::executor::{
    error::ExecutionError,
    stages::{Executed, Executor, OutputTensor},
};

/// The random inputs to try, in this order: what the program accepts first is taken.
const TRIED: [(Floats, Integers); 6] = [
    (Floats::Normal, Integers::Below(100)),
    (Floats::Normal, Integers::Below(2)),
    (Floats::Normal, Integers::All(1)),
    (Floats::Uniform, Integers::Below(2)),
    (Floats::Uniform, Integers::All(1)),
    (Floats::Uniform, Integers::All(0)),
];

/// Returns the outputs of a program whose own list of them is empty, as batches of so many rows have them.
///
/// # Errors
/// The reason why it cannot be run, or why its rows are not those of a batch, as text for people.
pub(in crate::executor) fn try_outputs(
    executor: &dyn Executor,
    program: &Program,
    rows: u32,
) -> Result<Vec<TriedOutput>, String> {
    let (sample, inputs, answers) = first_accepted(executor, program, rows)?;
    let again =
        run_with(executor, &inputs).map_err(|e| format!("it answers once and not again: {e}"))?;
    if compare(&answers, &[], &again, Precision::Full).is_err() {
        return Err("it answers the same inputs differently each time, as a module in training mode does: call eval() before it is traced".to_owned());
    }
    let mut outputs: Vec<TriedOutput> = answers.iter().map(tried).collect();
    if program.batches() {
        let limit = program.max_batch_size;
        let rows = limit.min(rows::MOST_ROWS);
        let several = run(executor, program, Sample { rows, ..sample });
        // With many rows there may be too little memory.
        let inputs = several.map_or(inputs, |(inputs, _)| inputs);
        rows::check(&|inputs| run_with(executor, inputs), &inputs, limit)?;
        for output in &mut outputs {
            output.shape[0] = Dim::Any;
        }
    }
    // All dimensions that vary become larger, or, where that is beyond a limit, smaller.
    let other = [1, -1]
        .map(|by| resized(program, by))
        .into_iter()
        .find_map(|other| {
            let (_, answers) = run(executor, &other?, sample).ok()?;
            Some(answers)
        });
    match other {
        Some(other) => vary(&mut outputs, &other),
        None if program.has_variable_inputs() => {
            return Err(
                "it answers one size of the dimensions that vary, and not the next one".to_owned(),
            );
        }
        None => {}
    }
    Ok(outputs)
}

/// Runs the program on the first random inputs that it accepts. Returns these, and its answers.
fn first_accepted(
    executor: &dyn Executor,
    program: &Program,
    rows: u32,
) -> Result<(Sample, Vec<Answer>, Vec<Answer>), String> {
    let has_example = program.inputs.iter().any(|spec| spec.example.is_some());
    let mut refusal = None;
    for (seed, (floats, integers)) in TRIED.into_iter().enumerate() {
        for examples in [true, false] {
            if examples && !has_example {
                continue;
            }
            let sample = Sample {
                seed: seed as u64,
                rows,
                sizes: &[16],
                typical: true,
                examples,
                floats,
                integers,
            };
            match run(executor, program, sample) {
                Ok((inputs, answers)) => return Ok((sample, inputs, answers)),
                Err(error) => refusal.get_or_insert(error),
            };
        }
    }
    Err(refusal.map_or_else(String::new, |error| error.to_string()))
}

/// Returns the program with other usual sizes, if there are any that it may have.
fn resized(program: &Program, by: i64) -> Option<Program> {
    if !program.has_variable_inputs() {
        return None;
    }
    let mut program = program.clone();
    let batches = program.batches();
    for spec in &mut program.inputs {
        let sizes: Option<Vec<Dim>> = { spec.shape.iter().enumerate() }
            .map(|(axis, dim)| match dim {
                Dim::Any if axis == 0 && batches => Some(Dim::Any),
                Dim::Any => other_size(spec, axis, by).map(Dim::Fixed),
                Dim::Fixed(_) => Some(*dim),
            })
            .collect();
        spec.typical_shape = Some(TypicalShapes::one(sizes?));
    }
    Some(program)
}

fn other_size(spec: &TensorSpec, axis: usize, by: i64) -> Option<u64> {
    let size = spec.tried_dim(axis).checked_add_signed(by)?;
    (size > 0 && spec.limited_dim(axis, size) == size).then_some(size)
}

/// Has the dimensions vary in which other answers differ.
fn vary(outputs: &mut [TriedOutput], others: &[Answer]) {
    for (output, other) in outputs.iter_mut().zip(others) {
        let dims = other.header.shape().dims();
        for (dim, other) in output.shape.iter_mut().zip(dims) {
            if *dim != Dim::Fixed(*other) {
                *dim = Dim::Any;
            }
        }
    }
}

fn tried(answer: &Answer) -> TriedOutput {
    let dims = answer.header.shape().dims();
    TriedOutput {
        name: None,
        datatype: answer.header.datatype(),
        shape: dims.iter().map(|dim| Dim::Fixed(*dim)).collect(),
    }
}

/// Runs the program on a sample. Returns the inputs and the answers.
fn run(
    executor: &dyn Executor,
    program: &Program,
    sample: Sample,
) -> Result<(Vec<Answer>, Vec<Answer>), ExecutionError> {
    let too_large = || ExecutionError::OutOfMemory("the inputs are too large".to_owned());
    let headers = sample.headers(program).ok_or_else(too_large)?;
    let mut batch = executor.prepare(&headers)?;
    sample.fill(&mut *batch, program, Nudge::None);
    let inputs = headers.into_iter().enumerate().map(|(i, header)| Answer {
        bytes: batch.input_mut(i).to_vec(),
        header,
    });
    let inputs = inputs.collect();
    let Executed { outputs, .. } = batch.run()?;
    Ok((inputs, outputs.into_iter().map(answer).collect()))
}

/// Runs the program on these inputs.
fn run_with(executor: &dyn Executor, inputs: &[Answer]) -> Result<Vec<Answer>, ExecutionError> {
    let headers: Vec<TensorHeader> = inputs.iter().map(|input| input.header.clone()).collect();
    let mut batch = executor.prepare(&headers)?;
    for (i, input) in inputs.iter().enumerate() {
        batch.input_mut(i).copy_from_slice(&input.bytes);
    }
    let Executed { outputs, .. } = batch.run()?;
    Ok(outputs.into_iter().map(answer).collect())
}

fn answer(output: OutputTensor) -> Answer {
    Answer {
        bytes: (*output.bytes).as_ref().to_vec(),
        header: output.header,
    }
}
