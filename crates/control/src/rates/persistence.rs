//! The persistence of a rate: how much of a deviation from the usual rate is left half a minute later.
//!
//! The rates of some models move and stay. Those of others jump for a few seconds and fall back: a plan for the jump comes too late, and
//! takes a device from a model that needs it. The persistence tells them apart. It is learned per model: over blocks of half a minute, the
//! deviation of the arrivals from the usual rate is regressed on the deviation that was measured when the block began. It is a number from 0
//! to 1, and 1 for a model without history.
//!
//! Source: G. E. P. Box and G. M. Jenkins, "Time series analysis: forecasting and control", 1970, section 5.4: the forecast of a
//! first-order autoregressive process.

/// The length of a block, in seconds.
const BLOCK: f64 = 32.0;
/// The time constant of the usual rate, in seconds.
const USUAL: f64 = 900.0;
/// The blocks after which an observation counts by 1/e.
const MEMORY: f64 = 32.0;
/// The weight of the persistence 1 with which a model begins, as a squared deviation in parts of the squared usual rate.
const PRIOR: f64 = 0.25;

/// The persistence of one model's rate.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Persistence {
    /// The usual rate, in requests/s.
    usual: f64,
    /// The seconds of arrivals behind the usual rate, at most [`USUAL`].
    observed: f64,
    /// The seconds of the block so far.
    seconds: f64,
    /// The arrivals of the block so far.
    arrivals: f64,
    /// The rates when the block began; none in the first one.
    before: Option<Measured>,
    /// The sum of squared measured deviations, in parts of the squared usual rate.
    squares: f64,
    /// The sum of the products of a measured deviation and the following one, in the same unit.
    products: f64,
}

/// The rates at the beginning of a block, in requests/s.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Measured {
    rate: f64,
    usual: f64,
}

impl Persistence {
    /// Returns the persistence of a model with this declared rate, which is known as well as by this many seconds of arrivals.
    pub(super) fn new(declared: f64, seconds: f64) -> Self {
        Self {
            usual: declared,
            observed: seconds,
            seconds: 0.0,
            arrivals: 0.0,
            before: None,
            squares: 0.0,
            products: 0.0,
        }
    }

    /// Counts a period, at whose end this rate is measured.
    pub(super) fn observe(&mut self, seconds: f64, arrivals: f64, rate: f64) {
        self.seconds += seconds;
        self.arrivals += arrivals;
        if self.seconds < BLOCK {
            return;
        }
        let [seconds, arrivals] = [&mut self.seconds, &mut self.arrivals].map(std::mem::take);
        let arrived = arrivals / seconds;
        if let Some(before) = self.before {
            self.compare(before, arrived);
        }
        self.observed = (self.observed + seconds).min(USUAL);
        self.usual += (arrived - self.usual) * (seconds / self.observed).min(1.0);
        let usual = self.usual;
        self.before = Some(Measured { rate, usual });
    }

    /// Returns the rate to expect for the next half minute, for one that is predicted from the present.
    pub(super) fn regressed(&self, predicted: f64) -> f64 {
        self.usual + self.slope() * (predicted - self.usual)
    }

    /// Returns the part of a deviation that is left after half a minute, from 0 to 1.
    pub(super) fn slope(&self) -> f64 {
        ((PRIOR + self.products) / (PRIOR + self.squares)).clamp(0.0, 1.0)
    }

    /// Counts the deviation of a block's arrivals after the one that was measured before.
    fn compare(&mut self, before: Measured, arrived: f64) {
        if before.usual <= 0.0 {
            return;
        }
        let [measured, followed] = [before.rate, arrived].map(|rate| rate / before.usual - 1.0);
        let kept = 1.0 - 1.0 / MEMORY;
        self.squares = self.squares * kept + measured * measured;
        self.products = self.products * kept + measured * followed;
    }
}
