//! Replicas for surges: on devices that the expected rates leave free, models get replicas with which they serve more than expected. A rate
//! is a mean, and the first minute of a day can have 1.6 times as many requests; a device without a replica serves none of them.
//!
//! The search continues from its placement with the fraction in time at twice each model's rate in the score. It does so only where the devices are idle for
//! a part of the time that is larger than the error of the estimate: a replica more on a busy device slows those beside it more than it helps.

use packhorse_cluster::{Objective, PlannedReplica, Problem};

use super::{
    idle_models, improve, planned_replicas, rare_models, score::Score, search::Search,
    search_limits::SearchLimits,
};
use crate::{
    Budget,
    candidates::Candidates,
    estimate::{EstimateInputs, PlacementEstimate},
};

/// The mean utilisation of the devices up to which they have room for surges.
const MAX_UTILIZATION: f64 = 0.75;

/// Adds replicas for surges to the placement of a search whose objective is the sum. The placement stays as it is if devices have no room, or a model that expects
/// few requests or none would lose its replica to those for surges.
pub(super) fn prepare_for_surges<'w, 'a>(
    search: &mut Search<'_, 'w, 'a>,
    inputs: &'w EstimateInputs<'a>,
    candidates: &Candidates<'a>,
    limits: SearchLimits,
    budget: &mut Budget<'_>,
) {
    if !search.serves_all() || search.utilization() > MAX_UTILIZATION {
        return;
    }
    let score = Score::new(inputs, Objective::Goodput).with_surge();
    let mut surging = Search::new(inputs, candidates, &score);
    surging.move_to(search.current());
    // If the budget ends here, the placement is the best so far.
    surging.fill_all(budget).ok();
    improve(&mut surging, limits, budget);
    let problem = inputs.problem;
    let placed = |search: &Search<'_, '_, '_>| models_placed(problem, candidates, inputs, search);
    if placed(&surging) >= placed(search) {
        search.move_to(surging.current());
    }
}

/// Returns the number of models with a replica once those that expect few requests, or none, have theirs.
fn models_placed<'a>(
    problem: &'a Problem,
    candidates: &Candidates<'a>,
    inputs: &EstimateInputs<'a>,
    search: &Search<'_, '_, '_>,
) -> usize {
    let mut replicas: Vec<PlannedReplica> = planned_replicas(search.current());
    let mut estimates = PlacementEstimate::from_replicas(inputs, &replicas)
        .models()
        .to_vec();
    rare_models::place_rare_models(problem, candidates, &mut replicas, &mut estimates);
    idle_models::place_idle_models(problem, candidates, &mut replicas);
    let mut models: Vec<_> = replicas.iter().map(|replica| replica.model).collect();
    models.sort_unstable();
    models.dedup();
    models.len()
}
