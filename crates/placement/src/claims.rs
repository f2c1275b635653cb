//! Claims: what a model keeps, whatever others declare.
//!
//! A declared rate is often a guess. A plan for it may take a served model's place and leave all requests of that model without an
//! answer. So a problem says what each model is *measured* to need ([`DemandedModel::need`]), and a policy's plan must keep:
//!
//! * one replica of each model that some device can hold, where the memory of the devices suffices for all;
//! * the goodput that each served model has now, up to its need and up to its fair share of the devices. The fair share divides the time
//!   of the devices max-min between the needs;
//! * what a model needs more than it has now, up to its fair share, before what others only declare.
//!
//! If the plan does not, the policy is asked again with smaller rates. First the models whose rates are above what they have now
//! get less, then all models. If no such plan keeps the claims, but for a small loss, the current replicas stay, and models without
//! one get a replica where memory is left. A model that is planned for less than its rate says so in its forecast
//! ([`Shortfall::Claims`]).
//!
//! Problems without needs have no claims: policies are compared on the rates as they are.

use packhorse_cluster::{
    ByteCount, DemandedModel, DeviceIndex, ModelForecast, ModelIndex, Plan, PlannedReplica,
    Problem, RequestsPerSecond, Shortfall,
};

use crate::{bound::least_cost, candidates::Candidates, goodput};

/// The parts of the rates above the needs that are tried one after the other.
const PARTS: [f64; 2] = [0.5, 0.0];
/// The part of a claim that a plan may miss: the error of the estimate.
const TOLERANCE: f64 = 0.05;
/// The sum of the lost parts, in thousandths, from which the current replicas stay rather than that: what is less is worth a better plan.
const SERIOUS: usize = 100;
/// The rate of a model that gets as good as no requests, in requests/s.
const IDLE: f64 = 0.02;
/// The part of the devices' time that is shared out. Queues and neighbours take the rest.
const USABLE: f64 = 0.8;

/// The claims of the models of a problem.
pub(crate) struct Claims<'a> {
    problem: &'a Problem,
    /// The problem with the fair share of each need as the rate.
    fair: Problem,
    /// The current replicas that remain valid.
    current: Vec<PlannedReplica>,
    /// The goodput that each model must keep, in requests/s; none if it has no current replica.
    kept: Vec<Option<f64>>,
    /// The goodput of the current replicas at the rates of the problem, in requests/s.
    carried: Vec<f64>,
    /// True for the models that must have a replica.
    homes: Vec<bool>,
}

/// The part of the claims that a plan leaves unmet, the larger the worse.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Harm {
    /// The number of models that are served or get requests, and have no replica.
    down: usize,
    /// The sum of the parts that served models lose of what they keep, in thousandths.
    lost: usize,
    /// The number of other models that should have a replica and have none.
    homeless: usize,
    /// The sum of the parts that models which get requests lack of their fair shares while others are planned for more than theirs,
    /// in thousandths.
    behind: usize,
}

impl Harm {
    const NONE: Self = Self {
        down: 0,
        lost: 0,
        homeless: 0,
        behind: 0,
    };
}

impl<'a> Claims<'a> {
    /// Returns the claims of a problem; none if no need is known.
    pub(crate) fn new(problem: &'a Problem) -> Option<Self> {
        if problem.models.iter().all(|model| model.need.is_none()) {
            return None;
        }
        let mut fair = problem.clone();
        for (model, rate) in fair.models.iter_mut().zip(fair_shares(problem)) {
            model.rate = rate;
        }
        let current = valid_current(problem);
        let mut is_served = vec![false; problem.models.len()];
        for replica in &current {
            is_served[replica.model.0] = true;
        }
        let goodputs = |problem: &Problem| -> Vec<f64> {
            let forecasts = goodput::estimate(problem, &current);
            forecasts
                .iter()
                .map(|forecast| forecast.goodput.get())
                .collect()
        };
        let (kept, carried) = (goodputs(&fair), goodputs(problem));
        let models = problem.models.iter().zip(&is_served).zip(kept);
        let kept = models
            .map(|((model, served), kept)| (*served && model.need.is_some()).then_some(kept))
            .collect();
        Some(Self {
            homes: homes(problem),
            problem,
            fair,
            current,
            kept,
            carried,
        })
    }

    /// Has a policy make a plan that keeps the claims, as far as one is found.
    pub(crate) fn place<E>(
        &self,
        mut place: impl FnMut(&Problem) -> Result<Plan, E>,
    ) -> Result<Plan, E> {
        let mut best = place(self.problem)?;
        let mut least = self.harm(self.problem, &best.replicas);
        let growing = |model: usize| self.kept[model].is_none() || self.grows(model);
        let all = |_: usize| true;
        let cuts: [&dyn Fn(usize) -> bool; 2] = [&growing, &all];
        let rates = self.problem.models.iter().map(|model| model.rate);
        let mut tried: Vec<Vec<RequestsPerSecond>> = vec![rates.collect()];
        for (cut, part) in cuts
            .into_iter()
            .flat_map(|cut| PARTS.map(|part| (cut, part)))
        {
            if least == Harm::NONE {
                return Ok(best);
            }
            let rates = self.smaller_rates(part, cut);
            if tried.contains(&rates) {
                continue;
            }
            let problem = self.with_rates(&rates);
            tried.push(rates);
            // The budget may have ended.
            let Ok(plan) = place(&problem) else {
                break;
            };
            let harm = self.harm(&problem, &plan.replicas);
            if harm < least {
                (best, least) = (self.with_shortfalls(plan, &problem), harm);
            }
        }
        if least.down == 0 && least.lost < SERIOUS {
            return Ok(best);
        }
        match self.stay(best.policy) {
            Some(staying) if self.harm(&self.fair, &staying.replicas) < least => Ok(staying),
            _ => Ok(best),
        }
    }

    /// Returns true if a served model's rate is above what its replicas carry.
    fn grows(&self, model: usize) -> bool {
        self.problem.models[model].rate.get() > self.carried[model] * (1.0 + TOLERANCE)
    }

    /// Returns what replicas that are planned for the rates of `planned` leave unmet.
    fn harm(&self, planned: &Problem, replicas: &[PlannedReplica]) -> Harm {
        let mut rates = planned.models.iter().zip(&self.fair.models);
        let some_get_more = rates.any(|(planned, fair)| planned.rate > fair.rate);
        let mut counts = vec![0; self.kept.len()];
        for replica in replicas {
            counts[replica.model.0] += 1;
        }
        let forecasts = goodput::estimate(&self.fair, replicas);
        let mut harm = Harm::NONE;
        for (model, forecast) in forecasts.iter().enumerate() {
            let kept = self.kept[model];
            let (goodput, fair) = (forecast.goodput.get(), self.fair.models[model].rate.get());
            let lacking = |of: f64| (1e3 * (1.0 - goodput / of)).ceil() as usize;
            if some_get_more && fair > IDLE && goodput < fair * (1.0 - TOLERANCE) {
                harm.behind += lacking(fair);
            }
            if counts[model] == 0 {
                if kept.is_some() || self.homes[model] && fair > IDLE {
                    harm.down += 1;
                } else if self.homes[model] {
                    harm.homeless += 1;
                }
            } else if let Some(kept) = kept.filter(|kept| *kept > IDLE)
                && goodput < kept * (1.0 - TOLERANCE)
            {
                harm.lost += lacking(kept);
            }
        }
        harm
    }

    /// Returns the rates with which the models that `is_cut` says have this part of what they ask for above their fair shares.
    fn smaller_rates(&self, part: f64, is_cut: &dyn Fn(usize) -> bool) -> Vec<RequestsPerSecond> {
        let models = self.problem.models.iter().zip(&self.fair.models);
        let rate = |(index, (model, fair)): (usize, (&DemandedModel, &DemandedModel))| {
            if model.need.is_none() || !is_cut(index) || fair.rate >= model.rate {
                return model.rate;
            }
            let (whole, least) = (model.rate.get(), fair.rate.get());
            RequestsPerSecond::new(least + part * (whole - least)).unwrap_or(model.rate)
        };
        models.enumerate().map(rate).collect()
    }

    /// Returns the problem with these rates.
    fn with_rates(&self, rates: &[RequestsPerSecond]) -> Problem {
        let mut problem = self.problem.clone();
        for (model, rate) in problem.models.iter_mut().zip(rates) {
            model.rate = *rate;
        }
        problem
    }

    /// Returns the plan with the reason why models are planned for less than their rates.
    fn with_shortfalls(&self, mut plan: Plan, planned: &Problem) -> Plan {
        let models = self.problem.models.iter().zip(&planned.models);
        for ((wanted, planned), forecast) in models.zip(&mut plan.models) {
            if planned.rate < wanted.rate && forecast.shortfall.is_none() {
                forecast.shortfall = Some(Shortfall::Claims {
                    planned: planned.rate,
                    rate: wanted.rate,
                });
            }
        }
        plan
    }

    /// Returns the plan of the current replicas, with a replica for each model without one where memory is left. `None` if there is nothing
    /// to keep, or replicas have duty cycles, which leave no room for others.
    fn stay(&self, policy: &'static str) -> Option<Plan> {
        let has_cycles = self
            .current
            .iter()
            .any(|replica| replica.duty_cycle.is_some());
        if self.current.is_empty() || has_cycles {
            return None;
        }
        let mut idle = self.problem.clone();
        for model in &mut idle.models {
            model.rate = RequestsPerSecond::ZERO;
        }
        let mut replicas = self.current.clone();
        goodput::place_idle_models(&idle, &Candidates::new(&idle), &mut replicas);
        goodput::sort(&mut replicas);
        let plan = Plan {
            policy,
            models: goodput::estimate(&self.fair, &replicas),
            replicas,
        };
        Some(self.with_shortfalls(plan, &self.fair))
    }
}

/// Returns the part of each model's need that its fair share of the devices carries; the rate where no need is known.
fn fair_shares(problem: &Problem) -> Vec<RequestsPerSecond> {
    let needed = |model: &DemandedModel| {
        let rate = model.rate.get();
        model.need.map_or(rate, |need| need.get().min(rate))
    };
    // What no device serves in time takes no time of one.
    let cost = |(index, model): (ModelIndex, &DemandedModel)| {
        let cost = least_cost(problem, index, model.latency_scale);
        if cost.is_finite() { cost } else { 0.0 }
    };
    let costs: Vec<f64> = problem.models().map(cost).collect();
    let models = || problem.models.iter().map(needed).zip(&costs);
    let mut demands: Vec<f64> = models().map(|(need, cost)| need * cost).collect();
    let level = max_min_level(&mut demands, USABLE * problem.devices.len() as f64);
    let share = |(need, cost): (f64, &f64)| {
        let share = if need * cost > level {
            level / cost
        } else {
            need
        };
        RequestsPerSecond::new(share).unwrap_or(RequestsPerSecond::ZERO)
    };
    models().map(share).collect()
}

/// Returns the limit of each demand with which their sum is at most `capacity`, and the smallest are served whole.
fn max_min_level(demands: &mut [f64], capacity: f64) -> f64 {
    demands.sort_by(f64::total_cmp);
    let mut left = capacity;
    for (served, demand) in demands.iter().enumerate() {
        let level = left / (demands.len() - served) as f64;
        if *demand > level {
            return level;
        }
        left -= demand;
    }
    f64::INFINITY
}

/// Returns the current replicas without those that break a rule of the problem.
fn valid_current(problem: &Problem) -> Vec<PlannedReplica> {
    let is_valid = |replicas: &[PlannedReplica]| {
        let plan = Plan {
            policy: "",
            replicas: replicas.to_vec(),
            models: vec![UNKNOWN; problem.models.len()],
        };
        plan.violations(problem).is_empty()
    };
    let mut valid: Vec<PlannedReplica> = problem.current.clone();
    // To a policy, every model of the problem has workers of its own.
    for replica in &mut valid {
        replica.backbone = None;
    }
    if is_valid(&valid) {
        return valid;
    }
    valid.retain(|replica| is_valid(std::slice::from_ref(replica)));
    let mut kept: Vec<PlannedReplica> = Vec::new();
    for (device, _) in problem.devices() {
        let on_device = valid.iter().filter(|replica| replica.device == device);
        let on_device: Vec<PlannedReplica> = on_device.cloned().collect();
        if is_valid(&on_device) {
            kept.extend(on_device);
        }
    }
    kept
}

/// The forecast of a placement that is only checked.
const UNKNOWN: ModelForecast = ModelForecast {
    goodput: RequestsPerSecond::ZERO,
    latency: None,
    shortfall: None,
};

/// Returns for each model whether it must have a replica: if a device can hold it, and all devices together can hold all such models.
fn homes(problem: &Problem) -> Vec<bool> {
    let candidates = Candidates::new(problem);
    let smallest = |model: ModelIndex| {
        let devices = problem.devices().map(|(device, _)| device);
        let sizes = devices.flat_map(|device: DeviceIndex| candidates.on_device(model, device));
        let memory = sizes.filter_map(|candidate| candidate.memory);
        memory.min()
    };
    let smallest: Vec<Option<ByteCount>> = problem
        .models()
        .map(|(index, model)| model.need.and_then(|_| smallest(index)))
        .collect();
    let together: ByteCount = smallest.iter().flatten().copied().sum();
    let memory: ByteCount = problem.devices.iter().map(|device| device.memory).sum();
    let all_fit = together <= memory;
    smallest
        .iter()
        .map(|memory| memory.is_some() && all_fit)
        .collect()
}

#[cfg(test)]
mod tests;
