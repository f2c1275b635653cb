//! The calls of placement policies, on threads of their own.

use std::{fmt, time::Duration};

use packhorse_cluster::{Explanation, Mixed, Plan, Problem};
use packhorse_control::{DraftPlan, PlanningError, PlanningInput, Solution, SolveError};
use packhorse_placement::{Budget, FALLBACK_POLICY, PlaceError};

/// The reason why the fallback policy made a plan in place of the requested one.
#[derive(Debug, PartialEq)]
struct Fallback<'a> {
    /// The name of the requested policy.
    policy: &'a str,
    /// The time that the requested policy had.
    budget: Duration,
    /// The error of the requested policy.
    error: PlaceError,
}

impl fmt::Display for Fallback<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            policy,
            budget,
            error,
        } = self;
        let budget = budget.as_millis();
        write!(
            f,
            "policy {policy} found no plan within {budget} ms ({error}), so policy {FALLBACK_POLICY} made the plan"
        )
    }
}

/// A plan that is not adopted, with its input.
pub(super) struct Preview {
    /// The input, at the mix of variants of the plan.
    pub(super) input: PlanningInput,
    /// The answer of the policy.
    pub(super) solution: Solution,
    /// The plan, with names.
    pub(super) draft: DraftPlan,
}

/// Plans as [`solve`] does, and names what is planned.
pub(super) fn preview(input: &PlanningInput, budget: Duration) -> Result<Preview, PlanningError> {
    let solution = solve(input, budget)?;
    let input = input.at(solution.mix);
    let draft = input.draft(Ok(&solution))?;
    Ok(Preview {
        input,
        solution,
        draft,
    })
}

/// Plans with the requested policy, and with the fallback policy if that one finds no plan in time. The fallback has the same time
/// again. With families several plans are made ([`PlanningInput::place`]), and each has this time.
#[expect(
    clippy::disallowed_methods,
    reason = "policies read no clock; their caller limits their time"
)]
pub(super) fn solve(input: &PlanningInput, budget: Duration) -> Result<Solution, SolveError> {
    let start = std::time::Instant::now();
    let place = |name: &str, problem: &Problem, limit: Duration| {
        let begin = std::time::Instant::now();
        let late = || begin.elapsed() > limit;
        let entry =
            packhorse_placement::policy(name).map_err(|e| PlaceError::Solver(e.to_string()))?;
        entry.place_with(
            problem,
            &input.options.into(),
            &mut Budget::new(u64::MAX, &late).with_time_limit(limit),
        )
    };
    let place = |name: &str, problem: &Problem| place(name, problem, budget);
    let policy = input.policy.as_str();
    let planned = input.place_or_fall_back(FALLBACK_POLICY, place);
    let (Mixed { mix, plan }, failure) = planned.map_err(|error| SolveError::NoPlan {
        policy: policy.to_owned(),
        error: error.to_string(),
    })?;
    let fallback = failure.map(|error| {
        let fallback = Fallback {
            policy,
            budget,
            error,
        };
        fallback.to_string()
    });
    Ok(Solution {
        comparison: input.at(mix).compare(&plan, packhorse_placement::estimate),
        plan,
        mix,
        solve_ms: start.elapsed().as_secs_f64() * 1e3,
        fallback,
    })
}

/// Explains what limits each model in a plan and which changes would make the policy serve it, as far as the explanations are found
/// within the budget.
#[expect(
    clippy::disallowed_methods,
    reason = "policies read no clock; their caller limits their time"
)]
pub(super) fn explanations(
    input: &PlanningInput,
    plan: &Plan,
    budget: Duration,
) -> Vec<Explanation> {
    let start = std::time::Instant::now();
    let late = || start.elapsed() > budget;
    let Ok(entry) = packhorse_placement::policy(plan.policy) else {
        return Vec::new();
    };
    input.of_models(plan, |problem, plan| {
        packhorse_placement::explain(
            entry,
            problem,
            plan,
            &input.options.into(),
            &mut Budget::new(u64::MAX, &late).with_time_limit(budget),
        )
        .unwrap_or_default()
    })
}
