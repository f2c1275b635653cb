//! The time of a batch besides waiting and computing, as a function of its rows.

use std::time::Duration;

/// The weight of each new observation in the moving averages.
pub(crate) const WEIGHT: f64 = 0.2;

/// The least standard deviation of the rows of batches, relative to their mean, from which the overhead of a row can be derived.
const MIN_ROW_VARIATION: f64 = 0.1;

/// A linear regression of overhead (transmission, copies, hand-over: all but waiting and computing) on the rows of batches. It
/// starts from the origin.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct OverheadFit {
    rows: f64,
    seconds: f64,
    /// The variance of the rows.
    variance: f64,
    covariance: f64,
}

/// The overhead of a batch besides waiting and computing, as a function of its rows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Overhead {
    /// The seconds of every batch.
    base: f64,
    per_row: f64,
}

impl Overhead {
    /// Returns the overhead of a batch of `rows` rows.
    pub(crate) fn for_rows(self, rows: u32) -> Duration {
        Duration::from_secs_f64(self.base + self.per_row * f64::from(rows))
    }
}

impl OverheadFit {
    /// Adds an observation. Source of the updates: Finch, "Incremental calculation of weighted mean and variance", 2009, section
    /// 9.
    pub(crate) fn observe(&mut self, rows: f64, seconds: f64) {
        let (more_rows, more_seconds) = (rows - self.rows, seconds - self.seconds);
        self.rows += WEIGHT * more_rows;
        self.seconds += WEIGHT * more_seconds;
        let kept = 1.0 - WEIGHT;
        self.variance = kept * (self.variance + WEIGHT * more_rows * more_rows);
        self.covariance = kept * (self.covariance + WEIGHT * more_rows * more_seconds);
    }

    /// Has the observations count only this part of what they did.
    pub(crate) fn forget(&mut self, confidence: f64) {
        self.seconds *= confidence;
        self.covariance *= confidence;
    }

    /// Returns the regression line, which neither falls nor goes below zero, and goes through the origin where the rows hardly
    /// varied.
    pub(crate) fn overhead(&self, confidence: f64) -> Overhead {
        if self.rows <= 0.0 {
            return Overhead {
                base: 0.0,
                per_row: 0.0,
            };
        }
        let proportional = self.seconds / self.rows;
        let varies = self.variance > (MIN_ROW_VARIATION * self.rows).powi(2);
        let per_row = if varies {
            (self.covariance / self.variance).clamp(0.0, proportional)
        } else {
            proportional
        };
        Overhead {
            base: (self.seconds - per_row * self.rows).max(0.0) * confidence,
            per_row: per_row * confidence,
        }
    }
}
