//! The padding of a batch with copies of its first row, for a program that requires more rows, or a recorded run that has more.

use packhorse_cluster::Shape;
use packhorse_wire::TensorHeader;

use super::error::{TorchError, TorchErrorKind};

/// The rows of a batch and of the inputs that the program gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RowPadding {
    batch_rows: u64,
    padded_rows: u64,
}

impl RowPadding {
    /// Returns the padding for a batch, of whose rows `padded_rows` makes those that the program gets; `None` if it needs none, or its inputs
    /// have different numbers of rows.
    pub(super) fn for_batch(
        inputs: &[TensorHeader],
        padded_rows: impl FnOnce(u64) -> u64,
    ) -> Option<Self> {
        let rows = |input: &TensorHeader| input.shape().dims().first().copied();
        let batch_rows = rows(inputs.first()?)?;
        let equal = inputs.iter().all(|input| rows(input) == Some(batch_rows));
        if batch_rows == 0 || !equal {
            return None;
        }
        let padded_rows = padded_rows(batch_rows);
        (padded_rows != batch_rows).then_some(Self {
            batch_rows,
            padded_rows,
        })
    }

    /// Returns the number of rows of the batch, for tensor operations.
    pub(super) fn batch_rows(self) -> i64 {
        self.batch_rows.cast_signed()
    }

    /// Returns the header of an input with its padding.
    pub(super) fn padded_header(self, header: &TensorHeader) -> Result<TensorHeader, TorchError> {
        let dims = header.shape().dims().iter().map(|d| d.cast_signed());
        let mut dims: Vec<i64> = dims.collect();
        dims[0] = self.padded_rows.cast_signed();
        let too_large = |e: &dyn std::fmt::Display| TorchError {
            text: e.to_string(),
            kind: TorchErrorKind::Exception,
        };
        let shape = Shape::new(&dims).map_err(|e| too_large(&e))?;
        TensorHeader::new(header.datatype(), shape).map_err(|e| too_large(&e))
    }

    /// Returns the number of bytes of a padded tensor that belong to the batch.
    pub(super) fn batch_bytes(self, padded_bytes: usize) -> usize {
        padded_bytes / self.padded_rows as usize * self.batch_rows as usize
    }

    /// Fills the padding of a tensor with its first row.
    pub(super) fn fill(self, tensor: &mut [u8]) {
        let row = tensor.len() / self.padded_rows as usize;
        let (batch, padding) = tensor.split_at_mut(self.batch_bytes(tensor.len()));
        for padding_row in padding.chunks_exact_mut(row.max(1)) {
            padding_row.copy_from_slice(&batch[..row]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn padding_is_the_first_row_again() {
        let padding = RowPadding {
            batch_rows: 2,
            padded_rows: 4,
        };
        let mut tensor = *b"abcdxxxx";
        assert_eq!(padding.batch_bytes(tensor.len()), 4);
        padding.fill(&mut tensor);
        assert_eq!(&tensor, b"abcdabab");
        padding.fill(&mut []);
    }
}
