//! The batches that a device holds, and the time at which it should be done with them.

use std::{collections::VecDeque, time::Duration};

use packhorse_cluster::Time;

use super::GroupRequest;

/// A batch that a device computes or is about to.
#[derive(Clone, Debug)]
pub(super) struct HeldBatch {
    pub(super) batch: u64,
    pub(super) model: usize,
    pub(super) requests: Vec<GroupRequest>,
    /// The time at which it is at the device.
    pub(super) there: Time,
    /// The expected time of its computation.
    pub(super) compute: Duration,
}

/// The batches that a device holds, in the order of computation.
#[derive(Clone, Debug, Default)]
pub(super) struct DeviceClock {
    held: VecDeque<HeldBatch>,
    /// The time at which the device should be done with them.
    free: Time,
}

impl DeviceClock {
    /// Returns the time at which a further batch could begin, were it there. A batch that takes longer than expected may end at any moment.
    pub(super) fn free_at(&self, now: Time) -> Time {
        self.free.max(now)
    }

    pub(super) fn held(&self) -> &VecDeque<HeldBatch> {
        &self.held
    }

    pub(super) fn push(&mut self, batch: HeldBatch) {
        self.free = self.free.max(batch.there) + batch.compute;
        self.held.push_back(batch);
    }

    /// Removes a batch with which the device was done at `at`. The others begin as much earlier or later.
    pub(super) fn remove(&mut self, batch: u64, at: Time) -> Option<HeldBatch> {
        let place = self.held.iter().position(|held| held.batch == batch)?;
        let removed = self.held.remove(place);
        let done = |free: Time, held: &HeldBatch| free.max(held.there) + held.compute;
        self.free = self.held.iter().fold(at, done);
        removed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Time {
        Time::ZERO + Duration::from_millis(millis)
    }

    #[test]
    fn batches_follow_each_other_and_one_that_ends_early_moves_the_others() {
        let mut clock = DeviceClock::default();
        let batch = |batch, there| HeldBatch {
            batch,
            model: 0,
            requests: Vec::new(),
            there: at(there),
            compute: Duration::from_millis(10),
        };
        clock.push(batch(0, 5));
        clock.push(batch(1, 8));
        assert_eq!(clock.free_at(at(0)), at(25));
        assert!(clock.remove(0, at(12)).is_some());
        assert_eq!(clock.free_at(at(12)), at(22));
        // It is overdue.
        assert_eq!(clock.free_at(at(30)), at(30));
        assert!(clock.remove(7, at(30)).is_none());
    }
}
