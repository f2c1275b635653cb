//! `goodput`: as many requests within their SLO as an estimate of queueing, batching, transmission and interference promises.
//!
//! The estimate is [`crate::estimate`]'s; what is made as large as it can be, its [`score`]. Devices are filled one after the other,
//! each time with the replica that gains most per load; then the [`search`] empties one or two devices again and again, fills them
//! anew and keeps what is better. It starts from the best of three placements: what runs now (with what pays added), its own and, in
//! clusters that are not cut, `first-fit`'s (for other objectives also the one that `goodput` ends with), and charges for every
//! replica that does not run yet, so that nothing moves for little. Where not all is served, it goes on with more left to chance.
//! `tests/optimum.rs` says what it still loses against the best of all placements of small problems. A model may have several replicas
//! on one device: small batches that leave most multiprocessors idle run beside each other.
//!
//! Large clusters are cut into [`cells`]; what is large, and how long is searched, is [`depth`]'s. With more effort than usual
//! ([`PolicyOptions::effort`]) the whole is done again, and what is worth more is the plan: a budget that ends meanwhile leaves the
//! usual one.
//!
//! Models that nobody asks for get one replica where memory is left. A model that would cost the others more than it gains gets
//! none, unless the objective is `max-min`.
//!
//! Deterministic: what looks random is not ([`random`]). The budget is spent one step per estimate; where it ends during the
//! search, the best so far is the plan.

mod cells;
mod depth;
mod forecast;
mod idle;
mod random;
mod score;
mod search;
mod shares;

use std::time::Duration;

use packhorse_cluster::{
    ByteCount, ComputeShare, DeviceIndex, ModelForecast, ModelIndex, Plan, PlannedReplica, Problem,
};

use crate::{
    Budget, ComputeShares, Effort, Objective, PlaceError, Policy, PolicyOptions, PredictError,
    Predictor,
    candidates::Candidates,
    estimate::{Fate, Outlook, World},
    first_fit,
};
use depth::Depth;
use score::Score;
use search::{Liberties, Search};

pub(crate) const NAME: &str = "goodput";

/// What runs stays unless something is better by this much: the estimate is not good for less.
const SETTLED: f64 = 1e-2;

pub(crate) struct Goodput;

impl Policy for Goodput {
    fn place(
        &self,
        problem: &Problem,
        options: &PolicyOptions,
        budget: &mut Budget<'_>,
    ) -> Result<Plan, PlaceError> {
        let candidates = Candidates::new(problem);
        let usual = PolicyOptions {
            effort: Effort::USUAL,
            ..options.clone()
        };
        let (mut replicas, mut fates) = find(problem, &candidates, &usual, budget)?;
        if options.effort != Effort::USUAL
            && let Ok(found) = find(problem, &candidates, options, budget)
            && is_better(problem, options.objective, &found.0, &replicas)
        {
            (replicas, fates) = found;
        }
        idle::serve_the_idle(problem, &candidates, &mut replicas);
        sort(&mut replicas);
        Ok(forecast::plan(problem, &candidates, replicas, &fates))
    }

    fn predictor(&self) -> Option<&dyn Predictor> {
        Some(self)
    }
}

impl Predictor for Goodput {
    fn latencies(
        &self,
        problem: &Problem,
        _options: &PolicyOptions,
        replicas: &[PlannedReplica],
    ) -> Result<Vec<Duration>, PredictError> {
        let world = World::new(problem);
        for (number, replica) in replicas.iter().enumerate() {
            let service = world.service(replica.model.0, replica.device.0);
            if service.is_none_or(|service| replica.batch_size > service.largest()) {
                return Err(PredictError::Unknown {
                    replica: number,
                    model: problem.models[replica.model.0].id.clone(),
                    kind: problem.devices[replica.device.0].kind.clone(),
                    missing: "profiled batches of that size within the SLO",
                });
            }
        }
        let outlook = Outlook::of(&world, replicas);
        // Equal replicas of a device fare equally.
        let latency = |replica: &PlannedReplica| {
            let mut slots = outlook.on(replica.device.0).iter();
            let share = replica.compute_share;
            let slot = slots.find(|slot| slot.is_like(replica.model.0, replica.batch_size, share));
            Duration::from_secs_f64(slot.map_or(0.0, |slot| slot.full_seconds))
        };
        Ok(replicas.iter().map(latency).collect())
    }
}

/// What the estimate of `goodput` promises each model of a problem with replicas that anybody planned.
pub fn estimate(problem: &Problem, replicas: &[PlannedReplica]) -> Vec<ModelForecast> {
    let world = World::new(problem);
    let outlook = Outlook::of(&world, replicas);
    let candidates = Candidates::new(problem);
    forecast::plan(problem, &candidates, replicas.to_vec(), outlook.fates()).models
}

/// The replicas that a search with the effort that is asked for finds, and how the models fare with them.
fn find(
    problem: &Problem,
    candidates: &Candidates<'_>,
    options: &PolicyOptions,
    budget: &mut Budget<'_>,
) -> Result<(Vec<PlannedReplica>, Vec<Fate>), PlaceError> {
    let depth = Depth::new(problem.devices.len(), options.effort);
    if depth.is_whole() {
        solve(problem, options, depth, budget)
    } else {
        solve_cells(problem, candidates, options, depth, budget)
    }
}

/// Whether some replicas are worth more than those that were found before.
fn is_better(
    problem: &Problem,
    objective: Objective,
    found: &[PlannedReplica],
    before: &[PlannedReplica],
) -> bool {
    let world = World::new(problem);
    let score = Score::new(&world, objective);
    let value = |replicas| score.of(&Outlook::of(&world, replicas));
    value(found) > value(before)
}

/// The same for a problem that is searched as a whole.
fn solve(
    problem: &Problem,
    options: &PolicyOptions,
    depth: Depth,
    budget: &mut Budget<'_>,
) -> Result<(Vec<PlannedReplica>, Vec<Fate>), PlaceError> {
    let world = World::new(problem);
    let candidates = Candidates::new(problem);
    let score = Score::new(&world, options.objective);
    let mut search = Search::new(&world, &candidates, &score);
    search.fill_all(budget)?;
    if depth.is_whole() {
        let packed = first_fit::FirstFit.place(problem, options, budget)?;
        start_from_better(&mut search, &world, &packed.replicas, budget)?;
        // To raise the least, one begins best where the sum is large.
        if options.objective != Objective::Goodput {
            let plain = PolicyOptions {
                objective: Objective::Goodput,
                ..options.clone()
            };
            let (replicas, _) = solve(problem, &plain, depth, budget)?;
            start_from_better(&mut search, &world, &replicas, budget)?;
        }
    }
    let running = sound(problem, &world);
    if !running.is_empty() {
        start_from_better(&mut search, &world, &running, budget)?;
    }
    improve(&mut search, depth, budget);
    if depth.is_whole() {
        let liberties = Liberties {
            chance: true,
            ..Liberties::default()
        };
        venture(&mut search, options.objective, liberties, depth, budget);
    }
    if options.compute_shares == ComputeShares::Auto {
        let liberties = Liberties {
            shares: true,
            ..Liberties::default()
        };
        venture(&mut search, options.objective, liberties, depth, budget);
    }
    // Out of steps by now, it is as good as it is.
    search.fill_all(budget).ok();
    let stay = Outlook::of(&world, &running);
    if !is_worth_changing(&stay, score.of(&stay), &search)
        || is_what_it_comes_to(&running, problem, options, depth, budget)
    {
        search.go_to(&stay);
    }
    let replicas = replicas(search.here());
    let fates = Outlook::of(&world, &replicas).fates().to_vec();
    Ok((replicas, fates))
}

fn solve_cells(
    problem: &Problem,
    candidates: &Candidates<'_>,
    options: &PolicyOptions,
    depth: Depth,
    budget: &mut Budget<'_>,
) -> Result<(Vec<PlannedReplica>, Vec<Fate>), PlaceError> {
    let mut all = Vec::new();
    let mut fates = vec![Fate::UNSERVED; problem.models.len()];
    for cell in cells::cells(problem, candidates, depth.cell()) {
        let (replicas, of_cell) = solve(&cell.problem(problem), options, depth, budget)?;
        for (&(model, part), fate) in cell.models.iter().zip(of_cell) {
            fates[model] = fates[model].and(part, fate);
        }
        all.extend(replicas.iter().map(|replica| cell.outside(replica)));
    }
    Ok((all, fates))
}

/// Goes to these replicas, with what pays beside them, if that is better than where the search is.
fn start_from_better<'w, 'a>(
    search: &mut Search<'_, 'w, 'a>,
    world: &'w World<'a>,
    replicas: &[PlannedReplica],
    budget: &mut Budget<'_>,
) -> Result<(), PlaceError> {
    let mut best = Outlook::new(world);
    best.copy(search.here());
    let value = search.value();
    search.go_to(&Outlook::of(world, replicas));
    search.fill_all(budget)?;
    if search.value() <= value {
        search.go_to(&best);
    }
    Ok(())
}

/// Whether what was found is better than to stay by more than an estimate is good for, or serves a model that is not served now.
fn is_worth_changing(stay: &Outlook<'_, '_>, worth: f64, found: &Search<'_, '_, '_>) -> bool {
    let mut fates = stay.fates().iter().zip(found.here().fates());
    found.value() > worth + SETTLED
        || fates.any(|(now, then)| now.fraction <= 0.0 && then.fraction > 0.0)
}

/// Whether a search that knows of nothing running ends where these replicas are: then nothing has changed since they were planned, and
/// what they make possible to find is no reason to move either.
fn is_what_it_comes_to(
    running: &[PlannedReplica],
    problem: &Problem,
    options: &PolicyOptions,
    depth: Depth,
    budget: &mut Budget<'_>,
) -> bool {
    if running.is_empty() {
        return false;
    }
    let afresh = Problem {
        current: Vec::new(),
        ..problem.clone()
    };
    let asked = |mut replicas: Vec<PlannedReplica>| {
        replicas.retain(|replica| problem.models[replica.model.0].rate.get() > 0.0);
        sort(&mut replicas);
        replicas
    };
    solve(&afresh, options, depth, budget)
        .is_ok_and(|(replicas, _)| asked(replicas) == asked(running.to_vec()))
}

/// Into the order of a plan.
fn sort(replicas: &mut [PlannedReplica]) {
    let share = |replica: &PlannedReplica| replica.compute_share.map_or(0.0, ComputeShare::get);
    replicas.sort_by(|a, b| {
        (a.model, a.device, a.batch_size)
            .cmp(&(b.model, b.device, b.batch_size))
            .then(share(a).total_cmp(&share(b)))
    });
}

/// Searches until nothing better was found for long, or the budget ends.
fn improve(search: &mut Search<'_, '_, '_>, depth: Depth, budget: &mut Budget<'_>) {
    let mut vain = 0;
    for _ in 0..depth.changes() {
        if vain >= depth.patience(search.devices(), search.serves_all_with_headroom())
            || search.devices() == 0
        {
            break;
        }
        match search.improve(budget) {
            Ok(true) => vain = 0,
            Ok(false) => vain += 1,
            Err(_) => break,
        }
    }
}

/// Searches on with liberties, which find what a careful search has no way to, where not all is served. The best of many placements by
/// an estimate is the one that it errs most about: in a sum over the models that levels out, but a raise of the least must be more
/// than the estimate is good for.
fn venture(
    search: &mut Search<'_, '_, '_>,
    objective: Objective,
    liberties: Liberties,
    depth: Depth,
    budget: &mut Budget<'_>,
) {
    if search.serves_all() {
        return;
    }
    let mut careful = Outlook::new(search.here().world);
    careful.copy(search.here());
    let value = search.value();
    search.allow(liberties);
    improve(search, depth, budget);
    search.polish(depth.is_whole(), budget).ok();
    search.allow(Liberties::default());
    let worth = match objective {
        Objective::Goodput => 0.0,
        Objective::MaxMin | Objective::Blend => SETTLED,
    };
    if search.value() <= value + worth {
        search.go_to(&careful);
    }
}

fn replicas(outlook: &Outlook<'_, '_>) -> Vec<PlannedReplica> {
    let planned = |slot: &crate::estimate::Slot| PlannedReplica {
        model: ModelIndex(slot.model),
        device: DeviceIndex(slot.device),
        batch_size: slot.batch,
        compute_share: slot.share,
        duty_cycle: None,
    };
    outlook.slots().iter().map(planned).collect()
}

/// What runs now, as far as it may go on: each device's replicas in their order while its memory lasts.
fn sound(problem: &Problem, world: &World<'_>) -> Vec<PlannedReplica> {
    let mut left: Vec<ByteCount> = problem.devices.iter().map(|device| device.memory).collect();
    let mut sound = problem.current.clone();
    sound.retain(|replica| {
        let (model, device) = (replica.model, replica.device);
        let Some(memory) = problem
            .profile(model, device)
            .and_then(|profile| profile.memory(replica.batch_size))
        else {
            return false;
        };
        let fits = world
            .service(model.0, device.0)
            .is_some_and(|service| replica.batch_size <= service.largest());
        let may = fits
            && replica.batch_size > 0
            && replica.duty_cycle.is_none()
            && memory <= left[device.0];
        if may {
            left[device.0] = left[device.0].saturating_sub(memory);
        }
        may
    });
    sound
}

/// What the best of some placements is worth by the measure of the search.
#[cfg(test)]
pub(crate) fn best_value(
    problem: &Problem,
    placements: &mut dyn Iterator<Item = Vec<PlannedReplica>>,
    objective: Objective,
) -> f64 {
    let world = World::new(problem);
    let score = Score::new(&world, objective);
    let values = placements.map(|replicas| score.of(&Outlook::of(&world, &replicas)));
    values.fold(f64::NEG_INFINITY, f64::max)
}

/// What a placement is worth by it.
#[cfg(test)]
pub(crate) fn value(problem: &Problem, replicas: &[PlannedReplica], objective: Objective) -> f64 {
    best_value(problem, &mut [replicas.to_vec()].into_iter(), objective)
}
