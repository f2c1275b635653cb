//! The health of a replica, judged by the batches that failed on it.

use std::time::Duration;

use packhorse_cluster::Time;

/// The number of batches that must fail in a row for a replica to be ejected.
pub(crate) const FAILURES_TO_EJECT: u32 = 3;

/// The time after which an ejected replica is probed with one batch; it doubles with every probe that fails.
const FIRST_BACK_OFF: Duration = Duration::from_secs(1);

/// The longest time until an ejected replica is probed again.
const LONGEST_BACK_OFF: Duration = Duration::from_mins(1);

/// The health of a replica.
#[derive(Clone, Debug, Default)]
pub(crate) struct Health {
    state: State,
    /// The batches that failed since one was computed.
    failures: u32,
    first_failure: Time,
    /// The time at which a batch was computed last.
    computed: Option<Time>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    /// It takes batches.
    #[default]
    Healthy,
    /// It takes none for a while.
    Ejected { back_off: Duration },
    /// It takes one batch of one request, which shows if it is healthy again.
    Probed { back_off: Duration },
}

impl Health {
    pub(crate) fn is_healthy(&self) -> bool {
        self.state == State::Healthy
    }

    pub(crate) fn is_ejected(&self) -> bool {
        matches!(self.state, State::Ejected { .. })
    }

    pub(crate) fn is_probed(&self) -> bool {
        matches!(self.state, State::Probed { .. })
    }

    /// Returns the number of batches that failed since one was computed.
    pub(crate) fn failures(&self) -> u32 {
        self.failures
    }

    /// Notes a batch that was computed. Returns true if this shows that a replica that was ejected is healthy again.
    pub(crate) fn computed(&mut self, now: Time) -> bool {
        self.failures = 0;
        self.computed = Some(now);
        !self.is_healthy() && {
            self.state = State::Healthy;
            true
        }
    }

    /// Notes a batch that failed.
    pub(crate) fn failed(&mut self, now: Time) {
        if self.failures == 0 {
            self.first_failure = now;
        }
        self.failures = self.failures.saturating_add(1);
    }

    /// Takes a failure back: its requests failed elsewhere too. Returns true if nothing else speaks against a replica that was ejected.
    pub(crate) fn acquit(&mut self) -> bool {
        let before = self.failures;
        self.failures = before.saturating_sub(1);
        let restored = self.is_ejected() && before == FAILURES_TO_EJECT;
        if restored {
            self.state = State::Healthy;
        }
        restored
    }

    /// Returns true if the failure that was just noted is a reason to eject the replica, provided that the model does not fail elsewhere.
    pub(crate) fn should_be_ejected(&self) -> bool {
        match self.state {
            State::Healthy => self.failures >= FAILURES_TO_EJECT,
            State::Probed { .. } => true,
            State::Ejected { .. } => false,
        }
    }

    /// Returns true if another replica has computed batches while this one failed.
    pub(crate) fn is_refuted_by(&self, other: &Self) -> bool {
        other.is_healthy() && other.failures == 0 && other.computed >= Some(self.first_failure)
    }

    /// Ejects the replica. Returns the time at which it is to be probed.
    pub(crate) fn eject(&mut self, now: Time) -> Time {
        let back_off = match self.state {
            State::Probed { back_off } => (back_off * 2).min(LONGEST_BACK_OFF),
            State::Healthy | State::Ejected { .. } => FIRST_BACK_OFF,
        };
        self.state = State::Ejected { back_off };
        now + back_off
    }

    /// Has an ejected replica take one batch.
    pub(crate) fn probe(&mut self) {
        if let State::Ejected { back_off } = self.state {
            self.state = State::Probed { back_off };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Time {
        Time::ZERO + Duration::from_secs(seconds)
    }

    #[test]
    fn failures_in_a_row_count_and_a_computed_batch_ends_the_row() {
        let mut health = Health::default();
        for _ in 0..2 {
            health.failed(at(1));
            health.failed(at(1));
            assert!(!health.should_be_ejected());
            assert!(!health.computed(at(2)));
        }
        for _ in 0..FAILURES_TO_EJECT {
            health.failed(at(3));
        }
        assert!(health.should_be_ejected());
        let mut other = Health::default();
        assert!(!health.is_refuted_by(&other), "it has computed nothing");
        other.computed(at(2));
        assert!(!health.is_refuted_by(&other), "that was before");
        other.computed(at(3));
        assert!(health.is_refuted_by(&other));
        other.failed(at(3));
        assert!(!health.is_refuted_by(&other), "the model fails there, too");
    }

    #[test]
    fn the_back_off_doubles_up_to_a_minute_and_begins_anew_after_a_recovery() {
        let mut health = Health::default();
        let mut back_offs = Vec::new();
        for _ in 0..8 {
            back_offs.push(health.eject(at(0)).as_secs_f64());
            health.probe();
        }
        assert_eq!(back_offs, [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0]);
        assert!(health.computed(at(1)), "it is healthy again");
        assert_eq!(health.eject(at(1)), at(2));
    }
}
