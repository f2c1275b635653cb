//! The queue of one model, in the order that a discipline determines.

use std::collections::{BTreeMap, VecDeque};

use packhorse_cluster::Time;

use crate::{ReplicaKey, Request, ShapeClass};

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
    /// The number of workers that were lost while they computed its batch.
    pub(crate) losses: u32,
    /// The number of batches with it on which the model failed.
    pub(crate) failures: u8,
    /// The replica on which the model failed on its last such batch.
    pub(crate) failed_on: Option<ReplicaKey>,
    /// True if the model failed on it alone.
    pub(crate) failed_alone: bool,
    /// The one replica that takes it, as long as that serves.
    pub(crate) only_on: Option<ReplicaKey>,
    /// True if weights were brought to a device for it.
    pub(crate) was_loaded_for: bool,
}

impl QueuedRequest {
    /// Creates a request that was never dispatched.
    pub(crate) fn new(request: Request, ticket: Ticket, arrived: Time) -> Self {
        Self {
            request,
            ticket,
            arrived,
            attempts: 0,
            losses: 0,
            failures: 0,
            failed_on: None,
            failed_alone: false,
            only_on: None,
            was_loaded_for: false,
        }
    }

    /// Returns the request as one that shares no batch.
    pub(crate) fn alone(mut self) -> Self {
        self.request.class = ShapeClass::own(self.ticket.arrival);
        self
    }
}

/// The waiting requests. Every operation takes logarithmic time, and constant time where requests come in order and leave at the
/// front, as nearly all do.
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

    pub(crate) fn get(&self, ticket: Ticket) -> Option<&QueuedRequest> {
        self.waiting.get(ticket)
    }

    /// Notes that weights are brought to a device for a request.
    pub(crate) fn note_load_for(&mut self, ticket: Ticket) {
        if let Some(waiting) = self.waiting.get_mut(ticket) {
            waiting.was_loaded_for = true;
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.waiting.len
    }

    /// Returns the rows of all waiting requests.
    pub(crate) fn rows(&self) -> u64 {
        self.rows
    }

    /// Returns all waiting requests, in order.
    pub(crate) fn iter(&self) -> impl DoubleEndedIterator<Item = &QueuedRequest> {
        self.waiting.iter().map(|entry| &entry.1)
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

    /// Returns the number of waiting requests of one shape class from a ticket on, or `limit` if there are more.
    pub(crate) fn count_in_class(&self, class: ShapeClass, from: Ticket, limit: usize) -> usize {
        let mixed = self.rows_by_class.len() > 1;
        if mixed || !self.rows_by_class.contains_key(&class) {
            self.requests_in_class(class, from).take(limit).count()
        } else {
            self.waiting.count_from(from, limit)
        }
    }

    /// Returns the first request of every shape class.
    pub(crate) fn first_of_each_class(&self) -> impl Iterator<Item = &QueuedRequest> {
        let first = self.by_class.front().map(|&(key, ())| key);
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
        self.by_deadline.front().map(|&(key, ())| key)
    }
}

/// The most entries of a chunk, and twice the number of entries of each half of a chunk that is split.
const CHUNK: usize = 128;

/// A sorted map for keys that mostly arrive in ascending order and leave at the front: a list of chunks, so that an entry in the
/// middle of many moves only those of its chunk.
#[derive(Clone, Debug)]
struct SortedDeque<K, V> {
    /// The chunks; none is empty.
    chunks: VecDeque<VecDeque<(K, V)>>,
    /// An empty chunk, kept for its memory.
    spare: Option<VecDeque<(K, V)>>,
    len: usize,
}

impl<K, V> Default for SortedDeque<K, V> {
    fn default() -> Self {
        Self {
            chunks: VecDeque::new(),
            spare: None,
            len: 0,
        }
    }
}

impl<K: Copy + Ord, V> SortedDeque<K, V> {
    /// Inserts a new key. Panics if the key is present: requests have tickets of their own.
    fn insert(&mut self, key: K, value: V) {
        self.len += 1;
        if self.back().is_none_or(|last| last.0 < key) {
            match self.chunks.back_mut() {
                Some(last) if last.len() < CHUNK => last.push_back((key, value)),
                _ => {
                    let mut chunk = self.spare.take().unwrap_or_default();
                    chunk.push_back((key, value));
                    self.chunks.push_back(chunk);
                }
            }
            return;
        }
        let index = self.chunk_of(key);
        let chunk = &mut self.chunks[index];
        match chunk.binary_search_by(|entry| entry.0.cmp(&key)) {
            Ok(_) => unreachable!("every ticket is unique"),
            Err(place) => chunk.insert(place, (key, value)),
        }
        if chunk.len() > CHUNK {
            let half = chunk.split_off(CHUNK / 2);
            self.chunks.insert(index + 1, half);
        }
    }

    fn remove(&mut self, key: K) -> Option<V> {
        let (index, place) = self.find(key)?;
        let chunk = &mut self.chunks[index];
        let removed = chunk.remove(place)?;
        self.len -= 1;
        if chunk.is_empty() {
            self.spare = self.chunks.remove(index);
        }
        Some(removed.1)
    }

    fn get(&self, key: K) -> Option<&V> {
        let (index, place) = self.find(key)?;
        self.chunks[index].get(place).map(|entry| &entry.1)
    }

    fn get_mut(&mut self, key: K) -> Option<&mut V> {
        let (index, place) = self.find(key)?;
        self.chunks[index].get_mut(place).map(|entry| &mut entry.1)
    }

    fn front(&self) -> Option<&(K, V)> {
        self.chunks.front()?.front()
    }

    fn back(&self) -> Option<&(K, V)> {
        self.chunks.back()?.back()
    }

    fn iter(&self) -> impl DoubleEndedIterator<Item = &(K, V)> {
        self.chunks.iter().flatten()
    }

    /// Returns the entries from a key on.
    fn entries_from(&self, key: K) -> impl Iterator<Item = &(K, V)> {
        let (index, place) = self.lower_bound(key);
        let first = self.chunks.get(index).into_iter();
        let first = first.flat_map(move |chunk| chunk.range(place..));
        first.chain(self.chunks.iter().skip(index + 1).flatten())
    }

    /// Returns the number of entries from a key on, or `limit` if there are more.
    fn count_from(&self, key: K, limit: usize) -> usize {
        let (index, place) = self.lower_bound(key);
        let mut count = 0;
        for chunk in self.chunks.iter().skip(index) {
            count += chunk.len();
            if count >= limit + place {
                return limit;
            }
        }
        count.saturating_sub(place)
    }

    /// Returns the chunk that has a key if any has.
    fn chunk_of(&self, key: K) -> usize {
        let starts_before =
            |chunk: &VecDeque<(K, V)>| chunk.front().is_some_and(|first| first.0 <= key);
        let behind = match self.chunks.len() {
            0 | 1 => return 0,
            _ => self.chunks.partition_point(starts_before),
        };
        behind.saturating_sub(1)
    }

    /// Returns the chunk of the first entry from a key on, and the entry's place in it.
    fn lower_bound(&self, key: K) -> (usize, usize) {
        let index = self.chunk_of(key);
        let Some(chunk) = self.chunks.get(index) else {
            return (0, 0);
        };
        if chunk.front().is_some_and(|first| first.0 >= key) {
            return (index, 0);
        }
        match chunk.partition_point(|entry| entry.0 < key) {
            place if place == chunk.len() => (index + 1, 0),
            place => (index, place),
        }
    }

    fn find(&self, key: K) -> Option<(usize, usize)> {
        let (index, place) = self.lower_bound(key);
        let found = self.chunks.get(index)?.get(place)?;
        (found.0 == key).then_some((index, place))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;
    use crate::{ModelKey, RequestKey, TenantKey};

    fn waiting(class: u64, rank: u64, arrival: u64) -> QueuedRequest {
        let request = Request {
            id: RequestKey(arrival),
            model: ModelKey(0),
            tenant: TenantKey(0),
            rows: 1,
            bytes: 1,
            class: ShapeClass(class),
            priority: 0,
            may_fall_back: false,
            deadline: Time::from_nanos(100 - rank),
            load_by: Time::from_nanos(100 - rank),
        };
        QueuedRequest::new(request, Ticket { rank, arrival }, Time::ZERO)
    }

    #[test]
    fn thousands_of_requests_come_and_go_anywhere() {
        let mut queue = Queue::default();
        let mut model: BTreeMap<Ticket, QueuedRequest> = BTreeMap::new();
        for arrival in 0..5000_u64 {
            let waiting = waiting(0, arrival * 7919 % 97, arrival);
            queue.insert(waiting);
            model.insert(waiting.ticket, waiting);
            if arrival % 3 > 0 {
                let nth = usize::try_from(arrival * 31 % model.len() as u64).unwrap();
                let ticket = *model.keys().nth(nth).unwrap();
                assert!(queue.remove(ticket).is_some());
                assert!(queue.remove(ticket).is_none());
                model.remove(&ticket);
                let from = Ticket {
                    rank: arrival % 97,
                    arrival,
                };
                let rest = model.range(from..).count();
                assert_eq!(queue.requests_in_class(ShapeClass(0), from).count(), rest);
                assert_eq!(queue.count_in_class(ShapeClass(0), from, 50), rest.min(50));
            }
        }
        assert_eq!(queue.len(), model.len());
        let all: Vec<Ticket> = queue.iter().rev().map(|waiting| waiting.ticket).collect();
        assert_eq!(all, model.keys().rev().copied().collect::<Vec<_>>());
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
