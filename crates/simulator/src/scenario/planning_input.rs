//! The input of a policy that a scenario gives, as a gateway makes it of its state.

use std::collections::BTreeMap;

use packhorse_cluster::{Discipline, ModelId, PolicyOptions, Problem, RequestsPerSecond};
use packhorse_control::{PlanReason, PlanReasons, PlanningInput};

use super::Scenario;

impl Scenario {
    /// Returns the input of a policy at the start of the run, as the control plane of a gateway makes it of its state.
    pub fn planning_input(
        &self,
        policy: String,
        options: PolicyOptions,
        discipline: Discipline,
    ) -> PlanningInput {
        let problem = Problem {
            discipline,
            ..self.problem_at_start()
        };
        let context = &self.context;
        let models = problem.models.iter();
        let mut rates: BTreeMap<ModelId, RequestsPerSecond> =
            models.map(|model| (model.id.clone(), model.rate)).collect();
        rates.extend(context.whole_rates.clone());
        let devices = context.devices.iter().take(problem.devices.len());
        PlanningInput {
            policy,
            options,
            reasons: PlanReasons::from(PlanReason::Preview),
            devices: devices.cloned().collect(),
            kinds: context.kinds.clone(),
            rates,
            families: context.families.clone(),
            backbones: context.backbones.clone(),
            pinned: context.pinned.clone(),
            retained: context.retained.clone(),
            problem,
        }
    }
}
