//! The remedies of models that are short, on random problems: each serves its model, and no smaller change of its kind does.

use std::collections::BTreeMap;

use packhorse_cluster::{Change, Priority, Remedy};

use super::{
    explain::{changed, explained},
    goodput::estimated_fractions,
    random_problems::{loaded, numbered, numbers},
    *,
};

/// The part of a model's requests in time from which it is served.
const SERVED: f64 = 0.99;
/// The number of problems, each with a short model or none.
const PROBLEMS: u64 = 6;
/// The number of smaller changes of a kind that are tried, evenly between none and the remedy.
const SMALLER: u32 = 4;

/// Returns the part of a model's requests that is in time with the plan of a changed problem, by the plan's forecast and by the estimate: a plan with claims forecasts
/// the rates that it is for, which may be less than those of the problem.
fn forecast(problem: &Problem, model: usize, change: &Change) -> f64 {
    let problem = changed(problem, model, change);
    let plan = place("goodput", &problem);
    let forecast = plan.models[model].goodput.get() / problem.models[model].rate.get();
    forecast.min(estimated_fractions(&problem, &plan.replicas)[model])
}

/// Returns smaller changes of the same kind: the one that is a step smaller, and some between none and it.
fn smaller(problem: &Problem, model: usize, change: &Change) -> Vec<Change> {
    let demanded = &problem.models[model];
    let parts = || (1..SMALLER).map(|part| f64::from(part) / f64::from(SMALLER));
    match change {
        Change::AddDevices { kind, count } => { 1..*count }
            .map(|count| Change::AddDevices {
                kind: kind.clone(),
                count,
            })
            .collect(),
        Change::Slo { slo } => {
            // The search ends at a fiftieth of the SLO, which it gives in three digits.
            let step = slo.mul_f64(0.03);
            let most = slo.saturating_sub(step).saturating_sub(demanded.slo);
            let longer = parts().chain([1.0]);
            longer
                .map(|part| demanded.slo + most.mul_f64(part))
                .filter(|slo| *slo > demanded.slo)
                .map(|slo| Change::Slo { slo })
                .collect()
        }
        Change::MaxBatchSize { max_batch_size } => {
            let sizes = [1, 4, 16].into_iter();
            let larger = sizes.filter(|size| size > max_batch_size && *size < 16);
            larger
                .map(|max_batch_size| Change::MaxBatchSize { max_batch_size })
                .collect()
        }
        Change::Priority { priority } => (0..10)
            .map(|number| Priority::new(number).unwrap())
            .filter(|lower| *lower > demanded.priority && lower < priority)
            .map(|priority| Change::Priority { priority })
            .collect(),
        Change::Rate { rate } => {
            // The search ends at a hundredth of the rate.
            let least_cut = 1.0 - rate.get() / demanded.rate.get() - 0.01;
            let cuts = parts().chain([1.0]).map(|part| part * least_cut);
            cuts.filter(|cut| *cut > 1e-6)
                .map(|cut| Change::Rate {
                    rate: RequestsPerSecond::new(demanded.rate.get() * (1.0 - cut)).unwrap(),
                })
                .collect()
        }
    }
}

fn kind_of(remedy: &Remedy) -> &'static str {
    match remedy.change {
        Change::AddDevices { .. } => "devices",
        Change::Slo { .. } => "SLO",
        Change::MaxBatchSize { .. } => "batch size",
        Change::Rate { .. } => "rate",
        Change::Priority { .. } => "priority",
    }
}

/// Returns a problem of a number, with what is planned running, as at a gateway. Every third one has needs and priorities.
fn problem(number: u64) -> Problem {
    let mut problem = numbered(number, loaded(3, 1..=3, 1.0..2.5));
    if number.is_multiple_of(3) {
        for (index, model) in (0_u32..).zip(&mut problem.models) {
            model.need = Some(model.rate);
            model.priority = Priority::new(4 + (number as u32 / 3 + index) % 3).unwrap();
        }
    }
    problem.current = place("goodput", &problem).replicas;
    problem
}

/// The remedies of a kind.
#[derive(Debug, Default)]
struct Tried {
    remedies: usize,
    serving: usize,
    /// The remedies of which a smaller change serves the model, too, as problem and model.
    not_the_smallest: Vec<(u64, usize)>,
    /// Those that do not serve it by the forecast.
    not_serving: Vec<(u64, usize)>,
}

/// All 58 remedies of the first 30 random problems served their model by the forecast and by the estimate of the new plan, and of none a smaller change that was tried
/// served it, too. That is no proof: a plan for fewer requests or more devices may be worse.
#[test]
fn remedies_serve_short_models_and_are_the_smallest_of_their_kind() {
    let mut tried: BTreeMap<&str, Tried> = BTreeMap::new();
    let (mut short, mut helped) = (0, 0);
    for number in numbers(PROBLEMS) {
        let problem = problem(number);
        let found = explained("goodput", &problem);
        let Some(model) = found.iter().position(|model| !model.remedies.is_empty()) else {
            continue;
        };
        short += 1;
        let mut is_helped = false;
        for remedy in &found[model].remedies {
            let tried = tried.entry(kind_of(remedy)).or_default();
            tried.remedies += 1;
            let serves = forecast(&problem, model, &remedy.change) >= SERVED;
            tried.serving += usize::from(serves);
            if !serves {
                tried.not_serving.push((number, model));
            }
            is_helped |= serves;
            let smaller = smaller(&problem, model, &remedy.change);
            if { smaller.iter() }.any(|change| forecast(&problem, model, change) >= SERVED) {
                tried.not_the_smallest.push((number, model));
            }
        }
        helped += usize::from(is_helped);
    }
    println!("{short} short models, {helped} with a remedy that serves: {tried:?}");
    assert!(short > 0 && 100 * helped >= 95 * short, "{tried:?}");
    let sum = |count: fn(&Tried) -> usize| -> usize { tried.values().map(count).sum() };
    let (remedies, serving) = (sum(|of| of.remedies), sum(|of| of.serving));
    let larger = sum(|of| of.not_the_smallest.len());
    assert!(100 * serving >= 95 * remedies, "{tried:?}");
    assert!(10 * larger <= remedies, "{tried:?}");
}
