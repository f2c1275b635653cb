//! A histogram of a stage's times without locks, which is written to `/metrics` only once it has counted something.

use std::{
    fmt::Error,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};

use prometheus_client::encoding::{MetricEncoder, NoLabelSet};

/// The upper boundaries of the buckets but the last, which has none: 0.1 ms to 60 s, the range of an SLO, in steps of about 2.5.
const BOUNDARIES: [Duration; 18] = [
    Duration::from_micros(100),
    Duration::from_micros(250),
    Duration::from_micros(500),
    Duration::from_millis(1),
    Duration::from_micros(2_500),
    Duration::from_millis(5),
    Duration::from_millis(10),
    Duration::from_millis(25),
    Duration::from_millis(50),
    Duration::from_millis(100),
    Duration::from_millis(250),
    Duration::from_millis(500),
    Duration::from_secs(1),
    Duration::from_millis(2_500),
    Duration::from_secs(5),
    Duration::from_secs(10),
    Duration::from_secs(30),
    Duration::from_mins(1),
];

/// The times of a stage.
#[derive(Debug, Default)]
pub(super) struct StageHistogram {
    /// The number of times in each bucket.
    counts: [AtomicU64; BOUNDARIES.len() + 1],
    nanos: AtomicU64,
}

impl StageHistogram {
    pub(super) fn observe(&self, time: Duration) {
        let bucket = BOUNDARIES.partition_point(|boundary| *boundary < time);
        self.counts[bucket].fetch_add(1, Relaxed);
        let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.nanos.fetch_add(nanos, Relaxed);
    }

    /// Returns the buckets with their upper boundaries in seconds, and the number of all times.
    fn buckets(&self) -> ([(f64, u64); BOUNDARIES.len() + 1], u64) {
        let mut buckets = [(f64::MAX, 0); BOUNDARIES.len() + 1];
        for (bucket, boundary) in buckets.iter_mut().zip(BOUNDARIES) {
            bucket.0 = boundary.as_secs_f64();
        }
        for (bucket, count) in buckets.iter_mut().zip(&self.counts) {
            bucket.1 = count.load(Relaxed);
        }
        let all = buckets.iter().map(|(_, count)| count).sum();
        (buckets, all)
    }

    /// Writes the histogram of a stage with these labels; nothing as long as it is empty. Thousands of models that nobody uses would
    /// otherwise make tens of megabytes of zeros.
    pub(super) fn encode(
        &self,
        metric: &mut MetricEncoder<'_>,
        labels: &Vec<(&'static str, String)>,
    ) -> Result<(), Error> {
        let (buckets, all) = self.buckets();
        if all == 0 {
            return Ok(());
        }
        let seconds = self.nanos.load(Relaxed) as f64 / 1e9;
        metric
            .encode_family(labels)?
            .encode_histogram::<NoLabelSet>(seconds, all, &buckets, None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_counts_in_the_first_bucket_whose_boundary_is_not_below_it() {
        let histogram = StageHistogram::default();
        for micros in [0, 100, 101, 1_000_000, 59_000_000, 61_000_000] {
            histogram.observe(Duration::from_micros(micros));
        }
        let (buckets, all) = histogram.buckets();
        let filled: Vec<(f64, u64)> = buckets.into_iter().filter(|(_, n)| *n > 0).collect();
        let expected = [
            (0.0001, 2),
            (0.00025, 1),
            (1.0, 1),
            (60.0, 1),
            (f64::MAX, 1),
        ];
        assert_eq!(filled, expected);
        assert_eq!(all, 6);
    }
}
