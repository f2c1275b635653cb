//! The outcomes of what runs beside the task.

use std::collections::BTreeMap;

use packhorse_cluster::{DeviceKind, ModelId, Remedy};
use packhorse_control::{Receipt, Sample, Solution, SolveError, SolveKey, WriteError};

use super::sizing::SizingError;

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
    Cured(BTreeMap<ModelId, Vec<Remedy>>),
    /// The search for the smallest cluster ended.
    Sized(Result<BTreeMap<DeviceKind, usize>, SizingError>),
}
