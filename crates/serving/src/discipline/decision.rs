//! The decision of a discipline.

use packhorse_cluster::Time;

use crate::{ReplicaKey, queue::Ticket};

/// The next step for the requests of a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Decision {
    /// Dispatches these requests as one batch: one shape class, no more rows than the replica takes.
    Dispatch {
        replica: ReplicaKey,
        tickets: Vec<Ticket>,
    },
    /// Ends this request, which can no longer make its deadline.
    Expire(Ticket),
    /// Waits until the next event, or until this time, which lies in the future.
    Wait(Option<Time>),
}
