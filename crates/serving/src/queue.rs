//! The requests of one model that wait, in the order in which a discipline wants them.

use std::collections::{BTreeMap, BTreeSet};

use packhorse_cluster::Time;

use crate::{Request, ShapeClass};

/// A place in the queue: by the discipline's rank, then by arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Ticket {
    pub(crate) rank: u64,
    pub(crate) arrival: u64,
}

/// A request that waits, or that is on a replica and may have to wait again: it keeps its ticket, which is then far in front.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Waiting {
    pub(crate) request: Request,
    pub(crate) ticket: Ticket,
    /// How often it was dispatched.
    pub(crate) attempts: u32,
}

/// Every operation takes time logarithmic in the length.
#[derive(Clone, Debug, Default)]
pub(crate) struct Queue {
    waiting: BTreeMap<Ticket, Waiting>,
    by_class: BTreeSet<(ShapeClass, Ticket)>,
    by_deadline: BTreeSet<(Time, Ticket)>,
    rows: u64,
}

impl Queue {
    pub(crate) fn insert(&mut self, waiting: Waiting) {
        let Waiting {
            request, ticket, ..
        } = waiting;
        let displaced = self.waiting.insert(ticket, waiting);
        assert!(
            displaced.is_none(),
            "{ticket:?} is taken: arrivals are counted once"
        );
        self.by_class.insert((request.class, ticket));
        self.by_deadline.insert((request.deadline, ticket));
        self.rows += u64::from(request.rows);
    }

    pub(crate) fn remove(&mut self, ticket: Ticket) -> Option<Waiting> {
        let waiting = self.waiting.remove(&ticket)?;
        self.by_class.remove(&(waiting.request.class, ticket));
        self.by_deadline.remove(&(waiting.request.deadline, ticket));
        self.rows -= u64::from(waiting.request.rows);
        Some(waiting)
    }

    pub(crate) fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Rows of all that wait.
    pub(crate) fn rows(&self) -> u64 {
        self.rows
    }

    /// All, in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Waiting> {
        self.waiting.values()
    }

    /// Those of one shape class from a ticket on, in order.
    pub(crate) fn of_class(
        &self,
        class: ShapeClass,
        from: Ticket,
    ) -> impl Iterator<Item = &Waiting> {
        let last = Ticket {
            rank: u64::MAX,
            arrival: u64::MAX,
        };
        self.by_class
            .range((class, from)..=(class, last))
            .filter_map(|(_, ticket)| self.waiting.get(ticket))
    }

    /// The earliest deadline, wherever in the order it stands.
    pub(crate) fn first_due(&self) -> Option<(Time, Ticket)> {
        self.by_deadline.first().copied()
    }
}
