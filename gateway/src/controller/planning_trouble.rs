//! The troubles of planning: why there is no new plan, or why another policy than the configured one made it.

use std::{fmt, time::Duration};

use packhorse_cluster::Violation;
use packhorse_placement::{FALLBACK_POLICY, PlaceError};

/// The reason why planning gave no plan.
#[derive(Debug, PartialEq, thiserror::Error)]
pub enum PlanningError {
    /// The policy found no plan.
    #[error("policy {policy} found no plan: {error}")]
    NoPlan {
        /// The name of the policy.
        policy: &'static str,
        /// The policy's error.
        error: PlaceError,
    },
    /// The policy made a plan that is not valid.
    #[error("policy {policy} made a plan with {count} violations, the first: {first}")]
    Violations {
        /// The name of the policy.
        policy: &'static str,
        /// The number of violations.
        count: usize,
        /// The first violation.
        first: Violation,
    },
    /// The policy panicked.
    #[error("policy {policy} failed: {error}")]
    Panicked {
        /// The name of the policy.
        policy: &'static str,
        /// The message of the panic.
        error: String,
    },
}

/// The reason why the fallback policy made a plan in place of the requested one.
#[derive(Debug, PartialEq)]
pub(super) struct Fallback {
    /// The name of the requested policy.
    pub(super) policy: &'static str,
    /// The time that the requested policy had.
    pub(super) budget: Duration,
    /// The error of the requested policy.
    pub(super) error: PlaceError,
}

/// The trouble of the last attempt to plan.
#[derive(Debug, PartialEq)]
pub(super) enum PlanningTrouble {
    /// There is no new plan.
    Failed(PlanningError),
    /// The new plan was made by the fallback policy.
    Fallback(Fallback),
    /// The database could not store the new plan.
    NotStored,
}

impl fmt::Display for Fallback {
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

impl fmt::Display for PlanningTrouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Failed(error) => error.fmt(f),
            Self::Fallback(fallback) => fallback.fmt(f),
            Self::NotStored => write!(f, "the new plan cannot be stored"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_trouble_has_its_sentence() {
        let stopped = PlaceError::Stopped;
        let first = Violation::Dangling { replica: 3 };
        for (trouble, sentence) in [
            (
                PlanningTrouble::Failed(PlanningError::NoPlan {
                    policy: "usher",
                    error: stopped.clone(),
                }),
                format!("policy usher found no plan: {stopped}"),
            ),
            (
                PlanningTrouble::Failed(PlanningError::Violations {
                    policy: "usher",
                    count: 2,
                    first: first.clone(),
                }),
                format!("policy usher made a plan with 2 violations, the first: {first}"),
            ),
            (
                PlanningTrouble::Fallback(Fallback {
                    policy: "usher",
                    budget: Duration::from_secs(2),
                    error: stopped.clone(),
                }),
                format!(
                    "policy usher found no plan within 2000 ms ({stopped}), so policy first-fit made the plan"
                ),
            ),
            (
                PlanningTrouble::Failed(PlanningError::Panicked {
                    policy: "usher",
                    error: "task 7 panicked".to_owned(),
                }),
                "policy usher failed: task 7 panicked".to_owned(),
            ),
            (
                PlanningTrouble::NotStored,
                "the new plan cannot be stored".to_owned(),
            ),
        ] {
            assert_eq!(trouble.to_string(), sentence);
        }
    }
}
