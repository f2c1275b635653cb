//! The measured rates of all models, and the rates that the current plan assumes.
//!
//! A request counts as many times as it has rows, since its work grows with them.
//! A rate belongs to a model's name: it is that of all versions that share the requests. A version without a share has a rate of its
//! own, that of the requests which name it. The variants of a family have one rate together, because any of them may answer; beside it, it is
//! measured what each has answered, and which of the requests were for it alone.

use std::{collections::BTreeMap, time::Duration};

use packhorse_cluster::{ModelId, ModelName, ModelSpec, RateMode, RequestsPerSecond, Time};

use crate::{
    event::RequestCounts,
    models::{DeclaredRate, Models},
    plan_reason::PlanReason,
    rates::{RateEstimate, RateEstimator},
};

/// The measured rates of all models.
#[derive(Clone, Debug)]
pub(crate) struct ArrivalRates {
    /// The rates of models, and of families.
    models: BTreeMap<ModelName, MeasuredModel>,
    variants: BTreeMap<ModelName, MeasuredVariant>,
    /// The rates of the versions that get only the requests which name them.
    standby: BTreeMap<ModelId, RateEstimator>,
    /// The counts of all versions at the last sample.
    counted: BTreeMap<ModelId, RequestCounts>,
    /// The needs of models and families as they are stored.
    stored: BTreeMap<ModelName, RequestsPerSecond>,
    /// The time for which a forecast is made: until a new plan serves, and until the next one could.
    horizon: Duration,
}

/// The arrivals of a model.
#[derive(Clone, Debug)]
struct MeasuredModel {
    estimator: RateEstimator,
    /// The arrivals alone, whatever is declared.
    need: RateEstimator,
    /// True once requests have come, since the gateway's start or before.
    is_used: bool,
    /// The rate that the current plan assumes; none before the first plan.
    assumed: Option<RequestsPerSecond>,
}

/// The arrivals of a variant.
#[derive(Clone, Debug)]
struct MeasuredVariant {
    /// Those that it was the last to try.
    all: RateEstimator,
    /// Those that were for it alone.
    alone: RateEstimator,
}

impl MeasuredVariant {
    fn new(now: Time) -> Self {
        let unused = RateEstimator::new(now, RequestsPerSecond::ZERO);
        Self {
            all: unused.clone(),
            alone: unused,
        }
    }
}

impl ArrivalRates {
    /// Creates an estimate without models, whose forecasts reach this far.
    pub(crate) fn new(horizon: Duration) -> Self {
        Self {
            models: BTreeMap::new(),
            variants: BTreeMap::new(),
            standby: BTreeMap::new(),
            counted: BTreeMap::new(),
            stored: BTreeMap::new(),
            horizon,
        }
    }

    /// Restores the needs of models and families, as they were measured before the gateway's start. They count until requests
    /// come, or none for some minutes.
    pub(crate) fn restore(&mut self, now: Time, needs: BTreeMap<ModelName, RequestsPerSecond>) {
        for (name, need) in &needs {
            if let Some(model) = self.models.get_mut(name) {
                model.need = RateEstimator::new(now, *need);
                model.estimator = model.need.clone();
                model.is_used = true;
            }
        }
        self.stored = needs;
    }

    /// Returns the needs to store: all, if one of them is significantly away from what is stored, and otherwise `None`.
    pub(crate) fn unstored_needs(&self) -> Option<BTreeMap<ModelName, RequestsPerSecond>> {
        let none = RequestsPerSecond::ZERO;
        let measured = self.models.iter().filter(|(_, model)| model.is_used);
        let measured: BTreeMap<&ModelName, &RateEstimator> =
            measured.map(|(name, model)| (name, &model.need)).collect();
        let differs = |(name, need): (&&ModelName, &&RateEstimator)| {
            self.stored.get(*name).is_none_or(|stored| {
                need.differs_significantly(*stored, RateMode::Measured, none, self.horizon)
            })
        };
        if self.stored.len() == measured.len() && !measured.iter().any(differs) {
            return None;
        }
        let needs = measured.into_iter().map(|(name, need)| {
            let rate = need.planned_rate(RateMode::Measured, none, self.horizon);
            (name.clone(), rate)
        });
        Some(needs.collect())
    }

    /// Notes the needs that are stored.
    pub(crate) fn needs_stored(&mut self, needs: BTreeMap<ModelName, RequestsPerSecond>) {
        self.stored = needs;
    }

    /// Adds a version. The rate that is expected of it is the prior of the model or family, unless that is measured already.
    pub(crate) fn add(&mut self, now: Time, spec: &ModelSpec) {
        let new = || MeasuredModel {
            estimator: RateEstimator::new(now, spec.prior_rate()),
            need: RateEstimator::new(now, RequestsPerSecond::ZERO),
            is_used: false,
            assumed: None,
        };
        let name = spec.demand_name();
        self.models.entry(name.clone()).or_insert_with(new);
    }

    /// Has the reserved rate of a model be its prior, because it was changed. What is measured without a prior stays measured.
    pub(crate) fn begin_again(&mut self, now: Time, spec: &ModelSpec) {
        if let Some(model) = self.models.get_mut(spec.demand_name()) {
            model.estimator = if model.is_used {
                model.need.clone()
            } else {
                RateEstimator::new(now, spec.prior_rate())
            };
        }
    }

    /// Removes a version.
    pub(crate) fn remove(&mut self, model: &ModelId) {
        self.standby.remove(model);
        self.counted.remove(model);
    }

    /// Forgets a model or family without models, and a model that is no variant any more, or one that has become one.
    pub(crate) fn forget_unless_used(&mut self, name: &ModelName, models: &Models) {
        let newest = models.newest(name).map(|model| &model.spec);
        if newest.is_none_or(|spec| spec.variant.is_none()) {
            self.variants.remove(name);
        }
        let counts = match newest {
            Some(spec) => spec.variant.is_none(),
            None => models.representative(name).is_some(),
        };
        if !counts {
            self.models.remove(name);
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
        let mut variants: BTreeMap<&ModelName, (u64, u64)> = BTreeMap::new();
        for (id, count) in counts {
            let Some(model) = models.get(id) else {
                continue;
            };
            let before = self.counted.insert(id.clone(), *count);
            let new = count.since(before.unwrap_or_default());
            let is_variant = model.spec.variant.is_some();
            let new_alone = new.rows_arrived.saturating_sub(new.rows_for_family);
            let new = new.rows_arrived;
            if is_used(id) {
                self.standby.remove(id);
                *arrived.entry(model.spec.demand_name()).or_default() += new;
                if is_variant {
                    let (all, alone) = variants.entry(&id.name).or_default();
                    *all += new;
                    *alone += new_alone;
                }
            } else {
                let unused = || RateEstimator::new(now, RequestsPerSecond::ZERO);
                let standby = self.standby.entry(id.clone()).or_insert_with(unused);
                standby.observe(now, new);
            }
        }
        for (name, arrived) in arrived {
            if let Some(model) = self.models.get_mut(name) {
                model.estimator.observe(now, arrived);
                model.need.observe(now, arrived);
                model.is_used |= arrived > 0;
            }
        }
        for (name, (all, alone)) in variants {
            let new = || MeasuredVariant::new(now);
            let variant = self.variants.entry(name.clone()).or_insert_with(new);
            variant.all.observe(now, all);
            variant.alone.observe(now, alone);
        }
    }

    /// Returns the rate of a model or family to plan with, if the plan begins after the time `delay`.
    pub(crate) fn planned(
        &self,
        name: &ModelName,
        declared: DeclaredRate,
        delay: Duration,
    ) -> RequestsPerSecond {
        let DeclaredRate { rate, mode } = declared;
        self.models.get(name).map_or(rate, |model| {
            let horizon = self.horizon + delay;
            model.estimator.planned_rate(mode, rate, horizon)
        })
    }

    /// Returns the rate that a model is measured to need in a plan that begins after the time `delay`.
    pub(crate) fn needed(&self, name: &ModelName, delay: Duration) -> Option<RequestsPerSecond> {
        let need = &self.models.get(name)?.need;
        let none = RequestsPerSecond::ZERO;
        Some(need.planned_rate(RateMode::Measured, none, self.horizon + delay))
    }

    /// Returns the rate to plan with of the requests that are for a variant alone, if the plan begins after the time `delay`. It is never 0,
    /// so that every variant keeps a replica where there is room, and can take over at once.
    pub(crate) fn planned_alone(&self, variant: &ModelName, delay: Duration) -> RequestsPerSecond {
        let none = RequestsPerSecond::ZERO;
        let unused = MeasuredVariant::new(Time::ZERO);
        let variant = self.variants.get(variant).unwrap_or(&unused);
        let horizon = self.horizon + delay;
        variant
            .alone
            .planned_rate(RateMode::Measured, none, horizon)
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
            if let Some(DeclaredRate { rate, mode }) = models.declared(name) {
                model.assumed = Some(model.estimator.planned_rate(mode, rate, horizon));
            }
        }
    }

    /// Notes that the current plan has these rates.
    pub(crate) fn assume(&mut self, rates: &BTreeMap<ModelId, RequestsPerSecond>, models: &Models) {
        let mut sums: BTreeMap<&ModelName, f64> = BTreeMap::new();
        for (id, rate) in rates {
            let name = models.get(id).map(|model| model.spec.demand_name());
            *sums.entry(name.unwrap_or(&id.name)).or_default() += rate.get();
        }
        for (name, sum) in sums {
            if let Some(model) = self.models.get_mut(name) {
                model.assumed = RequestsPerSecond::new(sum).ok();
            }
        }
    }

    /// Returns the models whose rates are significantly away from what the current plan assumes, by their newest versions, and families by
    /// those of their most accurate variants.
    pub(crate) fn drifted(&self, models: &Models) -> Vec<PlanReason> {
        let drifted = self.models.iter().filter_map(|(name, model)| {
            let assumed = model.assumed?;
            let spec = &models.representative(name)?.spec;
            let declared = models.declared(name)?;
            let (mode, declared, horizon) = (declared.mode, declared.rate, self.horizon);
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

    /// Returns the measured rate of a version, with its interval: that of all versions with a share if it has one. A request for a family counts
    /// for the variant that answered it, or was the last to try.
    pub(crate) fn measured(&self, model: &ModelId) -> Option<RateEstimate> {
        if let Some(standby) = self.standby.get(model) {
            return Some(standby.measured());
        }
        if let Some(variant) = self.variants.get(&model.name) {
            return Some(variant.all.measured());
        }
        Some(self.models.get(&model.name)?.estimator.measured())
    }

    /// Returns the mean number of rows of the requests that a version was the last to try, since the gateway's start.
    pub(crate) fn rows_per_request(&self, model: &ModelId) -> Option<f64> {
        let counts = self.counted.get(model)?;
        (counts.arrived > 0).then(|| counts.rows_arrived as f64 / counts.arrived as f64)
    }
}
