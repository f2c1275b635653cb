//! Whether what arrives and what comes out is what the model was registered with.

use packhorse_cluster::{Program, TensorSpec};
use packhorse_wire::{BatchHeader, MAX_PAYLOAD, TensorHeader};

use super::{ExecutionError, OutputTensor};

/// Whether a batch may be given to the program. A gateway checks requests against the same signature, so that a batch that
/// does not fit means that gateway and worker disagree about the model.
///
/// # Errors
/// What does not fit, and what would.
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

/// Whether the program kept to its declared outputs.
///
/// # Errors
/// What it answered, and what was declared.
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
        let problem = format!("{bytes} bytes, over the limit of {MAX_PAYLOAD}");
        return Err(ExecutionError::WrongOutput(problem));
    }
    Ok(())
}

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
