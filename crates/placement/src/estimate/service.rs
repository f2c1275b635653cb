//! What a model's batches take and use on a kind of device, by the number of their rows.

use packhorse_cluster::{ComputeShare, Profile, ProfileRow};

/// Solo times and utilisations of every batch size, worked out once per model and kind of device.
#[derive(Clone, Debug)]
pub(crate) struct Service {
    /// Entry `i` is a batch of `i + 1` rows: seconds alone on the whole device.
    seconds: Vec<f64>,
    /// The same for the utilisation of the multiprocessors, in percent.
    utilization: Vec<f64>,
    /// Standard deviation of the time of equal batches, relative to it.
    pub(crate) spread: f64,
    mps_exponent: f64,
}

/// The 99th percentile of a normal distribution, in standard deviations.
const P99: f64 = 2.326;

impl Service {
    /// For batches of 1 to `largest` rows, at least one; `scale` is real compute time over the profile's. An unmeasured utilisation
    /// counts as the whole device. A batch that was measured as quicker than a smaller one was measured badly: both take what they
    /// take in the mean.
    pub(crate) fn new(profile: &Profile, largest: u32, scale: f64, mps_exponent: f64) -> Self {
        let sizes = 1..=largest.max(1);
        let utilization = |rows| {
            profile
                .sm_utilization(rows)
                .map_or(100.0, |u| u.get().max(0.1))
        };
        let seconds = |rows| profile.latency(rows).as_secs_f64() * scale;
        Self {
            seconds: never_less(sizes.clone().map(seconds)),
            utilization: sizes.map(utilization).collect(),
            spread: spread(profile),
            mps_exponent,
        }
    }

    /// The largest batch there is a time for.
    pub(crate) fn largest(&self) -> u32 {
        u32::try_from(self.seconds.len()).expect("made from a batch size")
    }

    /// What a batch of so many rows, a mean and therefore no whole number, takes alone under a share, in seconds.
    pub(crate) fn seconds(&self, rows: f64, share: Option<ComputeShare>) -> f64 {
        let seconds = between(&self.seconds, rows);
        match share {
            None => seconds,
            Some(share) => {
                let bound = (between(&self.utilization, rows) / share.get()).max(1.0);
                seconds * bound.powf(self.mps_exponent)
            }
        }
    }

    /// What it uses of the device's multiprocessors meanwhile, in percent.
    pub(crate) fn utilization(&self, rows: f64, share: Option<ComputeShare>) -> f64 {
        let utilization = between(&self.utilization, rows);
        share.map_or(utilization, |share| utilization.min(share.get()))
    }

    /// The fewest rows, at most `batch`, whose batches back to back carry `rate` requests/s.
    pub(crate) fn rows_for(&self, rate: f64, batch: u32, share: Option<ComputeShare>) -> f64 {
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

/// What equal batches vary by, in the mean over the sizes whose tail was measured.
fn spread(profile: &Profile) -> f64 {
    let of_row = |row: &ProfileRow| {
        let tail = row.latency_p99?.as_secs_f64() / row.latency.as_secs_f64();
        Some((tail - 1.0).max(0.0) / P99)
    };
    let spreads: Vec<f64> = profile.whole().iter().filter_map(of_row).collect();
    spreads.iter().sum::<f64>() / spreads.len().max(1) as f64
}

/// The sequence closest to this one, by squares, that never falls.
///
/// Source: pool adjacent violators, Ayer et al., "An empirical distribution function for sampling with incomplete information", 1955.
fn never_less(values: impl Iterator<Item = f64>) -> Vec<f64> {
    // Mean and length of pools.
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

/// Linear between whole numbers of rows.
fn between(values: &[f64], rows: f64) -> f64 {
    let place = (rows - 1.0).clamp(0.0, (values.len() - 1) as f64);
    let low = place as usize;
    let high = (low + 1).min(values.len() - 1);
    values[low] + (values[high] - values[low]) * (place - low as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_measured_as_quicker_than_less_work_takes_as_long() {
        let of = |values: &[f64]| never_less(values.iter().copied());
        assert_eq!(of(&[1.0, 2.0, 2.0, 5.0]), [1.0, 2.0, 2.0, 5.0]);
        assert_eq!(of(&[1.0, 6.0, 4.0, 5.0, 9.0]), [1.0, 5.0, 5.0, 5.0, 9.0]);
        assert_eq!(of(&[3.0, 2.0, 1.0]), [2.0, 2.0, 2.0]);
        assert_eq!(of(&[]), [0.0; 0]);
    }
}
