//! Distributions and time series of a run, for figures.

use packhorse_cluster::Time;

/// Distributions and time series of one model in a run. They are not in the JSON, and their size does not depend on the run's length.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Curves {
    /// The fraction of the requests of the window that were answered.
    pub answered_share: f64,
    /// The quantiles 0, 0.01, …, 1 of the latencies of the answered requests of the window, in milliseconds. Empty without any.
    pub latency_ms: Vec<f64>,
    /// The time of sending in seconds, and the number of requests, of each batch of the run; of more than [`Curves::MAX_BATCHES`]
    /// batches, those of an evenly spaced sample.
    pub batch_sizes: Vec<(f64, u32)>,
}

impl Curves {
    /// The number of quantiles.
    pub const QUANTILES: usize = 101;
    /// The largest number of batches.
    pub const MAX_BATCHES: usize = 1024;

    pub(crate) fn new(offered: u64, sorted_latency_ms: &[f64], batches: &BatchSizeSamples) -> Self {
        let last = sorted_latency_ms.len().saturating_sub(1);
        let quantile = |i: usize| sorted_latency_ms[i * last / (Self::QUANTILES - 1)];
        let quantiles = if sorted_latency_ms.is_empty() {
            0..0
        } else {
            0..Self::QUANTILES
        };
        Self {
            answered_share: sorted_latency_ms.len() as f64 / offered.max(1) as f64,
            latency_ms: quantiles.map(quantile).collect(),
            batch_sizes: batches.kept.clone(),
        }
    }
}

/// Every n-th batch of a run. `n` doubles each time there would be more than [`Curves::MAX_BATCHES`].
#[derive(Debug)]
pub(crate) struct BatchSizeSamples {
    every: u64,
    seen: u64,
    kept: Vec<(f64, u32)>,
}

impl Default for BatchSizeSamples {
    fn default() -> Self {
        Self {
            every: 1,
            seen: 0,
            kept: Vec::new(),
        }
    }
}

impl BatchSizeSamples {
    pub(crate) fn push(&mut self, now: Time, requests: usize) {
        let is_kept = self.seen.is_multiple_of(self.every);
        self.seen += 1;
        if !is_kept {
            return;
        }
        if self.kept.len() == Curves::MAX_BATCHES {
            self.every *= 2;
            let mut number = 0;
            self.kept.retain(|_| {
                number += 1;
                number % 2 == 1
            });
            // The number of batches so far is a multiple of the new step, too, so the current batch belongs to the sample.
        }
        let requests = u32::try_from(requests).expect("a batch is limited");
        self.kept.push((now.as_nanos() as f64 / 1e9, requests));
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn the_sample_of_many_batches_is_evenly_spaced() {
        for count in [1, 1023, 1024, 1025, 5000, 100_000_u64] {
            let mut samples = BatchSizeSamples::default();
            for i in 0..count {
                samples.push(Time::ZERO + Duration::from_secs(i), 3);
            }
            let kept = samples.kept;
            assert!(kept.len() <= Curves::MAX_BATCHES && kept.len() as u64 * 2 > count.min(1024));
            let step = kept.get(1).map_or(1.0, |second| second.0);
            for (i, (moment, requests)) in kept.iter().enumerate() {
                assert!(
                    (moment - step * i as f64).abs() < 1e-9,
                    "{count}: {i} at {moment}"
                );
                assert_eq!(*requests, 3);
            }
        }
    }

    #[test]
    fn quantiles_range_from_the_smallest_to_the_largest() {
        let sorted: Vec<f64> = (0..=200).map(f64::from).collect();
        let curves = Curves::new(402, &sorted, &BatchSizeSamples::default());
        assert_eq!(curves.latency_ms.len(), Curves::QUANTILES);
        assert_eq!(
            (
                curves.latency_ms[0],
                curves.latency_ms[50],
                curves.latency_ms[100]
            ),
            (0.0, 100.0, 200.0)
        );
        assert!((curves.answered_share - 0.5).abs() < 1e-9);
        assert!(
            Curves::new(3, &[], &BatchSizeSamples::default())
                .latency_ms
                .is_empty()
        );
    }
}
