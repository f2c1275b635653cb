//! The autoscaler of a run, which decides when nodes of one device are asked for, drained and removed.

use std::{cmp::Reverse, collections::BTreeMap, time::Duration};

use packhorse_cluster::Time;
use packhorse_control::DevicesNeeded;

use crate::{
    ScalingRule, Scenario,
    report::{AutoscaleReport, DeviceCounts},
    scenario::Autoscale,
};

/// The part of its target within which a utilisation changes nothing, the default of Kubernetes' controller.
const TOLERANCE: f64 = 0.1;

/// The state of a device of the autoscaled kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// There is no such node.
    Absent,
    /// The node was asked for and has not joined.
    Starting,
    /// The node takes replicas.
    Open,
    /// The node is being drained.
    Draining,
    /// The node is gone, and the gateway will know when its lease ends.
    Gone,
}

/// A step of the autoscaler, for one device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// A new node is asked for.
    Ask,
    /// The replicas of the node move, and then it is removed.
    Drain,
    /// A node that is being drained is kept.
    Reopen,
}

/// The autoscaler of a run.
pub(super) struct Autoscaler {
    pub(super) settings: Autoscale,
    /// The state of each device that there may be, by its index in the scenario.
    pub(super) phases: BTreeMap<usize, Phase>,
    /// The devices that the rule found to be needed.
    pub(super) needed: DevicesNeeded,
    /// The time for which each device had computed at the last decision.
    pub(super) busy: BTreeMap<usize, Duration>,
    report: AutoscaleReport,
    /// The time up to which the devices' time is counted.
    counted: Time,
}

impl Autoscaler {
    /// Returns the autoscaler of a scenario that has one.
    pub(super) fn new(scenario: &Scenario, rule: Option<&ScalingRule<'_>>) -> Option<Self> {
        let settings = scenario.autoscale.clone()?;
        let devices = scenario.problem.devices.iter().enumerate();
        let phases = devices
            .filter(|(_, device)| device.kind == settings.kind)
            .map(|(number, _)| {
                let phase = if number < settings.devices_at_start {
                    Phase::Open
                } else {
                    Phase::Absent
                };
                (number, phase)
            });
        let needed = match rule? {
            ScalingRule::DevicesNeeded(_) => DevicesNeeded::default(),
            ScalingRule::Utilization(_, window) => DevicesNeeded::held_for(*window),
        };
        let phases = phases.collect();
        let mut autoscaler = Self::with_phases(settings, phases, needed);
        autoscaler.report(Time::ZERO);
        Some(autoscaler)
    }

    fn with_phases(
        settings: Autoscale,
        phases: BTreeMap<usize, Phase>,
        needed: DevicesNeeded,
    ) -> Self {
        Self {
            phases,
            needed,
            busy: BTreeMap::new(),
            report: AutoscaleReport {
                kind: settings.kind.clone(),
                device_hours: 0.0,
                over_time: Vec::new(),
            },
            counted: Time::ZERO,
            settings,
        }
    }

    /// Returns the report of a run that has ended.
    pub(super) fn into_report(mut self, end: Time) -> AutoscaleReport {
        self.count_time(end);
        self.report
    }

    /// Returns the present numbers of devices.
    pub(super) fn counts(&mut self, now: Time) -> DeviceCounts {
        let needed = self.needed.held(now);
        DeviceCounts {
            t_s: now.as_secs_f64(),
            needed: needed.get(&self.settings.kind).copied(),
            have: self.count(Phase::Open),
            starting: self.count(Phase::Starting),
            draining: self.count(Phase::Draining),
        }
    }

    fn count(&self, phase: Phase) -> usize {
        let phases = self.phases.values();
        phases.filter(|found| **found == phase).count()
    }

    pub(super) fn set(&mut self, now: Time, device: usize, phase: Phase) {
        self.count_time(now);
        self.phases.insert(device, phase);
    }

    /// Adds the time of the devices since the last change.
    fn count_time(&mut self, now: Time) {
        let paid = [Phase::Starting, Phase::Open, Phase::Draining].map(|phase| self.count(phase));
        let devices = paid.iter().sum::<usize>() as f64;
        let hours = now.saturating_since(self.counted).as_secs_f64() / 3600.0;
        self.report.device_hours += devices * hours;
        self.counted = now.max(self.counted);
    }

    /// Adds the present numbers to the report if they have changed.
    pub(super) fn report(&mut self, now: Time) {
        let counts = self.counts(now);
        let last = self.report.over_time.last();
        let last = last.map(|last| DeviceCounts {
            t_s: counts.t_s,
            ..*last
        });
        if last != Some(counts) {
            self.report.over_time.push(counts);
        }
    }

    /// Returns the steps towards this number of devices, within the limits. `replicas` has the number of replicas of each device.
    pub(super) fn steps(
        &self,
        wanted: usize,
        replicas: &BTreeMap<usize, usize>,
    ) -> Vec<(usize, Step)> {
        let wanted = wanted.clamp(self.settings.min, self.settings.max);
        let in_phase = |phase: Phase| {
            let phases = self.phases.iter();
            let devices = phases.filter(move |(_, found)| **found == phase);
            devices.map(|(device, _)| *device)
        };
        let (open, starting) = (self.count(Phase::Open), self.count(Phase::Starting));
        if open > wanted {
            // The fewest replicas move.
            let mut devices: Vec<usize> = in_phase(Phase::Open).collect();
            devices.sort_by_key(|device| {
                let count = replicas.get(device).copied().unwrap_or_default();
                (count, Reverse(*device))
            });
            let given_up = devices.into_iter().take(open - wanted);
            return given_up.map(|device| (device, Step::Drain)).collect();
        }
        let missing = wanted.saturating_sub(open + starting);
        let reopened = in_phase(Phase::Draining).map(|device| (device, Step::Reopen));
        let asked = in_phase(Phase::Absent).map(|device| (device, Step::Ask));
        reopened.chain(asked).take(missing).collect()
    }

    /// Returns the number of devices that are wanted, by the utilisation of the devices since the last decision.
    pub(super) fn wanted_for_utilization(
        &self,
        busy: &BTreeMap<usize, Duration>,
        target: f64,
    ) -> usize {
        let period = DevicesNeeded::SEARCH_PERIOD.as_secs_f64();
        let before = |device| self.busy.get(device).copied().unwrap_or_default();
        let open = busy
            .iter()
            .filter(|(device, _)| self.phases.get(*device) == Some(&Phase::Open));
        let used: f64 = open
            .map(|(device, busy)| busy.saturating_sub(before(device)).as_secs_f64() / period)
            .sum();
        let (open, present) = (
            self.count(Phase::Open),
            self.count(Phase::Open) + self.count(Phase::Starting),
        );
        let ratio = used / (target * open.max(1) as f64);
        let wanted = (used / target).ceil() as usize;
        if (ratio - 1.0).abs() <= TOLERANCE {
            present
        } else if ratio > 1.0 {
            // The nodes that start count as idle.
            wanted.max(present)
        } else {
            wanted
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: u64 = 60;

    fn at(seconds: u64) -> Time {
        Time::ZERO + Duration::from_secs(seconds)
    }

    /// An autoscaler of 2 to 5 devices with these states.
    fn autoscaler(phases: [Phase; 5]) -> Autoscaler {
        let settings = Autoscale {
            kind: "A".parse().unwrap(),
            min: 2,
            max: 5,
            node_start: Duration::from_mins(1),
            devices_at_start: 2,
        };
        let phases = phases.into_iter().enumerate().collect();
        Autoscaler::with_phases(settings, phases, DevicesNeeded::default())
    }

    use Phase::{Absent, Draining, Gone, Open, Starting};

    fn check(phases: [Phase; 5], wanted: usize, expected: &[(usize, Step)]) {
        // The second device has no replicas, the others have two each.
        let replicas = [(0, 2), (2, 2), (3, 2), (4, 2)].into_iter().collect();
        let steps = autoscaler(phases).steps(wanted, &replicas);
        assert_eq!(steps, expected, "{phases:?} to {wanted}");
    }

    #[test]
    fn missing_devices_are_reopened_first_and_then_asked_for() {
        let phases = [Open, Open, Draining, Absent, Absent];
        check(phases, 2, &[]);
        check(phases, 3, &[(2, Step::Reopen)]);
        check(phases, 4, &[(2, Step::Reopen), (3, Step::Ask)]);
        // A device that starts is on its way.
        check([Open, Open, Starting, Absent, Absent], 3, &[]);
        // A node that is gone can be asked for once the gateway has forgotten it.
        check([Open, Open, Open, Gone, Absent], 5, &[(4, Step::Ask)]);
    }

    #[test]
    fn the_devices_with_the_fewest_replicas_are_drained_and_no_more_than_are_open() {
        let phases = [Open, Open, Open, Open, Absent];
        check(phases, 3, &[(1, Step::Drain)]);
        check(phases, 2, &[(1, Step::Drain), (3, Step::Drain)]);
        // Two are needed until the third has started.
        check([Open, Open, Starting, Absent, Absent], 2, &[]);
    }

    #[test]
    fn the_limits_hold() {
        check([Open, Open, Open, Open, Open], 9, &[]);
        check([Open, Open, Open, Open, Absent], 9, &[(4, Step::Ask)]);
        check([Open, Open, Absent, Absent, Absent], 0, &[]);
        check([Open, Open, Open, Absent, Absent], 0, &[(1, Step::Drain)]);
    }

    #[test]
    fn a_need_is_held_for_a_quarter_of_an_hour() {
        let mut autoscaler = autoscaler([Open, Open, Open, Open, Absent]);
        let kind = autoscaler.settings.kind.clone();
        let mut counts = Vec::new();
        for (second, count) in [(0, 4), (MINUTE, 2), (15 * MINUTE, 2), (15 * MINUTE + 15, 2)] {
            let found = BTreeMap::from([(kind.clone(), count)]);
            autoscaler.needed.record(at(second), &found);
            counts.push(autoscaler.counts(at(second)).needed.unwrap());
        }
        assert_eq!(counts, [4, 4, 4, 2]);
    }

    #[test]
    fn device_hours_are_counted_from_the_request_to_the_removal() {
        let mut autoscaler = autoscaler([Open, Open, Absent, Absent, Absent]);
        autoscaler.set(at(60 * MINUTE), 2, Starting);
        autoscaler.set(at(61 * MINUTE), 2, Open);
        autoscaler.set(at(90 * MINUTE), 2, Draining);
        autoscaler.set(at(120 * MINUTE), 2, Gone);
        autoscaler.set(at(121 * MINUTE), 2, Absent);
        // Two devices for three hours, and one for one.
        let hours = autoscaler.into_report(at(180 * MINUTE)).device_hours;
        assert!((hours - 7.0).abs() < 1e-9, "{hours}");
    }

    #[test]
    fn utilization_changes_the_number_beyond_a_tenth_of_its_target() {
        let check = |busy_seconds: f64, phases, expected: usize| {
            let busy = (0..5)
                .map(|device| (device, Duration::from_secs_f64(busy_seconds)))
                .collect();
            let wanted = autoscaler(phases).wanted_for_utilization(&busy, 0.7);
            assert_eq!(wanted, expected, "{busy_seconds} s of 15");
        };
        let three = [Open, Open, Open, Absent, Absent];
        // 3 · 0.7 / 0.7, and the same within a tenth.
        check(10.5, three, 3);
        check(11.4, three, 3);
        check(9.6, three, 3);
        // 3 · 0.9 / 0.7 is 3.9, 3 · 0.4 / 0.7 is 1.7.
        check(13.5, three, 4);
        check(6.0, three, 2);
        // The fourth is on its way.
        check(13.5, [Open, Open, Open, Starting, Starting], 5);
    }
}
