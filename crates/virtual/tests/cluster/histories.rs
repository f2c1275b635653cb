//! Random histories of changes and faults under load, after which everything heals. A history follows from its seed: `cargo xtask seeds`
//! runs as many as one likes, and any of them again. In every fourth, models share pools whose memory does not hold all of them, and in every second of
//! these neither does that of their nodes.

use std::{
    any::Any,
    env,
    ops::Range,
    panic::{AssertUnwindSafe, catch_unwind, set_hook, take_hook},
    time::{Duration, Instant},
};

use packhorse_cluster::{ModelId, NodeName, Scheduling};
use packhorse_control::{Command, ModelSpecChange, WriteError};
use packhorse_reconcile::Task;
use packhorse_virtual::{Disk, End, LoadFailure};
use proptest::{
    prelude::*,
    strategy::ValueTree as _,
    test_runner::{RngAlgorithm, TestRng, TestRunner},
};

use crate::{
    backbones::operators_of_backbone,
    estimates::operators,
    virtual_cluster::{PolicyFault, Settings, VirtualCluster, WEIGHTS, name, spec},
};

const NODES: usize = 4;
const MODELS: usize = 5;
/// The number of steps of a history.
const STEPS: Range<usize> = 1..60;
/// The number of simpler histories that are tried in place of one that fails.
const SIMPLER: usize = 300;
/// The number of seeds that a test runs if nothing else is asked for.
const SEEDS: u64 = 1000;
/// The requests/s for each model after everything has healed, and the part of them that must be answered in time.
const HEALED_RATE: f64 = 20.0;
const HEALED_PART: f64 = 0.99;

/// A step of a history.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    Wait(u64),
    Register(usize),
    RegisterAll,
    Remove(usize),
    Change(usize, u64),
    Schedule(usize, Scheduling, bool),
    RemoveNode(usize),
    Traffic(usize, u32),
    KillWorker(usize, usize),
    KillAgent(usize),
    SwitchOff(usize),
    WipeAgent(usize),
    Cut(usize, bool),
    Devices(usize),
    PauseGateway(u64),
    KillGateway(bool, u64),
    Backup,
    Restore,
    Store(bool),
    SlowStore(u64),
    Policy(PolicyFault),
    Breaks(usize, usize, bool),
    Eject(usize),
    Clients(usize, u32),
    Poison(usize),
    Killer(usize),
    StopWorker(usize, usize, u64),
    Deaf(usize, bool),
    Mute(usize, bool),
    Delay(usize, u64),
    Throws(usize, bool),
    LateGrant(usize, u64),
    LateWanted(usize),
    Inspect(usize, Inspection),
}

/// The operators that workers report of the models that they measure.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Inspection {
    /// None.
    Nothing,
    /// They cannot be read.
    Unreadable,
    /// They take this memory, in MiB, and this time for each row, in milliseconds.
    Operators(u64, f64),
    /// They begin with the same operators on the same weights.
    Backbone,
}

fn step() -> impl Strategy<Value = Step> {
    let node = 0..NODES;
    let model = 0..MODELS;
    let scheduling = prop_oneof![
        Just(Scheduling::Open),
        Just(Scheduling::Cordoned),
        Just(Scheduling::Draining)
    ];
    let policy = prop_oneof![
        Just(PolicyFault::None),
        Just(PolicyFault::Fails),
        Just(PolicyFault::Moves)
    ];
    let inspection = prop_oneof![
        1 => Just(Inspection::Nothing),
        1 => Just(Inspection::Unreadable),
        4 => Just(Inspection::Backbone),
        // Nearly as measured.
        1 => Just(Inspection::Operators(900, 1.0)),
        // Two replicas of the models do not fit beside each other, though it seems so.
        1 => Just(Inspection::Operators(300, 0.2)),
        // No place seems to be good enough.
        1 => Just(Inspection::Operators(900, 300.0)),
        1 => Just(Inspection::Operators(4000, 1.0)),
    ];
    prop_oneof![
        8 => (1_u64..4000).prop_map(Step::Wait),
        3 => (4000_u64..20_000).prop_map(Step::Wait),
        4 => model.clone().prop_map(Step::Register),
        2 => Just(Step::RegisterAll),
        1 => model.clone().prop_map(Step::Remove),
        2 => (model.clone(), 15_u64..200).prop_map(|(m, slo)| Step::Change(m, slo)),
        2 => (node.clone(), scheduling, any::<bool>()).prop_map(|(n, s, d)| Step::Schedule(n, s, d)),
        1 => node.clone().prop_map(Step::RemoveNode),
        2 => (model.clone(), 0_u32..600).prop_map(|(m, r)| Step::Traffic(m, r)),
        2 => (node.clone(), 0_usize..8).prop_map(|(n, p)| Step::KillWorker(n, p)),
        2 => node.clone().prop_map(Step::KillAgent),
        1 => node.clone().prop_map(Step::SwitchOff),
        1 => node.clone().prop_map(Step::WipeAgent),
        2 => (node.clone(), any::<bool>()).prop_map(|(n, on)| Step::Cut(n, on)),
        1 => node.clone().prop_map(Step::Devices),
        1 => (500_u64..9000).prop_map(Step::PauseGateway),
        2 => (any::<bool>(), 0_u64..8000).prop_map(|(w, t)| Step::KillGateway(w, t)),
        1 => Just(Step::Backup),
        1 => Just(Step::Restore),
        1 => any::<bool>().prop_map(Step::Store),
        1 => (1_u64..1500).prop_map(Step::SlowStore),
        1 => policy.prop_map(Step::Policy),
        2 => (node, model.clone(), any::<bool>()).prop_map(|(n, m, f)| Step::Breaks(n, m, f)),
        1 => model.clone().prop_map(Step::Eject),
        6 => (model.clone(), 0_u32..40).prop_map(|(m, r)| Step::Clients(m, r)),
        2 => model.clone().prop_map(Step::Poison),
        1 => model.prop_map(Step::Killer),
        2 => (0..NODES, 0_usize..8, 100_u64..25_000).prop_map(|(n, w, t)| Step::StopWorker(n, w, t)),
        1 => (0..NODES, any::<bool>()).prop_map(|(n, on)| Step::Deaf(n, on)),
        1 => (0..NODES, any::<bool>()).prop_map(|(n, on)| Step::Mute(n, on)),
        2 => (0..NODES, 1_u64..150).prop_map(|(n, t)| Step::Delay(n, t)),
        2 => (0..NODES, any::<bool>()).prop_map(|(n, on)| Step::Throws(n, on)),
        1 => (0..NODES, 1_u64..3).prop_map(|(n, age)| Step::LateGrant(n, age)),
        1 => (0..NODES).prop_map(Step::LateWanted),
        3 => (0..NODES, inspection).prop_map(|(n, i)| Step::Inspect(n, i)),
    ]
}

fn node(number: usize) -> NodeName {
    format!("n{number}").parse().unwrap()
}

fn model(number: usize) -> String {
    format!("m{number}:1")
}

/// A cluster that goes through a history.
pub(crate) struct History {
    pub(crate) cluster: VirtualCluster,
    backup: Option<packhorse_control::record::StoredCluster>,
}

impl History {
    pub(crate) fn new(seed: u64) -> Self {
        let mut cluster = VirtualCluster::new(Settings {
            seed,
            pools: seed % 4 == 3,
            disk: (seed % 8 == 7).then_some(Disk {
                host_memory: WEIGHTS,
                load: Duration::from_millis(60),
            }),
            ..Settings::default()
        });
        for number in 0..NODES {
            cluster.add_node(&format!("n{number}"), "T4", 1, 2600);
        }
        Self {
            cluster,
            backup: None,
        }
    }

    #[expect(clippy::too_many_lines, reason = "a line or two for each step")]
    pub(crate) fn take(&mut self, step: &Step) {
        let cluster = &mut self.cluster;
        match *step {
            Step::Wait(ms) => cluster.run_for(Duration::from_millis(ms)),
            Step::Register(number) => {
                let spec = Box::new(spec(&model(number), 30.0));
                cluster.command(Command::Register(spec, WEIGHTS));
            }
            Step::RegisterAll => {
                for number in 0..MODELS {
                    let spec = Box::new(spec(&model(number), 30.0));
                    cluster.command(Command::Register(spec, WEIGHTS));
                }
            }
            Step::Remove(number) => {
                cluster.command(Command::RemoveModel(name(&format!("m{number}")), None));
            }
            Step::Change(number, slo) => {
                let change = ModelSpecChange {
                    slo: Some(Duration::from_millis(slo)),
                    ..ModelSpecChange::default()
                };
                let name = name(&format!("m{number}"));
                cluster.command(Command::ChangeModel(name, None, change));
            }
            Step::Schedule(number, scheduling, limited) => {
                let time = limited.then_some(Duration::from_secs(5));
                cluster.command(Command::ScheduleNode(node(number), scheduling, time));
            }
            Step::RemoveNode(number) => {
                cluster.command(Command::RemoveNode(node(number)));
            }
            Step::Traffic(number, rate) => {
                let id = model(number).parse().unwrap();
                cluster.counted.rates.insert(id, f64::from(rate));
            }
            Step::KillWorker(number, which) => cluster.kill_worker(&node(number), which),
            Step::KillAgent(number) => {
                cluster.kill_agent(&node(number));
                cluster.run_for(Duration::from_millis(300));
                cluster.start_agent(&node(number));
            }
            Step::SwitchOff(number) => cluster.switch_off(&node(number)),
            Step::WipeAgent(number) => {
                cluster.switch_off(&node(number));
                cluster.wipe(&node(number));
                cluster.start_agent(&node(number));
            }
            Step::Cut(number, reachable) => {
                cluster.change_network(&node(number), |machine| machine.reachable = reachable);
            }
            Step::Devices(number) => {
                cluster.kill_agent(&node(number));
                let machine = cluster.node(node(number).as_str());
                machine.devices[0].description.push('x');
                cluster.start_agent(&node(number));
            }
            Step::PauseGateway(ms) => cluster.pause_gateway(Duration::from_millis(ms)),
            Step::KillGateway(carried_out, ms) => {
                cluster.kill_gateway(carried_out);
                cluster.run_for(Duration::from_millis(ms));
                cluster.start_gateway();
            }
            Step::Backup => self.backup = Some(cluster.store.disk.clone()),
            Step::Restore => {
                if let Some(backup) = &self.backup {
                    cluster.kill_gateway(false);
                    cluster.invariants.store_replaced();
                    cluster.store.disk = backup.clone();
                    cluster.start_gateway();
                }
            }
            Step::Store(works) => {
                cluster.store.failure = (!works).then_some(WriteError::DiskFull);
            }
            Step::SlowStore(ms) => cluster.settings.store_delay = Duration::from_millis(ms),
            Step::Policy(fault) => cluster.environment.policy_fault = fault,
            Step::Breaks(on, number, fails) => {
                let machine = cluster.node(node(on).as_str());
                let key = (model(number).parse().unwrap(), "sim0".to_owned());
                if fails {
                    let failures = &mut machine.behaviour.failures;
                    failures.insert(key, LoadFailure::Dies);
                } else {
                    machine.behaviour.failures.remove(&key);
                }
            }
            Step::Eject(number) => {
                if let Some((id, _)) = cluster.serving(&model(number)).first().copied() {
                    cluster.eject(id);
                }
            }
            Step::Clients(number, rate) => cluster.set_clients(&model(number), f64::from(rate)),
            Step::Poison(number) => {
                let tag = cluster.send_request(&model(number).parse().unwrap());
                cluster.clients.poison.insert(tag);
                cluster.drive();
            }
            Step::Killer(number) => {
                let tag = cluster.send_request(&model(number).parse().unwrap());
                cluster.clients.killers.insert(tag);
                cluster.drive();
            }
            Step::StopWorker(number, which, ms) => {
                cluster.stop_worker(&node(number), which, Duration::from_millis(ms));
            }
            Step::Deaf(number, deaf) => {
                cluster.change_network(&node(number), |machine| machine.is_deaf = deaf);
            }
            Step::Mute(number, mute) => {
                cluster.change_network(&node(number), |machine| machine.is_mute = mute);
            }
            Step::Throws(number, throws) => {
                cluster.node(node(number).as_str()).behaviour.throws = throws;
            }
            Step::LateGrant(number, age) => cluster.grant_late(&node(number), age),
            Step::LateWanted(number) => cluster.want_late(&node(number)),
            Step::Inspect(number, inspection) => {
                let operators = match inspection {
                    Inspection::Nothing => None,
                    Inspection::Unreadable => Some("{".to_owned()),
                    Inspection::Operators(memory, ms) => Some(operators(memory, ms)),
                    Inspection::Backbone => Some(operators_of_backbone()),
                };
                let machine = cluster.node(node(number).as_str());
                let after = Duration::from_millis(200);
                machine.behaviour.operators = operators.map(|operators| (after, operators));
            }
            Step::Delay(number, ms) => {
                let delay = Duration::from_millis(ms);
                cluster.change_network(&node(number), |machine| machine.delay = delay);
            }
        }
    }

    /// Ends all faults, and waits until everything serves.
    fn heal(&mut self) {
        let cluster = &mut self.cluster;
        cluster.store.failure = None;
        cluster.settings.store_delay = Duration::from_millis(5);
        cluster.environment.policy_fault = PolicyFault::None;
        cluster.counted.rates.clear();
        for number in 0..NODES {
            let name = node(number);
            cluster.change_network(&name, |machine| {
                machine.reachable = true;
                machine.is_deaf = false;
                machine.is_mute = false;
                machine.delay = Duration::from_millis(1);
                machine.behaviour.throws = false;
                machine.behaviour.failures.clear();
            });
            if !cluster.node(name.as_str()).has_agent() {
                cluster.start_agent(&name);
            }
        }
        for number in 0..MODELS {
            cluster.set_clients(&model(number), 0.0);
        }
        // A pause, a stopped worker, a lease and a slow write end.
        cluster.run_for(Duration::from_secs(30));
        for number in 0..NODES {
            let open = Command::ScheduleNode(node(number), Scheduling::Open, None);
            cluster.command_and_wait(open).expect("every node is back");
        }
        // The longest back-off is half an hour.
        let limit = Duration::from_mins(35);
        cluster.run_until("everything serves", limit, VirtualCluster::is_healthy);
        cluster.run_for(Duration::from_secs(10));
        // A worker on which batches failed is restarted at most once a minute.
        let limit = Duration::from_mins(2);
        cluster.run_until("everything still serves", limit, VirtualCluster::is_healthy);
        let unanswered = cluster.invariants.unanswered();
        assert_eq!(unanswered, 0, "commands are not answered");
        let inspects = cluster.nodes.iter().any(|node| {
            let mut processes = node.processes.values();
            processes.any(|process| matches!(process.task, Task::Inspect(_)))
        });
        assert!(!inspects, "an inspection has not ended");
        self.serve();
    }

    /// Sends requests to all models, which must be answered in time.
    fn serve(&mut self) {
        let cluster = &mut self.cluster;
        let models = cluster.controller().models();
        let ready: Vec<ModelId> = models.map(|(id, _)| id.clone()).collect();
        let ready = ready.into_iter().filter(|id| {
            let status = cluster.controller().model_status(id);
            status.is_some_and(|status| status.state == packhorse_cluster::ModelState::Ready)
        });
        let ready: Vec<ModelId> = ready.collect();
        for id in &ready {
            let slo = Duration::from_millis(200);
            let change = ModelSpecChange {
                slo: Some(slo),
                ..ModelSpecChange::default()
            };
            let changed = Command::ChangeModel(id.name.clone(), Some(id.version), change);
            cluster.command_and_wait(changed).expect("it exists");
        }
        // The plan for the changed models.
        cluster.run_for(Duration::from_secs(3));
        let limit = Duration::from_mins(35);
        cluster.run_until("everything serves", limit, VirtualCluster::is_healthy);
        cluster.print(|| "*** clients send requests to every model".to_owned());
        let (ended, in_time) = (cluster.clients.ended(), cluster.clients.count(End::InTime));
        let hung_up = cluster.clients.count(End::Cancelled);
        for id in &ready {
            cluster.set_clients(&id.to_string(), HEALED_RATE);
        }
        cluster.run_for(Duration::from_secs(10));
        for id in &ready {
            cluster.set_clients(&id.to_string(), 0.0);
        }
        cluster.run_for(Duration::from_secs(5));
        let late: Vec<_> = cluster.clients.waiting().collect();
        assert!(late.is_empty(), "requests have not ended: {late:?}");
        let clients = &cluster.clients;
        let hung_up = clients.count(End::Cancelled) - hung_up;
        let (sent, in_time) = (
            clients.ended() - ended - hung_up,
            clients.count(End::InTime) - in_time,
        );
        assert!(
            in_time as f64 >= HEALED_PART * sent as f64,
            "of {sent} requests {in_time} are answered in time: {:?}",
            clients.ends()
        );
    }
}

/// Returns the history of a seed, and simpler ones in its place.
pub(crate) fn steps(seed: u64) -> impl prop::strategy::ValueTree<Value = Vec<Step>> {
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let random = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
    let mut runner = TestRunner::new_with_rng(ProptestConfig::default(), random);
    let tree = prop::collection::vec(step(), STEPS).new_tree(&mut runner);
    tree.expect("nothing is filtered")
}

/// Lets a history happen, with everything random from the seed. Returns the number of requests by their ends.
fn happen(seed: u64, steps: &[Step], trace: bool) -> Result<VirtualCluster, String> {
    let run = || {
        let mut history = History::new(seed);
        history.cluster.trace = trace;
        for step in steps {
            history.cluster.print(|| format!("*** {step:?}"));
            history.take(step);
        }
        history.cluster.print(|| "*** all faults end".to_owned());
        history.heal();
        history.cluster
    };
    catch_unwind(AssertUnwindSafe(run)).map_err(|panic| message(&*panic))
}

fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    let text = text.or_else(|| Some((*panic.downcast_ref::<&str>()?).to_owned()));
    text.unwrap_or_default()
}

/// Runs a seed. If it fails, returns the simplest history that was found to fail, and how.
fn run_seed(seed: u64) -> Result<VirtualCluster, String> {
    let mut tree = steps(seed);
    let first = match happen(seed, &tree.current(), false) {
        Ok(cluster) => return Ok(cluster),
        Err(message) => message,
    };
    let length = tree.current().len();
    let mut simplest = (tree.current(), first);
    let mut goes_on = tree.simplify();
    for _ in 0..SIMPLER {
        if !goes_on {
            break;
        }
        goes_on = match happen(seed, &tree.current(), false) {
            Err(message) => {
                simplest = (tree.current(), message);
                tree.simplify()
            }
            Ok(_) => tree.complicate(),
        };
    }
    let (steps, message) = simplest;
    let steps: Vec<String> = steps.iter().map(|step| format!("  {step:?}")).collect();
    Err(format!(
        "seed {seed} fails. Of its {length} steps these are enough:\n{}\n{message}\nTrace: cargo xtask seeds --seed {seed}",
        steps.join("\n")
    ))
}

#[expect(
    clippy::disallowed_methods,
    reason = "the flags of `cargo xtask seeds`"
)]
pub(crate) fn number(variable: &str) -> Option<f64> {
    let text = env::var(variable).ok()?;
    Some(text.parse().expect("a number"))
}

/// The variables `PACKHORSE_SEED` (one seed, with its trace), `PACKHORSE_SEEDS` (how many), `PACKHORSE_FIRST_SEED` and `PACKHORSE_MINUTES`
/// (as many as there is time for) are set by `cargo xtask seeds`.
#[test]
#[expect(clippy::disallowed_methods, reason = "the number of seeds per second")]
fn after_any_history_everything_heals() {
    if let Some(seed) = number("PACKHORSE_SEED") {
        let seed = seed as u64;
        let steps = steps(seed).current();
        let cluster = happen(seed, &steps, true).unwrap_or_else(|message| panic!("{message}"));
        println!(
            "{} healthy; requests: {:?}",
            cluster.now,
            cluster.clients.ends()
        );
        return;
    }
    let begin = Instant::now();
    let time = number("PACKHORSE_MINUTES").map(|minutes| Duration::from_secs_f64(minutes * 60.0));
    let first = number("PACKHORSE_FIRST_SEED").unwrap_or(0.0) as u64;
    let seeds = number("PACKHORSE_SEEDS").unwrap_or(SEEDS as f64) as u64;
    let seeds = time.map_or(seeds, |_| u64::MAX - first);
    let hook = take_hook();
    set_hook(Box::new(|_| {}));
    let (mut requests, mut in_time, mut virtual_time) = (0, 0, Duration::ZERO);
    let mut run = 0;
    let mut failed = None;
    for seed in first..first + seeds {
        if time.is_some_and(|time| begin.elapsed() > time) {
            break;
        }
        match run_seed(seed) {
            Ok(cluster) => {
                requests += cluster.clients.ended();
                in_time += cluster.clients.count(End::InTime);
                virtual_time += cluster.now.saturating_since(packhorse_cluster::Time::ZERO);
            }
            Err(message) => {
                failed = Some(message);
                break;
            }
        }
        run += 1;
    }
    set_hook(hook);
    let seconds = begin.elapsed().as_secs_f64();
    println!(
        "{run} seeds from {first} in {seconds:.1} s ({:.1}/s), {:.0} h of virtual time, {requests} requests, {in_time} in time",
        f64::from(run) / seconds,
        virtual_time.as_secs_f64() / 3600.0
    );
    if let Some(message) = failed {
        panic!("{message}");
    }
}
