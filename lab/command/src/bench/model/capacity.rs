//! The search for the highest rate at which nearly all requests are within the SLO.
//!
//! The rate doubles until a step fails, and the interval between the highest rate that passed and the lowest that failed is then halved.

use packhorse_terminal::output::format_number;
use serde::Serialize;

use super::report::format_ms;

/// The part of the requests that must be within the SLO.
pub(super) const REQUIRED: f64 = 0.99;
/// The ratio of the lowest failed to the highest passed rate at which the search ends.
const RESOLUTION: f64 = 1.05;
/// The lowest rate that is tried, in requests per second.
const LOWEST_RPS: f64 = 1.0;

/// A step of a search for the capacity.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct CapacityStep {
    pub(super) rate_rps: f64,
    pub(super) passed: bool,
    pub(super) within_slo: Option<f64>,
    pub(super) throughput_rps: f64,
    pub(super) p50_ms: Option<f64>,
    pub(super) p99_ms: Option<f64>,
    pub(super) lateness_p99_ms: Option<f64>,
}

/// A search.
#[derive(Clone, Debug)]
pub(super) struct CapacitySearch {
    first: f64,
    passed: Option<f64>,
    failed: Option<f64>,
}

impl CapacitySearch {
    /// Begins a search with this rate.
    pub(super) fn new(first: f64) -> Self {
        Self {
            first: first.max(LOWEST_RPS),
            passed: None,
            failed: None,
        }
    }

    /// Returns the next rate to try; `None` at the end.
    pub(super) fn next_rate(&self) -> Option<f64> {
        match (self.passed, self.failed) {
            (None, None) => Some(self.first),
            (Some(passed), None) => Some(2.0 * passed),
            (None, Some(failed)) => (failed > LOWEST_RPS).then(|| (failed / 2.0).max(LOWEST_RPS)),
            (Some(passed), Some(failed)) => {
                (failed > RESOLUTION * passed).then(|| passed.midpoint(failed))
            }
        }
    }

    /// Notes the result of the rate that was tried.
    pub(super) fn note(&mut self, rate: f64, passed: bool) {
        if passed {
            self.passed = Some(rate);
        } else {
            self.failed = Some(rate);
        }
    }

    /// Returns the highest rate that passed; `None` if none did.
    pub(super) fn capacity(&self) -> Option<f64> {
        self.passed
    }
}

impl CapacityStep {
    /// Returns a line for people.
    pub(super) fn describe(&self) -> String {
        let ms = |ms: Option<f64>| ms.map_or_else(|| "-".to_owned(), format_ms);
        format!(
            "{} requests/s: {:.2} % within the SLO, p50 {} ms, p99 {} ms: {}",
            format_number(self.rate_rps),
            self.within_slo.unwrap_or_default() * 100.0,
            ms(self.p50_ms),
            ms(self.p99_ms),
            if self.passed { "passed" } else { "failed" }
        )
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Searches a gateway that serves `capacity` requests per second. Returns the rates that were tried, and the result.
    fn search(first: f64, capacity: f64) -> (Vec<f64>, Option<f64>) {
        let (mut search, mut tried) = (CapacitySearch::new(first), Vec::new());
        while let Some(rate) = search.next_rate() {
            tried.push(rate);
            search.note(rate, rate <= capacity);
        }
        (tried, search.capacity())
    }

    #[test]
    fn the_rate_doubles_and_the_interval_is_halved() {
        let (tried, found) = search(100.0, 270.0);
        assert_eq!(tried, [100.0, 200.0, 400.0, 300.0, 250.0, 275.0, 262.5]);
        assert_eq!(found, Some(262.5));
        let (tried, found) = search(3.0, 0.5);
        assert_eq!((tried, found), (vec![3.0, 1.5, 1.0], None));
    }

    proptest! {
        #[test]
        fn what_is_found_is_within_the_resolution(first in 1.0..1e5_f64, capacity in 1.0..1e6_f64) {
            let (tried, found) = search(first, capacity);
            let found = found.unwrap();
            prop_assert!(found <= capacity && capacity < found * RESOLUTION);
            prop_assert!(tried.len() < 50);
        }
    }
}
