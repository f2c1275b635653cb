//! Random histories of changes and faults, after which everything heals.

use std::time::Duration;

use packhorse_cluster::{NodeName, Scheduling};
use packhorse_control::{Command, ModelSpecChange, WriteError};
use proptest::prelude::*;

use crate::{
    machine::LoadFailure,
    virtual_cluster::{PolicyFault, Settings, VirtualCluster, name, spec},
};

const NODES: usize = 4;
const MODELS: usize = 5;

/// A step of a history.
#[derive(Clone, Debug)]
enum Step {
    Wait(u64),
    Register(usize),
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
    prop_oneof![
        8 => (1_u64..4000).prop_map(Step::Wait),
        3 => (4000_u64..20_000).prop_map(Step::Wait),
        4 => model.clone().prop_map(Step::Register),
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
        1 => model.prop_map(Step::Eject),
    ]
}

fn node(number: usize) -> NodeName {
    format!("n{number}").parse().unwrap()
}

fn model(number: usize) -> String {
    format!("m{number}:1")
}

/// A cluster that goes through a history.
struct History {
    cluster: VirtualCluster,
    backup: Option<packhorse_control::record::StoredCluster>,
}

impl History {
    fn new() -> Self {
        let mut cluster = VirtualCluster::new(Settings::default());
        for number in 0..NODES {
            cluster.add_node(&format!("n{number}"), "T4", 1, 2600);
        }
        Self {
            cluster,
            backup: None,
        }
    }

    fn take(&mut self, step: &Step) {
        let cluster = &mut self.cluster;
        match *step {
            Step::Wait(ms) => cluster.run_for(Duration::from_millis(ms)),
            Step::Register(number) => {
                let spec = Box::new(spec(&model(number), 30.0));
                cluster.command(Command::Register(spec, 1));
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
                cluster.traffic.insert(id, f64::from(rate));
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
                cluster.machine(node(number).as_str()).wipe();
                cluster.start_agent(&node(number));
            }
            Step::Cut(number, reachable) => {
                cluster.machine(node(number).as_str()).reachable = reachable;
            }
            Step::Devices(number) => {
                cluster.kill_agent(&node(number));
                let machine = cluster.machine(node(number).as_str());
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
            Step::Policy(fault) => cluster.policy_fault = fault,
            Step::Breaks(on, number, fails) => {
                let machine = cluster.machine(node(on).as_str());
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
        }
    }

    /// Ends all faults, and waits until everything serves.
    fn heal(&mut self) {
        let cluster = &mut self.cluster;
        cluster.store.failure = None;
        cluster.settings.store_delay = Duration::from_millis(5);
        cluster.policy_fault = PolicyFault::None;
        cluster.traffic.clear();
        for number in 0..NODES {
            let name = node(number);
            let machine = cluster.machine(name.as_str());
            machine.reachable = true;
            machine.behaviour.failures.clear();
            if machine.agent.is_none() {
                cluster.start_agent(&name);
            }
        }
        // A pause, a lease and a slow write end.
        cluster.run_for(Duration::from_secs(30));
        for number in 0..NODES {
            let open = Command::ScheduleNode(node(number), Scheduling::Open, None);
            cluster.command_and_wait(open).expect("every node is back");
        }
        // The longest back-off is half an hour.
        let limit = Duration::from_mins(35);
        cluster.run_until("everything serves", limit, VirtualCluster::is_healthy);
        cluster.run_for(Duration::from_secs(10));
        assert!(cluster.is_healthy());
        let unanswered = cluster.invariants.unanswered();
        assert_eq!(unanswered, 0, "commands are not answered");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn after_any_history_everything_heals(steps in prop::collection::vec(step(), 1..60)) {
        let mut history = History::new();
        for step in &steps {
            history.take(step);
        }
        history.heal();
    }
}
