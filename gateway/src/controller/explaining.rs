//! Why the plan in force serves each model as far as it does, and what would serve it. Looks at the state, thinks beside it,
//! changes nothing.

use std::time::Duration;

use packhorse_api::PlanView;
use packhorse_cluster::{ModelForecast, Plan, RequestsPerSecond};
use tokio::sync::OwnedSemaphorePermit;

use super::{Busy, cluster::Cluster, question::Question};

/// Why the plan in force is not explained.
#[derive(Debug, thiserror::Error)]
pub enum ExplainError {
    /// There is no plan.
    #[error("no plan has been made yet")]
    NoPlan,
    /// Something has changed that makes a new plan necessary, which is not there yet.
    #[error(
        "the plan in force does not fit the cluster any more, and a new one is not there yet: {0}"
    )]
    Outdated(String),
    /// Too much is being thought about.
    #[error(transparent)]
    Busy(#[from] Busy),
    /// It could not be thought through.
    #[error("the policy failed: {0}")]
    Failed(String),
}

/// What is to be explained.
pub(super) struct Explaining {
    question: Question,
    plan: PlanView,
    budget: Duration,
}

impl Cluster {
    /// The plan in force, with the question that it is judged by: what would be asked now.
    pub(super) fn explaining(&self) -> Result<Explaining, ExplainError> {
        Ok(Explaining {
            plan: self.plan_view().ok_or(ExplainError::NoPlan)?,
            question: self.question(self.policy, String::new()),
            budget: self.config.solve_budget,
        })
    }
}

impl Explaining {
    /// Thinks, on a thread of its own and within the time that planning may take.
    pub(super) async fn answer(
        self,
        place: OwnedSemaphorePermit,
    ) -> Result<PlanView, ExplainError> {
        let thought = tokio::task::spawn_blocking(move || {
            // Kept until the thought has ended, whether or not somebody waits for it still.
            let _place = place;
            self.explained()
        });
        let explained = thought.await;
        explained.map_err(|e| ExplainError::Failed(e.to_string()))?
    }

    fn explained(self) -> Result<PlanView, ExplainError> {
        let Self {
            mut question,
            mut plan,
            budget,
        } = self;
        let in_force = question.in_force(&plan);
        if let Some(first) = in_force.violations(&question.problem).first() {
            return Err(ExplainError::Outdated(first.to_string()));
        }
        question.explain = true;
        let mut explanations = question.explanations(question.policy, &in_force, budget);
        for model in &mut plan.models {
            model.explanation = explanations.remove(&model.id());
        }
        Ok(plan)
    }
}

impl Question {
    /// What runs now as a plan for the question's problem.
    fn in_force(&mut self, view: &PlanView) -> Plan {
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
                shortfall: forecast.and_then(|forecast| forecast.shortfall.clone()),
            }
        });
        Plan {
            policy: self.policy.name,
            models: forecasts.collect(),
            replicas,
        }
    }
}
