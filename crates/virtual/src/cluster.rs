//! The cluster: its parts, its clock, and the loop of its events.

use std::{
    collections::{BTreeMap, VecDeque},
    ops::{Index, IndexMut},
    time::Duration,
};

use packhorse_cluster::{ModelId, NetworkModel, NodeName, Time};
use packhorse_contention::Interference;
use packhorse_control::{Config, Notice};
use packhorse_reconcile::Limits;
use packhorse_serving::EngineConfig;

use crate::{
    clients::Clients,
    counted_traffic::CountedTraffic,
    environment::Environment,
    events::{Event, Events, RareEvent},
    gateway::{Gateway, Served},
    invariants::Invariants,
    network::Network,
    node::{LIMITS, Node, Times},
    random::Random,
    store::Store,
};

/// The number of steps that may be taken at one time. With more, something is done again and again.
const MAX_STEPS: usize = 1_000_000;
/// The number of notices that are kept, to be shown if an invariant breaks.
const SHOWN: usize = 40;

/// The settings of a cluster.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The settings of the controller.
    pub config: Config,
    /// The settings of the engine.
    pub engine: EngineConfig,
    /// The most bytes of a shared batch.
    pub max_batch_bytes: u64,
    /// The rates of replicas that are active on one device at the same time.
    pub interference: Interference,
    /// The random part of batch times.
    pub jitter: Jitter,
    /// The times of the links to devices.
    pub links: LinkTimes,
    /// The time of a write.
    pub store_delay: Duration,
    /// The time of a call of the policy.
    pub solve_delay: Duration,
    /// The time until an agent that was refused or not answered asks again.
    pub retry: Duration,
    /// The time limits of workers.
    pub limits: Limits,
    /// The time that agents and workers take for what they do.
    pub times: Times,
    /// The time to make a connection to a worker.
    pub connect: Duration,
    /// The time after which a connection is tried again.
    pub reconnect: Duration,
    /// The time after which a connection is given up over which nothing comes back.
    pub unacknowledged: Duration,
    /// The time after which a worker is given up that does not answer a batch.
    pub batch_limit: Option<Duration>,
    /// The part of the clients that hang up before their answer, and the longest time until they do.
    pub impatient: (f64, Duration),
    /// True if clients send again what a gateway that has died did not answer, until the deadline.
    pub resends: bool,
    /// The seed of everything that is random.
    pub seed: u64,
}

impl Settings {
    /// Returns the settings of a cluster whose parts take as long as those of a real one.
    pub fn new(config: Config) -> Self {
        Self {
            config,
            engine: EngineConfig::default(),
            max_batch_bytes: 64 << 20,
            interference: Interference::default(),
            jitter: Jitter::None,
            links: LinkTimes::default(),
            store_delay: Duration::from_millis(5),
            solve_delay: Duration::from_millis(20),
            retry: Duration::from_millis(500),
            limits: LIMITS,
            times: Times::default(),
            connect: Duration::from_millis(5),
            reconnect: Duration::from_millis(250),
            unacknowledged: Duration::from_secs(5),
            batch_limit: Some(Duration::from_secs(15)),
            impatient: (0.0, Duration::ZERO),
            resends: false,
            seed: 0,
        }
    }

    /// Returns these settings without the time that stores, policies, agents and messages take. What failed is tried again a millisecond later.
    #[must_use]
    pub fn without_delays(self) -> Self {
        Self {
            store_delay: Duration::ZERO,
            solve_delay: Duration::ZERO,
            times: Times {
                message: Duration::ZERO,
                fetch: Duration::ZERO,
                termination: Duration::ZERO,
                ..self.times
            },
            connect: Duration::ZERO,
            retry: Duration::from_millis(1),
            reconnect: Duration::from_millis(1),
            ..self
        }
    }
}

/// The random part of batch times.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Jitter {
    /// None: each batch takes the expected time.
    None,
    /// Up to this part of the expected time is added.
    UpTo(f64),
    /// The times are exponential, and the expected one is their mean.
    Exponential,
}

/// The times of the links from the gateway to devices, one each.
#[derive(Clone, Copy, Debug)]
pub struct LinkTimes {
    /// The time of handing a batch over, before the network.
    pub router_overhead: Duration,
    /// The network from the gateway to a worker.
    pub network: NetworkModel,
    /// True if a batch is transmitted once those before it are, false if every batch is transmitted as if it were alone.
    pub queues: bool,
    /// The time from a worker to the client.
    pub return_time: Duration,
}

impl Default for LinkTimes {
    /// Returns links that take no time but the messages' own.
    fn default() -> Self {
        Self {
            router_overhead: Duration::ZERO,
            network: NetworkModel {
                base: Duration::ZERO,
                bytes_per_second: f64::INFINITY,
            },
            queues: true,
            return_time: Duration::ZERO,
        }
    }
}

impl LinkTimes {
    /// Returns the time at which so many bytes, sent now, are at the device. `free` is the time at which its link has transmitted what was handed
    /// to it before.
    pub fn send(&self, now: Time, free: &mut Time, bytes: f64) -> Time {
        let handed_over = now + self.router_overhead;
        let begin = if self.queues {
            handed_over.max(*free)
        } else {
            handed_over
        };
        let seconds = bytes / self.network.bytes_per_second;
        *free = begin + Duration::from_secs_f64(seconds);
        *free + self.network.base
    }
}

/// The nodes, in the order in which they were added.
#[derive(Debug, Default)]
pub struct Nodes {
    list: Vec<Node>,
    by_name: BTreeMap<NodeName, usize>,
}

impl Nodes {
    pub(crate) fn push(&mut self, node: Node) {
        let before = self.by_name.insert(node.name.clone(), self.list.len());
        assert!(before.is_none(), "two nodes have the name {}", node.name);
        self.list.push(node);
    }

    /// Returns the number of the node of this name.
    pub(crate) fn index(&self, name: &NodeName) -> Option<usize> {
        self.by_name.get(name).copied()
    }

    /// Returns the node of this name.
    pub fn get(&self, name: &NodeName) -> Option<&Node> {
        Some(&self.list[self.index(name)?])
    }

    /// Returns the node of this name, to change it.
    pub fn get_mut(&mut self, name: &NodeName) -> Option<&mut Node> {
        let index = self.index(name)?;
        Some(&mut self.list[index])
    }

    /// Has models that are loaded from now on take their time.
    pub fn cool_down(&mut self) {
        for node in &mut self.list {
            node.behaviour.warm = false;
        }
    }

    /// Returns the nodes.
    pub fn iter(&self) -> impl Iterator<Item = &Node> {
        self.list.iter()
    }
}

impl Index<usize> for Nodes {
    type Output = Node;

    fn index(&self, index: usize) -> &Node {
        &self.list[index]
    }
}

impl IndexMut<usize> for Nodes {
    fn index_mut(&mut self, index: usize) -> &mut Node {
        &mut self.list[index]
    }
}

/// A cluster in virtual time. Faults are methods. After every event the [invariants](Invariants) hold, which debug builds check.
#[derive(Debug)]
pub struct Cluster<E> {
    /// The settings.
    pub settings: Settings,
    /// The surroundings.
    pub environment: E,
    /// The time.
    pub now: Time,
    /// The store.
    pub store: Store,
    /// The gateway; none while it does not run.
    pub gateway: Option<Gateway>,
    /// The nodes.
    pub nodes: Nodes,
    /// The number of devices of all nodes.
    pub(crate) devices: usize,
    /// What is served without a control plane; none for a cluster with one.
    pub(crate) served: Option<Served>,
    /// The requests that are counted, but that nobody sends.
    pub counted: CountedTraffic,
    /// The factor of each model's batch times over those that are expected.
    pub slowdowns: BTreeMap<ModelId, f64>,
    /// The last notices.
    pub(crate) notices: VecDeque<(Time, Notice)>,
    /// True if everything that happens is printed.
    pub trace: bool,
    /// The clients.
    pub clients: Clients,
    /// The network.
    pub network: Network,
    /// The random numbers.
    pub random: Random,
    /// The invariants, and the answers of commands.
    pub invariants: Invariants,
    /// The models that nothing may interrupt: of each, the number of times at which its last serving replica stopped serving.
    pub interruptions: BTreeMap<ModelId, usize>,
    pub(crate) events: Events,
    pub(crate) gateway_starts: u64,
    pub(crate) next_request: u64,
    steps_at_once: usize,
}

impl<E: Environment> Cluster<E> {
    /// Returns a cluster without nodes, whose gateway does not run yet.
    pub fn new(settings: Settings, store: Store, environment: E) -> Self {
        Self {
            random: Random::new(settings.seed),
            settings,
            environment,
            now: Time::ZERO,
            store,
            gateway: None,
            nodes: Nodes::default(),
            devices: 0,
            served: None,
            counted: CountedTraffic::default(),
            slowdowns: BTreeMap::new(),
            notices: VecDeque::new(),
            trace: false,
            clients: Clients::default(),
            network: Network::default(),
            invariants: Invariants::default(),
            interruptions: BTreeMap::new(),
            events: Events::default(),
            gateway_starts: 0,
            next_request: 0,
            steps_at_once: 0,
        }
    }

    pub(crate) fn schedule(&mut self, after: Duration, event: RareEvent) {
        self.events.push(self.now + after, event.into());
    }

    /// Has [`Cluster::step`] return this number at that time.
    pub fn set_alarm(&mut self, at: Time, number: u64) {
        self.events.push(at, Event::Alarm(number));
    }

    /// Returns the time of the next step; `None` if nothing will happen any more.
    pub fn next(&self) -> Option<Time> {
        let gateway = self.gateway.as_ref();
        let timeout = gateway.and_then(Gateway::poll_timeout);
        match (self.events.next_at(), timeout) {
            (Some(event), Some(timeout)) => Some(event.min(timeout)),
            (event, timeout) => event.or(timeout),
        }
    }

    /// Has what happens at this time, that of [`Cluster::next`], happen: one event at most. Returns the number of an alarm.
    pub fn step(&mut self, next: Time) -> Option<u64> {
        debug_assert!(next >= self.now, "time goes back");
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
        let event = self.events.pop(next);
        let alarm = event.and_then(|event| self.happen(event));
        self.drive();
        alarm
    }

    /// Lets a time pass.
    pub fn run_for(&mut self, time: Duration) {
        let end = self.now + time;
        while let Some(next) = self.next().filter(|next| *next <= end) {
            self.step(next);
        }
        self.now = end;
        self.drive();
    }

    /// Lets time pass until the condition holds. Returns the time that passed.
    ///
    /// Panics if it does not hold within the limit.
    pub fn run_until(
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

    fn happen(&mut self, event: Event) -> Option<u64> {
        let paused = self.gateway.as_ref().and_then(|g| g.paused_until);
        if let Some(until) = paused.filter(|_| event.is_for_gateway()) {
            self.events.push(until.max(self.now), event);
            return None;
        }
        match event {
            Event::Arrives { model, number } => self.arrives(model, number),
            Event::BatchAtWorker(batch) => self.batch_at_worker(batch),
            Event::DeviceCompletes {
                node,
                device,
                revision,
            } => self.device_completes(node, device, revision),
            Event::BatchAnswered(batch) => self.batch_answered(batch),
            Event::Alarm(number) => return Some(number),
            Event::Rare(event) => self.happen_seldom(*event),
        }
        None
    }

    fn happen_seldom(&mut self, event: RareEvent) {
        let start = self.gateway.as_ref().map(|gateway| gateway.start);
        match event {
            RareEvent::AgentRenews(name, starts) => self.agent_renews(&name, starts),
            RareEvent::AgentWakes(name, starts) => {
                if self.nodes.get(&name).is_some_and(|n| n.starts == starts) {
                    self.run_agent(&name);
                }
            }
            RareEvent::Node(name, event) => self.happen_at_node(&name, event),
            RareEvent::Stored(of) if start == Some(of) => self.stored(of),
            RareEvent::Solved(of, key, result) if start == Some(of) => {
                self.tell_gateway(packhorse_control::Event::Solved(key, result));
            }
            RareEvent::Connects(start, key, attempt) => self.connects(start, key, attempt),
            RareEvent::Delivers(connection, message) => self.deliver(connection, message),
            RareEvent::GivesUp(connection) => self.gives_up(connection),
            RareEvent::Overdue(batch) => self.overdue(batch),
            RareEvent::HangsUp(request) => self.hangs_up(request),
            RareEvent::GatewayResumes(of) if start == Some(of) => self.resume_gateway(),
            // They are of an earlier gateway.
            RareEvent::Stored(_) | RareEvent::Solved(..) | RareEvent::GatewayResumes(_) => {}
        }
    }

    /// Checks the invariants.
    ///
    /// Panics if one does not hold.
    pub(crate) fn check(&mut self) {
        for model in self.interruptions.keys().cloned().collect::<Vec<_>>() {
            let serves = self.serves(&model);
            if self.invariants.stopped_serving(&model, serves) {
                *self.interruptions.entry(model).or_default() += 1;
            }
        }
        let Some(gateway) = &self.gateway else {
            return;
        };
        let checked = match &gateway.controller {
            Some(controller) => self.invariants.check(controller, &self.nodes, &self.store),
            None => Ok(()),
        };
        if let Err(broken) = checked.and_then(|()| gateway.data_plane.check()) {
            panic!("at {}: {broken}\n{}", self.now, self.history());
        }
    }

    /// Keeps a notice for those who look at the history.
    pub(crate) fn note(&mut self, notice: Notice) {
        self.print(|| notice_text(&notice));
        self.environment.told(self.now, &notice);
        if self.notices.len() == SHOWN {
            self.notices.pop_front();
        }
        self.notices.push_back((self.now, notice));
    }

    /// Prints what has happened, if a trace is wanted.
    pub fn print(&self, text: impl FnOnce() -> String) {
        if self.trace {
            let mut out = std::io::stdout().lock();
            // Nobody may read it.
            let _ = std::io::Write::write_fmt(
                &mut out,
                format_args!("{:>11.3} s  {}\n", self.now.as_secs_f64(), text()),
            );
        }
    }

    /// Returns the last notices, and the states of models and replicas.
    pub fn history(&self) -> String {
        let mut lines = vec![format!("now {}", self.now)];
        for (at, notice) in &self.notices {
            lines.push(format!(
                "{:>11.3} s  {}",
                at.as_secs_f64(),
                notice_text(notice)
            ));
        }
        let gateway = self.gateway.as_ref();
        if let Some(controller) = gateway.and_then(|gateway| gateway.controller.as_ref()) {
            for (id, _) in controller.models().take(10) {
                lines.push(format!("{id} {:?}", controller.model_status(id)));
                for replica in controller.replicas_of(id) {
                    let status = controller.replica_status(replica);
                    lines.push(format!(
                        "  {} on {}: {:?}, {:?}, link {:?}",
                        replica.id,
                        replica.spec.device,
                        replica.phase,
                        status.map(|status| (status.state, status.address)),
                        controller.link(replica.id),
                    ));
                }
            }
        }
        lines.join("\n")
    }
}

/// Returns a notice as people read it.
pub fn notice_text(notice: &Notice) -> String {
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
