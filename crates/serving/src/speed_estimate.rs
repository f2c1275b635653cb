//! A replica's speed, estimated from the batches that it returned.

use std::time::Duration;

use packhorse_cluster::Time;

use crate::overhead_fit::{Overhead, OverheadFit, WEIGHT};

/// The most by which one observed slowdown may exceed the estimate, as a factor: one hiccup must not condemn a replica. A lasting
/// slowdown is reached in the end, however large: co-located replicas under hidden interference were seen at seven times their
/// profile.
const MAX_RELATIVE_STEP: f64 = 4.0;

/// The lowest and the highest slowdown that are considered plausible.
const SLOWDOWN_RANGE: (f64, f64) = (0.25, 1000.0);

/// The time for which an observation counts in full; after each further such time without a new one it counts half as much.
/// Otherwise a replica that was estimated to be too slow for every deadline would get no work, and nothing could ever show that
/// it has become fast again.
const FRESH_TIME: Duration = Duration::from_secs(1);

/// The longest overhead that counts: a batch that needed longer besides its compute time does not predict the next one.
const MAX_OVERHEAD: Duration = Duration::from_secs(1);

/// The number of mean deviations after which a batch is rarely still to come: of normally distributed errors one in twenty is
/// larger.
const MARGIN_DEVIATIONS: f64 = 2.0;

/// The number of observations after which the mean deviation is known: the first of them count least in it.
const KNOWN_AFTER: u64 = 16;

/// Exponentially weighted moving averages of the times of a replica's batches, relative to its profile.
#[derive(Clone, Debug)]
pub(crate) struct SpeedEstimate {
    /// The compute time divided by the profile's; 1 before the first observation.
    slowdown: f64,
    overhead_fit: OverheadFit,
    /// The mean absolute difference between expected and actual return of batches, in seconds.
    deviation: f64,
    /// The number of observations.
    count: u64,
    observed: Time,
}

impl SpeedEstimate {
    pub(crate) fn new(now: Time) -> Self {
        Self {
            slowdown: 1.0,
            overhead_fit: OverheadFit::default(),
            deviation: 0.0,
            count: 0,
            observed: now,
        }
    }

    /// Adds an observation: a batch of `rows` rows took `compute` where the profile predicts `expected`, and `overhead` besides
    /// that and waiting. It came back `error` before or after the expected time.
    pub(crate) fn observe(
        &mut self,
        now: Time,
        rows: u32,
        expected: Duration,
        compute: Duration,
        overhead: Duration,
        error: Duration,
    ) {
        let (low, high) = SLOWDOWN_RANGE;
        let before = self.slowdown(now);
        let confidence = self.confidence(now);
        let deviation = self.deviation * confidence;
        self.overhead_fit.forget(confidence);
        let high = high.min(before * MAX_RELATIVE_STEP);
        let slowdown = (compute.as_secs_f64() / expected.as_secs_f64()).clamp(low, high);
        self.slowdown = before + WEIGHT * (slowdown - before);
        // As with slowdowns, a single outlier is limited, and a lasting overhead is learnt however large: a batch that came much too
        // late was late for another reason.
        let known = self.overhead_fit.overhead(1.0).for_rows(rows);
        let plausible = expected.max(known).saturating_mul(4).min(MAX_OVERHEAD);
        self.overhead_fit
            .observe(f64::from(rows), overhead.min(plausible).as_secs_f64());
        let error = error.min(plausible).as_secs_f64();
        self.deviation = deviation + WEIGHT * (error - deviation);
        self.count += 1;
        self.observed = now;
    }

    /// Returns the compute time divided by the profile's, weighted by the estimate's age.
    pub(crate) fn slowdown(&self, now: Time) -> f64 {
        self.trusted_slowdown(self.confidence(now))
    }

    fn trusted_slowdown(&self, confidence: f64) -> f64 {
        1.0 + (self.slowdown - 1.0) * confidence
    }

    /// Returns both, see [`Self::slowdown`] and [`Self::overhead`].
    pub(crate) fn slowdown_and_overhead(&self, now: Time) -> (f64, Overhead) {
        let confidence = self.confidence(now);
        let overhead = self.overhead_fit.overhead(confidence);
        (self.trusted_slowdown(confidence), overhead)
    }

    /// Returns the overhead of batches, weighted by the estimate's age.
    pub(crate) fn overhead(&self, now: Time) -> Overhead {
        self.overhead_fit.overhead(self.confidence(now))
    }

    /// Returns the margin by which a batch may miss its expected time, and which it rarely exceeds.
    pub(crate) fn margin(&self, now: Time) -> Duration {
        Duration::from_secs_f64(MARGIN_DEVIATIONS * self.deviation * self.confidence(now))
    }

    /// Returns the margin if the last batches have shown it.
    pub(crate) fn known_margin(&self, now: Time) -> Option<Duration> {
        let is_known = self.count >= KNOWN_AFTER && now <= self.observed + FRESH_TIME;
        is_known.then(|| self.margin(now))
    }

    fn confidence(&self, now: Time) -> f64 {
        match now.saturating_since(self.observed).checked_sub(FRESH_TIME) {
            None => 1.0,
            Some(stale) => (-stale.as_secs_f64() / FRESH_TIME.as_secs_f64()).exp2(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn a_steady_slowdown_is_learnt_and_forgotten_without_further_observations() {
        let mut now = Time::ZERO;
        let mut estimate = SpeedEstimate::new(now);
        for _ in 0..50 {
            now += MS * 20;
            estimate.observe(now, 4, MS * 10, MS * 20, MS * 3, MS * 4);
        }
        assert!(
            (estimate.slowdown(now) - 2.0).abs() < 0.05,
            "{}",
            estimate.slowdown(now)
        );
        assert!(
            (MS * 2..=MS * 3).contains(&estimate.overhead(now).for_rows(4)),
            "{:?}",
            estimate.overhead(now)
        );
        assert!((estimate.slowdown(now + FRESH_TIME * 2) - 1.5).abs() < 0.05);
        assert!((estimate.slowdown(now + FRESH_TIME * 60) - 1.0).abs() < 1e-9);
        assert!(estimate.overhead(now + FRESH_TIME * 60).for_rows(4) < Duration::from_nanos(10));
    }

    #[test]
    fn overhead_per_row_is_separated_from_overhead_per_batch() {
        let mut estimate = SpeedEstimate::new(Time::ZERO);
        for i in 0..40 {
            let rows = 2 + 6 * (i % 3);
            let overhead = MS * 3 + MS / 2 * rows;
            estimate.observe(Time::ZERO, rows, MS * 10, MS * 10, overhead, Duration::ZERO);
        }
        for (rows, millis) in [(1, 3.5), (10, 8.0), (32, 19.0)] {
            let seen = estimate.overhead(Time::ZERO).for_rows(rows).as_secs_f64() * 1e3;
            assert!((seen - millis).abs() < 0.05 * millis, "{rows}: {seen}");
        }
    }

    #[test]
    fn without_batches_of_other_sizes_all_overhead_is_per_row() {
        let mut estimate = SpeedEstimate::new(Time::ZERO);
        for _ in 0..4000 {
            estimate.observe(Time::ZERO, 8, MS * 10, MS * 10, MS * 4, Duration::ZERO);
        }
        assert!((estimate.overhead(Time::ZERO).for_rows(16).as_secs_f64() - 8e-3).abs() < 1e-9);
    }

    #[test]
    fn a_lasting_slowdown_is_learnt_however_large() {
        let mut now = Time::ZERO;
        let mut estimate = SpeedEstimate::new(now);
        for _ in 0..50 {
            now += MS * 90;
            estimate.observe(now, 4, MS * 10, MS * 90, Duration::ZERO, MS * 80);
        }
        assert!((estimate.slowdown(now) - 9.0).abs() < 0.1);
    }

    #[test]
    fn a_lasting_overhead_is_learnt_however_short_the_computation_is() {
        let mut estimate = SpeedEstimate::new(Time::ZERO);
        for _ in 0..50 {
            estimate.observe(Time::ZERO, 4, MS, MS, MS * 40, MS * 36);
        }
        let learnt = estimate.overhead(Time::ZERO).for_rows(4);
        assert!((MS * 39..=MS * 40).contains(&learnt), "{learnt:?}");
    }

    /// A replica that seems too slow for every deadline gets a batch only once that estimate is old.
    #[test]
    fn an_old_overhead_is_not_restored_by_a_batch_without_one() {
        let (mut now, mut estimate) = (Time::ZERO, SpeedEstimate::new(Time::ZERO));
        for _ in 0..50 {
            now += MS * 100;
            estimate.observe(now, 1, MS * 10, MS * 10, MS * 200, Duration::ZERO);
        }
        now += FRESH_TIME * 2;
        estimate.observe(now, 1, MS * 10, MS * 10, MS, Duration::ZERO);
        // Half of it was left, and the new observation takes a fifth of that.
        let overhead = estimate.overhead(now).for_rows(1);
        assert!((MS * 75..=MS * 85).contains(&overhead), "{overhead:?}");
    }

    #[test]
    fn one_hiccup_does_not_double_the_estimate() {
        let mut estimate = SpeedEstimate::new(Time::ZERO);
        estimate.observe(Time::ZERO, 4, MS, MS * 5000, Duration::ZERO, MS * 5000);
        assert!(estimate.slowdown(Time::ZERO) < 1.7);
    }

    #[test]
    fn batches_that_come_when_they_should_need_no_margin_and_others_twice_their_mean_error() {
        let (mut now, mut estimate) = (Time::ZERO, SpeedEstimate::new(Time::ZERO));
        let mut observe = |error: Duration| {
            for _ in 0..50 {
                now += MS * 20;
                estimate.observe(now, 4, MS * 10, MS * 10, MS, error);
            }
            (now, estimate.clone())
        };
        let (now, punctual) = observe(Duration::ZERO);
        assert_eq!(punctual.margin(now), Duration::ZERO);
        let (now, other) = observe(MS * 3);
        assert!((MS * 5..=MS * 6).contains(&other.margin(now)));
        assert!(other.margin(now + FRESH_TIME * 60) < Duration::from_nanos(10));
    }

    #[test]
    fn a_batch_that_took_no_time_or_for_ever_leaves_a_finite_estimate() {
        let mut estimate = SpeedEstimate::new(Time::ZERO);
        estimate.observe(
            Time::ZERO,
            1,
            Duration::MAX,
            Duration::ZERO,
            Duration::MAX.mul_f64(0.1),
            Duration::MAX,
        );
        estimate.observe(
            Time::ZERO,
            u32::MAX,
            Duration::from_nanos(1),
            Duration::MAX,
            Duration::MAX,
            Duration::MAX,
        );
        assert!(estimate.slowdown(Time::ZERO).is_finite());
        assert!(estimate.overhead(Time::ZERO).for_rows(u32::MAX) < Duration::MAX);
    }
}
