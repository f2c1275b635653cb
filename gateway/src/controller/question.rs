//! What a policy is asked, and what its answer comes to once it is judged.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use packhorse_cluster::{
    ByteCount, ComputeShare, Conditions, DemandedModel, Device, DeviceId, DeviceIndex, DeviceKind,
    Dim, Explanation, ModelId, ModelIndex, ModelSpec, NetworkModel, Plan, PlannedReplica, Problem,
    ProfileTable, ReplicaId, RequestsPerSecond,
};
use packhorse_placement::{Budget, FALLBACK_POLICY, PolicyEntry, PolicyOptions};

use super::{cluster::Cluster, nodes::Node};
use crate::store::{Scheduling, StoredForecast, StoredReplica};

/// What a variable dimension is taken for when the size of a request is estimated.
const ASSUMED_DIMENSION: u64 = 128;
/// How long a replica is taken to need until it is ready.
const ASSUMED_LOAD_TIME: Duration = Duration::from_secs(2);

/// What a policy is asked, with the names behind the problem's indices.
#[derive(Clone)]
pub(super) struct Question {
    pub(super) policy: &'static PolicyEntry,
    pub(super) options: PolicyOptions,
    pub(super) reason: String,
    /// All but what runs now, which follows from `current`.
    pub(super) problem: Problem,
    /// The replicas of the current plan.
    pub(super) current: Vec<Drafted>,
    /// The names of the problem's devices, in its order.
    pub(super) devices: Vec<DeviceId>,
    /// The models to forecast, whether the policy is asked about them or not, with their full rates.
    pub(super) rates: BTreeMap<ModelId, RequestsPerSecond>,
    /// Replicas that stay whatever the policy says: those of cordoned nodes.
    pub(super) pinned: Vec<Drafted>,
    /// Replicas that stay where the policy has nothing better: those that still answer on nodes whose agent is silent.
    pub(super) unattended: Vec<Drafted>,
    /// Whether the answer is to be explained.
    pub(super) explain: bool,
}

/// A policy's answer to a question, judged.
pub(super) struct Solved {
    pub(super) reason: String,
    pub(super) result: Result<Draft, String>,
}

/// A plan with names, before its replicas have identities.
pub(super) struct Draft {
    pub(super) policy: &'static str,
    pub(super) solve_ms: f64,
    /// By model, then device.
    pub(super) replicas: Vec<Drafted>,
    pub(super) models: Vec<StoredForecast>,
    /// Why it is by another policy than was asked.
    pub(super) note: Option<String>,
    /// Of the models that the policy was asked about, if that was wanted.
    pub(super) explanations: BTreeMap<ModelId, Explanation>,
}

/// A replica of a draft.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Drafted {
    pub(super) model: ModelId,
    pub(super) device: DeviceId,
    pub(super) device_kind: DeviceKind,
    pub(super) device_memory: ByteCount,
    pub(super) batch_size: u32,
    pub(super) compute_share: Option<ComputeShare>,
    pub(super) duty_cycle: Option<Duration>,
    pub(super) memory: ByteCount,
}

impl Cluster {
    /// What a policy is to be asked now.
    pub(super) fn question(&self, policy: &'static PolicyEntry, reason: String) -> Question {
        let mut devices = Vec::new();
        let mut problem = Problem {
            profiles: self.fitting.of_what_fits(&self.profiles),
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
        let pinned = self
            .kept_on(|node| node.holds_lease() && node.stored.scheduling == Scheduling::Cordoned);
        let mut unattended = self.kept_on(|node| !node.holds_lease());
        unattended.retain(|drafted| {
            let mut placed = self.plan.replicas.iter();
            placed.any(|r| {
                r.program.model == drafted.model && r.device == drafted.device && self.serves(r.id)
            })
        });
        let mut rates = BTreeMap::new();
        for (id, model) in &self.models {
            if model.failure.is_some() {
                continue;
            }
            rates.insert(id.clone(), model.spec.rate);
            let spared = throughput(&pinned, id, &self.profiles);
            if spared == 0.0 || spared < model.spec.rate.get() {
                let rate = RequestsPerSecond::new(model.spec.rate.get() - spared);
                let rate = rate.unwrap_or(RequestsPerSecond::ZERO);
                let kinds = problem.devices.iter().map(|device| &device.kind);
                let mut demanded = demand(&model.spec, rate);
                if let Some(rows) = self.fitting.limit(id, kinds) {
                    demanded.max_batch_size = demanded.max_batch_size.min(rows);
                }
                problem.models.push(demanded);
            }
        }
        Question {
            policy,
            options: self.options.clone(),
            reason,
            problem,
            current: self.kept_on(|_| true),
            devices,
            rates,
            pinned,
            unattended,
            explain: false,
        }
    }

    /// The replicas of the current plan on certain nodes.
    fn kept_on(&self, keeps: impl Fn(&Node) -> bool) -> Vec<Drafted> {
        let stored = self.plan.stored.iter().flat_map(|plan| &plan.replicas);
        let placed: BTreeMap<_, _> = self.plan.replicas.iter().map(|r| (r.id, r)).collect();
        stored
            .filter(|replica| {
                let node = self.nodes.get(replica.device.node());
                node.is_some_and(&keeps)
            })
            .filter_map(|replica| {
                let placed = placed.get(&replica.id)?;
                Some(Drafted {
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

impl Question {
    /// Asks the policy, and the fallback where that one finds nothing in time. A plan with violations is no plan.
    #[expect(
        clippy::disallowed_methods,
        reason = "policies read no clock; who asks them keeps their time"
    )]
    pub(super) fn solve(mut self, budget: Duration) -> Solved {
        self.problem.current = self.current_replicas();
        let start = std::time::Instant::now();
        let late = || start.elapsed() > budget;
        let name = self.policy.name;
        let asked = self.policy.place_with(
            &self.problem,
            &self.options,
            &mut Budget::new(u64::MAX, &late).with_time_limit(budget),
        );
        let (answer, note) = match asked {
            Err(e) if name != FALLBACK_POLICY => {
                let note = format!(
                    "{name} found no plan within {} ms ({e})",
                    budget.as_millis()
                );
                let fallback = packhorse_placement::policy(FALLBACK_POLICY)
                    .expect("the fallback is in the table");
                (
                    fallback.place_with(&self.problem, &self.options, &mut Budget::unlimited()),
                    Some(note),
                )
            }
            asked => (asked, None),
        };
        let solve_ms = start.elapsed().as_secs_f64() * 1e3;
        let result = match answer {
            Ok(plan) => self.judged(&plan, solve_ms, note).map(|draft| {
                let planner = packhorse_placement::policy(plan.policy);
                let planner = planner.expect("plans name their policy");
                Draft {
                    explanations: self.explanations(planner, &plan, budget),
                    ..draft
                }
            }),
            Err(e) => Err(format!("{name} found no plan: {e}")),
        };
        Solved {
            reason: self.reason,
            result,
        }
    }

    /// What runs now of the problem's models on its devices.
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
            })
        });
        known.collect()
    }

    fn judged(&self, plan: &Plan, solve_ms: f64, note: Option<String>) -> Result<Draft, String> {
        let violations = plan.violations(&self.problem);
        if let Some(first) = violations.first() {
            let count = violations.len();
            return Err(format!(
                "{} made a plan with {count} violations, the first: {first}",
                plan.policy
            ));
        }
        let mut replicas: Vec<Drafted> = plan.replicas.iter().map(|r| self.drafted(r)).collect();
        let placed: BTreeSet<ModelId> = replicas.iter().map(|r| r.model.clone()).collect();
        let unattended = self.unattended.iter();
        replicas.extend(
            unattended
                .filter(|drafted| !placed.contains(&drafted.model))
                .cloned(),
        );
        replicas.extend(self.pinned.iter().cloned());
        replicas.sort_by(|a, b| (&a.model, &a.device).cmp(&(&b.model, &b.device)));
        Ok(Draft {
            policy: plan.policy,
            solve_ms,
            models: self.forecasts(plan),
            replicas,
            note,
            explanations: BTreeMap::new(),
        })
    }

    /// What a plan comes to for each model, if that is asked for, and by which changes the policy would serve it; as far as it is
    /// found within the budget.
    #[expect(
        clippy::disallowed_methods,
        reason = "policies read no clock; who asks them keeps their time"
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
        let found = packhorse_placement::explain(
            policy,
            &self.problem,
            plan,
            &self.options,
            &mut Budget::new(u64::MAX, &late).with_time_limit(budget),
        );
        let found = found.expect("a policy has planned for the problem");
        let ids = self.problem.models.iter().map(|model| model.id.clone());
        ids.zip(found).collect()
    }

    fn drafted(&self, replica: &PlannedReplica) -> Drafted {
        let device = &self.problem.devices[replica.device.0];
        let profile = self.problem.profile(replica.model, replica.device);
        Drafted {
            model: self.problem.models[replica.model.0].id.clone(),
            device: self.devices[replica.device.0].clone(),
            device_kind: device.kind.clone(),
            device_memory: device.memory,
            batch_size: replica.batch_size,
            compute_share: replica.compute_share,
            duty_cycle: replica.duty_cycle,
            memory: profile
                .and_then(|profile| profile.memory(replica.batch_size))
                .unwrap_or_default(),
        }
    }

    fn forecasts(&self, plan: &Plan) -> Vec<StoredForecast> {
        let asked: BTreeMap<&ModelId, _> = self
            .problem
            .models
            .iter()
            .map(|model| &model.id)
            .zip(&plan.models)
            .collect();
        self.rates
            .iter()
            .map(|(model, rate)| {
                let forecast = asked.get(model);
                let pinned = throughput(&self.pinned, model, &self.problem.profiles);
                let goodput = forecast.map_or(0.0, |forecast| forecast.goodput.get()) + pinned;
                StoredForecast {
                    model: model.clone(),
                    rate: *rate,
                    goodput: RequestsPerSecond::new(goodput.min(rate.get())).unwrap_or(*rate),
                    shortfall: forecast.and_then(|forecast| forecast.shortfall.clone()),
                }
            })
            .collect()
    }
}

impl Drafted {
    pub(super) fn stored(&self, id: ReplicaId) -> StoredReplica {
        StoredReplica {
            id,
            model: self.model.clone(),
            device: self.device.clone(),
            device_kind: self.device_kind.clone(),
            batch_size: self.batch_size,
            compute_share: self.compute_share,
            duty_cycle_ms: self.duty_cycle_ms(),
        }
    }

    pub(super) fn duty_cycle_ms(&self) -> Option<f64> {
        self.duty_cycle.map(|cycle| cycle.as_secs_f64() * 1e3)
    }
}

fn demand(spec: &ModelSpec, rate: RequestsPerSecond) -> DemandedModel {
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

/// About how many bytes one request's inputs have.
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

/// Rows per second that replicas of a model compute with full batches.
fn throughput(replicas: &[Drafted], model: &ModelId, profiles: &ProfileTable) -> f64 {
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
    use packhorse_cluster::{ArtifactDigest, Datatype, Program, TensorSpec};
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
            queue_limit: None,
        }
    }

    fn drafted(model: &str, device: &str) -> Drafted {
        Drafted {
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

    /// Two models, `a` and `b`, and as many devices of one kind as asked for.
    fn question(policy_name: &str, devices: usize) -> Question {
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
        Question {
            policy: policy(policy_name).unwrap(),
            options: PolicyOptions::default(),
            reason: "a test".to_owned(),
            problem: Problem {
                devices: vec![device; devices],
                models: models.iter().map(|spec| demand(spec, spec.rate)).collect(),
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

    fn draft(question: Question, budget: Duration) -> Draft {
        question.solve(budget).result.unwrap()
    }

    fn placed(draft: &Draft) -> Vec<String> {
        let replicas = draft.replicas.iter();
        replicas
            .map(|r| format!("{} on {}", r.model, r.device))
            .collect()
    }

    #[test]
    fn where_a_policy_takes_too_long_the_fallback_plans() {
        let late = draft(question("exclusive", 2), Duration::ZERO);
        assert_eq!(late.policy, FALLBACK_POLICY);
        assert!(late.note.unwrap().contains("exclusive"));
        let timely = draft(question("exclusive", 2), Duration::from_mins(1));
        assert_eq!((timely.policy, timely.note), ("exclusive", None));
    }

    #[test]
    fn what_is_pinned_stays_and_its_throughput_counts() {
        let mut question = question("exclusive", 1);
        question.pinned = vec![drafted("a:1", "cordoned/sim0")];
        question
            .problem
            .models
            .retain(|model| model.id.name.as_str() == "b");
        let draft = draft(question, Duration::from_mins(1));
        assert_eq!(placed(&draft), ["a:1 on cordoned/sim0", "b:1 on n/sim0"]);
        let forecasts: Vec<f64> = draft.models.iter().map(|f| f.goodput.get()).collect();
        assert_eq!(forecasts, [10.0, 10.0]);
    }

    #[test]
    fn replicas_of_silent_nodes_stay_only_where_there_is_no_other() {
        let silent = ["a:1", "b:1"].map(|model| drafted(model, "silent/sim0"));
        let mut nowhere_else = question("exclusive", 0);
        nowhere_else.unattended = silent.to_vec();
        let draft_of = |question| placed(&draft(question, Duration::from_mins(1)));
        assert_eq!(
            draft_of(nowhere_else),
            ["a:1 on silent/sim0", "b:1 on silent/sim0"]
        );
        let mut elsewhere = question("exclusive", 1);
        elsewhere.unattended = silent.to_vec();
        let placed = draft_of(elsewhere);
        assert_eq!(placed.len(), 2, "{placed:?}");
        assert_eq!(
            placed.iter().filter(|text| text.contains("silent")).count(),
            1
        );
    }

    #[test]
    fn variable_dimensions_are_taken_for_something() {
        assert_eq!(payload(&spec("a", 1.0)).as_u64(), ASSUMED_DIMENSION * 3 * 4);
    }
}
