//! The messages about the folder of models that `packhorse serve` registers.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The problems of the folder of models.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RepositoryProblems {
    /// The entries that are not registered as they are there, at most 100.
    pub problems: Vec<RepositoryProblem>,
}

/// An entry of the folder of models that is not registered as it is there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RepositoryProblem {
    /// The entry. Only its first 1000 characters are kept.
    pub place: String,
    /// The sentence that says what is wrong. Only its first 1000 characters are kept.
    pub problem: String,
}

impl RepositoryProblems {
    /// The largest number of problems.
    pub const MAX: usize = 100;
}
