//! The keys of kept answers.

use packhorse_protocol::Tensor;
use packhorse_serving::ModelKey;
use sha2::{Digest as _, Sha256};

/// The key of a kept answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct PredictionKey {
    /// The model that answered.
    pub(crate) model: ModelKey,
    /// The inputs.
    pub(crate) inputs: InputDigest,
}

/// The SHA-256 of a request's inputs: names, datatypes, shapes and bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct InputDigest([u8; 32]);

impl InputDigest {
    /// Returns the hash of inputs in the model's order, whatever the form in which and the pieces in which they came.
    pub(crate) fn of(inputs: &[Tensor]) -> Self {
        let mut hash = Sha256::new();
        let number = |number: usize| (number as u64).to_le_bytes();
        for input in inputs {
            let (name, dims) = (input.name(), input.shape().dims());
            // Each part begins with its length, so that no two lists of inputs have the same bytes.
            hash.update(number(name.len()));
            hash.update(name);
            hash.update(input.datatype().as_str());
            hash.update([0]);
            hash.update(number(dims.len()));
            for dim in dims {
                hash.update(dim.to_le_bytes());
            }
            hash.update(number(input.data().len()));
            for chunk in input.data().chunks() {
                hash.update(chunk);
            }
        }
        Self(hash.finalize().into())
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use packhorse_cluster::{Datatype, Shape};
    use packhorse_protocol::ByteRope;
    use proptest::{collection::vec, prelude::*};

    use super::*;

    fn tensor(name: &str, datatype: Datatype, dims: &[i64], data: ByteRope) -> Tensor {
        let shape = Shape::new(dims).unwrap();
        Tensor::new(name.to_owned(), datatype, shape, data).unwrap()
    }

    fn pieces(data: &[u8], at: usize) -> ByteRope {
        let (one, other) = data.split_at(at.min(data.len()));
        let mut rope = ByteRope::new();
        rope.push(Bytes::copy_from_slice(one));
        rope.push(Bytes::copy_from_slice(other));
        rope
    }

    proptest! {
        #[test]
        fn pieces_do_not_matter_and_each_bit_does(data in vec(any::<u8>(), 1..200), at in 0_usize..200, bit in 0_usize..1600) {
            let dims = [data.len().cast_signed() as i64];
            let of = |data: ByteRope| InputDigest::of(&[tensor("x", Datatype::Uint8, &dims, data)]);
            let whole = of(data.clone().into());
            prop_assert_eq!(of(pieces(&data, at)), whole);
            let mut changed = data.clone();
            let bit = bit % (8 * data.len());
            changed[bit / 8] ^= 1 << (bit % 8);
            prop_assert_ne!(of(changed.into()), whole);
        }

        #[test]
        fn where_one_input_ends_and_the_next_begins_matters(data in vec(any::<u8>(), 2..50), one in 1_usize..50, other in 1_usize..50) {
            let cut = |at: usize| {
                let (first, second) = data.split_at(at % data.len());
                let part = |name, data: &[u8]| tensor(name, Datatype::Uint8, &[data.len().cast_signed() as i64], data.to_vec().into());
                InputDigest::of(&[part("a", first), part("b", second)])
            };
            prop_assert_eq!(cut(one) == cut(other), one % data.len() == other % data.len());
        }
    }

    #[test]
    fn names_datatypes_and_shapes_matter() {
        let data = || ByteRope::from(vec![0; 8]);
        let digests = [
            InputDigest::of(&[]),
            InputDigest::of(&[tensor("x", Datatype::Uint8, &[8], data())]),
            InputDigest::of(&[tensor("y", Datatype::Uint8, &[8], data())]),
            InputDigest::of(&[tensor("x", Datatype::Int8, &[8], data())]),
            InputDigest::of(&[tensor("x", Datatype::Uint8, &[2, 4], data())]),
            InputDigest::of(&[tensor("x", Datatype::Uint8, &[4, 2], data())]),
            InputDigest::of(&[tensor("x", Datatype::Uint8, &[1, 8], data())]),
            InputDigest::of(&[tensor("x", Datatype::Fp32, &[2], data())]),
            InputDigest::of(&[
                tensor("x", Datatype::Uint8, &[8], data()),
                tensor("x", Datatype::Uint8, &[0], ByteRope::new()),
            ]),
        ];
        for (index, digest) in digests.iter().enumerate() {
            assert!(!digests[..index].contains(digest), "{index}");
        }
    }
}
