//! The times at which waiting requests may have become hopeless: not even an idle device answers them in time.

use std::{cmp::Reverse, collections::BinaryHeap, time::Duration};

use packhorse_cluster::Time;

/// The times at which the first request of a model may have become hopeless.
#[derive(Clone, Debug, Default)]
pub(super) struct Expirations {
    times: BinaryHeap<Reverse<(Time, usize)>>,
    /// The number of times of each model.
    of_model: Vec<u32>,
}

impl Expirations {
    pub(super) fn new(models: usize) -> Self {
        Self {
            times: BinaryHeap::new(),
            of_model: vec![0; models],
        }
    }

    /// Adds the time of a request that is due at `due` and needs `least` on an idle device.
    pub(super) fn add(&mut self, now: Time, model: usize, due: Time, least: Duration) {
        let latest = due.saturating_sub(least);
        let hopeless = latest + Duration::from_nanos(1);
        self.times.push(Reverse((hopeless.max(now), model)));
        self.of_model[model] += 1;
    }

    /// Removes the next time that has come, and returns its model.
    pub(super) fn pop(&mut self, now: Time) -> Option<usize> {
        let &Reverse((at, model)) = self.times.peek()?;
        if at > now {
            return None;
        }
        self.times.pop();
        self.of_model[model] -= 1;
        Some(model)
    }

    /// Returns true if no time of a model is left. If requests of it wait all the same, their batches have become shorter by the estimate since
    /// their times were added.
    pub(super) fn has_none(&self, model: usize) -> bool {
        self.of_model[model] == 0
    }

    /// Returns the next time.
    pub(super) fn next(&self) -> Option<Time> {
        self.times.peek().map(|Reverse(first)| first.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_hopeless_when_an_idle_device_would_be_late() {
        let at = |millis| Time::ZERO + Duration::from_millis(millis);
        let mut expirations = Expirations::new(1);
        expirations.add(at(0), 0, at(100), Duration::from_millis(30));
        assert_eq!(expirations.pop(at(70)), None);
        let hopeless = at(70) + Duration::from_nanos(1);
        assert_eq!(expirations.next(), Some(hopeless));
        assert!(!expirations.has_none(0));
        assert_eq!(expirations.pop(hopeless), Some(0));
        assert!(expirations.has_none(0));
    }
}
