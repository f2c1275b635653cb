//! The inputs of a benchmark's requests: one row of zeros, in the shape that the model declares.

use anyhow::{Context as _, ensure};
use packhorse_cluster::{Datatype, Shape};
use packhorse_protocol::{ByteRope, Tensor, TensorMetadata};

/// The longest that a dimension is made.
const MAX_DIM: u64 = 1 << 20;

/// The most bytes of a request: a gateway's own limit, by default.
const MAX_BYTES: u64 = 256 << 20;

/// Tensors for these inputs. A first dimension that varies is the batch's: it is 1. Other dimensions that vary all have the same
/// length, the largest with which the request has at most `payload` bytes, at least 1. An empty string is an element of `BYTES`.
pub(super) fn inputs(declared: &[TensorMetadata], payload: u64) -> anyhow::Result<Vec<Tensor>> {
    let length = length(declared, payload);
    let bytes = bytes(declared, length);
    ensure!(
        bytes <= MAX_BYTES,
        "one row of its inputs has {bytes} bytes, over the limit of {MAX_BYTES}"
    );
    let input = |input: &TensorMetadata| -> anyhow::Result<Tensor> {
        let shape = Shape::new(&dims(input, length))?;
        let zeros = vec![0; usize::try_from(shape.elements())? * width(input.datatype)];
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

/// The bytes of an element; of a string, those of its length.
fn width(datatype: Datatype) -> usize {
    datatype.width().unwrap_or(size_of::<u32>())
}

fn dims(input: &TensorMetadata, length: u64) -> Vec<i64> {
    let varying = |axis: usize| if axis == 0 { 1 } else { length.cast_signed() };
    let dims = input.shape.iter().enumerate();
    dims.map(|(axis, &dim)| if dim < 0 { varying(axis) } else { dim })
        .collect()
}

fn bytes(declared: &[TensorMetadata], length: u64) -> u64 {
    let of = |input: &TensorMetadata| {
        let dims = dims(input, length).into_iter();
        let elements = dims.fold(1_u64, |product, dim| {
            product.saturating_mul(u64::try_from(dim).unwrap_or(0))
        });
        elements.saturating_mul(width(input.datatype) as u64)
    };
    declared.iter().map(of).fold(0, u64::saturating_add)
}

fn length(declared: &[TensorMetadata], payload: u64) -> u64 {
    let varies = declared
        .iter()
        .any(|input| input.shape.iter().skip(1).any(|dim| *dim < 0));
    if !varies {
        return 1;
    }
    let (mut fits, mut too_long) = (1, MAX_DIM + 1);
    while fits + 1 < too_long {
        let middle = fits.midpoint(too_long);
        if bytes(declared, middle) <= payload {
            fits = middle;
        } else {
            too_long = middle;
        }
    }
    fits
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
        let inputs = inputs(declared, payload).unwrap();
        let shapes: Vec<&[u64]> = inputs.iter().map(|input| input.shape().dims()).collect();
        assert_eq!(shapes, expected);
    }

    #[test]
    fn a_row_has_the_declared_shape_and_what_varies_is_as_long_as_the_payload_allows() {
        let image = [declared("x", Datatype::Fp32, &[-1, 3, 224, 224])];
        check(&image, 602_112, &[&[1, 3, 224, 224]]);
        // The scenario does not make an image smaller.
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
    fn inputs_beyond_every_body_are_refused() {
        let error = inputs(&[declared("x", Datatype::Fp64, &[-1, 1 << 40])], 0).unwrap_err();
        assert!(error.to_string().contains("over the limit of"), "{error}");
    }
}
