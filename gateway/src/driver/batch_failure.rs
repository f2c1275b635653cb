//! The reason why a batch failed.

use packhorse_wire::FailureKind;

use super::batch::AssembleError;

/// The reason why a batch failed, with its details.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BatchFailure {
    /// The inputs of the requests could not be put into one batch.
    #[error(transparent)]
    Assemble(#[from] AssembleError),
    /// The worker did not compute the batch. Its message is complete, except where time ran out.
    #[error("{}{message}", if *kind == FailureKind::TimedOut { "the model took too long: " } else { "" })]
    Worker {
        /// The kind of failure.
        kind: FailureKind,
        /// The worker's message.
        message: String,
    },
}
