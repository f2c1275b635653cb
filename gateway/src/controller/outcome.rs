//! The outcomes of what runs beside the task.

use packhorse_control::{Receipt, Sample, Solution, SolveError, SolveKey, WriteError};

/// An outcome. There is at most one per effect that the task has asked for.
#[derive(Debug)]
pub(super) enum Outcome {
    /// A write was carried out, or could not be.
    Stored(Receipt, Result<(), WriteError>),
    /// A policy answered.
    Solved(SolveKey, Result<Solution, SolveError>),
    /// The data plane answered.
    Sampled(Sample),
}
