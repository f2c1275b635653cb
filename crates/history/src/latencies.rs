//! A histogram of latencies that is small enough to keep one per model and ten seconds.

use std::{collections::BTreeMap, time::Duration};

use crate::bytes::{Reader, put};

/// The largest number of buckets of a histogram that is kept. Where latencies fall into more, the smallest counts move to the next higher bucket.
pub const MAX_BUCKETS: usize = 8;
/// The number of buckets for each power of two of nanoseconds: the middle of one is within an eighth of what is in it.
const PER_OCTAVE: u32 = 4;
/// The power of two of the first bucket: latencies below 2^14 ns, 16 µs, share it.
const FIRST_OCTAVE: u32 = 14;
/// The power of two after the last bucket: latencies above 2^37 ns, 137 s, share that one.
const LAST_OCTAVE: u32 = 37;

/// The numbers of latencies in buckets whose width grows with the latency.
///
/// Source: the log-linear layout of `HdrHistogram`, with 2 significant bits.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Latencies {
    counts: BTreeMap<u8, u64>,
}

fn bucket(latency: Duration) -> u8 {
    let nanos = u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX);
    let nanos = nanos.clamp(1 << FIRST_OCTAVE, (1 << LAST_OCTAVE) - 1);
    let octave = nanos.ilog2();
    let within = (nanos >> (octave - PER_OCTAVE.ilog2())) as u32 & (PER_OCTAVE - 1);
    ((octave - FIRST_OCTAVE) * PER_OCTAVE + within) as u8
}

/// Returns the middle of a bucket.
fn middle(bucket: u8) -> Duration {
    let octave = FIRST_OCTAVE + u32::from(bucket) / PER_OCTAVE;
    let width = 1_u64 << (octave - PER_OCTAVE.ilog2());
    let within = u64::from(bucket) % u64::from(PER_OCTAVE);
    Duration::from_nanos((1 << octave) + within * width + width / 2)
}

impl Latencies {
    /// Counts latencies.
    pub fn add(&mut self, latency: Duration, count: u64) {
        if count > 0 {
            let sum = self.counts.entry(bucket(latency)).or_default();
            *sum = sum.saturating_add(count);
        }
    }

    /// Adds the counts of another histogram.
    pub fn merge(&mut self, other: &Self) {
        for (bucket, count) in &other.counts {
            let sum = self.counts.entry(*bucket).or_default();
            *sum = sum.saturating_add(*count);
        }
    }

    /// Returns the number of all latencies.
    pub fn total(&self) -> u64 {
        let counts = self.counts.values();
        counts.fold(0, |sum: u64, count| sum.saturating_add(*count))
    }

    /// Returns element `floor(p * n)` of the sorted list, within the precision of the buckets; `None` for an empty list.
    pub fn quantile(&self, p: f64) -> Option<Duration> {
        let total = self.total();
        let rank = ((p * total as f64) as u64).min(total.checked_sub(1)?);
        let mut seen: u64 = 0;
        let mut counts = self.counts.iter();
        let found = counts.find(|(_, count)| {
            seen = seen.saturating_add(**count);
            seen > rank
        });
        found.map(|(bucket, _)| middle(*bucket))
    }

    /// Has it take at most [`MAX_BUCKETS`] buckets. No quantile becomes lower by that.
    fn limited(&self) -> Self {
        let mut counts = self.counts.clone();
        while counts.len() > MAX_BUCKETS {
            // The last has none above it.
            let others = counts.iter().rev().skip(1);
            let Some((smallest, count)) = others.min_by_key(|(_, count)| **count) else {
                break;
            };
            let (smallest, count) = (*smallest, *count);
            counts.remove(&smallest);
            if let Some((_, above)) = counts.range_mut(smallest..).next() {
                *above = above.saturating_add(count);
            }
        }
        Self { counts }
    }

    pub(crate) fn write(&self, bytes: &mut Vec<u8>) {
        let limited = self.limited();
        let mut last = 0;
        for (bucket, count) in limited.counts {
            put(bytes, u64::from(bucket - last));
            put(bytes, count);
            last = bucket;
        }
    }

    /// Reads what is left.
    pub(crate) fn read(reader: &mut Reader<'_>) -> Option<Self> {
        let mut counts = BTreeMap::new();
        let mut bucket: u8 = 0;
        while !reader.0.is_empty() {
            let step = u8::try_from(reader.number()?).ok()?;
            bucket = bucket.checked_add(step)?;
            let is_known = u32::from(bucket) < (LAST_OCTAVE - FIRST_OCTAVE) * PER_OCTAVE;
            let count = reader.number()?;
            if !is_known || counts.insert(bucket, count).is_some() {
                return None;
            }
        }
        Some(Self { counts })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_quantile_is_within_an_eighth(nanos in prop::collection::vec(20_000_u64..100_000_000_000, 1..200), p in 0.0..1.0) {
            let mut latencies = Latencies::default();
            for nanos in &nanos {
                latencies.add(Duration::from_nanos(*nanos), 1);
            }
            let mut sorted = nanos;
            sorted.sort_unstable();
            let rank = ((p * sorted.len() as f64) as usize).min(sorted.len() - 1);
            let found = latencies.quantile(p).unwrap().as_nanos() as f64;
            let part = found / sorted[rank] as f64;
            prop_assert!((part - 1.0).abs() <= 0.126, "{part}");
        }

        #[test]
        fn what_is_kept_has_all_counts_and_no_lower_quantile(
            pairs in prop::collection::vec((20_000_u64..100_000_000_000, 1_u64..1000), 0..60),
        ) {
            let mut latencies = Latencies::default();
            for (nanos, count) in pairs {
                latencies.add(Duration::from_nanos(nanos), count);
            }
            let mut bytes = Vec::new();
            latencies.write(&mut bytes);
            let kept = Latencies::read(&mut Reader(&bytes)).unwrap();
            prop_assert!(kept.counts.len() <= MAX_BUCKETS);
            prop_assert_eq!(kept.total(), latencies.total());
            for p in [0.0, 0.5, 0.99, 1.0] {
                prop_assert!(kept.quantile(p) >= latencies.quantile(p));
            }
            if latencies.counts.len() <= MAX_BUCKETS {
                prop_assert_eq!(kept, latencies);
            }
        }
    }

    #[test]
    fn every_latency_has_a_bucket_and_nothing_has_no_quantile() {
        assert_eq!(Latencies::default().quantile(0.5), None);
        for nanos in [0, (1 << 14) - 1, 1 << 14, (1 << 37) - 1, 1 << 37, u64::MAX] {
            let mut latencies = Latencies::default();
            latencies.add(Duration::from_nanos(nanos), 1);
            assert!(latencies.quantile(0.99).is_some());
        }
    }
}
