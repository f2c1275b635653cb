//! The recorded runs of a program (CUDA graphs).

use std::collections::BTreeMap;

use packhorse_wire::TensorHeader;

use super::shim::Graph;

/// The shapes of a batch's inputs.
pub(super) type InputShapes = Vec<Vec<i64>>;

/// The recorded runs of a program, whose memory they share.
#[derive(Default)]
pub(super) struct Graphs {
    by_shapes: BTreeMap<InputShapes, Graph>,
    /// The batch sizes of the recorded runs, in ascending order.
    batch_sizes: Vec<u32>,
    /// The reason why a batch size could not be recorded.
    failure: Option<String>,
    /// True if batches whose size is not recorded are not padded to one that is.
    never_pads: bool,
    /// True if nothing is recorded any more.
    is_refused: bool,
}

impl Graphs {
    /// Adds the recording of a batch size.
    pub(super) fn insert(&mut self, batch_size: u32, shapes: InputShapes, graph: Graph) {
        if self.by_shapes.insert(shapes, graph).is_none() {
            let at = self.batch_sizes.partition_point(|size| *size < batch_size);
            self.batch_sizes.insert(at, batch_size);
        }
    }

    /// Drops all recordings.
    pub(super) fn forget(&mut self) {
        *self = Self {
            failure: self.failure.take().filter(|_| self.is_refused),
            never_pads: self.never_pads,
            is_refused: self.is_refused,
            ..Self::default()
        };
    }

    /// Drops all recordings for good, for this reason.
    pub(super) fn refuse(&mut self, reason: String) {
        self.forget();
        self.failure = Some(reason);
        self.is_refused = true;
    }

    /// Returns true if nothing may be recorded.
    pub(super) fn is_refused(&self) -> bool {
        self.is_refused
    }

    /// Keeps the reason why a batch size could not be recorded.
    pub(super) fn set_failure(&mut self, reason: String) {
        self.failure = Some(reason);
    }

    /// Stops to pad batches: the program answers other numbers for a row beside others.
    pub(super) fn stop_padding(&mut self) {
        self.never_pads = true;
    }

    /// Returns the recording for inputs of these shapes.
    pub(super) fn for_shapes(&self, shapes: &InputShapes) -> Option<&Graph> {
        self.by_shapes.get(shapes)
    }

    /// Returns the number of rows of the smallest recording that a batch of `rows` rows with these inputs can be padded to; `None` if the batch
    /// needs no padding, or there is no such recording.
    pub(super) fn padded_rows(&self, inputs: &[TensorHeader], rows: u64) -> Option<u64> {
        if self.is_empty() || self.never_pads {
            return None;
        }
        let shape = |input: &TensorHeader| {
            let rest = input.shape().dims().iter().skip(1);
            let dims = std::iter::once(&rows).chain(rest);
            dims.map(|dim| dim.cast_signed()).collect()
        };
        padded_rows(&self.by_shapes, &inputs.iter().map(shape).collect())
    }

    /// Returns the recording with the largest inputs, which have different numbers of rows.
    pub(super) fn largest(&self) -> Option<&Graph> {
        self.by_shapes.values().next_back()
    }

    /// Returns true if nothing is recorded.
    pub(super) fn is_empty(&self) -> bool {
        self.by_shapes.is_empty()
    }

    /// Returns the batch sizes of the recorded runs, in ascending order, or the reason why there are none.
    pub(super) fn batch_sizes(&self) -> Result<&[u32], &str> {
        match &self.failure {
            _ if !self.batch_sizes.is_empty() => Ok(&self.batch_sizes),
            Some(reason) => Err(reason),
            None => Err("not requested"),
        }
    }
}

/// Returns the least rows among the recorded shapes that differ from these, which have equal rows, only in having more, and at most twice as
/// many: beyond that the rows in vain may cost more than the recording gains, 1.2 to 4 times on an H200.
fn padded_rows<T>(recorded: &BTreeMap<InputShapes, T>, shapes: &InputShapes) -> Option<u64> {
    // All recorded inputs have the same shapes but for their rows, which come first.
    let (next, _) = recorded.range::<InputShapes, _>(shapes..).next()?;
    let (rows, padded) = (*shapes.first()?.first()?, *next.first()?.first()?);
    let extends = |(wanted, recorded): (&Vec<i64>, &Vec<i64>)| {
        recorded.first() == Some(&padded) && recorded.get(1..) == wanted.get(1..)
    };
    let fits = next.len() == shapes.len() && shapes.iter().zip(next).all(extends);
    (fits && padded != rows && padded <= 2 * rows).then(|| padded.cast_unsigned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_is_padded_to_the_next_recording_of_at_most_twice_its_rows() {
        let shapes = |rows: i64| vec![vec![rows, 3, 7], vec![rows]];
        let recorded: BTreeMap<InputShapes, u8> =
            [1, 2, 4, 8, 16, 64].map(|rows| (shapes(rows), 0)).into();
        let padded = |rows| padded_rows(&recorded, &shapes(rows));
        assert_eq!(
            [3, 5, 9, 32].map(padded),
            [Some(4), Some(8), Some(16), Some(64)]
        );
        assert_eq!([1, 8, 17, 31, 64, 65].map(padded), [None; 6]);
        assert_eq!(padded_rows(&recorded, &vec![vec![3, 3, 8], vec![3]]), None);
        assert_eq!(padded_rows(&recorded, &vec![vec![3, 3, 7]]), None);
        assert_eq!(
            padded_rows(&BTreeMap::<InputShapes, u8>::new(), &shapes(3)),
            None
        );
    }
}
