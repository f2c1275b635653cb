//! The objective function of the search.
//!
//! With `f` the fraction of a model's requests in time, a part of which is estimated at more than the expected rate (headroom), and
//! `w` the model's fraction of all requests:
//!
//! * `goodput`: `Σ w f`;
//! * `max-min`: `1 - ‖1 - f‖₈ + 0.05 · Σ w f`, a smooth minimum first, then the sum;
//! * `blend`: the mean of both.
//!
//! The costs of the placement are subtracted: device time, replicas, replicas to start, and replicas to stop.

use packhorse_cluster::Objective;

use crate::estimate::{EstimateInputs, ModelEstimate, PlacementEstimate};

/// The weight of the fraction in time at more than the expected rate.
const HEADROOM: f64 = 0.1;
/// The weight of the fraction in time at more than the expected rate where `max-min` compares models.
const MAX_MIN_HEADROOM: f64 = 0.8;
/// The weight of the fraction in time in a surge, once the expected rates are served.
pub(crate) const SURGE: f64 = 0.005;
/// The cost of keeping all devices busy all the time: of two placements that serve the same, the one with less device time is better.
const DEVICE_TIME_COST: f64 = 2e-3;
/// The fixed cost of a replica, so that none is idle.
const REPLICA_COST: f64 = 2e-5;
/// The cost of a replica as a fraction of its model's requests: one that serves fewer is not worth its memory and its start.
const REPLICA_COST_FRACTION: f64 = 1e-3;
/// The value of e times the capacity, whatever the rate: of two placements that serve the same, the one with more capacity is better.
const CAPACITY_VALUE: f64 = 1e-4;
/// The exponent of the batch size by which a larger batch counts as more capacity. Profiles have errors, and larger batches usually carry
/// more.
const BATCH_SIZE_EXPONENT: f64 = 0.05;
/// The fixed cost of starting a replica, so that none moves for a gain within the error of the estimate.
const START_COST: f64 = 1.5e-3;
/// The cost of stopping a replica, as a fraction of what a device serves: demand may come back, and then it has to start again.
const STOP_COST: f64 = 1.5e-2;
/// About the fixed costs of a replica that starts, as a fraction of all requests.
pub(super) const FIXED_COST: f64 = 2e-3;
/// The assumed lifetime of a placement, in seconds. While a replica loads, the requests that it would serve are lost.
const LIFETIME: f64 = 600.0;
/// The norm of `max-min`; a larger one is closer to the minimum.
const NORM: i32 = 8;
/// The weight of the sum in `max-min`.
const MAX_MIN_SUM: f64 = 0.05;

/// The objective function for a problem.
#[derive(Debug)]
pub(super) struct Score {
    objective: Objective,
    /// Each model's fraction of all requests. The sum is 1, or 0 without requests.
    weights: Vec<f64>,
    /// Requests per second of each model.
    rates: Vec<f64>,
    /// The cost of each request per second of a replica that has to load, by model.
    loading: Vec<f64>,
    /// The number of devices.
    devices: f64,
    /// The weight of the fraction in time in a surge.
    surge: f64,
    /// The part of the fixed costs of a replica that counts.
    fixed_part: f64,
}

/// Returns the fraction of a model's requests in time that the sum of `goodput` counts.
fn served_fraction(model: &ModelEstimate) -> f64 {
    (1.0 - HEADROOM) * model.in_time_conservative + HEADROOM * model.stressed
}

/// Returns the fraction of a model's requests in time that `max-min` counts. It equalizes models, which are at their capacity all at
/// once then, and there the error of the estimate is largest.
fn max_min_fraction(model: &ModelEstimate) -> f64 {
    (1.0 - MAX_MIN_HEADROOM) * model.in_time_conservative + MAX_MIN_HEADROOM * model.stressed
}

impl Score {
    pub(super) fn new(inputs: &EstimateInputs<'_>, objective: Objective) -> Self {
        let total: f64 = inputs.demands.iter().map(|demand| demand.rate).sum();
        let total = total.max(f64::MIN_POSITIVE);
        let models = inputs.problem.models.iter();
        let rates: Vec<f64> = inputs.demands.iter().map(|demand| demand.rate).collect();
        Self {
            objective,
            weights: rates.iter().map(|rate| rate / total).collect(),
            rates,
            loading: models
                .map(|model| model.load_time.as_secs_f64() / LIFETIME / total)
                .collect(),
            devices: inputs.problem.devices.len().max(1) as f64,
            surge: 0.0,
            fixed_part: 1.0,
        }
    }

    /// Returns the function for placements that serve the expected rates: what they leave free is for models that get more than expected.
    pub(super) fn with_surge(self) -> Self {
        Self {
            surge: SURGE,
            ..self
        }
    }

    /// Returns the function for whole clusters of this many cells, in which a model has a smaller fraction of all requests than in its
    /// cell. The fixed costs of a replica are as many requests as in a cell.
    pub(super) fn with_cells(self, cells: usize) -> Self {
        Self {
            fixed_part: 1.0 / cells.max(1) as f64,
            ..self
        }
    }

    /// Returns the value of a placement: larger is better.
    pub(super) fn value(&self, estimate: &PlacementEstimate<'_, '_>) -> f64 {
        let mut value =
            self.objective_value(estimate.models()) + CAPACITY_VALUE * self.log_capacity(estimate);
        for replica in estimate.replicas() {
            value -= DEVICE_TIME_COST * replica.busy * replica.utilization / 100.0 / self.devices
                + REPLICA_COST * self.fixed_part
                + REPLICA_COST_FRACTION * self.weights[replica.model];
            if !estimate.inputs.has_running_replicas() {
                continue;
            }
            if replica.is_new {
                value -= START_COST * self.fixed_part
                    + self.loading[replica.model] * replica.arrival_rate;
            } else {
                // Subtracting it for each replica to stop differs by a constant.
                value += STOP_COST / self.devices;
            }
        }
        value
    }

    /// Returns the logarithm of the capacity relative to the rates, in the mean over the requests.
    fn log_capacity(&self, estimate: &PlacementEstimate<'_, '_>) -> f64 {
        let mut value = 0.0;
        for (model, estimate) in estimate.models().iter().enumerate() {
            if self.rates[model] > 0.0 {
                value += self.weights[model] * (estimate.capacity / self.rates[model]).ln_1p();
            }
        }
        for replica in estimate.replicas() {
            let (model, batch) = (replica.model, f64::from(replica.batch));
            if self.rates[model] > 0.0 {
                let part = replica.arrival_rate / self.rates[model];
                value += BATCH_SIZE_EXPONENT * self.weights[model] * part * batch.ln();
            }
        }
        value
    }

    fn objective_value(&self, estimates: &[ModelEstimate]) -> f64 {
        match self.objective {
            Objective::Goodput => self.sum(estimates),
            Objective::MaxMin => self.max_min(estimates),
            Objective::Blend => 0.5 * (self.sum(estimates) + self.max_min(estimates)),
        }
    }

    fn sum(&self, estimates: &[ModelEstimate]) -> f64 {
        let models = self.weights.iter().zip(estimates);
        models
            .map(|(weight, estimate)| {
                weight * (served_fraction(estimate) + self.surge * estimate.surge)
            })
            .sum()
    }

    fn max_min(&self, estimates: &[ModelEstimate]) -> f64 {
        let requested = self
            .weights
            .iter()
            .zip(estimates)
            .filter(|(weight, _)| **weight > 0.0);
        let lacking: f64 = requested
            .map(|(_, estimate)| (1.0 - max_min_fraction(estimate)).powi(NORM))
            .sum();
        1.0 - lacking.powf(1.0 / f64::from(NORM)) + MAX_MIN_SUM * self.sum(estimates)
    }

    /// Returns the value of serving more requests of a model, relative to other models.
    pub(super) fn marginal_value(&self, model: usize, estimates: &[ModelEstimate]) -> f64 {
        let weight = self.weights[model];
        let lacking = 1.0 - max_min_fraction(&estimates[model]);
        let max_min = lacking.powi(NORM - 1) + MAX_MIN_SUM * weight;
        match self.objective {
            _ if weight <= 0.0 => 0.0,
            Objective::Goodput => weight,
            Objective::MaxMin => max_min,
            Objective::Blend => 0.5 * (weight + max_min),
        }
    }
}
