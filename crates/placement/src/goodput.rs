//! `goodput`: the most requests within their SLO, by an estimate of queueing, batching, transmission and interference.
//!
//! The objective function is [`mod@score`], a function of the estimate of [`crate::estimate()`]. The policy fills the devices one after the
//! other, each time with the replica that has the largest gain per load. Then the [`search()`] repeatedly empties one or two devices, fills
//! them again, and keeps improvements. It starts from the best of three placements: the current one (with further replicas that gain),
//! its own, and, in clusters that are searched as a whole, that of `first-fit` (for other objectives also the result of `goodput`). Each
//! replica that does not run yet has a cost, so that nothing moves for a small gain. If the result does not serve everything, the search
//! continues with more randomness. `tests/optimum.rs` states the loss against the best of all placements of small problems. A
//! model may have several replicas on one device: small batches that leave most multiprocessors idle run beside each other.
//!
//! Devices that the expected rates leave free get replicas for models that may get more than expected ([`surge`]).
//!
//! Large clusters are divided into [`cells`]; [`search_limits`] has the limits of their size and of the search. Then the search continues over all cells,
//! which cannot use each other's free capacity, but for the largest clusters. Cells do not see the current placement as a whole, so that it is compared with what they find together. With more effort than the default ([`PolicyOptions::effort`]) the
//! policy searches several times, and the best result is the plan: a larger effort includes all searches of a smaller one, and its plan has no
//! smaller value. If the budget ends in one of them, the plan is the best of those before.
//!
//! Models that expect no requests get one replica where memory is left, and those that expect few ([`rare_models`]) where the others lose
//! less than they gain. A model that would cost the others more than it gains gets
//! none, unless the objective is `max-min`.
//!
//! The policy is deterministic: its random numbers are the same in each run ([`random`]). Each estimate is one step of the budget. If
//! the budget ends during the search, the plan is the best placement so far.

mod batch_sizes;
mod cells;
mod complete_placement;
mod forecast;
mod idle_models;
mod random;
mod rare_models;
mod score;
mod search;
mod search_limits;
mod share_candidates;
mod surge;

use std::time::Duration;

use packhorse_cluster::{
    ByteCount, ComputeShare, ComputeShareMode, DeviceIndex, Effort, ModelForecast, ModelIndex,
    Objective, Plan, PlannedReplica, PolicyOptions, Problem,
};

use crate::{
    Budget, PlaceError, PlanningOptions, Policy, PredictError, Predictor,
    candidates::Candidates,
    estimate::{EstimateInputs, EstimatedReplica, ModelEstimate, PlacementEstimate},
    first_fit, pool,
};
pub(crate) use batch_sizes::kept_or_smallest;
use complete_placement::CompletePlacement;
pub(crate) use idle_models::place_idle_models;
#[cfg(test)]
pub(crate) use score::SURGE;
use score::Score;
use search::{Search, SearchOptions};
use search_limits::SearchLimits;

pub(crate) const NAME: &str = "goodput";

/// The least improvement for which current replicas change: the error of the estimate.
const MIN_IMPROVEMENT: f64 = 1e-2;

pub(crate) struct Goodput;

impl Policy for Goodput {
    fn place(
        &self,
        problem: &Problem,
        options: &PlanningOptions,
        budget: &mut Budget<'_>,
    ) -> Result<Plan, PlaceError> {
        let options = &options.policy;
        let candidates = Candidates::new(problem);
        let inputs = EstimateInputs::new(problem);
        let complete =
            |found| CompletePlacement::new(&inputs, &candidates, options.objective, found);
        let mut best: Option<CompletePlacement> = None;
        for effort in search_limits::efforts(options.effort) {
            let options = PolicyOptions { effort, ..*options };
            match search(problem, &candidates, &options, budget) {
                Ok(found) => {
                    let found = complete(found);
                    if best.as_ref().is_none_or(|best| found.value > best.value) {
                        best = Some(found);
                    }
                }
                Err(error) if best.is_none() => return Err(error),
                Err(_) => break,
            }
        }
        let mut best = best.expect("there is a least effort");
        if !SearchLimits::new(problem.devices.len(), Effort::DEFAULT).is_whole() {
            let current = valid_current_replicas(problem, &inputs);
            let current = PlacementEstimate::from_replicas(&inputs, &current);
            let unchanged = complete((planned_replicas(&current), current.models().to_vec()));
            if unchanged.value > best.value && unchanged.placed_models() >= best.placed_models() {
                best = unchanged;
            }
        }
        let CompletePlacement {
            mut replicas,
            estimates,
            ..
        } = best;
        sort(&mut replicas);
        Ok(Plan {
            policy: NAME,
            models: forecast::forecasts(problem, &candidates, &replicas, &estimates),
            replicas,
        })
    }

    fn predictor(&self) -> Option<&dyn Predictor> {
        Some(self)
    }

    fn forecasts(
        &self,
        problem: &Problem,
        replicas: &[PlannedReplica],
    ) -> Option<Vec<ModelForecast>> {
        Some(estimate(problem, replicas))
    }
}

impl Predictor for Goodput {
    fn latencies(
        &self,
        problem: &Problem,
        _options: &PlanningOptions,
        replicas: &[PlannedReplica],
    ) -> Result<Vec<Duration>, PredictError> {
        let inputs = EstimateInputs::new(problem);
        for (number, replica) in replicas.iter().enumerate() {
            let costs = inputs.batch_costs(replica.model.0, replica.device.0);
            if costs.is_none_or(|costs| replica.batch_size > costs.largest_batch()) {
                return Err(PredictError::Unknown {
                    replica: number,
                    model: problem.models[replica.model.0].id.clone(),
                    kind: problem.devices[replica.device.0].kind.clone(),
                    missing: "profiled batches of that size within the SLO",
                });
            }
        }
        let estimate = PlacementEstimate::from_replicas(&inputs, replicas);
        // Equal replicas of a device have equal times.
        let latency = |replica: &PlannedReplica| {
            let mut on_device = estimate.on_device(replica.device.0).iter();
            let (model, share) = (replica.model.0, replica.compute_share);
            let found = on_device.find(|other| other.matches(model, replica.batch_size, share));
            Duration::from_secs_f64(found.map_or(0.0, |found| found.full_batch_seconds))
        };
        Ok(replicas.iter().map(latency).collect())
    }
}

/// Returns the forecast of the estimate of `goodput` for each model of a problem, with the replicas of any policy.
pub fn estimate(problem: &Problem, replicas: &[PlannedReplica]) -> Vec<ModelForecast> {
    if replicas.iter().any(|replica| replica.pool.is_some()) {
        return pool::estimate(problem, replicas);
    }
    let inputs = EstimateInputs::new(problem);
    let estimate = PlacementEstimate::from_replicas(&inputs, replicas);
    let candidates = Candidates::new(problem);
    forecast::forecasts(problem, &candidates, replicas, estimate.models())
}

/// Searches with the effort of `options`, and returns the replicas found and the estimate of each model.
fn search(
    problem: &Problem,
    candidates: &Candidates<'_>,
    options: &PolicyOptions,
    budget: &mut Budget<'_>,
) -> Result<(Vec<PlannedReplica>, Vec<ModelEstimate>), PlaceError> {
    let limits = SearchLimits::new(problem.devices.len(), options.effort);
    if limits.is_whole() {
        search_whole(problem, options, limits, budget)
    } else {
        search_cells(problem, candidates, options, limits, budget)
    }
}

/// Searches a problem as a whole.
fn search_whole(
    problem: &Problem,
    options: &PolicyOptions,
    limits: SearchLimits,
    budget: &mut Budget<'_>,
) -> Result<(Vec<PlannedReplica>, Vec<ModelEstimate>), PlaceError> {
    let inputs = EstimateInputs::new(problem);
    let candidates = Candidates::new(problem);
    let score = Score::new(&inputs, options.objective);
    let mut search = Search::new(&inputs, &candidates, &score);
    search.fill_all(budget)?;
    if limits.is_whole() {
        let packed = first_fit::FirstFit.place(problem, &(*options).into(), budget)?;
        start_from_better(&mut search, &inputs, &packed.replicas, budget)?;
        // The maximum of the sum is a good start for the maximum of the least.
        if options.objective != Objective::Goodput {
            let goodput_options = PolicyOptions {
                objective: Objective::Goodput,
                ..*options
            };
            let (replicas, _) = search_whole(problem, &goodput_options, limits, budget)?;
            start_from_better(&mut search, &inputs, &replicas, budget)?;
        }
    }
    let current = valid_current_replicas(problem, &inputs);
    if !current.is_empty() {
        start_from_better(&mut search, &inputs, &current, budget)?;
    }
    improve(&mut search, limits, budget);
    if limits.is_whole() {
        let random_choice = SearchOptions {
            random_choice: true,
            ..SearchOptions::default()
        };
        improve_with(
            &mut search,
            options.objective,
            random_choice,
            limits,
            budget,
        );
    }
    if options.compute_shares == ComputeShareMode::Auto {
        let compute_shares = SearchOptions {
            compute_shares: true,
            ..SearchOptions::default()
        };
        improve_with(
            &mut search,
            options.objective,
            compute_shares,
            limits,
            budget,
        );
    }
    // If the budget ends here, the placement stays as it is.
    search.fill_all(budget).ok();
    if limits.is_whole() && options.objective == Objective::Goodput {
        surge::prepare_for_surges(&mut search, &inputs, &candidates, limits, budget);
    }
    let unchanged = PlacementEstimate::from_replicas(&inputs, &current);
    if !is_worth_changing(&unchanged, score.value(&unchanged), &search)
        || search_without_current_finds(&current, problem, options, limits, budget)
    {
        search.move_to(&unchanged);
    }
    let replicas = planned_replicas(search.current());
    let estimates = PlacementEstimate::from_replicas(&inputs, &replicas)
        .models()
        .to_vec();
    Ok((replicas, estimates))
}

fn search_cells(
    problem: &Problem,
    candidates: &Candidates<'_>,
    options: &PolicyOptions,
    limits: SearchLimits,
    budget: &mut Budget<'_>,
) -> Result<(Vec<PlannedReplica>, Vec<ModelEstimate>), PlaceError> {
    let mut all = Vec::new();
    let mut estimates = vec![ModelEstimate::UNSERVED; problem.models.len()];
    for cell in cells::divide(problem, candidates, limits.cell_size()) {
        let (replicas, found) = search_whole(&cell.problem(problem), options, limits, budget)?;
        for (&(model, part), estimate) in cell.models.iter().zip(found) {
            estimates[model] = estimates[model].plus_part(part, estimate);
        }
        all.extend(replicas.iter().map(|replica| cell.to_whole(replica)));
    }
    let found = (all, estimates);
    Ok(search_across_cells(
        problem, candidates, options, found, budget,
    ))
}

/// Continues the search over all cells of a cluster, which cannot use each other's free capacity. Where replicas run, a better placement must be better by more
/// than the error of the estimate. If the budget ends, the placement is the best so far.
fn search_across_cells(
    problem: &Problem,
    candidates: &Candidates<'_>,
    options: &PolicyOptions,
    found: (Vec<PlannedReplica>, Vec<ModelEstimate>),
    budget: &mut Budget<'_>,
) -> (Vec<PlannedReplica>, Vec<ModelEstimate>) {
    let limits = SearchLimits::across_cells(problem.devices.len(), options.effort);
    if limits.changes() == 0 {
        return found;
    }
    let inputs = EstimateInputs::new(problem);
    let score = complete_placement::score(&inputs, options.objective);
    let mut search = Search::new(&inputs, candidates, &score);
    search.move_to(&PlacementEstimate::from_replicas(&inputs, &found.0));
    let before = search.value();
    if search.fill_all(budget).is_err() {
        return found;
    }
    improve(&mut search, limits, budget);
    let least = if inputs.has_running_replicas() {
        MIN_IMPROVEMENT
    } else {
        0.0
    };
    if search.value() <= before + least {
        return found;
    }
    let replicas = planned_replicas(search.current());
    let estimate = PlacementEstimate::from_replicas(&inputs, &replicas);
    let estimates = estimate.models().to_vec();
    (replicas, estimates)
}

/// Adds to these replicas those that gain, and makes the placement the current one of the search if it is better.
fn start_from_better<'w, 'a>(
    search: &mut Search<'_, 'w, 'a>,
    inputs: &'w EstimateInputs<'a>,
    replicas: &[PlannedReplica],
    budget: &mut Budget<'_>,
) -> Result<(), PlaceError> {
    let mut best = PlacementEstimate::new(inputs);
    best.copy_from(search.current());
    let value = search.value();
    search.move_to(&PlacementEstimate::from_replicas(inputs, replicas));
    search.fill_all(budget)?;
    if search.value() <= value {
        search.move_to(&best);
    }
    Ok(())
}

/// Returns true if the placement found is better than the unchanged one, of this value, by more than the error of the estimate, or
/// serves a model that the unchanged one does not serve.
fn is_worth_changing(
    unchanged: &PlacementEstimate<'_, '_>,
    value: f64,
    found: &Search<'_, '_, '_>,
) -> bool {
    let mut models = unchanged.models().iter().zip(found.current().models());
    found.value() > value + MIN_IMPROVEMENT
        || models.any(|(now, then)| now.in_time <= 0.0 && then.in_time > 0.0)
}

/// Returns true if a search without current replicas finds the current ones: then nothing has changed since they were planned, and
/// a better placement that the search finds from them is no reason to move.
fn search_without_current_finds(
    current: &[PlannedReplica],
    problem: &Problem,
    options: &PolicyOptions,
    limits: SearchLimits,
    budget: &mut Budget<'_>,
) -> bool {
    if current.is_empty() {
        return false;
    }
    let without_current = Problem {
        current: Vec::new(),
        ..problem.clone()
    };
    let rare = rare_models::rare_models(problem);
    let requested = |mut replicas: Vec<PlannedReplica>| {
        replicas.retain(|replica| {
            let model = replica.model;
            problem.models[model.0].rate.get() > 0.0 && !rare.contains(&model)
        });
        sort(&mut replicas);
        // The search does not fill it in.
        for replica in &mut replicas {
            replica.memory = None;
        }
        replicas
    };
    search_whole(&without_current, options, limits, budget)
        .is_ok_and(|(replicas, _)| requested(replicas) == requested(current.to_vec()))
}

/// Sorts replicas into the order of a plan.
pub(crate) fn sort(replicas: &mut [PlannedReplica]) {
    let share = |replica: &PlannedReplica| replica.compute_share.map_or(0.0, ComputeShare::get);
    replicas.sort_by(|a, b| {
        (a.model, a.device, a.batch_size)
            .cmp(&(b.model, b.device, b.batch_size))
            .then(share(a).total_cmp(&share(b)))
    });
}

/// Searches until the patience without improvement or the budget ends.
fn improve(search: &mut Search<'_, '_, '_>, limits: SearchLimits, budget: &mut Budget<'_>) {
    let mut failures = 0;
    for _ in 0..limits.changes() {
        if failures >= limits.patience(search.devices(), search.serves_all_with_headroom())
            || search.devices() == 0
        {
            break;
        }
        match search.try_change(budget) {
            Ok(true) => failures = 0,
            Ok(false) => failures += 1,
            Err(_) => break,
        }
    }
}

/// Continues the search with further options if the current placement does not serve everything. Among many placements, the best
/// one by an estimate is likely one with a large error: the errors average out in a sum over models, but an improvement of the
/// least served model must exceed the error of the estimate.
fn improve_with(
    search: &mut Search<'_, '_, '_>,
    objective: Objective,
    search_options: SearchOptions,
    limits: SearchLimits,
    budget: &mut Budget<'_>,
) {
    if search.serves_all() {
        return;
    }
    let mut before = PlacementEstimate::new(search.current().inputs);
    before.copy_from(search.current());
    let value = search.value();
    search.set_options(search_options);
    improve(search, limits, budget);
    search.polish(limits.is_whole(), budget).ok();
    search.set_options(SearchOptions::default());
    let min_improvement = match objective {
        Objective::Goodput => 0.0,
        Objective::MaxMin | Objective::Blend => MIN_IMPROVEMENT,
    };
    if search.value() <= value + min_improvement {
        search.move_to(&before);
    }
}

fn planned_replicas(estimate: &PlacementEstimate<'_, '_>) -> Vec<PlannedReplica> {
    let planned = |replica: &EstimatedReplica| PlannedReplica {
        model: ModelIndex(replica.model),
        device: DeviceIndex(replica.device),
        batch_size: replica.batch,
        compute_share: replica.share,
        duty_cycle: None,
        memory: None,
        backbone: None,
        pool: None,
    };
    estimate.replicas().iter().map(planned).collect()
}

/// Returns the current replicas that remain valid: each device's in their order, as far as its memory suffices.
fn valid_current_replicas(problem: &Problem, inputs: &EstimateInputs<'_>) -> Vec<PlannedReplica> {
    let mut left: Vec<ByteCount> = problem.devices.iter().map(|device| device.memory).collect();
    let mut valid = problem.current.clone();
    valid.retain(|replica| {
        let (model, device) = (replica.model, replica.device);
        let Some(memory) = problem
            .profile(model, device)
            .and_then(|profile| profile.memory(replica.batch_size))
        else {
            return false;
        };
        let fits = inputs
            .batch_costs(model.0, device.0)
            .is_some_and(|costs| replica.batch_size <= costs.largest_batch());
        let is_valid = fits
            && replica.batch_size > 0
            && replica.duty_cycle.is_none()
            && memory <= left[device.0];
        if is_valid {
            left[device.0] = left[device.0].saturating_sub(memory);
        }
        is_valid
    });
    valid
}

/// Returns the largest value of some placements by the objective function that compares plans.
#[cfg(test)]
pub(crate) fn best_value(
    problem: &Problem,
    placements: &mut dyn Iterator<Item = Vec<PlannedReplica>>,
    objective: Objective,
) -> f64 {
    let inputs = EstimateInputs::new(problem);
    let score = complete_placement::score(&inputs, objective);
    let values = placements
        .map(|replicas| score.value(&PlacementEstimate::from_replicas(&inputs, &replicas)));
    values.fold(f64::NEG_INFINITY, f64::max)
}

/// Returns the value of a placement by the objective function that compares plans.
#[cfg(test)]
pub(crate) fn value(problem: &Problem, replicas: &[PlannedReplica], objective: Objective) -> f64 {
    best_value(problem, &mut [replicas.to_vec()].into_iter(), objective)
}
