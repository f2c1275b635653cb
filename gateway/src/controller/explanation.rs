//! The explanation of the current plan: what limits each model, and what would serve it. It reads the state, computes beside it and
//! changes nothing.

use std::{collections::BTreeMap, time::Duration};

use packhorse_api::PlanView;
use packhorse_cluster::{ModelForecast, ModelId, Plan, RequestsPerSecond, Violation};
use packhorse_control::{PlanReasons, PlanningInput};
use packhorse_placement::{DEFAULT_POLICY, PolicyEntry};
use tokio::sync::OwnedSemaphorePermit;

use super::{
    permits::{Busy, run_with_permit},
    solver::explanations,
    task::Task,
};

/// The reason why the current plan is not explained.
#[derive(Debug, thiserror::Error)]
pub enum ExplainError {
    /// There is no plan yet.
    #[error("no plan has been made yet")]
    NoPlan,
    /// The cluster has changed so that the plan is no longer valid, and there is no new one yet.
    #[error(
        "the current plan no longer fits the cluster, and the new one is not made yet ({0}); retry in a few seconds"
    )]
    Outdated(Violation),
    /// Too many previews and explanations run.
    #[error(transparent)]
    Busy(#[from] Busy),
    /// The policy panicked.
    #[error("the policy failed: {0}")]
    Failed(String),
}

/// The input of an explanation.
pub(super) struct ExplanationInput {
    input: PlanningInput,
    plan: PlanView,
}

impl Task {
    /// Returns the current plan, and the planning input that it is checked against.
    pub(super) fn explanation_input(&self) -> Result<ExplanationInput, ExplainError> {
        let policy = self.controller().policy().to_owned();
        Ok(ExplanationInput {
            plan: self.plan_view().ok_or(ExplainError::NoPlan)?,
            input: self
                .controller()
                .planning_input(policy, PlanReasons::default()),
        })
    }
}

impl ExplanationInput {
    /// Explains the plan on a thread of its own, within a time limit.
    pub(super) async fn run(
        self,
        permit: OwnedSemaphorePermit,
        budget: Duration,
    ) -> Result<PlanView, ExplainError> {
        let explained = run_with_permit(permit, move || self.explain(budget)).await;
        explained.map_err(ExplainError::Failed)?
    }

    /// Explains the plan within a time limit.
    pub(super) fn explain(self, budget: Duration) -> Result<PlanView, ExplainError> {
        let Self { input, mut plan } = self;
        let rates = plan.models.iter().filter_map(|forecast| {
            let rate = RequestsPerSecond::new(forecast.rate_rps).ok()?;
            Some((forecast.id(), rate))
        });
        let input = input.with_variant_rates(&rates.collect());
        let current = current_plan(&input, &plan);
        if let Some(first) = current.violations(&input.problem).first() {
            return Err(ExplainError::Outdated(first.clone()));
        }
        let ids = input.problem.models.iter().map(|model| model.id.clone());
        let mut explained: BTreeMap<ModelId, _> =
            ids.zip(explanations(&input, &current, budget)).collect();
        for model in &mut plan.models {
            model.explanation = explained.remove(&model.id());
        }
        Ok(plan)
    }
}

/// Returns the current replicas as a plan for the problem.
fn current_plan(input: &PlanningInput, view: &PlanView) -> Plan {
    let mut replicas = input.problem.current.clone();
    replicas.sort_by_key(|replica| (replica.model, replica.device));
    let goodput: BTreeMap<ModelId, f64> = view
        .models
        .iter()
        .map(|forecast| (forecast.id(), forecast.predicted_goodput_rps))
        .collect();
    let forecasts = input.problem.models.iter().map(|model| {
        let goodput = goodput.get(&model.id).copied().unwrap_or_default();
        ModelForecast {
            goodput: RequestsPerSecond::new(goodput).unwrap_or(RequestsPerSecond::ZERO),
            latency: None,
            shortfall: None,
        }
    });
    let default = || packhorse_placement::policy(DEFAULT_POLICY);
    let entry = packhorse_placement::policy(&input.policy).or_else(|_| default());
    Plan {
        policy: entry.map_or(DEFAULT_POLICY, |entry: &'static PolicyEntry| entry.name),
        models: forecasts.collect(),
        replicas,
    }
}
