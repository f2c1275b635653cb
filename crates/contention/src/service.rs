//! How long a batch takes on a device that computes nothing else.

use std::{sync::Arc, time::Duration};

use packhorse_cluster::{ComputeShare, Profile};

use crate::{Active, Interference};

/// The solo service time of every batch size of a replica, worked out once: cheap to look up, cheap to clone.
#[derive(Clone, Debug, PartialEq)]
pub struct ServiceTimes {
    /// Entry `i` is a batch of `i + 1` rows. Not empty, none zero.
    times: Arc<[Duration]>,
    best_rate: f64,
}

impl ServiceTimes {
    /// For batches of 1 to `batch_size` rows: the profile's latency at the batch's real size ([`Profile::latency`]), slowed by
    /// the compute share where that binds ([`Interference::solo_rate`]). Panics for a `batch_size` of 0.
    pub fn new(
        profile: &Profile,
        batch_size: u32,
        compute_share: Option<ComputeShare>,
        interference: Interference,
    ) -> Self {
        let time = |rows| {
            let rate = interference.solo_rate(Active::new(profile, rows, compute_share));
            let seconds = profile.latency(rows).as_secs_f64() / rate;
            // A share close to nothing makes times beyond any clock; what takes no time would break every estimate.
            Duration::try_from_secs_f64(seconds)
                .unwrap_or(Duration::MAX)
                .max(Duration::from_nanos(1))
        };
        Self::from_times((1..=batch_size).map(time).collect())
    }

    /// From times given one by one: entry `i` for a batch of `i + 1` rows. Panics if there is none, or one that is zero.
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
            best_rate: rates.fold(0.0, f64::max),
            times: times.into(),
        }
    }

    /// The largest batch size there is a time for.
    pub fn largest(&self) -> u32 {
        u32::try_from(self.times.len()).expect("made from a batch size")
    }

    /// Those of batches of at most `rows` rows. Panics for 0.
    #[must_use]
    pub fn up_to(&self, rows: u32) -> Self {
        if rows >= self.largest() {
            return self.clone();
        }
        Self::from_times(self.times[..rows as usize].to_vec())
    }

    /// The time of a batch of `rows` rows, at least 1. Panics above [`ServiceTimes::largest`].
    pub fn of(&self, rows: u32) -> Duration {
        self.times[rows as usize - 1]
    }

    /// The most rows per second that any batch size gives.
    pub fn best_rate(&self) -> f64 {
        self.best_rate
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
        assert_eq!(times.largest(), 16);
        assert_eq!(times.of(4), Duration::from_millis(8));
        assert_eq!(times.of(6), Duration::from_millis(9));
        assert_eq!(times.of(16), Duration::from_millis(20));
        assert!((times.best_rate() - 800.0).abs() < 1e-6);
        let up_to = times.up_to(4);
        assert_eq!((up_to.largest(), up_to.of(4)), (4, times.of(4)));
        assert!((up_to.best_rate() - 500.0).abs() < 1e-6);
        assert_eq!(times.up_to(20), times);
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
        assert_eq!(times.of(4), Duration::from_millis(8));
        // At 8 rows the utilisation is 100: (100 / 50)^2 = 4 times the 10 ms.
        assert_eq!(times.of(8), Duration::from_millis(40));
    }

    #[test]
    fn a_share_close_to_nothing_stays_a_duration() {
        let share = ComputeShare::new(f64::MIN_POSITIVE).unwrap();
        let times = ServiceTimes::new(&profile(), 1, Some(share), Interference::default());
        assert_eq!(times.of(1), Duration::MAX);
    }
}
