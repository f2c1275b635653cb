//! The state that a discipline decides on: one model at one moment.

use packhorse_cluster::{Priority, Time};

use super::decision::Decision;
use crate::{
    ModelLimits, Refusal, ReplicaKey, Request,
    overloaded_models::OverloadedModels,
    queue::{Queue, QueuedRequest},
    replica::Replica,
    replica_pool::ReplicaPool,
};

/// One model at one moment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ModelView<'a> {
    pub(crate) now: Time,
    pub(crate) limits: &'a ModelLimits,
    pub(crate) priority: Priority,
    pub(crate) queue: &'a Queue,
    pub(crate) pool: &'a ReplicaPool,
    pub(crate) overloaded: &'a OverloadedModels,
    /// True if the model is overloaded and tenants share it, so that the requests of some go before those of others.
    pub(crate) shared_fairly: bool,
}

impl<'a> ModelView<'a> {
    /// Returns true if a batch of a replica may have so many rows.
    pub(super) fn takes(self, replica: &Replica, rows: u32) -> bool {
        rows <= replica.rows_limit().min(self.limits.max_batch_rows)
    }

    /// Returns false for replicas other than the one that a request is kept on, as long as that serves, and for the one on which the model failed on it, if
    /// another one takes it.
    pub(super) fn may_go_to(self, waiting: &QueuedRequest, replica: ReplicaKey) -> bool {
        if self
            .kept_on(waiting)
            .is_some_and(|(only, _)| only != replica)
        {
            return false;
        }
        let failed_here = waiting.failed_on == Some(replica);
        !(failed_here && self.pool.takes_elsewhere(replica, waiting.request.rows))
    }

    /// Returns true if a replica may have a request, and can compute it.
    pub(crate) fn may_take(self, waiting: &QueuedRequest, replica: ReplicaKey) -> bool {
        let on = self.pool.get(replica);
        on.is_some_and(|on| self.takes(on, waiting.request.rows))
            && self.may_go_to(waiting, replica)
    }

    /// Returns the one replica that may have a request, if it is kept on one that serves and did not fail on it.
    pub(super) fn kept_on(self, waiting: &QueuedRequest) -> Option<(ReplicaKey, &'a Replica)> {
        let only = waiting
            .only_on
            .filter(|only| waiting.failed_on != Some(*only))?;
        let replica = self.pool.get(only)?;
        let takes_it = replica.is_serving() && waiting.request.rows <= replica.rows_limit();
        takes_it.then_some((only, replica))
    }

    /// Returns the decision about requests that devices take by themselves: to end those whose time is over.
    pub(crate) fn expire_or_wait(self) -> Decision {
        match self.queue.earliest_deadline() {
            Some((due, first)) if due <= self.now => Decision::Expire(first),
            first => Decision::Wait(first.map(|(due, _)| due)),
        }
    }

    /// Accepts a request that any of the serving replicas takes, whenever it would be answered.
    pub(super) fn admit_if_taken(self, request: &Request) -> Result<(), Refusal> {
        let mut serving = self.pool.serving();
        if serving.any(|(_, replica)| self.takes(replica, request.rows)) {
            Ok(())
        } else {
            Err(Refusal::CannotMeetDeadline)
        }
    }

    /// Returns the most rows that `first` and others of its class share in one batch on a replica.
    pub(crate) fn batch_limit(self, replica: &Replica, first: &QueuedRequest) -> u32 {
        self.limit_of(replica, first.request.bytes_per_row())
    }

    /// Returns the smallest limit that a batch of any class may have on a replica.
    pub(crate) fn smallest_batch_limit(self, replica: &Replica) -> u32 {
        self.limit_of(replica, u64::MAX)
    }

    fn limit_of(self, replica: &Replica, bytes_per_row: u64) -> u32 {
        let rows = replica.batch_size_of(self.now, bytes_per_row);
        rows.min(self.limits.max_batch_rows)
    }

    /// Returns the batch of `first` and those of its class behind it, in their order: as many as have at most `limit` rows
    /// and the model's limit of bytes together, and as `joins`, which gets the rows that there would be, lets in.
    pub(super) fn batch(
        self,
        first: &QueuedRequest,
        limit: u32,
        mut joins: impl FnMut(&QueuedRequest, u32) -> bool,
    ) -> CandidateBatch {
        let mut batch = CandidateBatch {
            requests: 1,
            rows: first.request.rows,
            full: false,
        };
        let mut bytes = first.request.bytes;
        let same_class = self
            .queue
            .requests_in_class(first.request.class, first.ticket);
        for waiting in same_class.skip(1) {
            let rows = batch.rows.saturating_add(waiting.request.rows);
            bytes = bytes.saturating_add(waiting.request.bytes);
            batch.full = rows > limit || bytes > self.limits.max_batch_bytes;
            if batch.full || !joins(waiting, rows) {
                break;
            }
            batch.rows = rows;
            batch.requests += 1;
        }
        batch.full |= batch.rows >= limit;
        batch
    }

    /// Returns the decision to send a replica the batch that begins with `first`.
    pub(super) fn dispatch(
        self,
        replica: ReplicaKey,
        first: &QueuedRequest,
        batch: CandidateBatch,
    ) -> Decision {
        let same_class = self
            .queue
            .requests_in_class(first.request.class, first.ticket);
        let tickets = same_class
            .take(batch.requests)
            .map(|waiting| waiting.ticket);
        Decision::Dispatch {
            replica,
            tickets: tickets.collect(),
        }
    }
}

/// The first requests of a shape class from some request on, which might become a batch.
#[derive(Clone, Copy, Debug)]
pub(super) struct CandidateBatch {
    pub(super) requests: usize,
    pub(super) rows: u32,
    /// True if nothing more fits, or if the next request does not.
    pub(super) full: bool,
}
