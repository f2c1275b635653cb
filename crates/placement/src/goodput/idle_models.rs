//! Replicas for models that expect no requests.

use std::{cmp::Reverse, collections::BTreeSet};

use packhorse_cluster::{ByteCount, ModelIndex, PlannedReplica, Problem};

use super::batch_sizes::kept_or_smallest;
use crate::candidates::Candidates;

/// Adds one replica of the smallest batch size for every model that expects no requests: on the device where it runs now, else
/// on the one with the most memory left.
pub(crate) fn place_idle_models(
    problem: &Problem,
    candidates: &Candidates<'_>,
    replicas: &mut Vec<PlannedReplica>,
) {
    let mut left: Vec<ByteCount> = problem.devices.iter().map(|device| device.memory).collect();
    for replica in replicas.iter() {
        let profile = problem.profile(replica.model, replica.device);
        let memory = profile.and_then(|profile| profile.memory(replica.batch_size));
        left[replica.device.0] = left[replica.device.0].saturating_sub(memory.unwrap_or_default());
    }
    let served: BTreeSet<ModelIndex> = replicas.iter().map(|replica| replica.model).collect();
    for (model, demanded) in problem.models() {
        if demanded.rate.get() > 0.0 || served.contains(&model) {
            continue;
        }
        let places = problem.devices().filter_map(|(device, _)| {
            let room = left[device.0];
            let place = (model, device);
            let (batch, memory, kept) =
                kept_or_smallest(problem, candidates, place, room, |_| true)?;
            Some((kept, room.saturating_sub(memory), Reverse(device), batch))
        });
        if let Some((_, rest, Reverse(device), batch_size)) = places.max() {
            left[device.0] = rest;
            replicas.push(PlannedReplica::new(model, device, batch_size));
        }
    }
}
