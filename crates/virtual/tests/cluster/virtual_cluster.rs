//! The clusters of the scenarios and histories: a real policy, a model of which each batch takes 5 ms and 1 ms per row, and clients of which some do
//! not wait for their answers.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
    ops::{Deref, DerefMut},
    time::Duration,
};

use crate::solver;
use packhorse_cluster::{
    ArtifactDigest, ByteCount, DevicePool, DeviceReport, MinReplicas, ModelId, ModelName,
    ModelSpec, ModelState, NodeName, Priority, Program, RateMode, ReplicaId, RequestsPerSecond,
    Time,
};
use packhorse_control::{
    Assumptions, Command, CommandError, Config, Notice, PlanningInput, Solution, SolveError,
};
use packhorse_reconcile::Task;
use packhorse_virtual::{
    AnsweredBatch, AnsweredRequest, Arrivals, Cluster, Disk, EndedRequest, Environment, Jitter,
    Node, Store, WorkerBehaviour,
};

/// The SLO of every model.
const SLO: Duration = Duration::from_millis(200);
/// The lease of a node.
pub(crate) const LEASE: Duration = Duration::from_secs(5);
/// The part of the clients that hang up, and the longest time until they do.
const IMPATIENT: (f64, Duration) = (0.02, Duration::from_millis(100));
/// The random part of batch times.
const JITTER: Jitter = Jitter::UpTo(0.05);

/// The bytes of a model's file, which are its weights to pools.
pub(crate) const WEIGHTS: u64 = 700 << 20;

/// The settings of a virtual cluster.
#[derive(Clone, Copy)]
pub(crate) struct Settings {
    pub(crate) policy: &'static str,
    pub(crate) store_delay: Duration,
    pub(crate) solve_delay: Duration,
    pub(crate) load: Duration,
    pub(crate) measure: Duration,
    /// True if devices have pools, and batches leave no room for others.
    pub(crate) pools: bool,
    /// The memory of nodes for weights, and their disks, where not all weights have room there.
    pub(crate) disk: Option<Disk>,
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
            pools: false,
            disk: None,
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

/// The surroundings of a cluster.
pub(crate) struct Surroundings {
    solve_ms: f64,
    /// The way in which the policy's answers are changed.
    pub(crate) policy_fault: PolicyFault,
    pub(crate) notices: Vec<(Time, Notice)>,
    /// The number of requests of each model that came, and of those that were not answered in time, by its number.
    pub(crate) requests: BTreeMap<usize, (u64, u64)>,
}

impl Environment for Surroundings {
    fn plan(&mut self, _now: Time, input: &PlanningInput) -> Result<Solution, SolveError> {
        match self.policy_fault {
            PolicyFault::None => solver::solve(input, self.solve_ms),
            PolicyFault::Moves => solver::solve_elsewhere(input, self.solve_ms),
            PolicyFault::Fails => Err(SolveError::NoPlan {
                policy: input.policy.clone(),
                error: "the policy is broken".to_owned(),
            }),
        }
    }

    fn request_arrived(&mut self, _now: Time, model: usize) {
        self.requests.entry(model).or_default().0 += 1;
    }

    fn request_ended(&mut self, _now: Time, request: &EndedRequest) {
        self.requests.entry(request.model).or_default().1 += 1;
    }

    fn batch_answered(&mut self, now: Time, batch: &AnsweredBatch, requests: &[AnsweredRequest]) {
        let late = requests
            .iter()
            .filter(|request| now > request.arrived + SLO)
            .count();
        self.requests.entry(batch.model).or_default().1 += late as u64;
    }

    fn told(&mut self, now: Time, notice: &Notice) {
        self.notices.push((now, notice.clone()));
    }
}

/// A cluster in virtual time.
pub(crate) struct VirtualCluster {
    cluster: Cluster<Surroundings>,
    load: Duration,
    measure: Duration,
    pools: bool,
}

impl Deref for VirtualCluster {
    type Target = Cluster<Surroundings>;

    fn deref(&self) -> &Self::Target {
        &self.cluster
    }
}

impl DerefMut for VirtualCluster {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.cluster
    }
}

impl VirtualCluster {
    /// Returns a cluster without nodes whose gateway runs.
    pub(crate) fn new(settings: Settings) -> Self {
        let config = Config {
            lease: LEASE,
            profile_time_limit: Duration::from_secs(30),
            shared_backbones: true,
            sample_period: Duration::from_secs(5),
            replan_interval: None,
            default_policy: settings.policy.to_owned(),
            assumptions: Assumptions::default(),
            unix_start_ms: 0,
        };
        let surroundings = Surroundings {
            solve_ms: settings.solve_delay.as_secs_f64() * 1e3,
            policy_fault: PolicyFault::None,
            notices: Vec::new(),
            requests: BTreeMap::new(),
        };
        let store = Store::new("00000000000000000000000000000001".parse().unwrap());
        let cluster_settings = packhorse_virtual::Settings {
            store_delay: settings.store_delay,
            solve_delay: settings.solve_delay,
            max_batch_bytes: 1 << 20,
            jitter: JITTER,
            impatient: IMPATIENT,
            disk: settings.disk,
            seed: settings.seed,
            ..packhorse_virtual::Settings::new(config)
        };
        let mut cluster = Cluster::new(cluster_settings, store, surroundings);
        cluster.start_gateway();
        Self {
            cluster,
            load: settings.load,
            measure: settings.measure,
            pools: settings.pools,
        }
    }

    /// Adds a node with this many devices of a kind, and this much memory each. Its agent starts at once.
    pub(crate) fn add_node(&mut self, name: &str, kind: &str, devices: usize, memory_mib: u64) {
        let pool = self.pools.then(|| DevicePool {
            host_link_bytes_per_second: 10e9,
            process: ByteCount::new(76 << 20),
            own_workers: 0,
        });
        let device = |number: usize| DeviceReport {
            name: format!("sim{number}"),
            kind: kind.parse().unwrap(),
            memory_bytes: ByteCount::new(memory_mib << 20),
            multiprocessors: Some(80),
            description: String::new(),
            pool,
        };
        let behaviour = WorkerBehaviour {
            load: self.load,
            measure: self.measure,
            sm_utilization: (!self.pools).then_some(50),
            ..WorkerBehaviour::default()
        };
        let name: NodeName = name.parse().unwrap();
        let devices = (0..devices).map(device).collect();
        self.cluster.add_node(name.clone(), devices, behaviour);
        self.start_agent(&name);
    }

    pub(crate) fn node(&mut self, name: &str) -> &mut Node {
        let name: NodeName = name.parse().unwrap();
        self.nodes.get_mut(&name).expect("there is this node")
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
        self.command_and_wait(Command::Register(Box::new(spec(name, rate)), WEIGHTS))
            .unwrap();
    }

    /// Has clients send requests to a model from now on, at this rate.
    pub(crate) fn set_clients(&mut self, model: &str, rate: f64) {
        let model: ModelId = model.parse().unwrap();
        self.set_arrivals(&model, Arrivals::Poisson(rate));
    }

    /// Returns the replicas of a model that get batches, with the addresses of their workers.
    pub(crate) fn serving(&self, model: &str) -> Vec<(ReplicaId, SocketAddr)> {
        let id: ModelId = model.parse().unwrap();
        let serving = self.cluster.serving(&id);
        serving.map(|(id, target)| (id, target.address)).collect()
    }

    /// Returns the node of the first replica of a model that gets batches.
    pub(crate) fn node_of(&self, model: &str) -> NodeName {
        let (id, _) = self.serving(model)[0];
        let replica = self.controller().replica(id).expect("it serves");
        replica.spec.device.node().clone()
    }

    /// Lets time pass until the condition holds, see [`Cluster::run_until`].
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
        let controller = self.controller();
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
        let runs_unwanted = self.nodes.iter().any(|node| {
            node.processes.values().any(|p| match &p.task {
                Task::Serve(replicas) => {
                    replicas.iter().all(|replica| !wanted.contains(&replica.id))
                }
                Task::Measure(_) | Task::Inspect(_) => false,
            })
        });
        controller.models().all(|(id, _)| ready(id))
            && controller.earlier_replicas() == 0
            && !runs_unwanted
    }

    /// Returns the number of notices since a time for which the predicate holds.
    pub(crate) fn count_notices(&self, since: Time, is: impl Fn(&Notice) -> bool) -> usize {
        let notices = self.environment.notices.iter();
        notices
            .filter(|(at, notice)| *at >= since && is(notice))
            .count()
    }

    /// Returns the number of workers that were started to serve, by all nodes.
    pub(crate) fn worker_starts(&self) -> usize {
        self.nodes.iter().map(|node| node.served_starts).sum()
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
        slo: SLO,
        rate: RequestsPerSecond::new(rate).ok(),
        rate_mode: RateMode::Max,
        queue_limit: None,
        max_cold_wait: None,
        cache: false,
        variant: None,
        processing: std::sync::Arc::default(),
        priority: Priority::default(),
        min_replicas: MinReplicas::default(),
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
