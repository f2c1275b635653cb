//! The times of batches on a device that computes nothing else.

use std::{sync::Arc, time::Duration};

use packhorse_cluster::{ComputeShare, Profile};

use crate::{ComputeDemand, Interference};

/// The service time of every batch size of a replica that has its device to itself. Calculated once; cheap to look up and to clone.
#[derive(Clone, Debug, PartialEq)]
pub struct ServiceTimes {
    /// Entry `i` is the time of a batch of `i + 1` rows. There is at least one entry, and none is zero.
    times: Arc<[Duration]>,
    max_throughput: f64,
}

impl ServiceTimes {
    /// Calculates the times of batches of 1 to `batch_size` rows: the profile's latency at the batch's real size
    /// ([`Profile::latency`]), slowed by a compute share below its utilisation ([`Interference::solo_rate`]). Panics for a
    /// `batch_size` of 0.
    pub fn new(
        profile: &Profile,
        batch_size: u32,
        compute_share: Option<ComputeShare>,
        interference: Interference,
    ) -> Self {
        let time = |rows| {
            let rate = interference.solo_rate(ComputeDemand::new(profile, rows, compute_share));
            let seconds = profile.latency(rows).as_secs_f64() / rate;
            // A share near 0 gives times beyond a `Duration`; a time of 0 would give infinite rates.
            Duration::try_from_secs_f64(seconds)
                .unwrap_or(Duration::MAX)
                .max(Duration::from_nanos(1))
        };
        Self::from_times((1..=batch_size).map(time).collect())
    }

    /// Takes the times as they are: entry `i` for a batch of `i + 1` rows. Panics if there is none, or one that is zero.
    pub fn from_times(times: Vec<Duration>) -> Self {
        assert!(
            !times.is_empty(),
            "a replica serves batches of at least one row"
        );
        assert!(
            times.iter().all(|time| !time.is_zero()),
            "a batch takes time"
        );
        let rates = (1_u32..)
            .zip(&times)
            .map(|(rows, time)| f64::from(rows) / time.as_secs_f64());
        Self {
            max_throughput: rates.fold(0.0, f64::max),
            times: times.into(),
        }
    }

    /// The rows of the largest batch that has a time.
    pub fn max_rows(&self) -> u32 {
        u32::try_from(self.times.len()).expect("made from a batch size")
    }

    /// Returns the times of batches of at most `rows` rows. Panics for 0.
    #[must_use]
    pub fn limited_to(&self, rows: u32) -> Self {
        if rows >= self.max_rows() {
            return self.clone();
        }
        Self::from_times(self.times[..rows as usize].to_vec())
    }

    /// The time of a batch of `rows` rows, at least 1. Panics above [`ServiceTimes::max_rows`].
    pub fn batch_time(&self, rows: u32) -> Duration {
        self.times[rows as usize - 1]
    }

    /// The throughput of the most efficient batch size, in rows per second.
    pub fn max_throughput(&self) -> f64 {
        self.max_throughput
    }
}

#[cfg(test)]
mod tests {
    use packhorse_cluster::{Percent, ProfileRow};

    use super::*;

    fn profile() -> Profile {
        let row = |batch_size, millis, utilization| ProfileRow {
            batch_size,
            compute_share: ComputeShare::WHOLE,
            latency: Duration::from_millis(millis),
            latency_p99: None,
            memory: None,
            achieved_occupancy: None,
            mean_occupancy: None,
            sm_utilization: Some(Percent::new(utilization).unwrap()),
        };
        Profile::new(vec![row(4, 8, 50.0), row(8, 10, 100.0)]).unwrap()
    }

    #[test]
    fn a_batch_takes_what_the_profile_says_for_its_real_size() {
        let times = ServiceTimes::new(&profile(), 16, None, Interference::default());
        assert_eq!(times.max_rows(), 16);
        assert_eq!(times.batch_time(4), Duration::from_millis(8));
        assert_eq!(times.batch_time(6), Duration::from_millis(9));
        assert_eq!(times.batch_time(16), Duration::from_millis(20));
        assert!((times.max_throughput() - 800.0).abs() < 1e-6);
        let limited = times.limited_to(4);
        assert_eq!(
            (limited.max_rows(), limited.batch_time(4)),
            (4, times.batch_time(4))
        );
        assert!((limited.max_throughput() - 500.0).abs() < 1e-6);
        assert_eq!(times.limited_to(20), times);
    }

    #[test]
    fn a_share_slows_only_the_batches_that_would_use_more() {
        let share = ComputeShare::new(50.0).unwrap();
        let times = ServiceTimes::new(
            &profile(),
            8,
            Some(share),
            Interference::new(2.0, 0.0).unwrap(),
        );
        assert_eq!(times.batch_time(4), Duration::from_millis(8));
        // At 8 rows the utilisation is 100: (100 / 50)^2 = 4 times the 10 ms.
        assert_eq!(times.batch_time(8), Duration::from_millis(40));
    }

    #[test]
    fn a_share_near_zero_still_gives_a_duration() {
        let share = ComputeShare::new(f64::MIN_POSITIVE).unwrap();
        let times = ServiceTimes::new(&profile(), 1, Some(share), Interference::default());
        assert_eq!(times.batch_time(1), Duration::MAX);
    }
}
