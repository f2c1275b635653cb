//! A histogram of the times of a stage, or of whole requests, without locks, which is written to `/metrics` only once it has counted something.

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

/// The boundaries of the buckets that are written by default: in steps of 5, with half as many series for Prometheus.
const COARSE: [Duration; 7] = [
    Duration::from_millis(1),
    Duration::from_millis(5),
    Duration::from_millis(25),
    Duration::from_millis(100),
    Duration::from_millis(500),
    Duration::from_millis(2_500),
    Duration::from_secs(10),
];

/// The buckets of the histograms on `/metrics`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Buckets {
    /// 1 ms to 10 s in 8 buckets
    #[default]
    Coarse,
    /// 0.1 ms to 60 s in 19 buckets
    Fine,
}

impl Buckets {
    /// Returns the boundaries but the last, which has none. They are some of [`BOUNDARIES`].
    fn boundaries(self) -> &'static [Duration] {
        match self {
            Self::Coarse => &COARSE,
            Self::Fine => &BOUNDARIES,
        }
    }
}

/// The times of a stage, or of whole requests.
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
    fn buckets(&self, detail: Buckets) -> (Vec<(f64, u64)>, u64) {
        let mut boundaries = detail.boundaries().iter().copied().peekable();
        let mut buckets = Vec::with_capacity(boundaries.len() + 1);
        let (mut all, mut count) = (0, 0);
        // The last of the counts has no boundary.
        for (times, boundary) in self
            .counts
            .iter()
            .zip(BOUNDARIES.map(Some).into_iter().chain([None]))
        {
            let times = times.load(Relaxed);
            all += times;
            count += times;
            match boundary {
                Some(boundary) if boundaries.next_if_eq(&boundary).is_some() => {
                    buckets.push((boundary.as_secs_f64(), std::mem::take(&mut count)));
                }
                Some(_) => {}
                None => buckets.push((f64::INFINITY, count)),
            }
        }
        (buckets, all)
    }

    /// Writes the histogram of a stage with these labels; nothing as long as it is empty. Thousands of models that nobody uses would
    /// otherwise make tens of megabytes of zeros.
    pub(super) fn encode(
        &self,
        metric: &mut MetricEncoder<'_>,
        labels: &Vec<(&'static str, String)>,
        detail: Buckets,
    ) -> Result<(), Error> {
        let (buckets, all) = self.buckets(detail);
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
        let filled = |detail| {
            let (buckets, all) = histogram.buckets(detail);
            let filled = buckets.into_iter().filter(|(_, n)| *n > 0);
            (filled.collect::<Vec<_>>(), all)
        };
        let expected = [
            (0.0001, 2),
            (0.00025, 1),
            (1.0, 1),
            (60.0, 1),
            (f64::INFINITY, 1),
        ];
        assert_eq!(filled(Buckets::Fine), (expected.to_vec(), 6));
        let expected = [(0.001, 3), (2.5, 1), (f64::INFINITY, 2)];
        assert_eq!(filled(Buckets::Coarse), (expected.to_vec(), 6));
    }

    #[test]
    fn every_coarse_boundary_is_a_fine_one() {
        assert!(COARSE.iter().all(|boundary| BOUNDARIES.contains(boundary)));
        assert_eq!(
            StageHistogram::default().buckets(Buckets::Coarse).0.len(),
            8
        );
    }
}
