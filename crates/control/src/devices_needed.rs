//! The number of devices that the cluster needs, for those who add and remove nodes.

use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

use packhorse_cluster::{DeviceKind, Problem, Time};

use crate::{
    controller::Controller,
    plan_reason::{PlanReason, PlanReasons},
};

/// The time for which a need counts after it was found: a cluster that shrinks at the first lull is too small after it.
const HELD: Duration = Duration::from_mins(15);

impl Controller {
    /// Returns the problem of the smallest cluster that serves the requests once a node has started for which the next search finds the need
    /// too, which takes `node_start`, and until one that is asked for a search later has: models with the rates that are forecast for then,
    /// and the present devices, whose kinds the cluster may have. Models without requests are left out.
    pub fn sizing_problem(&self, node_start: Duration) -> Problem {
        let reasons = PlanReasons::from(PlanReason::Preview);
        let delay = node_start + 2 * DevicesNeeded::SEARCH_PERIOD;
        let input = self.planning_input_after(self.policy().to_owned(), reasons, delay);
        let mut problem = input.problem;
        problem.current.clear();
        problem.models.retain(|model| model.rate.get() > 0.0);
        // In the input a device on which models did not start is of a kind of its own; a new one would not be.
        for (device, id) in problem.devices.iter_mut().zip(&input.devices) {
            if let Some(kind) = input.kinds.get(id) {
                device.kind = kind.clone();
            }
        }
        problem
    }
}

/// The smallest clusters that were found lately, and the largest need among them.
///
/// A need counts once two successive searches have found it. The largest of the sixty of 15 minutes would otherwise be that of the one whose
/// forecast was farthest off.
#[derive(Clone, Debug)]
pub struct DevicesNeeded {
    /// The time for which a need counts.
    held: Duration,
    /// True if a need counts at once.
    at_once: bool,
    /// The smallest cluster that was found last; none before the first.
    last: Option<BTreeMap<DeviceKind, usize>>,
    /// What was found, with its time, the oldest first. At each time a kind is needed less than at any time before.
    found: BTreeMap<DeviceKind, VecDeque<(Time, usize)>>,
}

impl Default for DevicesNeeded {
    fn default() -> Self {
        Self::new(HELD, false)
    }
}

impl DevicesNeeded {
    /// The shortest time between two searches for the smallest cluster.
    pub const SEARCH_PERIOD: Duration = Duration::from_secs(15);

    /// Returns needs of which each counts at once and for this time, in place of 15 minutes.
    pub fn held_for(held: Duration) -> Self {
        Self::new(held, true)
    }

    fn new(held: Duration, at_once: bool) -> Self {
        Self {
            held,
            at_once,
            last: None,
            found: BTreeMap::new(),
        }
    }

    /// Notes the smallest cluster that is found now. Kinds that are not in it are not needed.
    pub fn record(&mut self, now: Time, cluster: &BTreeMap<DeviceKind, usize>) {
        let before = self.last.replace(cluster.clone());
        let before = before.filter(|_| !self.at_once);
        let before = before.as_ref().unwrap_or(cluster);
        for kind in cluster.keys() {
            self.found.entry(kind.clone()).or_default();
        }
        for (kind, found) in &mut self.found {
            let in_both = [before, cluster].map(|found| found.get(kind).copied());
            let count = in_both.into_iter().min().flatten().unwrap_or_default();
            while found.pop_back_if(|(_, less)| *less <= count).is_some() {}
            found.push_back((now, count));
        }
        self.forget(now);
    }

    /// Returns the largest number of devices of each kind that was needed within the last 15 minutes.
    pub fn held(&mut self, now: Time) -> BTreeMap<DeviceKind, usize> {
        self.forget(now);
        let largest = self.found.iter();
        largest
            .filter_map(|(kind, found)| Some((kind.clone(), found.front()?.1)))
            .collect()
    }

    /// Returns the smallest cluster that was found last.
    pub fn last(&self) -> BTreeMap<DeviceKind, usize> {
        self.last.clone().unwrap_or_default()
    }

    /// Forgets what was found too long ago.
    fn forget(&mut self, now: Time) {
        let held = self.held;
        for found in self.found.values_mut() {
            while found
                .pop_front_if(|(at, _)| now.saturating_since(*at) > held)
                .is_some()
            {}
        }
        // A kind that was not needed for so long leaves.
        self.found.retain(|_, found| {
            found.front().is_some_and(|(_, count)| *count > 0) || found.len() > 1
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(minutes: u64) -> Time {
        Time::ZERO + Duration::from_mins(minutes)
    }

    fn cluster(kinds: &[(&str, usize)]) -> BTreeMap<DeviceKind, usize> {
        let kinds = kinds.iter();
        kinds
            .map(|(kind, count)| (kind.parse().unwrap(), *count))
            .collect()
    }

    #[test]
    fn a_need_rises_once_it_is_found_twice_and_falls_after_fifteen_minutes() {
        let mut needed = DevicesNeeded::default();
        assert_eq!(needed.held(at(0)), cluster(&[]));
        needed.record(at(0), &cluster(&[("A", 4)]));
        needed.record(at(1), &cluster(&[("A", 6)]));
        assert_eq!(needed.held(at(1)), cluster(&[("A", 4)]));
        assert_eq!(needed.last(), cluster(&[("A", 6)]));
        needed.record(at(2), &cluster(&[("A", 7)]));
        assert_eq!(needed.held(at(2)), cluster(&[("A", 6)]));
        for minute in 3..30 {
            let count = match minute {
                8 | 9 => 5,
                // Found once.
                12 => 9,
                _ => 3,
            };
            needed.record(at(minute), &cluster(&[("A", count)]));
            let expected = match minute {
                ..=17 => 6,
                18..=24 => 5,
                _ => 3,
            };
            assert_eq!(
                needed.held(at(minute)),
                cluster(&[("A", expected)]),
                "{minute}"
            );
        }
    }

    #[test]
    fn a_need_that_counts_at_once_does_not_wait_for_the_next() {
        let mut needed = DevicesNeeded::held_for(Duration::from_mins(5));
        for (minute, found, held) in [(0, 4, 4), (1, 6, 6), (2, 3, 6), (6, 3, 6), (7, 3, 3)] {
            needed.record(at(minute), &cluster(&[("A", found)]));
            assert_eq!(needed.held(at(minute)), cluster(&[("A", held)]), "{minute}");
        }
    }

    #[test]
    fn a_kind_that_is_not_needed_any_more_leaves() {
        let mut needed = DevicesNeeded::default();
        needed.record(at(0), &cluster(&[("A", 2)]));
        needed.record(at(4), &cluster(&[("B", 1)]));
        needed.record(at(5), &cluster(&[("B", 1)]));
        assert_eq!(needed.held(at(5)), cluster(&[("A", 2), ("B", 1)]));
        needed.record(at(16), &cluster(&[("B", 1)]));
        assert_eq!(needed.held(at(16)), cluster(&[("B", 1)]));
        // Without anything new nothing is known any more.
        assert_eq!(needed.held(at(40)), cluster(&[]));
    }
}
