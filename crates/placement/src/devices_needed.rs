//! The number of devices of each kind that a cluster needs, for those who add and remove devices.

use std::collections::BTreeMap;

use packhorse_cluster::{DeviceKind, ModelId, Problem};

use crate::{
    Budget, PlanningOptions, PolicyEntry, SmallestClusterError,
    smallest_cluster::smallest_cluster_near,
};

/// The number of devices beyond twice the present ones up to which the search goes.
const HEADROOM: usize = 16;
/// The largest number of devices that the search tries.
const MAX_DEVICES: usize = 4096;
/// The steps of a trial, per model and device of the problem. With them `goodput` needs at most a device more than with ten times as many.
const STEPS: u64 = 1_000;

/// Returns the number of devices of each kind of the smallest cluster on which the policy serves the problem's models at their rates.
/// The cluster has the kinds of the problem's devices. Models that no cluster serves are left out.
///
/// The search begins with the cluster `near`, the last result, because rates change little between two searches. Its result can give up
/// no device; [`smallest_cluster`](crate::smallest_cluster()), which tries every cheaper cluster, takes many times as long.
///
/// # Errors
/// If the problem has no device, the policy fails, or the budget does not suffice.
pub fn devices_needed(
    policy: &PolicyEntry,
    problem: &Problem,
    near: &BTreeMap<DeviceKind, usize>,
    options: &PlanningOptions,
    budget: &mut Budget<'_>,
) -> Result<BTreeMap<DeviceKind, usize>, SmallestClusterError> {
    let (models, devices) = (problem.models.len(), problem.devices.len());
    let limit = (2 * devices + HEADROOM).min(MAX_DEVICES);
    let steps = STEPS * (models + devices) as u64;
    let mut search = |problem: &Problem| {
        smallest_cluster_near(policy, problem, near, limit, steps, options, budget)
    };
    let cluster = match search(problem) {
        Err(SmallestClusterError::Unserved { models, .. }) => {
            let unserved = |id: &ModelId| models.iter().any(|(model, _)| model == id);
            let mut served = problem.clone();
            served.models.retain(|model| !unserved(&model.id));
            search(&served)?
        }
        found => found?,
    };
    let mut counts = BTreeMap::new();
    for device in &cluster.problem.devices {
        *counts.entry(device.kind.clone()).or_default() += 1;
    }
    Ok(counts)
}
