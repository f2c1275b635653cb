//! The waiting requests of one model, by deadline.

use std::collections::VecDeque;

use packhorse_cluster::Time;

use super::GroupRequest;

/// The waiting requests of one model, by deadline.
#[derive(Clone, Debug, Default)]
pub(super) struct DeadlineQueue(VecDeque<GroupRequest>);

/// Consecutive requests of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Candidate {
    /// The place of the first one.
    pub(super) first: usize,
    pub(super) rows: u32,
    /// The earliest deadline among them.
    pub(super) due: Time,
}

impl DeadlineQueue {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns the first deadline.
    pub(super) fn first_due(&self) -> Option<Time> {
        self.0.front().map(|request| request.deadline)
    }

    /// Returns the last deadline.
    pub(super) fn last_due(&self) -> Option<Time> {
        self.0.back().map(|request| request.deadline)
    }

    pub(super) fn insert(&mut self, request: GroupRequest) {
        let place = match self.0.back() {
            Some(last) if *last > request => self.0.partition_point(|other| *other < request),
            _ => self.0.len(),
        };
        self.0.insert(place, request);
    }

    /// Removes the first request if it is due before a time.
    pub(super) fn pop_due_before(&mut self, time: Time) -> Option<GroupRequest> {
        self.0.pop_front_if(|first| first.deadline < time)
    }

    /// Removes the requests of a candidate.
    pub(super) fn take(&mut self, candidate: Candidate) -> Vec<GroupRequest> {
        let end = candidate.first + candidate.rows as usize;
        self.0.drain(candidate.first..end).collect()
    }

    /// Returns the largest batch of consecutive requests, of at most `limit` rows, that is done at the earliest deadline among them; of equal ones the first.
    /// `finish` returns the time at which a batch of a number of rows is done.
    pub(super) fn largest(&self, limit: u32, finish: impl Fn(u32) -> Time) -> Option<Candidate> {
        let in_time = |rows| self.first_in_time(rows, finish(rows));
        // If a number of rows is in time from some request on, fewer are, too.
        let waiting = u32::try_from(self.0.len()).unwrap_or(u32::MAX);
        let (mut best, mut too_many) = (None, limit.min(waiting) + 1);
        let mut rows = 0;
        while rows + 1 < too_many {
            let middle = rows + (too_many - rows) / 2;
            match in_time(middle) {
                Some(candidate) => (best, rows) = (Some(candidate), middle),
                None => too_many = middle,
            }
        }
        best
    }

    /// Returns the first batch of `rows` rows that is done at its earliest deadline, if it is done at `finish`.
    pub(super) fn first_in_time(&self, rows: u32, finish: Time) -> Option<Candidate> {
        let first = self.0.partition_point(|request| request.deadline < finish);
        let due = self.0.get(first)?.deadline;
        (first + rows as usize <= self.0.len()).then_some(Candidate { first, rows, due })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn at(millis: u64) -> Time {
        Time::ZERO + Duration::from_millis(millis)
    }

    fn queue(deadlines: &[u64]) -> DeadlineQueue {
        let mut queue = DeadlineQueue::default();
        for (number, deadline) in (0..).zip(deadlines) {
            queue.insert(GroupRequest {
                deadline: at(*deadline),
                number,
                model: 0,
            });
        }
        queue
    }

    /// A batch takes 10 ms and 2 ms more per row.
    fn finish(rows: u32) -> Time {
        at(10 + 2 * u64::from(rows))
    }

    #[test]
    fn the_largest_batch_leaves_those_behind_that_would_make_it_small() {
        // The first request allows one row, the second three, and from the third on there are four.
        let queue = queue(&[13, 17, 40, 41, 42, 43]);
        let found = queue.largest(8, finish).expect("some are in time");
        assert_eq!((found.first, found.rows, found.due), (2, 4, at(40)));
        // With a limit of three, the second request is the first that can be in such a batch.
        let found = queue.largest(3, finish).expect("some are in time");
        assert_eq!((found.first, found.rows), (1, 3));
    }

    #[test]
    fn no_batch_is_late() {
        assert_eq!(queue(&[5, 11]).largest(8, finish), None);
        assert_eq!(queue(&[]).largest(8, finish), None);
    }

    #[test]
    fn a_request_that_comes_back_stands_by_its_deadline_again() {
        let mut queue = queue(&[10, 30, 20]);
        assert_eq!(
            queue.pop_due_before(at(11)).map(|first| first.number),
            Some(0)
        );
        assert_eq!(queue.pop_due_before(at(11)), None);
        let both = queue.largest(2, |_| at(15)).expect("both are in time");
        let numbers: Vec<u64> = queue
            .take(both)
            .iter()
            .map(|request| request.number)
            .collect();
        assert_eq!(numbers, [2, 1]);
        assert!(queue.is_empty());
    }

    #[test]
    fn the_first_batch_in_time_has_so_many_rows() {
        let queue = queue(&[5, 10, 15, 20]);
        let found = queue
            .first_in_time(2, at(10))
            .expect("the second and the third");
        assert_eq!((found.first, found.due), (1, at(10)));
        assert_eq!(queue.first_in_time(4, at(10)), None);
    }
}
