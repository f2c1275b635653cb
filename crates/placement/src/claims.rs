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
//! The claims of models of a higher priority come before those of lower ones ([`DemandedModel::priority`]). Among models of one
//! priority only needs are claims; over models of a lower priority the rest of a rate, such as a reservation, is one, too. So a change of a
//! model may take from served models of a lower priority what they need, and never from others. Their last replicas it takes for a need only,
//! or where memory is short.
//!
//! A policy gets the models in the order of their priorities. If the plan does not keep the claims, the policy is asked again with smaller rates.
//! First the models whose rates are above what they have now get less, then all models, as little less as a few plans can tell, and then the models of the lowest priorities as good as
//! nothing, or no replica: only as many as must give way. If no such plan keeps the claims,
//! but for a small loss, the current replicas stay, and models without one get a replica where memory is left. A model that is planned for
//! less than its rate says so in its forecast ([`Shortfall::Claims`], [`Shortfall::HigherPriority`]).
//!
//! Whatever a policy plans, no served model is *deprived*: it loses no more than a small part of what it has and needs, and keeps a replica, unless
//! another model has a claim to what it loses ([`demands`]). Any other plan, and at last the current replicas, come before one that deprives a model.
//!
//! Problems without needs have no claims: policies are compared on the rates as they are.

mod demands;
mod harm;
mod priority_order;
mod shares;

use std::{cmp::Reverse, collections::BTreeSet};

use packhorse_cluster::{
    ByteCount, DemandedModel, DeviceIndex, DeviceKind, ModelForecast, ModelIndex, Plan,
    PlannedReplica, Priority, Problem, RequestsPerSecond, Shortfall,
};

use self::{
    demands::{Demands, Goodputs, IDLE, TOLERANCE},
    harm::{Harm, Unmet},
    priority_order::PriorityOrder,
    shares::{Shares, needed, rate},
};
use crate::{candidates::Candidates, goodput};

/// The parts of the rates above the needs that are tried one after the other, until the claims are kept.
const PARTS: [f64; 2] = [0.5, 0.0];
/// The part of the rates above the needs for which no further plan is made.
const NEAR: f64 = 0.1;
/// The largest number of plans in search of the fewest models of a priority that must give way.
const SEARCH: usize = 5;
/// The largest number of groups of newcomers of which it is tried whether they may come.
const MAX_GROUPS: usize = 32;
/// The step, in thousandths, in which lost and lacking parts of models count where models of a lower priority would pay for them. A smaller
/// difference is within the error of the estimate.
const STEP: usize = 50;

/// The claims of the models of a problem.
pub(crate) struct Claims<'a> {
    problem: &'a Problem,
    /// True for the models that some device can serve.
    reachable: Vec<bool>,
    demands: Demands,
    /// The current replicas that remain valid.
    current: Vec<PlannedReplica>,
    /// The goodput that each model must keep, in requests/s; none if it has no current replica.
    kept: Vec<Option<f64>>,
    /// The goodputs of the models by the current replicas.
    now: Goodputs,
    /// The goodput of the current replicas at the rates of the problem, in requests/s.
    carried: Vec<f64>,
    /// True for the models that must have a replica.
    homes: Vec<bool>,
    /// The current replicas with those of models without one that cost nobody else anything.
    staying: Vec<PlannedReplica>,
    /// True if there are such models.
    admits_newcomers: bool,
}

/// A plan with what it leaves unmet.
struct Judged {
    plan: Plan,
    unmet: Unmet,
}

impl<'a> Claims<'a> {
    /// Returns the claims of a problem; none if no need is known.
    pub(crate) fn new(problem: &'a Problem) -> Option<Self> {
        if problem.models.iter().all(|model| model.need.is_none()) {
            return None;
        }
        let levels = levels(problem);
        let shares = Shares::new(problem, &levels);
        let models = 0..problem.models.len();
        let reachable: Vec<bool> = models.map(|model| shares.is_reachable(model)).collect();
        let needs = problem.models.iter().map(|model| rate(needed(model)));
        let homes = homes(problem, &levels);
        let demands = Demands {
            fair: with_rates(problem, &shares.fair),
            needed: with_rates(problem, &needs.collect::<Vec<_>>()),
            entitled: with_rates(problem, &shares.entitled),
            levels,
        };
        let current = valid_current(problem);
        let now = demands.goodputs(&current);
        let carried = goodput::estimate(problem, &current);
        let kept = |(index, model): (ModelIndex, &DemandedModel)| {
            let is_served = now.replicas[index.0] > 0;
            (is_served && model.need.is_some()).then_some(now.fair[index.0])
        };
        let mut claims = Self {
            homes,
            kept: problem.models().map(kept).collect(),
            carried: { carried.iter() }
                .map(|model| model.goodput.get())
                .collect(),
            problem,
            reachable,
            demands,
            staying: current.clone(),
            current,
            admits_newcomers: true,
            now,
        };
        claims.staying = claims.with_newcomers();
        claims.admits_newcomers = claims.staying.len() > claims.current.len();
        Some(claims)
    }

    /// Has a policy make a plan that keeps the claims, as far as one is found. A plan that deprives a model gives way to the current replicas.
    pub(crate) fn place<E>(
        &self,
        mut place: impl FnMut(&Problem) -> Result<Plan, E>,
    ) -> Result<Plan, E> {
        let order = PriorityOrder::new(&self.demands.levels);
        let mut place = |problem: &Problem| order.place(problem, &mut place);
        let plan = place(self.problem)?;
        let mut best = Judged {
            unmet: self.unmet(self.problem, &plan.replicas),
            plan,
        };
        if !self.is_kept(&best.unmet) {
            best = self.with_smaller_rates(best, &mut place);
        }
        if !self.is_kept(&best.unmet) {
            best = self.with_models_that_give_way(best, &mut place);
        }
        if best.unmet.is_slight() {
            return Ok(best.plan);
        }
        match self.stay(best.plan.policy) {
            Some(staying) if self.unmet(&self.demands.entitled, &staying.replicas) < best.unmet => {
                Ok(staying)
            }
            _ => Ok(best.plan),
        }
    }

    /// Returns true if all claims are met.
    fn is_kept(&self, unmet: &Unmet) -> bool {
        unmet.is_kept(self.level_count())
    }

    /// Has a policy plan with smaller rates: at first of the models whose rates are above what they have now, then of all.
    fn with_smaller_rates<E>(
        &self,
        mut best: Judged,
        place: &mut impl FnMut(&Problem) -> Result<Plan, E>,
    ) -> Judged {
        let growing = |model: usize| self.kept[model].is_none() || self.grows(model);
        let all = |_: usize| true;
        let cuts: [&dyn Fn(usize) -> bool; 2] = [&growing, &all];
        let rates = self.problem.models.iter().map(|model| model.rate);
        let mut tried: Vec<Vec<RequestsPerSecond>> = vec![rates.collect()];
        for cut in cuts {
            let mut too_much = 1.0;
            for part in PARTS {
                let rates = self.smaller_rates(part, cut);
                if !tried.contains(&rates) {
                    // The budget may have ended.
                    let Some(found) = self.place_with(part, cut, place) else {
                        return best;
                    };
                    tried.push(rates);
                    if self.is_kept(&found.unmet) {
                        return self.with_larger_rates(&best, found, cut, [part, too_much], place);
                    }
                    if found.unmet < best.unmet {
                        best = self.better(&best, found);
                    }
                }
                too_much = part;
            }
        }
        best
    }

    /// Looks for the largest part of the rates above the needs with which the claims are kept, between the first of these parts, with which a plan keeps
    /// them, and the second, which is too much.
    fn with_larger_rates<E>(
        &self,
        best: &Judged,
        keeping: Judged,
        is_cut: &dyn Fn(usize) -> bool,
        [mut kept, mut too_much]: [f64; 2],
        place: &mut impl FnMut(&Problem) -> Result<Plan, E>,
    ) -> Judged {
        let mut largest = self.better(best, keeping);
        while too_much - kept > NEAR {
            let part = f64::midpoint(kept, too_much);
            match self.place_with(part, is_cut, place) {
                Some(found) if self.is_kept(&found.unmet) => {
                    (largest, kept) = (self.better(best, found), part);
                }
                Some(_) => too_much = part,
                None => break,
            }
        }
        largest
    }

    /// Returns a plan that leaves less unmet than the best one, or that one if it brings nobody more, which shows that there is no more to be had.
    fn better(&self, best: &Judged, mut found: Judged) -> Judged {
        let brings_more = found.unmet.deprived < best.unmet.deprived
            || self.brings_more(&found.plan.replicas, &best.plan.replicas);
        if !brings_more {
            found.plan.clone_from(&best.plan);
        }
        found
    }

    /// Has a policy plan for the rates with this part of what is asked for above the needs. What its replicas carry beyond that at nobody's cost is planned
    /// for, too. `None` if there is no plan.
    fn place_with<E>(
        &self,
        part: f64,
        is_cut: &dyn Fn(usize) -> bool,
        place: &mut impl FnMut(&Problem) -> Result<Plan, E>,
    ) -> Option<Judged> {
        let at = |part: f64| with_rates(self.problem, &self.smaller_rates(part, is_cut));
        let mut problem = at(part);
        let mut plan = place(&problem).ok()?;
        let unmet = self.unmet(&problem, &plan.replicas);
        let (mut kept, mut tried) = (part, 1.0);
        while self.is_kept(&unmet) && tried - kept > NEAR {
            let more = at(tried);
            let expected = goodput::estimate(&more, &plan.replicas);
            let costs_others = { plan.models.iter().zip(&expected) }.any(|(before, then)| {
                then.goodput.get() < before.goodput.get() * (1.0 - TOLERANCE)
            });
            if !costs_others && self.is_kept(&self.unmet(&more, &plan.replicas)) {
                (problem, kept) = (more, tried);
                plan.models = expected;
            }
            // First all of it, and then halves of what is left.
            tried = f64::midpoint(kept, tried);
        }
        Some(Judged {
            unmet,
            plan: self.with_shortfalls(plan, &problem),
        })
    }

    /// Has a policy plan without the models of the lowest priorities: as few of them give way as is enough.
    fn with_models_that_give_way<E>(
        &self,
        mut best: Judged,
        place: &mut impl FnMut(&Problem) -> Result<Plan, E>,
    ) -> Judged {
        let mut way = None;
        'levels: for level in (1..self.level_count()).rev() {
            for leaves_out in [false, true] {
                if best.unmet.is_kept(level) {
                    continue;
                }
                let giving = self.giving_way(level, usize::MAX);
                let Some(found) = self.place_without(&giving, leaves_out, &mut *place) else {
                    break 'levels;
                };
                if found.unmet < best.unmet {
                    best = found;
                    way = Some((level, leaves_out));
                }
            }
        }
        let Some((level, leaves_out)) = way else {
            return best;
        };
        let enough = best.unmet.clone();
        let all = self
            .demands
            .levels
            .iter()
            .filter(|of| **of == level)
            .count();
        let (mut too_few, mut count) = (0, all);
        for _ in 0..SEARCH {
            if count - too_few <= 1 {
                break;
            }
            let fewer = usize::midpoint(too_few, count);
            let giving = self.giving_way(level, fewer);
            let Some(found) = self.place_without(&giving, leaves_out, &mut *place) else {
                break;
            };
            if found.unmet.levels[..level] > enough.levels[..level] {
                too_few = fewer;
                continue;
            }
            count = fewer;
            if found.unmet < best.unmet {
                best = found;
            }
        }
        best
    }

    /// Returns true if replicas leave less unmet than others, whatever rates either are planned for: smaller rates that bring nobody more are lost in
    /// vain. What models lack of their fair shares counts from a part on that is above the error of the estimate.
    fn brings_more(&self, replicas: &[PlannedReplica], than: &[PlannedReplica]) -> bool {
        let [harm, than] =
            [replicas, than].map(|replicas| self.unmet(self.problem, replicas).levels);
        let same_behind = |(mut harm, than): (Harm, &Harm)| {
            if harm.behind.abs_diff(than.behind) < STEP {
                harm.behind = than.behind;
            }
            harm
        };
        let harm: Vec<Harm> = harm.into_iter().zip(&than).map(same_behind).collect();
        harm < than
    }

    /// Returns true if a served model's rate is above what its replicas carry.
    fn grows(&self, model: usize) -> bool {
        self.problem.models[model].rate.get() > self.carried[model] * (1.0 + TOLERANCE)
    }

    /// Returns the number of different priorities.
    fn level_count(&self) -> usize {
        self.demands
            .levels
            .iter()
            .max()
            .map_or(0, |lowest| lowest + 1)
    }

    /// Returns what replicas that are planned for the rates of `planned` leave unmet.
    fn unmet(&self, planned: &Problem, replicas: &[PlannedReplica]) -> Unmet {
        let entitled = &self.demands.entitled;
        let mut rates = planned.models.iter().zip(&entitled.models);
        let some_get_more = rates.any(|(planned, entitled)| planned.rate > entitled.rate);
        let lowest = self.level_count().saturating_sub(1);
        let then = self.demands.goodputs(replicas);
        let mut harms = vec![Harm::NONE; self.level_count()];
        for (model, level) in self.demands.levels.iter().copied().enumerate() {
            let others_may_give = some_get_more || level < lowest;
            self.add_harm(&mut harms[level], model, others_may_give, &then);
        }
        if lowest == 0 {
            return Unmet::new(harms);
        }
        let expected = goodput::estimate(planned, replicas);
        for (model, level) in self.demands.levels.iter().copied().enumerate() {
            // What models of a lower priority need must not come from those of a higher one.
            let fair = self.demands.fair.models[model].rate.get();
            let kept = self.now.needed[model].min(fair);
            let goodput = then.needed[model];
            if kept > IDLE && goodput < kept * (1.0 - TOLERANCE) {
                harms[level].lost += lacking(goodput, kept);
            }
            let is_displaced =
                self.homes[model] && self.kept[model].is_some() && then.replicas[model] == 0;
            if is_displaced {
                for harm in &mut harms[..level] {
                    harm.displaced += 1;
                }
            }
            let claim = entitled.models[model].rate.get();
            let has_more = claim > fair && self.reachable[model];
            // With what the models of a lower priority are planned to get beside it.
            let goodput = expected[model].goodput.get();
            if has_more && goodput < claim * (1.0 - TOLERANCE) {
                harms[level].unreserved += lacking(goodput, claim);
            }
        }
        for harm in &mut harms[..lowest] {
            for part in [&mut harm.lost, &mut harm.behind, &mut harm.unreserved] {
                *part = part.next_multiple_of(STEP);
            }
        }
        Unmet::new(harms)
    }

    /// Adds what a model lacks, whatever its priority, to the harm of its priority.
    fn add_harm(&self, harm: &mut Harm, model: usize, others_may_give: bool, then: &Goodputs) {
        let kept = self.kept[model];
        let (goodput, fair) = (then.fair[model], self.demands.fair.models[model].rate.get());
        if self
            .demands
            .is_deprived(model, self.admits_newcomers, &self.now, then)
        {
            harm.deprived += 1;
        }
        let may_have = others_may_give && self.reachable[model];
        if may_have && fair > IDLE && goodput < fair * (1.0 - TOLERANCE) {
            harm.behind += lacking(goodput, fair);
        }
        if then.replicas[model] == 0 {
            if kept.is_some() || self.homes[model] && fair > IDLE {
                harm.down += 1;
            } else if self.homes[model] {
                harm.homeless += 1;
            }
        } else if let Some(kept) = kept.filter(|kept| *kept > IDLE)
            && goodput < kept * (1.0 - TOLERANCE)
        {
            harm.lost += lacking(goodput, kept);
        }
    }

    /// Returns the rates with which the models that `is_cut` says have this part of what they ask for above their claims.
    fn smaller_rates(&self, part: f64, is_cut: &dyn Fn(usize) -> bool) -> Vec<RequestsPerSecond> {
        let models = self
            .problem
            .models
            .iter()
            .zip(&self.demands.entitled.models);
        let rate = |(index, (model, entitled)): (usize, (&DemandedModel, &DemandedModel))| {
            if model.need.is_none() || !is_cut(index) || entitled.rate >= model.rate {
                return model.rate;
            }
            let (whole, least) = (model.rate.get(), entitled.rate.get());
            RequestsPerSecond::new(least + part * (whole - least)).unwrap_or(model.rate)
        };
        models.enumerate().map(rate).collect()
    }

    /// Returns for each model whether it gives way: all below this level, and this many of the level, at first those without a replica.
    fn giving_way(&self, level: usize, count: usize) -> Vec<bool> {
        let models = 0..self.demands.levels.len();
        let mut of_level: Vec<usize> = models
            .filter(|m| self.demands.levels[*m] == level)
            .collect();
        of_level.sort_by_key(|model| (self.kept[*model].is_some(), Reverse(*model)));
        let mut giving: Vec<bool> = self.demands.levels.iter().map(|of| *of > level).collect();
        for model in of_level.into_iter().take(count) {
            giving[model] = true;
        }
        giving
    }

    /// Has a policy make the plan in which these models give way. Returns it with what it leaves unmet; `None` if there is no plan.
    fn place_without<E>(
        &self,
        giving: &[bool],
        leaves_out: bool,
        place: impl FnOnce(&Problem) -> Result<Plan, E>,
    ) -> Option<Judged> {
        let problem = self.without(giving, leaves_out);
        let mut plan = place(&problem).ok()?;
        if leaves_out {
            // The problem is not the reason.
            for (forecast, gives_way) in plan.models.iter_mut().zip(giving) {
                forecast.shortfall.take_if(|_| *gives_way);
            }
        }
        Some(Judged {
            unmet: self.unmet(&problem, &plan.replicas),
            plan: self.with_shortfalls(plan, &problem),
        })
    }

    /// Returns the problem in which these models get as good as no requests, and the others what they claim. Those models can run nowhere
    /// if the problem leaves them out.
    fn without(&self, giving: &[bool], leaves_out: bool) -> Problem {
        let idle = rate(IDLE / 2.0);
        let mut problem = self.problem.clone();
        let models = problem.models.iter_mut().zip(&self.demands.entitled.models);
        for ((model, entitled), gives_way) in models.zip(giving) {
            let least = if *gives_way { idle } else { entitled.rate };
            if model.need.is_some() && least < model.rate {
                model.rate = least;
            }
        }
        // Policies keep what runs.
        let gives_way = |model: ModelIndex| giving[model.0];
        problem.current.retain(|replica| !gives_way(replica.model));
        if leaves_out {
            let kinds: BTreeSet<DeviceKind> = problem
                .devices
                .iter()
                .map(|device| device.kind.clone())
                .collect();
            for (index, model) in self.problem.models() {
                for kind in kinds.iter().filter(|_| gives_way(index)) {
                    problem.profiles.remove(&model.id, kind);
                }
            }
        }
        problem
    }

    /// Returns the plan with the reason why models are planned for less than their rates.
    fn with_shortfalls(&self, mut plan: Plan, planned: &Problem) -> Plan {
        let reserving = self.first_reserving();
        let models = self.problem.models.iter().zip(&planned.models);
        for (((wanted, planned), forecast), level) in
            models.zip(&mut plan.models).zip(&self.demands.levels)
        {
            if planned.rate >= wanted.rate || forecast.shortfall.is_some() {
                continue;
            }
            let (planned, rate, priority) = (planned.rate, wanted.rate, wanted.priority);
            let lacks_need = planned.get() < needed(wanted) * (1.0 - TOLERANCE);
            let gives_way = lacks_need || reserving.is_some_and(|first| first < *level);
            forecast.shortfall = Some(if *level > 0 && gives_way {
                Shortfall::HigherPriority {
                    planned,
                    rate,
                    priority,
                }
            } else {
                Shortfall::Claims { planned, rate }
            });
        }
        plan
    }

    /// Returns the highest priority of a model that claims more than its fair share, as the number of those above it.
    fn first_reserving(&self) -> Option<usize> {
        let demands = &self.demands;
        let models = demands.entitled.models.iter().zip(&demands.fair.models);
        let models = models.zip(&demands.levels);
        let reserving = models.filter(|((entitled, fair), _)| entitled.rate > fair.rate);
        reserving.map(|(_, level)| *level).min()
    }

    /// Returns the plan of the current replicas and of newcomers; `None` if there is nothing to keep.
    fn stay(&self, policy: &'static str) -> Option<Plan> {
        if self.current.is_empty() {
            return None;
        }
        let mut replicas = self.staying.clone();
        goodput::sort(&mut replicas);
        let entitled = &self.demands.entitled;
        let plan = Plan {
            policy,
            models: goodput::estimate(entitled, &replicas),
            replicas,
        };
        Some(self.with_shortfalls(plan, entitled))
    }

    /// Returns the current replicas with one of each model without any where memory is left, those of a higher priority first, if nobody is deprived by it.
    /// Replicas with duty cycles leave no room for others.
    fn with_newcomers(&self) -> Vec<PlannedReplica> {
        let mut replicas = self.current.clone();
        if { self.current.iter() }.any(|replica| replica.duty_cycle.is_some()) {
            return replicas;
        }
        let mut newcomers: Vec<usize> = (0..self.demands.levels.len()).collect();
        newcomers.retain(|model| self.now.replicas[*model] == 0);
        newcomers.sort_by_key(|model| self.demands.levels[*model]);
        if newcomers.is_empty() {
            return replicas;
        }
        let candidates = Candidates::new(self.problem);
        // Mostly all of them may come. Where some may not, halves are tried.
        let mut groups = vec![newcomers];
        for _ in 0..MAX_GROUPS {
            let Some(group) = groups.pop() else {
                break;
            };
            let before = replicas.len();
            let mut idle = self.problem.clone();
            for (index, model) in idle.models.iter_mut().enumerate() {
                // Only models without requests are placed.
                let is_newcomer = group.contains(&index);
                model.rate = rate(if is_newcomer { 0.0 } else { 1.0 });
            }
            goodput::place_idle_models(&idle, &candidates, &mut replicas);
            let then = self.demands.goodputs(&replicas);
            let deprives = |model: usize| {
                let (now, then) = (&self.now, &then);
                self.demands
                    .is_deprived(model, self.admits_newcomers, now, then)
            };
            if (0..self.demands.levels.len()).any(deprives) {
                replicas.truncate(before);
                let (first, second) = group.split_at(group.len() / 2);
                if !first.is_empty() {
                    groups.extend([second.to_vec(), first.to_vec()]);
                }
            }
        }
        replicas
    }
}

/// Returns the part that a goodput lacks of a claim, in thousandths.
fn lacking(goodput: f64, claim: f64) -> usize {
    (1e3 * (1.0 - goodput / claim)).ceil() as usize
}

/// Returns for each model the number of higher priorities that other models have.
fn levels(problem: &Problem) -> Vec<usize> {
    let priorities: BTreeSet<Priority> =
        problem.models.iter().map(|model| model.priority).collect();
    let level = |model: &DemandedModel| priorities.range(model.priority..).skip(1).count();
    problem.models.iter().map(level).collect()
}

/// Returns the problem with these rates.
fn with_rates(problem: &Problem, rates: &[RequestsPerSecond]) -> Problem {
    let mut problem = problem.clone();
    for (model, rate) in problem.models.iter_mut().zip(rates) {
        model.rate = *rate;
    }
    problem
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

/// Returns for each model whether it must have a replica: if a device can hold it, and all devices together can hold all such models of
/// its priority and of higher ones.
fn homes(problem: &Problem, levels: &[usize]) -> Vec<bool> {
    let candidates = Candidates::new(problem);
    let smallest = |model: ModelIndex| {
        let devices = problem.devices().map(|(device, _)| device);
        let memory = devices.filter_map(|device: DeviceIndex| {
            let sizes = candidates.on_device(model, device).iter();
            let least = sizes.filter_map(|candidate| candidate.memory).min()?;
            (least <= problem.devices[device.0].memory).then_some(least)
        });
        memory.min()
    };
    let smallest: Vec<Option<ByteCount>> = problem
        .models()
        .map(|(index, model)| model.need.and_then(|_| smallest(index)))
        .collect();
    let memory: ByteCount = problem.devices.iter().map(|device| device.memory).sum();
    let all_fit = |level: usize| {
        let models = smallest.iter().zip(levels).filter(|(_, of)| **of <= level);
        let together: ByteCount = models.filter_map(|(memory, _)| *memory).sum();
        together <= memory
    };
    let models = smallest.iter().zip(levels);
    models
        .map(|(memory, level)| memory.is_some() && all_fit(*level))
        .collect()
}

#[cfg(test)]
mod tests;
