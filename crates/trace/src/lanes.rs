//! Threads on which slices that overlap are shown beside each other.

use std::{cmp::Reverse, collections::BinaryHeap};

use packhorse_cluster::Time;

/// Threads on which slices that overlap are shown beside each other.
#[derive(Debug, Default)]
pub(crate) struct Lanes {
    /// The end of the last slice of each lane, the earliest first.
    ends: BinaryHeap<Reverse<(Time, usize)>>,
    count: usize,
}

impl Lanes {
    /// Returns a lane that is free between two times. The begins must ascend.
    pub(crate) fn take(&mut self, begin: Time, end: Time) -> usize {
        let free = self
            .ends
            .peek()
            .is_some_and(|Reverse((end, _))| *end <= begin);
        let lane = match self.ends.pop() {
            Some(Reverse((_, lane))) if free => lane,
            busy => {
                self.ends.extend(busy);
                self.count += 1;
                self.count - 1
            }
        };
        self.ends.push(Reverse((end, lane)));
        lane
    }

    /// Returns the number of lanes so far.
    pub(crate) fn count(&self) -> usize {
        self.count
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn slices_of_a_lane_never_overlap() {
        let at = |ms| Time::ZERO + Duration::from_millis(ms);
        let mut lanes = Lanes::default();
        for (begin, end, lane) in [
            (0, 10, 0),
            (5, 15, 1),
            (10, 12, 0),
            (11, 20, 2),
            (15, 16, 0),
            (15, 17, 1),
        ] {
            assert_eq!(lanes.take(at(begin), at(end)), lane, "{begin}");
        }
        assert_eq!(lanes.count, 3);
    }
}
