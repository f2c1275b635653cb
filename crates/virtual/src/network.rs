//! The connections between the gateway and worker processes, and what is on its way on them. Messages never overtake each other.

use std::{collections::BTreeMap, time::Duration};

use packhorse_cluster::Time;
use packhorse_contention::CompletedBatch;
use packhorse_control::Target;
use packhorse_reconcile::TaskId;
use packhorse_serving::{ReplicaKey, RequestKey};

use crate::{
    environment::AnsweredRequest,
    node::{HeldBatch, Place},
    numbered_queue::NumberedQueue,
};

/// The number of a connection to a worker; never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ConnectionKey(pub(crate) u32);

/// The connections to workers, and what is on its way on them.
#[derive(Debug, Default)]
pub(crate) struct Network {
    pub(crate) sockets: BTreeMap<ReplicaKey, Socket>,
    pub(crate) connections: Vec<Connection>,
    pub(crate) batches: NumberedQueue<Batch>,
    /// The number of the first replica of the next gateway.
    pub(crate) first_replica: u32,
    /// The extra time that every message takes.
    pub(crate) delay: Duration,
    /// An empty list, kept for its memory.
    pub(crate) completed: Vec<CompletedBatch<HeldBatch>>,
    /// An empty list, kept for its memory.
    pub(crate) answered: Vec<AnsweredRequest>,
}

/// The gateway's side of a link.
#[derive(Debug)]
pub(crate) struct Socket {
    pub(crate) target: Target,
    pub(crate) attempt: u64,
    /// True if the worker has not answered this attempt.
    pub(crate) is_refused: bool,
    pub(crate) connection: Option<ConnectionKey>,
}

/// A connection between a link and a worker process.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) replica: ReplicaKey,
    /// The index of its model.
    pub(crate) model: usize,
    pub(crate) node: u32,
    pub(crate) place: Place,
    pub(crate) worker: TaskId,
    pub(crate) is_open: bool,
    /// True if the worker has ended, and its end is on its way to the gateway.
    pub(crate) is_closing: bool,
    /// The number of batches that were sent and not answered.
    pub(crate) used_credits: u32,
    /// The time since which the replica has had a free credit.
    pub(crate) free_since: Time,
    /// The latest arrival of a message in each direction: they do not overtake each other.
    pub(crate) to_worker: Time,
    pub(crate) to_gateway: Time,
    /// The messages that wait for the network, in order.
    pub(crate) stalled: Vec<Message>,
}

/// A message on a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Message {
    /// A batch for the worker.
    Batch(u64),
    /// The answer of a batch.
    Answer(u64),
    /// The worker drains.
    Draining,
    /// The worker's side closes.
    Closed,
}

impl Message {
    pub(crate) fn is_for_worker(self) -> bool {
        matches!(self, Self::Batch(_))
    }
}

/// A batch that was sent, with the times of its stages so far.
#[derive(Debug)]
pub(crate) struct Batch {
    pub(crate) connection: Option<ConnectionKey>,
    pub(crate) requests: Vec<RequestKey>,
    /// The time since which the replica had the free credit that the batch took.
    pub(crate) free_since: Time,
    pub(crate) dispatched: Time,
    pub(crate) reached_worker: Time,
    pub(crate) started: Time,
    pub(crate) computed: Time,
    /// True if the model has failed on it.
    pub(crate) failed: bool,
    /// True if the batch was answered or its connection was lost.
    pub(crate) ended: bool,
}

impl Network {
    pub(crate) fn connection(&self, key: ConnectionKey) -> &Connection {
        &self.connections[key.0 as usize]
    }

    pub(crate) fn connection_mut(&mut self, key: ConnectionKey) -> &mut Connection {
        &mut self.connections[key.0 as usize]
    }

    /// Returns a batch that has not ended, and its connection.
    pub(crate) fn batch(&self, number: u64) -> Option<(&Batch, ConnectionKey)> {
        let batch = self.batches.get(number).filter(|batch| !batch.ended)?;
        Some((batch, batch.connection?))
    }

    /// Returns the keys of the open connections for which the predicate holds.
    pub(crate) fn open(&self, is: impl Fn(&Connection) -> bool) -> Vec<ConnectionKey> {
        let open = (0..).zip(&self.connections);
        let open = open.filter(|(_, connection)| connection.is_open && is(connection));
        open.map(|(key, _)| ConnectionKey(key)).collect()
    }
}
