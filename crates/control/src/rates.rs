//! The request rate of a model, measured: the rate with its confidence interval, a forecast, and the rate to plan for.
//!
//! A [`RateEstimator`] is told how many requests arrived in each period. Periods may have any length from a second to a minute, and
//! different lengths; the estimator reads no clock.
//!
//! * The **rate** and its **trend** are a line through the arrivals since the last significant change (the module `window`). While
//!   nothing changes, the interval becomes narrow; after a change the estimate begins anew within a few periods.
//! * The **dispersion** of arrivals (the module `dispersion`) widens intervals and tests where arrivals come in bursts. Changes that are
//!   faster than half a minute, which no plan can follow, count as bursts.
//! * The **forecast** continues the trend, damped: over a long horizon by no more than the time for which it was observed.
//! * The **persistence** (the module `persistence`) draws the forecast of a model whose jumps do not last towards its usual rate.
//! * The **declared rate** is the prior, as if a few requests had arrived at it.
//!
//! `docs/experiments/rates.md` compares the estimator with others on synthetic and recorded arrivals.
//!
//! ```
//! use std::time::Duration;
//!
//! use packhorse_cluster::{RateMode, RequestsPerSecond, Time};
//! use packhorse_control::rates::RateEstimator;
//!
//! let declared = RequestsPerSecond::new(20.0)?;
//! let mut estimator = RateEstimator::new(Time::ZERO, declared);
//! // The time until a new plan serves, and until the next one could.
//! let horizon = Duration::from_secs(30);
//! let assumed = estimator.planned_rate(RateMode::Max, declared, horizon);
//!
//! let mut now = Time::ZERO;
//! for arrivals in [98, 104, 99, 101, 97, 103, 152, 149] {
//!     now += Duration::from_secs(5);
//!     estimator.observe(now, arrivals);
//! }
//! assert!(estimator.differs_significantly(assumed, RateMode::Max, declared, horizon));
//! let planned = estimator.planned_rate(RateMode::Max, declared, horizon);
//! assert!(planned.get() > 28.0 && planned.get() < 32.0);
//! # Ok::<(), packhorse_cluster::UnitError>(())
//! ```

mod dispersion;
mod persistence;
#[cfg(test)]
mod tests;
mod window;

use std::time::Duration;

use packhorse_cluster::{RateMode, RequestsPerSecond, Time};

use self::{dispersion::Dispersion, persistence::Persistence, window::Window};

/// The standard deviations from the rate to either end of its interval, which contains it with a probability of 95 %.
const CONFIDENCE: f64 = 1.96;
/// The standard deviations of the forecast by which the rate must differ from the assumed one.
const SIGNIFICANT: f64 = 3.0;
/// The least relative excess over the assumed rate that counts.
const LEAST_EXCESS: f64 = 0.10;
/// The least relative shortfall from the assumed rate that counts. It is larger, since a shortfall costs no requests.
const LEAST_SHORTFALL: f64 = 0.25;
/// The least difference from the assumed rate that counts, in requests/s.
const LEAST_DIFFERENCE: f64 = 0.02;
/// The least measured rate to plan for, in requests/s. Without a replica the first requests after a pause would be refused.
const FLOOR: f64 = 0.01;
/// The weight of the declared rate, in requests that arrived at it. With 16 it is known to about 25 %.
const PRIOR_ARRIVALS: f64 = 16.0;
/// The longest time of the arrivals at the declared rate, in seconds. After a pause of some times this a rare rate is forgotten too.
const LONGEST_PRIOR: f64 = 900.0;
/// The time after its registration for which a model without any request counts as not used yet and keeps its declared rate.
const UNUSED: Duration = Duration::from_mins(5);
/// The shortest period. A shorter one is joined to the next.
const SHORTEST_PERIOD: Duration = Duration::from_millis(100);
/// The time scale of [`RateEstimator::burstiness`], in seconds. Requests wait no longer than that.
const BURST: f64 = 4.0;
/// The largest rate, in requests/s.
const LARGEST: f64 = 1e9;

/// An estimator of the request rate of one model. It takes at most 1,100 bytes, and a bounded time per period.
#[derive(Clone, Debug, PartialEq)]
pub struct RateEstimator {
    /// The time from which on arrivals are counted.
    start: Time,
    /// The end of the last period.
    last: Time,
    /// The arrivals of periods that were too short.
    carried: u64,
    /// True after the first arrival.
    is_used: bool,
    window: Window,
    dispersion: Dispersion,
    persistence: Persistence,
}

/// A rate with the interval that contains it with a probability of 95 %.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RateEstimate {
    /// The expected rate.
    pub rate: RequestsPerSecond,
    /// The lower end of the interval.
    pub low: RequestsPerSecond,
    /// The upper end of the interval.
    pub high: RequestsPerSecond,
}

impl RateEstimator {
    /// Returns the estimator of a model with this declared rate, which counts until enough is measured. The first period begins at
    /// `start`.
    pub fn new(start: Time, declared: RequestsPerSecond) -> Self {
        let declared = declared.get();
        let seconds = if declared > 0.0 {
            (PRIOR_ARRIVALS / declared).min(LONGEST_PRIOR)
        } else {
            0.0
        };
        Self {
            start,
            last: start,
            carried: 0,
            is_used: false,
            window: Window::new(seconds, seconds * declared),
            dispersion: Dispersion::default(),
            persistence: Persistence::new(declared, seconds),
        }
    }

    /// Ends a period in which this many requests arrived, refused ones included, and begins the next one. A `now` before the last one
    /// ends no period; its arrivals count in the next.
    pub fn observe(&mut self, now: Time, arrivals: u64) {
        let arrivals = self.carried.saturating_add(arrivals);
        let period = now.saturating_since(self.last);
        if period < SHORTEST_PERIOD {
            self.carried = arrivals;
            return;
        }
        (self.last, self.carried) = (now, 0);
        self.is_used |= arrivals > 0;
        if self.is_used || now.saturating_since(self.start) > UNUSED {
            let (seconds, arrivals) = (period.as_secs_f64(), arrivals as f64);
            self.window.observe(seconds, arrivals, &self.dispersion);
            self.dispersion.observe(seconds, arrivals);
            let measured = self.predict(0.0, 0.0, 0.0).rate;
            self.persistence.observe(seconds, arrivals, measured);
        }
    }

    /// Returns the rate at the end of the last period. The interval is that of the mean rate behind the arrivals: bursts make it wider,
    /// and it becomes narrow while the mean does not change.
    pub fn measured(&self) -> RateEstimate {
        self.predict(0.0, 0.0, 0.0).estimate()
    }

    /// Returns the rate after a time. The interval is that of the arrivals per second, averaged over a time as long as the horizon; it
    /// contains their noise too.
    ///
    /// Source: E. S. Gardner, "Exponential smoothing: the state of the art", Journal of Forecasting 4(1), 1985, for the damped trend;
    /// here the trend fades with the time for which it was observed as its time constant.
    pub fn forecast(&self, horizon: Duration) -> RateEstimate {
        let seconds = horizon.as_secs_f64();
        let prediction = self.predict(seconds, seconds, self.dispersion.at(seconds));
        self.regressed(prediction).estimate()
    }

    /// Returns the rate to plan for, for a model with this mode and declared rate. `horizon` is the time until a new plan serves, and
    /// on until the next one could.
    ///
    /// The measured rate in it is the forecast, or the present rate where that falls, without headroom: policies have their own, and where
    /// devices are scarce the headroom of one model takes from another. It is never 0, so that a model without requests keeps a replica.
    pub fn planned_rate(
        &self,
        mode: RateMode,
        declared: RequestsPerSecond,
        horizon: Duration,
    ) -> RequestsPerSecond {
        let measured = self.planned_for(horizon).rate.max(FLOOR);
        match mode {
            RateMode::Declared => declared,
            RateMode::Measured => bounded(measured),
            RateMode::Max => bounded(measured.max(declared.get())),
            RateMode::Min => bounded(measured.min(declared.get())),
        }
    }

    /// Returns true if the rate to plan for is away from the one that the current plan assumes, `assumed`, by more than noise and by
    /// enough to matter: by 10 % if it is above, by 25 % if it is below. The other arguments are those of
    /// [`planned_rate`](Self::planned_rate).
    pub fn differs_significantly(
        &self,
        assumed: RequestsPerSecond,
        mode: RateMode,
        declared: RequestsPerSecond,
        horizon: Duration,
    ) -> bool {
        let assumed = assumed.get();
        let difference = self.planned_rate(mode, declared, horizon).get() - assumed;
        let relative = if difference > 0.0 {
            LEAST_EXCESS
        } else {
            LEAST_SHORTFALL
        };
        if difference.abs() <= (relative * assumed).max(LEAST_DIFFERENCE) {
            return false;
        }
        mode == RateMode::Declared
            || difference.abs() > SIGNIFICANT * self.planned_for(horizon).deviation()
    }

    /// Returns the coefficient of variation of the gaps between requests, for
    /// [`Conditions::burstiness`](packhorse_cluster::Conditions): 1 for a Poisson process, and until something else is measured.
    ///
    /// It is the square root of the dispersion of the counts, to which the squared coefficient of variation of a renewal process tends
    /// (D. R. Cox, "Renewal theory", 1962, section 3.3), in intervals as long as requests may wait.
    pub fn burstiness(&self) -> f64 {
        self.dispersion.up_to(BURST).sqrt()
    }

    /// Returns the distribution of the rate that a plan must serve until after the horizon: a rate that falls is still here.
    fn planned_for(&self, horizon: Duration) -> Prediction {
        let falls = self.window.line().is_some_and(|line| line.falls());
        let ahead = if falls { 0.0 } else { horizon.as_secs_f64() };
        self.regressed(self.predict(ahead, 0.0, 0.0))
    }

    /// Returns a prediction whose deviation from the usual rate lasts as such deviations have lasted before.
    fn regressed(&self, prediction: Prediction) -> Prediction {
        let rate = self.persistence.regressed(prediction.rate);
        let part = if prediction.rate > 0.0 {
            rate / prediction.rate
        } else {
            1.0
        };
        Prediction {
            rate,
            variance_per_rate: prediction.variance_per_rate * self.persistence.slope(),
            noise: prediction.noise * part,
        }
    }

    /// Returns the distribution of the rate after the time `ahead`, averaged over the time `over`, in seconds, with this dispersion of the
    /// arrivals in it.
    fn predict(&self, ahead: f64, over: f64, dispersion_over: f64) -> Prediction {
        let Some(line) = self.window.line() else {
            // Nothing was declared and nothing has arrived.
            return Prediction {
                rate: 0.0,
                variance_per_rate: 0.0,
                noise: 0.0,
            };
        };
        let dispersion = self.dispersion.at(line.seconds.min(window::NOISE));
        let damped = line.seconds * (1.0 - (-ahead / line.seconds).exp());
        let rate = line.rate_in(damped, dispersion).max(0.0);
        Prediction {
            rate,
            variance_per_rate: dispersion / line.effective_seconds(damped, dispersion),
            noise: if over > 0.0 {
                dispersion_over * rate / over
            } else {
                0.0
            },
        }
    }
}

/// The distribution of a rate.
#[derive(Clone, Copy, Debug)]
struct Prediction {
    /// The mean, in requests/s.
    rate: f64,
    /// The variance of the estimate over the rate, in 1/s.
    variance_per_rate: f64,
    /// The variance that does not depend on the true rate, in 1/s².
    noise: f64,
}

impl Prediction {
    /// Returns the rate this many standard deviations above the mean, or below it if they are negative.
    ///
    /// Sources: E. B. Wilson, "Probable inference, the law of succession, and statistical inference", JASA 22(158), 1927, for the estimate:
    /// its variance is that of the returned rate and not that of the mean, so that the result is right for few arrivals too. E. B. Wilson
    /// and M. M. Hilferty, "The distribution of chi-square", PNAS 17(12), 1931, for the noise, which has a gamma distribution: with rare large
    /// bursts most of the time is quiet.
    fn quantile(self, deviations: f64) -> f64 {
        let half = deviations * self.variance_per_rate / 2.0;
        let variance = self.rate * self.variance_per_rate + half * half;
        let of_estimate = deviations * (half + variance.sqrt());
        if self.noise <= 0.0 || self.rate <= 0.0 {
            return self.rate + of_estimate;
        }
        let variation = self.noise.sqrt() / self.rate;
        let root = 1.0 + variation / 3.0 * (deviations - variation / 3.0);
        let of_noise = self.rate * (root.max(0.0).powi(3) - 1.0);
        if deviations > 0.0 {
            self.rate + of_estimate.hypot(of_noise.max(0.0))
        } else {
            self.rate - of_estimate.hypot(of_noise.min(0.0))
        }
    }

    /// Returns the standard deviation of the estimate, in requests/s, as if half an arrival more had been seen.
    fn deviation(self) -> f64 {
        ((self.rate + self.variance_per_rate / 2.0) * self.variance_per_rate).sqrt()
    }

    fn estimate(self) -> RateEstimate {
        RateEstimate {
            rate: bounded(self.rate),
            low: bounded(self.quantile(-CONFIDENCE)),
            high: bounded(self.quantile(CONFIDENCE)),
        }
    }
}

/// Returns a rate within the limits of its unit.
fn bounded(rate: f64) -> RequestsPerSecond {
    RequestsPerSecond::new(rate.clamp(0.0, LARGEST)).expect("a number that is clamped is a rate")
}
