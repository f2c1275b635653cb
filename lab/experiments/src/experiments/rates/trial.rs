//! A run of an estimator over a workload, with plans that follow it.

use std::time::Duration;

use packhorse_cluster::Time;

use super::{forecaster::Forecaster, workload::Workload};

/// The times of a trial.
#[derive(Clone, Copy, Debug)]
pub(super) struct Timing {
    /// The seconds between two observations.
    pub(super) period: u64,
    /// The seconds from a decision until the plan serves: to solve, to load, and to switch.
    pub(super) delay: u64,
    /// The seconds ahead for which is planned: the delay, and the time until the next plan could serve.
    pub(super) horizon: u64,
}

impl Timing {
    pub(super) fn horizon(self) -> Duration {
        Duration::from_secs(self.horizon)
    }

    /// Returns true if a period ends with this second, counted from 1.
    fn ends_period(self, second: usize) -> bool {
        (second as u64).is_multiple_of(self.period)
    }
}

/// The result of a trial.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Score {
    /// The part of the periods in which the interval contains the rate; NaN without intervals.
    pub(super) coverage: f64,
    /// The part of the periods in which the forecast's interval contains what then arrives; NaN without intervals.
    pub(super) forecast_coverage: f64,
    /// The mean absolute error of the forecast, over the mean rate.
    pub(super) error: f64,
    /// The new plans per day.
    pub(super) plans_per_day: f64,
    /// The requests above the planned rate, over all requests.
    pub(super) under: f64,
    /// The planned requests above the rate, over all requests.
    pub(super) over: f64,
}

impl Score {
    /// The price of a request above the planned rate, in planned requests above the rate.
    pub(super) const PRICE: f64 = 3.0;

    /// Returns the cost of what is planned too low and too high, in planned requests over all requests.
    pub(super) fn cost(&self) -> f64 {
        Self::PRICE * self.under + self.over
    }

    /// Returns the mean of scores.
    pub(super) fn mean(scores: &[Self]) -> Self {
        let mean =
            |value: fn(&Self) -> f64| scores.iter().map(value).sum::<f64>() / scores.len() as f64;
        Self {
            coverage: mean(|score| score.coverage),
            forecast_coverage: mean(|score| score.forecast_coverage),
            error: mean(|score| score.error),
            plans_per_day: mean(|score| score.plans_per_day),
            under: mean(|score| score.under),
            over: mean(|score| score.over),
        }
    }
}

/// The number of times that something was true.
#[derive(Default)]
struct Share {
    all: f64,
    true_ones: f64,
}

impl Share {
    fn add(&mut self, is_true: bool) {
        self.all += 1.0;
        self.true_ones += f64::from(u8::from(is_true));
    }

    /// Returns the part that was true; NaN without any.
    fn part(&self) -> f64 {
        self.true_ones / self.all
    }
}

/// Runs an estimator over a workload. The first plan assumes the declared rate and serves from the start; while a plan is being
/// carried out there is no other. `served` is told each second's planned rate.
pub(super) fn run(
    workload: &Workload,
    forecaster: &mut dyn Forecaster,
    timing: Timing,
    served: &mut dyn FnMut(usize, f64),
) -> Score {
    let end = workload.arrivals.len();
    let mut assumed = workload.mean();
    let (mut serving, mut serves_at) = (assumed, None);
    let (mut coverage, mut forecast_coverage) = (Share::default(), Share::default());
    let (mut error, mut expected) = (0.0, 0.0);
    let (mut under, mut over, mut plans, mut arrived) = (0.0, 0.0, 0.0, 0);
    for (second, (&rate, count)) in workload.truth.iter().zip(&workload.arrivals).enumerate() {
        if serves_at == Some(second) {
            (serving, serves_at) = (assumed, None);
        }
        served(second, serving);
        under += (rate - serving).max(0.0);
        over += (serving - rate).max(0.0);
        arrived += count;
        let passed = second + 1;
        if !timing.ends_period(passed) {
            continue;
        }
        forecaster.observe(at(passed), std::mem::take(&mut arrived));
        if let Some(interval) = forecaster.interval() {
            coverage.add((interval.low.get()..=interval.high.get()).contains(&rate));
        }
        let then = passed + timing.horizon as usize;
        let until = then + timing.horizon as usize;
        if until <= end {
            error += (forecaster.forecast(timing.horizon()) - workload.truth[then]).abs();
            expected += workload.truth[then];
            if let Some(interval) = forecaster.forecast_interval(timing.horizon()) {
                let found = workload.arrivals[then..until].iter().sum::<u64>() as f64
                    / timing.horizon as f64;
                forecast_coverage.add((interval.low.get()..=interval.high.get()).contains(&found));
            }
        }
        if serves_at.is_none() && forecaster.is_outdated(assumed, timing.horizon()) {
            assumed = forecaster.planned(timing.horizon());
            serves_at = Some(passed + timing.delay as usize);
            plans += 1.0;
        }
    }
    let requests: f64 = workload.truth.iter().sum();
    Score {
        coverage: coverage.part(),
        forecast_coverage: forecast_coverage.part(),
        error: error / expected,
        plans_per_day: plans * super::workload::DAY as f64 / end as f64,
        under: under / requests,
        over: over / requests,
    }
}

/// Returns the seconds after `step` until a plan for a higher rate is made; `None` if there is none.
pub(super) fn seconds_until_noticed(
    workload: &Workload,
    forecaster: &mut dyn Forecaster,
    timing: Timing,
    step: usize,
) -> Option<usize> {
    let mut assumed = workload.truth[0];
    let mut arrived = 0;
    for (passed, count) in (1..).zip(&workload.arrivals) {
        arrived += count;
        if !timing.ends_period(passed) {
            continue;
        }
        forecaster.observe(at(passed), std::mem::take(&mut arrived));
        if forecaster.is_outdated(assumed, timing.horizon()) {
            let planned = forecaster.planned(timing.horizon());
            if passed > step && planned > assumed {
                return Some(passed - step);
            }
            assumed = planned;
        }
    }
    None
}

/// Returns the end of a second, counted from 1.
fn at(second: usize) -> Time {
    Time::ZERO + Duration::from_secs(second as u64)
}
