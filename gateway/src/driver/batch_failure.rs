//! The reason why a batch failed.

use packhorse_wire::FailureKind;

use super::batch::{AssembleError, SplitError};

/// The reason why a batch failed, with its details.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BatchFailure {
    /// The inputs of the requests could not be put into one batch.
    #[error(transparent)]
    Assemble(#[from] AssembleError),
    /// The outputs could not be split into the rows of the requests.
    #[error(transparent)]
    Split(#[from] SplitError),
    /// The worker did not compute the batch. Its message is complete, except where time ran out.
    #[error("{}{message}", if *kind == FailureKind::TimedOut { "the model took too long: " } else { "" })]
    Worker {
        /// The kind of failure.
        kind: FailureKind,
        /// The worker's message.
        message: String,
    },
}
