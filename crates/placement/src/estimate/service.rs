//! What a model's batches take and use on a kind of device, by the number of their rows.

use packhorse_cluster::{ComputeShare, Profile};

/// Solo times and utilisations of every batch size, worked out once per model and kind of device.
#[derive(Clone, Debug)]
pub(crate) struct Service {
    /// Entry `i` is a batch of `i + 1` rows: seconds alone on the whole device.
    seconds: Vec<f64>,
    /// The same for the utilisation of the multiprocessors, in percent.
    utilization: Vec<f64>,
    mps_exponent: f64,
}

impl Service {
    /// For batches of 1 to `largest` rows, at least one; `scale` is real compute time over the profile's. An unmeasured utilisation
    /// counts as the whole device.
    pub(crate) fn new(profile: &Profile, largest: u32, scale: f64, mps_exponent: f64) -> Self {
        let sizes = 1..=largest.max(1);
        let utilization = |rows| {
            profile
                .sm_utilization(rows)
                .map_or(100.0, |u| u.get().max(0.1))
        };
        Self {
            seconds: sizes
                .clone()
                .map(|rows| profile.latency(rows).as_secs_f64() * scale)
                .collect(),
            utilization: sizes.map(utilization).collect(),
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

/// Linear between whole numbers of rows.
fn between(values: &[f64], rows: f64) -> f64 {
    let place = (rows - 1.0).clamp(0.0, (values.len() - 1) as f64);
    let low = place as usize;
    let high = (low + 1).min(values.len() - 1);
    values[low] + (values[high] - values[low]) * (place - low as f64)
}
