//! A queue whose entries are found by number and removed in order.

use std::collections::VecDeque;

/// A queue that numbers its entries from 0. An entry that ended stays until all entries before it have ended.
#[derive(Debug)]
pub(super) struct NumberedQueue<T> {
    /// The number of the first entry.
    first: u64,
    pub(super) entries: VecDeque<T>,
}

impl<T> NumberedQueue<T> {
    pub(super) fn new() -> Self {
        Self {
            first: 0,
            entries: VecDeque::new(),
        }
    }

    /// Appends an entry and returns its number.
    pub(super) fn push(&mut self, entry: T) -> u64 {
        let number = self.next();
        self.entries.push_back(entry);
        number
    }

    /// The number of the next entry.
    pub(super) fn next(&self) -> u64 {
        self.first + self.entries.len() as u64
    }

    /// Returns an entry; `None` if it was removed.
    pub(super) fn get_mut(&mut self, number: u64) -> Option<&mut T> {
        self.entries
            .get_mut(usize::try_from(number.checked_sub(self.first)?).ok()?)
    }

    /// Returns the entries with their numbers.
    pub(super) fn numbered(&self) -> impl Iterator<Item = (u64, &T)> {
        (self.first..).zip(&self.entries)
    }

    /// Removes the ended entries at the front.
    pub(super) fn remove_ended(&mut self, ended: impl Fn(&T) -> bool) {
        while self.entries.front().is_some_and(&ended) {
            self.entries.pop_front();
            self.first += 1;
        }
    }
}
