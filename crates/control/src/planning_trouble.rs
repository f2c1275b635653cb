//! The troubles of planning: why there is no new plan, or why another policy than the configured one made it.

use std::fmt;

use packhorse_cluster::Violation;

use crate::event::SolveError;

/// The reason why planning gave no plan.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum PlanningError {
    /// The policy made no plan.
    #[error(transparent)]
    NotSolved(#[from] SolveError),
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
}

/// The trouble of the last attempt to plan.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum PlanningTrouble {
    /// There is no new plan.
    Failed(PlanningError),
    /// The new plan was made by the fallback policy; with the reason, as text for people.
    Fallback(String),
    /// The database could not store the new plan.
    NotStored,
}

impl fmt::Display for PlanningTrouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Failed(error) => error.fmt(f),
            Self::Fallback(reason) => f.write_str(reason),
            Self::NotStored => write!(f, "the new plan cannot be stored"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_trouble_has_its_sentence() {
        let solve = SolveError::NoPlan {
            policy: "usher".to_owned(),
            error: "no memory".to_owned(),
        };
        let panicked = SolveError::Panicked {
            policy: "usher".to_owned(),
            error: "overflow".to_owned(),
        };
        let violations = PlanningError::Violations {
            policy: "usher",
            count: 2,
            first: Violation::Dangling { replica: 3 },
        };
        for (trouble, sentence) in [
            (
                PlanningTrouble::Failed(solve.into()),
                "policy usher found no plan: no memory",
            ),
            (
                PlanningTrouble::Failed(panicked.into()),
                "policy usher failed: overflow",
            ),
            (
                PlanningTrouble::Failed(violations),
                "policy usher made a plan with 2 violations, the first: \
                 replica 3 names a model or device that does not exist",
            ),
            (PlanningTrouble::Fallback("late".to_owned()), "late"),
            (PlanningTrouble::NotStored, "the new plan cannot be stored"),
        ] {
            assert_eq!(trouble.to_string(), sentence);
        }
    }
}
