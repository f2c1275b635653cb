//! Made-up batches: to warm a program up, to find out whether it can be served at all, and to measure it.

use packhorse_cluster::{Datatype, Dim, Program, Shape, TensorSpec};
use packhorse_wire::TensorHeader;

use super::{Executed, ExecutionError, Executor, PreparedBatch, check_outputs};

/// The size of a variable dimension other than the batch. The signature does not say what is usual; a short sentence has so
/// many tokens.
pub(crate) const VARIABLE_DIM: u64 = 16;

/// What made-up inputs hold. Floating point numbers are zero always.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fill {
    /// Integers and booleans are one: lengths and masks are usually not zero.
    Ones,
    /// Everything is zero: some index is out of range otherwise.
    Zeros,
}

/// The batch sizes that are warmed up and measured: 1, 2, 4, … and `limit` itself.
pub(crate) fn batch_sizes(limit: u32) -> Vec<u32> {
    let mut sizes: Vec<u32> = (0..32)
        .map(|exponent| 1 << exponent)
        .take_while(|size| *size < limit)
        .collect();
    sizes.push(limit.max(1));
    sizes
}

/// A made-up batch, ready to run.
///
/// # Errors
/// Out of memory.
pub(crate) fn batch(
    executor: &dyn Executor,
    program: &Program,
    rows: u32,
    fill: Fill,
) -> Result<Box<dyn PreparedBatch>, ExecutionError> {
    let mut batch = executor.prepare(&inputs(program, rows)?)?;
    fill_inputs(&mut *batch, program, fill);
    Ok(batch)
}

/// Makes the inputs of a batch up.
pub(crate) fn fill_inputs(batch: &mut dyn PreparedBatch, program: &Program, fill: Fill) {
    for (i, spec) in program.inputs.iter().enumerate() {
        write(batch.input_mut(i), spec.datatype, fill);
    }
}

/// Runs a made-up batch and checks its outputs against the signature.
///
/// # Errors
/// The program cannot be served as it is registered.
pub(crate) fn run(
    executor: &dyn Executor,
    program: &Program,
    rows: u32,
    fill: Fill,
) -> Result<Executed, ExecutionError> {
    let executed = batch(executor, program, rows, fill)?.run()?;
    check_outputs(program, rows, &executed.outputs)?;
    Ok(executed)
}

/// Runs made-up batches of all these sizes, the first one more often: a program is analysed in its first run, and optimised
/// in its second. Gives the fill that works and the largest size that there is memory for: the sizes are in ascending order, and
/// those behind the first that does not fit are not tried.
///
/// # Errors
/// The program runs with neither fill, or not even the first size fits.
pub(crate) fn warm_up(
    executor: &dyn Executor,
    program: &Program,
    sizes: &[u32],
) -> Result<(Fill, u32), ExecutionError> {
    let try_with = |fill| {
        let mut largest = None;
        for &rows in sizes.iter().take(1).chain(sizes) {
            match (run(executor, program, rows, fill), largest) {
                (Ok(_), _) => largest = Some(rows),
                (Err(ExecutionError::OutOfMemory(reason)), Some(fitting)) => {
                    tracing::warn!(
                        batch.size = rows,
                        reason,
                        "no memory for batches of this size"
                    );
                    executor.release_memory();
                    return Ok((fill, fitting));
                }
                (Err(error), _) => return Err(error),
            }
        }
        Ok((fill, largest.expect("there is a size")))
    };
    try_with(Fill::Ones).or_else(|error| try_with(Fill::Zeros).map_err(|_| error))
}

/// What the inputs of a made-up batch are.
///
/// # Errors
/// They are too large.
pub(crate) fn inputs(program: &Program, rows: u32) -> Result<Vec<TensorHeader>, ExecutionError> {
    let specs = program.inputs.iter();
    specs.map(|spec| input(program, spec, rows)).collect()
}

fn input(program: &Program, spec: &TensorSpec, rows: u32) -> Result<TensorHeader, ExecutionError> {
    let size = |(axis, dim): (usize, &Dim)| match dim {
        Dim::Any if axis == 0 && program.batches() => i64::from(rows),
        Dim::Any => VARIABLE_DIM.cast_signed(),
        Dim::Fixed(_) => i64::from(*dim),
    };
    let dims: Vec<i64> = spec.shape.iter().enumerate().map(size).collect();
    let too_large = |e: &dyn std::fmt::Display| {
        ExecutionError::OutOfMemory(format!("input {:?} at batch size {rows}: {e}", spec.name))
    };
    let shape = Shape::new(&dims).map_err(|e| too_large(&e))?;
    TensorHeader::new(spec.datatype, shape).map_err(|e| too_large(&e))
}

fn write(bytes: &mut [u8], datatype: Datatype, fill: Fill) {
    bytes.fill(0);
    let is_float = matches!(
        datatype,
        Datatype::Fp16 | Datatype::Bf16 | Datatype::Fp32 | Datatype::Fp64
    );
    if fill == Fill::Ones && !is_float {
        for element in bytes.chunks_exact_mut(datatype.width().unwrap_or(1)) {
            element[0] = 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batch_sizes_double_up_to_the_limit_and_end_with_it() {
        assert_eq!(batch_sizes(0), [1]);
        assert_eq!(batch_sizes(1), [1]);
        assert_eq!(batch_sizes(8), [1, 2, 4, 8]);
        assert_eq!(batch_sizes(12), [1, 2, 4, 8, 12]);
    }

    #[test]
    fn ones_are_little_endian_integers_and_floats_are_zero() {
        let mut bytes = [7; 8];
        write(&mut bytes, Datatype::Int32, Fill::Ones);
        assert_eq!(bytes, [1, 0, 0, 0, 1, 0, 0, 0]);
        write(&mut bytes, Datatype::Fp32, Fill::Ones);
        assert_eq!(bytes, [0; 8]);
        write(&mut bytes, Datatype::Bool, Fill::Zeros);
        assert_eq!(bytes, [0; 8]);
    }
}
