//! The queue of one model, in the order that a discipline determines.

use std::collections::{BTreeMap, VecDeque};

use packhorse_cluster::Time;

use crate::{Request, ShapeClass};

/// The position of a request in the queue: by the discipline's rank, then by arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Ticket {
    pub(crate) rank: u64,
    pub(crate) arrival: u64,
}

/// A request that waits, or that is on a replica and may have to wait again: its ticket then puts it near the front.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QueuedRequest {
    pub(crate) request: Request,
    pub(crate) ticket: Ticket,
    /// The time at which it first arrived at the engine.
    pub(crate) arrived: Time,
    /// The number of times that it was dispatched.
    pub(crate) attempts: u32,
}

/// The waiting requests. Every operation takes logarithmic time where requests come in order and leave at the front, as nearly
/// all do; in the middle, it moves the requests behind, of which there are no more than the queue's limit.
#[derive(Clone, Debug, Default)]
pub(crate) struct Queue {
    waiting: SortedDeque<Ticket, QueuedRequest>,
    by_class: SortedDeque<(ShapeClass, Ticket), ()>,
    by_deadline: SortedDeque<(Time, Ticket), ()>,
    rows: u64,
    rows_by_class: BTreeMap<ShapeClass, u64>,
}

impl Queue {
    pub(crate) fn insert(&mut self, waiting: QueuedRequest) {
        let QueuedRequest {
            request, ticket, ..
        } = waiting;
        self.waiting.insert(ticket, waiting);
        self.by_class.insert((request.class, ticket), ());
        self.by_deadline.insert((request.deadline, ticket), ());
        self.rows += u64::from(request.rows);
        *self.rows_by_class.entry(request.class).or_default() += u64::from(request.rows);
    }

    pub(crate) fn remove(&mut self, ticket: Ticket) -> Option<QueuedRequest> {
        let waiting = self.waiting.remove(ticket)?;
        self.by_class.remove((waiting.request.class, ticket));
        self.by_deadline.remove((waiting.request.deadline, ticket));
        let rows = u64::from(waiting.request.rows);
        self.rows -= rows;
        let class_rows = self.rows_by_class.get_mut(&waiting.request.class);
        let class_rows = class_rows.expect("counted on insertion");
        *class_rows -= rows;
        if *class_rows == 0 {
            self.rows_by_class.remove(&waiting.request.class);
        }
        Some(waiting)
    }

    pub(crate) fn len(&self) -> usize {
        self.waiting.entries.len()
    }

    /// Returns the rows of all waiting requests.
    pub(crate) fn rows(&self) -> u64 {
        self.rows
    }

    /// Returns the rows of the waiting requests of one shape class.
    pub(crate) fn rows_in_class(&self, class: ShapeClass) -> u64 {
        self.rows_by_class.get(&class).copied().unwrap_or(0)
    }

    /// Returns all waiting requests, in order.
    pub(crate) fn iter(&self) -> impl DoubleEndedIterator<Item = &QueuedRequest> {
        self.waiting.entries.iter().map(|entry| &entry.1)
    }

    /// Returns the waiting requests of one shape class from a ticket on, in order.
    pub(crate) fn requests_in_class(
        &self,
        class: ShapeClass,
        from: Ticket,
    ) -> impl Iterator<Item = &QueuedRequest> {
        // If there is only one class, its order is that of the whole queue, and no request needs to be looked up.
        let mixed = self.rows_by_class.len() > 1;
        let single = (!mixed && self.rows_by_class.contains_key(&class))
            .then(|| self.waiting.entries_from(from).map(|entry| &entry.1));
        let looked_up = mixed.then(|| {
            self.by_class
                .entries_from((class, from))
                .take_while(move |&&((found, _), ())| found == class)
                .filter_map(|&((_, ticket), ())| self.waiting.get(ticket))
        });
        let single = single.into_iter().flatten();
        single.chain(looked_up.into_iter().flatten())
    }

    /// Returns the first request of every shape class.
    pub(crate) fn first_of_each_class(&self) -> impl Iterator<Item = &QueuedRequest> {
        let first = self.by_class.entries.front().map(|&(key, ())| key);
        let next_class = |&(ShapeClass(class), _): &(ShapeClass, Ticket)| {
            let start = Ticket {
                rank: 0,
                arrival: 0,
            };
            let mut behind = self
                .by_class
                .entries_from((ShapeClass(class.checked_add(1)?), start));
            behind.next().map(|&(key, ())| key)
        };
        std::iter::successors(first, next_class).filter_map(|(_, ticket)| self.waiting.get(ticket))
    }

    /// Returns the earliest deadline and its request, wherever in the order it stands.
    pub(crate) fn earliest_deadline(&self) -> Option<(Time, Ticket)> {
        self.by_deadline.entries.front().map(|&(key, ())| key)
    }
}

/// A sorted map for keys that mostly arrive in ascending order and leave at the front.
#[derive(Clone, Debug)]
struct SortedDeque<K, V> {
    entries: VecDeque<(K, V)>,
}

impl<K, V> Default for SortedDeque<K, V> {
    fn default() -> Self {
        Self {
            entries: VecDeque::new(),
        }
    }
}

impl<K: Copy + Ord, V> SortedDeque<K, V> {
    /// Inserts a new key. Panics if the key is present: requests have tickets of their own.
    fn insert(&mut self, key: K, value: V) {
        if self.entries.back().is_none_or(|last| last.0 < key) {
            self.entries.push_back((key, value));
            return;
        }
        match self.find(key) {
            Ok(_) => unreachable!("every ticket is unique"),
            Err(place) => self.entries.insert(place, (key, value)),
        }
    }

    fn remove(&mut self, key: K) -> Option<V> {
        let place = self.find(key).ok()?;
        self.entries.remove(place).map(|entry| entry.1)
    }

    fn get(&self, key: K) -> Option<&V> {
        self.entries.get(self.find(key).ok()?).map(|entry| &entry.1)
    }

    /// Returns the entries from a key on.
    fn entries_from(&self, key: K) -> impl Iterator<Item = &(K, V)> {
        let start = self.find(key).unwrap_or_else(|place| place);
        self.entries.range(start..)
    }

    fn find(&self, key: K) -> Result<usize, usize> {
        if self.entries.front().is_some_and(|first| first.0 == key) {
            return Ok(0);
        }
        self.entries.binary_search_by(|entry| entry.0.cmp(&key))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;
    use crate::{ModelKey, RequestKey};

    fn waiting(class: u64, rank: u64, arrival: u64) -> QueuedRequest {
        let request = Request {
            id: RequestKey(arrival),
            model: ModelKey(0),
            rows: 1,
            class: ShapeClass(class),
            priority: 0,
            deadline: Time::from_nanos(100 - rank),
        };
        QueuedRequest {
            request,
            ticket: Ticket { rank, arrival },
            arrived: Time::ZERO,
            attempts: 0,
        }
    }

    proptest! {
        #[test]
        fn it_agrees_with_ordered_maps(steps in proptest::collection::vec((any::<bool>(), 0_u64..3, 0_u64..20), 1..60)) {
            let mut queue = Queue::default();
            let mut model: BTreeMap<Ticket, QueuedRequest> = BTreeMap::new();
            for (arrival, (comes, class, number)) in (0_u64..).zip(steps) {
                if comes {
                    let waiting = waiting(class, number, arrival);
                    queue.insert(waiting);
                    model.insert(waiting.ticket, waiting);
                } else if let Some(&ticket) = model.keys().nth(number as usize) {
                    prop_assert!(queue.remove(ticket).is_some());
                    model.remove(&ticket);
                }
                let all: Vec<Ticket> = queue.iter().map(|waiting| waiting.ticket).collect();
                prop_assert_eq!(all, model.keys().copied().collect::<Vec<_>>());
                prop_assert_eq!((queue.len(), queue.rows()), (model.len(), model.len() as u64));
                let due = model.values().map(|waiting| (waiting.request.deadline, waiting.ticket)).min();
                prop_assert_eq!(queue.earliest_deadline(), due);
                let class_rows = |class| model.values().filter(move |waiting| waiting.request.class == ShapeClass(class));
                let firsts: Vec<Ticket> = queue.first_of_each_class().map(|waiting| waiting.ticket).collect();
                let expected: Vec<Ticket> = (0..3).filter_map(|class| Some(class_rows(class).next()?.ticket)).collect();
                prop_assert_eq!(firsts, expected);
                for class in 0..3 {
                    let from = Ticket { rank: number, arrival: 0 };
                    let found: Vec<Ticket> = queue.requests_in_class(ShapeClass(class), from).map(|waiting| waiting.ticket).collect();
                    let expected: Vec<Ticket> = class_rows(class).map(|waiting| waiting.ticket).filter(|ticket| *ticket >= from).collect();
                    prop_assert_eq!(found, expected);
                }
            }
        }
    }
}
