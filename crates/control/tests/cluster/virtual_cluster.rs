//! A cluster in virtual time: the real [`Controller`], agents with the real reconciler, a real policy, a store that acknowledges with a
//! delay, and a data plane with the real engine that sends clients' requests to workers. Faults are methods. After every event the
//! [invariants](super::invariants) hold.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet, BinaryHeap, VecDeque},
    fmt::Write as _,
    net::SocketAddr,
    sync::Arc,
    time::Duration,
};

use crate::{
    clients::Clients,
    data_plane::{Connection, DataPlane, Tag},
    invariants::Invariants,
    machine::{Later, Machine, WorkerBehaviour},
    network::{Message, Network},
    random::Random,
    solver,
    store::Store,
};
use packhorse_cluster::{
    ArtifactDigest, ByteCount, DeviceReport, ModelId, ModelName, ModelSpec, ModelState, NodeName,
    Priority, Program, RateMode, ReplicaId, RequestsPerSecond, Time, WantedState,
};
use packhorse_control::{
    Assumptions, Command, CommandError, ComputedWork, Config, Controller, Effect, Event, LinkState,
    Notice, Receipt, RequestCounts, RequestKey, Sample, ServeChange, Solution, SolveError,
    SolveKey,
};
use packhorse_reconcile::TaskId;
use packhorse_serving::{BatchKey, ReplicaKey};

/// The lease of a node, and the time between two renewals.
pub(crate) const LEASE: Duration = Duration::from_secs(5);
const RENEWAL: Duration = Duration::from_millis(1667);
/// The time until an agent that was refused or not answered asks again.
const RETRY: Duration = Duration::from_millis(500);
/// The number of steps that may be taken at one time. With more, something is done again and again.
const MAX_STEPS: usize = 100_000;
/// The number of notices that are shown if a test fails.
const SHOWN: usize = 40;

/// The settings of a virtual cluster.
#[derive(Clone, Copy)]
pub(crate) struct Settings {
    pub(crate) policy: &'static str,
    pub(crate) store_delay: Duration,
    pub(crate) solve_delay: Duration,
    pub(crate) load: Duration,
    pub(crate) measure: Duration,
    /// The seed of everything that is random.
    pub(crate) seed: u64,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            policy: "first-fit",
            store_delay: Duration::from_millis(5),
            solve_delay: Duration::from_millis(20),
            load: Duration::from_millis(800),
            measure: Duration::from_secs(3),
            seed: 0,
        }
    }
}

/// The defect of the policy's answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PolicyFault {
    /// Nothing.
    None,
    /// They are errors.
    Fails,
    /// Every replica is on the next device, for no reason.
    Moves,
}

/// A cluster in virtual time.
pub(crate) struct VirtualCluster {
    pub(crate) settings: Settings,
    pub(crate) now: Time,
    pub(crate) store: Store,
    pub(crate) gateway: Option<Gateway>,
    pub(crate) machines: BTreeMap<NodeName, Machine>,
    /// The requests per second for each model that are counted, but that nobody sends.
    pub(crate) traffic: BTreeMap<ModelId, f64>,
    /// The factor of each model's batch times over those of its profile.
    pub(crate) slowdowns: BTreeMap<ModelId, f64>,
    /// The part of each model's requests that is answered within the SLO, where it is not all.
    pub(crate) in_time: BTreeMap<ModelId, f64>,
    /// The way in which the policy's answers are changed.
    pub(crate) policy_fault: PolicyFault,
    pub(crate) notices: Vec<(Time, Notice)>,
    /// True if everything that happens is printed.
    pub(crate) trace: bool,
    pub(crate) clients: Clients,
    pub(crate) network: Network,
    pub(crate) random: Random,
    pub(crate) invariants: Invariants,
    /// The models that nothing may interrupt: of each, the number of times at which its last serving replica stopped serving.
    pub(crate) interruptions: BTreeMap<ModelId, usize>,
    queue: BinaryHeap<Reverse<(Time, u64, usize)>>,
    scheduled: Vec<Option<Scheduled>>,
    gateway_starts: u64,
    next_request: u64,
    steps_at_once: usize,
}

/// A running gateway.
pub(crate) struct Gateway {
    pub(crate) controller: Controller,
    pub(crate) data_plane: DataPlane,
    pub(crate) start: u64,
    /// The end of a pause of the whole process.
    paused_until: Option<Time>,
    inbox: VecDeque<Event>,
    wanted: BTreeMap<NodeName, Arc<WantedState>>,
    /// The wanted states that the present ones have replaced.
    earlier: BTreeMap<NodeName, Arc<WantedState>>,
    calls: BTreeMap<RequestKey, Caller>,
    /// The time since which the gateway says that it is ready.
    pub(crate) ready_since: Option<Time>,
    sample: (Time, Sample),
    pub(crate) plans_made: usize,
}

/// The one who waits for the result of a command.
enum Caller {
    Admin,
    Lease(NodeName, u64),
    Report,
}

/// A later event.
pub(crate) enum Scheduled {
    AgentRenews(NodeName, u64),
    AgentWakes(NodeName, u64),
    Machine(NodeName, Later),
    Stored(u64),
    Solved(u64, SolveKey, Box<Result<Solution, SolveError>>),
    Connects(u64, ReplicaKey, u64),
    Delivers(Connection, Message),
    GivesUp(Connection),
    Overdue(Connection, BatchKey),
    /// A worker has computed its first batch, in this time.
    Computed(NodeName, (TaskId, u32), Duration),
    Arrives(ModelId, u64),
    HangsUp(Tag),
    GatewayResumes(u64),
}

impl Scheduled {
    /// Returns true if a gateway that does not run cannot notice it.
    fn is_for_gateway(&self) -> bool {
        match self {
            Self::Connects(..)
            | Self::GivesUp(_)
            | Self::Overdue(..)
            | Self::Arrives(..)
            | Self::HangsUp(_) => true,
            Self::Delivers(_, message) => !matches!(message, Message::Batch(..)),
            _ => false,
        }
    }
}

impl VirtualCluster {
    /// Returns a cluster without nodes whose gateway runs.
    pub(crate) fn new(settings: Settings) -> Self {
        let mut cluster = Self {
            settings,
            now: Time::ZERO,
            store: Store::new("00000000000000000000000000000001"),
            gateway: None,
            machines: BTreeMap::new(),
            traffic: BTreeMap::new(),
            slowdowns: BTreeMap::new(),
            in_time: BTreeMap::new(),
            policy_fault: PolicyFault::None,
            notices: Vec::new(),
            trace: false,
            clients: Clients::default(),
            network: Network::default(),
            random: Random::new(settings.seed),
            invariants: Invariants::default(),
            interruptions: BTreeMap::new(),
            queue: BinaryHeap::new(),
            scheduled: Vec::new(),
            gateway_starts: 0,
            next_request: 0,
            steps_at_once: 0,
        };
        cluster.start_gateway();
        cluster
    }

    pub(crate) fn schedule(&mut self, after: Duration, event: Scheduled) {
        let number = self.scheduled.len();
        self.scheduled.push(Some(event));
        let at = self.now + after;
        self.queue.push(Reverse((at, number as u64, number)));
    }

    // The admin.

    /// Commands something, and returns the key of the answer.
    pub(crate) fn command(&mut self, command: Command) -> RequestKey {
        let key = self.call(Caller::Admin, command);
        self.drive();
        key
    }

    /// Commands something and waits for the answer.
    pub(crate) fn command_and_wait(&mut self, command: Command) -> Result<(), CommandError> {
        let key = self.command(command);
        self.run_until("the answer of a command", Duration::from_secs(30), |c| {
            c.invariants.answers.contains_key(&key)
        });
        self.invariants.answers[&key].clone()
    }

    /// Registers a model, and waits until it is durable.
    pub(crate) fn register(&mut self, name: &str, rate: f64) {
        self.command_and_wait(Command::Register(Box::new(spec(name, rate)), 1))
            .unwrap();
    }

    fn call(&mut self, caller: Caller, command: Command) -> RequestKey {
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

    // The gateway.

    pub(crate) fn start_gateway(&mut self) {
        assert!(self.gateway.is_none(), "it runs");
        let stored = self.store.start();
        self.gateway_starts += 1;
        let config = Config {
            lease: LEASE,
            profile_time_limit: Duration::from_secs(30),
            shared_backbones: true,
            sample_period: Duration::from_secs(5),
            replan_interval: None,
            default_policy: self.settings.policy.to_owned(),
            assumptions: Assumptions::default(),
            unix_start_ms: 0,
        };
        self.gateway = Some(Gateway {
            controller: Controller::new(self.now, config, stored),
            data_plane: DataPlane::default(),
            start: self.gateway_starts,
            paused_until: None,
            inbox: VecDeque::new(),
            wanted: BTreeMap::new(),
            earlier: BTreeMap::new(),
            calls: BTreeMap::new(),
            ready_since: None,
            sample: (self.now, Sample::default()),
            plans_made: 0,
        });
        self.drive();
    }

    /// Kills the gateway. The write that is under way may still be carried out; those behind it are lost.
    pub(crate) fn kill_gateway(&mut self, write_is_carried_out: bool) {
        let gateway = self.gateway.take();
        let calls = gateway.into_iter().flat_map(|gateway| gateway.calls);
        for (_, caller) in calls {
            // Its connection breaks.
            if let Caller::Lease(name, starts) = caller {
                self.schedule(RETRY, Scheduled::AgentRenews(name, starts));
            }
        }
        if write_is_carried_out {
            self.store.carry_out_next();
        }
        self.gateway_closes();
        self.invariants.gateway_died();
    }

    /// Stops the whole gateway process for a time: what comes meanwhile waits in its sockets.
    pub(crate) fn pause_gateway(&mut self, time: Duration) {
        if let Some(gateway) = &mut self.gateway {
            gateway.paused_until = Some(self.now + time);
            let start = gateway.start;
            self.schedule(time, Scheduled::GatewayResumes(start));
        }
    }

    pub(crate) fn controller(&self) -> &Controller {
        &self.gateway.as_ref().expect("the gateway runs").controller
    }

    pub(crate) fn tell_gateway(&mut self, event: Event) {
        if let Some(gateway) = &mut self.gateway {
            gateway.inbox.push_back(event);
        }
    }

    /// Has the gateway handle what has come, and carries out what it asks for.
    pub(crate) fn drive(&mut self) {
        let mut effects = 0;
        loop {
            effects += 1;
            assert!(
                effects < MAX_STEPS,
                "effects do not end\n{}",
                self.history()
            );
            let Some(gateway) = &mut self.gateway else {
                return;
            };
            if gateway.paused_until.is_some() {
                return;
            }
            if let Some(effect) = gateway.controller.poll(self.now) {
                self.carry_out(effect);
            } else if let Some(event) = gateway.inbox.pop_front() {
                gateway.controller.handle(self.now, event);
            } else if !self.drive_data_plane() {
                break;
            }
        }
        self.check();
    }

    fn carry_out(&mut self, effect: Effect) {
        let now = self.now;
        let gateway = self.gateway.as_mut().expect("it asked for the effect");
        let start = gateway.start;
        match effect {
            Effect::Acknowledge(key, result) => {
                let caller = gateway.calls.remove(&key);
                self.answer(key, caller.expect("a command is answered once"), &result);
            }
            Effect::Store(receipt, write) => {
                if self.store.push(receipt, write) {
                    self.schedule(self.settings.store_delay, Scheduled::Stored(start));
                }
            }
            Effect::Solve(key, input) => {
                gateway.plans_made += 1;
                let solve_ms = self.settings.solve_delay.as_secs_f64() * 1e3;
                let result = match self.policy_fault {
                    PolicyFault::None => solver::solve(&input, solve_ms),
                    PolicyFault::Moves => solver::solve_elsewhere(&input, solve_ms),
                    PolicyFault::Fails => Err(SolveError::NoPlan {
                        policy: input.policy.clone(),
                        error: "the policy is broken".to_owned(),
                    }),
                };
                let solved = Scheduled::Solved(start, key, Box::new(result));
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
                if change == ServeChange::Open {
                    gateway.ready_since = Some(now);
                }
                self.serve(change);
            }
            Effect::Tell(notice) => {
                self.print(|| sentence(&notice));
                self.notices.push((now, notice));
            }
        }
    }

    fn answer(&mut self, key: RequestKey, caller: Caller, result: &Result<(), CommandError>) {
        match caller {
            Caller::Admin => self.invariants.answered(key, result),
            Caller::Report => {}
            Caller::Lease(name, starts) => {
                let (cluster, epoch) = {
                    let controller = self.controller();
                    (controller.cluster_id().clone(), controller.epoch())
                };
                let now = self.now;
                let Some(machine) = self.machines.get_mut(&name) else {
                    return;
                };
                if machine.starts != starts || machine.agent.is_none() {
                    return;
                }
                // An answer that does not arrive grants nothing.
                let arrives = result.is_ok() && machine.hears();
                let granted = arrives && machine.granted(now, &cluster, epoch);
                let next = if granted { RENEWAL } else { RETRY };
                self.schedule(next, Scheduled::AgentRenews(name.clone(), starts));
                if granted {
                    self.send_report(&name, true);
                    self.deliver_wanted(&name);
                }
            }
        }
    }

    /// Delivers a grant to an agent that a gateway gave so many starts ago, and that was on its way since then.
    pub(crate) fn grant_late(&mut self, name: &NodeName, age: u64) {
        let Some(gateway) = &self.gateway else {
            return;
        };
        let (cluster, epoch) = (
            gateway.controller.cluster_id().clone(),
            gateway.controller.epoch(),
        );
        let now = self.now;
        if let Some(machine) = self.machines.get_mut(name).filter(|m| m.agent.is_some()) {
            let granted = machine.agent.as_ref().and_then(|agent| agent.granted);
            machine.granted(now, &cluster, epoch.saturating_sub(age));
            // The agent knows of the grant that it asked for.
            if let Some(agent) = &mut machine.agent {
                agent.granted = granted;
            }
        }
        self.drive();
    }

    /// Delivers the wanted state to an agent that the present one has replaced, and that was on its way since then.
    pub(crate) fn want_late(&mut self, name: &NodeName) {
        let now = self.now;
        let earlier = self.gateway.as_ref().and_then(|g| g.earlier.get(name));
        let earlier = earlier.map(|state| WantedState::clone(state));
        let machine = self.machines.get_mut(name);
        if let Some(state) = earlier
            && let Some(agent) = machine.and_then(|machine| machine.agent.as_mut())
        {
            let wanted = packhorse_reconcile::Event::Wanted(state);
            agent.reconciler.handle(now, wanted);
            self.run_agent(name);
        }
        self.drive();
    }

    // The data plane.

    /// Ejects a replica, as the engine does when batches fail on it alone.
    pub(crate) fn eject(&mut self, id: ReplicaId) {
        let gateway = self.gateway.as_mut().expect("it runs");
        let mut links = gateway.data_plane.links();
        let link = links.find(|(_, other, _)| *other == id);
        let key = link.expect("it is linked").0;
        drop(links);
        gateway.data_plane.eject(key);
        self.drive();
    }

    /// Returns the replicas of a model that get batches, with the addresses of their workers.
    pub(crate) fn serving(&self, model: &str) -> Vec<(ReplicaId, SocketAddr)> {
        let id: ModelId = model.parse().unwrap();
        self.serving_replicas(&id)
    }

    fn serving_replicas(&self, model: &ModelId) -> Vec<(ReplicaId, SocketAddr)> {
        let Some(gateway) = &self.gateway else {
            return Vec::new();
        };
        let plane = &gateway.data_plane;
        let links = plane.links().filter(|(_, id, target)| {
            plane.link_state(*id) == Some(&LinkState::Serving)
                && target.replica.spec.model.model == *model
        });
        links.map(|(_, id, target)| (id, target.address)).collect()
    }

    fn sample(&mut self) -> Sample {
        let gateway = self.gateway.as_mut().expect("it runs");
        let (before, mut sample) = std::mem::take(&mut gateway.sample);
        let seconds = self.now.saturating_since(before).as_secs_f64();
        for (model, rate) in &self.traffic {
            let requests = (rate * seconds).round() as u64;
            let counts: &mut RequestCounts = sample.models.entry(model.clone()).or_default();
            counts.arrived += requests;
            let registered = gateway.controller.model(model);
            if registered.is_some_and(|model| model.spec.variant.is_some()) {
                counts.for_family += requests;
            }
            let plane = &gateway.data_plane;
            let links = plane.links().filter(|(_, id, target)| {
                plane.link_state(*id) == Some(&LinkState::Serving)
                    && target.replica.spec.model.model == *model
            });
            let links: Vec<_> = links.collect();
            if links.is_empty() {
                continue;
            }
            let in_time = self.in_time.get(model).copied().unwrap_or(1.0);
            counts.within_slo += (requests as f64 * in_time) as u64;
            let slowdown = self.slowdowns.get(model).copied().unwrap_or(1.0);
            for (_, id, target) in &links {
                let work: &mut ComputedWork = sample.work.entry(*id).or_default();
                let alone = target.profile.latency(4);
                for _ in 0..requests / 4 / links.len() as u64 {
                    work.add_batch(4, alone.mul_f64(slowdown), alone);
                }
            }
        }
        // A registered model without traffic has counts, too.
        for (id, _) in gateway.controller.models() {
            sample.models.entry(id.clone()).or_default();
        }
        gateway.sample = (self.now, sample.clone());
        for (model, counts) in gateway.data_plane.counts() {
            let sum = sample.models.entry(model.clone()).or_default();
            sum.arrived += counts.arrived;
            sum.within_slo += counts.within_slo;
            sum.for_family += counts.for_family;
        }
        for (id, work) in gateway.data_plane.work() {
            let sum = sample.work.entry(id).or_default();
            sum.batches += work.batches;
            sum.rows += work.rows;
            sum.compute += work.compute;
            sum.alone += work.alone;
        }
        sample
    }

    // The nodes.

    /// Adds a node with this many devices of a kind, and this much memory each. Its agent starts at once.
    pub(crate) fn add_node(&mut self, name: &str, kind: &str, devices: usize, memory_mib: u64) {
        let device = |number: usize| DeviceReport {
            name: format!("sim{number}"),
            kind: kind.parse().unwrap(),
            memory_bytes: ByteCount::new(memory_mib << 20),
            multiprocessors: Some(80),
            description: String::new(),
        };
        let behaviour = WorkerBehaviour {
            load: self.settings.load,
            measure: self.settings.measure,
            throws: false,
            failures: BTreeMap::new(),
            operators: None,
            inspects: true,
            verification: None,
        };
        let machine = Machine::new(name, (0..devices).map(device).collect(), behaviour);
        let name = machine.name.clone();
        self.machines.insert(name.clone(), machine);
        self.start_agent(&name);
    }

    pub(crate) fn machine(&mut self, name: &str) -> &mut Machine {
        let name: NodeName = name.parse().unwrap();
        self.machines.get_mut(&name).expect("there is this node")
    }

    pub(crate) fn start_agent(&mut self, name: &NodeName) {
        let machine = self.machines.get_mut(name).expect("there is this node");
        machine.start_agent(self.now);
        let starts = machine.starts;
        self.schedule(Duration::ZERO, Scheduled::AgentRenews(name.clone(), starts));
    }

    /// Kills the agent; its workers serve on.
    pub(crate) fn kill_agent(&mut self, name: &NodeName) {
        let machine = self.machines.get_mut(name).expect("there is this node");
        machine.agent = None;
    }

    /// Switches a node off: agent and workers end.
    pub(crate) fn switch_off(&mut self, name: &NodeName) {
        self.kill_agent(name);
        let machine = self.machines.get_mut(name).expect("there is this node");
        machine.processes.clear();
        self.close_connections();
        self.drive();
    }

    /// Kills one worker of a node.
    pub(crate) fn kill_worker(&mut self, name: &NodeName, which: usize) {
        let machine = self.machines.get_mut(name).expect("there is this node");
        let count = machine.processes.len();
        if count == 0 {
            return;
        }
        let process = machine.processes.iter().nth(which % count);
        let (id, pid) = process.map(|(id, p)| (id.clone(), p.pid)).expect("counted");
        let cause = packhorse_reconcile::ExitCause::Signal(9);
        let exits = Later::WorkerExits(id, pid, cause);
        self.schedule(Duration::ZERO, Scheduled::Machine(name.clone(), exits));
    }

    fn agent_renews(&mut self, name: &NodeName, starts: u64) {
        let Some(machine) = self.machines.get(name) else {
            return;
        };
        if machine.starts != starts || machine.agent.is_none() {
            return;
        }
        if !machine.speaks() || self.gateway.is_none() {
            let renews = Scheduled::AgentRenews(name.clone(), starts);
            self.schedule(RETRY, renews);
            return;
        }
        let claim = machine.claim();
        self.call(
            Caller::Lease(name.clone(), starts),
            Command::TakeLease(name.clone(), claim),
        );
    }

    /// Has the agent of a node report, if there is something new to say or it does so anyhow.
    fn send_report(&mut self, name: &NodeName, anyhow: bool) {
        let Some(machine) = self.machines.get_mut(name) else {
            return;
        };
        let Some(report) = machine.report().filter(|_| machine.speaks()) else {
            return;
        };
        let agent = machine.agent.as_mut().expect("it reports");
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
    fn deliver_wanted(&mut self, name: &NodeName) {
        let now = self.now;
        let Some(gateway) = &self.gateway else {
            return;
        };
        let Some(state) = gateway.wanted.get(name).cloned() else {
            return;
        };
        let Some(machine) = self.machines.get_mut(name).filter(|m| m.hears()) else {
            return;
        };
        let starts = machine.starts;
        let Some(agent) = &mut machine.agent else {
            return;
        };
        let Some(granted) = agent.granted else {
            return;
        };
        if state.epoch > granted {
            let renews = Scheduled::AgentRenews(name.clone(), starts);
            self.schedule(Duration::ZERO, renews);
            return;
        }
        let state = WantedState::clone(&state);
        let wanted = packhorse_reconcile::Event::Wanted(state);
        agent.reconciler.handle(now, wanted);
        self.run_agent(name);
    }

    /// Has the agent of a node act, and report if something has changed.
    fn run_agent(&mut self, name: &NodeName) {
        let now = self.now;
        let Some(machine) = self.machines.get_mut(name) else {
            return;
        };
        let later = machine.act(now);
        let draining = std::mem::take(&mut machine.draining);
        let starts = machine.starts;
        let agent = machine.agent.as_ref();
        let wakeup = agent.and_then(|agent| agent.reconciler.wakeup());
        for (after, event) in later {
            self.schedule(after, Scheduled::Machine(name.clone(), event));
        }
        for worker in draining {
            self.tell_draining(name, &worker);
        }
        if let Some(at) = wakeup {
            let wakes = Scheduled::AgentWakes(name.clone(), starts);
            self.schedule(at.saturating_since(now), wakes);
        }
        self.send_report(name, false);
    }

    // Time.

    /// Lets a time pass.
    pub(crate) fn run_for(&mut self, time: Duration) {
        let end = self.now + time;
        while let Some(next) = self.next().filter(|next| *next <= end) {
            self.step(next);
        }
        self.now = end;
        self.drive();
    }

    /// Lets time pass until the condition holds. Returns the time that passed.
    ///
    /// Fails if it does not hold within the limit.
    pub(crate) fn run_until(
        &mut self,
        what: &str,
        limit: Duration,
        condition: impl Fn(&Self) -> bool,
    ) -> Duration {
        let begin = self.now;
        while !condition(self) {
            let next = self.next().unwrap_or(Time::MAX);
            assert!(
                next <= begin + limit,
                "{what}: not within {limit:?}\n{}",
                self.history()
            );
            self.step(next);
        }
        self.now.saturating_since(begin)
    }

    fn next(&self) -> Option<Time> {
        let queued = self.queue.peek().map(|Reverse((at, _, _))| *at);
        let gateway = self.gateway.as_ref();
        let gateway = gateway.filter(|gateway| gateway.paused_until.is_none());
        let timeouts = gateway.into_iter().flat_map(|gateway| {
            let timeout = gateway.data_plane.poll_timeout();
            [Some(gateway.controller.poll_timeout()), timeout]
        });
        queued.into_iter().chain(timeouts.flatten()).min()
    }

    fn step(&mut self, next: Time) {
        assert!(next >= self.now, "time goes back");
        self.steps_at_once = if next > self.now {
            0
        } else {
            self.steps_at_once + 1
        };
        assert!(
            self.steps_at_once < MAX_STEPS,
            "time does not go on\n{}",
            self.history()
        );
        self.now = next;
        if let Some(Reverse((at, _, number))) = self.queue.peek().copied()
            && at <= next
        {
            self.queue.pop();
            let event = self.scheduled[number].take().expect("it happens once");
            self.happen(event);
        }
        self.drive();
    }

    fn happen(&mut self, event: Scheduled) {
        let now = self.now;
        let paused = self.gateway.as_ref().and_then(|g| g.paused_until);
        if let Some(until) = paused.filter(|_| event.is_for_gateway()) {
            self.schedule(until.saturating_since(now), event);
            return;
        }
        let is_start =
            |cluster: &Self, start| cluster.gateway.as_ref().is_some_and(|g| g.start == start);
        match event {
            Scheduled::AgentRenews(name, starts) => self.agent_renews(&name, starts),
            Scheduled::AgentWakes(name, starts) => {
                if self.machines.get(&name).is_some_and(|m| m.starts == starts) {
                    self.run_agent(&name);
                }
            }
            Scheduled::Machine(name, event) => {
                let machine = self.machines.get_mut(&name).expect("it stays");
                if let Some((after, later)) = machine.happen(now, event) {
                    self.schedule(after, Scheduled::Machine(name.clone(), later));
                }
                self.close_connections();
                self.run_agent(&name);
            }
            Scheduled::Stored(start) if is_start(self, start) => {
                if let Some((receipt, result, more)) = self.store.carry_out_next() {
                    self.stored(start, receipt, result, more);
                }
            }
            Scheduled::Solved(start, key, result) if is_start(self, start) => {
                self.tell_gateway(Event::Solved(key, *result));
            }
            Scheduled::Connects(start, key, attempt) => self.connects(start, key, attempt),
            Scheduled::Delivers(connection, message) => self.deliver(connection, message),
            Scheduled::GivesUp(connection) => self.gives_up(connection),
            Scheduled::Overdue(connection, batch) => self.overdue(connection, batch),
            Scheduled::Computed(node, worker, time) => {
                self.worker_computed(&node, &worker, time);
            }
            Scheduled::Arrives(model, number) => self.arrives(model, number),
            Scheduled::HangsUp(tag) => self.hangs_up(tag),
            Scheduled::GatewayResumes(start) if is_start(self, start) => {
                if let Some(gateway) = &mut self.gateway {
                    gateway.paused_until = None;
                }
            }
            // They are of an earlier gateway.
            Scheduled::Stored(_) | Scheduled::Solved(..) | Scheduled::GatewayResumes(_) => {}
        }
    }

    fn stored(
        &mut self,
        start: u64,
        receipt: Receipt,
        result: Result<(), packhorse_control::WriteError>,
        more: bool,
    ) {
        if more {
            self.schedule(self.settings.store_delay, Scheduled::Stored(start));
        }
        self.tell_gateway(Event::Stored(receipt, result));
    }

    fn check(&mut self) {
        for model in self.interruptions.keys().cloned().collect::<Vec<_>>() {
            let serves = !self.serving_replicas(&model).is_empty();
            if self.invariants.stopped_serving(&model, serves) {
                *self.interruptions.entry(model).or_default() += 1;
            }
        }
        let gateway = self.gateway.as_ref().expect("it was driven");
        let invariants = &mut self.invariants;
        let checked = invariants.check(&gateway.controller, &self.machines, &self.store);
        if let Err(broken) = checked.and_then(|()| gateway.data_plane.check()) {
            panic!("at {}: {broken}\n{}", self.now, self.history());
        }
    }

    /// Returns the state of a model, with its reason.
    pub(crate) fn state(&self, model: &str) -> (ModelState, String) {
        let id: ModelId = model.parse().unwrap();
        let status = self.controller().model_status(&id);
        let status = status.expect("it is registered");
        (status.state, status.reason.unwrap_or_default())
    }

    /// Returns true if every registered model that has not failed is ready, the plan is rolled out, and nothing runs that is not wanted.
    pub(crate) fn is_healthy(&self) -> bool {
        let Some(gateway) = &self.gateway else {
            return false;
        };
        let controller = &gateway.controller;
        let ready = |id: &ModelId| {
            let state = controller.model_status(id).map(|status| status.state);
            matches!(state, Some(ModelState::Ready | ModelState::Failed))
        };
        let wanted: BTreeSet<ReplicaId> = gateway
            .wanted
            .values()
            .flat_map(|state| &state.replicas)
            .map(|replica| replica.id)
            .collect();
        let runs_unwanted = self.machines.values().any(|machine| {
            machine.processes.values().any(|p| match &p.task {
                packhorse_reconcile::Task::Serve(replicas) => {
                    replicas.iter().all(|replica| !wanted.contains(&replica.id))
                }
                packhorse_reconcile::Task::Measure(_) | packhorse_reconcile::Task::Inspect(_) => {
                    false
                }
            })
        });
        controller.models().all(|(id, _)| ready(id))
            && controller.earlier_replicas() == 0
            && !runs_unwanted
    }

    /// Returns the texts of the notices since a time for which the predicate holds.
    pub(crate) fn count_notices(&self, since: Time, is: impl Fn(&Notice) -> bool) -> usize {
        let notices = self.notices.iter();
        notices
            .filter(|(at, notice)| *at >= since && is(notice))
            .count()
    }

    /// Returns the number of workers that were started to serve, by all nodes.
    pub(crate) fn worker_starts(&self) -> usize {
        self.machines.values().map(|m| m.served_starts).sum()
    }

    /// Prints what has happened, if a trace is wanted.
    pub(crate) fn print(&self, text: impl FnOnce() -> String) {
        if self.trace {
            println!("{:>11.3} s  {}", self.now.as_secs_f64(), text());
        }
    }

    fn history(&self) -> String {
        let from = self.notices.len().saturating_sub(SHOWN);
        let mut text = format!("now {}\n", self.now);
        for (at, notice) in &self.notices[from..] {
            let _ = writeln!(text, "{:>11.3} s  {}", at.as_secs_f64(), sentence(notice));
        }
        if let Some(gateway) = &self.gateway {
            let models: Vec<&ModelId> = gateway.controller.models().map(|(id, _)| id).collect();
            for id in models.iter().take(10) {
                let _ = writeln!(text, "{id} {:?}", gateway.controller.model_status(id));
                for replica in gateway.controller.replicas_of(id) {
                    let status = gateway.controller.replica_status(replica);
                    let _ = writeln!(
                        text,
                        "  {} on {}: {:?}, {:?}, link {:?}",
                        replica.id,
                        replica.spec.device,
                        replica.phase,
                        status.map(|status| (status.state, status.address)),
                        gateway.controller.link(replica.id),
                    );
                }
            }
        }
        text
    }
}

/// Returns a notice as people read it.
fn sentence(notice: &Notice) -> String {
    let because = |reason: &Option<String>| match reason {
        Some(reason) => format!(": {reason}"),
        None => String::new(),
    };
    match notice {
        Notice::Model(id, Some(state), reason) => {
            format!("model {id} is {state:?}{}", because(reason))
        }
        Notice::Model(id, None, _) => format!("model {id} is removed"),
        Notice::Node(name, Some(state), text) => format!("node {name} is {state:?}: {text}"),
        Notice::Node(name, None, _) => format!("node {name} is removed"),
        Notice::Replica(id, model, state, reason) => {
            format!("replica {id} of {model}: {state:?}{}", because(reason))
        }
        Notice::Device(device, state, text) => format!("device {device}: {state:?}: {text}"),
        Notice::Plan(Some(generation), state, text) => {
            format!("plan {generation} is {state:?}: {text}")
        }
        Notice::Plan(None, state, text) => format!("a plan is {state:?}: {text}"),
        Notice::RolledBack(id, reason) => format!("{id} is rolled back: {reason}"),
        Notice::Drift(id, drift, text) => format!("{id} deviates in {drift:?}: {text}"),
        Notice::Finding(change, finding) => format!("{change:?}: {finding:?}"),
        Notice::Paused(time) => format!("the gateway did not act for {time:?}"),
    }
}

/// Returns the specification of a model that takes one request at a time and batches.
pub(crate) fn spec(model: &str, rate: f64) -> ModelSpec {
    let model: ModelId = model.parse().unwrap();
    let mut digest = [0; 32];
    for (byte, of_name) in digest.iter_mut().zip(model.to_string().bytes()) {
        *byte = of_name;
    }
    ModelSpec {
        program: Program {
            model,
            artifact: ArtifactDigest::from_sha256(digest),
            max_batch_size: 16,
            inputs: vec![tensor("x")],
            outputs: vec![tensor("y")],
        },
        slo: Duration::from_millis(200),
        rate: RequestsPerSecond::new(rate).ok(),
        rate_mode: RateMode::Max,
        priority: Priority::default(),
        queue_limit: None,
        variant: None,
    }
}

fn tensor(name: &str) -> packhorse_cluster::TensorSpec {
    serde_json::from_value(serde_json::json!({"name": name, "datatype": "FP32", "shape": [-1, 4]}))
        .unwrap()
}

/// Returns the name of a model.
pub(crate) fn name(model: &str) -> ModelName {
    model.parse().unwrap()
}
