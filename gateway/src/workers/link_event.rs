//! The events that a link reports to its owner.

use bytes::Bytes;
use packhorse_wire::{FailureHeader, ResultHeader};

use super::outgoing::BatchSender;

/// An event on a link.
#[derive(Debug)]
pub(crate) enum LinkEvent {
    /// The worker takes batches through this sender.
    Up(BatchSender),
    /// The worker computed a batch. The bytes are those of each output.
    BatchComputed(ResultHeader, Vec<Bytes>),
    /// The worker could not compute a batch.
    BatchFailed(FailureHeader),
    /// The worker takes no more batches, but answers those that it has.
    Draining,
    /// The connection could not be made, or was lost, for this reason. Batches that were not answered are void.
    Down(String),
}
