//! The control plane of a run that plans anew: its settings, what is stored at its start, and the calls of its policy.
//!
//! At the interval of the run, the data plane's counts are sampled and the policy is called, or, at changes, when the controller asks for
//! a plan. It gets the problem as the gateway would see it: without the devices of nodes whose lease has ended, with the measured rates, with
//! the current plan, and with the observations of devices.

use std::{collections::BTreeMap, time::Duration};

use packhorse_cluster::{
    ArtifactDigest, Datatype, DemandedModel, Device, DeviceId, DeviceReport, Dim, Discipline,
    Generation, Mixed, ModelForecast, ModelId, ModelIndex, ModelSpec, Plan, PlannedReplica,
    Problem, Program, RateMode, Replica, ReplicaId, ReplicaPhase, ReplicaSpec, RequestsPerSecond,
    Scheduling, TensorSpec, Time, VariantMix, VariantOf,
};
use packhorse_control::{
    Assumptions, Comparison, Config, PlanningInput, Solution, SolveError,
    record::{Forecast, ModelRecord, NodeRecord, PlanRecord, Settings, StoredCluster},
};
use packhorse_virtual::Store;

use crate::{
    Scenario,
    options::{Estimate, PlanningMoments, Replanning},
    report::ReplanningReport,
};

/// The lease of a node: the time after which the gateway gives up a silent node.
const LEASE: Duration = Duration::from_secs(5);

/// The generation of the first plan.
const FIRST: Generation = Generation(1);

/// The policy of a run, and when it is called.
pub(super) struct Planner<'a> {
    pub(super) replanning: Replanning<'a>,
    /// The index in the scenario of each model.
    models: BTreeMap<ModelId, ModelIndex>,
    /// The time of the end of arrivals.
    until: Time,
}

impl<'a> Planner<'a> {
    pub(super) fn new(scenario: &Scenario, replanning: Replanning<'a>) -> Self {
        let models = scenario.problem.models();
        Self {
            replanning,
            models: models
                .map(|(index, model)| (model.id.clone(), index))
                .collect(),
            until: Time::ZERO + scenario.simulation.warmup + scenario.simulation.window,
        }
    }

    /// Calls the policy.
    pub(super) fn plan(
        &mut self,
        now: Time,
        scenario: &Scenario,
        input: &PlanningInput,
        report: &mut ReplanningReport,
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
        report.asked += 1;
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
            report.unanswered += 1;
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
pub(super) fn config(scenario: &Scenario, replanning: &Replanning<'_>) -> Config {
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

/// Returns what is stored at the start of a run whose first plan this is.
pub(super) fn stored(
    scenario: &Scenario,
    plan: &[PlannedReplica],
    discipline: Discipline,
    rate_mode: RateMode,
) -> StoredCluster {
    let problem = &scenario.problem;
    let models = problem
        .models()
        .filter(|(index, _)| !scenario.is_added_later(*index));
    let model = |(_, model)| ModelRecord {
        spec: model_spec(scenario, model, rate_mode),
        artifact_bytes: 0,
        failure: None,
        operators: None,
        after_plan: Generation(0),
    };
    let at_start = scenario.devices_at_start();
    let mut nodes: Vec<NodeRecord> = Vec::new();
    for (number, device) in problem.devices.iter().enumerate().take(at_start) {
        let report = device_report(number, device);
        match nodes.iter_mut().find(|node| node.name == device.node) {
            Some(node) => node.devices.push(report),
            None => nodes.push(NodeRecord {
                name: device.node.clone(),
                agent_version: "1".to_owned(),
                devices: vec![report],
                scheduling: Scheduling::Open,
            }),
        }
    }
    StoredCluster {
        models: models.map(model).collect(),
        nodes,
        plans: vec![stored_plan(scenario, plan)],
        profiles: problem.profiles.clone(),
        settings: Settings {
            discipline: Some(discipline),
            ..Settings::default()
        },
        ..Store::default().disk
    }
}

/// Returns the device of this number as its agent reports it.
pub(super) fn device_report(number: usize, device: &Device) -> DeviceReport {
    DeviceReport {
        name: number.to_string(),
        kind: device.kind.clone(),
        memory_bytes: device.memory,
        multiprocessors: device.multiprocessors,
        description: String::new(),
        pool: device.pool,
    }
}

/// Returns the identity of the device of this number.
pub(super) fn device_id(scenario: &Scenario, number: usize) -> DeviceId {
    let node = scenario.problem.devices[number].node.clone();
    DeviceId::new(node, &number.to_string()).expect("digits are a name")
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
        priority: model.priority,
        min_replicas: model.min_replicas,
        queue_limit: None,
        max_cold_wait: None,
        cache: false,
        variant: variant_of(scenario, &model.id),
        processing: std::sync::Arc::default(),
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

pub(super) fn program(model: &DemandedModel) -> Program {
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
    TensorSpec::new(name, Datatype::Fp32, vec![Dim::Any, Dim::Fixed(1)])
}

/// Returns the replica of this number of the first plan.
pub(super) fn replica<M>(
    scenario: &Scenario,
    planned: &PlannedReplica,
    number: u32,
    model: M,
) -> Replica<M> {
    Replica {
        id: ReplicaId {
            generation: FIRST,
            number,
        },
        spec: ReplicaSpec {
            model,
            device: device_id(scenario, planned.device.0),
            batch_size: planned.batch_size,
            compute_share: planned.compute_share,
            duty_cycle: planned.duty_cycle,
            memory: None,
            backbone: None,
            pool: planned.pool,
        },
        phase: ReplicaPhase::Planned,
        worker: None,
    }
}

/// Returns the plan at the start of a run as it would be stored.
fn stored_plan(scenario: &Scenario, plan: &[PlannedReplica]) -> PlanRecord {
    let problem = &scenario.problem;
    let replicas = plan.iter().zip(0..).map(|(planned, number)| {
        let model = problem.models[planned.model.0].id.clone();
        replica(scenario, planned, number, model)
    });
    let devices = problem.devices.iter().enumerate();
    let kinds = devices.take(scenario.devices_at_start());
    let forecasts = problem.models.iter().map(|model| Forecast {
        model: model.id.clone(),
        rate: reachable_rate(scenario, model.rate),
        goodput: RequestsPerSecond::ZERO,
        shortfall: None,
    });
    PlanRecord {
        generation: FIRST,
        policy: "simulated".to_owned(),
        reason: String::new(),
        solve_ms: 0.0,
        created_ms: 0,
        replicas: replicas.collect(),
        device_kinds: kinds
            .map(|(number, device)| (device_id(scenario, number), device.kind.clone()))
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

/// Returns the rate that clients reach of a given rate, because of their own work per request.
fn reachable_rate(scenario: &Scenario, rate: RequestsPerSecond) -> RequestsPerSecond {
    let overhead = scenario.simulation.client_overhead.as_secs_f64();
    let reached = rate.get() / (1.0 + rate.get() * overhead);
    RequestsPerSecond::new(reached).expect("at most the rate itself")
}
