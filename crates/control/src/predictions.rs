//! Predicted goodput beside observed goodput, per model, over the last hour. A request counts as many times as it has rows, as in plans.

use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

use packhorse_cluster::{ModelId, Time};

use crate::{
    event::RequestCounts,
    plan_reason::PlanReason,
    record::{Forecast, PlanOutcome},
};

/// The length of a bucket.
const BUCKET: Duration = Duration::from_mins(5);
/// The number of buckets of a model: one hour.
const BUCKETS: usize = 12;

/// The least predicted requests of a period for which its goodput counts.
const LEAST_REQUESTS: f64 = 50.0;
/// The part of the predicted goodput below which requests are late.
const LATE: f64 = 0.8;
/// The part of the predicted goodput to which a model that was planned for must return before another plan is requested for it.
const RECOVERED: f64 = 0.9;
/// The number of successive late periods after which a new plan is requested.
const LATE_PERIODS: u32 = 2;

/// The predicted and observed goodput of all models.
#[derive(Clone, Debug, Default)]
pub(crate) struct Predictions {
    models: BTreeMap<ModelId, History>,
    /// The time of the last sample.
    sampled: Time,
    /// The requests since the current plan was adopted.
    outcome: PlanOutcome,
}

#[derive(Clone, Debug, Default)]
struct History {
    counted: Option<RequestCounts>,
    buckets: VecDeque<Bucket>,
    last: Option<PredictedGoodput>,
    /// The part of the predicted requests of the last period that was answered in time; none if there were too few.
    part: Option<f64>,
    /// The number of successive late periods.
    late: u32,
    /// True once a plan was requested, until the model has recovered.
    is_planned_for: bool,
}

#[derive(Clone, Copy, Debug)]
struct Bucket {
    begin: Time,
    observed: f64,
    predicted: f64,
}

/// The goodput of a model, predicted for the requests that arrived, and observed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PredictedGoodput {
    /// The requests per second that arrived in the last period.
    pub offered_rps: f64,
    /// The requests per second that the plan expected to be answered within the SLO, of those that arrived in the last period.
    pub predicted_rps: f64,
    /// The requests per second that were answered within the SLO in the last period.
    pub observed_rps: f64,
    /// The observed goodput of the last hour over the predicted one, minus 1; 0 is unbiased, negative is worse than predicted. None
    /// while there is nothing to compare.
    pub bias: Option<f64>,
}

impl Predictions {
    /// Takes the counts at the end of a period.
    pub(crate) fn sample(
        &mut self,
        now: Time,
        counts: &BTreeMap<ModelId, RequestCounts>,
        forecasts: &BTreeMap<ModelId, Forecast>,
    ) {
        let seconds = now.saturating_since(self.sampled).as_secs_f64();
        self.sampled = now;
        if seconds <= 0.0 {
            return;
        }
        self.models.retain(|model, _| counts.contains_key(model));
        self.outcome.seconds += seconds;
        for (model, count) in counts {
            let history = self.models.entry(model.clone()).or_default();
            let before = history.counted.replace(*count);
            // The first reading may be of more than the period.
            let (Some(before), Some(forecast)) = (before, forecasts.get(model)) else {
                continue;
            };
            let new = count.since(before);
            let (predicted, observed) = history.add(now, seconds, new, forecast);
            self.outcome.arrived += new.rows_arrived as f64;
            self.outcome.predicted += predicted;
            self.outcome.observed += observed;
        }
    }

    /// Returns the reasons for a new plan after a period: the models that are late for long enough. In a period that does not count,
    /// models can only recover.
    pub(crate) fn late(&mut self, counts: bool) -> Vec<PlanReason> {
        let mut reasons = Vec::new();
        for (model, history) in &mut self.models {
            let Some(ratio) = history.part.take() else {
                continue;
            };
            history.is_planned_for &= ratio < RECOVERED;
            let is_late = counts && ratio < LATE;
            history.late = if is_late { history.late + 1 } else { 0 };
            if history.late >= LATE_PERIODS && !history.is_planned_for {
                history.is_planned_for = true;
                let model = model.clone();
                reasons.push(PlanReason::Late { model, ratio });
            }
        }
        reasons
    }

    /// Returns the goodput of a model; `None` before it was sampled under a plan.
    pub(crate) fn of(&self, model: &ModelId) -> Option<PredictedGoodput> {
        self.models.get(model)?.last
    }

    /// Returns the requests since the current plan was adopted.
    pub(crate) fn outcome(&self) -> PlanOutcome {
        self.outcome
    }

    /// Counts the requests of another plan from now on.
    pub(crate) fn replace_plan(&mut self) {
        self.outcome = PlanOutcome::default();
    }

    /// Returns the bias over all models in the last hour.
    pub(crate) fn total_bias(&self) -> Option<f64> {
        bias(self.models.values().flat_map(|history| &history.buckets))
    }
}

impl History {
    /// Adds the requests of a period, and returns the predicted and the observed number of those within the SLO.
    fn add(
        &mut self,
        now: Time,
        seconds: f64,
        counts: RequestCounts,
        forecast: &Forecast,
    ) -> (f64, f64) {
        let arrived = counts.rows_arrived as f64;
        let (rate, goodput) = (forecast.rate.get(), forecast.goodput.get());
        let share = if rate > 0.0 { goodput / rate } else { 0.0 };
        // Beyond the rate that was planned for, the plan promises no more than its goodput.
        let predicted = (arrived * share).min(goodput * seconds);
        let observed = counts.rows_within_slo as f64;
        self.part = (predicted >= LEAST_REQUESTS).then(|| observed / predicted);
        match self.buckets.back_mut() {
            Some(bucket) if now.saturating_since(bucket.begin) < BUCKET => {
                bucket.observed += observed;
                bucket.predicted += predicted;
            }
            _ => self.buckets.push_back(Bucket {
                begin: now,
                observed,
                predicted,
            }),
        }
        while self.buckets.len() > BUCKETS {
            self.buckets.pop_front();
        }
        self.last = Some(PredictedGoodput {
            offered_rps: arrived / seconds,
            predicted_rps: predicted / seconds,
            observed_rps: observed / seconds,
            bias: bias(&self.buckets),
        });
        (predicted, observed)
    }
}

fn bias<'a>(buckets: impl IntoIterator<Item = &'a Bucket>) -> Option<f64> {
    let (mut observed, mut predicted) = (0.0, 0.0);
    for bucket in buckets {
        observed += bucket.observed;
        predicted += bucket.predicted;
    }
    (predicted > 0.0).then(|| observed / predicted - 1.0)
}

#[cfg(test)]
mod tests {
    use packhorse_cluster::RequestsPerSecond;

    use super::*;

    #[test]
    fn the_bias_is_of_the_last_hour_and_a_rate_above_the_planned_one_promises_no_more() {
        let model: ModelId = "m".parse().unwrap();
        let rate = |rps| RequestsPerSecond::new(rps).unwrap();
        let forecast = Forecast {
            model: model.clone(),
            rate: rate(100.0),
            goodput: rate(80.0),
            shortfall: None,
        };
        let forecasts = BTreeMap::from([(model.clone(), forecast)]);
        let mut predictions = Predictions::default();
        let mut counts = RequestCounts::default();
        let mut now = Time::ZERO;
        let mut pass = |predictions: &mut Predictions, arrived: u64, within_slo: u64| {
            now += Duration::from_secs(10);
            counts.arrive(arrived, 1);
            counts.answer(within_slo, 1);
            let counts = BTreeMap::from([(model.clone(), counts)]);
            predictions.sample(now, &counts, &forecasts);
            predictions.of(&model)
        };
        assert_eq!(pass(&mut predictions, 5, 5), None);
        let goodput = pass(&mut predictions, 500, 300).unwrap();
        assert!((goodput.offered_rps - 50.0).abs() < 1e-9);
        assert!((goodput.predicted_rps - 40.0).abs() < 1e-9);
        assert!((goodput.observed_rps - 30.0).abs() < 1e-9);
        assert!((goodput.bias.unwrap() + 0.25).abs() < 1e-9);
        let outcome = PlanOutcome {
            seconds: 20.0,
            arrived: 500.0,
            predicted: 400.0,
            observed: 300.0,
        };
        assert_eq!(predictions.outcome(), outcome);
        predictions.replace_plan();
        assert_eq!(predictions.outcome(), PlanOutcome::default());
        let above = pass(&mut predictions, 2000, 800).unwrap();
        assert!((above.predicted_rps - 80.0).abs() < 1e-9);
        // Two late periods are a reason, once until the model has recovered.
        assert_eq!(predictions.late(true), []);
        for (within_slo, late) in [(900, 0), (500, 0), (500, 1), (500, 0), (750, 0), (790, 0)] {
            pass(&mut predictions, 1000, within_slo);
            assert_eq!(predictions.late(true).len(), late, "{within_slo}");
        }
        for (counts, late) in [(false, 0), (true, 0), (true, 1)] {
            pass(&mut predictions, 1000, 500);
            assert_eq!(predictions.late(counts).len(), late);
        }
        // After an hour as predicted, the beginning is forgotten.
        for _ in 0..370 {
            pass(&mut predictions, 100, 80);
        }
        assert!(predictions.total_bias().unwrap().abs() < 1e-9);
    }
}
