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

/// Batches whose rows vary by less than this, relative to their mean, do not tell what a row adds to the way.
const TELLING: f64 = 0.1;

/// Batches rarely come so many mean deviations later than expected: of errors that are normal, one in twenty does.
const DEVIATIONS: f64 = 2.0;

/// Exponentially weighted moving averages of what a replica's batches took, relative to what its profile says.
#[derive(Clone, Debug)]
pub(crate) struct Estimate {
    /// Compute time over the profile's; 1 while nothing is known.
    slowdown: f64,
    way: Way,
    /// How far from where they were expected batches came back, either way, in seconds.
    deviation: f64,
    observed: Time,
}

/// A line through the rows of batches and what they needed besides waiting and computing: transmission, copies, hand-over. It starts
/// from the origin.
#[derive(Clone, Copy, Debug, Default)]
struct Way {
    rows: f64,
    seconds: f64,
    /// Variance of the rows, and covariance of rows and seconds.
    variance: f64,
    covariance: f64,
}

/// What a batch needs besides waiting and computing, by its rows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Overhead {
    /// Seconds of a batch, and of each row.
    base: f64,
    per_row: f64,
}

impl Overhead {
    /// Of a batch of `rows` rows.
    pub(crate) fn of(self, rows: u32) -> Duration {
        Duration::from_secs_f64(self.base + self.per_row * f64::from(rows))
    }
}

impl Way {
    /// Source of the updates: Finch, "Incremental calculation of weighted mean and variance", 2009, section 9.
    fn observe(&mut self, rows: f64, seconds: f64) {
        let (more_rows, more_seconds) = (rows - self.rows, seconds - self.seconds);
        self.rows += WEIGHT * more_rows;
        self.seconds += WEIGHT * more_seconds;
        let kept = 1.0 - WEIGHT;
        self.variance = kept * (self.variance + WEIGHT * more_rows * more_rows);
        self.covariance = kept * (self.covariance + WEIGHT * more_rows * more_seconds);
    }

    /// The line, neither falling nor below zero anywhere; through the origin where the rows hardly varied.
    fn overhead(&self, worth: f64) -> Overhead {
        if self.rows <= 0.0 {
            return Overhead {
                base: 0.0,
                per_row: 0.0,
            };
        }
        let proportional = self.seconds / self.rows;
        let told = self.variance > (TELLING * self.rows).powi(2);
        let per_row = if told {
            (self.covariance / self.variance).clamp(0.0, proportional)
        } else {
            proportional
        };
        Overhead {
            base: (self.seconds - per_row * self.rows).max(0.0) * worth,
            per_row: per_row * worth,
        }
    }
}

impl Estimate {
    pub(crate) fn new(now: Time) -> Self {
        Self {
            slowdown: 1.0,
            way: Way::default(),
            deviation: 0.0,
            observed: now,
        }
    }

    /// A batch of `rows` rows took `compute` where the profile says `expected`, and `overhead` besides that and waiting. It came back
    /// `error` before or after it should.
    pub(crate) fn observe(
        &mut self,
        now: Time,
        rows: u32,
        expected: Duration,
        compute: Duration,
        overhead: Duration,
        error: Duration,
    ) {
        let (low, high) = PLAUSIBLE;
        let before = self.slowdown(now);
        let deviation = self.deviation * self.worth(now);
        let high = high.min(before * SURPRISE);
        let slowdown = (compute.as_secs_f64() / expected.as_secs_f64()).clamp(low, high);
        self.slowdown = before + WEIGHT * (slowdown - before);
        // The same caution as with slowdowns: what came much too late came late for another reason.
        let plausible = expected.saturating_mul(4).min(MAX_OVERHEAD);
        self.way
            .observe(f64::from(rows), overhead.min(plausible).as_secs_f64());
        let error = error.min(plausible).as_secs_f64();
        self.deviation = deviation + WEIGHT * (error - deviation);
        self.observed = now;
    }

    /// Compute time over the profile's, as far as it is still believed.
    pub(crate) fn slowdown(&self, now: Time) -> f64 {
        1.0 + (self.slowdown - 1.0) * self.worth(now)
    }

    /// What batches need besides waiting and computing, as far as it is still believed.
    pub(crate) fn overhead(&self, now: Time) -> Overhead {
        self.way.overhead(self.worth(now))
    }

    /// By how much a batch may miss the time at which it is expected, and rarely more.
    pub(crate) fn margin(&self, now: Time) -> Duration {
        Duration::from_secs_f64(DEVIATIONS * self.deviation * self.worth(now))
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
            estimate.observe(now, 4, MS * 10, MS * 20, MS * 3, MS * 4);
        }
        assert!(
            (estimate.slowdown(now) - 2.0).abs() < 0.05,
            "{}",
            estimate.slowdown(now)
        );
        assert!(
            (MS * 2..=MS * 3).contains(&estimate.overhead(now).of(4)),
            "{:?}",
            estimate.overhead(now)
        );
        assert!((estimate.slowdown(now + FRESH * 2) - 1.5).abs() < 0.05);
        assert!((estimate.slowdown(now + FRESH * 60) - 1.0).abs() < 1e-9);
        assert!(estimate.overhead(now + FRESH * 60).of(4) < Duration::from_nanos(10));
    }

    #[test]
    fn what_a_row_adds_to_the_way_is_told_from_what_every_batch_needs() {
        let mut estimate = Estimate::new(Time::ZERO);
        for i in 0..40 {
            let rows = 2 + 6 * (i % 3);
            let overhead = MS * 3 + MS / 2 * rows;
            estimate.observe(Time::ZERO, rows, MS * 10, MS * 10, overhead, Duration::ZERO);
        }
        for (rows, millis) in [(1, 3.5), (10, 8.0), (32, 19.0)] {
            let seen = estimate.overhead(Time::ZERO).of(rows).as_secs_f64() * 1e3;
            assert!((seen - millis).abs() < 0.05 * millis, "{rows}: {seen}");
        }
    }

    #[test]
    fn without_batches_of_other_sizes_the_way_is_taken_to_be_all_rows() {
        let mut estimate = Estimate::new(Time::ZERO);
        for _ in 0..4000 {
            estimate.observe(Time::ZERO, 8, MS * 10, MS * 10, MS * 4, Duration::ZERO);
        }
        assert!((estimate.overhead(Time::ZERO).of(16).as_secs_f64() - 8e-3).abs() < 1e-9);
    }

    #[test]
    fn however_slow_a_replica_is_it_is_believed_in_the_end() {
        let mut now = Time::ZERO;
        let mut estimate = Estimate::new(now);
        for _ in 0..50 {
            now += MS * 90;
            estimate.observe(now, 4, MS * 10, MS * 90, Duration::ZERO, MS * 80);
        }
        assert!((estimate.slowdown(now) - 9.0).abs() < 0.1);
    }

    #[test]
    fn one_hiccup_does_not_double_the_estimate() {
        let mut estimate = Estimate::new(Time::ZERO);
        estimate.observe(Time::ZERO, 4, MS, MS * 5000, Duration::ZERO, MS * 5000);
        assert!(estimate.slowdown(Time::ZERO) < 1.7);
    }

    #[test]
    fn batches_that_come_when_they_should_need_no_margin_and_others_twice_their_mean_error() {
        let (mut now, mut estimate) = (Time::ZERO, Estimate::new(Time::ZERO));
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
        assert!(other.margin(now + FRESH * 60) < Duration::from_nanos(10));
    }

    #[test]
    fn a_batch_that_took_no_time_or_for_ever_leaves_a_finite_estimate() {
        let mut estimate = Estimate::new(Time::ZERO);
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
        assert!(estimate.overhead(Time::ZERO).of(u32::MAX) < Duration::MAX);
    }
}
