//! The outcomes of what runs beside the task.

use std::collections::BTreeMap;

use packhorse_api::PlanView;
use packhorse_cluster::DeviceKind;
use packhorse_control::{Receipt, Sample, Solution, SolveError, SolveKey, WriteError};

use super::{explanation::ExplainError, sizing::SizingError};

/// An outcome. There is at most one per effect that the task has asked for, and one search at a time.
#[derive(Debug)]
pub(super) enum Outcome {
    /// A write was carried out, or could not be.
    Stored(Receipt, Result<(), WriteError>),
    /// A policy answered.
    Solved(SolveKey, Result<Solution, SolveError>),
    /// The data plane answered.
    Sampled(Sample),
    /// The search for the cures of models that the plan does not serve ended.
    Explained(Result<PlanView, ExplainError>),
    /// The search for the smallest cluster ended.
    Sized(Result<BTreeMap<DeviceKind, usize>, SizingError>),
}
