//! The cost of the control plane's decisions at 1,000 nodes and 2,000 models, without HTTP, database and policy.
//!
//! Prints one JSON object per line, for `cargo xtask bench control`.
#![expect(
    clippy::print_stdout,
    reason = "a measurement that another program reads"
)]

use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    time::{Duration, Instant},
};

use packhorse_cluster::{
    ArtifactDigest, ByteCount, ComputeShare, DeviceId, DeviceIndex, DeviceKind, DeviceReport,
    Generation, MinReplicas, ModelForecast, ModelId, ModelIndex, ModelSpec, NodeName, Plan,
    PlannedReplica, Priority, Profile, ProfileRow, ProfileTable, Program, RateMode, Replica,
    ReplicaId, ReplicaPhase, ReplicaSpec, ReplicaState, ReplicaStatus, RequestsPerSecond,
    Scheduling, Time, VariantMix, WorkerKind,
};
use packhorse_control::{
    Assumptions, Command, Config, Controller, Effect, Event, LeaseClaim, LinkState, NodeReport,
    PlanningInput, RequestCounts, RequestKey, Sample, Solution, SolveKey,
    record::{Forecast, ModelRecord, NodeRecord, PlanRecord, Settings, StoredCluster},
};

/// The number of nodes, each with one device.
const NODES: usize = 1000;
/// The number of models, each with one replica.
const MODELS: usize = 2000;
/// The duration of a node's lease.
const LEASE: Duration = Duration::from_secs(5);
/// The time between two samples of the data plane's counts.
const SAMPLE: Duration = Duration::from_secs(5);
/// The renewals and the statuses per second of a node: three in each lease.
const MESSAGES_PER_S: f64 = 0.6;
/// The seconds between two plans.
const SECONDS_PER_PLAN: f64 = 30.0;

/// A controller in a steady state, and what its driver needs.
struct Driven {
    controller: Controller,
    now: Time,
    requests: u64,
    /// The call of a policy that is not answered.
    solve: Option<(SolveKey, std::sync::Arc<PlanningInput>)>,
}

impl Driven {
    fn handle(&mut self, event: Event) {
        self.controller.handle(self.now, event);
        self.carry_out();
    }

    fn command(&mut self, command: Command) {
        self.requests += 1;
        self.handle(Event::Requested(RequestKey(self.requests), command));
    }

    /// Carries out effects. The store acknowledges at once.
    fn carry_out(&mut self) {
        while let Some(effect) = self.controller.poll(self.now) {
            match effect {
                Effect::Store(receipt, _) => {
                    let stored = Event::Stored(receipt, Ok(()));
                    self.controller.handle(self.now, stored);
                }
                Effect::Solve(key, input) => self.solve = Some((key, input)),
                _ => {}
            }
        }
    }
}

fn name(node: usize) -> NodeName {
    format!("n{node}").parse().expect("a valid name")
}

fn model(number: usize) -> ModelId {
    format!("m{number}:1").parse().expect("a valid name")
}

fn kind() -> DeviceKind {
    "T4".parse().expect("a valid kind")
}

fn rate(rps: f64) -> RequestsPerSecond {
    RequestsPerSecond::new(rps).expect("not negative")
}

fn spec(number: usize) -> ModelSpec {
    ModelSpec {
        program: Program {
            model: model(number),
            artifact: ArtifactDigest::from_sha256([7; 32]),
            max_batch_size: 16,
            inputs: Vec::new(),
            outputs: Vec::new(),
        },
        slo: Duration::from_millis(200),
        rate: Some(rate(10.0)),
        rate_mode: RateMode::Max,
        priority: Priority::default(),
        min_replicas: MinReplicas::default(),
        queue_limit: None,
        max_cold_wait: None,
        cache: false,
        variant: None,
        processing: std::sync::Arc::default(),
    }
}

fn profile() -> Profile {
    let row = |batch_size: u32| ProfileRow {
        batch_size,
        compute_share: ComputeShare::WHOLE,
        latency: Duration::from_millis(5 + u64::from(batch_size)),
        latency_p99: None,
        memory: Some(ByteCount::new(1 << 30)),
        achieved_occupancy: None,
        mean_occupancy: None,
        sm_utilization: None,
    };
    Profile::new([1, 4, 16].map(row).into()).expect("valid rows")
}

fn device(node: usize) -> DeviceReport {
    DeviceReport {
        name: format!("sim{}", node % 10),
        kind: kind(),
        memory_bytes: ByteCount::new(16 << 30),
        multiprocessors: Some(40),
        description: String::new(),
        pool: None,
    }
}

fn device_id(node: usize) -> DeviceId {
    DeviceId::new(name(node), &device(node).name).expect("a valid name")
}

fn replica_id(number: usize) -> ReplicaId {
    ReplicaId {
        generation: Generation(1),
        number: u32::try_from(number).expect("few replicas"),
    }
}

fn stored(models: usize) -> StoredCluster {
    let mut profiles = ProfileTable::default();
    for number in 0..models {
        profiles.insert(model(number), kind(), profile());
    }
    let forecast = |number| Forecast {
        model: model(number),
        rate: rate(10.0),
        goodput: rate(10.0),
        shortfall: None,
    };
    let replica = |number: usize| Replica {
        id: replica_id(number),
        spec: ReplicaSpec {
            memory: Some(ByteCount::new(1 << 30)),
            ..ReplicaSpec::new(model(number), device_id(number % NODES), 4)
        },
        phase: ReplicaPhase::Planned,
        worker: None,
    };
    StoredCluster {
        cluster_id: "00000000000000000000000000000001".parse().expect("valid"),
        epoch: 1,
        models: (0..models)
            .map(|number| ModelRecord {
                spec: spec(number),
                artifact_bytes: 1,
                failure: None,
                operators: None,
                after_plan: Generation(0),
            })
            .collect(),
        splits: Vec::new(),
        nodes: (0..NODES)
            .map(|node| NodeRecord {
                name: name(node),
                agent_version: "1".to_owned(),
                devices: vec![device(node)],
                scheduling: Scheduling::Open,
            })
            .collect(),
        plans: vec![PlanRecord {
            generation: Generation(1),
            policy: "measured".to_owned(),
            reason: String::new(),
            solve_ms: 0.0,
            created_ms: 0,
            replicas: (0..models).map(replica).collect(),
            device_kinds: (0..NODES).map(|node| (device_id(node), kind())).collect(),
            forecasts: (0..models).map(forecast).collect(),
        }],
        profiles,
        measurements: Vec::new(),
        pairs: BTreeMap::new(),
        needs: BTreeMap::new(),
        settings: Settings::default(),
    }
}

fn claim(node: usize) -> Command {
    Command::TakeLease(
        name(node),
        LeaseClaim {
            instance: format!("folder {node}"),
            agent_version: "1".to_owned(),
            libtorch: None,
            devices: vec![device(node)],
            cluster_id: None,
            highest_epoch: 0,
        },
    )
}

/// Returns the report of a node whose replicas are in this state.
fn report(node: usize, models: usize, state: ReplicaState) -> Command {
    let address = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 4000);
    let status = |number: usize| ReplicaStatus {
        id: replica_id(number),
        state,
        address: (state == ReplicaState::Ready).then_some(address),
        local_path: None,
        pid: Some(1),
        restarts: 0,
        reason: None,
        memory_bytes: None,
        capacity: None,
        verification: None,
        worker: WorkerKind::Own,
    };
    let replicas = (node..models).step_by(NODES).map(status);
    Command::Report(
        name(node),
        NodeReport {
            instance: format!("folder {node}"),
            epoch: 1,
            revision: 1,
            replicas: replicas.map(|status| (status.id, status)).collect(),
            profiles: Vec::new(),
            inspections: None,
        },
    )
}

/// Returns the counts after this many samples.
fn sample(models: usize, samples: u64) -> Event {
    let counts = RequestCounts {
        arrived: 50 * samples,
        rows_arrived: 50 * samples,
        rows_within_slo: 50 * samples,
        within_slo: 50 * samples,
        missed: 0,
        rows_for_family: 0,
        hits: 0,
    };
    Event::Sampled(Sample {
        misses: BTreeMap::new(),
        shapes: BTreeMap::new(),
        models: (0..models).map(|number| (model(number), counts)).collect(),
        work: BTreeMap::new(),
        paused_tenants: BTreeMap::new(),
        without_room: BTreeMap::new(),
    })
}

/// Returns a controller whose nodes have leases and whose replicas serve.
fn steady(models: usize) -> Driven {
    let config = Config {
        lease: LEASE,
        profile_time_limit: LEASE,
        shared_backbones: true,
        sample_period: SAMPLE,
        replan_interval: None,
        default_policy: "measured".to_owned(),
        assumptions: Assumptions::default(),
        unix_start_ms: 0,
    };
    let mut driven = Driven {
        controller: Controller::new(Time::ZERO, config, stored(models)),
        now: Time::ZERO,
        requests: 0,
        solve: None,
    };
    for node in 0..NODES {
        driven.command(claim(node));
        driven.command(report(node, models, ReplicaState::Ready));
    }
    for number in 0..models {
        let link = Some(LinkState::Serving);
        driven.handle(Event::LinkChanged(replica_id(number), link));
    }
    driven
}

/// Ends the plan that a start asks for, which is the current one.
fn end_first_plan(driven: &mut Driven) {
    driven.now += Duration::from_secs(1);
    driven.carry_out();
    let (key, input) = driven.solve.take().expect("a start asks for a plan");
    driven.handle(Event::Solved(key, Ok(same_plan(&input))));
}

/// Returns the current replicas as the plan of a policy.
fn same_plan(input: &PlanningInput) -> Solution {
    let forecast = |_: &_| ModelForecast {
        goodput: rate(10.0),
        latency: None,
        shortfall: None,
    };
    Solution {
        plan: Plan {
            policy: "measured",
            models: input.problem.models.iter().map(forecast).collect(),
            replicas: input.problem.current.clone(),
        },
        mix: VariantMix::ACCURATE,
        solve_ms: 0.0,
        fallback: None,
        comparison: None,
    }
}

/// Returns the seconds that something takes.
#[expect(clippy::disallowed_methods, reason = "a measurement reads the clock")]
fn seconds(work: impl FnOnce()) -> f64 {
    let start = Instant::now();
    work();
    start.elapsed().as_secs_f64()
}

/// Prints the cost of something that happens this often, of which `count` took `seconds`.
fn print(what: &str, models: usize, seconds: f64, count: usize, per_s: f64) {
    let us = seconds / count as f64 * 1e6;
    println!("{{\"what\":\"{what}\",\"models\":{models},\"us\":{us:.2},\"per_s\":{per_s:.2}}}");
}

fn main() {
    let mut driven = steady(MODELS);
    end_first_plan(&mut driven);
    let per_node = MESSAGES_PER_S * NODES as f64;
    let rounds = 20;
    let claims: Vec<Command> = (0..NODES).map(claim).collect();
    let reports: Vec<Command> = (0..NODES)
        .map(|node| report(node, MODELS, ReplicaState::Ready))
        .collect();
    let repeat = |what: &str, driven: &mut Driven, commands: &[Command]| {
        let all: Vec<Command> = (0..rounds).flat_map(|_| commands.to_vec()).collect();
        let count = all.len();
        let took = seconds(|| all.into_iter().for_each(|command| driven.command(command)));
        print(what, MODELS, took, count, per_node);
    };
    repeat("a renewal of a lease", &mut driven, &claims);
    repeat("a status that says nothing new", &mut driven, &reports);

    let changes: Vec<Command> = (0..NODES)
        .flat_map(|node| {
            [ReplicaState::Loading, ReplicaState::Ready].map(|state| report(node, MODELS, state))
        })
        .collect();
    let count = changes.len();
    let took = seconds(|| {
        for change in changes {
            driven.command(change);
        }
    });
    print(
        "a status with two changed replicas",
        MODELS,
        took,
        count,
        0.0,
    );
    for number in 0..MODELS {
        let link = Some(LinkState::Serving);
        driven.handle(Event::LinkChanged(replica_id(number), link));
    }

    let took = seconds(|| {
        for round in 1..=rounds as u64 {
            driven.now += Duration::from_millis(100);
            driven.handle(sample(MODELS, round));
        }
    });
    let per_sample = 1.0 / SAMPLE.as_secs_f64();
    print("a sample of all counts", MODELS, took, rounds, per_sample);

    let mut driven = steady(MODELS);
    end_first_plan(&mut driven);
    let registrations: Vec<Command> = (0..1000)
        .map(|number| Command::Register(Box::new(spec(MODELS + number)), 1))
        .collect();
    let took = seconds(|| {
        for command in registrations {
            driven.command(command);
        }
    });
    print("a registration", MODELS, took, 1000, 0.0);

    plan();
    for models in [MODELS / 4, MODELS] {
        list(models);
    }
}

/// Measures a plan that moves one replica in a hundred.
fn plan() {
    let mut driven = steady(MODELS);
    driven.now += Duration::from_secs(1);
    let took_input = seconds(|| driven.carry_out());
    let (key, input) = driven.solve.take().expect("a start asks for a plan");
    let mut solution = same_plan(&input);
    for replica in solution.plan.replicas.iter_mut().step_by(100) {
        *replica = PlannedReplica {
            model: ModelIndex(replica.model.0),
            device: DeviceIndex((replica.device.0 + 1) % NODES),
            ..replica.clone()
        };
    }
    let took_plan = seconds(|| driven.handle(Event::Solved(key, Ok(solution))));
    let per_plan = 1.0 / SECONDS_PER_PLAN;
    print("the input of a plan", MODELS, took_input, 1, per_plan);
    print(
        "a plan that moves 20 replicas",
        MODELS,
        took_plan,
        1,
        per_plan,
    );
}

/// Measures a listing of all models.
fn list(models: usize) {
    let driven = steady(models);
    let controller = &driven.controller;
    let mut listed = 0;
    let took = seconds(|| {
        for (id, _) in controller.models() {
            listed += usize::from(controller.model_status(id).is_some());
        }
    });
    assert_eq!(listed, models, "every model has a status");
    print("a model of a listing", models, took, models, 0.0);
}
