//! `fixed-wait`: the thesis' router, kept for comparison.
//!
//! There is one open batch per shape class, meant for the next replica in turn. It is sent when it is as large as that replica's
//! batch size, or a fixed time after its first request arrived. There is no admission control, no drop and no credit: batches
//! that a replica has no time for wait at the replica, first in, first out.
//!
//! Source: Elvinger, "Towards resource and interference-aware scheduling of ML workloads", section 4.3.3, listing 4.3. We deviate
//! where it gives no rule: without any replica, requests end at their deadline. Replicas that share a device in time take no turns:
//! like the thesis' router, the discipline sends what is formed, whatever the device is doing.

use std::time::Duration;

use super::{
    decision::Decision,
    interface::Discipline,
    model_view::{CandidateBatch, ModelView},
};
use crate::{Refusal, ReplicaKey, Request, queue::QueuedRequest, replica::Replica};

#[derive(Debug)]
pub(super) struct FixedWait {
    /// The longest time for which an open batch waits for further requests.
    pub(super) max_wait: Duration,
}

impl Discipline for FixedWait {
    fn binds_late(&self) -> bool {
        false
    }

    fn rank(&self, _: &Request) -> u64 {
        0
    }

    fn admit(&self, view: ModelView<'_>, request: &Request, _: u64) -> Result<(), Refusal> {
        match next_in_turn(view, request.rows, |_| true) {
            Some(_) => Ok(()),
            None => Err(Refusal::CannotMeetDeadline),
        }
    }

    fn decide(&self, view: ModelView<'_>) -> Decision {
        let Some(first) = view.queue.iter().next() else {
            return Decision::Wait(None);
        };
        let Some((key, replica)) =
            next_in_turn(view, first.request.rows, |key| view.may_go_to(first, key))
        else {
            return match view.queue.earliest_deadline() {
                Some((due, ticket)) if due <= view.now => Decision::Expire(ticket),
                due => Decision::Wait(due.map(|due| due.0)),
            };
        };
        let until = first.arrived + self.max_wait;
        if until <= view.now {
            return view.dispatch(key, first, open_batch(view, replica, first));
        }
        // If all classes together have fewer rows than a batch, no batch is full: they need not be counted by class at every
        // arrival.
        if view.queue.rows() >= u64::from(view.smallest_batch_limit(replica)) {
            for first in view.queue.first_of_each_class() {
                let Some((key, replica)) =
                    next_in_turn(view, first.request.rows, |key| view.may_go_to(first, key))
                else {
                    continue;
                };
                let batch = open_batch(view, replica, first);
                if batch.full {
                    return view.dispatch(key, first, batch);
                }
            }
        }
        Decision::Wait(Some(until))
    }
}

/// Returns the next replica, in the order of their keys, that takes a request of so many rows and is an allowed one.
fn next_in_turn(
    view: ModelView<'_>,
    rows: u32,
    is_allowed: impl Fn(ReplicaKey) -> bool,
) -> Option<(ReplicaKey, &Replica)> {
    if rows > view.limits.max_batch_rows {
        return None;
    }
    view.pool
        .round_robin()
        .find(|(key, replica)| rows <= replica.rows_limit() && is_allowed(*key))
}

/// Returns the open batch that starts with `first`.
fn open_batch(view: ModelView<'_>, replica: &Replica, first: &QueuedRequest) -> CandidateBatch {
    view.batch(first, view.batch_limit(replica, first), |_, _| true)
}
