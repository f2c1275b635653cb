//! The times and utilisations of a model's batches on a kind of device, by their number of rows.

use packhorse_cluster::{ComputeShare, Profile, ProfileRow};

/// The solo times and utilisations of every batch size, computed once per model and kind of device.
#[derive(Clone, Debug)]
pub(crate) struct BatchCosts {
    /// Seconds alone on the whole device; entry `i` is a batch of `i + 1` rows.
    seconds: Vec<f64>,
    /// Utilisation of the multiprocessors in percent; entry `i` is a batch of `i + 1` rows.
    utilization: Vec<f64>,
    /// Coefficient of variation of the time of equal batches.
    pub(crate) variation: f64,
    mps_exponent: f64,
}

/// The 99th percentile of a normal distribution, in standard deviations.
const P99: f64 = 2.326;

impl BatchCosts {
    /// Computes the costs of batches of 1 to `largest` rows, at least one; `scale` is real compute time over the profile's. An unmeasured
    /// utilisation counts as the whole device. A batch that was measured as faster than a smaller one is a measurement error: both get
    /// their mean time.
    pub(crate) fn new(profile: &Profile, largest: u32, scale: f64, mps_exponent: f64) -> Self {
        let sizes = 1..=largest.max(1);
        let utilization = |rows| {
            profile
                .sm_utilization(rows)
                .map_or(100.0, |u| u.get().max(0.1))
        };
        let seconds = |rows| profile.latency(rows).as_secs_f64() * scale;
        Self {
            seconds: isotonic_regression(sizes.clone().map(seconds)),
            utilization: sizes.map(utilization).collect(),
            variation: mean_variation(profile),
            mps_exponent,
        }
    }

    /// Returns the most rows of a batch.
    pub(crate) fn largest_batch(&self) -> u32 {
        u32::try_from(self.seconds.len()).expect("made from a batch size")
    }

    /// Returns the seconds that a batch takes alone under a share. Rows are a mean and need not be whole.
    pub(crate) fn seconds(&self, rows: f64, share: Option<ComputeShare>) -> f64 {
        let seconds = interpolate(&self.seconds, rows);
        match share {
            None => seconds,
            Some(share) => {
                let bound = (interpolate(&self.utilization, rows) / share.get()).max(1.0);
                seconds * bound.powf(self.mps_exponent)
            }
        }
    }

    /// Returns the percent of the device's multiprocessors that a batch uses under a share.
    pub(crate) fn utilization(&self, rows: f64, share: Option<ComputeShare>) -> f64 {
        let utilization = interpolate(&self.utilization, rows);
        share.map_or(utilization, |share| utilization.min(share.get()))
    }

    /// Returns the fewest rows, at most `batch`, whose batches back to back carry `rate` requests/s.
    pub(crate) fn least_rows(&self, rate: f64, batch: u32, share: Option<ComputeShare>) -> f64 {
        let (mut low, mut high) = (1, batch.max(1));
        while low < high {
            let middle = low.midpoint(high);
            let rows = f64::from(middle);
            if rows >= rate * self.seconds(rows, share) {
                high = middle;
            } else {
                low = middle + 1;
            }
        }
        let rows = f64::from(low);
        if low == 1 {
            return rows;
        }
        // Between the size below, which is too small, and this one.
        let lacking = |rows: f64| rate * self.seconds(rows, share) - rows;
        let (below, above) = (lacking(rows - 1.0), lacking(rows));
        if above >= 0.0 || below <= above {
            rows
        } else {
            rows - 1.0 + below / (below - above)
        }
    }
}

/// Returns the coefficient of variation of equal batches: the mean over the sizes with a measured tail.
fn mean_variation(profile: &Profile) -> f64 {
    let variation = |row: &ProfileRow| {
        let tail = row.latency_p99?.as_secs_f64() / row.latency.as_secs_f64();
        Some((tail - 1.0).max(0.0) / P99)
    };
    let variations: Vec<f64> = profile.whole().iter().filter_map(variation).collect();
    variations.iter().sum::<f64>() / variations.len().max(1) as f64
}

/// Returns the non-decreasing sequence closest to `values` by least squares.
///
/// Source: pool adjacent violators, Ayer et al., "An empirical distribution function for sampling with incomplete information", 1955.
fn isotonic_regression(values: impl Iterator<Item = f64>) -> Vec<f64> {
    // Mean and length of each pool.
    let mut pools: Vec<(f64, usize)> = Vec::new();
    for value in values {
        let mut pool = (value, 1);
        while let Some(&(mean, length)) = pools.last().filter(|last| last.0 > pool.0) {
            let both = length + pool.1;
            pool = (
                (mean * length as f64 + pool.0 * pool.1 as f64) / both as f64,
                both,
            );
            pools.pop();
        }
        pools.push(pool);
    }
    let repeated = |(mean, length)| std::iter::repeat_n(mean, length);
    pools.into_iter().flat_map(repeated).collect()
}

/// Interpolates linearly between whole numbers of rows.
fn interpolate(values: &[f64], rows: f64) -> f64 {
    let place = (rows - 1.0).clamp(0.0, (values.len() - 1) as f64);
    let low = place as usize;
    let high = (low + 1).min(values.len() - 1);
    values[low] + (values[high] - values[low]) * (place - low as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_measured_as_faster_than_a_smaller_one_takes_as_long() {
        let regression = |values: &[f64]| isotonic_regression(values.iter().copied());
        assert_eq!(regression(&[1.0, 2.0, 2.0, 5.0]), [1.0, 2.0, 2.0, 5.0]);
        assert_eq!(
            regression(&[1.0, 6.0, 4.0, 5.0, 9.0]),
            [1.0, 5.0, 5.0, 5.0, 9.0]
        );
        assert_eq!(regression(&[3.0, 2.0, 1.0]), [2.0, 2.0, 2.0]);
        assert_eq!(regression(&[]), [0.0; 0]);
    }
}
