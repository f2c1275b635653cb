//! The retries that a model's requests may cause.
//!
//! A cause that breaks every batch would otherwise multiply the load of a model by the number of attempts, when it can bear it least. As in
//! Finagle's `RetryBudget`: of the requests of the last ten seconds a fifth may be tried again, and ten per second beside that, so that a model
//! with few requests has retries, too.

use packhorse_cluster::Time;

/// The length of the window in seconds.
const WINDOW: usize = 10;
/// The retries per second that are always allowed.
const ALWAYS: u64 = 10;
/// The accepted requests that allow one retry more.
const REQUESTS_PER_RETRY: u64 = 5;

/// The numbers of requests and retries of the last seconds.
#[derive(Clone, Debug, Default)]
pub(crate) struct RetryBudget {
    /// The counts of each second, at its number modulo the window.
    seconds: [Second; WINDOW],
}

#[derive(Clone, Copy, Debug, Default)]
struct Second {
    number: u64,
    accepted: u64,
    retried: u64,
}

impl RetryBudget {
    /// Counts a request that was accepted.
    pub(crate) fn accept(&mut self, now: Time) {
        self.second(now).accepted += 1;
    }

    /// Returns true, and counts a retry, if there may be one more.
    pub(crate) fn spend(&mut self, now: Time) -> bool {
        let number = self.second(now).number;
        let recent = self.seconds.iter();
        let recent = recent.filter(|second| number - second.number < WINDOW as u64);
        let (accepted, retried) = recent.fold((0, 0), |(accepted, retried), second| {
            (accepted + second.accepted, retried + second.retried)
        });
        let allowed = ALWAYS * WINDOW as u64 + accepted / REQUESTS_PER_RETRY;
        if retried >= allowed {
            return false;
        }
        self.second(now).retried += 1;
        true
    }

    /// Returns the counts of the present second. Time does not go back.
    fn second(&mut self, now: Time) -> &mut Second {
        let number = now.as_nanos() / 1_000_000_000;
        let second = &mut self.seconds[number as usize % WINDOW];
        if second.number != number {
            *second = Second {
                number,
                ..Second::default()
            };
        }
        second
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn at(seconds: f64) -> Time {
        Time::ZERO + Duration::from_secs_f64(seconds)
    }

    fn spend_all(budget: &mut RetryBudget, now: Time) -> u64 {
        let mut spent = 0;
        while budget.spend(now) {
            spent += 1;
        }
        spent
    }

    #[test]
    fn a_model_without_requests_has_ten_retries_per_second() {
        let mut budget = RetryBudget::default();
        assert_eq!(spend_all(&mut budget, at(0.5)), 100);
        assert_eq!(spend_all(&mut budget, at(9.9)), 0);
        assert_eq!(spend_all(&mut budget, at(10.1)), 100);
        // After a long time nothing of it counts.
        assert_eq!(spend_all(&mut budget, at(1e6)), 100);
    }

    #[test]
    fn a_fifth_of_the_requests_of_ten_seconds_may_be_tried_again() {
        let mut budget = RetryBudget::default();
        for i in 0..1000 {
            budget.accept(at(f64::from(i) / 100.0));
        }
        assert_eq!(spend_all(&mut budget, at(9.999)), 100 + 200);
        // The first second's requests no longer count, and what was spent does.
        assert_eq!(spend_all(&mut budget, at(10.0)), 0);
        assert_eq!(spend_all(&mut budget, at(19.999)), 100);
    }
}
