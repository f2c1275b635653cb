//! The recent arrivals of a model, back to the last change that a straight line does not explain.
//!
//! A window keeps a fixed number of buckets whose lengths grow with their age. It drops what is older than a change: of all points at
//! which the counts can be divided, the one with the largest quasi-Poisson deviance is tested, first against a constant rate, then against a
//! line. The rate and its trend are a least-squares line through what is left.
//!
//! Sources: A. Bifet and R. Gavaldà, "Learning from time-changing data with adaptive windowing", SDM 2007 (the window; here with
//! buckets by length and another test); P. `McCullagh` and J. A. Nelder, "Generalized linear models", 1989, section 9.2 (the deviance of counts
//! over their dispersion); L. Breiman, "Better subset regression using the nonnegative garrote", Technometrics 37(4), 1995 (a trend
//! counts by as much as it is significant).

use super::dispersion::Dispersion;

/// The number of buckets.
const BUCKETS: usize = 30;
/// The length of the window, in seconds. Older arrivals are forgotten.
pub(super) const LENGTH: f64 = 3600.0;
/// The deviance at which the rate has changed: five standard deviations. Every period of a day is tested, at every bucket.
const CHANGE: f64 = 25.0;
/// The deviance below which a trend counts nothing: 2.5 standard deviations.
const TREND: f64 = 6.25;
/// The time scale up to which changes of the rate are noise, in seconds. A plan cannot follow faster ones.
pub(super) const NOISE: f64 = 32.0;
/// The least number of buckets with a trend: the first periods after a start or a change lie on a line too easily.
const TREND_BUCKETS: usize = 6;
/// The least part of the mean rate to which a falling trend can have brought the rate at the end of the window. A line that describes
/// falling arrivals well does not fall by more.
const LEAST_NOW: f64 = 0.5;
/// The least part of the variance of the newest arrivals that a fit must leave for a test.
const LEAST_VARIANCE: f64 = 0.02;
/// The least part of the mean rate that a falling line expects of the newest arrivals. Without it the line could expect less than none.
const LEAST_EXPECTED: f64 = 1e-3;

/// A time with its arrivals.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Bucket {
    seconds: f64,
    arrivals: f64,
}

/// The arrivals since the last change.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Window {
    /// The buckets, the oldest first.
    buckets: [Bucket; BUCKETS],
    used: usize,
}

impl Window {
    /// Returns a window with these arrivals, or an empty one if `seconds` is 0.
    pub(super) fn new(seconds: f64, arrivals: f64) -> Self {
        let mut window = Self {
            buckets: [Bucket::default(); BUCKETS],
            used: 0,
        };
        if seconds > 0.0 {
            window.push(Bucket { seconds, arrivals });
        }
        window
    }

    /// Adds a period, and forgets what is older than a change.
    pub(super) fn observe(&mut self, seconds: f64, arrivals: f64, dispersion: &Dispersion) {
        self.push(Bucket { seconds, arrivals });
        while let Some(newer) = self.change(dispersion) {
            self.keep_newest(newer);
        }
    }

    /// Returns the line through the window; `None` if it is empty.
    pub(super) fn line(&self) -> Option<Line> {
        let buckets = &self.buckets[..self.used];
        let (mut seconds, mut arrivals, mut aged) = (0.0, 0.0, 0.0);
        for bucket in buckets.iter().rev() {
            aged += bucket.seconds * (seconds + bucket.seconds / 2.0);
            seconds += bucket.seconds;
            arrivals += bucket.arrivals;
        }
        if seconds <= 0.0 {
            return None;
        }
        let mean_age = aged / seconds;
        let (mut spread, mut covariance) = (0.0, 0.0);
        let mut age = 0.0;
        for bucket in buckets.iter().rev() {
            let x = mean_age - (age + bucket.seconds / 2.0);
            age += bucket.seconds;
            spread += bucket.seconds * x * x;
            covariance += bucket.arrivals * x;
        }
        let slope = if self.used >= TREND_BUCKETS && spread > 0.0 {
            covariance / spread
        } else {
            0.0
        };
        Some(Line {
            seconds,
            arrivals,
            mean_age,
            spread,
            slope,
        })
    }

    fn push(&mut self, bucket: Bucket) {
        if self.used == BUCKETS {
            self.merge_two();
        }
        self.buckets[self.used] = bucket;
        self.used += 1;
        let mut seconds = 0.0;
        let newest = self.buckets[..self.used].iter().rev();
        let kept = newest.take_while(|bucket| {
            let keeps = seconds < LENGTH;
            seconds += bucket.seconds;
            keeps
        });
        self.keep_newest(kept.count());
    }

    /// Merges the two neighbours that are together the shortest for their age.
    fn merge_two(&mut self) {
        let (mut best, mut least, mut age) = (0, f64::INFINITY, 0.0);
        for i in (0..self.used - 1).rev() {
            age += self.buckets[i + 1].seconds;
            let merged = self.buckets[i].seconds + self.buckets[i + 1].seconds;
            let relative = merged / age;
            // Among equals the older ones are merged.
            if relative <= least {
                (best, least) = (i, relative);
            }
        }
        let removed = self.buckets[best + 1];
        self.buckets[best].seconds += removed.seconds;
        self.buckets[best].arrivals += removed.arrivals;
        self.buckets.copy_within(best + 2..self.used, best + 1);
        self.used -= 1;
    }

    fn keep_newest(&mut self, count: usize) {
        self.buckets.copy_within(self.used - count..self.used, 0);
        self.used = count;
    }

    /// Returns the number of buckets that are newer than the most significant change, if there is a change.
    fn change(&self, dispersion: &Dispersion) -> Option<usize> {
        let line = self.line()?;
        if self.used < 2 || line.arrivals == 0.0 {
            return None;
        }
        let (step, newer) = self.largest_step(&line, dispersion, 0.0);
        let slope = line.slope_deviance() / dispersion.at((line.seconds / 2.0).min(NOISE));
        if step > CHANGE && step > slope {
            return Some(newer);
        }
        if slope <= TREND {
            return None;
        }
        let (step, newer) = self.largest_step(&line, dispersion, line.slope);
        (step > CHANGE).then_some(newer)
    }

    /// Returns the largest deviance of the newest buckets from a line with this slope through the window's mean, and their number.
    fn largest_step(&self, line: &Line, dispersion: &Dispersion, slope: f64) -> (f64, usize) {
        let mean = line.mean();
        let (mut best, mut newer) = (0.0, 0);
        // Of the newest buckets: their length, their arrivals, and the sum of their distances from the mean age, weighted by seconds.
        let (mut seconds, mut arrivals, mut distance) = (0.0, 0.0, 0.0);
        for (i, bucket) in self.buckets[1..self.used].iter().rev().enumerate() {
            distance += bucket.seconds * (line.mean_age - (seconds + bucket.seconds / 2.0));
            seconds += bucket.seconds;
            arrivals += bucket.arrivals;
            // The part of the variance of the newest arrivals that the fit leaves.
            let mut left = 1.0 - seconds / line.seconds;
            if slope != 0.0 {
                left -= distance * distance / (seconds * line.spread);
            }
            if left < LEAST_VARIANCE {
                continue;
            }
            let at_mean = mean * seconds;
            let expected = (at_mean + slope * distance).max(LEAST_EXPECTED * at_mean);
            let step = if slope == 0.0 {
                let (older, seconds) = (line.arrivals - arrivals, line.seconds - seconds);
                deviance(arrivals, expected) + deviance(older, mean * seconds)
            } else {
                deviance(arrivals, expected) / left
            };
            let step = step / dispersion.at(seconds.min(NOISE));
            if step > best {
                (best, newer) = (step, i + 1);
            }
        }
        (best, newer)
    }
}

/// A line through the rates of a window.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Line {
    /// The length of the window, in seconds.
    pub(super) seconds: f64,
    /// The arrivals in the window.
    pub(super) arrivals: f64,
    /// The mean age of the window, in seconds.
    mean_age: f64,
    /// The sum of squared distances from the mean age, weighted by seconds.
    spread: f64,
    /// The least-squares change of the rate per second, in requests/s.
    slope: f64,
}

impl Line {
    /// Returns the mean rate, in requests/s.
    pub(super) fn mean(&self) -> f64 {
        self.arrivals / self.seconds
    }

    /// Returns the part of the slope that counts, from 0 for an insignificant one to almost 1.
    fn weight(&self, dispersion: f64) -> f64 {
        let significance = self.slope_deviance() / dispersion;
        if significance > TREND {
            1.0 - TREND / significance
        } else {
            0.0
        }
    }

    /// Returns the squared slope over its variance for Poisson arrivals.
    fn slope_deviance(&self) -> f64 {
        if self.spread > 0.0 && self.arrivals > 0.0 {
            self.slope * self.slope * self.spread / self.mean()
        } else {
            0.0
        }
    }

    /// Returns the trend, in requests/s per second.
    fn trend(&self, dispersion: f64) -> f64 {
        self.slope * self.weight(dispersion)
    }

    /// Returns true if the rate falls.
    pub(super) fn falls(&self) -> bool {
        self.slope < 0.0
    }

    /// Returns the rate at a time from the newest arrivals on, in seconds; it may be negative.
    pub(super) fn rate_in(&self, seconds: f64, dispersion: f64) -> f64 {
        let (mean, trend) = (self.mean(), self.trend(dispersion));
        (mean + trend * self.mean_age).max(LEAST_NOW * mean) + trend * seconds
    }

    /// Returns the seconds of arrivals at a constant rate that would give the rate at a time as exactly as this line does.
    pub(super) fn effective_seconds(&self, seconds: f64, dispersion: f64) -> f64 {
        let weight = self.weight(dispersion);
        if weight == 0.0 || self.spread <= 0.0 {
            return self.seconds;
        }
        let distance = weight * (self.mean_age + seconds);
        1.0 / (1.0 / self.seconds + distance * distance / self.spread)
    }
}

/// Returns the deviance of a Poisson count from its expectation.
fn deviance(count: f64, expected: f64) -> f64 {
    if count > 0.0 {
        2.0 * (count * (count / expected).ln() - (count - expected)).max(0.0)
    } else {
        2.0 * expected
    }
}
