//! Synthetic batches, which warm up a program, show if it can be served, and measure it.

use half::{bf16, f16};
use packhorse_cluster::{Datatype, Dim, InputShapes, Program, Shape, TensorSpec};
use packhorse_wire::TensorHeader;
use rand::{RngExt as _, SeedableRng as _, rngs::Xoshiro256PlusPlus};

use super::{
    error::ExecutionError,
    fill::Fill,
    signature::check_outputs,
    stages::{Executed, Executor, PreparedBatch},
};

/// Returns the batch sizes that are warmed up and measured: 1, 2, 4, … and `limit` itself.
pub(crate) fn batch_sizes(limit: u32) -> Vec<u32> {
    let mut sizes: Vec<u32> = (0..32)
        .map(|exponent| 1 << exponent)
        .take_while(|size| *size < limit)
        .collect();
    sizes.push(limit.max(1));
    sizes
}

/// Returns a synthetic batch that is ready to run.
///
/// # Errors
/// If there is not enough memory.
pub(crate) fn prepare_batch(
    executor: &dyn Executor,
    program: &Program,
    rows: u32,
    fill: Fill,
) -> Result<Box<dyn PreparedBatch>, ExecutionError> {
    let mut batch = executor.prepare(&input_headers(program, rows)?)?;
    fill_inputs(&mut *batch, program, fill);
    Ok(batch)
}

/// Fills the inputs of a batch.
pub(crate) fn fill_inputs(batch: &mut dyn PreparedBatch, program: &Program, fill: Fill) {
    for (i, spec) in program.inputs.iter().enumerate() {
        let bytes = batch.input_mut(i);
        match spec.example.as_deref() {
            Some(example) if fill == Fill::Examples => write_example(bytes, spec.datatype, example),
            _ => write(bytes, spec.datatype, fill),
        }
    }
}

/// Runs a synthetic batch and checks its outputs against the signature.
///
/// # Errors
/// If the program cannot be served as it is registered.
pub(crate) fn run_batch(
    executor: &dyn Executor,
    program: &Program,
    rows: u32,
    fill: Fill,
) -> Result<Executed, ExecutionError> {
    let executed = prepare_batch(executor, program, rows, fill)?.run()?;
    check_outputs(program, rows, &executed.outputs)?;
    Ok(executed)
}

/// Prepares the executor for batches of only this size, which it has recorded afterwards if it records at all.
///
/// # Errors
/// Those of [`run_batch`].
pub(crate) fn warm_up_only(
    executor: &dyn Executor,
    program: &Program,
    rows: u32,
    fill: Fill,
) -> Result<(), ExecutionError> {
    executor.forget_recordings();
    executor.release_memory();
    run_batch(executor, program, rows, fill)?;
    executor.record(program, &[rows], fill);
    Ok(())
}

/// Returns the program with each of the usual shapes of its inputs, with the weight of each.
pub(crate) fn usual_cases(program: &Program) -> Vec<(u32, Program)> {
    let shapes = InputShapes::usual(program).into_iter();
    let cases = shapes.map(|(weight, shapes)| (weight, shapes.as_typical_of(program)));
    cases.collect()
}

/// Runs synthetic batches of these sizes, each with all usual shapes, the first size twice, because libtorch analyses a program in its first run and optimises it
/// in its second. Returns the fill that the program accepts and the largest size that fits into memory. The sizes are in ascending
/// order, and no size after the first that does not fit is tried.
///
/// # Errors
/// If the program fails with each fill, or not even the first size fits into memory.
pub(crate) fn warm_up(
    executor: &dyn Executor,
    program: &Program,
    sizes: &[u32],
) -> Result<(Fill, u32), ExecutionError> {
    let cases = usual_cases(program);
    let run_cases = |rows, fill| {
        cases.iter().try_for_each(|(_, case)| {
            let ran = run_batch(executor, case, rows, fill).map(drop);
            ran.map_err(|error| match cases.len() {
                1 => error,
                _ => error.with_inputs(&InputShapes::tried(case)),
            })
        })
    };
    let try_with = |fill| {
        let mut largest = None;
        for &rows in sizes.iter().take(1).chain(sizes) {
            if largest.is_some_and(|largest| largest < rows) {
                // A device would hold the memory for both sizes.
                executor.release_memory();
            }
            match (run_cases(rows, fill), largest) {
                (Ok(()), _) => largest = Some(rows),
                (Err(ExecutionError::OutOfMemory(reason)), Some(fitting)) => {
                    tracing::warn!(
                        batch.size = rows,
                        reason,
                        "not enough memory for batches of this size"
                    );
                    executor.release_memory();
                    return Ok((fill, fitting));
                }
                (Err(error), _) => return Err(error),
            }
        }
        Ok((fill, largest.expect("there is a size")))
    };
    let fills = [Fill::Examples, Fill::Ones, Fill::Zeros, Fill::Fractions];
    let has_example = program.inputs.iter().any(|spec| spec.example.is_some());
    let (first, others) = fills[usize::from(!has_example)..]
        .split_first()
        .expect("there are several");
    try_with(*first).or_else(|error| {
        let mut started = others.iter().copied().map(try_with).filter_map(Result::ok);
        started
            .next()
            .ok_or_else(|| with_tried_inputs(program, error))
    })
}

/// Returns the error of a program that threw, which says what it was tried with and what to declare if it takes something else.
fn with_tried_inputs(program: &Program, error: ExecutionError) -> ExecutionError {
    let first = usize::from(program.batches());
    let is_assumed = program.inputs.iter().any(|spec| {
        let mut dims = spec.shape.iter().enumerate().skip(first);
        dims.any(|(axis, dim)| *dim == Dim::Any && spec.typical_dim(axis).is_none())
    });
    let has_example = program.inputs.iter().any(|spec| spec.example.is_some());
    let size = format!(
        " and {} in its variable dimensions",
        TensorSpec::ASSUMED_DIM
    );
    let (size, shapes) = if is_assumed {
        (size.as_str(), "typical_shape and example")
    } else {
        ("", "example")
    };
    let elements = if has_example {
        "its example, zeros, ones and random numbers"
    } else {
        "zeros, ones and random numbers"
    };
    match error {
        ExecutionError::ModuleThrew(text) => ExecutionError::ModuleThrew(format!(
            "{text}; it was tried with {elements}{size}: declare {shapes} of its inputs if it takes others"
        )),
        error => error,
    }
}

/// Returns the datatypes and shapes of a synthetic batch's inputs.
///
/// # Errors
/// If an input is too large.
pub(crate) fn input_headers(
    program: &Program,
    rows: u32,
) -> Result<Vec<TensorHeader>, ExecutionError> {
    let specs = program.inputs.iter();
    specs
        .map(|spec| input_header(program, spec, rows))
        .collect()
}

fn input_header(
    program: &Program,
    spec: &TensorSpec,
    rows: u32,
) -> Result<TensorHeader, ExecutionError> {
    let too_large = |e: &dyn std::fmt::Display| {
        ExecutionError::OutOfMemory(format!("input {:?} at batch size {rows}: {e}", spec.name))
    };
    let shape = Shape::new(&input_dims(program, spec, rows.into())).map_err(|e| too_large(&e))?;
    TensorHeader::new(spec.datatype, shape).map_err(|e| too_large(&e))
}

/// Returns the dimensions of a synthetic input, with `rows` as the batch dimension if there is one.
pub(crate) fn input_dims(program: &Program, spec: &TensorSpec, rows: i64) -> Vec<i64> {
    let size = |(axis, dim): (usize, &Dim)| match dim {
        Dim::Any if axis == 0 && program.batches() => rows,
        Dim::Any => spec.tried_dim(axis).cast_signed(),
        Dim::Fixed(_) => i64::from(*dim),
    };
    spec.shape.iter().enumerate().map(size).collect()
}

fn write(bytes: &mut [u8], datatype: Datatype, fill: Fill) {
    bytes.fill(0);
    let is_float = datatype.is_float();
    if fill == Fill::Fractions && is_float {
        let mut numbers = Xoshiro256PlusPlus::seed_from_u64(0);
        write_floats(bytes, datatype, || numbers.random());
    } else if fill != Fill::Zeros && !is_float {
        for element in bytes.chunks_exact_mut(datatype.width().unwrap_or(1)) {
            element[0] = 1;
        }
    }
}

/// Writes the elements of an example, again and again until the end.
fn write_example(bytes: &mut [u8], datatype: Datatype, example: &[f64]) {
    let mut elements = example.iter().copied().cycle();
    let next = || elements.next().unwrap_or_default();
    if datatype.is_float() {
        write_floats(bytes, datatype, next);
    } else {
        write_integers(bytes, datatype, next);
    }
}

/// Writes integers or booleans, which are within the range of the datatype.
pub(super) fn write_integers(bytes: &mut [u8], datatype: Datatype, mut next: impl FnMut() -> f64) {
    let width = datatype.width().unwrap_or(1);
    for element in bytes.chunks_exact_mut(width) {
        // Little-endian, two's complement: the first bytes are those of the narrower integer.
        element.copy_from_slice(&(next() as i64).to_le_bytes()[..width]);
    }
}

/// Writes floating-point numbers.
pub(super) fn write_floats(bytes: &mut [u8], datatype: Datatype, mut next: impl FnMut() -> f64) {
    match datatype {
        Datatype::Fp16 => each(bytes, || f16::from_f64(next()).to_le_bytes()),
        Datatype::Bf16 => each(bytes, || bf16::from_f64(next()).to_le_bytes()),
        Datatype::Fp32 => each(bytes, || (next() as f32).to_le_bytes()),
        Datatype::Fp64 => each(bytes, || next().to_le_bytes()),
        _ => unreachable!("integers and texts are no floating-point numbers"),
    }
}

fn each<const N: usize>(bytes: &mut [u8], mut next: impl FnMut() -> [u8; N]) {
    for element in bytes.as_chunks_mut().0 {
        *element = next();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use packhorse_cluster::ByteCount;

    use super::*;
    use crate::executor::stages::LoadedBatch;

    /// An executor of a program without outputs that throws where its input has more bytes than this.
    struct Narrow(usize);

    struct NarrowBatch {
        input: Vec<u8>,
        limit: usize,
    }

    impl Executor for Narrow {
        fn prepare(
            &self,
            inputs: &[TensorHeader],
        ) -> Result<Box<dyn PreparedBatch>, ExecutionError> {
            let input = vec![0; inputs[0].byte_len().try_into().unwrap()];
            let limit = self.0;
            Ok(Box::new(NarrowBatch { input, limit }))
        }

        fn memory(&self, _batch_size: u32) -> Option<ByteCount> {
            None
        }
    }

    impl PreparedBatch for NarrowBatch {
        fn input_mut(&mut self, _index: usize) -> &mut [u8] {
            &mut self.input
        }

        fn copy_in(self: Box<Self>) -> Result<Box<dyn LoadedBatch>, ExecutionError> {
            unreachable!("it runs as a whole")
        }

        fn run(self: Box<Self>) -> Result<Executed, ExecutionError> {
            if self.input.len() > self.limit {
                return Err(ExecutionError::ModuleThrew("too long".to_owned()));
            }
            Ok(Executed {
                outputs: Vec::new(),
                copy_in: Duration::ZERO,
                compute: Duration::ZERO,
                copy_out: Duration::ZERO,
            })
        }
    }

    #[test]
    fn the_one_of_several_usual_shapes_that_a_program_refuses_is_named() {
        let problem_of = |typical_shape: serde_json::Value| {
            let program = serde_json::from_value(serde_json::json!({
                "model": "m:1",
                "artifact": format!("sha256:{}", "ab".repeat(32)),
                "max_batch_size": 2,
                "inputs": [{
                    "name": "x", "datatype": "UINT8", "shape": [-1, -1], "typical_shape": typical_shape,
                }],
                "outputs": [],
            }));
            let tried = warm_up(&Narrow(100), &program.unwrap(), &[1, 2]);
            tried.map(drop).map_err(|error| error.to_string())
        };
        let shape = |size| serde_json::json!({"shape": [-1, size], "weight": 1});
        assert_eq!(problem_of([shape(8), shape(32)].into()), Ok(()));
        let text = "the model threw: too long (inputs of shape -1x128); it was tried with ";
        let problem = problem_of([shape(8), shape(128), shape(9)].into()).unwrap_err();
        assert!(problem.starts_with(text), "{problem}");
        // One alone is that of the registration.
        let problem = problem_of(serde_json::json!([-1, 128])).unwrap_err();
        assert!(!problem.contains("128"), "{problem}");
    }

    #[test]
    fn batch_sizes_double_up_to_the_limit_and_end_with_it() {
        assert_eq!(batch_sizes(0), [1]);
        assert_eq!(batch_sizes(1), [1]);
        assert_eq!(batch_sizes(8), [1, 2, 4, 8]);
        assert_eq!(batch_sizes(12), [1, 2, 4, 8, 12]);
    }

    #[test]
    fn an_example_is_repeated_as_integers_of_each_width_and_as_floats() {
        let written = |datatype, example: &[f64], bytes: usize| {
            let mut written = vec![9; bytes];
            write_example(&mut written, datatype, example);
            written
        };
        assert_eq!(written(Datatype::Int8, &[-1.0, 2.0], 3), [255, 2, 255]);
        assert_eq!(written(Datatype::Bool, &[1.0, 0.0], 4), [1, 0, 1, 0]);
        assert_eq!(written(Datatype::Uint16, &[65_535.0], 2), [255, 255]);
        let tokens = written(Datatype::Int64, &[101.0, -7.0], 24);
        let tokens = tokens.as_chunks().0.iter();
        let tokens: Vec<i64> = tokens.map(|bytes| i64::from_le_bytes(*bytes)).collect();
        assert_eq!(tokens, [101, -7, 101]);
        assert_eq!(
            written(Datatype::Fp32, &[0.5], 8),
            [0.5_f32.to_le_bytes(); 2].concat()
        );
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
        write(&mut bytes, Datatype::Bool, Fill::Fractions);
        assert_eq!(bytes, [1; 8]);
        write(&mut bytes, Datatype::Fp64, Fill::Fractions);
        assert!((0.0..1.0).contains(&f64::from_le_bytes(bytes)) && bytes != [0; 8]);
    }
}
