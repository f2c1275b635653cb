//! The faults of a run that have begun and not ended.

use crate::Scenario;

/// The faults of a run by whether they have begun and ended.
#[derive(Debug)]
pub(super) struct ActiveFaults {
    pub(super) active: Vec<bool>,
    /// The number of faults that have not ended.
    pub(super) left: usize,
}

impl ActiveFaults {
    pub(super) fn new(scenario: &Scenario) -> Self {
        let faults = scenario.simulation.faults.len();
        Self {
            active: vec![false; faults],
            left: faults,
        }
    }

    /// Returns true if all faults have ended.
    pub(super) fn are_over(&self) -> bool {
        self.left == 0
    }
}
