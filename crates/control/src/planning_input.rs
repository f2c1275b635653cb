//! The input of a placement policy, and the draft that its plan becomes.

use std::collections::{BTreeMap, BTreeSet};

use packhorse_cluster::{
    DeviceId, DeviceKind, Mixed, ModelForecast, ModelId, ModelName, Percent, Plan, PlannedReplica,
    PolicyOptions, Problem, ReplicaSpec, RequestsPerSecond, VariantMix,
};

use crate::{
    backbones::{Backbone, MergedProblem},
    event::{Comparison, Solution, SolveError, total},
    plan_reason::PlanReasons,
    planning_trouble::PlanningError,
    record::Forecast,
};

/// The input of a placement policy, with the names behind the problem's indices.
#[derive(Clone, Debug, PartialEq)]
pub struct PlanningInput {
    /// The name of the policy to plan with.
    pub policy: String,
    /// The policy's options.
    pub options: PolicyOptions,
    /// The reasons for which the plan is made.
    pub reasons: PlanReasons,
    /// The problem.
    pub problem: Problem,
    /// The names of the problem's devices, in the problem's order.
    pub devices: Vec<DeviceId>,
    /// The kinds of the devices of `pinned` and `retained` and of the problem.
    pub kinds: BTreeMap<DeviceId, DeviceKind>,
    /// The full rates of all models to forecast, including those that are not in the problem.
    pub rates: BTreeMap<ModelId, RequestsPerSecond>,
    /// The families of the cluster, whose rates may be spread over their variants in another way: see [`PlanningInput::at`].
    pub families: Vec<FamilyDemand>,
    /// The backbones that models of the cluster share.
    pub backbones: Vec<Backbone>,
    /// The replicas that stay whatever the policy decides: those of cordoned nodes.
    pub pinned: Vec<ReplicaSpec>,
    /// The replicas that stay unless the policy places their model: those of draining nodes, and those that still serve on nodes
    /// whose lease has expired.
    pub retained: Vec<ReplicaSpec>,
}

/// The requests for a family, which any of its variants may answer.
#[derive(Clone, Debug, PartialEq)]
pub struct FamilyDemand {
    /// The name of the family.
    pub name: ModelName,
    /// The rate of the requests for the family.
    pub rate: RequestsPerSecond,
    /// The variants that can be served, the most accurate first.
    pub variants: Vec<VariantDemand>,
}

/// The requests for one variant alone, and who answers for it.
#[derive(Clone, Debug, PartialEq)]
pub struct VariantDemand {
    /// The accuracy of its newest version.
    pub accuracy: Percent,
    /// The rate of the requests for this variant alone.
    pub rate: RequestsPerSecond,
    /// The versions with a share of the variant's requests, and the share, of 1.
    pub shares: Vec<(ModelId, f64)>,
}

impl FamilyDemand {
    /// Returns the rates of the variants' versions when the requests for the family are spread in this way.
    pub(crate) fn rates(
        &self,
        mix: VariantMix,
    ) -> impl Iterator<Item = (&ModelId, RequestsPerSecond)> {
        let parts = mix.parts(self.variants.len());
        let variants = self.variants.iter().zip(parts);
        variants.flat_map(move |(variant, part)| {
            let rate = variant.rate.get() + part * self.rate.get();
            let shares = variant.shares.iter();
            shares.map(move |(id, share)| {
                let rate = RequestsPerSecond::new(rate * share);
                (id, rate.unwrap_or(RequestsPerSecond::ZERO))
            })
        })
    }
}

/// A plan with names, whose replicas have no identities yet.
#[derive(Clone, Debug, PartialEq)]
pub struct DraftPlan {
    /// The name of the policy that made the plan.
    pub policy: &'static str,
    /// The time that planning took, in milliseconds.
    pub solve_ms: f64,
    /// The replicas, by model, then device.
    pub replicas: Vec<ReplicaSpec>,
    /// The kinds of the replicas' devices.
    pub device_kinds: BTreeMap<DeviceId, DeviceKind>,
    /// The forecasts, by model.
    pub forecasts: Vec<Forecast>,
    /// The reason why the plan was made by the fallback policy; none if it was made by the requested one.
    pub fallback: Option<String>,
}

impl PlanningInput {
    /// Returns the input with the requests for families spread over their variants in this way.
    #[must_use]
    pub fn at(&self, mix: VariantMix) -> Self {
        let rates = self.families.iter().flat_map(|family| family.rates(mix));
        let rates = rates.map(|(id, rate)| (id.clone(), rate));
        self.with_variant_rates(&rates.collect())
    }

    /// Returns the input with these rates of the variants, such as those that a plan was made for.
    #[must_use]
    pub fn with_variant_rates(&self, rates: &BTreeMap<ModelId, RequestsPerSecond>) -> Self {
        let mut input = self.clone();
        let variants = self.families.iter().flat_map(|family| &family.variants);
        let ids = variants.flat_map(|variant| &variant.shares);
        for (id, rate) in ids.filter_map(|(id, _)| Some((id, *rates.get(id)?))) {
            input.rates.insert(id.clone(), rate);
            let pinned = self.throughput(&self.pinned, id);
            let mut models = input.problem.models.iter_mut();
            if let Some(model) = models.find(|model| model.id == *id) {
                let remaining = RequestsPerSecond::new(rate.get() - pinned);
                model.rate = remaining.unwrap_or(RequestsPerSecond::ZERO);
            }
        }
        input
    }

    /// Has a policy make the plan of the mix of variants whose predicted answers are right most often. Without families it makes one plan. To the
    /// policy, models that share a backbone are one.
    ///
    /// # Errors
    /// The error of the policy's first call.
    pub fn place<E>(
        &self,
        mut place: impl FnMut(&Problem) -> Result<Plan, E>,
    ) -> Result<Mixed<Plan>, E> {
        let mut place = |problem: &Problem| match MergedProblem::new(problem, &self.backbones) {
            Some(merged) => Ok(merged.expand(place(merged.problem())?)),
            None => place(problem),
        };
        if self.families.iter().all(|family| family.variants.len() < 2) {
            let plan = place(&self.problem)?;
            let mix = VariantMix::ACCURATE;
            return Ok(Mixed { mix, plan });
        }
        let models = self.problem.models.iter();
        let offered: f64 = models.map(|model| model.rate.get()).sum();
        let variants = self.families.iter().flat_map(|family| &family.variants);
        let accuracies = variants.flat_map(|variant| {
            let ids = variant.shares.iter().map(|(id, _)| id);
            ids.map(|id| (id, variant.accuracy.get() / 100.0))
        });
        let accuracies: BTreeMap<&ModelId, f64> = accuracies.collect();
        let value = |plan: &Plan| {
            let models = self.problem.models.iter().zip(&plan.models);
            let right = models.map(|(model, forecast)| {
                let accuracy = accuracies.get(&model.id).copied().unwrap_or(1.0);
                forecast.goodput.get() * accuracy
            });
            right.sum()
        };
        VariantMix::find(
            |mix| place(&self.at(mix).problem),
            |plan: &Plan| total(&plan.models) >= VariantMix::FULLY_SERVED * offered,
            value,
        )
    }

    /// Has the input's policy make the plan as [`Self::place`] does, and the fallback policy if that one makes none. `place` gets the name of the
    /// policy. Returns also the error of the input's policy, if the plan is not its own.
    ///
    /// # Errors
    /// The error of the last policy's first call.
    pub fn place_or_fall_back<E>(
        &self,
        fallback: &str,
        mut place: impl FnMut(&str, &Problem) -> Result<Plan, E>,
    ) -> Result<(Mixed<Plan>, Option<E>), E> {
        match self.place(|problem| place(&self.policy, problem)) {
            Err(error) if self.policy != fallback => {
                let planned = self.place(|problem| place(fallback, problem));
                planned.map(|planned| (planned, Some(error)))
            }
            planned => planned.map(|planned| (planned, None)),
        }
    }

    /// Returns the replicas that stay beside those of a plan: those of cordoned nodes, and those whose models it does not place.
    pub fn kept(&self, plan: &Plan) -> Vec<&ReplicaSpec> {
        let placed = plan.replicas.iter().map(|replica| replica.model.0);
        let placed: BTreeSet<&ModelId> =
            placed.map(|model| &self.problem.models[model].id).collect();
        let retained = self.retained.iter();
        let retained = retained.filter(|spec| !placed.contains(&spec.model));
        retained.chain(&self.pinned).collect()
    }

    /// Converts a policy's result into a draft with names, together with the replicas that stay. A plan with violations is an error.
    ///
    /// # Errors
    /// If the policy made no plan, or one that breaks a rule.
    pub fn draft(
        &self,
        solution: Result<&Solution, &SolveError>,
    ) -> Result<DraftPlan, PlanningError> {
        let solution = solution.map_err(Clone::clone)?;
        let plan = &solution.plan;
        let violations = plan.violations(&self.problem);
        if let Some(first) = violations.first() {
            return Err(PlanningError::Violations {
                policy: plan.policy,
                count: violations.len(),
                first: first.clone(),
            });
        }
        let mut replicas: Vec<ReplicaSpec> = plan.replicas.iter().map(|r| self.named(r)).collect();
        replicas.extend(self.kept(plan).into_iter().cloned());
        replicas.sort_by(|a, b| (&a.model, &a.device).cmp(&(&b.model, &b.device)));
        let kind = |spec: &ReplicaSpec| {
            let kind = self.kinds.get(&spec.device)?;
            Some((spec.device.clone(), kind.clone()))
        };
        Ok(DraftPlan {
            policy: plan.policy,
            solve_ms: solution.solve_ms,
            device_kinds: replicas.iter().filter_map(kind).collect(),
            forecasts: self.forecasts(plan),
            replicas,
            fallback: solution.fallback.clone(),
        })
    }

    /// Estimates the goodput of a plan and of the current replicas. `None` if there are none to compare with, or the plan is adopted
    /// or rejected without a comparison.
    pub fn compare(
        &self,
        plan: &Plan,
        estimate: impl Fn(&Problem, &[PlannedReplica]) -> Vec<ModelForecast>,
    ) -> Option<Comparison> {
        let problem = &self.problem;
        let is_judged = self.reasons.all_observations();
        if !is_judged || problem.current.is_empty() || !plan.violations(problem).is_empty() {
            return None;
        }
        let current = Plan {
            policy: plan.policy,
            replicas: problem.current.clone(),
            models: plan.models.clone(),
        };
        // Where the current replicas are no longer valid, there is nothing to keep.
        if !current.violations(problem).is_empty() {
            return None;
        }
        let merged = MergedProblem::new(problem, &self.backbones);
        let estimate = |replicas: &[PlannedReplica]| match &merged {
            Some(merged) if replicas.iter().any(|replica| replica.backbone.is_some()) => {
                let forecasts = estimate(merged.problem(), &merged.collapse(replicas));
                merged.expand_forecasts(&forecasts)
            }
            _ => estimate(problem, replicas),
        };
        Some(Comparison {
            proposed: estimate(&plan.replicas),
            current: estimate(&current.replicas),
        })
    }

    /// Returns what a function says of each model of a plan. Models that share a worker are one model to it.
    pub fn of_models<T: Clone>(
        &self,
        plan: &Plan,
        function: impl FnOnce(&Problem, &Plan) -> Vec<T>,
    ) -> Vec<T> {
        let shares = plan
            .replicas
            .iter()
            .any(|replica| replica.backbone.is_some());
        match MergedProblem::new(&self.problem, &self.backbones) {
            Some(merged) if shares => merged.of_models(plan, function),
            _ => function(&self.problem, plan),
        }
    }

    /// Converts a planned replica into one with names.
    fn named(&self, replica: &PlannedReplica) -> ReplicaSpec {
        ReplicaSpec {
            model: self.problem.models[replica.model.0].id.clone(),
            device: self.devices[replica.device.0].clone(),
            batch_size: replica.batch_size,
            compute_share: replica.compute_share,
            duty_cycle: replica.duty_cycle,
            memory: match replica.pool {
                // One that is not on the device takes nothing of it.
                Some(place) => Some(place.resident_bytes().unwrap_or_default()),
                None => replica.memory.or_else(|| {
                    let profile = self.problem.profile(replica.model, replica.device)?;
                    profile.memory(replica.batch_size)
                }),
            },
            backbone: replica.backbone,
            pool: replica.pool,
        }
    }

    /// Returns the forecasts of a plan and the replicas that stay, for all models.
    fn forecasts(&self, plan: &Plan) -> Vec<Forecast> {
        let ids = self.problem.models.iter().map(|model| &model.id);
        let planned: BTreeMap<&ModelId, _> = ids.zip(&plan.models).collect();
        self.rates
            .iter()
            .map(|(model, rate)| {
                let forecast = planned.get(model);
                let pinned = self.throughput(&self.pinned, model);
                let goodput = forecast.map_or(0.0, |forecast| forecast.goodput.get()) + pinned;
                Forecast {
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

    /// Returns the rows per second that the replicas of a model compute with full batches.
    pub fn throughput(&self, replicas: &[ReplicaSpec], model: &ModelId) -> f64 {
        let of_model = replicas.iter().filter(|spec| spec.model == *model);
        of_model
            .filter_map(|spec| {
                let kind = self.kinds.get(&spec.device)?;
                let profile = self.problem.profiles.get(model, kind)?;
                let seconds = profile.latency(spec.batch_size).as_secs_f64();
                let shares_worker = |other: &&ReplicaSpec| {
                    other.backbone == spec.backbone && other.device == spec.device
                };
                let sharers = match spec.backbone {
                    Some(_) => replicas.iter().filter(shares_worker).count(),
                    None => 1,
                };
                Some(f64::from(spec.batch_size) / seconds / sharers as f64)
            })
            .sum()
    }
}
