//! The seam of the policies, and the table of them.

use packhorse_cluster::{Plan, Problem, ProblemError};

use crate::{Budget, exclusive, first_fit};

/// A placement policy.
pub trait Policy: Sync {
    /// Answers a problem that is valid ([`Problem::validate`]) with a plan that has no violations. The plan depends on the problem
    /// alone; the budget decides only whether there is one. What cannot be served is left out, and its forecast says why.
    fn place(&self, problem: &Problem, budget: &mut Budget<'_>) -> Result<Plan, PlaceError>;
}

/// Why there is no plan.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlaceError {
    /// The problem contradicts itself.
    #[error("this is no placement problem")]
    Invalid(#[source] ProblemError),
    /// The budget's steps are used up.
    #[error("no plan was found within the step limit")]
    OutOfSteps,
    /// The caller said stop.
    #[error("planning was stopped")]
    Stopped,
}

/// A policy as it is offered.
pub struct PolicyEntry {
    /// Its name in configuration and reports.
    pub name: &'static str,
    /// What it does, in a sentence.
    pub summary: &'static str,
    /// Where it comes from.
    pub source: &'static str,
    /// What it takes for granted.
    pub assumes: &'static str,
    policy: &'static dyn Policy,
}

impl PolicyEntry {
    /// Plans by this policy.
    ///
    /// # Errors
    /// If the problem is not valid, or the budget does not suffice.
    pub fn place(&self, problem: &Problem, budget: &mut Budget<'_>) -> Result<Plan, PlaceError> {
        problem.validate().map_err(PlaceError::Invalid)?;
        let plan = self.policy.place(problem, budget)?;
        debug_assert_eq!(plan.policy, self.name);
        debug_assert_eq!(plan.violations(problem), []);
        Ok(plan)
    }
}

/// All policies.
pub const POLICIES: &[PolicyEntry] = &[
    PolicyEntry {
        name: exclusive::NAME,
        summary: "A replica has its device to itself; first come, first served.",
        source: "the usual baseline: one model per device",
        assumes: "full batches, no waiting",
        policy: &exclusive::Exclusive,
    },
    PolicyEntry {
        name: first_fit::NAME,
        summary: "Packs models onto devices by memory and by time, first fit, and moves as little as it can.",
        source: "Johnson et al., \"Worst-case performance bounds for simple one-dimensional packing algorithms\", 1974, \
                 with two resources",
        assumes: "full batches when it matters; replicas of a device share its time without loss",
        policy: &first_fit::FirstFit,
    },
];

/// The policy that is used where nobody names one.
pub const DEFAULT_POLICY: &str = first_fit::NAME;

/// A name that no policy has.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown policy {given:?}: expected one of {}", POLICIES.iter().map(|entry| entry.name).collect::<Vec<_>>().join(", "))]
pub struct UnknownPolicy {
    given: String,
}

/// The policy of a name.
///
/// # Errors
/// If there is none; the message lists the names there are.
pub fn policy(name: &str) -> Result<&'static PolicyEntry, UnknownPolicy> {
    // What came from outside is quoted, but never at length.
    let unknown = || UnknownPolicy {
        given: name.chars().take(64).collect(),
    };
    POLICIES
        .iter()
        .find(|entry| entry.name == name)
        .ok_or_else(unknown)
}
