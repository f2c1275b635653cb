//! The cluster of a run, and its loop.

use std::{collections::BTreeMap, iter, sync::Arc, time::Duration};

use packhorse_cluster::{Capacity, ModelIndex, NodeName, PlannedReplica, Program, Time};
use packhorse_control::{Assumptions, Command, Config, Target};
use packhorse_serving::{EngineConfig, ReplicaParameters};
use packhorse_virtual::{
    Arrivals, ClientState, Cluster, LinkTimes, Served, Settings, Store, WorkerBehaviour,
};

use super::{
    active_faults::ActiveFaults,
    autoscaler::Autoscaler,
    check::{SimulateError, check_replicas},
    control::{self, Planner, device_report, model_spec, replica},
    surroundings::Surroundings,
};
use crate::{
    Links, Scenario, SimulationSettings,
    arrivals::arrival_processes,
    counters::{PoolCounters, RunCounters},
    options::RunOptions,
    report::{AutoscaleReport, ReplanningReport},
};

/// The number of steps between two calls of the caller's function of progress, and two looks at whether the run shall stop.
const STEPS: u64 = 1 << 14;
/// The time in which all requests have ended after the last of them has come, and the last fault is over: much more than a full queue takes.
const LONGEST: Duration = Duration::from_hours(24);
/// The address of a worker that does not run yet.
const NO_ADDRESS: std::net::SocketAddr =
    std::net::SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 0);

/// An act of a run that has its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Alarm {
    /// A fault begins.
    FaultBegins(usize),
    /// A fault ends.
    FaultEnds(usize),
    /// The autoscaler decides.
    AutoscalerDecides,
    /// The agent of a node that the autoscaler asked for joins. The number is that of the device.
    NodeStarted(usize),
}

/// A run of a scenario.
pub(crate) struct Simulation<'a> {
    pub(super) scenario: &'a Scenario,
    pub(crate) cluster: Cluster<Surroundings<'a>>,
    /// The alarms, by their numbers in the cluster.
    alarms: Vec<Alarm>,
    /// The autoscaler; `None` if the devices stay.
    pub(super) autoscaler: Option<Autoscaler>,
    pub(super) faults: ActiveFaults,
    /// The commands of admins, who repeat them until there is a gateway.
    pub(super) commands: Vec<Command>,
    /// Returns true to stop the run.
    stop: Option<&'a dyn Fn() -> bool>,
}

impl<'a> Simulation<'a> {
    pub(crate) fn new(
        scenario: &'a Scenario,
        plan: &[PlannedReplica],
        seed: u64,
        options: RunOptions<'a>,
    ) -> Result<Self, SimulateError> {
        let RunOptions {
            dispatch,
            replanning,
            trace,
            timeline,
            stop,
        } = options;
        check_replicas(scenario, plan)?;
        let has_pools = plan.iter().any(|replica| replica.pool.is_some());
        if has_pools && replanning.is_some() {
            return Err(SimulateError::NoPlansForPools);
        }
        let mut faults = scenario.simulation.faults.iter();
        if replanning.is_none()
            && let Some(number) = faults.position(|fault| fault.kind.is_admins())
        {
            return Err(SimulateError::NoControlPlane(number));
        }
        let rule = replanning.as_ref();
        let rule = rule.and_then(|replanning| replanning.scaling.as_ref());
        let autoscaler = Autoscaler::new(scenario, rule);
        if scenario.autoscale.is_some() && autoscaler.is_none() {
            return Err(SimulateError::NoAutoscaler);
        }
        let rate_mode = replanning.as_ref().map(|replanning| replanning.rate_mode);
        let config = match &replanning {
            Some(replanning) => control::config(scenario, replanning),
            None => no_config(),
        };
        let settings = &scenario.simulation;
        let mut counters = RunCounters::new(
            scenario.problem.models.len(),
            settings.warmup,
            settings.window,
        );
        counters.pools = has_pools.then(PoolCounters::default);
        let surroundings = Surroundings {
            scenario,
            counters,
            report: ReplanningReport {
                every_s: config.sample_period.as_secs_f64(),
                ..ReplanningReport::default()
            },
            planner: replanning.map(|replanning| Planner::new(scenario, replanning)),
            trace,
            timeline,
        };
        let settings = Settings {
            engine: EngineConfig {
                discipline: dispatch.discipline,
                deadline: dispatch.deadline,
                max_batch_wait: scenario.max_batch_wait,
                ..EngineConfig::default()
            },
            // No payload is too large for a simulated link.
            max_batch_bytes: u64::MAX,
            interference: settings.interference,
            links: link_times(settings),
            // A queue may be as long as it likes.
            batch_limit: None,
            resends: true,
            seed,
            ..Settings::new(config).without_delays()
        };
        let cluster = match rate_mode {
            Some(rate_mode) => {
                let stored = control::stored(scenario, plan, dispatch.discipline, rate_mode);
                Cluster::new(settings, Store::with(stored), surroundings)
            }
            None => Cluster::without_control(settings, surroundings, served(scenario, plan)),
        };
        let mut simulation = Self {
            scenario,
            cluster,
            alarms: Vec::new(),
            autoscaler,
            faults: ActiveFaults::new(scenario),
            commands: Vec::new(),
            stop,
        };
        simulation.start(seed);
        Ok(simulation)
    }

    /// Has the nodes join and the replicas of the first plan serve, and schedules arrivals and faults.
    fn start(&mut self, seed: u64) {
        let end = self.cluster.environment.counters.window_end();
        for (model, demanded) in self.scenario.problem.models() {
            let state = if self.scenario.is_added_later(model) {
                ClientState::Waiting
            } else {
                ClientState::Sending
            };
            let bytes = demanded.payload.as_u64();
            let index = self.cluster.add_clients(&demanded.id, bytes, state);
            assert_eq!(index, model.0, "the clients are numbered as the models");
        }
        self.add_nodes();
        self.cluster.start_served();
        self.cluster.start_gateway();
        // What serves at the start has been loaded before.
        self.cluster.run_for(Duration::ZERO);
        self.cluster.nodes.cool_down();
        for ((_, model), mut process) in self
            .scenario
            .problem
            .models()
            .zip(arrival_processes(self.scenario, seed))
        {
            let times = iter::from_fn(move || process.next()).take_while(move |at| *at < end);
            let arrivals = Arrivals::At(Box::new(times));
            self.cluster.set_arrivals(&model.id, arrivals);
        }
        self.start_autoscaler();
        for (i, fault) in self.scenario.simulation.faults.iter().enumerate() {
            self.set_alarm(fault.at, Alarm::FaultBegins(i));
            self.set_alarm(fault.at + fault.duration, Alarm::FaultEnds(i));
        }
    }

    fn add_nodes(&mut self) {
        let problem = &self.scenario.problem;
        let mut nodes: Vec<(NodeName, Vec<usize>)> = Vec::new();
        for (number, device) in problem.devices.iter().enumerate() {
            match nodes.iter_mut().find(|(name, _)| *name == device.node) {
                Some((_, devices)) => devices.push(number),
                None => nodes.push((device.node.clone(), vec![number])),
            }
        }
        let models = || problem.models.iter();
        let scales = self.scenario.workloads.iter().zip(models());
        let behaviour = WorkerBehaviour {
            load_times: models().map(|m| (m.id.clone(), m.load_time)).collect(),
            warm: true,
            compute: Arc::new(problem.profiles.clone()),
            scales: scales
                .map(|(workload, model)| (model.id.clone(), workload.latency_scale))
                .collect(),
            // A simulated worker takes any number.
            in_flight: Some(ReplicaParameters::MOST_CREDITS),
            inspects: false,
            ..WorkerBehaviour::default()
        };
        let at_start = self.scenario.devices_at_start();
        let has_agents = self.cluster.environment.planner.is_some();
        for (name, numbers) in nodes {
            let reports = numbers.iter();
            let reports = reports.map(|number| device_report(*number, &problem.devices[*number]));
            let devices = reports.collect();
            self.cluster
                .add_node(name.clone(), devices, behaviour.clone());
            if has_agents && numbers[0] < at_start {
                self.cluster.start_agent(&name);
            }
        }
    }

    /// Has something be done at a time.
    pub(super) fn set_alarm(&mut self, at: Time, alarm: Alarm) {
        let number = self.alarms.len() as u64;
        self.alarms.push(alarm);
        self.cluster.set_alarm(at, number);
    }

    /// Returns the node of a device, and the device's number there.
    pub(super) fn place(&self, device: usize) -> (NodeName, usize) {
        let devices = &self.scenario.problem.devices;
        let node = &devices[device].node;
        let before = devices[..device].iter();
        let number = before.filter(|other| other.node == *node).count();
        (node.clone(), number)
    }

    /// Has the control plane execute a command, once there is a gateway.
    pub(super) fn command(&mut self, command: Command) {
        if self.cluster.environment.planner.is_none() {
            return;
        }
        if self.cluster.gateway.is_some() {
            self.cluster.command(command);
        } else {
            self.commands.push(command);
        }
    }

    /// Runs until every request has ended. Calls `progress` with the simulated time every 16,384 steps.
    ///
    /// # Errors
    /// Returns an error if the caller stops the run, which it is asked as often.
    pub(crate) fn run(
        mut self,
        progress: &mut dyn FnMut(Time),
    ) -> Result<
        (
            RunCounters,
            Option<ReplanningReport>,
            Option<AutoscaleReport>,
        ),
        SimulateError,
    > {
        let end = self.cluster.environment.counters.window_end();
        let faults = self.scenario.simulation.faults.iter();
        let last = faults
            .map(|fault| fault.at + fault.duration)
            .fold(end, Time::max);
        let mut steps = 0_u64;
        while let Some(next) = self.cluster.next() {
            if next >= end && self.cluster.clients.are_idle() && self.faults.are_over() {
                break;
            }
            assert!(next < last + LONGEST, "a request does not end");
            if let Some(alarm) = self.cluster.step(next) {
                self.alarmed(alarm);
            }
            steps += 1;
            if steps.is_multiple_of(STEPS) {
                progress(self.cluster.now);
                if self.stop.is_some_and(|stop| stop()) {
                    return Err(SimulateError::Stopped);
                }
            }
        }
        assert!(self.cluster.is_idle(), "a request did not end");
        let cold_requests = self.cluster.cold_requests();
        let mut surroundings = self.cluster.environment;
        if let Some(pools) = &mut surroundings.counters.pools {
            pools.cold_requests = cold_requests;
        }
        let report = surroundings.planner.map(|_| surroundings.report);
        let autoscaler = self.autoscaler.take();
        let autoscale = autoscaler.map(|autoscaler| autoscaler.into_report(end));
        Ok((surroundings.counters, report, autoscale))
    }

    fn alarmed(&mut self, number: u64) {
        let number = usize::try_from(number).expect("alarms are few");
        match self.alarms[number] {
            Alarm::FaultBegins(fault) => self.fault_begins(fault),
            Alarm::FaultEnds(fault) => self.fault_ends(fault),
            Alarm::AutoscalerDecides => self.autoscale(),
            Alarm::NodeStarted(device) => self.node_started(device),
        }
    }

    /// Returns a model as an admin registers it.
    pub(super) fn spec(&self, model: ModelIndex) -> packhorse_cluster::ModelSpec {
        let planner = self.cluster.environment.planner.as_ref();
        let rate_mode = planner.map(|planner| planner.replanning.rate_mode);
        let demanded = &self.scenario.problem.models[model.0];
        model_spec(self.scenario, demanded, rate_mode.unwrap_or_default())
    }
}

/// Returns the times of the links to devices.
pub(crate) fn link_times(settings: &SimulationSettings) -> LinkTimes {
    LinkTimes {
        router_overhead: settings.router_overhead,
        network: settings.network,
        queues: settings.links == Links::Queue,
        return_time: settings.return_time,
    }
}

/// Returns the settings of a control plane that there is not.
fn no_config() -> Config {
    Config {
        lease: Duration::ZERO,
        profile_time_limit: Duration::ZERO,
        shared_backbones: false,
        sample_period: Duration::ZERO,
        replan_interval: None,
        default_policy: String::new(),
        assumptions: Assumptions::default(),
        unix_start_ms: 0,
    }
}

/// Returns what a gateway serves whose plan stays. The programs have the batch sizes of the plan, so that nothing else is expected of replicas.
fn served(scenario: &Scenario, plan: &[PlannedReplica]) -> Served {
    let problem = &scenario.problem;
    let mut largest: BTreeMap<usize, u32> = BTreeMap::new();
    for planned in plan {
        let size = largest.entry(planned.model.0).or_insert(1);
        *size = planned.batch_size.max(*size);
    }
    let models = problem.models().map(|(index, model)| {
        let mut spec = model_spec(scenario, model, packhorse_cluster::RateMode::default());
        spec.program.max_batch_size = largest.get(&index.0).copied().unwrap_or(1);
        spec
    });
    let targets = plan.iter().zip(0..).map(|(planned, number)| {
        let model = &problem.models[planned.model.0];
        let program = Program {
            max_batch_size: planned.batch_size,
            ..control::program(model)
        };
        let profile = problem
            .profiles
            .get_shared(&model.id, &problem.devices[planned.device.0].kind);
        Target {
            replica: replica(scenario, planned, number, Arc::new(program)),
            address: NO_ADDRESS,
            local_path: None,
            capacity: Some(Capacity {
                batch_size: planned.batch_size,
                in_flight: ReplicaParameters::MOST_CREDITS,
                multiprocessors: None,
            }),
            profile: profile.expect("plans are checked"),
        }
    });
    Served {
        models: models.collect(),
        targets: targets.collect(),
    }
}
