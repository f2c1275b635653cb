//! Why a model is not fully served, and what it would take.
//!
//! What a plan comes to is judged by [`crate::estimate`], whichever policy made it: a policy that knows nothing of queueing may
//! expect more. (Duty cycles are not seen by the estimate, which lets replicas share a device at all times.) For a model that is
//! not served, [`bound`] says what it is bound by, and [`remedies`] what would serve it. Nothing is claimed that was not tried: a
//! remedy is a change of the problem for which the same policy, asked anew, makes a plan that serves the model.
//!
//! Deterministic; where everything is served, it costs one estimate. Else a model costs some dozens of plans, and the budget
//! bounds that: what was not looked at is said ([`Explanation::complete`]).

mod asker;
mod bound;
mod remedies;

use packhorse_cluster::{Bound, Explanation, Plan, Problem};

use crate::{
    Budget, PlaceError, PolicyEntry, PolicyOptions,
    estimate::{Outlook, World},
};
use asker::Asker;

/// A model is served if this part of its requests is in time; more than the estimate is good for is not asked.
const SERVED: f64 = 0.99;

/// Explains a plan that the policy made, one explanation per model of the problem, in its order. The plan must have no violations
/// ([`Plan::violations`]); a budget that ends makes explanations incomplete.
///
/// # Errors
/// If the problem is not valid.
pub fn explain(
    policy: &PolicyEntry,
    problem: &Problem,
    plan: &Plan,
    options: &PolicyOptions,
    budget: &mut Budget<'_>,
) -> Result<Vec<Explanation>, PlaceError> {
    problem.validate().map_err(PlaceError::Invalid)?;
    debug_assert_eq!(plan.violations(problem), []);
    let world = World::new(problem);
    let outlook = Outlook::of(&world, &plan.replicas);
    let served = fractions(&outlook);
    let mut asker = Asker::new(policy, options, budget);
    let is_short = |served: &f64| *served < SERVED;
    let roomy = if served.iter().any(is_short) {
        asker.fractions(&bound::with_more_memory(problem))
    } else {
        None
    };
    let mut explanations = Vec::with_capacity(served.len());
    for (model, &served_fraction) in served.iter().enumerate() {
        let short = is_short(&served_fraction);
        let mut remedies = Vec::new();
        let mut bound = Bound::Rate;
        if short {
            let with_memory = roomy.as_ref().map_or(0.0, |served| served[model]);
            bound = bound::bound(&outlook, model, with_memory >= SERVED, &mut asker);
            remedies = remedies::remedies(problem, plan, model, &mut asker);
        }
        explanations.push(Explanation {
            served_fraction,
            bound,
            remedies,
            complete: !short || asker.is_complete(),
        });
    }
    Ok(explanations)
}

/// By model: the part of its requests that is in time.
fn fractions(outlook: &Outlook<'_, '_>) -> Vec<f64> {
    let fraction = |(model, fate): (usize, &crate::estimate::Fate)| {
        let placed = outlook.slots().iter().any(|slot| slot.model == model);
        if placed && outlook.world.demands[model].rate <= 0.0 {
            1.0
        } else {
            fate.fraction
        }
    };
    outlook.fates().iter().enumerate().map(fraction).collect()
}
