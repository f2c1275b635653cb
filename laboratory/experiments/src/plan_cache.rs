//! A cache of the policies' plans.

use std::{
    sync::{Mutex, PoisonError},
    time::Instant,
};

use packhorse_cluster::{Plan, Problem};
use packhorse_placement::{Budget, PlanningOptions, policy};

/// The plans that policies have made, so that experiments with the same settings plan once.
#[derive(Default)]
pub(crate) struct PlanCache(Mutex<Vec<CachedPlan>>);

struct CachedPlan {
    policy: &'static str,
    problem: Problem,
    options: PlanningOptions,
    plan: Plan,
    solve_ms: f64,
}

impl PlanCache {
    /// Returns a policy's plan and the time of planning in milliseconds.
    #[expect(
        clippy::disallowed_methods,
        reason = "the time of planning is part of the result"
    )]
    pub(crate) fn plan(
        &self,
        name: &'static str,
        problem: Problem,
        options: PlanningOptions,
    ) -> anyhow::Result<(Plan, f64)> {
        let cached = || {
            let plans = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            let same = |cached: &&CachedPlan| {
                cached.policy == name && cached.problem == problem && cached.options == options
            };
            let cached = plans.iter().find(same)?;
            Some((cached.plan.clone(), cached.solve_ms))
        };
        if let Some(cached) = cached() {
            return Ok(cached);
        }
        let start = Instant::now();
        let plan = policy(name)?.place_with(&problem, &options, &mut Budget::unlimited())?;
        let solve_ms = start.elapsed().as_secs_f64() * 1e3;
        let entry = CachedPlan {
            policy: name,
            problem,
            options,
            plan: plan.clone(),
            solve_ms,
        };
        let mut plans = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        plans.push(entry);
        Ok((plan, solve_ms))
    }
}
