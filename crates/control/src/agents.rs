//! The messages of agents, and what the data plane observes of replicas.

use packhorse_cluster::{
    DeviceKind, ModelId, NodeName, ProfileProgress, ProfileSource, ReplicaId, ReplicaState, Time,
};

use crate::{
    agent_message::{LeaseClaim, NodeReport},
    command::CommandError,
    controller::Controller,
    effect::{Effect, Write},
    event::LinkState,
    fencing::EpochClaim,
    keys::RequestKey,
    measurements::{Measurement, MeasurementError, result},
    nodes::{Node, ReportChange},
    notice::{DeviceNotice, Notice},
    pending::Pending,
    plan_reason::PlanReason,
    rollout::PlacedReplica,
};

/// The number of successive failed starts after which a model is planned elsewhere, if it can be.
const FAILED_STARTS: u32 = 3;

impl Controller {
    /// Takes a claim to the lease of a node. If the agent has seen later epochs than this gateway's, whose store was restored from a
    /// backup, the epoch is raised first.
    pub(crate) fn lease_requested(
        &mut self,
        now: Time,
        request: RequestKey,
        name: &NodeName,
        claim: LeaseClaim,
    ) {
        if self.pending.values().any(|pending| pending.removes(name)) {
            // The agent asks again. Once the node is removed, it joins as a new one.
            self.effect(Effect::Acknowledge(request, Err(CommandError::Busy)));
            return;
        }
        let required = self.fence.required_epoch(EpochClaim {
            node: name,
            instance: &claim.instance,
            cluster_id: claim.cluster_id.as_ref(),
            highest_epoch: claim.highest_epoch,
        });
        let result = match required {
            Ok(Some(epoch)) => {
                let pending = Pending::Epoch(epoch, request, name.clone(), claim);
                self.store(Write::BeginEpoch(epoch), pending);
                return;
            }
            Ok(None) => self.take_lease(now, name, claim),
            Err(implausible) => Err(CommandError::InvalidField {
                field: "highest_epoch",
                problem: implausible.to_string(),
            }),
        };
        self.effect(Effect::Acknowledge(request, result));
    }

    /// Raises the epoch, and publishes everything again with it.
    pub(crate) fn raise_epoch(&mut self, epoch: u64) {
        if epoch > self.fence.epoch() {
            self.fence.raise(epoch);
            let nodes = self.state.nodes.iter();
            let names: Vec<NodeName> = nodes.map(|(name, _)| name.clone()).collect();
            for name in names {
                self.state.rollout.touch_node(&name);
            }
        }
    }

    /// Grants or renews the lease of a node.
    fn take_lease(
        &mut self,
        now: Time,
        name: &NodeName,
        claim: LeaseClaim,
    ) -> Result<(), CommandError> {
        let until = now + self.config.lease;
        let instance = claim.instance.clone();
        let leased = self.state.nodes.take_lease(now, name, claim, until)?;
        self.fence.granted(name, &instance);
        if !leased.joined && !leased.changed {
            return Ok(());
        }
        if leased.changed {
            self.store_node(name);
        }
        self.node_changed(now, name);
        self.state.rollout.touch_node(name);
        self.announcements.node(name);
        let reason = if leased.joined {
            PlanReason::NodeJoined(name.clone())
        } else {
            PlanReason::DevicesChanged(name.clone())
        };
        self.request_plan(now, reason);
        Ok(())
    }

    /// Takes the report of a node.
    pub(crate) fn report(
        &mut self,
        now: Time,
        name: &NodeName,
        report: NodeReport,
    ) -> Result<(), CommandError> {
        let applied = (report.epoch, report.revision);
        let ReportChange {
            first,
            replicas,
            measurements,
        } = self.state.nodes.report(now, name, report)?;
        if first {
            self.awaited.remove(name);
            self.state.rollout.touch_node(name);
        }
        for id in replicas {
            self.state.rollout.touch(id);
            self.announcements.replica(id);
            if let Some(replica) = self.state.rollout.get(id) {
                let replica = replica.clone();
                self.announcements.model(&replica.spec.model.model);
                self.check_batch_limit(now, &replica);
                self.check_start(now, &replica);
            }
        }
        if measurements {
            self.state.set_inspecting_node(name);
            self.collect_measurements(now, name, applied);
            self.collect_inspection(now, name, applied);
        }
        Ok(())
    }

    /// Takes over the batch limit that a replica's worker found below the planned batch size.
    fn check_batch_limit(&mut self, now: Time, replica: &PlacedReplica) {
        let status = self.state.status(replica);
        let Some(capacity) = status.and_then(|status| status.capacity) else {
            return;
        };
        let (rows, planned) = (capacity.batch_size.max(1), replica.spec.batch_size);
        let Some(kind) = self.state.kind(&replica.spec.device).cloned() else {
            return;
        };
        let model = replica.spec.model.model.clone();
        if rows < planned
            && replica.is_planned()
            && self.state.memory_limits.lower(now, &model, &kind, rows)
        {
            let reason = PlanReason::BatchLimit {
                model,
                kind,
                rows,
                planned,
            };
            self.request_plan(now, reason);
        }
    }

    /// Plans around a replica that cannot start, and notes that a model cannot be served at all.
    fn check_start(&mut self, now: Time, replica: &PlacedReplica) {
        let Some(status) = self.state.status(replica) else {
            return;
        };
        let status = status.clone();
        let state = status.state;
        let failures = self.state.start_failures.note(now, &status);
        let reason = status.reason.unwrap_or_default();
        let model = replica.spec.model.model.clone();
        match state {
            ReplicaState::Ready => self.state.exclusions.forgive(&replica.spec.device, &model),
            ReplicaState::Failed if !self.state.models.serves(&replica.spec.model) => {}
            ReplicaState::Failed if !self.state.is_served(&model) => {
                self.fail_model(now, &model, &reason);
            }
            ReplicaState::Failed => self.exclude(now, replica, &reason),
            ReplicaState::BackingOff
                if failures >= FAILED_STARTS && self.can_be_elsewhere(replica) =>
            {
                self.exclude(now, replica, &reason);
            }
            _ => {}
        }
    }

    /// Leaves a model out on a device for a while.
    fn exclude(&mut self, now: Time, replica: &PlacedReplica, reason: &str) {
        let (model, device) = (
            replica.spec.model.model.clone(),
            replica.spec.device.clone(),
        );
        if self
            .state
            .exclusions
            .exclude(now, &device, &model, reason)
            .is_none()
        {
            return;
        }
        let text = format!("model {model} does not start: {reason}");
        self.tell(Notice::Device(
            device.clone(),
            DeviceNotice::Failed,
            text.clone(),
        ));
        self.plan_degraded(text);
        self.request_plan(now, PlanReason::ReplicaFailed { model, device });
    }

    /// Returns true if another device that accepts replicas could run the replica's model.
    fn can_be_elsewhere(&self, replica: &PlacedReplica) -> bool {
        let model = &replica.spec.model.model;
        let nodes = self.state.nodes.iter().map(|(_, node)| node);
        let mut devices = nodes
            .filter(|node| node.takes_replicas())
            .flat_map(Node::devices);
        devices.any(|(id, device)| {
            id != replica.spec.device
                && self.state.profiles.get(model, &device.kind).is_some()
                && !self.state.exclusions.of_device(&id).contains(model)
        })
    }

    /// Takes the state of the data plane's link to a replica.
    pub(crate) fn link_changed(&mut self, now: Time, id: ReplicaId, link: Option<LinkState>) {
        let before = match link {
            Some(link) => self.state.links.insert(id, link),
            None => self.state.links.remove(&id),
        };
        if self.state.links.get(&id) == before.as_ref() {
            return;
        }
        if matches!(self.state.links.get(&id), Some(LinkState::Ejected { .. })) {
            self.state.restarts.ask(now, id);
        }
        self.state.rollout.touch(id);
        self.announcements.replica(id);
        if let Some(replica) = self.state.rollout.get(id) {
            let model = &replica.spec.model.model;
            let link = self.state.links.get(&id);
            let has_ended = before == Some(LinkState::Serving)
                && matches!(link, None | Some(LinkState::Connecting { .. }));
            if has_ended && replica.is_planned() {
                let hang = self.state.hang_before(now, replica);
                let ends = &mut self.state.worker_ends;
                ends.link_ended(now, &replica.spec.device, (id, model), hang);
            }
            self.announcements.model(model);
            self.state.traffic.touch(&model.name);
        }
        // A lost node's replicas stay planned only while they answer.
        if self.state.serves(id) {
            return;
        }
        let planned = self
            .state
            .rollout
            .get(id)
            .filter(|replica| replica.is_planned());
        let node = planned.map(|replica| replica.spec.device.node().clone());
        if let Some(name) = node
            && self.state.nodes.get(&name).is_some_and(Node::is_lost)
        {
            self.request_plan(now, PlanReason::NodeLost(name));
        }
    }

    /// Takes the results of the measurements that a node has finished. `applied` is the epoch and revision that the node reports on.
    pub(crate) fn collect_measurements(&mut self, now: Time, name: &NodeName, applied: (u64, u64)) {
        let (epoch, revision) = applied;
        let node = self.state.nodes.get(name);
        let Some(report) = node.and_then(|node| node.report.as_ref()) else {
            return;
        };
        if epoch != self.fence.epoch() {
            return;
        }
        let measurements = &self.state.measurements;
        let is_awaited = |progress: &&ProfileProgress| {
            measurements.awaits(&progress.model, &progress.device_kind, name, revision)
        };
        let of_report = report.profiles.iter().filter(is_awaited);
        let finished: Vec<_> = of_report
            .clone()
            .filter_map(|p| Some((p.model.clone(), p.device_kind.clone(), result(p)?)))
            .collect();
        let operators = |p: &ProfileProgress| Some((p.model.clone(), p.operators.clone()?));
        let inspected: Vec<(ModelId, String)> = of_report
            .clone()
            .filter(|p| self.state.models.needs_operators(&p.model))
            .filter_map(operators)
            .collect();
        let measured: Vec<ModelId> = of_report.map(|p| p.model.clone()).collect();
        for model in measured {
            self.announcements.model(&model);
        }
        for (model, operators) in inspected {
            self.take_operators(now, &model, &operators);
        }
        for (model, kind, result) in finished {
            match result {
                Ok(measurement) => self.store_measurement(model, kind, measurement),
                Err(error) => self.measurement_failed(now, &model, &kind, &error),
            }
        }
    }

    fn store_measurement(
        &mut self,
        model: ModelId,
        kind: DeviceKind,
        mut measurement: Measurement,
    ) {
        self.state.measurements.storing(&model, &kind);
        let program = self.state.models.get(&model);
        if let Some(program) = program.map(|model| self.state.measured_program(model)) {
            measurement.add_input_shapes(&program);
            measurement.key = self.state.key_of_measurement(&program, &kind, &measurement);
        }
        let Measurement {
            profile,
            kernels,
            key,
        } = measurement.clone();
        let write = match key {
            Some(key) => Write::UpsertMeasurement(Box::new(key), profile, kernels),
            None => Write::UpsertProfiles(profile, kernels),
        };
        self.store(write, Pending::Measured(model, kind, Box::new(measurement)));
    }

    /// Has a measurement stored again later. The node reports it as long as it is wanted.
    pub(crate) fn measurement_not_stored(&mut self, model: &ModelId, kind: &DeviceKind) {
        if let Some(node) = self.state.measurements.not_stored(model, kind) {
            self.unstored.measurement(node);
        }
    }

    /// Takes a measurement that is stored.
    pub(crate) fn measured(
        &mut self,
        now: Time,
        model: &ModelId,
        kind: &DeviceKind,
        measurement: &Measurement,
    ) {
        self.state.remember(measurement);
        if self.state.models.get(model).is_none() {
            return;
        }
        for (model, kind, profile) in measurement.profile.iter() {
            let table = &mut self.state.profiles;
            table.insert(model.clone(), kind.clone(), profile.clone());
        }
        self.profile_changed(model, kind);
        self.request_plan(now, PlanReason::ModelMeasured(model.clone(), kind.clone()));
    }

    fn measurement_failed(
        &mut self,
        now: Time,
        model: &ModelId,
        kind: &DeviceKind,
        error: &MeasurementError,
    ) {
        if self.state.profiles.is_measured(model, kind) {
            // It was measured for the sizes of its requests, and keeps the profile that it has.
            self.state.measurements.remove(model, kind);
            self.state.learned_shapes.refused(model);
            self.announcements.model(model);
            return;
        }
        self.state.measurements.fail(model, kind);
        self.announcements.model(model);
        if self.withdraw_estimate(now, model, kind) {
            self.plan_degraded(format!(
                "model {model} serves on {kind} with an estimated profile, because it could not be measured there: {error}"
            ));
            return;
        }
        let is_measured = (self.state.profiles.of_model(model))
            .any(|(_, profile)| profile.source() == ProfileSource::Measured);
        let measurements = &self.state.measurements;
        if !is_measured && !measurements.is_awaited(model) && !self.state.is_served(model) {
            self.fail_model(now, model, &error.to_string());
        }
    }
}
