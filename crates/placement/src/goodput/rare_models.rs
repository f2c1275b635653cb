//! Replicas for models that expect few requests.
//!
//! In the score a replica has a fixed cost, and the start of one beside others a larger one, so that nothing moves for a gain within the
//! error of the estimate. A model whose requests are a smaller part of all requests than that would never get its first replica, and all
//! of them would be refused.

use std::{cmp::Reverse, collections::BTreeSet};

use packhorse_cluster::{ByteCount, DeviceIndex, ModelIndex, PlannedReplica, Problem};

use super::{batch_sizes::kept_or_smallest, score::FIXED_COST};
use crate::{
    candidates::Candidates,
    estimate::{EstimateInputs, ModelEstimate, PlacementEstimate},
};

/// The most devices that are tried for a model.
const TRIED_DEVICES: usize = 8;

/// Returns the models whose requests are worth less than the fixed costs of a replica.
pub(super) fn rare_models(problem: &Problem) -> BTreeSet<ModelIndex> {
    let total: f64 = problem.models.iter().map(|model| model.rate.get()).sum();
    let is_rare = |rate: f64| rate > 0.0 && rate < FIXED_COST * total;
    let models = problem.models();
    models
        .filter(|(_, model)| is_rare(model.rate.get()))
        .map(|(model, _)| model)
        .collect()
}

/// Adds one replica of the smallest batch size for every such model without one, where the others lose less than it gains: on a device
/// where it runs now, else on one of those with the most memory left. Keeps the estimates up to date.
pub(super) fn place_rare_models(
    problem: &Problem,
    candidates: &Candidates<'_>,
    replicas: &mut Vec<PlannedReplica>,
    estimates: &mut Vec<ModelEstimate>,
) {
    let mut rare = rare_models(problem);
    for replica in replicas.iter() {
        rare.remove(&replica.model);
    }
    if rare.is_empty() {
        return;
    }
    let inputs = EstimateInputs::new(problem);
    let mut estimate = PlacementEstimate::from_replicas(&inputs, replicas);
    let mut left: Vec<ByteCount> = problem.devices.iter().map(|device| device.memory).collect();
    for replica in replicas.iter() {
        let profile = problem.profile(replica.model, replica.device);
        let memory = profile.and_then(|profile| profile.memory(replica.batch_size));
        left[replica.device.0] = left[replica.device.0].saturating_sub(memory.unwrap_or_default());
    }
    for model in rare {
        let before = goodput(problem, estimate.models());
        for (device, batch_size, memory) in places(problem, candidates, model, &left) {
            estimate.add_replica(device.0, model.0, batch_size, None);
            estimate.solve_device(device.0, &[]);
            if goodput(problem, estimate.models()) > before {
                left[device.0] = left[device.0].saturating_sub(memory);
                replicas.push(PlannedReplica::new(model, device, batch_size));
                break;
            }
            let added = estimate.range(device.0).end - 1;
            estimate.remove_replica(added);
            estimate.solve_device(device.0, &[model.0]);
        }
    }
    estimate.solve();
    *estimates = estimate.models().to_vec();
}

/// Returns the devices to try for a model, with the batch size and its memory, the best first.
fn places(
    problem: &Problem,
    candidates: &Candidates<'_>,
    model: ModelIndex,
    left: &[ByteCount],
) -> Vec<(DeviceIndex, u32, ByteCount)> {
    let mut places: Vec<_> = problem
        .devices()
        .filter_map(|(device, _)| {
            let room = left[device.0];
            let place = (model, device);
            let (batch, memory, kept) =
                kept_or_smallest(problem, candidates, place, room, |_| true)?;
            let rest = room.saturating_sub(memory);
            Some((!kept, Reverse(rest), device, batch, memory))
        })
        .collect();
    places.sort_unstable();
    places.truncate(TRIED_DEVICES);
    places
        .into_iter()
        .map(|(.., device, batch, memory)| (device, batch, memory))
        .collect()
}

/// Returns the estimated requests in time per second.
fn goodput(problem: &Problem, estimates: &[ModelEstimate]) -> f64 {
    let models = problem.models.iter().zip(estimates);
    models
        .map(|(model, estimate)| model.rate.get() * estimate.in_time_conservative)
        .sum()
}
