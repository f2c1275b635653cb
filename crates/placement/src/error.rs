//! The error of a policy.

use packhorse_cluster::ProblemError;

/// The reason why a policy makes no plan.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlaceError {
    /// The problem contradicts itself.
    #[error("the placement problem is not valid")]
    Invalid(#[source] ProblemError),
    /// The steps of the budget are used up.
    #[error("no plan was found within the step limit")]
    OutOfSteps,
    /// The solver of a policy failed.
    #[error("the solver failed: {0}")]
    Solver(String),
    /// The caller stopped the policy.
    #[error("planning was stopped")]
    Stopped,
}
