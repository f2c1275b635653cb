//! The task that owns the state machine: it passes messages to it as events, and carries out its effects.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::Duration,
};

use packhorse_api::agent::{GpuStatus, LeaseGrant, ProtocolRange};
use packhorse_cluster::{ModelId, NodeName, Time, WantedState};
use packhorse_control::{
    Command, CommandError, Controller, DevicesNeeded, Effect, Event, Finding, RequestKey, Sample,
    ServeChange, SolveError, Subject,
    record::{Settings, StoredCluster},
};
use tokio::sync::{mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;

use super::{
    cures::{self, VerifiedCures},
    finding_views::{finding_views, incident_views},
    outcome::Outcome,
    replica_state::RestartCounts,
    settings::ControllerConfig,
    sizing::{Sizing, SizingError},
    solver,
    wanted::WantedError,
    writer::{self, Commission},
};
use crate::{
    audit::Act,
    clock::Clock,
    driver::{DataPlane, LinkChange},
    events::{EventLog, Findings},
    store::{Store, StoreError},
    tasks::Tasks,
    telemetry::{ClusterState, Predictions},
};

/// The number of stored plans whose replicas may still run after a restart in the middle of a rollout.
const RESTORED_PLANS: u32 = 16;
/// The most messages that are taken at a time.
const MESSAGES_AT_ONCE: usize = 64;

/// The continuation of a command: it gets the result and reads the state.
type Then = Box<dyn FnOnce(&Task, Result<(), CommandError>) + Send>;

/// A message to the task.
pub(super) enum Message {
    /// Executes a command, which may be an act for the audit log, and continues once its change is durable.
    Command(Box<(Command, Option<Act>)>, Then),
    /// Reads the state.
    Read(Box<dyn FnOnce(&Task) + Send>),
}

/// The owner of the state machine.
pub(super) struct Task {
    controller: Controller,
    clock: Clock,
    data_plane: DataPlane,
    events: EventLog,
    findings: Findings,
    solve_budget: Duration,
    /// The channel for the outcomes of what runs beside the task.
    outcomes: mpsc::UnboundedSender<Outcome>,
    received_outcomes: mpsc::UnboundedReceiver<Outcome>,
    writes: mpsc::UnboundedSender<Commission>,
    writer: oneshot::Receiver<()>,
    /// The commands that are not acknowledged yet.
    unacknowledged: HashMap<RequestKey, Then>,
    /// The acts of commands that nothing was written for yet.
    acts: HashMap<RequestKey, Act>,
    next_request: u64,
    /// The wanted states of the nodes, for their long polls.
    wanted: BTreeMap<NodeName, watch::Sender<Option<Arc<WantedState>>>>,
    lease: Duration,
    /// The time that a new node takes to start.
    node_start: Duration,
    /// The smallest clusters for the rates of the last minutes.
    devices_needed: DevicesNeeded,
    restarts: RestartCounts,
    /// The earliest time of the next search for one.
    sizing_due: Time,
    is_sizing: bool,
    /// The begin of the last search.
    sizing_began: Time,
    cures: VerifiedCures,
}

impl Task {
    /// Restores the stored state and begins a new epoch.
    pub(super) async fn restore(
        config: &ControllerConfig,
        store: Store,
        data_plane: DataPlane,
        events: EventLog,
        findings: Findings,
        tasks: &Tasks,
    ) -> Result<Self, StoreError> {
        let given = Settings {
            policy: config.policy.map(|policy| policy.name.to_owned()),
            options: None,
            discipline: config.discipline,
        };
        store.update_settings(&given).await?;
        let mut settings = store.settings().await?;
        settings.policy = settings.policy.filter(|name| {
            let known = packhorse_placement::policy(name);
            known
                .inspect_err(|e| {
                    tracing::warn!(error = %e, "the stored policy does not exist in this version; the default is used");
                })
                .is_ok()
        });
        let stored = StoredCluster {
            cluster_id: store.cluster_id().await?,
            epoch: store.begin_epoch().await?,
            models: store.models().await?,
            splits: store.splits().await?,
            nodes: store.nodes().await?,
            plans: store.plans(None, RESTORED_PLANS).await?,
            profiles: store.profiles().await?,
            measurements: store.measurements().await?,
            pairs: store.pairs().await?,
            needs: store.needs().await?,
            settings,
        };
        let clock = data_plane.clock();
        let controller = Controller::new(clock.now(), config.state_machine(&clock), stored);
        tracing::info!(
            epoch = controller.epoch(),
            models = controller.models().count(),
            nodes = controller.nodes().count(),
            policy = controller.policy(),
            "restored the state of the cluster"
        );
        Ok(Self::new(
            controller, config, store, data_plane, events, findings, tasks,
        ))
    }

    /// Returns the owner of a state machine.
    fn new(
        controller: Controller,
        config: &ControllerConfig,
        store: Store,
        data_plane: DataPlane,
        events: EventLog,
        findings: Findings,
        tasks: &Tasks,
    ) -> Self {
        let (outcomes, received_outcomes) = mpsc::unbounded_channel();
        let (to_store, queued) = mpsc::unbounded_channel();
        let (written, writer) = oneshot::channel();
        let (writing, stopping) = (
            writer::run(store, queued, outcomes.clone()),
            tasks.stopping(),
        );
        tasks.spawn("store writer", async move {
            writing.await;
            let _ = written.send(());
            // It ends with the control plane, whose end is then the one to tell.
            stopping.await;
        });
        Self {
            controller,
            clock: data_plane.clock(),
            data_plane,
            events,
            findings,
            solve_budget: config.solve_budget,
            outcomes,
            received_outcomes,
            writes: to_store,
            writer,
            unacknowledged: HashMap::new(),
            acts: HashMap::new(),
            next_request: 0,
            wanted: BTreeMap::new(),
            lease: config.lease,
            node_start: config.node_start,
            devices_needed: DevicesNeeded::default(),
            restarts: RestartCounts::default(),
            sizing_due: Time::ZERO,
            is_sizing: false,
            sizing_began: Time::ZERO,
            cures: VerifiedCures::default(),
        }
    }

    /// Runs until it is stopped, and then until all writes are carried out.
    pub(super) async fn run(
        mut self,
        messages: mpsc::Receiver<Message>,
        links: mpsc::UnboundedReceiver<LinkChange>,
        stop: CancellationToken,
    ) {
        self.run_until_stopped(messages, links, stop).await;
        drop(self.writes);
        // A writer that panicked has been reported.
        let _ = self.writer.await;
    }

    async fn run_until_stopped(
        &mut self,
        mut messages: mpsc::Receiver<Message>,
        mut links: mpsc::UnboundedReceiver<LinkChange>,
        stop: CancellationToken,
    ) {
        let mut received = Vec::with_capacity(MESSAGES_AT_ONCE);
        let mut changed = Vec::with_capacity(MESSAGES_AT_ONCE);
        loop {
            let now = self.clock.now();
            self.carry_out_effects(now);
            let wake = self.clock.instant(self.controller.poll_timeout());
            tokio::select! {
                () = stop.cancelled() => return,
                _ = messages.recv_many(&mut received, MESSAGES_AT_ONCE) => {}
                Some(outcome) = self.received_outcomes.recv() => {
                    let now = self.clock.now();
                    self.take_outcome(now, outcome);
                }
                count = links.recv_many(&mut changed, MESSAGES_AT_ONCE) => {
                    if count == 0 {
                        return;
                    }
                }
                () = tokio::time::sleep_until(wake) => {}
            }
            let now = self.clock.now();
            for (replica, link) in changed.drain(..) {
                self.handle(now, Event::LinkChanged(replica, link));
            }
            for message in received.drain(..) {
                self.take(now, message);
            }
        }
    }

    fn handle(&mut self, now: Time, event: Event) {
        self.controller.handle(now, event);
    }

    fn take(&mut self, now: Time, message: Message) {
        match message {
            Message::Command(commanded, then) => {
                let (command, mut act) = *commanded;
                if let Some(act) = &mut act {
                    self.complete(act, &command);
                }
                let request = RequestKey(self.next_request);
                self.next_request += 1;
                self.unacknowledged.insert(request, then);
                self.acts.extend(act.map(|act| (request, act)));
                let leased = match &command {
                    Command::TakeLease(node, _) => Some(node.clone()),
                    _ => None,
                };
                self.handle(now, Event::Requested(request, command));
                // Its agent may wait for the wanted state from now on.
                if let Some(node) = leased.filter(|node| self.controller.node(node).is_some()) {
                    self.wanted_sender(&node);
                }
            }
            Message::Read(read) => {
                // What was commanded before is carried out before it is read.
                self.carry_out_effects(now);
                read(self);
            }
        }
    }

    fn take_outcome(&mut self, now: Time, outcome: Outcome) {
        match outcome {
            Outcome::Stored(receipt, result) => self.handle(now, Event::Stored(receipt, result)),
            Outcome::Solved(key, result) => self.handle(now, Event::Solved(key, result)),
            Outcome::Sampled(sample) => {
                self.handle(now, Event::Sampled(sample));
                self.search_cures(now);
                self.tell_findings();
                self.tell_predictions();
                self.tell_cluster(now);
                self.size(now);
            }
            Outcome::Cured(remedies) => {
                self.cures.end(now, remedies);
                self.tell_findings();
            }
            Outcome::Sized(result) => {
                self.is_sizing = false;
                // A large search comes less often: it takes at most a twentieth of a core.
                let took = now.saturating_since(self.sizing_began);
                self.sizing_due = now + DevicesNeeded::SEARCH_PERIOD.max(19 * took);
                match result {
                    Ok(devices) => self.devices_needed.record(now, &devices),
                    Err(error) => {
                        tracing::debug!(
                            error = &error as &dyn std::error::Error,
                            "the smallest cluster is not known"
                        );
                    }
                }
            }
        }
    }

    /// Begins to search for the cures of models that the plan does not serve, if it is time and no search runs.
    fn search_cures(&mut self, now: Time) {
        if !self.cures.begin(now, &self.controller) {
            return;
        }
        let (input, outcomes) = (self.explanation_input(), self.outcomes.clone());
        tokio::spawn(async move {
            let found = tokio::task::spawn_blocking(move || {
                cures::remedies(input.and_then(|input| input.explain(cures::BUDGET)))
            });
            // A policy that panics has cured nothing.
            let _ = outcomes.send(Outcome::Cured(found.await.unwrap_or_default()));
        });
    }

    /// Tells the present findings and the incidents, with the cures that are known.
    fn tell_findings(&self) {
        let (controller, clock) = (&self.controller, self.clock);
        let cure = |finding: &Finding| self.cures.of(controller, finding);
        let incidents = incident_views(controller.incidents(), clock, cure);
        self.findings.set_incidents(incidents);
        self.findings
            .set(finding_views(controller.findings(), clock, cure));
    }

    /// Begins to search for the smallest cluster for the forecast rates, if it is time and no search runs.
    fn size(&mut self, now: Time) {
        if self.is_sizing || now < self.sizing_due {
            return;
        }
        self.is_sizing = true;
        self.sizing_began = now;
        let sizing = Sizing {
            policy: self.controller.policy().to_owned(),
            options: self.controller.options(),
            problem: self.controller.sizing_problem(self.node_start),
            last: self.devices_needed.last(),
        };
        let outcomes = self.outcomes.clone();
        tokio::spawn(async move {
            let found = tokio::task::spawn_blocking(move || sizing.devices_needed());
            let found = found.await;
            let result = found.unwrap_or_else(|e| Err(SizingError::Panicked(e.to_string())));
            let _ = outcomes.send(Outcome::Sized(result));
        });
    }

    /// Gives the telemetry the state of the cluster.
    fn tell_cluster(&mut self, now: Time) {
        let devices_needed = self.devices_needed.held(now);
        let controller = &self.controller;
        let mut state = ClusterState {
            devices_needed,
            generation: controller.plan().map(|plan| plan.generation.0),
            ..ClusterState::default()
        };
        for finding in controller.findings() {
            let model = match &finding.subject {
                Subject::Model(model) => Some(model.clone()),
                Subject::Node(_) | Subject::Device(_) | Subject::Cluster => None,
            };
            *state.findings.entry((finding.problem, model)).or_default() += 1;
        }
        for (_, node) in controller.nodes() {
            *state.nodes.entry(node.state()).or_default() += 1;
            if node.takes_replicas() {
                for (_, device) in node.devices() {
                    *state.devices.entry(device.kind.clone()).or_default() += 1;
                }
            }
        }
        let telemetry = self.data_plane.telemetry();
        telemetry.set_cluster(state);
        telemetry.set_replicas(self.restarts.replica_state(controller));
    }

    /// Gives the telemetry what the plan predicts.
    fn tell_predictions(&self) {
        let controller = &self.controller;
        let model = |id: &ModelId| {
            let planned = controller.planned_rate(id)?.get();
            Some((id.clone(), controller.predicted_goodput(id)?, planned))
        };
        let predictions = Predictions {
            models: controller
                .models()
                .filter_map(|(id, _)| model(id))
                .collect(),
            total_bias: controller.total_bias(),
        };
        self.data_plane.telemetry().set_predictions(predictions);
    }

    /// Carries out effects until there is none. The changes of what is served reach the data plane together.
    fn carry_out_effects(&mut self, now: Time) {
        let mut served = Vec::new();
        while let Some(effect) = self.controller.poll(now) {
            self.carry_out(effect, &mut served);
        }
        if !served.is_empty() {
            self.data_plane.serve(served);
        }
    }

    fn carry_out(&mut self, effect: Effect, served: &mut Vec<ServeChange>) {
        match effect {
            Effect::Acknowledge(request, result) => {
                if !served.is_empty() {
                    // A client may use the model as soon as its registration is answered.
                    self.data_plane.serve(std::mem::take(served));
                }
                // One that changes nothing, or is refused, is not an act.
                self.acts.remove(&request);
                if let Some(then) = self.unacknowledged.remove(&request) {
                    then(self, result);
                }
            }
            Effect::Store(receipt, write) => {
                let requester = self.controller.requester(receipt);
                let act = requester.and_then(|request| self.acts.remove(&request));
                // The writer ends only after this task.
                let _ = self.writes.send((receipt, write, act));
            }
            Effect::Solve(key, input) => {
                let (outcomes, budget) = (self.outcomes.clone(), self.solve_budget);
                let policy = input.policy.clone();
                tokio::spawn(async move {
                    let solved = tokio::task::spawn_blocking(move || solver::solve(&input, budget));
                    let result = solved.await.unwrap_or_else(|e| {
                        Err(SolveError::Panicked {
                            policy,
                            error: e.to_string(),
                        })
                    });
                    let _ = outcomes.send(Outcome::Solved(key, result));
                });
            }
            Effect::Sample => {
                let (outcomes, data_plane) = (self.outcomes.clone(), self.data_plane.clone());
                tokio::spawn(async move {
                    let sample = Sample {
                        models: data_plane.telemetry().request_counts(),
                        misses: data_plane.telemetry().missed_requests(),
                        shapes: data_plane.telemetry().shape_counts(),
                        paused_tenants: data_plane.telemetry().paused_tenants(),
                        without_room: data_plane.telemetry().weights().without_room(),
                        work: data_plane.work().await,
                    };
                    let _ = outcomes.send(Outcome::Sampled(sample));
                });
            }
            Effect::Publish(node, state) => {
                self.wanted_sender(&node).send_replace(Some(state));
            }
            Effect::Serve(change) => served.push(change),
            Effect::Tell(notice) => self.tell(notice),
        }
    }

    fn wanted_sender(&mut self, node: &NodeName) -> &watch::Sender<Option<Arc<WantedState>>> {
        let new = || watch::Sender::new(None);
        self.wanted.entry(node.clone()).or_insert_with(new)
    }

    /// Returns a receiver of the wanted state of a node.
    pub(super) fn subscribe_wanted(
        &self,
        name: &NodeName,
    ) -> Result<watch::Receiver<Option<Arc<WantedState>>>, WantedError> {
        let node = self.controller.node(name);
        if !node.is_some_and(packhorse_control::Node::holds_lease) {
            return Err(WantedError::NotHeld(name.clone()));
        }
        let sender = self.wanted.get(name);
        sender
            .map(watch::Sender::subscribe)
            .ok_or(WantedError::NotReported)
    }

    /// Keeps the readings of a node's GPUs, as far as the node has these devices.
    pub(super) fn set_gpus(&self, name: &NodeName, mut gpus: Vec<GpuStatus>) {
        if let Some(node) = self.controller.node(name) {
            gpus.retain(|gpu| node.device(&gpu.device).is_some());
            self.data_plane.telemetry().set_gpus(name, gpus);
        }
    }

    /// Returns the grant of a lease.
    pub(super) fn grant(&self) -> LeaseGrant {
        LeaseGrant {
            epoch: self.controller.epoch(),
            lease_ms: u64::try_from(self.lease.as_millis()).unwrap_or(u64::MAX),
            protocol: ProtocolRange::SUPPORTED,
            cluster_id: Some(self.controller.cluster_id().clone()),
            proof: None,
        }
    }

    /// Forgets the wanted state of a node that was removed.
    pub(super) fn forget_node(&mut self, name: &NodeName) {
        self.wanted.remove(name);
    }

    /// Returns the log of events.
    pub(super) fn events(&self) -> &EventLog {
        &self.events
    }

    /// Returns the state machine.
    pub(super) fn controller(&self) -> &Controller {
        &self.controller
    }

    /// Returns the data plane.
    pub(super) fn data_plane(&self) -> &DataPlane {
        &self.data_plane
    }
}

#[cfg(test)]
mod tests;
