//! The explanation of the current plan: what limits each model, and what would serve it. It reads the state, computes beside it and
//! changes nothing.

use std::time::Duration;

use packhorse_api::PlanView;
use packhorse_cluster::Violation;
use packhorse_cluster::{ModelForecast, Plan, RequestsPerSecond};
use tokio::{sync::OwnedSemaphorePermit, task::JoinError};

use super::{
    Busy, cluster::Cluster, plan_reason::PlanReasons, planning_input::PlanningInput,
    run_with_permit,
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
    #[error("the policy failed")]
    Failed(#[source] JoinError),
}

/// The input of an explanation.
pub(super) struct ExplanationInput {
    input: PlanningInput,
    plan: PlanView,
    budget: Duration,
}

impl Cluster {
    /// Returns the current plan, and the planning input that it is checked against.
    pub(super) fn explanation_input(&self) -> Result<ExplanationInput, ExplainError> {
        Ok(ExplanationInput {
            plan: self.plan_view().ok_or(ExplainError::NoPlan)?,
            input: self.planning_input(self.policy, PlanReasons::default()),
            budget: self.config.solve_budget,
        })
    }
}

impl ExplanationInput {
    /// Explains the plan on a thread of its own, within the time limit of planning.
    pub(super) async fn run(self, permit: OwnedSemaphorePermit) -> Result<PlanView, ExplainError> {
        let explained = run_with_permit(permit, || self.explain()).await;
        explained.map_err(ExplainError::Failed)?
    }

    fn explain(self) -> Result<PlanView, ExplainError> {
        let Self {
            mut input,
            mut plan,
            budget,
        } = self;
        let current = input.current_plan(&plan);
        if let Some(first) = current.violations(&input.problem).first() {
            return Err(ExplainError::Outdated(first.clone()));
        }
        input.explain = true;
        let mut explanations = input.explanations(input.policy, &current, budget);
        for model in &mut plan.models {
            model.explanation = explanations.remove(&model.id());
        }
        Ok(plan)
    }
}

impl PlanningInput {
    /// Returns the current replicas as a plan for the problem.
    fn current_plan(&mut self, view: &PlanView) -> Plan {
        self.problem.current = self.current_replicas();
        let mut replicas = self.problem.current.clone();
        replicas.sort_by_key(|replica| (replica.model, replica.device));
        let forecasts = self.problem.models.iter().map(|model| {
            let forecast = view
                .models
                .iter()
                .find(|forecast| forecast.id() == model.id);
            let goodput = forecast.map_or(0.0, |forecast| forecast.predicted_goodput_rps);
            ModelForecast {
                goodput: RequestsPerSecond::new(goodput).unwrap_or(RequestsPerSecond::ZERO),
                latency: None,
                shortfall: None,
            }
        });
        Plan {
            policy: self.policy.name,
            models: forecasts.collect(),
            replicas,
        }
    }
}
