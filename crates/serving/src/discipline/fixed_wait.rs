//! `fixed-wait`: the thesis' router, kept for comparison.
//!
//! One open batch per shape class, meant for the next replica in turn. It is sent when it is as large as that replica's batch
//! size, or a fixed time after its first request arrived. No admission, no drops, and no credits: batches that a replica has no
//! time for wait at the replica, first in, first out.
//!
//! Source: Elvinger, "Towards resource and interference-aware scheduling of ML workloads", section 4.3.3, listing 4.3. We
//! deviate where it says nothing: without any replica, requests end at their deadline.

use std::time::Duration;

use super::{Batch, Decision, Discipline, View};
use crate::{Refusal, ReplicaKey, Request, fleet::Replica, queue::Waiting};

#[derive(Debug)]
pub(super) struct FixedWait {
    /// How long an open batch waits for further requests at most.
    pub(super) max_wait: Duration,
}

impl Discipline for FixedWait {
    fn rank(&self, _: &Request) -> u64 {
        0
    }

    fn admit(&self, view: View<'_>, request: &Request) -> Result<(), Refusal> {
        match in_turn(view, request.rows) {
            Some(_) => Ok(()),
            None => Err(Refusal::Hopeless),
        }
    }

    fn decide(&self, view: View<'_>) -> Decision {
        let Some(first) = view.queue.iter().next() else {
            return Decision::Wait(None);
        };
        let Some((key, replica)) = in_turn(view, first.request.rows) else {
            return match view.queue.first_due() {
                Some((due, ticket)) if due <= view.now => Decision::Expire(ticket),
                due => Decision::Wait(due.map(|due| due.0)),
            };
        };
        let until = first.arrived + self.max_wait;
        if until <= view.now {
            return view.dispatch(key, first, open_batch(view, replica, first));
        }
        // Fewer rows in all than a batch holds fill none: no need to count by class at every arrival.
        if view.queue.rows() >= u64::from(view.batch_limit(replica)) {
            for first in view.queue.firsts() {
                let Some((key, replica)) = in_turn(view, first.request.rows) else {
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

/// The next replica, in the order of their keys, that takes a request of so many rows.
fn in_turn(view: View<'_>, rows: u32) -> Option<(ReplicaKey, &Replica)> {
    if rows > view.limits.max_batch_rows {
        return None;
    }
    view.fleet
        .in_turn()
        .find(|(_, replica)| rows <= replica.rows_limit())
}

/// The open batch that starts with `first`.
fn open_batch(view: View<'_>, replica: &Replica, first: &Waiting) -> Batch {
    view.batch(first, view.batch_limit(replica), |_, _| true)
}
