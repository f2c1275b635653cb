//! The divisions of failed batches that a model may cause.
//!
//! A batch on which the model failed is divided until the requests at fault are alone ([`crate::engine`]): for `k` of `n` that is about
//! `k log n` batches more. They pay off where the others are answered. So each answered request earns one division, which pays for the case
//! that one in `log n` is at fault; what was earned is saved for a while, and a few per second are free. A model that fails on
//! everything earns nothing, and its load grows by these few only.

use packhorse_cluster::Time;

/// The most divisions that are saved; a model begins with them.
const MOST: u64 = 256;
/// The divisions per second that are always allowed.
const ALWAYS: u64 = 10;

/// The divisions that are left.
#[derive(Clone, Debug)]
pub(crate) struct DivisionBudget {
    left: u64,
    /// The tenths of a second, since the start, up to which free divisions were added.
    refilled: u64,
}

impl Default for DivisionBudget {
    fn default() -> Self {
        Self {
            left: MOST,
            refilled: 0,
        }
    }
}

impl DivisionBudget {
    /// Counts requests that were answered.
    pub(crate) fn earn(&mut self, requests: usize) {
        self.left = self.left.saturating_add(requests as u64).min(MOST);
    }

    /// Returns true, and counts a division, if there may be one more.
    pub(crate) fn spend(&mut self, now: Time) -> bool {
        let number = now.as_nanos() / (1_000_000_000 / ALWAYS);
        let free = number.saturating_sub(self.refilled);
        self.refilled = number;
        self.left = self.left.saturating_add(free).min(MOST);
        let allowed = self.left > 0;
        self.left -= u64::from(allowed);
        allowed
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn at(seconds: f64) -> Time {
        Time::ZERO + Duration::from_secs_f64(seconds)
    }

    fn spend_all(budget: &mut DivisionBudget, now: Time) -> u64 {
        let mut spent = 0;
        while budget.spend(now) {
            spent += 1;
        }
        spent
    }

    #[test]
    fn a_model_that_answers_nothing_has_what_it_began_with_and_ten_per_second() {
        let mut budget = DivisionBudget::default();
        assert_eq!(spend_all(&mut budget, at(0.0)), MOST);
        assert_eq!(spend_all(&mut budget, at(1.0)), ALWAYS);
        assert_eq!(spend_all(&mut budget, at(1.05)), 0);
        assert_eq!(spend_all(&mut budget, at(1e6)), MOST);
    }

    #[test]
    fn each_answered_request_earns_a_division() {
        let mut budget = DivisionBudget::default();
        spend_all(&mut budget, at(0.0));
        budget.earn(7);
        assert_eq!(spend_all(&mut budget, at(0.0)), 7);
        budget.earn(usize::MAX);
        assert_eq!(spend_all(&mut budget, at(0.0)), MOST);
    }
}
