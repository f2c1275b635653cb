//! The events that a link reports to its owner.

use bytes::Bytes;
use packhorse_wire::{FailureHeader, ResultHeader, WeightsReport};

use super::outgoing::BatchSender;

/// An event on a link.
#[derive(Debug)]
pub(crate) enum LinkEvent {
    /// The worker takes batches through this sender. With a report on its weights, this gateway decides when they are on the device.
    Up(BatchSender, Option<WeightsReport>),
    /// The worker computed a batch. The bytes are those of each output.
    BatchComputed(ResultHeader, Vec<Bytes>),
    /// The worker could not compute a batch.
    BatchFailed(FailureHeader),
    /// The place of the weights has changed, or the memory for them, or an order was carried out.
    Weights(WeightsReport),
    /// The worker takes no more batches, but answers those that it has.
    Draining,
    /// The connection could not be made, or was lost, for this reason. Batches that were not answered are void.
    Down(String),
}
