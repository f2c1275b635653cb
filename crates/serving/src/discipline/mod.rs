//! The seam of the dispatch disciplines: how waiting requests become batches, and which replica takes them.
//!
//! A discipline decides and keeps nothing: what it knows stands in the [`View`], what it wants is a [`Decision`] that the engine
//! carries out and checks.

mod deadline;
mod fixed_wait;

pub use deadline::DeadlineOptions;

use std::fmt::Debug;

use packhorse_cluster::{Discipline as Name, Time};

use crate::{
    EngineConfig, ModelLimits, Refusal, ReplicaKey, Request,
    fleet::{Fleet, Replica},
    queue::{Queue, Ticket, Waiting},
    shortages::Shortages,
};

/// What a discipline sees: one model at one moment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct View<'a> {
    pub(crate) now: Time,
    pub(crate) limits: &'a ModelLimits,
    pub(crate) queue: &'a Queue,
    pub(crate) fleet: &'a Fleet,
    pub(crate) shortages: &'a Shortages,
}

impl View<'_> {
    /// The most rows that requests share in one batch there.
    pub(crate) fn batch_limit(self, replica: &Replica) -> u32 {
        replica.batch_size().min(self.limits.max_batch_rows)
    }

    /// The batch of `first` and those of its class behind it, in their order: as many as have at most `limit` rows together and as
    /// `joins` lets in, which is told the rows there would be.
    fn batch(
        self,
        first: &Waiting,
        limit: u32,
        mut joins: impl FnMut(&Waiting, u32) -> bool,
    ) -> Batch {
        let mut batch = Batch {
            requests: 1,
            rows: first.request.rows,
            full: false,
        };
        let of_class = self.queue.of_class(first.request.class, first.ticket);
        for waiting in of_class.skip(1) {
            let rows = batch.rows.saturating_add(waiting.request.rows);
            batch.full = rows > limit;
            if batch.full || !joins(waiting, rows) {
                break;
            }
            batch.rows = rows;
            batch.requests += 1;
        }
        batch.full |= batch.rows >= limit;
        batch
    }

    /// A batch that begins with `first`, for a replica.
    fn dispatch(self, replica: ReplicaKey, first: &Waiting, batch: Batch) -> Decision {
        let of_class = self.queue.of_class(first.request.class, first.ticket);
        let tickets = of_class.take(batch.requests).map(|one| one.ticket);
        Decision::Dispatch {
            replica,
            tickets: tickets.collect(),
        }
    }
}

/// The first requests of a shape class from some request on, which might be a batch.
#[derive(Clone, Copy, Debug)]
struct Batch {
    requests: usize,
    rows: u32,
    /// Nothing more fits, or what comes next does not.
    full: bool,
}

/// What shall happen next to the requests of a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Decision {
    /// These go to that replica as one batch: one shape class, no more rows than it takes.
    Dispatch {
        replica: ReplicaKey,
        tickets: Vec<Ticket>,
    },
    /// This one can no longer make its deadline.
    Expire(Ticket),
    /// Nothing until the next event, or until this moment, which lies in the future.
    Wait(Option<Time>),
}

/// A dispatch discipline.
pub(crate) trait Discipline: Debug + Send {
    /// Where a request stands in its queue: the smallest rank first, equal ranks by arrival.
    fn rank(&self, request: &Request) -> u64;

    /// Whether a request may wait. The queue has room for it, and some serving replica takes its rows.
    fn admit(&self, view: View<'_>, request: &Request) -> Result<(), Refusal>;

    /// What to do next; asked again after every decision but to wait, and after every event that touches the model.
    fn decide(&self, view: View<'_>) -> Decision;
}

/// The discipline that the configuration names.
pub(crate) fn discipline(config: &EngineConfig) -> Box<dyn Discipline> {
    match config.discipline {
        Name::Deadline => Box::new(deadline::Deadline {
            options: config.deadline,
        }),
        Name::FixedWait => Box::new(fixed_wait::FixedWait {
            max_wait: config.max_batch_wait,
        }),
    }
}
