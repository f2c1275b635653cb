//! The control plane of a run that replans: the gateway's [`Controller`], driven by simulated time.
//!
//! Its driver here is a node for each node of the scenario, whose agent renews its lease, starts and stops workers as it is told and
//! reports at once, a store that stores at once, and a policy whose calls take no simulated time. The messages take none either. A
//! worker that starts is ready after its model's load time.
//!
//! At the interval of the run, the data plane's counts are sampled and the policy is called, or, at changes, when the controller asks for
//! a plan. It gets the problem as the gateway would
//! see it: without the devices of nodes whose lease has ended, with the measured rates, with the current plan, and with the
//! observations of devices.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use packhorse_cluster::{
    ArtifactDigest, Datatype, DemandedModel, Device, DeviceId, DeviceIndex, DeviceReport, Dim,
    Discipline, Generation, Mixed, ModelForecast, ModelId, ModelIndex, ModelSpec, NodeName, Plan,
    PlannedReplica, Priority, Problem, Program, RateMode, Replica, ReplicaId, ReplicaPhase,
    RequestsPerSecond, Scheduling, TensorSpec, Time, VariantMix, VariantOf, WantedState,
};
use packhorse_control::{
    Assumptions, Command, Comparison, ComputedWork, Config, Controller, Event, PlanningInput,
    Receipt, RequestKey, Sample, Solution, SolveError, Write,
    record::{Forecast, ModelRecord, NodeRecord, PlanRecord, Settings, StoredCluster},
};

use crate::{
    Scenario,
    options::{Estimate, PlanningMoments, Recorded, Replanning},
    report::ReplanningReport,
};

/// The lease of a node: the time after which the gateway gives up a silent node.
pub(super) const LEASE: Duration = Duration::from_secs(5);
/// The epoch of the only gateway.
const EPOCH: u64 = 1;

/// The control plane of a run, and the simulated nodes that it controls.
pub(super) struct Control<'a> {
    pub(super) controller: Controller,
    pub(super) replanning: Replanning<'a>,
    pub(super) nodes: BTreeMap<NodeName, SimulatedNode>,
    /// The index in the scenario of each device.
    pub(super) devices: BTreeMap<DeviceId, DeviceIndex>,
    /// The index in the scenario of each model.
    pub(super) models: BTreeMap<ModelId, ModelIndex>,
    /// The index in the simulation of each replica that was started.
    pub(super) started: BTreeMap<ReplicaId, usize>,
    /// The counts of the data plane.
    pub(super) counts: Sample,
    /// The time of the end of arrivals.
    pub(super) until: Time,
    /// The commands so far.
    pub(super) commands: u64,
    pub(super) report: ReplanningReport,
}

/// A node, as its agent knows it.
pub(super) struct SimulatedNode {
    pub(super) devices: Vec<DeviceReport>,
    /// The wanted state that the agent was last told.
    pub(super) wanted: Arc<WantedState>,
    /// True while the agent does not reach the gateway, or while there is no such node.
    pub(super) silent: bool,
}

impl<'a> Control<'a> {
    /// Returns the control plane of a simulation in which the replicas of this plan run already, in the plan's order.
    pub(super) fn new(
        scenario: &Scenario,
        plan: &[PlannedReplica],
        discipline: Discipline,
        mut replanning: Replanning<'a>,
    ) -> Self {
        let problem = &scenario.problem;
        let device_id = |(i, device): (usize, &Device)| {
            DeviceId::new(device.node.clone(), &i.to_string()).expect("digits are a name")
        };
        let ids: Vec<DeviceId> = problem.devices.iter().enumerate().map(device_id).collect();
        let mut nodes: BTreeMap<NodeName, SimulatedNode> = BTreeMap::new();
        let at_start = scenario.devices_at_start();
        for (number, (device, id)) in problem.devices.iter().zip(&ids).enumerate() {
            let node = nodes.entry(device.node.clone());
            let node = node.or_insert_with(|| SimulatedNode {
                devices: Vec::new(),
                wanted: Arc::default(),
                silent: number >= at_start,
            });
            node.devices.push(DeviceReport {
                name: id.local().to_owned(),
                kind: device.kind.clone(),
                memory_bytes: device.memory,
                multiprocessors: device.multiprocessors,
                description: String::new(),
            });
        }
        let config = config(scenario, &replanning);
        let record = stored_plan(scenario, plan, &ids);
        let started = record
            .replicas
            .iter()
            .map(|replica| replica.id)
            .zip(0..)
            .collect();
        let stored = StoredCluster {
            cluster_id: "00000000000000000000000000000000"
                .parse()
                .expect("a valid identity"),
            epoch: EPOCH,
            models: problem
                .models()
                .filter(|(index, _)| !scenario.is_added_later(*index))
                .map(|(_, model)| ModelRecord {
                    spec: model_spec(scenario, model, replanning.rate_mode),
                    artifact_bytes: 0,
                    failure: None,
                    operators: None,
                    after_plan: Generation(0),
                })
                .collect(),
            splits: Vec::new(),
            nodes: nodes
                .iter()
                .filter(|(_, node)| !node.silent)
                .map(|(name, node)| NodeRecord {
                    name: name.clone(),
                    agent_version: String::new(),
                    devices: node.devices.clone(),
                    scheduling: Scheduling::Open,
                })
                .collect(),
            plans: vec![record],
            profiles: problem.profiles.clone(),
            pairs: BTreeMap::new(),
            settings: Settings {
                discipline: Some(discipline),
                ..Settings::default()
            },
        };
        if let Some(record) = &mut replanning.recorder {
            record(Recorded::Started(&config, &stored));
        }
        let report = ReplanningReport {
            every_s: replanning.every.as_secs_f64(),
            ..ReplanningReport::default()
        };
        let models = problem
            .models()
            .map(|(index, model)| (model.id.clone(), index));
        Self {
            controller: Controller::new(Time::ZERO, config, stored),
            replanning,
            nodes,
            devices: ids.into_iter().zip((0..).map(DeviceIndex)).collect(),
            models: models.collect(),
            started,
            counts: Sample::default(),
            until: Time::ZERO + scenario.simulation.warmup + scenario.simulation.window,
            commands: 0,
            report,
        }
    }

    /// Returns the report of the changes of the plan.
    pub(super) fn report(&self) -> ReplanningReport {
        self.report
    }

    /// Returns the time at which the control plane must act even without an event.
    pub(super) fn timeout(&self) -> Time {
        self.controller.poll_timeout()
    }

    /// Counts the arrival of a request.
    pub(super) fn arrived(&mut self, model: &ModelId) {
        let counts = self.counts.models.entry(model.clone()).or_default();
        counts.arrived += 1;
        let registered = self.controller.model(model);
        counts.for_family += u64::from(registered.is_some_and(|m| m.spec.variant.is_some()));
    }

    /// Counts an answered batch of a replica that computed for `compute`, of which `within_slo` requests were answered in time. Alone
    /// on its device it would have taken `alone`.
    pub(super) fn computed(
        &mut self,
        model: &ModelId,
        replica: usize,
        rows: usize,
        within_slo: u64,
        (compute, alone): (Duration, Duration),
    ) {
        let counts = self.counts.models.entry(model.clone()).or_default();
        counts.within_slo += within_slo;
        let mut started = self.started.iter();
        if let Some((id, _)) = started.find(|(_, index)| **index == replica) {
            let work: &mut ComputedWork = self.counts.work.entry(*id).or_default();
            let rows = u32::try_from(rows).expect("a batch is small");
            work.add_batch(rows, compute, alone);
        }
    }

    pub(super) fn handle(&mut self, now: Time, event: Event) {
        if let Some(record) = &mut self.replanning.recorder {
            record(Recorded::Handled(now, &event));
        }
        self.controller.handle(now, event);
    }

    pub(super) fn command(&mut self, now: Time, command: Command) {
        self.commands += 1;
        let request = RequestKey(self.commands);
        self.handle(now, Event::Requested(request, command));
    }

    /// Stores what the controller writes, which takes no simulated time.
    pub(super) fn store(&mut self, now: Time, receipt: Receipt, write: &Write) {
        if let (Some(record), Write::InsertPlan(plan, _)) = (&mut self.replanning.recorder, write) {
            record(Recorded::Adopted(plan));
        }
        self.handle(now, Event::Stored(receipt, Ok(())));
    }

    /// Calls the policy.
    pub(super) fn solve(
        &mut self,
        now: Time,
        scenario: &Scenario,
        input: &PlanningInput,
    ) -> Result<Solution, SolveError> {
        let foreseen = self
            .replanning
            .foresight
            .map(|time| self.foreseen(now, scenario, input, time));
        let input = foreseen.as_ref().unwrap_or(input);
        let none = || SolveError::NoPlan {
            policy: input.policy.clone(),
            error: "it returned none".to_owned(),
        };
        let is_first = self.replanning.moments == PlanningMoments::Interval
            && now < Time::ZERO + self.replanning.every;
        if is_first || now >= self.until {
            // The plan of the first interval was made before the run, and after its last arrival the policy is not called.
            let mix = VariantMix::ACCURATE;
            let plan = current_plan(&input.problem, self.replanning.estimate);
            return Ok(solution(Mixed { mix, plan }, None));
        }
        self.report.asked += 1;
        // Policies require at least one device.
        let policy = &mut *self.replanning.policy;
        let planned = input.place(|problem| {
            let plan = (!problem.devices.is_empty())
                .then(|| policy(problem))
                .flatten();
            plan.filter(|plan| plan.violations(problem).is_empty())
                .ok_or_else(none)
        });
        let Ok(planned) = planned else {
            self.report.unanswered += 1;
            return Err(none());
        };
        let estimate = self.replanning.estimate;
        let comparison =
            estimate.and_then(|estimate| input.at(planned.mix).compare(&planned.plan, estimate));
        Ok(solution(planned, comparison))
    }

    /// Returns the input of a policy with the true rates from now on, for a time.
    fn foreseen(
        &self,
        now: Time,
        scenario: &Scenario,
        input: &PlanningInput,
        time: Duration,
    ) -> PlanningInput {
        let mut input = input.clone();
        for model in &mut input.problem.models {
            let rate = scenario.mean_rate(self.models[&model.id], now, now + time);
            model.rate = RequestsPerSecond::new(rate).expect("a mean of arrivals is a rate");
        }
        for family in &mut input.families {
            let variants = family.variants.iter();
            let ids = variants
                .flat_map(|variant| &variant.shares)
                .map(|(id, _)| id);
            let rates = ids.map(|id| scenario.mean_rate(self.models[id], now, now + time));
            family.rate = RequestsPerSecond::new(rates.sum()).expect("a sum of rates is a rate");
        }
        input
    }
}

fn solution(planned: Mixed<Plan>, comparison: Option<Comparison>) -> Solution {
    let Mixed { mix, plan } = planned;
    Solution {
        plan,
        mix,
        solve_ms: 0.0,
        fallback: None,
        comparison,
    }
}

/// Returns the settings of the control plane of a run.
fn config(scenario: &Scenario, replanning: &Replanning<'_>) -> Config {
    let problem = &scenario.problem;
    let models = problem.models.iter();
    let by_model = |value: fn(&DemandedModel) -> f64| -> BTreeMap<ModelId, f64> {
        models
            .clone()
            .map(|model| (model.id.clone(), value(model)))
            .collect()
    };
    let mut conditions = problem.conditions;
    // The measured rates already include the clients' own work.
    conditions.client_overhead = Duration::ZERO;
    Config {
        lease: LEASE,
        profile_time_limit: Duration::ZERO,
        shared_backbones: true,
        sample_period: replanning.every,
        replan_interval: match replanning.moments {
            PlanningMoments::Interval => Some(replanning.every),
            PlanningMoments::Changes => None,
        },
        default_policy: "simulated".to_owned(),
        assumptions: Assumptions {
            network: problem.network,
            conditions,
            default_load_time: Duration::from_secs(1),
            load_times: models
                .clone()
                .map(|m| (m.id.clone(), m.load_time))
                .collect(),
            latency_scales: by_model(|model| model.latency_scale),
            payloads: models.clone().map(|m| (m.id.clone(), m.payload)).collect(),
        },
        unix_start_ms: 0,
    }
}

/// Returns a model as an admin registers it.
pub(super) fn model_spec(
    scenario: &Scenario,
    model: &DemandedModel,
    rate_mode: RateMode,
) -> ModelSpec {
    ModelSpec {
        program: program(model),
        slo: model.slo,
        rate: Some(reachable_rate(scenario, model.rate)),
        rate_mode,
        priority: Priority::default(),
        queue_limit: None,
        variant: variant_of(scenario, &model.id),
    }
}

/// Returns the family of a model of the scenario, and its accuracy.
fn variant_of(scenario: &Scenario, model: &ModelId) -> Option<VariantOf> {
    scenario.families.iter().find_map(|family| {
        let mut variants = family.variants.iter();
        let variant =
            variants.find(|variant| scenario.problem.models[variant.model.0].id == *model)?;
        Some(VariantOf {
            family: family.name.parse().ok()?,
            accuracy: variant.accuracy,
        })
    })
}

fn program(model: &DemandedModel) -> Program {
    Program {
        model: model.id.clone(),
        artifact: ArtifactDigest::from_sha256([0; 32]),
        max_batch_size: model.max_batch_size,
        inputs: vec![tensor("x")],
        outputs: vec![tensor("y")],
    }
}

/// Returns a tensor of a model. Nothing in a simulation depends on it.
fn tensor(name: &str) -> TensorSpec {
    TensorSpec {
        name: name.to_owned(),
        datatype: Datatype::Fp32,
        shape: vec![Dim::Any, Dim::Fixed(1)],
        pad: None,
        max_shape: None,
    }
}

/// Returns the plan at the start of a run as it would be stored.
fn stored_plan(scenario: &Scenario, plan: &[PlannedReplica], ids: &[DeviceId]) -> PlanRecord {
    let problem = &scenario.problem;
    let generation = Generation(1);
    let replicas = plan.iter().zip(0..).map(|(planned, number)| Replica {
        id: ReplicaId { generation, number },
        spec: packhorse_cluster::ReplicaSpec {
            model: problem.models[planned.model.0].id.clone(),
            device: ids[planned.device.0].clone(),
            batch_size: planned.batch_size,
            compute_share: planned.compute_share,
            duty_cycle: planned.duty_cycle,
            memory: None,
            backbone: None,
        },
        phase: ReplicaPhase::Planned,
        worker: None,
    });
    let kinds = ids.iter().zip(&problem.devices);
    let kinds = kinds.take(scenario.devices_at_start());
    let forecasts = problem.models.iter().map(|model| Forecast {
        model: model.id.clone(),
        rate: reachable_rate(scenario, model.rate),
        goodput: RequestsPerSecond::ZERO,
        shortfall: None,
    });
    PlanRecord {
        generation,
        policy: "simulated".to_owned(),
        reason: String::new(),
        solve_ms: 0.0,
        created_ms: 0,
        replicas: replicas.collect(),
        device_kinds: kinds
            .map(|(id, device)| (id.clone(), device.kind.clone()))
            .collect(),
        forecasts: forecasts.collect(),
    }
}

/// Returns the current replicas of a problem as a plan.
fn current_plan(problem: &Problem, estimate: Option<Estimate>) -> Plan {
    let unknown = ModelForecast {
        goodput: RequestsPerSecond::ZERO,
        latency: None,
        shortfall: None,
    };
    let models = match estimate {
        Some(estimate) => estimate(problem, &problem.current),
        None => vec![unknown; problem.models.len()],
    };
    Plan {
        policy: "simulated",
        models,
        replicas: problem.current.clone(),
    }
}

/// The rate that clients reach of a given rate, because of their own work per request.
fn reachable_rate(scenario: &Scenario, rate: RequestsPerSecond) -> RequestsPerSecond {
    let overhead = scenario.simulation.client_overhead.as_secs_f64();
    let reached = rate.get() / (1.0 + rate.get() * overhead);
    RequestsPerSecond::new(reached).expect("at most the rate itself")
}
