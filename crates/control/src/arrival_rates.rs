//! The measured rates of all models, and the rates that the current plan assumes.
//!
//! A rate belongs to a model's name: it is that of all versions that share the requests. A version without a share has a rate of its
//! own, that of the requests which name it.

use std::{collections::BTreeMap, time::Duration};

use packhorse_cluster::{ModelId, ModelName, ModelSpec, RateMode, RequestsPerSecond, Time};

use crate::{
    event::RequestCounts,
    models::Models,
    plan_reason::PlanReason,
    rates::{RateEstimate, RateEstimator},
};

/// The measured rates of all models.
#[derive(Debug)]
pub(crate) struct ArrivalRates {
    models: BTreeMap<ModelName, MeasuredModel>,
    /// The rates of the versions that get only the requests which name them.
    standby: BTreeMap<ModelId, RateEstimator>,
    /// The counts of all versions at the last sample.
    counted: BTreeMap<ModelId, RequestCounts>,
    /// The time for which a forecast is made: until a new plan serves, and until the next one could.
    horizon: Duration,
}

/// The arrivals of a model.
#[derive(Debug)]
struct MeasuredModel {
    estimator: RateEstimator,
    /// The rate that the current plan assumes; none before the first plan.
    assumed: Option<RequestsPerSecond>,
}

impl ArrivalRates {
    /// Creates an estimate without models, whose forecasts reach this far.
    pub(crate) fn new(horizon: Duration) -> Self {
        Self {
            models: BTreeMap::new(),
            standby: BTreeMap::new(),
            counted: BTreeMap::new(),
            horizon,
        }
    }

    /// Adds a version. Its declared rate is the prior of the model, unless the model is measured already.
    pub(crate) fn add(&mut self, now: Time, spec: &ModelSpec) {
        let new = || MeasuredModel {
            estimator: RateEstimator::new(now, spec.rate),
            assumed: None,
        };
        let name = &spec.program.model.name;
        self.models.entry(name.clone()).or_insert_with(new);
    }

    /// Measures a model anew, because its declared rate was changed.
    pub(crate) fn begin_again(&mut self, now: Time, spec: &ModelSpec) {
        let name = &spec.program.model.name;
        if let Some(model) = self.models.get_mut(name) {
            model.estimator = RateEstimator::new(now, spec.rate);
        }
    }

    /// Removes a version. `is_last` says that the model has no other.
    pub(crate) fn remove(&mut self, model: &ModelId, is_last: bool) {
        self.standby.remove(model);
        self.counted.remove(model);
        if is_last {
            self.models.remove(&model.name);
        }
    }

    /// Takes the counts at the end of a period. `is_used` tells whether a version has a share of the requests that name none.
    pub(crate) fn sample(
        &mut self,
        now: Time,
        counts: &BTreeMap<ModelId, RequestCounts>,
        models: &Models,
        is_used: impl Fn(&ModelId) -> bool,
    ) {
        let mut arrived: BTreeMap<&ModelName, u64> = BTreeMap::new();
        for (id, count) in counts {
            if models.get(id).is_none() {
                continue;
            }
            let before = self.counted.insert(id.clone(), *count);
            let before = before.unwrap_or_default();
            let new = count.since(before).arrived;
            if is_used(id) {
                self.standby.remove(id);
                *arrived.entry(&id.name).or_default() += new;
            } else {
                let unused = || RateEstimator::new(now, RequestsPerSecond::ZERO);
                let standby = self.standby.entry(id.clone()).or_insert_with(unused);
                standby.observe(now, new);
            }
        }
        for (name, arrived) in arrived {
            if let Some(model) = self.models.get_mut(name) {
                model.estimator.observe(now, arrived);
            }
        }
    }

    /// Returns the rate of a model to plan with, where `spec` is its newest version, if the plan begins after the time `delay`.
    pub(crate) fn planned(&self, spec: &ModelSpec, delay: Duration) -> RequestsPerSecond {
        let model = self.models.get(&spec.program.model.name);
        model.map_or(spec.rate, |model| {
            let (mode, declared, horizon) = (spec.rate_mode, spec.rate, self.horizon + delay);
            model.estimator.planned_rate(mode, declared, horizon)
        })
    }

    /// Returns the rate to plan with of the requests that name a version, if the plan begins after the time `delay`.
    pub(crate) fn planned_standby(&self, model: &ModelId, delay: Duration) -> RequestsPerSecond {
        let none = RequestsPerSecond::ZERO;
        let unused = RateEstimator::new(Time::ZERO, none);
        let estimator = self.standby.get(model).unwrap_or(&unused);
        estimator.planned_rate(RateMode::Measured, none, self.horizon + delay)
    }

    /// Notes that a plan with the present rates is being made.
    pub(crate) fn assume_planned(&mut self, models: &Models) {
        let (horizon, all) = (self.horizon, self.models.iter_mut());
        for (name, model) in all {
            if let Some(newest) = models.newest(name) {
                let (mode, declared) = (newest.spec.rate_mode, newest.spec.rate);
                model.assumed = Some(model.estimator.planned_rate(mode, declared, horizon));
            }
        }
    }

    /// Notes that the current plan has these rates.
    pub(crate) fn assume(&mut self, rates: &BTreeMap<ModelId, RequestsPerSecond>) {
        let mut sums: BTreeMap<&ModelName, f64> = BTreeMap::new();
        for (id, rate) in rates {
            *sums.entry(&id.name).or_default() += rate.get();
        }
        for (name, sum) in sums {
            if let Some(model) = self.models.get_mut(name) {
                model.assumed = RequestsPerSecond::new(sum).ok();
            }
        }
    }

    /// Returns the models whose rates are significantly away from what the current plan assumes, by their newest versions.
    pub(crate) fn drifted(&self, models: &Models) -> Vec<PlanReason> {
        let drifted = self.models.iter().filter_map(|(name, model)| {
            let assumed = model.assumed?;
            let spec = &models.newest(name)?.spec;
            let (mode, declared, horizon) = (spec.rate_mode, spec.rate, self.horizon);
            let estimator = &model.estimator;
            let differs = estimator.differs_significantly(assumed, mode, declared, horizon);
            let rate = estimator.planned_rate(mode, declared, horizon);
            differs.then(|| PlanReason::Rate {
                model: spec.program.model.clone(),
                rate,
                assumed,
            })
        });
        drifted.collect()
    }

    /// Returns the measured rate of a version, with its interval: that of all versions with a share if it has one.
    pub(crate) fn measured(&self, model: &ModelId) -> Option<RateEstimate> {
        if let Some(standby) = self.standby.get(model) {
            return Some(standby.measured());
        }
        Some(self.models.get(&model.name)?.estimator.measured())
    }
}
