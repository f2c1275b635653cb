//! The check of inputs and outputs against the model's signature.

use packhorse_cluster::{Program, TensorSpec};
use packhorse_wire::{BatchHeader, MAX_PAYLOAD, TensorHeader};

use super::{error::ExecutionError, stages::OutputTensor};

/// Checks a batch from the gateway. The gateway checks requests against the same signature, so that a failure means that gateway and
/// worker disagree about the model.
///
/// # Errors
/// The found and the declared properties, if they differ.
pub(crate) fn check_batch(program: &Program, batch: &BatchHeader) -> Result<(), String> {
    let limit = program.rows_limit();
    if batch.rows == 0 || batch.rows > limit {
        return Err(format!(
            "a batch of {} rows; expected 1 to {limit}",
            batch.rows
        ));
    }
    check_side(
        "inputs",
        program,
        &program.inputs,
        batch.rows,
        &batch.inputs,
    )
}

/// Checks the outputs of the program.
///
/// # Errors
/// The found and the declared properties, if they differ.
pub(crate) fn check_outputs(
    program: &Program,
    rows: u32,
    outputs: &[OutputTensor],
) -> Result<(), ExecutionError> {
    let headers: Vec<_> = outputs.iter().map(|output| output.header.clone()).collect();
    check_side("outputs", program, &program.outputs, rows, &headers)
        .map_err(ExecutionError::WrongOutput)?;
    let bytes: u64 = headers.iter().map(TensorHeader::byte_len).sum();
    if bytes > MAX_PAYLOAD {
        let problem = format!("{bytes} bytes; the limit is {MAX_PAYLOAD}");
        return Err(ExecutionError::WrongOutput(problem));
    }
    Ok(())
}

/// Checks the inputs or the outputs of a batch; `side` is their name in the error.
fn check_side(
    side: &str,
    program: &Program,
    declared: &[TensorSpec],
    rows: u32,
    found: &[TensorHeader],
) -> Result<(), String> {
    if found.len() != declared.len() {
        return Err(format!(
            "{} {side}; declared are {}",
            found.len(),
            declared.len()
        ));
    }
    for (i, (spec, tensor)) in declared.iter().zip(found).enumerate() {
        if tensor.datatype() != spec.datatype {
            return Err(format!(
                "{} as {side}[{i}] ({:?}); declared is {}",
                tensor.datatype(),
                spec.name,
                spec.datatype
            ));
        }
        let batch_fits = !program.batches() || tensor.shape().dims().first() == Some(&rows.into());
        if !spec.accepts(tensor.shape()) || !batch_fits {
            let of_rows = if program.batches() {
                format!(" with a batch of {rows}")
            } else {
                String::new()
            };
            return Err(format!(
                "shape {} as {side}[{i}] ({:?}); declared is {}{of_rows}",
                tensor.shape(),
                spec.name,
                spec.shape_text()
            ));
        }
    }
    Ok(())
}
