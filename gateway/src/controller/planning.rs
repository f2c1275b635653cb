//! From the state of the cluster to the next plan: when to plan, what the policy is asked, who judges its answer, and what is
//! adopted of it.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use packhorse_api::{PolicyChange, PolicyView};
use packhorse_cluster::{
    ByteCount, ComputeShare, DemandedModel, Device, DeviceId, DeviceIndex, DeviceKind, Dim,
    Generation, ModelId, ModelIndex, ModelSpec, NetworkModel, Plan, PlannedReplica, Problem,
    ProfileTable, RequestsPerSecond,
};
use packhorse_control::rollout::{EarlierReplica, PlacedReplica, Placement, place_ids};
use packhorse_placement::{Budget, DEFAULT_POLICY, PolicyEntry, UnknownPolicy};
use tokio::{task::JoinHandle, time::Instant};

use super::cluster::{Cluster, CurrentPlan, by_model};
use crate::store::{Scheduling, Settings, StoreError, StoredForecast, StoredPlan, StoredReplica};

/// Changes that come within so long of each other are planned for together.
const DEBOUNCE: Duration = Duration::from_millis(50);
/// A plan that could not be stored is tried again after this.
const RETRY: Duration = Duration::from_secs(1);
/// What a variable dimension is taken for when the size of a request is estimated.
const ASSUMED_DIMENSION: u64 = 128;
/// How long a replica is taken to need until it is ready.
const ASSUMED_LOAD_TIME: Duration = Duration::from_secs(2);

/// When to plan next, and the plan that is being made.
#[derive(Default)]
pub(super) struct Planning {
    reasons: Vec<String>,
    due: Option<Instant>,
    solve: Option<JoinHandle<Solved>>,
    /// Why the last attempt gave no plan.
    pub(super) trouble: Option<String>,
}

/// What a policy is asked, with the names behind the problem's indices.
#[derive(Clone)]
pub(super) struct Question {
    pub(super) policy: &'static PolicyEntry,
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

/// Why policy or discipline are not changed.
#[derive(Debug, thiserror::Error)]
pub enum PolicyError {
    /// There is no such policy.
    #[error("policy: {0}")]
    Unknown(#[from] UnknownPolicy),
    /// The database failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl Planning {
    /// Whether a plan is being made or will be.
    pub(super) fn is_pending(&self) -> bool {
        self.due.is_some() || self.solve.is_some()
    }

    fn take_reason(&mut self) -> String {
        const SPELT_OUT: usize = 3;
        let reasons = std::mem::take(&mut self.reasons);
        let more = reasons.len().saturating_sub(SPELT_OUT);
        let text = reasons[..reasons.len() - more].join(", ");
        match more {
            0 => text,
            more => format!("{text}, and {more} more changes"),
        }
    }
}

impl Cluster {
    /// Something has changed that a plan depends on.
    pub(super) fn request_plan(&mut self, reason: String) {
        if !self.planning.reasons.contains(&reason) {
            self.planning.reasons.push(reason);
        }
        self.planning
            .due
            .get_or_insert_with(|| Instant::now() + DEBOUNCE);
        self.changed = true;
    }

    /// When the next plan is to be made, if that only needs the time to come.
    pub(super) fn planning_due(&self) -> Option<Instant> {
        let due = self.planning.due?;
        if self.planning.solve.is_some() {
            None
        } else if self.is_settled() {
            Some(due)
        } else {
            Some(due.max(self.settled_by))
        }
    }

    /// Whether the nodes that the plan uses have reported since the gateway's start. Until then a plan would move what may well
    /// be where it should.
    fn is_settled(&self) -> bool {
        let mut used = self.plan.replicas.iter().map(|r| r.device.node());
        used.all(|node| {
            let node = self.nodes.get(node);
            node.is_none_or(|node| node.report.is_some() || node.lease == super::nodes::Lease::Lost)
        })
    }

    /// Begins to plan, if it is time.
    pub(super) fn plan_if_due(&mut self, now: Instant) {
        if self.planning_due().is_none_or(|due| due > now) {
            return;
        }
        self.planning.due = None;
        let reason = self.planning.take_reason();
        let question = self.question(self.policy, reason);
        let budget = self.config.solve_budget;
        self.planning.solve = Some(tokio::task::spawn_blocking(move || question.solve(budget)));
    }

    /// Waits for the plan that is being made; for ever, if there is none.
    pub(super) async fn solved(&mut self) -> Solved {
        let Some(solve) = &mut self.planning.solve else {
            return std::future::pending().await;
        };
        let solved = solve.await;
        self.planning.solve = None;
        solved.unwrap_or_else(|e| Solved {
            reason: String::new(),
            result: Err(format!("the policy {} failed: {e}", self.policy.name)),
        })
    }

    /// Makes the answer the current plan, if it is one and places anything differently.
    pub(super) async fn adopt(&mut self, solved: Solved) {
        self.changed = true;
        let draft = match solved.result {
            Ok(draft) => draft,
            Err(trouble) => {
                tracing::error!(trouble, "no new plan; the current one stays");
                self.planning.trouble = Some(trouble);
                return;
            }
        };
        if let Some(note) = &draft.note {
            tracing::warn!(note, "planned by the default policy");
        }
        self.planning.trouble.clone_from(&draft.note);
        let newest = self.plan.stored.as_ref().map(|plan| plan.generation);
        let generation = Generation(newest.map_or(1, |newest| newest.0 + 1));
        let (drafted, replicas) = self.identified(generation, draft.replicas);
        let ids: BTreeSet<_> = replicas.iter().map(|replica| replica.id).collect();
        let unchanged = ids == self.plan.replicas.iter().map(|r| r.id).collect();
        if unchanged && (newest.is_some() || self.models.is_empty()) {
            self.plan.forecasts = by_model(&draft.models);
            return;
        }
        let stored = StoredPlan {
            generation,
            policy: draft.policy.to_owned(),
            reason: solved.reason.clone(),
            solve_ms: draft.solve_ms,
            created_ms: StoredPlan::now_ms(),
            replicas: drafted
                .iter()
                .zip(&replicas)
                .map(|(drafted, placed)| drafted.stored(placed.id))
                .collect(),
            models: draft.models,
        };
        if let Err(e) = self.store.insert_plan(&stored).await {
            tracing::error!(error = %e, "cannot store the new plan; the current one stays");
            self.planning.trouble = Some("the new plan cannot be stored".to_owned());
            self.request_plan(solved.reason);
            self.planning.due = Some(Instant::now() + RETRY);
            return;
        }
        tracing::info!(
            plan.generation = generation.0,
            plan.replicas = replicas.len(),
            plan.policy = draft.policy,
            solve_ms = draft.solve_ms,
            reason = solved.reason,
            "adopted a new plan"
        );
        let old = std::mem::take(&mut self.plan.replicas);
        let left = old.into_iter().filter(|replica| !ids.contains(&replica.id));
        self.earlier.extend(left.map(|replica| EarlierReplica {
            replica,
            draining: false,
        }));
        self.plan = CurrentPlan {
            forecasts: by_model(&stored.models),
            stored: Some(stored),
            replicas,
        };
    }

    /// Gives the replicas of a draft identities; those whose model has gone or changed meanwhile are left out.
    fn identified(
        &self,
        generation: Generation,
        mut drafted: Vec<Drafted>,
    ) -> (Vec<Drafted>, Vec<PlacedReplica>) {
        drafted.retain(|d| {
            self.models
                .get(&d.model)
                .is_some_and(|m| m.failure.is_none())
        });
        let placements: Vec<Placement> = drafted
            .iter()
            .map(|drafted| Placement {
                program: Arc::clone(&self.models[&drafted.model].program),
                device: drafted.device.clone(),
                device_memory: drafted.device_memory,
                batch_size: drafted.batch_size,
                compute_share: drafted.compute_share,
                memory: drafted.memory,
            })
            .collect();
        let earlier = self.earlier.iter().filter(|earlier| !earlier.draining);
        let existing = self
            .plan
            .replicas
            .iter()
            .chain(earlier.map(|earlier| &earlier.replica));
        let replicas = place_ids(generation, &placements, existing);
        (drafted, replicas)
    }

    /// What a policy is to be asked now.
    pub(super) fn question(&self, policy: &'static PolicyEntry, reason: String) -> Question {
        let mut devices = Vec::new();
        let mut problem = Problem {
            profiles: self.profiles.clone(),
            discipline: self.discipline,
            network: NetworkModel::default(),
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
                problem
                    .models
                    .push(demand(&model.spec, rate.unwrap_or(RequestsPerSecond::ZERO)));
            }
        }
        Question {
            policy,
            reason,
            problem,
            current: self.kept_on(|_| true),
            devices,
            rates,
            pinned,
            unattended,
        }
    }

    /// The replicas of the current plan on certain nodes.
    fn kept_on(&self, keeps: impl Fn(&super::nodes::Node) -> bool) -> Vec<Drafted> {
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

    /// How models are placed and requests dispatched.
    pub(super) fn policy_view(&self) -> PolicyView {
        super::views::policy_view(self.policy, self.discipline)
    }

    /// Changes how models are placed and requests dispatched.
    pub(super) async fn change_policy(
        &mut self,
        change: PolicyChange,
    ) -> Result<PolicyView, PolicyError> {
        let policy = match &change.policy {
            Some(name) => packhorse_placement::policy(name)?,
            None => self.policy,
        };
        let settings = Settings {
            policy: change.policy,
            discipline: change.discipline,
        };
        self.store.put_settings(&settings).await?;
        if policy.name != self.policy.name {
            self.policy = policy;
            self.request_plan(format!("the policy became {}", policy.name));
        }
        if let Some(discipline) = change.discipline
            && discipline != self.discipline
        {
            self.discipline = discipline;
            self.published.outdated = true;
            self.request_plan(format!("the discipline became {discipline}"));
        }
        Ok(self.policy_view())
    }
}

impl Question {
    /// Asks the policy, and the default policy where that one finds nothing in time. A plan with violations is no plan.
    #[expect(
        clippy::disallowed_methods,
        reason = "policies read no clock; who asks them keeps their time"
    )]
    pub(super) fn solve(mut self, budget: Duration) -> Solved {
        self.problem.current = self.current_replicas();
        let start = std::time::Instant::now();
        let late = || start.elapsed() > budget;
        let name = self.policy.name;
        let asked = self
            .policy
            .place(&self.problem, &mut Budget::new(u64::MAX, &late));
        let (answer, note) = match asked {
            Err(e) if name != DEFAULT_POLICY => {
                let note = format!(
                    "{name} found no plan within {} ms ({e})",
                    budget.as_millis()
                );
                let default = packhorse_placement::policy(DEFAULT_POLICY)
                    .expect("the default policy is in the table");
                (
                    default.place(&self.problem, &mut Budget::unlimited()),
                    Some(note),
                )
            }
            asked => (asked, None),
        };
        let solve_ms = start.elapsed().as_secs_f64() * 1e3;
        let result = match answer {
            Ok(plan) => self.judged(&plan, solve_ms, note),
            Err(e) => Err(format!("{name} found no plan: {e}")),
        };
        Solved {
            reason: self.reason,
            result,
        }
    }

    /// What runs now of the problem's models on its devices.
    fn current_replicas(&self) -> Vec<PlannedReplica> {
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
        })
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
    fn stored(&self, id: packhorse_cluster::ReplicaId) -> StoredReplica {
        StoredReplica {
            id,
            model: self.model.clone(),
            device: self.device.clone(),
            device_kind: self.device_kind.clone(),
            batch_size: self.batch_size,
            compute_share: self.compute_share,
            duty_cycle_ms: self.duty_cycle.map(|cycle| cycle.as_secs_f64() * 1e3),
        }
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
