//! A cache of the policies' plans.

use std::sync::{Mutex, PoisonError};

use packhorse_cluster::{Plan, Problem};
use packhorse_placement::{Budget, PlaceError, PlanningOptions, policy};

use crate::cell_limit::CellLimit;

/// The plans that policies have made, so that experiments with the same settings plan once.
#[derive(Default)]
pub(crate) struct PlanCache(Mutex<Vec<CachedPlan>>);

struct CachedPlan {
    policy: &'static str,
    problem: Problem,
    options: PlanningOptions,
    /// The plan and the time of planning in milliseconds; `None` if it took too long.
    planned: Option<(Plan, f64)>,
    steps: Option<u64>,
}

impl PlanCache {
    /// Returns a policy's plan, found in at most `steps` steps, and the time of planning in milliseconds; `None` if it takes longer than the limit, or
    /// did so before.
    pub(crate) fn plan(
        &self,
        name: &'static str,
        problem: Problem,
        options: PlanningOptions,
        limit: CellLimit,
        steps: Option<u64>,
    ) -> anyhow::Result<Option<(Plan, f64)>> {
        let cached = || {
            let plans = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            let same = |cached: &&CachedPlan| {
                (cached.policy, cached.steps) == (name, steps)
                    && cached.problem == problem
                    && cached.options == options
            };
            plans.iter().find(same).map(|cached| cached.planned.clone())
        };
        if let Some(cached) = cached() {
            return Ok(cached);
        }
        let running = limit.start();
        let stop = || running.is_over();
        let budget = Budget::new(steps.unwrap_or(u64::MAX), &stop);
        let mut budget = match limit.duration() {
            Some(duration) => budget.with_time_limit(duration),
            None => budget,
        };
        let plan = policy(name)?.place_with(&problem, &options, &mut budget);
        let solve_ms = running.elapsed().as_secs_f64() * 1e3;
        let planned = match plan {
            // A plan that the limit has cut short would depend on the speed of the machine.
            _ if running.is_over() => None,
            Ok(plan) => Some((plan, solve_ms)),
            Err(PlaceError::Stopped) => None,
            Err(e) => return Err(e.into()),
        };
        let entry = CachedPlan {
            policy: name,
            problem,
            options,
            planned: planned.clone(),
            steps,
        };
        let mut plans = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        plans.push(entry);
        Ok(planned)
    }
}
