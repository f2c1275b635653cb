//! The agents of nodes: their leases, what they are told, and what they report. Their calls take no time, but may not arrive.

use std::time::Duration;

use packhorse_cluster::{NodeName, WantedState};
use packhorse_control::{Command, CommandError};
use packhorse_reconcile::Event as AgentEvent;

use crate::{
    cluster::Cluster, environment::Environment, events::RareEvent, gateway::Caller, node::Later,
};

impl<E: Environment> Cluster<E> {
    /// Starts the agent of a node, which adopts the workers that run.
    pub fn start_agent(&mut self, name: &NodeName) {
        let index = self.nodes.named(name);
        self.nodes[index].start_agent(self.now, self.settings.limits);
        self.renew(name, Duration::ZERO);
    }

    /// Has the agent of a node ask for its lease after a time, and not when it would have else.
    pub(crate) fn renew(&mut self, name: &NodeName, after: Duration) {
        let at = self.now + after;
        let Some(node) = self.nodes.get_mut(name) else {
            return;
        };
        if let Some(agent) = &mut node.agent {
            agent.renews_at = at;
            agent.waits = false;
            let renews = RareEvent::AgentRenews(name.clone(), node.starts);
            self.events.push(at, renews.into());
        }
    }

    /// Kills the agent of a node; its workers serve on.
    pub fn kill_agent(&mut self, name: &NodeName) {
        let index = self.nodes.named(name);
        self.nodes[index].agent = None;
    }

    /// Has the agents ask for their leases that could not reach a gateway.
    pub(crate) fn end_waits(&mut self) {
        for index in 0..self.nodes.iter().count() {
            self.end_wait(index);
        }
    }

    /// Has the agent of a node ask for its lease if it could not reach the gateway: at the next of the times at which it tries.
    pub(crate) fn end_wait(&mut self, index: usize) {
        let node = &self.nodes[index];
        let waits = node.agent.as_ref().filter(|agent| agent.waits);
        if let Some(agent) = waits
            && node.speaks()
            && self.gateway.is_some()
        {
            let retry = self.settings.retry.as_nanos().max(1);
            let waited = self.now.saturating_since(agent.renews_at).as_nanos();
            let left = waited.div_ceil(retry) * retry - waited;
            let left = u64::try_from(left).expect("less than the time between two tries");
            let name = node.name.clone();
            self.renew(&name, Duration::from_nanos(left));
        }
    }

    pub(crate) fn agent_renews(&mut self, name: &NodeName, starts: u64) {
        let Some(node) = self.nodes.get_mut(name) else {
            return;
        };
        let speaks = node.speaks();
        let agent = node.agent.as_mut().filter(|_| node.starts == starts);
        let Some(agent) = agent.filter(|agent| agent.renews_at == self.now) else {
            return;
        };
        if !speaks || self.gateway.is_none() {
            agent.waits = true;
            return;
        }
        let claim = node.claim();
        let caller = Caller::Lease(name.clone(), starts);
        self.call(caller, Command::TakeLease(name.clone(), claim));
    }

    /// Has an agent take the gateway's answer to its claim of a lease.
    pub(crate) fn lease_answered(
        &mut self,
        name: &NodeName,
        starts: u64,
        result: &Result<(), CommandError>,
    ) {
        let (cluster, epoch) = {
            let controller = self.controller();
            (controller.cluster_id().clone(), controller.epoch())
        };
        let now = self.now;
        let Some(node) = self.nodes.get_mut(name) else {
            return;
        };
        if node.starts != starts || node.agent.is_none() {
            return;
        }
        // An answer that does not arrive grants nothing.
        let arrives = result.is_ok() && node.hears();
        let granted = arrives && node.granted(now, &cluster, epoch);
        let next = if granted {
            self.settings.config.lease / 3
        } else {
            self.settings.retry
        };
        self.renew(name, next);
        if granted {
            self.send_report(name, true);
            self.deliver_wanted(name);
        }
    }

    /// Delivers a grant to an agent that a gateway gave so many starts ago, and that was on its way since then.
    pub fn grant_late(&mut self, name: &NodeName, age: u64) {
        if self.gateway.is_none() {
            return;
        }
        let controller = self.controller();
        let (cluster, epoch) = (controller.cluster_id().clone(), controller.epoch());
        let now = self.now;
        if let Some(node) = self.nodes.get_mut(name).filter(|n| n.agent.is_some()) {
            let granted = node.agent.as_ref().and_then(|agent| agent.granted);
            node.granted(now, &cluster, epoch.saturating_sub(age));
            // The agent knows of the grant that it asked for.
            if let Some(agent) = &mut node.agent {
                agent.granted = granted;
            }
        }
        self.drive();
    }

    /// Delivers the wanted state to an agent that the present one has replaced, and that was on its way since then.
    pub fn want_late(&mut self, name: &NodeName) {
        let now = self.now;
        let earlier = self.gateway.as_ref().and_then(|g| g.earlier.get(name));
        let earlier = earlier.map(|state| WantedState::clone(state));
        let node = self.nodes.get_mut(name);
        if let Some(state) = earlier
            && let Some(agent) = node.and_then(|node| node.agent.as_mut())
        {
            agent.reconciler.handle(now, AgentEvent::Wanted(state));
            self.run_agent(name);
        }
        self.drive();
    }

    /// Has the agent of a node report, if there is something new to say or it does so anyhow.
    fn send_report(&mut self, name: &NodeName, anyhow: bool) {
        let Some(node) = self.nodes.get_mut(name) else {
            return;
        };
        let Some(report) = node.report().filter(|_| node.speaks()) else {
            return;
        };
        let Some(agent) = &mut node.agent else {
            return;
        };
        if agent.granted.is_none() || (!anyhow && agent.sent.as_ref() == Some(&report)) {
            return;
        }
        if self.gateway.is_some() {
            agent.sent = Some(report.clone());
            self.call(Caller::Report, Command::Report(name.clone(), report));
        }
    }

    /// Delivers the wanted state of a node, if its agent waits for it. Only the gateway that granted the lease is obeyed; of a newer
    /// one the agent asks for the lease first.
    pub(crate) fn deliver_wanted(&mut self, name: &NodeName) {
        let now = self.now;
        let wanted = self.gateway.as_ref().and_then(|g| g.wanted.get(name));
        let Some(state) = wanted.cloned() else {
            return;
        };
        let Some(node) = self.nodes.get_mut(name).filter(|node| node.hears()) else {
            return;
        };
        let Some(agent) = &mut node.agent else {
            return;
        };
        let Some(granted) = agent.granted else {
            return;
        };
        if state.epoch > granted {
            self.renew(name, Duration::ZERO);
            return;
        }
        let state = WantedState::clone(&state);
        agent.reconciler.handle(now, AgentEvent::Wanted(state));
        self.run_agent(name);
    }

    /// Has the agent of a node act, and report if something has changed.
    pub(crate) fn run_agent(&mut self, name: &NodeName) {
        let now = self.now;
        let Some(index) = self.nodes.index(name) else {
            return;
        };
        let node = &mut self.nodes[index];
        let later = node.act(now);
        let draining = std::mem::take(&mut node.draining);
        let starts = node.starts;
        let wakeup = node.agent.as_mut().and_then(|agent| {
            let at = agent.reconciler.wakeup()?.max(now);
            let is_new = agent.wakes_at.replace(at) != Some(at);
            is_new.then_some(at)
        });
        for (after, event) in later {
            self.schedule(after, RareEvent::Node(name.clone(), event));
        }
        for worker in draining {
            self.tell_draining(index, &worker);
        }
        if let Some(at) = wakeup {
            let wakes = RareEvent::AgentWakes(name.clone(), starts);
            self.events.push(at, wakes.into());
        }
        self.note_workers(index);
        self.send_report(name, false);
    }

    /// Has the agent of a node act at a time at which it wanted to.
    pub(crate) fn agent_wakes(&mut self, name: &NodeName, starts: u64) {
        let node = self.nodes.get_mut(name).filter(|n| n.starts == starts);
        if let Some(agent) = node.and_then(|node| node.agent.as_mut()) {
            agent.wakes_at.take_if(|at| *at <= self.now);
            self.run_agent(name);
        }
    }

    /// Has something happen at a node that was scheduled.
    pub(crate) fn happen_at_node(&mut self, name: &NodeName, event: Later) {
        let now = self.now;
        let index = self.nodes.named(name);
        if let Some((after, later)) = self.nodes[index].happen(now, event) {
            self.schedule(after, RareEvent::Node(name.clone(), later));
        }
        self.workers_ended(index);
        self.run_agent(name);
    }

    /// Closes the connections to workers that have ended, and has the others of their devices go on.
    pub(crate) fn workers_ended(&mut self, index: usize) {
        if self.nodes[index].ended.is_empty() {
            return;
        }
        self.close_ended(index);
        let number = u32::try_from(index).expect("nodes are few");
        for device in 0..self.nodes[index].hardware.len() {
            let device = u32::try_from(device).expect("devices are few");
            self.schedule_completion(number, device);
        }
        self.note_workers(index);
    }

    fn note_workers(&mut self, index: usize) {
        let node = &mut self.nodes[index];
        for replica in node.started.drain(..) {
            self.environment.worker_started(self.now, replica);
        }
        for replica in node.ended.drain(..) {
            self.environment.worker_ended(self.now, replica);
        }
    }
}
