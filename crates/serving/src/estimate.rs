//! What a replica's answers teach about its speed.

use std::time::Duration;

use packhorse_cluster::Time;

/// How much of each new observation is believed.
const WEIGHT: f64 = 0.2;

/// An observed slowdown counts as at most so many times what was believed: one hiccup must not condemn a replica. What lasts
/// is believed in the end, however slow: co-located replicas under hidden interference were seen at seven times their profile.
const SURPRISE: f64 = 4.0;

/// Nobody is believed to be faster or slower than this.
const PLAUSIBLE: (f64, f64) = (0.25, 1000.0);

/// What was observed counts in full for this long, and then half as much after each further time of this length without news.
/// Otherwise a replica believed to be too slow for every deadline would get no work, and nothing could ever show that it has
/// become fast again.
const FRESH: Duration = Duration::from_secs(1);

/// A batch that needed longer than this besides its compute time says nothing of the next one.
const MAX_OVERHEAD: Duration = Duration::from_secs(1);

/// Exponentially weighted moving averages of what a replica's batches took, relative to what its profile says.
#[derive(Clone, Debug)]
pub(crate) struct Estimate {
    /// Compute time over the profile's; 1 while nothing is known.
    slowdown: f64,
    /// Time between dispatch and completion of a batch that had the replica to itself, less its compute time, in seconds:
    /// transmission, copies, hand-over.
    overhead: f64,
    observed: Time,
}

impl Estimate {
    pub(crate) fn new(now: Time) -> Self {
        Self {
            slowdown: 1.0,
            overhead: 0.0,
            observed: now,
        }
    }

    /// A batch took `compute` where the profile says `expected`; `overhead` where it had the replica to itself.
    pub(crate) fn observe(
        &mut self,
        now: Time,
        expected: Duration,
        compute: Duration,
        overhead: Option<Duration>,
    ) {
        let (low, high) = PLAUSIBLE;
        let before = (self.slowdown(now), self.overhead(now).as_secs_f64());
        let high = high.min(before.0 * SURPRISE);
        let slowdown = (compute.as_secs_f64() / expected.as_secs_f64()).clamp(low, high);
        self.slowdown = before.0 + WEIGHT * (slowdown - before.0);
        // The same caution as with slowdowns: what came much too late came late for another reason.
        let plausible = expected.saturating_mul(4).min(MAX_OVERHEAD);
        let overhead = overhead.map_or(before.1, |seen| seen.min(plausible).as_secs_f64());
        self.overhead = before.1 + WEIGHT * (overhead - before.1);
        self.observed = now;
    }

    /// Compute time over the profile's, as far as it is still believed.
    pub(crate) fn slowdown(&self, now: Time) -> f64 {
        1.0 + (self.slowdown - 1.0) * self.worth(now)
    }

    /// Time that a batch needs besides computing, as far as it is still believed.
    pub(crate) fn overhead(&self, now: Time) -> Duration {
        Duration::from_secs_f64(self.overhead * self.worth(now))
    }

    fn worth(&self, now: Time) -> f64 {
        match now.saturating_since(self.observed).checked_sub(FRESH) {
            None => 1.0,
            Some(stale) => (-stale.as_secs_f64() / FRESH.as_secs_f64()).exp2(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn a_steady_slowdown_is_learnt_and_forgotten_when_news_stay_away() {
        let mut now = Time::ZERO;
        let mut estimate = Estimate::new(now);
        for _ in 0..50 {
            now += MS * 20;
            estimate.observe(now, MS * 10, MS * 20, Some(MS * 3));
        }
        assert!(
            (estimate.slowdown(now) - 2.0).abs() < 0.05,
            "{}",
            estimate.slowdown(now)
        );
        assert!(
            (MS * 2..=MS * 3).contains(&estimate.overhead(now)),
            "{:?}",
            estimate.overhead(now)
        );
        assert!((estimate.slowdown(now + FRESH * 2) - 1.5).abs() < 0.05);
        assert!((estimate.slowdown(now + FRESH * 60) - 1.0).abs() < 1e-9);
        assert!(estimate.overhead(now + FRESH * 60) < Duration::from_nanos(10));
    }

    #[test]
    fn however_slow_a_replica_is_it_is_believed_in_the_end() {
        let mut now = Time::ZERO;
        let mut estimate = Estimate::new(now);
        for _ in 0..50 {
            now += MS * 90;
            estimate.observe(now, MS * 10, MS * 90, None);
        }
        assert!((estimate.slowdown(now) - 9.0).abs() < 0.1);
    }

    #[test]
    fn one_hiccup_does_not_double_the_estimate() {
        let mut estimate = Estimate::new(Time::ZERO);
        estimate.observe(Time::ZERO, MS, MS * 5000, None);
        assert!(estimate.slowdown(Time::ZERO) < 1.7);
    }

    #[test]
    fn a_batch_that_took_no_time_or_for_ever_leaves_a_finite_estimate() {
        let mut estimate = Estimate::new(Time::ZERO);
        estimate.observe(
            Time::ZERO,
            Duration::MAX,
            Duration::ZERO,
            Some(Duration::MAX.mul_f64(0.1)),
        );
        estimate.observe(Time::ZERO, Duration::from_nanos(1), Duration::MAX, None);
        assert!(estimate.slowdown(Time::ZERO).is_finite());
    }
}
