//! The part of the measurements that the history gets.

use std::ops::RangeInclusive;

use packhorse_history::ModelSample;

use super::model::ModelTelemetry;

impl ModelTelemetry {
    /// Returns what happened in these seconds since the start of the clock.
    pub(super) fn sample(&self, seconds: RangeInclusive<u64>) -> ModelSample {
        let (counts, latencies) = self.with_window(|window| window.sum(seconds));
        let mut sample = ModelSample {
            offered: counts.offered,
            in_time: counts.in_time,
            late: counts.answered - counts.in_time + counts.expired,
            refused: counts.refused,
            failed: counts.failed,
            ..ModelSample::default()
        };
        for (latency, count) in latencies.iter() {
            sample.latencies.add(latency, count);
        }
        sample
    }
}
