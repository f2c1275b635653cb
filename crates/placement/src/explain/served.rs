//! The fraction of each model's requests that is served.

use packhorse_cluster::{Plan, Problem};

use crate::estimate::{ModelEstimate, PlacementEstimate};

/// The fraction of requests in time from which a model counts as served; the error of the estimate is about the rest.
pub(super) const SERVED: f64 = 0.99;

/// Returns the fraction of each model's requests in time that a plan with pools forecasts; `None` for one without.
pub(super) fn pooled_fractions(problem: &Problem, plan: &Plan) -> Option<Vec<f64>> {
    if plan.replicas.iter().all(|replica| replica.pool.is_none()) {
        return None;
    }
    let models = plan.models.iter().zip(&problem.models);
    let fraction = models.map(|(forecast, demanded)| match &forecast.shortfall {
        None => 1.0,
        Some(_) if demanded.rate.get() <= 0.0 => 0.0,
        Some(_) => forecast.goodput.get() / demanded.rate.get(),
    });
    Some(fraction.collect())
}

/// Returns the fraction of each model's requests in time; 1 for a model without requests that has a replica.
pub(super) fn served_fractions(placement: &PlacementEstimate<'_, '_>) -> Vec<f64> {
    let fraction = |(model, estimate): (usize, &ModelEstimate)| {
        let mut replicas = placement.replicas().iter();
        let is_placed = replicas.any(|replica| replica.model == model);
        if is_placed && placement.inputs.demands[model].rate <= 0.0 {
            1.0
        } else {
            estimate.in_time
        }
    };
    placement
        .models()
        .iter()
        .enumerate()
        .map(fraction)
        .collect()
}
