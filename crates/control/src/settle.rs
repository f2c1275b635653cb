//! The consequences of changes: assigned measurements, the steps of the rollout, and what is published and told.

use packhorse_cluster::{NodeName, Program, ReplicaId, ReplicaState, Time, WantedProfile};

use crate::{
    agent_message::NodeReport,
    controller::Controller,
    effect::Effect,
    event::LinkState,
    notice::{Notice, PlanNotice, ReplicaNotice},
    state::ObservedCluster,
    status::model_status,
};

impl Controller {
    /// Does everything that follows from the state. The cost is in proportion to what has changed.
    pub(crate) fn settle(&mut self, now: Time) {
        self.settle_traffic(now);
        let rollout = &self.state.rollout;
        self.state.measurements.assign(|model, device| {
            let mut here = rollout.on_device(device);
            let runs = here.any(|replica| replica.spec.model.model == *model);
            (runs, rollout.on_device(device).count())
        });
        self.state.assign_inspections();
        let observed = ObservedCluster {
            traffic: &self.state.traffic,
            nodes: &self.state.nodes,
            links: &self.state.links,
            forecasts: &self.state.plan.forecasts,
        };
        let change = self.state.rollout.step(&observed);
        for id in &change.replicas {
            let replica = self.state.rollout.get(*id);
            let target = replica.and_then(|replica| self.target(replica));
            if let Some(change) = self.publications.serve(*id, target) {
                self.serve(change);
            }
            self.announcements.replica(*id);
            if let Some(replica) = self.state.rollout.get(*id) {
                self.announcements.model(&replica.spec.model.model);
            } else {
                self.state.restarts.remove(*id);
            }
        }
        let mut nodes = self.state.measurements.take_touched();
        nodes.extend(self.state.inspections.take_touched());
        nodes.extend(change.nodes);
        for node in nodes {
            self.publish(&node);
        }
        for id in change.broken {
            self.tell_broken(id);
        }
        if !change.replicas.is_empty() {
            self.tell_completed();
        }
        self.announce();
    }

    /// Publishes the wanted state of a node, if it has changed. A node that has not reported must do so first.
    fn publish(&mut self, name: &NodeName) {
        let Some(node) = self.state.nodes.get(name) else {
            return;
        };
        if !node.holds_lease() || node.report.is_none() {
            return;
        }
        let mut replicas = self.state.rollout.wanted(name);
        for replica in &mut replicas {
            replica.attempt = self.state.restarts.attempt(replica.id);
            if let Some(shapes) = self.state.learned_shapes.get(&replica.program.model) {
                // A worker that starts is warm for the requests that come. One that runs goes on.
                replica.program = shapes.as_typical_of(&replica.program);
            }
        }
        let profiles = self.wanted_profiles(name);
        let inspections = self.wanted_inspections(name);
        let epoch = self.fence.epoch();
        let published = &mut self.publications;
        let state = published.publish(epoch, name, replicas, profiles, inspections);
        // What is wanted again may be published already, and finished by now.
        if let Some(revision) = self.publications.revision(name) {
            self.state.measurements.published(name, revision);
            self.state.inspections.published(name, revision);
            let report = self.state.nodes.get(name).and_then(|n| n.report.as_ref());
            if report.is_some_and(NodeReport::has_results) {
                self.unstored.measurement(name.clone());
            }
        }
        if let Some(state) = state {
            self.effect(Effect::Publish(name.clone(), state));
        }
    }

    /// Returns the measurements that a node shall make.
    fn wanted_profiles(&self, node: &NodeName) -> Vec<WantedProfile> {
        let limit = self.config.profile_time_limit.as_millis();
        let time_limit_ms = u64::try_from(limit).unwrap_or(u64::MAX);
        let assigned = self.state.measurements.of_node(node);
        assigned
            .filter_map(|(model, kind, device)| {
                let model = self.state.models.get(model)?;
                Some(WantedProfile {
                    program: self.state.measured_program(model),
                    device: device.local().to_owned(),
                    device_kind: kind.clone(),
                    time_limit_ms,
                    // They tell what a profile may be, and which models share a backbone.
                    inspect: model.operators.is_none(),
                })
            })
            .collect()
    }

    /// Returns the programs that a node shall inspect.
    fn wanted_inspections(&self, node: &NodeName) -> Vec<Program> {
        let model = self.state.inspections.of_node(node);
        let model = model.and_then(|id| self.state.models.get(id));
        let program = model.map(|model| Program::clone(&model.program));
        program.into_iter().collect()
    }

    fn tell_broken(&mut self, id: ReplicaId) {
        let Some(replica) = self.state.rollout.get(id) else {
            return;
        };
        let (model, device) = (&replica.spec.model.model, &replica.spec.device);
        let text = format!(
            "memory of {device} does not hold the old and the new replicas, so replica {id} of model {model} ends first"
        );
        self.plan_degraded(text);
    }

    /// Tells that the plan is rolled out, once it is.
    fn tell_completed(&mut self) {
        let Some(record) = &self.state.plan.record else {
            return;
        };
        let generation = record.generation;
        if self.announcements.completed
            || self.state.rollout.earlier_count() > 0
            || !self
                .state
                .rollout
                .planned()
                .all(|r| self.state.serves(r.id))
        {
            return;
        }
        self.announcements.completed = true;
        let text = "every replica of the plan serves".to_owned();
        self.tell(Notice::Plan(Some(generation), PlanNotice::Completed, text));
    }

    /// Tells what has changed.
    fn announce(&mut self) {
        for name in self.announcements.take_nodes() {
            if let Some(node) = self.state.nodes.get(&name) {
                let devices = node.record.devices.len();
                self.announcements.tell_node(&name, node.state(), devices);
            }
        }
        for id in self.announcements.take_replicas() {
            let now = self.state.rollout.get(id).and_then(|replica| {
                let status = self.state.status(replica);
                let mut reason = status.and_then(|status| status.reason.clone());
                let reported = status.map(|status| status.state);
                let notice = match (reported, self.state.links.get(&id)) {
                    (_, Some(LinkState::Serving)) => ReplicaNotice::Serving,
                    (_, Some(LinkState::Ejected { reason: failure })) => {
                        reason = Some(failure.clone());
                        ReplicaNotice::Ejected
                    }
                    (
                        Some(ReplicaState::Ready),
                        Some(LinkState::Connecting { reason: Some(_) }),
                    ) => ReplicaNotice::Lost,
                    (Some(state), _) => ReplicaNotice::Reported(state),
                    (None, _) => return None,
                };
                Some((&replica.spec.model.model, notice, reason))
            });
            let unknown = self.state.rollout.get(id).is_some() && now.is_none();
            if !unknown {
                self.announcements.tell_replica(id, now);
            }
        }
        for id in self.announcements.take_models() {
            if let Some(status) = model_status(&self.state, &self.planning, &id) {
                self.announcements.tell_model(&id, status);
            }
        }
        for notice in self.announcements.take_notices() {
            self.tell(notice);
        }
    }
}
