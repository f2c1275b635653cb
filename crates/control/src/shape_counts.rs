//! The shapes of batches, as the data plane counts them.

use std::collections::VecDeque;

/// The counted shapes of a model's batches: the sizes of the variable dimensions of its inputs, padding included, in the order of
/// [`Program::variable_dims`](packhorse_cluster::Program::variable_dims). Its size is bounded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ShapeCounts {
    /// The number of rows that were counted.
    pub rows: u64,
    /// The sum of the sizes of each variable dimension over these rows.
    pub sums: Vec<u64>,
    /// The last counted shapes, the oldest first.
    pub recent: VecDeque<Vec<u64>>,
}

impl ShapeCounts {
    /// The largest number of shapes that are kept.
    const MAX_RECENT: usize = 16;

    /// Adds a batch. One with another number of variable dimensions is of another program, and counting begins again.
    pub fn add_batch(&mut self, rows: u32, sizes: &[u64]) {
        if self.sums.len() != sizes.len() {
            *self = Self {
                sums: vec![0; sizes.len()],
                ..Self::default()
            };
        }
        let rows = u64::from(rows);
        self.rows = self.rows.saturating_add(rows);
        for (sum, size) in self.sums.iter_mut().zip(sizes) {
            *sum = sum.saturating_add(size.saturating_mul(rows));
        }
        // The memory of the oldest shape is that of the newest.
        let is_full = self.recent.len() >= Self::MAX_RECENT;
        let mut shape = if is_full {
            self.recent.pop_front()
        } else {
            None
        }
        .unwrap_or_default();
        shape.clear();
        shape.extend_from_slice(sizes);
        self.recent.push_back(shape);
    }

    /// Returns the rows and sums since an earlier reading. If a count is lower than before, counting has begun again, and all of it is new.
    pub(crate) fn since(&self, before: &Self) -> (u64, Vec<u64>) {
        let since = || {
            let rows = self.rows.checked_sub(before.rows)?;
            let sums = self.sums.iter().zip(&before.sums);
            let sums: Option<Vec<u64>> =
                sums.map(|(now, before)| now.checked_sub(*before)).collect();
            (self.sums.len() == before.sums.len()).then_some((rows, sums?))
        };
        since().unwrap_or_else(|| (self.rows, self.sums.clone()))
    }

    /// Returns the last counted shape that is nearest to these sizes.
    pub(crate) fn nearest(&self, sizes: &[f64]) -> Option<&Vec<u64>> {
        let distance = |shape: &Vec<u64>| {
            let sizes = shape.iter().zip(sizes);
            let distances =
                sizes.map(|(size, mean)| ((*size).max(1) as f64 / mean.max(1.0)).ln().abs());
            distances.sum::<f64>()
        };
        let shapes = self.recent.iter();
        let shapes = shapes.filter(|shape| shape.len() == sizes.len());
        shapes.min_by(|a, b| distance(a).total_cmp(&distance(b)))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn counted(batches: &[(u32, u64)]) -> ShapeCounts {
        let mut counts = ShapeCounts::default();
        for (rows, size) in batches {
            counts.add_batch(*rows, &[*size]);
        }
        counts
    }

    #[test]
    fn a_program_with_other_dimensions_is_counted_from_zero() {
        let mut counts = counted(&[(4, 10), (4, 30)]);
        let before = counts.clone();
        counts.add_batch(2, &[5]);
        assert_eq!(counts.since(&before), (2, vec![10]));
        counts.add_batch(1, &[7, 8]);
        assert_eq!(counts.since(&before), (1, vec![7, 8]));
        assert_eq!(counts.recent, [vec![7, 8]]);
    }

    #[test]
    fn the_nearest_shape_is_one_that_came() {
        let counts = counted(&[(1, 16), (1, 100), (1, 3000)]);
        assert_eq!(counts.nearest(&[120.0]), Some(&vec![100]));
        assert_eq!(counts.nearest(&[1.0, 2.0]), None);
    }

    proptest! {
        #[test]
        fn the_memory_of_counts_is_bounded_and_their_sum_is_exact(
            batches in proptest::collection::vec((1_u32..4096, 0_u64..1 << 22), 1..200)
        ) {
            let counts = counted(&batches);
            let rows: u64 = batches.iter().map(|(rows, _)| u64::from(*rows)).sum();
            let sum: u64 = batches.iter().map(|(rows, size)| u64::from(*rows) * size).sum();
            prop_assert_eq!((counts.rows, &counts.sums), (rows, &vec![sum]));
            let last = batches.iter().rev().take(ShapeCounts::MAX_RECENT).rev();
            let last: Vec<Vec<u64>> = last.map(|(_, size)| vec![*size]).collect();
            prop_assert_eq!(Vec::from(counts.recent), last);
        }
    }
}
