//! The input of a placement policy, made from the state of the cluster, and the validated outcome.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use packhorse_cluster::{
    ByteCount, Conditions, DemandedModel, Device, DeviceId, DeviceIndex, Dim, Explanation, ModelId,
    ModelIndex, ModelSpec, NetworkModel, Plan, PlannedReplica, PolicyOptions, Problem,
    ProfileTable, RequestsPerSecond,
};
use packhorse_placement::{Budget, FALLBACK_POLICY, PolicyEntry};

use super::{
    cluster::Cluster,
    draft::{DraftPlan, DraftReplica},
    nodes::Node,
    plan_reason::PlanReasons,
    planning_trouble::{Fallback, PlanningError},
};
use crate::store::{Scheduling, StoredForecast};

/// The size that is assumed of a variable dimension when the size of a request is estimated.
const ASSUMED_DIMENSION: u64 = 128;
/// The time that a replica is assumed to need until it is ready.
const ASSUMED_LOAD_TIME: Duration = Duration::from_secs(2);

/// The input of a placement policy, with the names behind the problem's indices.
#[derive(Clone)]
pub(super) struct PlanningInput {
    /// The policy to plan with.
    pub(super) policy: &'static PolicyEntry,
    /// The policy's options.
    pub(super) options: PolicyOptions,
    /// The reasons for which the plan is made.
    pub(super) reasons: PlanReasons,
    /// The problem, without the current replicas, which are computed from `current`.
    pub(super) problem: Problem,
    /// The replicas of the current plan.
    pub(super) current: Vec<DraftReplica>,
    /// The names of the problem's devices, in the problem's order.
    pub(super) devices: Vec<DeviceId>,
    /// The full rates of all models to forecast, including those that are not in the problem.
    pub(super) rates: BTreeMap<ModelId, RequestsPerSecond>,
    /// The replicas that stay whatever the policy decides: those of cordoned nodes.
    pub(super) pinned: Vec<DraftReplica>,
    /// The replicas that stay unless the policy places their model: those that still serve on nodes whose lease has expired.
    pub(super) unattended: Vec<DraftReplica>,
    /// True to explain the plan.
    pub(super) explain: bool,
}

/// The validated outcome of a policy.
pub(super) struct PlanningOutcome {
    /// The reasons for which the plan was made.
    pub(super) reasons: PlanReasons,
    /// The plan, or the reason why there is none.
    pub(super) result: Result<DraftPlan, PlanningError>,
}

impl Cluster {
    /// Returns the input of a policy for the cluster as it is now.
    pub(super) fn planning_input(
        &self,
        policy: &'static PolicyEntry,
        reasons: PlanReasons,
    ) -> PlanningInput {
        let mut devices = Vec::new();
        let mut problem = Problem {
            profiles: self.memory_limits.apply(&self.profiles),
            discipline: self.discipline,
            network: NetworkModel::default(),
            conditions: Conditions {
                max_batch_wait: self.config.max_batch_wait,
                ..Conditions::default()
            },
            observations: self.observations(),
            ..Problem::default()
        };
        for node in self.nodes.values().filter(|node| node.takes_replicas()) {
            for (id, device) in node.devices() {
                devices.push(id);
                problem.devices.push(Device {
                    kind: device.kind.clone(),
                    memory: device.memory_bytes,
                    multiprocessors: device.multiprocessors,
                    node: node.stored.name.clone(),
                    cost_per_hour: None,
                });
            }
        }
        let pinned = self.planned_on(|node| {
            node.holds_lease() && node.stored.scheduling == Scheduling::Cordoned
        });
        let mut unattended = self.planned_on(|node| !node.holds_lease());
        unattended.retain(|draft| {
            let mut placed = self.plan.replicas.iter();
            placed.any(|r| {
                r.program.model == draft.model && r.device == draft.device && self.serves(r.id)
            })
        });
        let mut rates = BTreeMap::new();
        for (id, model) in &self.models {
            if model.failure.is_some() {
                continue;
            }
            rates.insert(id.clone(), model.spec.rate);
            let pinned_rate = throughput(&pinned, id, &self.profiles);
            if pinned_rate == 0.0 || pinned_rate < model.spec.rate.get() {
                let rate = RequestsPerSecond::new(model.spec.rate.get() - pinned_rate);
                let rate = rate.unwrap_or(RequestsPerSecond::ZERO);
                let kinds = problem.devices.iter().map(|device| &device.kind);
                let mut demanded = demanded_model(&model.spec, rate);
                if let Some(rows) = self.memory_limits.batch_limit(id, kinds) {
                    demanded.max_batch_size = demanded.max_batch_size.min(rows);
                }
                problem.models.push(demanded);
            }
        }
        PlanningInput {
            policy,
            options: self.options,
            reasons,
            problem,
            current: self.planned_on(|_| true),
            devices,
            rates,
            pinned,
            unattended,
            explain: false,
        }
    }

    /// Returns the replicas of the current plan on the nodes for which the predicate holds.
    fn planned_on(&self, predicate: impl Fn(&Node) -> bool) -> Vec<DraftReplica> {
        let stored = self.plan.stored.iter().flat_map(|plan| &plan.replicas);
        let placed: BTreeMap<_, _> = self.plan.replicas.iter().map(|r| (r.id, r)).collect();
        stored
            .filter(|replica| {
                let node = self.nodes.get(replica.device.node());
                node.is_some_and(&predicate)
            })
            .filter_map(|replica| {
                let placed = placed.get(&replica.id)?;
                Some(DraftReplica {
                    model: replica.model.clone(),
                    device: replica.device.clone(),
                    device_kind: replica.device_kind.clone(),
                    device_memory: placed.device_memory,
                    batch_size: replica.batch_size,
                    compute_share: replica.compute_share,
                    duty_cycle: replica
                        .duty_cycle_ms
                        .and_then(|ms| Duration::try_from_secs_f64(ms / 1e3).ok()),
                    memory: placed.memory,
                })
            })
            .collect()
    }
}

impl PlanningInput {
    /// Plans with the policy, and with the fallback policy if that one finds no plan in time. A plan with violations is an error.
    #[expect(
        clippy::disallowed_methods,
        reason = "policies read no clock; their caller limits their time"
    )]
    pub(super) fn solve(mut self, budget: Duration) -> PlanningOutcome {
        self.problem.current = self.current_replicas();
        let start = std::time::Instant::now();
        let late = || start.elapsed() > budget;
        let policy = self.policy.name;
        let options = self.options.into();
        let planned = self.policy.place_with(
            &self.problem,
            &options,
            &mut Budget::new(u64::MAX, &late).with_time_limit(budget),
        );
        let (planned, fallback) = match planned {
            Err(error) if policy != FALLBACK_POLICY => {
                let entry = packhorse_placement::policy(FALLBACK_POLICY)
                    .expect("the fallback is in the table");
                let planned = entry.place_with(&self.problem, &options, &mut Budget::unlimited());
                let fallback = Fallback {
                    policy,
                    budget,
                    error,
                };
                (planned, Some(fallback))
            }
            planned => (planned, None),
        };
        let solve_ms = start.elapsed().as_secs_f64() * 1e3;
        let result = match planned {
            Ok(plan) => self.draft(&plan, solve_ms, fallback).map(|draft| {
                let entry = packhorse_placement::policy(plan.policy);
                let entry = entry.expect("plans name their policy");
                DraftPlan {
                    explanations: self.explanations(entry, &plan, budget),
                    ..draft
                }
            }),
            Err(error) => Err(PlanningError::NoPlan { policy, error }),
        };
        PlanningOutcome {
            reasons: self.reasons,
            result,
        }
    }

    /// Returns the current replicas of the problem's models on its devices.
    pub(super) fn current_replicas(&self) -> Vec<PlannedReplica> {
        let known = self.current.iter().filter_map(|replica| {
            let mut models = self.problem.models.iter();
            let model = models.position(|model| model.id == replica.model)?;
            let device = self.devices.iter().position(|id| *id == replica.device)?;
            Some(PlannedReplica {
                model: ModelIndex(model),
                device: DeviceIndex(device),
                batch_size: replica.batch_size,
                compute_share: replica.compute_share,
                duty_cycle: replica.duty_cycle,
                memory: None,
            })
        });
        known.collect()
    }

    /// Converts a plan into a draft with names, together with the replicas that stay. A plan with violations is an error.
    fn draft(
        &self,
        plan: &Plan,
        solve_ms: f64,
        fallback: Option<Fallback>,
    ) -> Result<DraftPlan, PlanningError> {
        let violations = plan.violations(&self.problem);
        if let Some(first) = violations.first() {
            return Err(PlanningError::Violations {
                policy: plan.policy,
                count: violations.len(),
                first: first.clone(),
            });
        }
        let replicas = plan.replicas.iter();
        let mut replicas: Vec<DraftReplica> = replicas.map(|r| self.draft_replica(r)).collect();
        let placed: BTreeSet<ModelId> = replicas.iter().map(|r| r.model.clone()).collect();
        let unattended = self.unattended.iter();
        replicas.extend(
            unattended
                .filter(|draft| !placed.contains(&draft.model))
                .cloned(),
        );
        replicas.extend(self.pinned.iter().cloned());
        replicas.sort_by(|a, b| (&a.model, &a.device).cmp(&(&b.model, &b.device)));
        Ok(DraftPlan {
            policy: plan.policy,
            solve_ms,
            models: self.forecasts(plan),
            replicas,
            fallback,
            explanations: BTreeMap::new(),
        })
    }

    /// Explains what limits each model in a plan and which changes would make the policy serve it, as far as the explanations are
    /// found within the budget. Returns nothing if no explanation was requested.
    #[expect(
        clippy::disallowed_methods,
        reason = "policies read no clock; their caller limits their time"
    )]
    pub(super) fn explanations(
        &self,
        policy: &PolicyEntry,
        plan: &Plan,
        budget: Duration,
    ) -> BTreeMap<ModelId, Explanation> {
        if !self.explain {
            return BTreeMap::new();
        }
        let start = std::time::Instant::now();
        let late = || start.elapsed() > budget;
        let explanations = packhorse_placement::explain(
            policy,
            &self.problem,
            plan,
            &self.options.into(),
            &mut Budget::new(u64::MAX, &late).with_time_limit(budget),
        );
        let explanations = explanations.expect("a policy has planned for the problem");
        let ids = self.problem.models.iter().map(|model| model.id.clone());
        ids.zip(explanations).collect()
    }

    /// Converts a planned replica into one with names.
    fn draft_replica(&self, replica: &PlannedReplica) -> DraftReplica {
        let device = &self.problem.devices[replica.device.0];
        DraftReplica {
            model: self.problem.models[replica.model.0].id.clone(),
            device: self.devices[replica.device.0].clone(),
            device_kind: device.kind.clone(),
            device_memory: device.memory,
            batch_size: replica.batch_size,
            compute_share: replica.compute_share,
            duty_cycle: replica.duty_cycle,
            memory: replica.memory.unwrap_or_default(),
        }
    }

    /// Returns the forecasts of a plan and the replicas that stay, for all models.
    fn forecasts(&self, plan: &Plan) -> Vec<StoredForecast> {
        let planned: BTreeMap<&ModelId, _> = self
            .problem
            .models
            .iter()
            .map(|model| &model.id)
            .zip(&plan.models)
            .collect();
        self.rates
            .iter()
            .map(|(model, rate)| {
                let forecast = planned.get(model);
                let pinned = throughput(&self.pinned, model, &self.problem.profiles);
                let goodput = forecast.map_or(0.0, |forecast| forecast.goodput.get()) + pinned;
                StoredForecast {
                    model: model.clone(),
                    rate: *rate,
                    goodput: RequestsPerSecond::new(goodput.min(rate.get())).unwrap_or(*rate),
                    shortfall: forecast
                        .and_then(|forecast| forecast.shortfall.as_ref())
                        .map(ToString::to_string),
                }
            })
            .collect()
    }
}

/// Returns the demand for a model at this rate.
fn demanded_model(spec: &ModelSpec, rate: RequestsPerSecond) -> DemandedModel {
    DemandedModel {
        id: spec.program.model.clone(),
        rate,
        slo: spec.slo,
        max_batch_size: spec.program.rows_limit(),
        payload: payload(spec),
        load_time: ASSUMED_LOAD_TIME,
        latency_scale: 1.0,
    }
}

/// Estimates the size of one request's inputs.
fn payload(spec: &ModelSpec) -> ByteCount {
    let batches = spec.program.batches();
    let bytes = spec.program.inputs.iter().map(|input| {
        let dims = input.shape.iter().skip(usize::from(batches));
        let elements = dims.fold(1_u64, |product, dim| {
            product.saturating_mul(match dim {
                Dim::Any => ASSUMED_DIMENSION,
                Dim::Fixed(size) => *size,
            })
        });
        let width = input.datatype.width().unwrap_or(1) as u64;
        ByteCount::new(elements.saturating_mul(width))
    });
    bytes.sum()
}

/// Returns the rows per second that the replicas of a model compute with full batches.
fn throughput(replicas: &[DraftReplica], model: &ModelId, profiles: &ProfileTable) -> f64 {
    replicas
        .iter()
        .filter(|replica| replica.model == *model)
        .filter_map(|replica| {
            let profile = profiles.get(model, &replica.device_kind)?;
            let seconds = profile.latency(replica.batch_size).as_secs_f64();
            Some(f64::from(replica.batch_size) / seconds)
        })
        .sum()
}

#[cfg(test)]
mod tests {
    use packhorse_cluster::{ArtifactDigest, Datatype, Program, RateMode, TensorSpec};
    use packhorse_placement::policy;

    use super::*;

    fn spec(model: &str, rate: f64) -> ModelSpec {
        let tensor = |name: &str, shape: Vec<Dim>| TensorSpec {
            name: name.to_owned(),
            datatype: Datatype::Fp32,
            shape,
            pad: None,
        };
        ModelSpec {
            program: Program {
                model: model.parse().unwrap(),
                artifact: ArtifactDigest::from_sha256([0; 32]),
                max_batch_size: 8,
                inputs: vec![tensor("x", vec![Dim::Any, Dim::Any, Dim::Fixed(3)])],
                outputs: vec![tensor("y", vec![Dim::Any])],
            },
            slo: Duration::from_millis(200),
            rate: RequestsPerSecond::new(rate).unwrap(),
            rate_mode: RateMode::default(),
            queue_limit: None,
        }
    }

    fn replica(model: &str, device: &str) -> DraftReplica {
        DraftReplica {
            model: model.parse().unwrap(),
            device: device.parse().unwrap(),
            device_kind: "T4".parse().unwrap(),
            device_memory: ByteCount::new(1 << 30),
            batch_size: 4,
            compute_share: None,
            duty_cycle: None,
            memory: ByteCount::new(1 << 20),
        }
    }

    /// The input for two models, `a` and `b`, and this number of devices of one kind.
    fn input(policy_name: &str, devices: usize) -> PlanningInput {
        let csv = "\na,T4,1,,2,,100,,,\na,T4,4,,4,,100,,,\nb,T4,1,,2,,100,,,\nb,T4,4,,4,,100,,,\n";
        let csv = format!("{}{csv}", ProfileTable::CSV_HEADER);
        let models = [spec("a", 10.0), spec("b", 10.0)];
        let device = Device {
            kind: "T4".parse().unwrap(),
            memory: ByteCount::new(1 << 30),
            multiprocessors: None,
            node: "n".parse().unwrap(),
            cost_per_hour: None,
        };
        PlanningInput {
            policy: policy(policy_name).unwrap(),
            options: PolicyOptions::default(),
            reasons: PlanReasons::default(),
            problem: Problem {
                devices: vec![device; devices],
                models: models
                    .iter()
                    .map(|spec| demanded_model(spec, spec.rate))
                    .collect(),
                profiles: ProfileTable::from_csv(&csv).unwrap(),
                ..Problem::default()
            },
            current: Vec::new(),
            devices: (0..devices)
                .map(|i| format!("n/sim{i}").parse().unwrap())
                .collect(),
            rates: models
                .iter()
                .map(|spec| (spec.program.model.clone(), spec.rate))
                .collect(),
            pinned: Vec::new(),
            unattended: Vec::new(),
            explain: false,
        }
    }

    fn draft(input: PlanningInput, budget: Duration) -> DraftPlan {
        input.solve(budget).result.unwrap()
    }

    fn placed(draft: &DraftPlan) -> Vec<String> {
        let replicas = draft.replicas.iter();
        replicas
            .map(|r| format!("{} on {}", r.model, r.device))
            .collect()
    }

    #[test]
    fn where_a_policy_takes_too_long_the_fallback_plans() {
        let late = draft(input("exclusive", 2), Duration::ZERO);
        assert_eq!(late.policy, FALLBACK_POLICY);
        assert_eq!(late.fallback.unwrap().policy, "exclusive");
        let timely = draft(input("exclusive", 2), Duration::from_mins(1));
        assert_eq!((timely.policy, timely.fallback), ("exclusive", None));
    }

    #[test]
    fn what_is_pinned_stays_and_its_throughput_counts() {
        let mut input = input("exclusive", 1);
        input.pinned = vec![replica("a:1", "cordoned/sim0")];
        input
            .problem
            .models
            .retain(|model| model.id.name.as_str() == "b");
        let draft = draft(input, Duration::from_mins(1));
        assert_eq!(placed(&draft), ["a:1 on cordoned/sim0", "b:1 on n/sim0"]);
        let forecasts: Vec<f64> = draft.models.iter().map(|f| f.goodput.get()).collect();
        assert_eq!(forecasts, [10.0, 10.0]);
    }

    #[test]
    fn replicas_of_silent_nodes_stay_only_where_there_is_no_other() {
        let silent = ["a:1", "b:1"].map(|model| replica(model, "silent/sim0"));
        let mut nowhere_else = input("exclusive", 0);
        nowhere_else.unattended = silent.to_vec();
        let placement = |input| placed(&draft(input, Duration::from_mins(1)));
        assert_eq!(
            placement(nowhere_else),
            ["a:1 on silent/sim0", "b:1 on silent/sim0"]
        );
        let mut elsewhere = input("exclusive", 1);
        elsewhere.unattended = silent.to_vec();
        let placed = placement(elsewhere);
        assert_eq!(placed.len(), 2, "{placed:?}");
        assert_eq!(
            placed.iter().filter(|text| text.contains("silent")).count(),
            1
        );
    }

    #[test]
    fn variable_dimensions_have_an_assumed_size() {
        assert_eq!(payload(&spec("a", 1.0)).as_u64(), ASSUMED_DIMENSION * 3 * 4);
    }
}
