//! Tokens as rows of tensors.

use packhorse_cluster::{Datatype, TokenTensor};

/// The tokens of a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tokens {
    /// Their numbers in the vocabulary.
    pub ids: Box<[u32]>,
    /// The part of the text that each is of.
    pub type_ids: Box<[u32]>,
}

impl Tokens {
    /// Returns the number of tokens.
    pub fn len(&self) -> usize {
        self.ids.len()
    }

    /// Returns true if there is none.
    pub fn is_empty(&self) -> bool {
        self.ids.is_empty()
    }

    /// Appends a row of `width` elements, little-endian: what a tensor is filled with, then `pad`.
    pub fn write_row(
        &self,
        of: TokenTensor,
        datatype: Datatype,
        width: usize,
        pad: f64,
        row: &mut Vec<u8>,
    ) {
        let filler = width.saturating_sub(self.len());
        match of {
            TokenTensor::Ids => write(self.ids.iter().copied(), datatype, row),
            TokenTensor::TypeIds => write(self.type_ids.iter().copied(), datatype, row),
            TokenTensor::Mask => write(self.ids.iter().map(|_| 1), datatype, row),
        }
        for _ in 0..filler {
            match datatype {
                Datatype::Bool => row.push(u8::from(pad != 0.0)),
                Datatype::Fp32 => row.extend_from_slice(&(pad as f32).to_le_bytes()),
                Datatype::Int32 => row.extend_from_slice(&(pad as i32).to_le_bytes()),
                _ => row.extend_from_slice(&(pad as i64).to_le_bytes()),
            }
        }
    }
}

fn write(numbers: impl Iterator<Item = u32>, datatype: Datatype, row: &mut Vec<u8>) {
    match datatype {
        Datatype::Bool => row.extend(numbers.map(|number| u8::from(number != 0))),
        Datatype::Fp32 => row.extend(numbers.flat_map(|number| (number as f32).to_le_bytes())),
        Datatype::Int32 => row.extend(numbers.flat_map(u32::to_le_bytes)),
        _ => row.extend(numbers.flat_map(|number| u64::from(number).to_le_bytes())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_have_the_width_and_are_filled_up_at_their_end() {
        let tokens = Tokens {
            ids: [101, 70_000].into(),
            type_ids: [0, 1].into(),
        };
        let row = |of, datatype, pad| {
            let mut row = vec![9];
            tokens.write_row(of, datatype, 3, pad, &mut row);
            assert_eq!(row.remove(0), 9);
            row
        };
        let words = |words: [i64; 3]| {
            words
                .into_iter()
                .flat_map(i64::to_le_bytes)
                .collect::<Vec<_>>()
        };
        assert_eq!(
            row(TokenTensor::Ids, Datatype::Int64, 5.0),
            words([101, 70_000, 5])
        );
        assert_eq!(
            row(TokenTensor::TypeIds, Datatype::Int64, -1.0),
            words([0, 1, -1])
        );
        assert_eq!(
            row(TokenTensor::Mask, Datatype::Int64, 0.0),
            words([1, 1, 0])
        );
        assert_eq!(row(TokenTensor::Mask, Datatype::Bool, 0.0), [1, 1, 0]);
        let floats: Vec<u8> = [1f32, 1.0, 0.0]
            .into_iter()
            .flat_map(f32::to_le_bytes)
            .collect();
        assert_eq!(row(TokenTensor::Mask, Datatype::Fp32, 0.0), floats);
        let ints: Vec<u8> = [101i32, 70_000, 0]
            .into_iter()
            .flat_map(i32::to_le_bytes)
            .collect();
        assert_eq!(row(TokenTensor::Ids, Datatype::Int32, 0.0), ints);
    }
}
