//! The controller: the state machine of the control plane.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
    time::Duration,
};

use packhorse_cluster::{ModelId, ModelName, NodeName, RequestsPerSecond, Time, VariantMix};

use crate::{
    announcements::Announcements,
    arrival_rates::ArrivalRates,
    assumptions::Assumptions,
    command::{Command, CommandError, WriteError},
    device_observer::DeviceObserver,
    drains::Drains,
    effect::{Effect, ServeChange, Target, Write},
    estimated_kinds::EstimatedKinds,
    event::{Event, LinkState},
    exclusions::{Exclusions, StartFailures},
    fencing::EpochFence,
    finding_log::FindingLog,
    incidents::Incidents,
    inspections::Inspections,
    keys::{Receipt, RequestKey},
    known_measurements::KnownMeasurements,
    learned_shapes::LearnedShapes,
    limits::MAX_WAITING,
    measurements::Measurements,
    memory_limits::MemoryLimits,
    models::{Model, Models},
    nodes::{Node, Nodes},
    notice::Notice,
    pending::Pending,
    plan_reason::{PlanReason, PlanReasons},
    planning::Planning,
    planning_input::{FamilyDemand, PlanningInput, VariantDemand},
    predictions::Predictions,
    publications::Publications,
    record::StoredCluster,
    restarts::Restarts,
    restore::restored_rollout,
    rollout::{PlacedReplica, Rollout},
    service_levels::ServiceLevels,
    state::{CurrentPlan, State},
    traffic::{Demand, Traffic},
    unstored::Unstored,
    worker_ends::WorkerEnds,
};

/// The longest time between two calls of the controller while nothing happens.
const HEARTBEAT: Duration = Duration::from_secs(1);
/// The time beyond the heartbeat after which a silence of the driver is a pause of the whole gateway.
const PAUSE: Duration = Duration::from_millis(500);

/// The settings of the control plane.
#[derive(Clone, Debug)]
pub struct Config {
    /// The duration of a node's lease.
    pub lease: Duration,
    /// The time after which a measurement begins no further batch size.
    pub profile_time_limit: Duration,
    /// True if models with the same backbone share workers.
    pub shared_backbones: bool,
    /// The time between two samples of the data plane's counts.
    pub sample_period: Duration,
    /// The time after which a new plan is requested even if nothing has changed; none for never.
    pub replan_interval: Option<Duration>,
    /// The name of the placement policy where none is stored.
    pub default_policy: String,
    /// The assumptions of planning that no one measures.
    pub assumptions: Assumptions,
    /// The wall clock at [`Time::ZERO`], in milliseconds since 1970.
    pub unix_start_ms: i64,
}

/// The state machine of the control plane. It owns no task, socket or clock.
///
/// The driver passes events to [`Controller::handle`], then carries out the effects that [`Controller::poll`] returns until there is
/// none, and then waits for the next event, at most until [`Controller::poll_timeout`]. Times never go back. A driver that is silent
/// for longer was paused, and the controller forgives the nodes what they could not do meanwhile.
///
/// Equal events at equal times give equal effects, so that a recorded history can be replayed.
#[derive(Clone, Debug)]
pub struct Controller {
    pub(crate) config: Config,
    /// The epoch of the gateway, and the agents that have it.
    pub(crate) fence: EpochFence,
    pub(crate) state: State,
    pub(crate) rates: ArrivalRates,
    pub(crate) predictions: Predictions,
    pub(crate) planning: Planning,
    pub(crate) publications: Publications,
    pub(crate) announcements: Announcements,
    pub(crate) finding_log: FindingLog,
    pub(crate) incidents: Incidents,
    effects: VecDeque<Effect>,
    /// The commands that wait until the present one is stored.
    waiting: VecDeque<(RequestKey, Command)>,
    /// The writes that are not stored yet.
    pub(crate) pending: BTreeMap<Receipt, Pending>,
    next_receipt: u64,
    /// The time of the next sample.
    sample_due: Time,
    /// The time at which the next plan is requested even if nothing has changed.
    interval_due: Option<Time>,
    /// The time until which planning waits for the nodes of the current plan.
    settled_by: Time,
    /// The nodes of the stored plan that have not reported since the start, and are neither lost nor removed.
    pub(crate) awaited: BTreeSet<NodeName>,
    /// The number of nodes that have lost their leases within the present lease time, and its begin.
    recent_losses: (Time, usize),
    pub(crate) drains: Drains,
    pub(crate) unstored: Unstored,
    /// True once the replicas of the stored plan serve, or some of them after they had the time to.
    is_open: bool,
    /// The time of the driver's last call.
    last_call: Time,
}

impl Controller {
    /// Restores the stored state.
    pub fn new(now: Time, config: Config, mut stored: StoredCluster) -> Self {
        let settled_by = now + config.lease;
        let traffic = Traffic::restore(std::mem::take(&mut stored.splits));
        let horizon = config.sample_period * 2 + config.assumptions.default_load_time;
        let mut rates = ArrivalRates::new(horizon);
        let mut models = Models::default();
        for record in stored.models.iter().cloned() {
            rates.add(now, &record.spec);
            models.insert(Model::restore(record));
        }
        rates.restore(now, std::mem::take(&mut stored.needs));
        let nodes = Nodes::restore(std::mem::take(&mut stored.nodes), settled_by);
        let estimated_kinds = EstimatedKinds::restore(&models, &nodes, &mut stored.profiles);
        let rollout = restored_rollout(&stored);
        let plan = CurrentPlan::restore(stored.plans.into_iter().next());
        rates.assume(&plan.rates(), &models);
        let settings = stored.settings;
        let mut state = State {
            models,
            traffic,
            nodes,
            profiles: stored.profiles,
            estimated_kinds,
            pairs: stored.pairs,
            policy: settings
                .policy
                .unwrap_or_else(|| config.default_policy.clone()),
            options: settings.options.unwrap_or_default(),
            discipline: settings.discipline.unwrap_or_default(),
            assumptions: config.assumptions.clone(),
            plan,
            rollout,
            links: BTreeMap::new(),
            measurements: Measurements::default(),
            inspections: Inspections::default(),
            known_measurements: KnownMeasurements::restore(stored.measurements),
            learned_shapes: LearnedShapes::default(),
            memory_limits: MemoryLimits::default(),
            exclusions: Exclusions::default(),
            start_failures: StartFailures::default(),
            repository_problems: Vec::new(),
            restarts: Restarts::new(stored.epoch),
            observer: DeviceObserver::new(now),
            slow_devices: Vec::new(),
            worker_ends: WorkerEnds::default(),
            service_levels: ServiceLevels::default(),
            paused_tenants: BTreeMap::new(),
            without_room: BTreeMap::new(),
        };
        state.restore_learned_shapes();
        state.learn_from_pairs();
        let mut controller = Self {
            fence: EpochFence::new(stored.cluster_id, stored.epoch),
            state,
            rates,
            predictions: Predictions::default(),
            planning: Planning::default(),
            publications: Publications::default(),
            announcements: Announcements::default(),
            finding_log: FindingLog::default(),
            incidents: Incidents::default(),
            effects: VecDeque::new(),
            waiting: VecDeque::new(),
            pending: BTreeMap::new(),
            next_receipt: 0,
            sample_due: now + config.sample_period,
            interval_due: config.replan_interval.map(|interval| now + interval),
            settled_by,
            awaited: BTreeSet::new(),
            recent_losses: (now, 0),
            drains: Drains::default(),
            unstored: Unstored::default(),
            is_open: false,
            last_call: now,
            config,
        };
        let nodes = &controller.state.nodes;
        let planned = controller.state.rollout.planned();
        let used = planned.map(|replica| replica.spec.device.node());
        let awaited = used.filter(|node| nodes.get(node).is_some());
        controller.awaited = awaited.cloned().collect();
        controller.serve_restored();
        controller.request_plan(now, PlanReason::GatewayStarted);
        controller.settle(now);
        controller
    }

    /// Has the data plane know the restored models before it is ready.
    fn serve_restored(&mut self) {
        let discipline = ServeChange::Discipline(self.state.discipline);
        self.effects.push_back(Effect::Serve(discipline));
        let models = self.state.models.iter();
        let changes: Vec<Effect> = models
            .map(|(_, model)| Effect::Serve(ServeChange::Model(model.spec.clone())))
            .collect();
        self.effects.extend(changes);
        let models = self.state.models.iter();
        let names: BTreeSet<ModelName> = models.map(|(id, _)| id.name.clone()).collect();
        for name in names {
            self.state.traffic.touch(&name);
            self.serve_split(&name);
        }
    }

    /// Handles an event.
    pub fn handle(&mut self, now: Time, event: Event) {
        self.note_call(now);
        match event {
            Event::Requested(request, command) => self.requested(now, request, command),
            Event::LinkChanged(replica, link) => self.link_changed(now, replica, link),
            Event::Sampled(sample) => self.sampled(now, &sample),
            Event::Solved(key, result) => self.solved(now, key, &result),
            Event::Stored(receipt, result) => self.stored(now, receipt, result),
        }
        self.settle(now);
    }

    /// Returns the next effect; `None` once there is nothing to do before [`Controller::poll_timeout`] or the next event.
    pub fn poll(&mut self, now: Time) -> Option<Effect> {
        if let Some(effect) = self.effects.pop_front() {
            return Some(effect);
        }
        self.note_call(now);
        self.do_due(now);
        self.settle(now);
        self.effects.pop_front()
    }

    /// Returns the time at which [`Controller::poll`] must be called even without an event.
    pub fn poll_timeout(&self) -> Time {
        [
            Some(self.last_call + HEARTBEAT),
            Some(self.sample_due),
            self.interval_due,
            self.state.nodes.next_expiry(),
            self.state.exclusions.next_end(),
            self.state.restarts.next_due(),
            self.state.memory_limits.next_end(),
            self.drains.next_end(),
            self.state.traffic.next_due(),
            self.planning_due(),
            (!self.is_open && self.last_call < self.settled_by).then_some(self.settled_by),
        ]
        .into_iter()
        .flatten()
        .min()
        .unwrap_or(Time::MAX)
    }

    /// Notes that the driver called. After a pause of the whole gateway the leases are extended, because the agents' renewals could
    /// not be taken.
    fn note_call(&mut self, now: Time) {
        let silent = now.saturating_since(self.last_call);
        self.last_call = now.max(self.last_call);
        if silent > HEARTBEAT + PAUSE {
            self.state.nodes.extend_leases(now + self.config.lease);
            self.tell(Notice::Paused(silent.saturating_sub(HEARTBEAT)));
        }
    }

    /// Does what is due.
    fn do_due(&mut self, now: Time) {
        self.expire_leases(now);
        self.end_exclusions(now);
        self.end_memory_limits(now);
        self.end_drains(now);
        self.restart_due(now);
        if now >= self.sample_due {
            self.sample_due = now + self.config.sample_period;
            self.effects.push_back(Effect::Sample);
            self.store_again(now);
        }
        if let (Some(due), Some(interval)) = (self.interval_due, self.config.replan_interval)
            && now >= due
        {
            self.interval_due = Some(now + interval);
            self.request_plan(now, PlanReason::Interval);
        }
        if self.planning_due().is_some_and(|due| due <= now) {
            let reasons = self.planning.take_reasons();
            let input = Arc::new(self.planning_input(self.state.policy.clone(), reasons));
            self.rates.assume_planned(&self.state.models);
            self.state.observer.plan_requested();
            let key = self.planning.begin(Arc::clone(&input));
            self.effects.push_back(Effect::Solve(key, input));
        }
        self.open_if_due(now);
    }

    /// Returns the input of a policy for the cluster as it is now.
    pub fn planning_input(&self, policy: String, reasons: PlanReasons) -> PlanningInput {
        self.planning_input_after(policy, reasons, Duration::ZERO)
    }

    /// Returns the input of a policy for a plan that begins after the time `delay`.
    pub(crate) fn planning_input_after(
        &self,
        policy: String,
        reasons: PlanReasons,
        delay: Duration,
    ) -> PlanningInput {
        let servable = self.state.models.iter();
        let servable = servable.filter(|(_, model)| model.failure.is_none());
        let mut rates: BTreeMap<ModelId, RequestsPerSecond> = servable
            .filter_map(|(id, _)| Some((id.clone(), self.demanded_rate(id, delay)?)))
            .collect();
        let needs = if reasons.change_the_policy() {
            BTreeMap::new()
        } else {
            let needs = rates.keys();
            needs
                .filter_map(|id| Some((id.clone(), self.needed_rate(id, delay)?)))
                .collect()
        };
        let families = self.state.models.families();
        let families: Vec<FamilyDemand> = families
            .map(|name| self.family_demand(name, delay))
            .collect();
        for family in &families {
            let of_family = family.rates(VariantMix::ACCURATE);
            rates.extend(of_family.map(|(id, rate)| (id.clone(), rate)));
        }
        let input = PlanningInput::new(
            &self.state,
            policy,
            reasons,
            rates,
            &needs,
            families,
            self.drains.overdue(),
        );
        if self.config.shared_backbones {
            let backbones = self.state.backbones();
            PlanningInput { backbones, ..input }
        } else {
            input
        }
    }

    /// Returns the requests for a family, if the plan begins after the time `delay`: the planned rate of all its variants but for the requests
    /// that are for one of them alone.
    fn family_demand(&self, name: &ModelName, delay: Duration) -> FamilyDemand {
        let models = &self.state.models;
        let variants = models.variants(name);
        let demands = variants.iter().filter_map(|variant| {
            let name = &variant.program.model.name;
            let accuracy = variant.spec.variant.as_ref()?.accuracy;
            let versions = models.versions(name);
            let shares = versions.filter_map(|id| {
                models.get(id).filter(|model| model.failure.is_none())?;
                match self.state.traffic.demand(id) {
                    Demand::Share(share) => Some((id.clone(), share)),
                    Demand::Standby | Demand::Retired => None,
                }
            });
            let shares: Vec<_> = shares.collect();
            (!shares.is_empty()).then(|| VariantDemand {
                accuracy,
                rate: self.rates.planned_alone(name, delay),
                shares,
            })
        });
        let demands: Vec<VariantDemand> = demands.collect();
        let total = models.declared(name);
        let total = total.map_or(0.0, |declared| {
            self.rates.planned(name, declared, delay).get()
        });
        let alone: f64 = demands.iter().map(|variant| variant.rate.get()).sum();
        FamilyDemand {
            name: name.clone(),
            rate: RequestsPerSecond::new((total - alone).max(0.0))
                .unwrap_or(RequestsPerSecond::ZERO),
            variants: demands,
        }
    }

    /// Returns the rate of a version to plan with, if the plan begins after the time `delay`; `None` if it gets no replica. For a variant it
    /// is that of the requests which are for this variant alone.
    pub(crate) fn demanded_rate(&self, id: &ModelId, delay: Duration) -> Option<RequestsPerSecond> {
        let models = &self.state.models;
        let is_variant = models.newest(&id.name)?.spec.variant.is_some();
        match self.state.traffic.demand(id) {
            Demand::Share(share) => {
                let rate = if is_variant {
                    self.rates.planned_alone(&id.name, delay)
                } else {
                    self.rates
                        .planned(&id.name, models.declared(&id.name)?, delay)
                };
                RequestsPerSecond::new(rate.get() * share).ok()
            }
            Demand::Standby => Some(self.rates.planned_standby(id, delay)),
            Demand::Retired => None,
        }
    }

    /// Returns the rate that a version is measured to need. `None` for a version whose requests others may take: a variant, or one
    /// that gets only the requests which name it.
    fn needed_rate(&self, id: &ModelId, delay: Duration) -> Option<RequestsPerSecond> {
        let is_variant = self.state.models.newest(&id.name)?.spec.variant.is_some();
        match self.state.traffic.demand(id) {
            Demand::Share(share) if !is_variant && share > 0.0 => {
                let rate = self.rates.needed(&id.name, delay)?;
                RequestsPerSecond::new(rate.get() * share).ok()
            }
            _ => None,
        }
    }

    /// Returns the time of the next plan, which waits until the nodes of the current plan have reported.
    fn planning_due(&self) -> Option<Time> {
        let due = self.planning.due()?;
        if due >= self.settled_by || self.is_settled() {
            Some(due)
        } else {
            Some(self.settled_by)
        }
    }

    /// Returns true if the nodes of the current plan have reported since the gateway's start, or are lost. A plan made earlier
    /// would move replicas that may still run.
    fn is_settled(&self) -> bool {
        if self.recent_losses.1 > 1 && self.recent_losses.1 > self.state.nodes.count_held() {
            return false;
        }
        self.awaited.is_empty()
    }

    /// Ends the leases that are over. If most nodes lose theirs at once, planning waits for them: a plan for those that are left
    /// would move everything there and back.
    fn expire_leases(&mut self, now: Time) {
        let expired = self.state.nodes.expire(now);
        if expired.is_empty() {
            return;
        }
        let (begin, count) = self.recent_losses;
        let held = expired.iter().filter(|(_, held)| *held).count();
        self.recent_losses = if now.saturating_since(begin) > self.config.lease {
            (now, held)
        } else {
            (begin, count + held)
        };
        let before = self.state.nodes.count_held() + held;
        if held > 1 && held * 2 > before {
            self.settled_by = now + self.config.lease;
        }
        for (name, _) in expired {
            self.awaited.remove(&name);
            self.node_changed(now, &name);
            let replicas = self.state.rollout.on_node(&name);
            let models = replicas.map(|replica| replica.spec.model.model.name.clone());
            let models = models.collect();
            self.state.nodes.set_lost_models(&name, models);
            self.state.rollout.touch_node(&name);
            self.announcements.node(&name);
            self.request_plan(now, PlanReason::NodeLost(name));
        }
    }

    fn end_exclusions(&mut self, now: Time) {
        if self.state.exclusions.next_end().is_none_or(|end| end > now) {
            return;
        }
        for (device, model) in self.state.exclusions.end_due(now) {
            self.announcements.device_ready(&device, &model);
            self.request_plan(now, PlanReason::Retry { model, device });
        }
    }

    fn end_memory_limits(&mut self, now: Time) {
        if self
            .state
            .memory_limits
            .next_end()
            .is_none_or(|end| end > now)
        {
            return;
        }
        for (model, kind) in self.state.memory_limits.end_due(now) {
            self.request_plan(now, PlanReason::LargerBatches { model, kind });
        }
    }

    fn end_drains(&mut self, now: Time) {
        for node in self.drains.end_due(now) {
            self.request_plan(now, PlanReason::DrainOverdue(node));
        }
    }

    /// Asks for the restarts of replicas that are still ejected after the least time between two.
    fn restart_due(&mut self, now: Time) {
        for id in self.state.restarts.take_due(now) {
            if matches!(self.state.links.get(&id), Some(LinkState::Ejected { .. })) {
                self.state.restarts.ask(now, id);
                self.state.rollout.touch(id);
            }
        }
    }

    /// Opens the gateway once the replicas of the stored plan serve. After a lease's time those that serve are enough; until one does, the gateway
    /// stays closed as long as a node of the plan is there to start one.
    fn open_if_due(&mut self, now: Time) {
        if self.is_open {
            return;
        }
        let serves = |replica: &PlacedReplica| self.state.serves(replica.id);
        let nodes = &self.state.nodes;
        let may_come = |replica: &PlacedReplica| {
            let node = nodes.get(replica.spec.device.node());
            node.is_some_and(Node::holds_lease)
        };
        let mut planned = self.state.rollout.planned();
        let is_open = if now < self.settled_by {
            planned.all(serves)
        } else {
            let some_serve = self.state.rollout.planned().any(serves);
            some_serve || !planned.any(may_come)
        };
        if is_open {
            self.is_open = true;
            self.effects.push_back(Effect::Serve(ServeChange::Open));
        }
    }

    /// Requests a plan, because something has changed that plans depend on.
    pub(crate) fn request_plan(&mut self, now: Time, reason: PlanReason) {
        if !self.planning.is_pending() {
            self.announcements.all_unserved();
        }
        self.planning.request(now, reason);
    }

    /// Returns the time of the driver's last call.
    pub(crate) fn last_call(&self) -> Time {
        self.last_call
    }

    /// Returns the command that a write is for; `None` for one that the controller began by itself, or that has ended.
    pub fn requester(&self, receipt: Receipt) -> Option<RequestKey> {
        match self.pending.get(&receipt)? {
            Pending::Command(request, _) => Some(*request),
            _ => None,
        }
    }

    /// Has the store write, and remembers what follows.
    pub(crate) fn store(&mut self, write: Write, pending: Pending) {
        let receipt = Receipt(self.next_receipt);
        self.next_receipt += 1;
        self.pending.insert(receipt, pending);
        self.effects.push_back(Effect::Store(receipt, write));
    }

    pub(crate) fn effect(&mut self, effect: Effect) {
        self.effects.push_back(effect);
    }

    pub(crate) fn tell(&mut self, notice: Notice) {
        self.effects.push_back(Effect::Tell(notice));
    }

    pub(crate) fn serve(&mut self, change: ServeChange) {
        self.effects.push_back(Effect::Serve(change));
    }

    /// Takes a command: those of agents are executed at once, those of admins one after the other.
    fn requested(&mut self, now: Time, request: RequestKey, command: Command) {
        match command {
            Command::TakeLease(node, claim) => {
                self.lease_requested(now, request, &node, claim);
            }
            Command::Report(node, report) => {
                let result = self.report(now, &node, report);
                self.effect(Effect::Acknowledge(request, result));
            }
            _ if self.waiting.len() >= MAX_WAITING => {
                self.effect(Effect::Acknowledge(request, Err(CommandError::Busy)));
            }
            command => {
                self.waiting.push_back((request, command));
                self.execute_waiting(now);
            }
        }
    }

    /// Executes the waiting commands of admins until one has to be stored first.
    fn execute_waiting(&mut self, now: Time) {
        while !self.pending.values().any(Pending::is_command)
            && let Some((request, command)) = self.waiting.pop_front()
        {
            match self.execute(now, request, command) {
                Ok(true) => {}
                Ok(false) => self.effect(Effect::Acknowledge(request, Ok(()))),
                Err(error) => self.effect(Effect::Acknowledge(request, Err(error))),
            }
        }
    }

    /// Continues what waited for a write.
    fn stored(&mut self, now: Time, receipt: Receipt, result: Result<(), WriteError>) {
        let Some(pending) = self.pending.remove(&receipt) else {
            return;
        };
        self.apply(now, pending, result);
        self.execute_waiting(now);
    }

    /// Returns the replica as the data plane connects to it; `None` while its worker does not listen, or if nothing more is known of
    /// its model or device.
    pub(crate) fn target(&self, replica: &PlacedReplica) -> Option<Target> {
        let observed = self.state.observed();
        let address = Rollout::ready_address(replica, &observed)?;
        // A model that was removed, or registered again with another program, is not served by the replicas of the former one.
        let model = self.state.models.get(&replica.spec.model.model)?;
        if *model.program != *replica.spec.model {
            return None;
        }
        let kind = self.state.kind(&replica.spec.device)?;
        let profile = self
            .state
            .profiles
            .get_shared(&replica.spec.model.model, kind)?;
        let status = self.state.status(replica)?;
        Some(Target {
            replica: replica.clone(),
            address,
            local_path: status.local_path.clone(),
            capacity: status.capacity,
            profile,
        })
    }
}
