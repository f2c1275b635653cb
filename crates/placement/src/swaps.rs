//! What a plan costs to carry out.

use std::collections::BTreeSet;

use packhorse_cluster::{Plan, Problem};

/// How many models have to be loaded somewhere where they do not run now: replicas of the plan on a device that has none of
/// their model in [`Problem::current`].
pub fn swaps(problem: &Problem, plan: &Plan) -> usize {
    let current: BTreeSet<_> = problem
        .current
        .iter()
        .map(|replica| (replica.model, replica.device))
        .collect();
    plan.replicas
        .iter()
        .filter(|replica| !current.contains(&(replica.model, replica.device)))
        .count()
}
