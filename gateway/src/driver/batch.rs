//! Assembles the inputs of requests into one batch, and splits its outputs into the requests' rows. Tensor bytes are passed on
//! without copying, except where short rows of an input must be padded.

use bytes::Bytes;
use packhorse_cluster::{Program, Shape, ShapeError, TensorSpec};
use packhorse_protocol::Tensor;
use packhorse_wire::{MAX_PAYLOAD, TensorHeader, UnsizedDatatype};

use super::padding::push_padded;

/// The inputs of a batch for a worker.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct BatchInputs {
    /// The datatype and shape of each input.
    pub(super) headers: Vec<TensorHeader>,
    /// The bytes of all inputs, one after the other.
    pub(super) payload: Vec<Bytes>,
}

/// A request's rows of one output. They agree with the model's declaration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct OutputRows {
    /// The rows' shape.
    pub(crate) shape: Shape,
    /// The rows' bytes: a slice of the worker's result.
    pub(crate) data: Bytes,
}

/// The reason why requests cannot form a batch.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum AssembleError {
    #[error("a batch of {bytes} bytes is over the limit of {MAX_PAYLOAD} bytes")]
    TooLarge { bytes: u64 },
    #[error(transparent)]
    Shape(#[from] ShapeError),
    #[error(transparent)]
    Datatype(#[from] UnsizedDatatype),
}

/// Concatenates the inputs of requests of one shape class; `requests` holds at least one request, `rows` is the sum of their
/// rows.
pub(super) fn assemble(
    program: &Program,
    rows: u32,
    requests: &[&[Tensor]],
) -> Result<BatchInputs, AssembleError> {
    let specs = program.inputs.iter().enumerate();
    let headers = specs
        .map(|(i, spec)| header(program, spec, rows, requests, i))
        .collect::<Result<Vec<_>, _>>()?;
    let bytes: u64 = headers.iter().map(TensorHeader::byte_len).sum();
    if bytes > MAX_PAYLOAD {
        return Err(AssembleError::TooLarge { bytes });
    }
    let mut payload = Vec::new();
    for (i, (spec, header)) in program.inputs.iter().zip(&headers).enumerate() {
        for inputs in requests {
            match spec.pad {
                Some(pad)
                    if inputs[i].shape().dims()[pad.axis] < header.shape().dims()[pad.axis] =>
                {
                    push_padded(
                        &mut payload,
                        &inputs[i],
                        pad.axis,
                        header.shape().dims()[pad.axis],
                        pad.value,
                    );
                }
                _ => payload.extend(inputs[i].data().chunks().cloned()),
            }
        }
    }
    Ok(BatchInputs { headers, payload })
}

fn header(
    program: &Program,
    spec: &TensorSpec,
    rows: u32,
    requests: &[&[Tensor]],
    input: usize,
) -> Result<TensorHeader, AssembleError> {
    let mut dims: Vec<i64> = requests[0][input]
        .shape()
        .dims()
        .iter()
        .map(|dim| signed(*dim))
        .collect();
    if program.batches() {
        dims[0] = rows.into();
    }
    if let Some(pad) = spec.pad {
        let longest = requests
            .iter()
            .map(|inputs| inputs[input].shape().dims()[pad.axis])
            .max();
        dims[pad.axis] = signed(longest.unwrap_or_default());
    }
    Ok(TensorHeader::new(spec.datatype, Shape::new(&dims)?)?)
}

/// Converts a dimension of a shape, which is at most [`Shape::MAX_ELEMENTS`].
fn signed(dim: u64) -> i64 {
    i64::try_from(dim).unwrap_or(i64::MAX)
}

/// Splits the outputs of a batch into the rows of its requests, whose numbers of rows are given. The result has one entry per
/// request: its rows of each output, in the model's order. The link has checked the outputs against the model's declaration.
pub(super) fn split(
    program: &Program,
    request_rows: &[u32],
    outputs: &[(TensorHeader, Bytes)],
) -> Vec<Vec<OutputRows>> {
    let rows: u64 = request_rows.iter().map(|rows| u64::from(*rows)).sum();
    let mut split = vec![Vec::with_capacity(outputs.len()); request_rows.len()];
    for (header, data) in outputs {
        if !program.batches() {
            split[0].push(OutputRows {
                shape: header.shape().clone(),
                data: data.clone(),
            });
            continue;
        }
        let row_len = data.len() / rows as usize;
        let mut at = 0;
        for (outputs, rows) in split.iter_mut().zip(request_rows) {
            let end = at + row_len * *rows as usize;
            outputs.push(OutputRows {
                shape: header.shape().with_dim(0, (*rows).into()),
                data: data.slice(at..end),
            });
            at = end;
        }
    }
    split
}

#[cfg(test)]
mod tests {
    use packhorse_cluster::{Datatype, Padding, TensorSpec};

    use super::*;
    use crate::test_programs::{program, spec};

    fn tensor(dims: &[i64], values: &[u8]) -> Tensor {
        Tensor::from_values("x", Shape::new(dims).unwrap(), values).unwrap()
    }

    fn output(dims: &[i64], values: &[u8]) -> (TensorHeader, Bytes) {
        let header = TensorHeader::new(Datatype::Uint8, Shape::new(dims).unwrap()).unwrap();
        (header, Bytes::copy_from_slice(values))
    }

    #[test]
    fn inputs_of_all_requests_lie_behind_each_other_input_by_input() {
        let program = program(
            8,
            vec![spec("a", &[-1, 2]), spec("b", &[-1])],
            vec![spec("y", &[-1])],
        );
        let first = [tensor(&[1, 2], &[1, 2]), tensor(&[1], &[9])];
        let second = [tensor(&[2, 2], &[3, 4, 5, 6]), tensor(&[2], &[8, 7])];
        let batch = assemble(&program, 3, &[&first, &second]).unwrap();
        assert_eq!(batch.payload.concat(), [1, 2, 3, 4, 5, 6, 9, 8, 7]);
        assert_eq!(batch.headers[0].shape().dims(), [3, 2]);
        assert_eq!(batch.headers[1].shape().dims(), [3]);
        // An input that was not padded is the request's own memory.
        assert_eq!(
            batch.payload[0].as_ptr(),
            first[0].data().to_bytes().as_ptr()
        );
    }

    #[test]
    fn shorter_requests_are_filled_up_to_the_longest() {
        let padded = TensorSpec {
            pad: Some(Padding {
                axis: 1,
                value: 0.0,
            }),
            ..spec("a", &[-1, -1])
        };
        let program = program(8, vec![padded], vec![spec("y", &[-1])]);
        let short = [tensor(&[2, 1], &[1, 2])];
        let long = [tensor(&[1, 3], &[3, 4, 5])];
        let batch = assemble(&program, 3, &[&short, &long]).unwrap();
        assert_eq!(batch.headers[0].shape().dims(), [3, 3]);
        assert_eq!(batch.payload.concat(), [1, 0, 0, 2, 0, 0, 3, 4, 5]);
    }

    #[test]
    fn a_model_without_a_batch_dimension_gets_its_input_as_it_is() {
        let program = program(0, vec![spec("a", &[2])], vec![spec("y", &[-1])]);
        let input = [tensor(&[2], &[1, 2])];
        let batch = assemble(&program, 1, &[&input]).unwrap();
        assert_eq!(batch.headers[0].shape().dims(), [2]);
        let rows = split(&program, &[1], &[output(&[3], &[7, 8, 9])]);
        assert_eq!(rows[0][0].shape.dims(), [3]);
        assert_eq!(rows[0][0].data, [7, 8, 9][..]);
    }

    #[test]
    fn every_request_gets_its_own_rows() {
        let program = program(
            8,
            vec![spec("a", &[-1])],
            vec![spec("y", &[-1, 2]), spec("z", &[-1])],
        );
        let outputs = [
            output(&[3, 2], &[1, 1, 2, 2, 3, 3]),
            output(&[3], &[4, 5, 6]),
        ];
        let rows = split(&program, &[1, 2], &outputs);
        assert_eq!(rows[0][0].data, [1, 1][..]);
        assert_eq!(rows[0][1].data, [4][..]);
        assert_eq!(rows[1][0].data, [2, 2, 3, 3][..]);
        assert_eq!(rows[1][0].shape.dims(), [2, 2]);
        assert_eq!(rows[1][1].data, [5, 6][..]);
    }
}
