//! Padding of shorter inputs, so that requests of different length share a batch.

use bytes::{BufMut, Bytes, BytesMut};
use half::{bf16, f16};
use packhorse_cluster::Datatype;
use packhorse_protocol::{Element, Tensor};

/// Returns the bytes of one element with the value that is nearest to `value` in the datatype.
fn element(datatype: Datatype, value: f64) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(8);
    match datatype {
        Datatype::Bool => (value != 0.0).append_to(&mut bytes),
        Datatype::Uint8 => (value as u8).append_to(&mut bytes),
        Datatype::Uint16 => (value as u16).append_to(&mut bytes),
        Datatype::Uint32 => (value as u32).append_to(&mut bytes),
        Datatype::Uint64 => (value as u64).append_to(&mut bytes),
        Datatype::Int8 => (value as i8).append_to(&mut bytes),
        Datatype::Int16 => (value as i16).append_to(&mut bytes),
        Datatype::Int32 => (value as i32).append_to(&mut bytes),
        Datatype::Int64 => (value as i64).append_to(&mut bytes),
        Datatype::Fp16 => f16::from_f64(value).append_to(&mut bytes),
        Datatype::Bf16 => bf16::from_f64(value).append_to(&mut bytes),
        Datatype::Fp32 => (value as f32).append_to(&mut bytes),
        Datatype::Fp64 => value.append_to(&mut bytes),
        Datatype::Bytes => unreachable!("no model has BYTES inputs, see `Program::validate`"),
    }
    bytes
}

/// The size of the blocks of which padding consists, in bytes. All padding of an input is made of one block.
const FILL_BLOCK: usize = 64 << 10;

/// The least bytes of a row and its padding, on average, that are passed on as pieces. Shorter ones are copied: a piece costs nearly
/// as much.
const MIN_PIECES: usize = 256;

/// A block of zeros, with which nearly all inputs are padded.
static ZEROS: [u8; FILL_BLOCK] = [0; FILL_BLOCK];

/// Adds the bytes of `tensor` to `payload`, with dimension `axis` padded to `size` at its end. Only short rows are copied, and no
/// padding of long ones is ever in memory: it consists of slices of one block.
pub(super) fn push_padded(
    payload: &mut Vec<Bytes>,
    tensor: &Tensor,
    axis: usize,
    size: u64,
    value: f64,
) {
    let element = element(tensor.datatype(), value);
    let dims = tensor.shape().dims();
    let product = |dims: &[u64]| dims.iter().product::<u64>() as usize;
    let outer = product(&dims[..axis]);
    let step = product(&dims[axis + 1..]) * element.len();
    let kept = dims[axis] as usize * step;
    let filled = (size - dims[axis]) as usize * step;
    if kept + filled < MIN_PIECES {
        payload.push(padded(tensor, axis, size, value));
        return;
    }
    let block = if element.iter().all(|byte| *byte == 0) {
        Bytes::from_static(&ZEROS)
    } else {
        let mut block = BytesMut::new();
        // A whole number of elements: their sizes are powers of two.
        fill(&mut block, filled.min(FILL_BLOCK), &element);
        block.freeze()
    };
    let mut rest = tensor.data().clone();
    for _ in 0..outer {
        payload.extend(rest.split_to(kept).chunks().cloned());
        let mut missing = filled;
        while missing > 0 {
            let length = missing.min(block.len());
            payload.push(block.slice(..length));
            missing -= length;
        }
    }
}

/// Returns the bytes of `tensor` with dimension `axis` padded to `size` at its end. This is the only place where inputs are
/// copied.
fn padded(tensor: &Tensor, axis: usize, size: u64, value: f64) -> Bytes {
    let element = element(tensor.datatype(), value);
    let dims = tensor.shape().dims();
    let product = |dims: &[u64]| dims.iter().product::<u64>() as usize;
    let outer = product(&dims[..axis]);
    let step = product(&dims[axis + 1..]) * element.len();
    let kept = dims[axis] as usize * step;
    let filled = (size - dims[axis]) as usize * step;
    let mut bytes = BytesMut::with_capacity(outer * (kept + filled));
    let mut rest = tensor.data().clone();
    for _ in 0..outer {
        rest.split_to(kept)
            .chunks()
            .for_each(|chunk| bytes.put_slice(chunk));
        fill(&mut bytes, filled, &element);
    }
    bytes.freeze()
}

fn fill(bytes: &mut BytesMut, length: usize, element: &[u8]) {
    if element.iter().all(|byte| *byte == element[0]) {
        bytes.put_bytes(element[0], length);
    } else {
        (0..length / element.len()).for_each(|_| bytes.put_slice(element));
    }
}

#[cfg(test)]
mod tests {
    use packhorse_cluster::Shape;

    use super::*;

    fn tensor<T: Element>(dims: &[i64], values: &[T]) -> Tensor {
        Tensor::from_values("x", Shape::new(dims).unwrap(), values).unwrap()
    }

    fn values<T: Element>(bytes: &Bytes) -> Vec<T> {
        bytes.chunks_exact(T::WIDTH).map(T::from_bytes).collect()
    }

    #[test]
    fn every_row_is_filled_up_at_its_end() {
        let input = tensor::<i64>(&[2, 2], &[1, 2, 3, 4]);
        let bytes = padded(&input, 1, 3, -7.0);
        assert_eq!(values::<i64>(&bytes), [1, 2, -7, 3, 4, -7]);
    }

    #[test]
    fn long_rows_are_passed_on_and_their_padding_is_no_memory_of_its_own() {
        for value in [0.0, -7.0] {
            let row: Vec<i64> = (1..=40).collect();
            let input = tensor::<i64>(&[2, 20], &row);
            let mut payload = Vec::new();
            push_padded(&mut payload, &input, 1, 20_000, value);
            let filled = vec![value as i64; 19_980];
            let expected = [&row[..20], &filled, &row[20..], &filled].concat();
            assert_eq!(values::<i64>(&payload.concat().into()), expected);
            let own = input.data().to_bytes();
            assert_eq!(payload[0].as_ptr(), own.as_ptr());
            let blocks: Vec<_> = payload.iter().map(|piece| piece.as_ptr()).collect();
            assert_eq!(blocks[1], blocks[2], "slices of one block");
        }
    }

    #[test]
    fn an_inner_axis_is_filled_in_whole_steps() {
        let input = tensor::<f32>(&[1, 1, 2], &[1.0, 2.0]);
        assert_eq!(
            values::<f32>(&padded(&input, 1, 3, 0.5)),
            [1.0, 2.0, 0.5, 0.5, 0.5, 0.5]
        );
        let input = tensor::<u8>(&[1, 2, 1], &[1, 2]);
        assert_eq!(values::<u8>(&padded(&input, 2, 2, 9.0)), [1, 9, 2, 9]);
        let empty = tensor::<u8>(&[1, 0], &[]);
        assert_eq!(values::<u8>(&padded(&empty, 1, 2, 300.0)), [255, 255]);
    }
}
