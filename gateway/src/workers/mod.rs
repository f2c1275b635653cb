//! The connections to workers: one task per replica connects, proves who it is, sends batches and takes their results, and
//! connects again when the connection is lost.
//!
//! A link decides nothing: it reports to its owner what happens ([`LinkEvent`]) and sends what it is given.

mod connection;
mod link;
mod socket;

use bytes::Bytes;
use packhorse_wire::{BatchHeader, BatchId, FailureKind, StageDurations, TensorHeader};
use tokio::sync::mpsc;

pub(crate) use link::{Endpoint, Link, LinkConfig};

/// A batch to be sent.
#[derive(Debug)]
pub(crate) struct OutgoingBatch {
    /// What it is.
    pub(crate) header: BatchHeader,
    /// The bytes of its inputs, in pieces.
    pub(crate) payload: Vec<Bytes>,
}

/// What a worker says of a batch.
#[derive(Debug)]
pub(crate) enum BatchEnd {
    /// Its outputs.
    Done {
        /// In the order of the program's results.
        outputs: Vec<(TensorHeader, Bytes)>,
        /// How long it was in each stage of the worker.
        stages: StageDurations,
    },
    /// There are no outputs.
    Failed {
        /// What went wrong.
        kind: FailureKind,
        /// What went wrong, in the worker's words.
        message: String,
    },
}

/// What happens on a link.
#[derive(Debug)]
pub(crate) enum LinkEvent {
    /// The worker takes batches: they go here, where they wait their turn. How many do is the owner's business. Dropping the
    /// sender tells the worker that there will be no more.
    Up(mpsc::UnboundedSender<OutgoingBatch>),
    /// A batch came back.
    BatchEnded(BatchId, BatchEnd),
    /// The worker wants no more batches, but answers those that it has.
    Draining,
    /// There is no connection, or no longer one, and why. Whatever batches it had are void.
    Down(String),
}
