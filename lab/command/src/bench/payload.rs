//! The inputs of a benchmark's requests: rows of zeros in the shape that the model declares.

use anyhow::{Context as _, ensure};
use packhorse_cluster::{Datatype, Shape};
use packhorse_protocol::{ByteRope, Tensor, TensorMetadata};

/// The largest length of a dimension that varies.
const MAX_DIM: u64 = 1 << 20;

/// The largest request in bytes: the default limit of a gateway.
const MAX_BYTES: u64 = 256 << 20;

/// Returns tensors for the declared inputs. A first dimension that varies is the batch dimension and gets `rows`. The other
/// dimensions that vary share one length: the largest with which the request has at most `payload` bytes, and at least 1. Elements
/// of `BYTES` are empty strings.
pub(super) fn inputs(
    declared: &[TensorMetadata],
    rows: u64,
    payload: u64,
) -> anyhow::Result<Vec<Tensor>> {
    let length = length(declared, rows, payload);
    let bytes = bytes(declared, rows, length);
    ensure!(
        bytes <= MAX_BYTES,
        "{rows} rows of its inputs have {bytes} bytes, over the limit of {MAX_BYTES}"
    );
    let input = |input: &TensorMetadata| -> anyhow::Result<Tensor> {
        let shape = Shape::new(&dims(input, rows, length))?;
        let zeros = vec![0; usize::try_from(shape.elements())? * element_bytes(input.datatype)];
        let data = ByteRope::from(zeros);
        Ok(Tensor::new(
            input.name.clone(),
            input.datatype,
            shape,
            data,
        )?)
    };
    declared
        .iter()
        .map(|declared| input(declared).with_context(|| format!("input {:?}", declared.name)))
        .collect()
}

/// Returns the bytes of an element; for a string, the bytes of its length prefix.
fn element_bytes(datatype: Datatype) -> usize {
    datatype.width().unwrap_or(size_of::<u32>())
}

/// Returns the dimensions of an input if those that vary have this length.
fn dims(input: &TensorMetadata, rows: u64, length: u64) -> Vec<i64> {
    let varying = |axis: usize| if axis == 0 { rows } else { length }.cast_signed();
    let dims = input.shape.iter().enumerate();
    dims.map(|(axis, &dim)| if dim < 0 { varying(axis) } else { dim })
        .collect()
}

/// Returns the bytes of all inputs if the dimensions that vary have this length.
fn bytes(declared: &[TensorMetadata], rows: u64, length: u64) -> u64 {
    let input_bytes = |input: &TensorMetadata| {
        let dims = dims(input, rows, length).into_iter();
        let elements = dims.fold(1_u64, |product, dim| {
            product.saturating_mul(u64::try_from(dim).unwrap_or(0))
        });
        elements.saturating_mul(element_bytes(input.datatype) as u64)
    };
    declared
        .iter()
        .map(input_bytes)
        .fold(0, u64::saturating_add)
}

/// Returns the length of the dimensions that vary.
fn length(declared: &[TensorMetadata], rows: u64, payload: u64) -> u64 {
    let varies = declared
        .iter()
        .any(|input| input.shape.iter().skip(1).any(|dim| *dim < 0));
    if !varies {
        return 1;
    }
    let (mut fitting, mut too_long) = (1, MAX_DIM + 1);
    while fitting + 1 < too_long {
        let middle = fitting.midpoint(too_long);
        if bytes(declared, rows, middle) <= payload {
            fitting = middle;
        } else {
            too_long = middle;
        }
    }
    fitting
}

#[cfg(test)]
mod tests {
    use super::*;

    fn declared(name: &str, datatype: Datatype, shape: &[i64]) -> TensorMetadata {
        TensorMetadata {
            name: name.to_owned(),
            datatype,
            shape: shape.to_vec(),
        }
    }

    fn check(declared: &[TensorMetadata], payload: u64, expected: &[&[u64]]) {
        let inputs = inputs(declared, 1, payload).unwrap();
        let shapes: Vec<&[u64]> = inputs.iter().map(|input| input.shape().dims()).collect();
        assert_eq!(shapes, expected);
    }

    #[test]
    fn a_row_has_the_declared_shape_with_varying_dimensions_of_the_payload() {
        let image = [declared("x", Datatype::Fp32, &[-1, 3, 224, 224])];
        check(&image, 602_112, &[&[1, 3, 224, 224]]);
        // The payload does not shrink fixed dimensions.
        check(&image, 0, &[&[1, 3, 224, 224]]);
        let text = [
            declared("ids", Datatype::Int64, &[-1, -1]),
            declared("mask", Datatype::Int64, &[-1, -1]),
        ];
        check(&text, 4096, &[&[1, 256], &[1, 256]]);
        check(&text, 4111, &[&[1, 256], &[1, 256]]);
        check(&text, 0, &[&[1, 1], &[1, 1]]);
        check(&[declared("s", Datatype::Bytes, &[-1, 2])], 0, &[&[1, 2]]);
        check(&[declared("x", Datatype::Fp16, &[])], 0, &[&[]]);
    }

    #[test]
    fn several_rows_share_the_payload() {
        let text = [declared("ids", Datatype::Int64, &[-1, -1])];
        let inputs = inputs(&text, 4, 4096).unwrap();
        assert_eq!(inputs[0].shape().dims(), [4, 128]);
    }

    #[test]
    fn inputs_over_the_limit_are_refused() {
        let error = inputs(&[declared("x", Datatype::Fp64, &[-1, 1 << 40])], 1, 0).unwrap_err();
        assert!(error.to_string().contains("over the limit of"), "{error}");
    }
}
