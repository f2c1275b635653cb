//! The numbers and sizes of the stored events, and the choice of those that are kept.

use std::collections::VecDeque;

/// The largest number of stored events.
const MAX_EVENTS: usize = 10_000;
/// The largest size of all stored events, in bytes. Events of 10 KiB, which is more than most, reach both limits.
const MAX_BYTES: usize = 100 << 20;
/// The size above which a page of stored events takes no further one, in bytes.
const PAGE_BYTES: usize = 256 << 10;

/// The numbers and sizes of the stored events. It takes 160 KB at most.
#[derive(Debug, Default)]
pub(super) struct Retention {
    /// The kept events, in ascending order.
    kept: VecDeque<(u64, usize)>,
    bytes: usize,
    /// The number of the newest event, also of one that was lost.
    last: u64,
}

/// The position of a reader among the events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Position {
    /// The reader has read everything.
    AtEnd,
    /// These events are the next ones, from the first to the last number.
    Behind(u64, u64),
    /// An event that the reader has not read is no longer kept, or the reader has read events that were never stored here.
    Gap,
}

impl Retention {
    /// Creates the numbers and sizes of stored events, which are given in ascending order.
    pub(super) fn new(stored: Vec<(u64, usize)>) -> Self {
        let mut retention = Self::default();
        for (id, bytes) in stored {
            retention.push(id, bytes);
        }
        retention
    }

    /// Returns the number of the newest event, also of one that was lost; 0 before the first.
    pub(super) fn last(&self) -> u64 {
        self.last
    }

    /// Returns the smallest number that is kept once events of these sizes are added.
    pub(super) fn oldest_with(&self, first_id: u64, sizes: &[usize]) -> u64 {
        let mut count = self.kept.len() + sizes.len();
        let mut bytes = self.bytes + sizes.iter().sum::<usize>();
        let added = (first_id..).zip(sizes.iter().copied());
        let mut all = self.kept.iter().copied().chain(added).peekable();
        while let Some((id, size)) = all.next() {
            if all.peek().is_none() || (count <= MAX_EVENTS && bytes <= MAX_BYTES) {
                return id;
            }
            count -= 1;
            bytes -= size;
        }
        first_id
    }

    /// Adds a stored event.
    pub(super) fn push(&mut self, id: u64, bytes: usize) {
        self.kept.push_back((id, bytes));
        self.bytes += bytes;
        self.last = id;
    }

    /// Removes the events with a number below `oldest_kept`.
    pub(super) fn prune(&mut self, oldest_kept: u64) {
        while let Some((id, bytes)) = self.kept.front().copied()
            && id < oldest_kept
        {
            self.kept.pop_front();
            self.bytes -= bytes;
        }
    }

    /// Notes that events were lost, which leaves a gap of as many numbers.
    pub(super) fn lose(&mut self, events: u64) {
        self.last += events;
    }

    /// Returns the position of a reader whose last event is `since`.
    pub(super) fn position(&self, since: u64) -> Position {
        if since == self.last {
            return Position::AtEnd;
        }
        let next = since.saturating_add(1);
        let (Some(first), Ok(at)) = (
            self.kept.front(),
            self.kept.binary_search_by_key(&next, |(id, _)| *id),
        ) else {
            return Position::Gap;
        };
        debug_assert!(first.0 <= next, "the search has found it");
        // The newest number is that of a lost event, or a gap lies between.
        let consecutive = self.last - next == (self.kept.len() - 1 - at) as u64;
        if !consecutive {
            return Position::Gap;
        }
        let mut page = 0;
        let mut last = next;
        for (id, bytes) in self.kept.range(at..) {
            if page > 0 && page + bytes > PAGE_BYTES {
                break;
            }
            page += bytes;
            last = *id;
        }
        Position::Behind(next, last)
    }

    /// Returns the numbers of the newest events, at most `limit`, and only those after `since`.
    pub(super) fn newest(&self, since: u64, limit: usize) -> Option<(u64, u64)> {
        let begin = self.kept.partition_point(|(id, _)| *id <= since);
        let begin = begin.max(self.kept.len().saturating_sub(limit));
        let (first, _) = self.kept.get(begin)?;
        let (last, _) = self.kept.back()?;
        Some((*first, *last))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(ids: impl IntoIterator<Item = u64>) -> Retention {
        Retention::new(ids.into_iter().map(|id| (id, 100)).collect())
    }

    #[test]
    fn a_reader_reads_on_where_it_stopped() {
        let events = with(5..=9);
        assert_eq!(events.last(), 9);
        assert_eq!(events.position(9), Position::AtEnd);
        assert_eq!(events.position(6), Position::Behind(7, 9));
        assert_eq!(events.position(4), Position::Behind(5, 9));
    }

    #[test]
    fn a_reader_before_a_gap_or_beyond_the_end_has_lost_its_place() {
        let events = with([5, 6, 8, 9]);
        for since in [0, 3, 5, 6, 10, u64::MAX] {
            assert_eq!(events.position(since), Position::Gap, "since {since}");
        }
        assert_eq!(events.position(7), Position::Behind(8, 9));
    }

    #[test]
    fn lost_events_are_a_gap_for_those_who_have_not_read_them() {
        let mut events = with(1..=3);
        events.lose(2);
        assert_eq!(events.position(3), Position::Gap);
        assert_eq!(events.position(1), Position::Gap);
        assert_eq!(events.position(5), Position::AtEnd);
        events.push(6, 100);
        assert_eq!(events.position(5), Position::Behind(6, 6));
        assert_eq!(events.position(3), Position::Gap);
    }

    #[test]
    fn an_empty_log_has_an_end_only() {
        let events = Retention::default();
        assert_eq!(events.position(0), Position::AtEnd);
        assert_eq!(events.position(1), Position::Gap);
        assert_eq!(events.newest(0, 10), None);
    }

    #[test]
    fn the_oldest_events_make_room_for_new_ones() {
        let mut events = with(1..=10_000);
        assert_eq!(events.oldest_with(10_001, &[]), 1);
        let oldest = events.oldest_with(10_001, &[10, 10, 10]);
        assert_eq!(oldest, 4);
        events.prune(oldest);
        assert_eq!(events.position(2), Position::Gap);
        assert!(matches!(events.position(3), Position::Behind(4, _)));
        // An event of half the limit pushes out what does not fit beside it, but never itself.
        let two = [MAX_BYTES / 2 + 1, MAX_BYTES / 2 + 1];
        assert_eq!(events.oldest_with(10_001, &two), 10_002);
        assert_eq!(events.oldest_with(10_001, &[2 * MAX_BYTES]), 10_001);
    }

    #[test]
    fn a_page_ends_at_its_size_and_holds_at_least_one_event() {
        let half = PAGE_BYTES / 2;
        let events = Retention::new(vec![(1, half), (2, half), (3, 1), (4, 9 * half), (5, 1)]);
        assert_eq!(events.position(0), Position::Behind(1, 2));
        assert_eq!(events.position(2), Position::Behind(3, 3));
        assert_eq!(events.position(3), Position::Behind(4, 4));
    }

    #[test]
    fn the_newest_events_are_listed() {
        let events = with([5, 6, 8, 9]);
        assert_eq!(events.newest(0, 2), Some((8, 9)));
        assert_eq!(events.newest(6, 10), Some((8, 9)));
        assert_eq!(events.newest(0, 10), Some((5, 9)));
        assert_eq!(events.newest(9, 10), None);
        assert_eq!(events.newest(0, 0), None);
    }
}
