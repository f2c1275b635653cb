//! The reasons why models are not fully served, and the changes that would serve them.
//!
//! [`crate::estimate()`] evaluates the plan, whichever policy made it: a policy without a queueing model may forecast more. (The
//! estimate ignores duty cycles and lets replicas share a device at all times.) Of a plan with pools its own forecast counts. For a model that is not served, [`find_bound`] finds the
//! constraint that binds it, and [`remedies`] the changes that would serve it. Each remedy has been tried: it is a change of the problem for
//! which the same policy makes a plan that serves the model.
//!
//! The explanation is deterministic. If everything is served, it takes one estimate. Otherwise each model that is not takes some dozens
//! of plans, within the budget; [`Explanation::complete`] is false if the budget ended first.

mod find_bound;
mod remedies;
mod replanner;
mod served;

use packhorse_cluster::{Bound, Explanation, Plan, Problem};

use crate::{
    Budget, PlaceError, PlanningOptions, PolicyEntry,
    estimate::{EstimateInputs, PlacementEstimate},
};
use remedies::{ChangeKind, find_remedies};
use replanner::Replanner;
use served::{SERVED, pooled_fractions, served_fractions};

/// Explains a plan that the policy made, one explanation per model of the problem, in its order. The plan must have no violations
/// ([`Plan::violations`]); a budget that ends makes explanations incomplete.
///
/// # Errors
/// If the problem is not valid.
pub fn explain(
    policy: &PolicyEntry,
    problem: &Problem,
    plan: &Plan,
    options: &PlanningOptions,
    budget: &mut Budget<'_>,
) -> Result<Vec<Explanation>, PlaceError> {
    problem.validate().map_err(PlaceError::Invalid)?;
    debug_assert_eq!(plan.violations(problem), []);
    let inputs = EstimateInputs::new(problem);
    let estimate = PlacementEstimate::from_replicas(&inputs, &plan.replicas);
    let pooled = pooled_fractions(problem, plan);
    let is_pooled = pooled.is_some();
    let served = pooled.unwrap_or_else(|| served_fractions(&estimate));
    let mut replanner = Replanner::new(policy, options, budget);
    let is_unserved = |served: &f64| *served < SERVED;
    let served_with_memory = if served.iter().any(is_unserved) {
        replanner.served_fractions(&find_bound::with_ample_memory(problem))
    } else {
        None
    };
    // A plan that was made for other rates, or is kept because another one is not worth its cost, may be all that a model lacks.
    let served_anew = if served.iter().any(is_unserved) {
        replanner.served_fractions(problem)
    } else {
        None
    };
    let mut explanations: Vec<Explanation> = Vec::with_capacity(served.len());
    let mut to_remedy = Vec::new();
    for (model, &served_fraction) in served.iter().enumerate() {
        let is_unserved = is_unserved(&served_fraction);
        let mut bound = Bound::Rate;
        if is_unserved {
            let with_memory = served_with_memory
                .as_ref()
                .map_or(0.0, |served| served[model]);
            let is_memory = with_memory >= SERVED;
            let is_placed = plan.replicas.iter().any(|replica| replica.model.0 == model);
            bound = if is_pooled && is_placed {
                Bound::DeviceTime
            } else {
                find_bound::find_bound(&estimate, model, is_memory, &mut replanner)
            };
            let is_served_anew = served_anew
                .as_ref()
                .is_some_and(|anew| anew[model] >= SERVED);
            if !is_served_anew {
                to_remedy.push(model);
            }
        }
        explanations.push(Explanation {
            served_fraction,
            bound,
            remedies: Vec::new(),
            complete: !is_unserved || replanner.is_complete(),
        });
    }
    // Few plans say all about a model that is below its latency floor.
    let floor = |explanation: &Explanation| match explanation.bound {
        Bound::LatencyFloor { floor, .. } => Some(floor),
        _ => None,
    };
    to_remedy.sort_by_key(|model| floor(&explanations[*model]).is_none());
    // Where the budget does not suffice for all kinds of changes, no model goes without the first ones because of another.
    for kind in ChangeKind::ALL {
        for &model in &to_remedy {
            let explanation = &mut explanations[model];
            let floor = floor(explanation);
            if floor.is_some() && !kind.may_help_below_floor() {
                continue;
            }
            let found = find_remedies(kind, problem, plan, model, floor, &mut replanner);
            explanation.remedies.extend(found);
            explanation.complete = replanner.is_complete();
        }
    }
    Ok(explanations)
}
