//! The search for the smallest cluster, within a time limit.

use std::{collections::BTreeMap, time::Duration};

use packhorse_cluster::{DeviceKind, PolicyOptions, Problem};
use packhorse_placement::{Budget, PlanningOptions, SmallestClusterError, UnknownPolicy, policy};

/// The time limit of a search. It has a thread of its own, and there is one at a time.
const BUDGET: Duration = Duration::from_secs(5);

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

/// A search for the smallest cluster.
pub(super) struct Sizing {
    pub(super) policy: String,
    pub(super) options: PolicyOptions,
    pub(super) problem: Problem,
    /// The cluster that was found last.
    pub(super) last: BTreeMap<DeviceKind, usize>,
}

impl Sizing {
    /// Returns the number of devices of each kind of the smallest cluster on which the policy serves all models at their rates.
    #[expect(
        clippy::disallowed_methods,
        reason = "policies read no clock; their caller limits their time"
    )]
    pub(super) fn devices_needed(&self) -> Result<BTreeMap<DeviceKind, usize>, SizingError> {
        let start = std::time::Instant::now();
        let late = || start.elapsed() > BUDGET;
        let mut budget = Budget::new(u64::MAX, &late).with_time_limit(BUDGET);
        let entry = policy(&self.policy)?;
        let options = PlanningOptions::from(self.options);
        let found = packhorse_placement::devices_needed(
            entry,
            &self.problem,
            &self.last,
            &options,
            &mut budget,
        );
        Ok(found?)
    }
}
