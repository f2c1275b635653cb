//! The estimators that are compared.

use std::{collections::VecDeque, time::Duration};

use packhorse_cluster::{RateMode, RequestsPerSecond, Time};
use packhorse_control::rates::{RateEstimate, RateEstimator};

/// An estimator of the rate, with its rule when to make a new plan.
pub(super) trait Forecaster {
    /// Ends a period.
    fn observe(&mut self, now: Time, arrivals: u64);

    /// Returns the rate that is expected after the horizon, in requests/s.
    fn forecast(&self, horizon: Duration) -> f64;

    /// Returns the rate to plan for, in requests/s.
    fn planned(&self, horizon: Duration) -> f64;

    /// Returns true if the plan that assumed this rate is out of date.
    fn is_outdated(&self, assumed: f64, horizon: Duration) -> bool;

    /// Returns the interval that shall contain the rate with a probability of 95 %, if there is one.
    fn interval(&self) -> Option<RateEstimate> {
        None
    }

    /// Returns the interval that shall contain the arrivals per second after the horizon, averaged over a time as long, with a
    /// probability of 95 %, if there is one.
    fn forecast_interval(&self, _: Duration) -> Option<RateEstimate> {
        None
    }
}

/// The declared average.
pub(super) struct Declared(pub(super) f64);

impl Forecaster for Declared {
    fn observe(&mut self, _: Time, _: u64) {}

    fn forecast(&self, _: Duration) -> f64 {
        self.0
    }

    fn planned(&self, _: Duration) -> f64 {
        self.0
    }

    fn is_outdated(&self, _: f64, _: Duration) -> bool {
        false
    }
}

/// The moving average that the simulator used before: half of each period, and a new rate where the average is away from the reported
/// one by 10 % and by three standard deviations of a Poisson process.
pub(super) struct MovingAverage {
    last: Time,
    smoothed: f64,
    reported: f64,
}

impl MovingAverage {
    /// The weight of a period.
    const WEIGHT: f64 = 0.5;

    pub(super) fn new(declared: f64) -> Self {
        Self {
            last: Time::ZERO,
            smoothed: declared,
            reported: declared,
        }
    }
}

impl Forecaster for MovingAverage {
    fn observe(&mut self, now: Time, arrivals: u64) {
        let period = now.saturating_since(self.last).as_secs_f64();
        self.last = now;
        self.smoothed += Self::WEIGHT * (arrivals as f64 / period - self.smoothed);
        let variance = self.reported / period * Self::WEIGHT / (2.0 - Self::WEIGHT);
        let change = (self.smoothed - self.reported).abs();
        if change > (0.1 * self.reported).max(3.0 * variance.sqrt()) {
            self.reported = self.smoothed;
        }
    }

    fn forecast(&self, _: Duration) -> f64 {
        self.smoothed
    }

    fn planned(&self, _: Duration) -> f64 {
        self.reported
    }

    #[expect(
        clippy::float_cmp,
        reason = "the rate is the assumed one until another is reported"
    )]
    fn is_outdated(&self, assumed: f64, _: Duration) -> bool {
        self.reported != assumed
    }
}

/// Holt's linear trend, with a new plan where the forecast is away from the assumed rate by 10 %.
///
/// Source: C. C. Holt, "Forecasting seasonals and trends by exponentially weighted moving averages", ONR memorandum 52, 1957.
pub(super) struct Holt {
    last: Time,
    level: f64,
    /// The trend, in requests/s per second.
    trend: f64,
    /// The weight of a period in the level.
    alpha: f64,
    /// The weight of a period in the trend.
    beta: f64,
}

impl Holt {
    pub(super) fn new(declared: f64, alpha: f64, beta: f64) -> Self {
        Self {
            last: Time::ZERO,
            level: declared,
            trend: 0.0,
            alpha,
            beta,
        }
    }
}

impl Forecaster for Holt {
    fn observe(&mut self, now: Time, arrivals: u64) {
        let period = now.saturating_since(self.last).as_secs_f64();
        self.last = now;
        let expected = self.level + self.trend * period;
        let level = expected + self.alpha * (arrivals as f64 / period - expected);
        self.trend += self.beta * ((level - self.level) / period - self.trend);
        self.level = level;
    }

    fn forecast(&self, horizon: Duration) -> f64 {
        (self.level + self.trend * horizon.as_secs_f64()).max(0.0)
    }

    fn planned(&self, horizon: Duration) -> f64 {
        self.forecast(horizon)
    }

    fn is_outdated(&self, assumed: f64, horizon: Duration) -> bool {
        (self.forecast(horizon) - assumed).abs() > 0.1 * assumed
    }
}

/// The rate's future, with the thresholds of [`RateEstimator`].
pub(super) struct Oracle<'a> {
    /// The true rate of each second.
    pub(super) truth: &'a [f64],
    pub(super) now: usize,
}

impl Forecaster for Oracle<'_> {
    fn observe(&mut self, now: Time, _: u64) {
        self.now = now.as_secs_f64() as usize;
    }

    fn forecast(&self, horizon: Duration) -> f64 {
        let then = self.now + horizon.as_secs() as usize;
        self.truth[then.min(self.truth.len() - 1)]
    }

    fn planned(&self, horizon: Duration) -> f64 {
        self.forecast(horizon)
    }

    fn is_outdated(&self, assumed: f64, horizon: Duration) -> bool {
        let planned = self.planned(horizon);
        planned > 1.10 * assumed || planned < 0.75 * assumed
    }
}

/// The arrivals of an hour before: all that a seasonal memory could add.
pub(super) struct HourAgo {
    declared: f64,
    /// The end of each period of the last hour, and its rate, the oldest first.
    periods: VecDeque<(Time, f64)>,
    last: Time,
}

impl HourAgo {
    /// The length of the season.
    const SEASON: Duration = Duration::from_hours(1);

    pub(super) fn new(declared: f64) -> Self {
        Self {
            declared,
            periods: VecDeque::new(),
            last: Time::ZERO,
        }
    }
}

impl Forecaster for HourAgo {
    fn observe(&mut self, now: Time, arrivals: u64) {
        let period = now.saturating_since(self.last).as_secs_f64();
        self.last = now;
        self.periods.push_back((now, arrivals as f64 / period));
        let is_old = |(end, _): &(Time, f64)| now.saturating_since(*end) > Self::SEASON;
        while self.periods.front().is_some_and(is_old) {
            self.periods.pop_front();
        }
    }

    fn forecast(&self, horizon: Duration) -> f64 {
        let then = self.last + horizon;
        let around = self.periods.iter().filter(|(end, _)| {
            let moved = *end + Self::SEASON;
            moved + SMOOTHING / 2 > then && moved <= then + SMOOTHING / 2
        });
        let (mut sum, mut count) = (0.0, 0.0);
        for (_, rate) in around {
            sum += rate;
            count += 1.0;
        }
        if count > 0.0 {
            sum / count
        } else {
            self.declared
        }
    }

    fn planned(&self, horizon: Duration) -> f64 {
        self.forecast(horizon)
    }

    fn is_outdated(&self, assumed: f64, horizon: Duration) -> bool {
        (self.forecast(horizon) - assumed).abs() > 0.1 * assumed
    }
}

/// The time over which the arrivals of an hour before are averaged.
const SMOOTHING: Duration = Duration::from_mins(1);

/// The estimator of the control plane.
pub(super) struct Measured {
    estimator: RateEstimator,
    mode: RateMode,
    declared: RequestsPerSecond,
}

impl Measured {
    pub(super) fn new(mode: RateMode, declared: f64) -> Self {
        let declared = RequestsPerSecond::new(declared).expect("workloads have valid rates");
        Self {
            estimator: RateEstimator::new(Time::ZERO, declared),
            mode,
            declared,
        }
    }
}

impl Forecaster for Measured {
    fn observe(&mut self, now: Time, arrivals: u64) {
        self.estimator.observe(now, arrivals);
    }

    fn forecast(&self, horizon: Duration) -> f64 {
        self.estimator.forecast(horizon).rate.get()
    }

    fn planned(&self, horizon: Duration) -> f64 {
        let planned = self
            .estimator
            .planned_rate(self.mode, self.declared, horizon);
        planned.get()
    }

    fn is_outdated(&self, assumed: f64, horizon: Duration) -> bool {
        let assumed = RequestsPerSecond::new(assumed).expect("it was planned");
        self.estimator
            .differs_significantly(assumed, self.mode, self.declared, horizon)
    }

    fn interval(&self) -> Option<RateEstimate> {
        Some(self.estimator.measured())
    }

    fn forecast_interval(&self, horizon: Duration) -> Option<RateEstimate> {
        Some(self.estimator.forecast(horizon))
    }
}
