//! The policies, called as the gateway calls them, but with a limit of steps in place of a limit of time.

use packhorse_cluster::{Mixed, Plan, Problem, VariantMix};
use packhorse_control::{PlanningInput, Solution, SolveError};
use packhorse_placement::Budget;

/// The number of steps that a policy may take.
const STEPS: u64 = 5_000_000;

/// Plans with the requested policy.
pub(crate) fn solve(input: &PlanningInput, solve_ms: f64) -> Result<Solution, SolveError> {
    let planned = input.place(|problem| plan(input, problem))?;
    Ok(solution(input, planned, solve_ms))
}

/// Plans with the requested policy, and then moves every replica to the device after the one that it would run on now, if all of them
/// fit there. Such a plan gains nothing and moves everything.
pub(crate) fn solve_elsewhere(
    input: &PlanningInput,
    solve_ms: f64,
) -> Result<Solution, SolveError> {
    let planned = plan(input, &input.problem)?;
    let mut moved = planned.clone();
    if !input.problem.current.is_empty() {
        moved.replicas.clone_from(&input.problem.current);
    }
    for replica in &mut moved.replicas {
        replica.device.0 = (replica.device.0 + 1) % input.problem.devices.len();
        let profile = input.problem.profile(replica.model, replica.device);
        replica.memory = profile.and_then(|profile| profile.memory(replica.batch_size));
    }
    let is_complete = |model| moved.replicas.iter().any(|r| r.model == model);
    let complete = input.problem.models().all(|(index, _)| is_complete(index));
    let plan = if complete && moved.violations(&input.problem).is_empty() {
        moved
    } else {
        planned
    };
    let mix = VariantMix::ACCURATE;
    Ok(solution(input, Mixed { mix, plan }, solve_ms))
}

fn solution(input: &PlanningInput, planned: Mixed<Plan>, solve_ms: f64) -> Solution {
    let Mixed { mix, plan } = planned;
    Solution {
        comparison: input.at(mix).compare(&plan, packhorse_placement::estimate),
        plan,
        mix,
        solve_ms,
        fallback: None,
    }
}

fn plan(input: &PlanningInput, problem: &Problem) -> Result<Plan, SolveError> {
    let no_plan = |error: String| SolveError::NoPlan {
        policy: input.policy.clone(),
        error,
    };
    let entry = packhorse_placement::policy(&input.policy).map_err(|e| no_plan(e.to_string()))?;
    let mut budget = Budget::new(STEPS, &|| false);
    let options = input.options.into();
    let plan = entry.place_with(problem, &options, &mut budget);
    plan.map_err(|e| no_plan(e.to_string()))
}
