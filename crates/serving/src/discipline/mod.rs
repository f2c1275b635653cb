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
    queue::{Queue, Ticket},
};

/// What a discipline sees: one model at one moment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct View<'a> {
    pub(crate) now: Time,
    pub(crate) limits: &'a ModelLimits,
    pub(crate) queue: &'a Queue,
    pub(crate) fleet: &'a Fleet,
}

impl View<'_> {
    /// The most rows that requests share in one batch there.
    pub(crate) fn batch_limit(self, replica: &Replica) -> u32 {
        replica.batch_size().min(self.limits.max_batch_rows)
    }
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
