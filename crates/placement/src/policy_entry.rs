//! A policy as callers have it: with its name, and with what every plan keeps whoever made it.

use packhorse_cluster::{BatchStep, Plan, Problem};

use crate::{
    Budget, PlaceError, PlanningOptions, Policy, Predictor, batch_step,
    claims::Claims,
    min_replicas,
    pool::{self, PoolUse},
};

/// A policy with its name and description.
pub struct PolicyEntry {
    /// The name in configuration and reports.
    pub name: &'static str,
    /// A sentence on how the policy plans.
    pub summary: &'static str,
    /// The source of the policy.
    pub source: &'static str,
    /// The assumptions of the policy.
    pub assumes: &'static str,
    pub(crate) policy: &'static dyn Policy,
}

impl PolicyEntry {
    /// Plans with default options.
    ///
    /// # Errors
    /// If the problem is not valid, or the budget does not suffice.
    pub fn place(&self, problem: &Problem, budget: &mut Budget<'_>) -> Result<Plan, PlaceError> {
        self.place_with(problem, &PlanningOptions::default(), budget)
    }

    /// Plans with the given options. Where models are many and no device has room for two at a time, all are members of the devices' pools, whatever the
    /// policy, and so they are where some would have no device otherwise. Else the plan keeps what models are measured to need, as far as such a plan is found, and models get the least number
    /// of replicas that they ask for, where memory is left.
    ///
    /// # Errors
    /// If the problem is not valid, or the budget does not suffice.
    pub fn place_with(
        &self,
        problem: &Problem,
        options: &PlanningOptions,
        budget: &mut Budget<'_>,
    ) -> Result<Plan, PlaceError> {
        problem.validate().map_err(PlaceError::Invalid)?;
        let pools = pool::use_of_pools(problem);
        if pools == PoolUse::All {
            return pool::place(self.name, problem, budget);
        }
        let mut place = |problem: &Problem| self.place_once(problem, options, budget);
        let mut plan = match Claims::new(problem) {
            Some(claims) => claims.place(place)?,
            None => place(problem)?,
        };
        let alone = !self.policy.shares_devices();
        if min_replicas::add(problem, alone, &mut plan.replicas)
            && let Some(forecasts) = self.policy.forecasts(problem, &plan.replicas)
        {
            plan.models = forecasts;
        }
        for replica in &mut plan.replicas {
            let profile = problem.profile(replica.model, replica.device);
            replica.memory = profile.and_then(|profile| profile.memory(replica.batch_size));
        }
        let placed = plan.placed_models();
        if pools == PoolUse::Spare && placed < problem.models.len() {
            let pooled = pool::place(self.name, problem, budget)?;
            if pooled.placed_models() > placed {
                return Ok(pooled);
            }
        }
        debug_assert_eq!(plan.policy, self.name);
        debug_assert_eq!(plan.violations(problem), []);
        Ok(plan)
    }

    /// Plans for the rates of the problem, whatever models keep by it.
    pub(crate) fn place_once(
        &self,
        problem: &Problem,
        options: &PlanningOptions,
        budget: &mut Budget<'_>,
    ) -> Result<Plan, PlaceError> {
        let mut plan = self.policy.place(problem, options, budget)?;
        if options.policy.batch_step == BatchStep::Bda {
            batch_step::decide_batches(problem, options, &mut plan);
            if let Some(forecasts) = self.policy.forecasts(problem, &plan.replicas) {
                plan.models = forecasts;
            }
        }
        Ok(plan)
    }

    /// Returns the policy's own model of batch times, if it has one.
    pub fn predictor(&self) -> Option<&'static dyn Predictor> {
        self.policy.predictor()
    }
}
