//! The batch size of a replica that grows with every batch in time and shrinks with every late one.
//!
//! Source: Crankshaw et al., "Clipper: A Low-Latency Online Prediction Serving System", NSDI 2017, section 4.3.1: additive increase, and
//! a decrease by a tenth. Deviation: only a batch that is as large as the size shows that it may grow; a smaller one shows nothing of the
//! time that larger ones take.

/// The rows by which the size grows after a batch in time.
const INCREASE: u32 = 1;

/// The part of the size, as a divisor, by which it shrinks after a late batch; at least one row.
const DECREASE_PART: u32 = 10;

/// The most rows of a batch that an answer in time has not yet been seen to be too many.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AdaptiveBatch {
    rows: u32,
}

impl AdaptiveBatch {
    /// Returns the size before the first batch: one row.
    pub(crate) fn new() -> Self {
        Self { rows: 1 }
    }

    /// Returns the most rows of the next batch, at least 1.
    pub(crate) fn rows(self) -> u32 {
        self.rows
    }

    /// Takes note of a batch of `rows` rows that was back within the objective, or late.
    pub(crate) fn observe(&mut self, rows: u32, in_time: bool) {
        if !in_time {
            let shrunk = self.rows - self.rows.div_ceil(DECREASE_PART);
            self.rows = shrunk.max(1);
        } else if rows >= self.rows {
            self.rows = self.rows.saturating_add(INCREASE);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_size_grows_by_one_and_shrinks_by_a_tenth() {
        let mut size = AdaptiveBatch::new();
        for rows in 1..20 {
            assert_eq!(size.rows(), rows);
            size.observe(rows, true);
        }
        // 20 − 2, 18 − 2, 16 − 2, 14 − 2, 12 − 2, 10 − 1.
        let shrunk = [18, 16, 14, 12, 10, 9].map(|rows| {
            size.observe(20, false);
            (size.rows(), rows)
        });
        for (found, expected) in shrunk {
            assert_eq!(found, expected);
        }
    }

    #[test]
    fn a_small_batch_in_time_shows_nothing_and_one_row_is_the_least() {
        let mut size = AdaptiveBatch { rows: 8 };
        size.observe(7, true);
        assert_eq!(size.rows(), 8);
        for _ in 0..20 {
            size.observe(1, false);
        }
        assert_eq!(size.rows(), 1);
    }
}
