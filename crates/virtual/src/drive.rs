//! The gateway's tasks: how its two planes are driven, as the real one's are, and its death and return.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use packhorse_cluster::{ModelId, NodeName, ReplicaId};
use packhorse_control::{
    Command, Controller, Effect, Event, MissedRequests, RequestKey, Sample, ServeChange, Target,
};
use packhorse_serving::Action;

use crate::{
    clients::End,
    cluster::Cluster,
    data_plane::DataPlane,
    environment::Environment,
    events::RareEvent,
    gateway::{Caller, Gateway, Served},
    settings::Settings,
    store::Store,
};

/// The number of effects that may follow on one event. With more, something is done again and again.
const MAX_EFFECTS: usize = 100_000;

impl<E: Environment> Cluster<E> {
    /// Returns a cluster without a control plane, whose gateway will serve this plan.
    pub fn without_control(settings: Settings, environment: E, served: Served) -> Self {
        let mut cluster = Self::new(settings, Store::default(), environment);
        cluster.served = Some(served);
        cluster
    }

    /// Starts the gateway, with what is stored.
    pub fn start_gateway(&mut self) {
        assert!(self.gateway.is_none(), "it runs");
        self.gateway_starts += 1;
        let devices = self.nodes.iter().flat_map(crate::Node::device_ids);
        let first_batch = self.network.batches.next();
        let first_replica = self.network.first_replica;
        let data_plane = DataPlane::new(&self.settings, first_batch, first_replica, devices);
        let controller = self.served.is_none().then(|| {
            let (config, stored) = (self.settings.config.clone(), self.store.start());
            self.environment.control_plane_starts(&config, &stored);
            Controller::new(self.now, config, stored)
        });
        self.gateway = Some(Gateway::new(
            self.now,
            controller,
            self.gateway_starts,
            data_plane,
        ));
        self.counted.begin(self.now, self.gateway_starts);
        self.serve_without_control();
        self.end_waits();
        self.drive();
    }

    /// Has a gateway without a control plane serve what it shall, if all of that runs.
    pub(crate) fn serve_without_control(&mut self) {
        let (Some(served), Some(gateway)) = (&self.served, &mut self.gateway) else {
            return;
        };
        let models = served.models.iter().cloned().map(Arc::new);
        let models = models.map(ServeChange::Model);
        let targets = served.targets.iter().cloned().map(Box::new);
        for change in models.chain(targets.map(ServeChange::Replica)) {
            let plane = &mut gateway.data_plane;
            plane.serve(self.now, change, &mut self.clients);
        }
        self.send_again();
    }

    /// Kills the gateway. The write that is under way may still be carried out; those behind it are lost.
    pub fn kill_gateway(&mut self, write_is_carried_out: bool) {
        if let Some(gateway) = self.gateway.take() {
            self.network.first_replica = gateway.data_plane.links.next_number();
        }
        // The connection of each agent breaks on which it waits for its wanted state.
        let names: Vec<NodeName> = self.nodes.iter().map(|node| node.name.clone()).collect();
        for name in names {
            self.renew(&name, self.settings.retry);
        }
        if write_is_carried_out {
            self.store.carry_out_next();
        }
        self.close_all();
        self.break_clients();
        self.invariants.gateway_died();
    }

    /// Stops the whole gateway process for a time: what comes meanwhile waits in its sockets.
    pub fn pause_gateway(&mut self, time: Duration) {
        if let Some(gateway) = &mut self.gateway {
            gateway.paused_until = Some(self.now + time);
            let resumes = RareEvent::GatewayResumes(gateway.start);
            self.schedule(time, resumes);
        }
    }

    pub(crate) fn resume_gateway(&mut self) {
        if let Some(gateway) = &mut self.gateway {
            gateway.paused_until = None;
        }
    }

    /// Returns the controller.
    ///
    /// Panics if the gateway does not run, or has none.
    pub fn controller(&self) -> &Controller {
        let gateway = self.gateway.as_ref().expect("the gateway runs");
        gateway.controller.as_ref().expect("it has a control plane")
    }

    /// Commands something as an admin, and returns the key of the answer.
    pub fn command(&mut self, command: Command) -> RequestKey {
        let key = self.call(Caller::Admin, command);
        self.drive();
        key
    }

    pub(crate) fn call(&mut self, caller: Caller, command: Command) -> RequestKey {
        let key = RequestKey(self.next_request);
        self.next_request += 1;
        if let Some(gateway) = &mut self.gateway {
            if matches!(caller, Caller::Admin) {
                self.invariants.commanded(key, &command);
            }
            gateway.calls.insert(key, caller);
            gateway.inbox.push_back(Event::Requested(key, command));
        }
        key
    }

    pub(crate) fn tell_gateway(&mut self, event: Event) {
        if let Some(gateway) = &mut self.gateway {
            gateway.inbox.push_back(event);
        }
    }

    /// Has the gateway handle what has come, and carries out what it asks for.
    pub fn drive(&mut self) {
        self.drive_and_check(true);
    }

    /// Does the same, and checks all invariants, or those of the data plane where nothing but requests and batches has gone on.
    pub(crate) fn drive_and_check(&mut self, all: bool) {
        let mut effects = 0;
        loop {
            effects += 1;
            assert!(
                effects < MAX_EFFECTS,
                "effects do not end\n{}",
                self.history()
            );
            let now = self.now;
            let Some(gateway) = &mut self.gateway else {
                return;
            };
            if gateway.paused_until.is_some() {
                return;
            }
            if let Some(controller) = &mut gateway.controller {
                if let Some(effect) = controller.poll(now) {
                    self.carry_out(effect);
                    continue;
                }
                if let Some(event) = gateway.inbox.pop_front() {
                    self.environment.controller_handles(now, &event);
                    controller.handle(now, event);
                    continue;
                }
            }
            if !self.drive_data_plane() {
                break;
            }
        }
        if cfg!(debug_assertions) {
            self.check(all || effects > 1);
        }
    }

    /// Has the data plane act, and carries out what it asks for. Returns true if the control plane or the engine may have something to do then.
    fn drive_data_plane(&mut self) -> bool {
        while let Some(gateway) = &mut self.gateway {
            let Some(action) = gateway.data_plane.engine.poll(self.now) else {
                break;
            };
            self.execute(action);
        }
        let Some(gateway) = &mut self.gateway else {
            return false;
        };
        let start = gateway.start;
        if !gateway.data_plane.links.have_changes() {
            return false;
        }
        let sockets = gateway.data_plane.take_socket_changes();
        let links = gateway.data_plane.take_link_changes();
        if gateway.controller.is_some() {
            let changes = links.into_iter();
            let told = changes.map(|(id, state)| Event::LinkChanged(id, state));
            gateway.inbox.extend(told);
        }
        for change in sockets {
            self.change_socket(start, change);
        }
        true
    }

    fn execute(&mut self, action: Action) {
        let Some(gateway) = &mut self.gateway else {
            return;
        };
        let links = &mut gateway.data_plane.links;
        match action {
            Action::Dispatch {
                batch,
                replica,
                requests,
            } => {
                let connection = links.batches(replica).copied();
                self.send_batch(batch, connection, requests);
            }
            Action::Load { replica } => self.load_weights(replica),
            Action::Unload { replica, wanted } => self.unload_weights(replica, wanted),
            Action::Finish { request, outcome } => {
                gateway.data_plane.requests -= 1;
                self.request_ended(request, outcome);
            }
            Action::ReplicaEjected { replica, .. } => {
                links.ejected(replica);
            }
            // People would be told of it.
            Action::TenantPaused { .. } => {}
            Action::ReplicaRestored { replica } => links.restored(replica),
            Action::ReplicaDrained { replica } => links.drained(replica),
        }
    }

    fn carry_out(&mut self, effect: Effect) {
        let now = self.now;
        let gateway = self.gateway.as_mut().expect("it asked for the effect");
        let start = gateway.start;
        match effect {
            Effect::Acknowledge(key, result) => {
                let caller = gateway.calls.remove(&key);
                match caller.expect("a command is answered once") {
                    Caller::Admin => self.invariants.answered(key, &result),
                    Caller::Report => {}
                    Caller::Lease(name, starts) => self.lease_answered(&name, starts, &result),
                }
            }
            Effect::Store(receipt, write) => {
                self.environment.stores(&write);
                if self.store.push(receipt, write) {
                    self.schedule(self.settings.store_delay, RareEvent::Stored(start));
                }
            }
            Effect::Solve(key, input) => {
                gateway.plans_made += 1;
                let result = self.environment.plan(now, &input);
                let solved = RareEvent::Solved(start, key, result);
                self.schedule(self.settings.solve_delay, solved);
            }
            Effect::Sample => {
                let sample = self.sample();
                self.tell_gateway(Event::Sampled(sample));
            }
            Effect::Publish(node, state) => {
                self.invariants.published(&node, &state);
                let earlier = gateway.wanted.insert(node.clone(), state);
                if let Some(earlier) = earlier {
                    gateway.earlier.insert(node.clone(), earlier);
                }
                self.deliver_wanted(&node);
            }
            Effect::Serve(change) => {
                let opens = change == ServeChange::Open;
                let plane = &mut gateway.data_plane;
                plane.serve(now, change, &mut self.clients);
                if opens {
                    gateway.ready_since = Some(now);
                    self.send_again();
                }
            }
            Effect::Tell(notice) => self.note(notice),
        }
    }

    /// Carries out the write that is under way.
    pub(crate) fn stored(&mut self, start: u64) {
        if let Some((receipt, result, more)) = self.store.carry_out_next() {
            if more {
                self.schedule(self.settings.store_delay, RareEvent::Stored(start));
            }
            self.tell_gateway(Event::Stored(receipt, result));
        }
    }

    fn sample(&mut self) -> Sample {
        let gateway = self.gateway.as_ref().expect("it asked for the sample");
        let mut sample = self.counted.sample(self.now, gateway, &self.slowdowns);
        // A registered model without traffic has counts, too.
        let controller = gateway.controller.as_ref();
        for (id, _) in controller.into_iter().flat_map(Controller::models) {
            sample.models.entry(id.clone()).or_default();
        }
        let models = self.clients.models().iter();
        for (model, counts) in models.zip(gateway.data_plane.counts()) {
            if counts.arrived > 0 || counts.within_slo > 0 {
                let sum = sample.models.entry(model.id.clone()).or_default();
                sum.add(*counts);
            }
        }
        let models = self.clients.models().iter();
        for (model, misses) in models.zip(gateway.data_plane.misses()) {
            if *misses != MissedRequests::default() {
                sample.misses.insert(model.id.clone(), misses.clone());
            }
        }
        let scale = |target: &Target| {
            let spec = &target.replica.spec;
            let node = self.nodes.get(spec.device.node())?;
            node.behaviour.scales.get(&spec.model.model).copied()
        };
        let targets = gateway.data_plane.targets();
        let scales: BTreeMap<ReplicaId, f64> = targets
            .filter_map(|(_, id, target)| Some((id, scale(target)?)))
            .collect();
        for (id, work) in gateway.data_plane.work() {
            let scale = scales.get(&id).copied().unwrap_or(1.0);
            let sum = sample.work.entry(id).or_default();
            sum.batches += work.batches;
            sum.rows += work.rows;
            sum.compute += work.compute;
            sum.alone += work.alone.mul_f64(scale);
        }
        sample
    }

    /// Ejects a replica, as the engine does when batches fail on it alone.
    pub fn eject(&mut self, id: ReplicaId) {
        if let Some(gateway) = &mut self.gateway {
            gateway.data_plane.eject(id);
        }
        self.drive();
    }

    /// Returns the replicas of a model that get batches, as the data plane connects to them.
    pub fn serving<'a>(
        &'a self,
        model: &'a ModelId,
    ) -> impl Iterator<Item = (ReplicaId, &'a Target)> {
        let gateway = self.gateway.iter();
        gateway.flat_map(move |gateway| gateway.data_plane.serving(model))
    }

    /// Returns true if a replica of the model gets batches.
    pub(crate) fn serves(&self, model: &ModelId) -> bool {
        self.serving(model).next().is_some()
    }

    /// Notes that the connections of all clients break, unless they send again.
    fn break_clients(&mut self) {
        let waiting: Vec<_> = self.clients.waiting().map(|(request, _)| request).collect();
        for request in waiting {
            if !self.settings.resends {
                self.clients.end(request, End::Broken);
            } else if let Some(pending) = self.clients.pending_mut(request) {
                pending.at_gateway = false;
            }
        }
    }
}
