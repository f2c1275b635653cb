//! A queue whose entries are found by number and removed in order.

use std::collections::VecDeque;

/// A queue that numbers its entries from 0. An entry that ended stays until all entries before it have ended.
#[derive(Debug)]
pub(crate) struct NumberedQueue<T> {
    /// The number of the first entry.
    first: u64,
    entries: VecDeque<T>,
}

impl<T> Default for NumberedQueue<T> {
    fn default() -> Self {
        Self {
            first: 0,
            entries: VecDeque::new(),
        }
    }
}

impl<T> NumberedQueue<T> {
    /// Appends an entry and returns its number.
    pub(crate) fn push(&mut self, entry: T) -> u64 {
        let number = self.next();
        self.entries.push_back(entry);
        number
    }

    /// Returns the number of the next entry.
    pub(crate) fn next(&self) -> u64 {
        self.first + self.entries.len() as u64
    }

    /// Returns an entry; `None` if it was removed.
    pub(crate) fn get(&self, number: u64) -> Option<&T> {
        self.entries
            .get(usize::try_from(number.checked_sub(self.first)?).ok()?)
    }

    /// Returns an entry to change it; `None` if it was removed.
    pub(crate) fn get_mut(&mut self, number: u64) -> Option<&mut T> {
        self.entries
            .get_mut(usize::try_from(number.checked_sub(self.first)?).ok()?)
    }

    /// Returns the entries with their numbers, to change them.
    pub(crate) fn numbered_mut(&mut self) -> impl Iterator<Item = (u64, &mut T)> {
        (self.first..).zip(&mut self.entries)
    }

    /// Returns the entries with their numbers.
    pub(crate) fn numbered(&self) -> impl Iterator<Item = (u64, &T)> {
        (self.first..).zip(&self.entries)
    }

    /// Removes the ended entries at the front.
    pub(crate) fn remove_ended(&mut self, ended: impl Fn(&T) -> bool) {
        while self.entries.front().is_some_and(&ended) {
            self.entries.pop_front();
            self.first += 1;
        }
    }
}
