//! The interface between a link and its owner: batches to the worker, events from it.

use bytes::Bytes;
use packhorse_wire::{BatchHeader, FailureHeader, ResultHeader};
use tokio::sync::mpsc;

/// A batch to be sent.
#[derive(Debug)]
pub(crate) struct OutgoingBatch {
    /// The header of the batch.
    pub(crate) header: BatchHeader,
    /// The bytes of its inputs, in pieces.
    pub(crate) payload: Vec<Bytes>,
}

/// An event on a link.
#[derive(Debug)]
pub(crate) enum LinkEvent {
    /// The worker takes batches through this sender, in which they wait for each other; the owner limits their number. Dropping
    /// the sender tells the worker that there will be no more.
    Up(mpsc::UnboundedSender<OutgoingBatch>),
    /// The worker computed a batch. The bytes are those of each output.
    BatchComputed(ResultHeader, Vec<Bytes>),
    /// The worker could not compute a batch.
    BatchFailed(FailureHeader),
    /// The worker takes no more batches, but answers those that it has.
    Draining,
    /// The connection could not be made, or was lost, for this reason. Batches that were not answered are void.
    Down(String),
}
