//! A list by number that forgets what is over in front.

use std::collections::VecDeque;

/// What is numbered in order and mostly ends in order.
#[derive(Debug)]
pub(super) struct Window<T> {
    first: u64,
    pub(super) entries: VecDeque<T>,
}

impl<T> Window<T> {
    pub(super) fn new() -> Self {
        Self {
            first: 0,
            entries: VecDeque::new(),
        }
    }

    pub(super) fn push(&mut self, entry: T) -> u64 {
        self.entries.push_back(entry);
        self.first + self.entries.len() as u64 - 1
    }

    pub(super) fn get_mut(&mut self, number: u64) -> Option<&mut T> {
        self.entries
            .get_mut(usize::try_from(number.checked_sub(self.first)?).ok()?)
    }

    pub(super) fn forget(&mut self, is_over: impl Fn(&T) -> bool) {
        while self.entries.front().is_some_and(&is_over) {
            self.entries.pop_front();
            self.first += 1;
        }
    }
}
