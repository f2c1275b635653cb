//! The measured rates of all models, and the rates that the current plan assumes.

use std::{collections::BTreeMap, time::Duration};

use packhorse_cluster::{ModelId, ModelSpec, RequestsPerSecond, Time};

use crate::{
    event::RequestCounts,
    models::Models,
    plan_reason::PlanReason,
    rates::{RateEstimate, RateEstimator},
};

/// The measured rates of all models.
#[derive(Debug)]
pub(crate) struct ArrivalRates {
    models: BTreeMap<ModelId, MeasuredModel>,
    /// The time for which a forecast is made: until a new plan serves, and until the next one could.
    horizon: Duration,
}

/// The arrivals of a model.
#[derive(Debug)]
struct MeasuredModel {
    estimator: RateEstimator,
    /// The counts at the last sample; none before the first.
    counted: Option<RequestCounts>,
    /// The rate that the current plan assumes; none before the first plan.
    assumed: Option<RequestsPerSecond>,
}

impl ArrivalRates {
    /// Creates an estimate without models, whose forecasts reach this far.
    pub(crate) fn new(horizon: Duration) -> Self {
        Self {
            models: BTreeMap::new(),
            horizon,
        }
    }

    /// Adds a model, whose declared rate is the prior.
    pub(crate) fn add(&mut self, now: Time, spec: &ModelSpec) {
        let measured = MeasuredModel {
            estimator: RateEstimator::new(now, spec.rate),
            counted: None,
            assumed: None,
        };
        self.models.insert(spec.program.model.clone(), measured);
    }

    /// Removes a model.
    pub(crate) fn remove(&mut self, model: &ModelId) {
        self.models.remove(model);
    }

    /// Takes the counts at the end of a period.
    pub(crate) fn sample(&mut self, now: Time, counts: &BTreeMap<ModelId, RequestCounts>) {
        for (id, model) in &mut self.models {
            let Some(count) = counts.get(id) else {
                continue;
            };
            let before = model.counted.replace(*count).unwrap_or_default();
            model.estimator.observe(now, count.since(before).arrived);
        }
    }

    /// Returns the rate of a model to plan with.
    pub(crate) fn planned(&self, spec: &ModelSpec) -> RequestsPerSecond {
        let model = self.models.get(&spec.program.model);
        model.map_or(spec.rate, |model| {
            let (mode, declared) = (spec.rate_mode, spec.rate);
            model.estimator.planned_rate(mode, declared, self.horizon)
        })
    }

    /// Notes that a plan with these rates was made.
    pub(crate) fn assume(&mut self, rates: &BTreeMap<ModelId, RequestsPerSecond>) {
        for (id, rate) in rates {
            if let Some(model) = self.models.get_mut(id) {
                model.assumed = Some(*rate);
            }
        }
    }

    /// Returns the models whose rates are significantly away from what the current plan assumes.
    pub(crate) fn drifted(&self, models: &Models) -> Vec<PlanReason> {
        let drifted = self.models.iter().filter_map(|(id, model)| {
            let assumed = model.assumed?;
            let spec = &models.get(id)?.spec;
            let (mode, declared, horizon) = (spec.rate_mode, spec.rate, self.horizon);
            let estimator = &model.estimator;
            let differs = estimator.differs_significantly(assumed, mode, declared, horizon);
            let rate = estimator.planned_rate(mode, declared, horizon);
            differs.then(|| PlanReason::Rate {
                model: id.clone(),
                rate,
                assumed,
            })
        });
        drifted.collect()
    }

    /// Returns the measured rate of a model, with its interval.
    pub(crate) fn measured(&self, model: &ModelId) -> Option<RateEstimate> {
        Some(self.models.get(model)?.estimator.measured())
    }
}
