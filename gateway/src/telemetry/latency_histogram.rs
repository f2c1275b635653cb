//! A histogram of latencies with a bounded relative error, small enough to keep one per second and model.

use std::time::Duration;

/// The number of buckets for each power of two of nanoseconds: a quantile is within 1/16 of the true one.
const BUCKETS_PER_OCTAVE: usize = 8;
/// The power of two of the first bucket: latencies below 2^14 ns, 16 µs, share it.
const FIRST_OCTAVE: u32 = 14;
/// The power of two after the last bucket: latencies above 2^37 ns, 137 s, share that one; no request may take that long.
const LAST_OCTAVE: u32 = 37;
const BUCKETS: usize = (LAST_OCTAVE - FIRST_OCTAVE) as usize * BUCKETS_PER_OCTAVE;

/// The counts of latencies in buckets whose width grows with the latency.
///
/// Source: the log-linear layout of `HdrHistogram`, with 3 significant bits.
#[derive(Clone, Debug)]
pub(super) struct LatencyHistogram {
    counts: [u32; BUCKETS],
    total: u64,
}

impl Default for LatencyHistogram {
    fn default() -> Self {
        Self {
            counts: [0; BUCKETS],
            total: 0,
        }
    }
}

fn bucket(latency: Duration) -> usize {
    let nanos = u64::try_from(latency.as_nanos())
        .unwrap_or(u64::MAX)
        .clamp(1 << FIRST_OCTAVE, (1 << LAST_OCTAVE) - 1);
    let octave = nanos.ilog2();
    let within =
        (nanos >> (octave - BUCKETS_PER_OCTAVE.ilog2())) as usize & (BUCKETS_PER_OCTAVE - 1);
    (octave - FIRST_OCTAVE) as usize * BUCKETS_PER_OCTAVE + within
}

/// Returns the middle of a bucket.
fn middle(bucket: usize) -> Duration {
    let octave = FIRST_OCTAVE + (bucket / BUCKETS_PER_OCTAVE) as u32;
    let width = 1_u64 << (octave - BUCKETS_PER_OCTAVE.ilog2());
    Duration::from_nanos((1 << octave) + (bucket % BUCKETS_PER_OCTAVE) as u64 * width + width / 2)
}

impl LatencyHistogram {
    /// Counts a latency.
    pub(super) fn add(&mut self, latency: Duration) {
        let count = &mut self.counts[bucket(latency)];
        *count = count.saturating_add(1);
        self.total += 1;
    }

    /// Adds the counts of another histogram.
    pub(super) fn merge(&mut self, other: &Self) {
        for (count, more) in self.counts.iter_mut().zip(&other.counts) {
            *count = count.saturating_add(*more);
        }
        self.total += other.total;
    }

    /// Returns the middle of each bucket that is not empty, with its count.
    pub(super) fn iter(&self) -> impl Iterator<Item = (Duration, u64)> {
        let counts = self.counts.iter().enumerate();
        let used = counts.filter(|(_, count)| **count > 0);
        used.map(|(bucket, count)| (middle(bucket), u64::from(*count)))
    }

    /// Returns element `floor(p * n)` of the sorted list, within the precision of the buckets; `None` for an empty list.
    pub(super) fn quantile(&self, p: f64) -> Option<Duration> {
        let rank = ((p * self.total as f64) as u64).min(self.total.checked_sub(1)?);
        let mut seen = 0;
        let reached = |count: &u32| {
            seen += u64::from(*count);
            seen > rank
        };
        self.counts.iter().position(reached).map(middle)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_within_a_sixteenth() {
        let mut latencies = LatencyHistogram::default();
        assert_eq!(latencies.quantile(0.5), None);
        for micros in 1..=100_000 {
            latencies.add(Duration::from_micros(micros));
        }
        for (p, exact) in [(0.5, 50_001.0), (0.95, 95_001.0), (0.99, 99_001.0)] {
            let found = latencies.quantile(p).unwrap().as_secs_f64() * 1e6;
            assert!((found / exact - 1.0).abs() < 1.0 / 16.0, "{p}: {found}");
        }
    }

    #[test]
    fn every_latency_has_a_bucket() {
        for nanos in [
            0,
            1,
            (1 << 14) - 1,
            1 << 14,
            (1 << 37) - 1,
            1 << 37,
            u64::MAX,
        ] {
            let mut latencies = LatencyHistogram::default();
            latencies.add(Duration::from_nanos(nanos));
            assert!(latencies.quantile(0.99).is_some());
        }
        let mut sum = LatencyHistogram::default();
        sum.add(Duration::from_millis(1));
        let other = sum.clone();
        sum.merge(&other);
        assert_eq!(sum.total, 2);
    }
}
