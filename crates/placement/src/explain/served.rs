//! The fraction of each model's requests that is served.

use crate::estimate::{ModelEstimate, PlacementEstimate};

/// The fraction of requests in time from which a model counts as served; the error of the estimate is about the rest.
pub(super) const SERVED: f64 = 0.99;

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
