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
    /// Returns the problem of the smallest cluster that serves the requests once a node that is asked for now has started, which takes
    /// `node_start`, and until one that is asked for after the next search has: models with the rates that are forecast for then, and the
    /// present devices, whose kinds the cluster may have. Models without requests are left out.
    pub fn sizing_problem(&self, node_start: Duration) -> Problem {
        let reasons = PlanReasons::from(PlanReason::Preview);
        let delay = node_start + DevicesNeeded::SEARCH_PERIOD;
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

/// The smallest clusters that would have served the measured rates lately, and the largest need among them.
#[derive(Clone, Debug)]
pub struct DevicesNeeded {
    /// The time for which a need counts.
    held: Duration,
    /// What was found, with its time, the oldest first. At each time a kind is needed less than at any time before.
    found: BTreeMap<DeviceKind, VecDeque<(Time, usize)>>,
}

impl Default for DevicesNeeded {
    fn default() -> Self {
        Self::held_for(HELD)
    }
}

impl DevicesNeeded {
    /// The shortest time between two searches for the smallest cluster.
    pub const SEARCH_PERIOD: Duration = Duration::from_secs(15);

    /// Returns needs of which each counts for this time, in place of 15 minutes.
    pub fn held_for(held: Duration) -> Self {
        Self {
            held,
            found: BTreeMap::new(),
        }
    }

    /// Notes the smallest cluster for the rates that are measured now. Kinds that are not in it are not needed.
    pub fn record(&mut self, now: Time, cluster: &BTreeMap<DeviceKind, usize>) {
        for kind in cluster.keys() {
            self.found.entry(kind.clone()).or_default();
        }
        for (kind, found) in &mut self.found {
            let count = cluster.get(kind).copied().unwrap_or_default();
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
        let last = self.found.iter();
        last.filter_map(|(kind, found)| Some((kind.clone(), found.back()?.1)))
            .collect()
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
    fn a_need_rises_at_once_and_falls_after_fifteen_minutes() {
        let mut needed = DevicesNeeded::default();
        assert_eq!(needed.held(at(0)), cluster(&[]));
        needed.record(at(0), &cluster(&[("A", 4)]));
        needed.record(at(1), &cluster(&[("A", 6)]));
        assert_eq!(needed.held(at(1)), cluster(&[("A", 6)]));
        for minute in 2..30 {
            let count = if minute == 9 { 5 } else { 3 };
            needed.record(at(minute), &cluster(&[("A", count)]));
            let expected = match minute {
                ..=16 => 6,
                17..=24 => 5,
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
    fn a_kind_that_is_not_needed_any_more_leaves() {
        let mut needed = DevicesNeeded::default();
        needed.record(at(0), &cluster(&[("A", 2)]));
        needed.record(at(5), &cluster(&[("B", 1)]));
        assert_eq!(needed.held(at(5)), cluster(&[("A", 2), ("B", 1)]));
        needed.record(at(16), &cluster(&[("B", 1)]));
        assert_eq!(needed.held(at(16)), cluster(&[("B", 1)]));
        // Without anything new nothing is known any more.
        assert_eq!(needed.held(at(40)), cluster(&[]));
    }
}
