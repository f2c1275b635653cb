//! The nodes that come and go during a run, as the autoscaler decides.
//!
//! Every 15 s, as often as the gateway searches for the smallest cluster, the rule of the run says how many devices there shall be. A node that
//! is asked for joins after its start time. A node that is given up is drained, so that its replicas move first, and removed once it has none.

use std::{collections::BTreeMap, time::Duration};

use packhorse_cluster::{NodeName, Scheduling, Time};
use packhorse_control::{Command, DevicesNeeded};

use super::{
    autoscaler::{Autoscaler, Phase, Step},
    control::device_id,
    run::{Alarm, Simulation},
};
use crate::ScalingRule;

impl Simulation<'_> {
    /// Begins to decide.
    pub(super) fn start_autoscaler(&mut self) {
        if self.autoscaler.is_some() {
            let first = Time::ZERO + DevicesNeeded::SEARCH_PERIOD;
            self.set_alarm(first, Alarm::AutoscalerDecides);
            self.tell_devices();
        }
    }

    /// Has the autoscaler decide, unless the gateway is dead.
    pub(super) fn autoscale(&mut self) {
        let now = self.cluster.now;
        let next = now + DevicesNeeded::SEARCH_PERIOD;
        if next < self.cluster.environment.counters.window_end() {
            self.set_alarm(next, Alarm::AutoscalerDecides);
        }
        if self.cluster.gateway.is_none() {
            return;
        }
        let Some(mut autoscaler) = self.autoscaler.take() else {
            return;
        };
        self.remove_drained(now, &mut autoscaler);
        self.apply_rule(now, &mut autoscaler);
        let controller = self.cluster.controller();
        let devices = 0..self.scenario.problem.devices.len();
        let replicas: BTreeMap<usize, usize> = devices
            .map(|device| {
                let id = device_id(self.scenario, device);
                (device, controller.replicas_on(&id).count())
            })
            .collect();
        let kind = &autoscaler.settings.kind;
        let wanted = autoscaler.needed.held(now).get(kind).copied();
        // Without a number nothing changes.
        let steps = wanted.map(|wanted| autoscaler.steps(wanted, &replicas));
        for (device, step) in steps.into_iter().flatten() {
            let node = self.scenario.problem.devices[device].node.clone();
            match step {
                Step::Ask => {
                    let joins = now + autoscaler.settings.node_start;
                    self.set_alarm(joins, Alarm::NodeStarted(device));
                    autoscaler.set(now, device, Phase::Starting);
                }
                Step::Drain => {
                    self.command(Command::ScheduleNode(node, Scheduling::Draining, None));
                    autoscaler.set(now, device, Phase::Draining);
                }
                Step::Reopen => {
                    self.command(Command::ScheduleNode(node, Scheduling::Open, None));
                    autoscaler.set(now, device, Phase::Open);
                }
            }
        }
        autoscaler.report(now);
        self.autoscaler = Some(autoscaler);
        self.tell_devices();
    }

    /// Removes the nodes that are drained, and has the gateway forget those that are gone.
    fn remove_drained(&mut self, now: Time, autoscaler: &mut Autoscaler) {
        for (device, phase) in autoscaler.phases.clone() {
            let name = &self.scenario.problem.devices[device].node;
            let id = device_id(self.scenario, device);
            let controller = self.cluster.controller();
            let is_empty = controller.replicas_on(&id).next().is_none();
            let node = controller.node(name);
            let is_forgotten = node.is_none_or(|node| !node.holds_lease());
            if phase == Phase::Draining && is_empty {
                self.cluster.switch_off(name);
                autoscaler.set(now, device, Phase::Gone);
            }
            if phase == Phase::Gone && is_forgotten {
                self.command(Command::RemoveNode(name.clone()));
                autoscaler.set(now, device, Phase::Absent);
            }
        }
    }

    /// Notes what the rule says now.
    fn apply_rule(&mut self, now: Time, autoscaler: &mut Autoscaler) {
        let busy = autoscaler.phases.keys().map(|&device| {
            let (node, local) = self.place(device);
            (device, self.cluster.busy_time(&node, local))
        });
        let busy: BTreeMap<usize, Duration> = busy.collect();
        let node_start = autoscaler.settings.node_start;
        let gateway = self.cluster.gateway.as_ref();
        let controller = gateway.and_then(|gateway| gateway.controller.as_ref());
        let planner = self.cluster.environment.planner.as_mut();
        match planner.and_then(|planner| planner.replanning.scaling.as_mut()) {
            Some(ScalingRule::DevicesNeeded(search)) => {
                let problem = controller.map(|controller| controller.sizing_problem(node_start));
                let problem = problem.expect("the autoscaler waits for a gateway");
                if let Some(found) = search(&problem, &autoscaler.needed.last()) {
                    autoscaler.needed.record(now, &found);
                }
            }
            Some(ScalingRule::Utilization(target, _)) => {
                let wanted = autoscaler.wanted_for_utilization(&busy, *target);
                let kind = autoscaler.settings.kind.clone();
                let found = BTreeMap::from([(kind, wanted)]);
                autoscaler.needed.record(now, &found);
            }
            None => {}
        }
        autoscaler.busy = busy;
    }

    /// Has the agent of a new node join.
    pub(super) fn node_started(&mut self, device: usize) {
        let now = self.cluster.now;
        if let Some(autoscaler) = &mut self.autoscaler {
            autoscaler.set(now, device, Phase::Open);
            autoscaler.report(now);
        }
        let node = self.scenario.problem.devices[device].node.clone();
        self.start_agent(&node);
        self.tell_devices();
    }

    /// Returns true if there is no such node yet, or any more.
    pub(super) fn is_absent(&self, node: &NodeName) -> bool {
        let devices = &self.scenario.problem.devices;
        let mut phases = self.autoscaler.iter().flat_map(|found| &found.phases);
        phases.any(|(device, phase)| {
            devices[*device].node == *node && !matches!(phase, Phase::Open | Phase::Draining)
        })
    }

    fn tell_devices(&mut self) {
        let now = self.cluster.now;
        let timeline = &mut self.cluster.environment.timeline;
        if let (Some(autoscaler), Some(timeline)) = (&mut self.autoscaler, timeline) {
            timeline.devices_changed(now, autoscaler.counts(now));
        }
    }
}
