//! The nodes that come and go during a run, as the autoscaler decides.
//!
//! Every 15 s, as often as the gateway searches for the smallest cluster, the rule of the run says how many devices there shall be. A node that
//! is asked for joins after its start time. A node that is given up is drained, so that its replicas move first, and removed once it has none.

use std::{collections::BTreeMap, time::Duration};

use packhorse_cluster::{DeviceId, NodeName, Scheduling, Time};
use packhorse_control::{Command, DevicesNeeded};

use super::{
    autoscaler::{Autoscaler, Phase, Step},
    control::Control,
    event::SimEvent,
    world::Simulation,
};
use crate::{FaultKind, ScalingRule};

impl<'a> Simulation<'a> {
    /// Begins to decide.
    pub(super) fn start_autoscaler(&mut self) {
        if self.autoscaler.is_some() {
            let first = Time::ZERO + DevicesNeeded::SEARCH_PERIOD;
            self.schedule(first, SimEvent::AutoscalerDecides);
            self.tell_devices(Time::ZERO);
        }
    }

    /// Has the autoscaler decide, unless the gateway is dead.
    pub(super) fn autoscale(&mut self, now: Time) {
        let next = now + DevicesNeeded::SEARCH_PERIOD;
        if next < self.counters.window_end() {
            self.schedule(next, SimEvent::AutoscalerDecides);
        }
        let (Some(mut autoscaler), Some(mut control)) =
            (self.autoscaler.take(), self.reachable_control())
        else {
            return;
        };
        self.remove_drained(now, &mut autoscaler, &mut control);
        self.apply_rule(now, &mut autoscaler, &mut control);
        let replicas: BTreeMap<usize, usize> = control
            .devices
            .iter()
            .map(|(id, device)| (device.0, control.controller.replicas_on(id).count()))
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
                    self.schedule(joins, SimEvent::NodeStarted(device));
                    autoscaler.set(now, device, Phase::Starting);
                }
                Step::Drain => {
                    control.command(now, Command::ScheduleNode(node, Scheduling::Draining, None));
                    autoscaler.set(now, device, Phase::Draining);
                }
                Step::Reopen => {
                    control.command(now, Command::ScheduleNode(node, Scheduling::Open, None));
                    autoscaler.set(now, device, Phase::Open);
                }
            }
        }
        autoscaler.report(now);
        self.autoscaler = Some(autoscaler);
        self.control = Some(control);
        self.tell_devices(now);
    }

    /// Removes the nodes that are drained, and has the gateway forget those that are gone.
    fn remove_drained(&self, now: Time, autoscaler: &mut Autoscaler, control: &mut Control<'a>) {
        for (device, phase) in autoscaler.phases.clone() {
            let name = &self.scenario.problem.devices[device].node;
            let id = DeviceId::new(name.clone(), &device.to_string()).expect("digits are a name");
            if phase == Phase::Draining && control.controller.replicas_on(&id).next().is_none() {
                if let Some(node) = control.nodes.get_mut(name) {
                    node.silent = true;
                }
                autoscaler.set(now, device, Phase::Gone);
            }
            let node = control.controller.node(name);
            if phase == Phase::Gone && node.is_none_or(|node| !node.holds_lease()) {
                control.command(now, Command::RemoveNode(name.clone()));
                autoscaler.set(now, device, Phase::Absent);
            }
        }
    }

    /// Notes what the rule says now.
    fn apply_rule(&self, now: Time, autoscaler: &mut Autoscaler, control: &mut Control<'a>) {
        let busy = autoscaler.phases.keys();
        let busy = busy.map(|&device| (device, self.devices[device].busy_time(now)));
        let busy: BTreeMap<usize, Duration> = busy.collect();
        match &mut control.replanning.scaling {
            Some(ScalingRule::DevicesNeeded(search)) => {
                let node_start = autoscaler.settings.node_start;
                let problem = control.controller.sizing_problem(node_start);
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
    pub(super) fn node_started(&mut self, now: Time, device: usize) {
        if let Some(autoscaler) = &mut self.autoscaler {
            autoscaler.set(now, device, Phase::Open);
            autoscaler.report(now);
        }
        let node = self.scenario.problem.devices[device].node.clone();
        let mut faults: Vec<FaultKind> = self.active_faults().collect();
        faults.retain(|fault| match fault {
            FaultKind::NodeLost(number) | FaultKind::AgentDies(number) => {
                self.node(*number) == node
            }
            _ => false,
        });
        if faults.is_empty() {
            self.set_silent(now, &node, false);
        }
        self.tell_devices(now);
    }

    /// Returns true if there is no such node yet, or any more.
    pub(super) fn is_absent(&self, node: &NodeName) -> bool {
        let devices = &self.scenario.problem.devices;
        let mut phases = self.autoscaler.iter().flat_map(|found| &found.phases);
        phases.any(|(device, phase)| {
            devices[*device].node == *node && !matches!(phase, Phase::Open | Phase::Draining)
        })
    }

    fn tell_devices(&mut self, now: Time) {
        if let (Some(autoscaler), Some(timeline)) = (&mut self.autoscaler, &mut self.timeline) {
            timeline.devices_changed(now, autoscaler.counts(now));
        }
    }
}
