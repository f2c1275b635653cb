//! The cluster: its parts, its clock, and the loop of its events.

use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

use packhorse_cluster::{ModelId, Time};
use packhorse_control::Notice;

use crate::{
    clients::Clients,
    counted_traffic::CountedTraffic,
    environment::Environment,
    events::{Event, Events, RareEvent},
    gateway::{Gateway, Served},
    invariants::Invariants,
    network::Network,
    nodes::Nodes,
    random::Random,
    settings::Settings,
    shelf::Shelf,
    store::Store,
};

/// The number of steps that may be taken at one time. With more, something is done again and again.
const MAX_STEPS: usize = 100_000;
/// The number of notices that are kept, to be shown if an invariant breaks.
const SHOWN: usize = 40;

/// A cluster in virtual time. Faults are methods. Debug builds check the [invariants](Invariants): those of the data plane after every event, all of them
/// unless only requests and batches have gone on.
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
    /// The models and replicas that are served without a control plane; none for a cluster with one.
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
    pub(crate) network: Network,
    /// The weights that are not on devices, by node and device.
    pub(crate) shelves: BTreeMap<(u32, u32), Shelf>,
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
            shelves: BTreeMap::new(),
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
        let event = self.events.pop(next);
        let is_seldom = matches!(event, Some(Event::Rare(_) | Event::Alarm(_)));
        let alarm = event.and_then(|event| self.happen(event));
        self.drive_and_check(is_seldom);
        alarm
    }

    /// Returns true if all requests have ended, for clients and for the engine.
    pub fn is_idle(&self) -> bool {
        let gateway = self.gateway.as_ref();
        let books = gateway.map(|gateway| gateway.data_plane.engine.books());
        let is_empty = |books: packhorse_serving::Books| {
            books.is_balanced() && books.queued == 0 && books.in_flight == 0
        };
        self.clients.are_idle() && books.is_none_or(is_empty)
    }

    /// Returns the number of requests that came when no pool's device had the weights of their model, since the gateway's start.
    pub fn cold_requests(&self) -> u64 {
        let gateway = self.gateway.as_ref();
        gateway.map_or(0, |gateway| gateway.data_plane.engine.cold_requests())
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
            RareEvent::AgentWakes(name, starts) => self.agent_wakes(&name, starts),
            RareEvent::Node(name, event) => self.happen_at_node(&name, event),
            RareEvent::Stored(of) if start == Some(of) => self.stored(of),
            RareEvent::Solved(of, key, result) if start == Some(of) => {
                self.tell_gateway(packhorse_control::Event::Solved(key, result));
            }
            RareEvent::Connects(start, key, attempt) => self.connects(start, key, attempt),
            RareEvent::Delivers(connection, message) => self.deliver(connection, message),
            RareEvent::GivesUp(connection) => self.gives_up(connection),
            RareEvent::WeightsLoaded(connection) => self.weights_loaded(connection),
            RareEvent::WeightsCooled(connection) => self.weights_cooled(connection),
            RareEvent::Overdue(batch) => self.overdue(batch),
            RareEvent::WorkerResumes(node, device, done) => {
                self.batch_computed(node, device, &done);
            }
            RareEvent::HangsUp(request) => self.hangs_up(request),
            RareEvent::GatewayResumes(of) if start == Some(of) => self.resume_gateway(),
            // They are of an earlier gateway.
            RareEvent::Stored(_) | RareEvent::Solved(..) | RareEvent::GatewayResumes(_) => {}
        }
    }

    /// Checks the invariants: all, or only those of the data plane.
    ///
    /// Panics if one does not hold.
    pub(crate) fn check(&mut self, all: bool) {
        let models = self.interruptions.keys().filter(|_| all);
        for model in models.cloned().collect::<Vec<_>>() {
            let serves = self.serves(&model);
            if self.invariants.stopped_serving(&model, serves) {
                *self.interruptions.entry(model).or_default() += 1;
            }
        }
        let Some(gateway) = &self.gateway else {
            return;
        };
        let controller = gateway.controller.as_ref().filter(|_| all);
        let checked = match controller {
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
fn notice_text(notice: &Notice) -> String {
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
        Notice::Rerouted(_, text) => text.clone(),
        Notice::RolledBack(id, reason) => format!("{id} is rolled back: {reason}"),
        Notice::Drift(id, drift, text) => format!("{id} deviates in {drift:?}: {text}"),
        Notice::Finding(change, finding) => format!("{change:?}: {finding:?}"),
        Notice::Paused(time) => format!("the gateway did not act for {time:?}"),
    }
}
