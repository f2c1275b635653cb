//! The check of a worker's result against its batch, by the header: a result that cannot belong to its batch must not cost its memory.

use packhorse_cluster::{Program, TensorSpec};
use packhorse_wire::TensorHeader;

/// The difference between a result and the model's declaration.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum WrongResult {
    #[error("the model answered {found} outputs, but declares {declared}")]
    Outputs { found: usize, declared: usize },
    #[error("output {name:?}: the model answered {found}, but declares {declared}")]
    Output {
        name: String,
        found: String,
        declared: String,
    },
    #[error("output {name:?}: the model answered {found} rows to a batch of {rows}")]
    Rows { name: String, found: u64, rows: u64 },
}

/// Checks the outputs of a batch of so many rows.
///
/// # Errors
/// The first difference from what the model declares.
pub(super) fn check_result(
    program: &Program,
    rows: u32,
    outputs: &[TensorHeader],
) -> Result<(), WrongResult> {
    if outputs.len() != program.outputs.len() {
        return Err(WrongResult::Outputs {
            found: outputs.len(),
            declared: program.outputs.len(),
        });
    }
    let mut outputs = program.outputs.iter().zip(outputs);
    outputs.try_for_each(|(spec, header)| check(program, spec, header, rows.into()))
}

fn check(
    program: &Program,
    spec: &TensorSpec,
    header: &TensorHeader,
    rows: u64,
) -> Result<(), WrongResult> {
    if header.datatype() != spec.datatype || !spec.accepts(header.shape()) {
        return Err(WrongResult::Output {
            name: spec.name.clone(),
            found: format!("{} {}", header.datatype(), header.shape()),
            declared: format!("{} {}", spec.datatype, spec.shape_text()),
        });
    }
    match header.shape().dims().first() {
        Some(found) if program.batches() && *found != rows => Err(WrongResult::Rows {
            name: spec.name.clone(),
            found: *found,
            rows,
        }),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use packhorse_cluster::{Datatype, Shape};

    use super::*;
    use crate::test_programs::program_to;

    #[test]
    fn outputs_that_were_not_declared_so_are_refused() {
        let program = program_to(8, &[-1, 2]);
        let header = |datatype, shape: &[i64]| {
            TensorHeader::new(datatype, Shape::new(shape).unwrap()).unwrap()
        };
        let error = |outputs: &[TensorHeader]| {
            let checked = check_result(&program, 2, outputs);
            checked.unwrap_err().to_string()
        };
        assert_eq!(error(&[]), "the model answered 0 outputs, but declares 1");
        assert_eq!(
            error(&[header(Datatype::Uint8, &[2, 1])]),
            "output \"y\": the model answered UINT8 [2,1], but declares UINT8 [-1,2]"
        );
        assert_eq!(
            error(&[header(Datatype::Uint8, &[1, 2])]),
            "output \"y\": the model answered 1 rows to a batch of 2"
        );
        assert_eq!(
            error(&[header(Datatype::Int8, &[2, 2])]),
            "output \"y\": the model answered INT8 [2,2], but declares UINT8 [-1,2]"
        );
        let right = [header(Datatype::Uint8, &[2, 2])];
        assert_eq!(check_result(&program, 2, &right), Ok(()));
    }
}
