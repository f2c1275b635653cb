//! The free and the used ranges of an arena.
//!
//! A range is taken at the lowest address where it fits. The pages that have ever been used are therefore few, and stay few: a page costs
//! a fault and memory when it is used first.

use std::{collections::BTreeMap, ops::Range};

/// The alignment of every range, in bytes: that of a tensor's memory.
pub(crate) const ALIGNMENT: usize = 64;

/// The ranges of an arena.
#[derive(Debug)]
pub(crate) struct Ranges {
    /// The free ranges, by their start; two of them never touch.
    free: BTreeMap<usize, usize>,
    /// The end of the highest range that was ever used.
    touched: usize,
}

/// The number of bytes that a range of this length takes.
fn rounded(length: usize) -> Option<usize> {
    length.max(1).checked_next_multiple_of(ALIGNMENT)
}

impl Ranges {
    /// Creates the ranges of an arena of which nothing is used.
    pub(crate) fn new(size: usize) -> Self {
        Self {
            free: BTreeMap::from([(0, size / ALIGNMENT * ALIGNMENT)]),
            touched: 0,
        }
    }

    /// Takes a range and returns its start; `None` if none is free that ends within `limit`.
    pub(crate) fn take(&mut self, length: usize, limit: usize) -> Option<usize> {
        let length = rounded(length)?;
        let fits = |&(start, free): &(&usize, &usize)| {
            length <= *free && start.checked_add(length).is_some_and(|end| end <= limit)
        };
        let (&start, &free) = self.free.iter().find(fits)?;
        self.free.remove(&start);
        if free > length {
            self.free.insert(start + length, free - length);
        }
        self.touched = self.touched.max(start + length);
        Some(start)
    }

    /// Gives a range back that was taken with this length.
    pub(crate) fn give_back(&mut self, start: usize, length: usize) {
        let length = rounded(length).expect("it was taken");
        let Range { mut start, mut end } = start..start + length;
        if let Some((&before, &free)) = self.free.range(..=start).next_back() {
            assert!(before + free <= start, "a range is given back once");
            if before + free == start {
                self.free.remove(&before);
                start = before;
            }
        }
        if let Some((&after, &free)) = self.free.range(end..).next()
            && after == end
        {
            self.free.remove(&after);
            end += free;
        }
        self.free.insert(start, end - start);
    }

    /// Returns the end of the highest range that was ever used.
    pub(crate) fn touched(&self) -> usize {
        self.touched
    }
}

#[cfg(test)]
mod tests {
    use proptest::{collection::vec, prelude::*};

    use super::*;

    const SIZE: usize = 64 * ALIGNMENT;

    /// The start and the length of every range in use.
    type Used = Vec<(usize, usize)>;

    fn overlap(one: (usize, usize), other: (usize, usize)) -> bool {
        one.0 < other.0 + other.1 && other.0 < one.0 + one.1
    }

    proptest! {
        /// Takes ranges of these lengths, and gives back one of those in use where there is an index.
        #[test]
        fn ranges_in_use_never_overlap_and_nothing_is_lost(
            steps in vec((1_usize..SIZE / 2, proptest::option::of(any::<prop::sample::Index>())), 1..200),
        ) {
            let mut ranges = Ranges::new(SIZE);
            let mut used = Used::new();
            for (length, give_back) in steps {
                if let Some(index) = give_back && !used.is_empty() {
                    let (start, length) = used.swap_remove(index.index(used.len()));
                    ranges.give_back(start, length);
                }
                // The model: the lowest aligned start at which the range overlaps no other.
                let rounded = length.next_multiple_of(ALIGNMENT);
                let expected = (0..=SIZE - rounded).step_by(ALIGNMENT).find(|start| {
                    let others = used.iter().map(|(start, length)| (*start, length.next_multiple_of(ALIGNMENT)));
                    !others.into_iter().any(|other| overlap((*start, rounded), other))
                });
                let taken = ranges.take(length, SIZE);
                prop_assert_eq!(taken, expected);
                used.extend(taken.map(|start| (start, length)));
            }
            for (start, length) in used {
                ranges.give_back(start, length);
            }
            prop_assert_eq!(&ranges.free, &BTreeMap::from([(0, SIZE)]));
            prop_assert!(ranges.touched() <= SIZE);
        }

        #[test]
        fn nothing_ends_beyond_the_limit(lengths in vec(1_usize..SIZE, 1..50), limit in 0_usize..=SIZE) {
            let mut ranges = Ranges::new(SIZE);
            for length in lengths {
                if let Some(start) = ranges.take(length, limit) {
                    prop_assert!(start + length <= limit);
                }
            }
            prop_assert!(ranges.touched() <= limit);
        }
    }

    #[test]
    fn a_length_without_a_multiple_fits_nowhere() {
        assert_eq!(Ranges::new(SIZE).take(usize::MAX, SIZE), None);
        assert_eq!(Ranges::new(0).take(0, 0), None);
    }
}
