//! The size of the smallest cluster for the measured rates.

use std::{collections::BTreeMap, time::Duration};

use packhorse_cluster::{DeviceKind, ModelId, Problem};
use packhorse_control::PlanningInput;
use packhorse_placement::{
    Budget, PlanningOptions, SmallestCluster, SmallestClusterError, UnknownPolicy, policy,
    smallest_cluster,
};

/// The time limit of a search. It has a thread of its own, and there is one at a time.
const BUDGET: Duration = Duration::from_secs(5);
/// The number of devices beyond twice the present ones up to which a search goes.
const HEADROOM: usize = 16;
/// The largest number of devices that a search tries.
const MAX_DEVICES: usize = 4096;

/// The reason why the smallest cluster is not known.
#[derive(Debug, thiserror::Error)]
pub(super) enum SizingError {
    #[error(transparent)]
    Policy(#[from] UnknownPolicy),
    #[error(transparent)]
    Search(#[from] SmallestClusterError),
    #[error("the search panicked: {0}")]
    Panicked(String),
}

/// Returns the number of devices of each kind of the smallest cluster on which the input's policy serves all models at their rates.
/// Models that no cluster serves are left out, and so are models without requests.
#[expect(
    clippy::disallowed_methods,
    reason = "policies read no clock; their caller limits their time"
)]
pub(super) fn devices_needed(
    input: &PlanningInput,
) -> Result<BTreeMap<DeviceKind, usize>, SizingError> {
    let start = std::time::Instant::now();
    let late = || start.elapsed() > BUDGET;
    let entry = policy(&input.policy)?;
    let mut problem = input.problem.clone();
    problem.current.clear();
    problem.models.retain(|model| model.rate.get() > 0.0);
    // In the input a device on which models did not start is of a kind of its own; a new one would not be.
    for (device, id) in problem.devices.iter_mut().zip(&input.devices) {
        if let Some(kind) = input.kinds.get(id) {
            device.kind = kind.clone();
        }
    }
    let limit = (2 * problem.devices.len() + HEADROOM).min(MAX_DEVICES);
    let options = PlanningOptions::from(input.options);
    let mut budget = Budget::new(u64::MAX, &late).with_time_limit(BUDGET);
    let mut search = |problem: &Problem| {
        smallest_cluster(entry, problem, limit, &options, &mut budget, &mut |_| {})
    };
    let found = match search(&problem) {
        Err(SmallestClusterError::Unserved { models, .. }) => {
            let unserved = |id: &ModelId| models.iter().any(|(model, _)| model == id);
            problem.models.retain(|model| !unserved(&model.id));
            search(&problem)?
        }
        found => found?,
    };
    Ok(count(&found))
}

fn count(cluster: &SmallestCluster) -> BTreeMap<DeviceKind, usize> {
    let mut counts = BTreeMap::new();
    for device in &cluster.problem.devices {
        *counts.entry(device.kind.clone()).or_default() += 1;
    }
    counts
}
