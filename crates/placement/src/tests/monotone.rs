//! More effort, more devices and a weaker SLO give no worse plan by the objective function of `goodput`.
//!
//! A larger effort has no worse plan for any problem, by construction. With a device more, or with a weaker SLO, the plan is no worse than the one that
//! runs, unless it serves a model more. A plan for an empty cluster knows no other plan: the last test states how often, and by how much, it is worse than one that
//! ignores the further device or the weaker SLO.

use std::ops::RangeInclusive;

use packhorse_cluster::{Effort, Objective, PolicyOptions};

use super::{
    random_problems::{loaded, numbered, numbers},
    *,
};
use crate::goodput::value;

/// The error of floating point.
const ROUNDING: f64 = 1e-9;
/// The error of the estimate.
const LARGE: f64 = 0.01;

/// Returns the problem of a number, with so many devices.
fn problem(number: u64, devices: RangeInclusive<usize>) -> Problem {
    numbered(number, loaded(6, devices, 0.2..2.0))
}

/// Returns the problem with a device more.
fn with_a_device_more(problem: &Problem) -> Problem {
    let mut more = problem.clone();
    more.devices.extend(problem.devices.first().cloned());
    more
}

/// Returns the problem in which one model, which depends on the number, has half of its SLO more.
fn with_a_weaker_slo(problem: &Problem, number: u64) -> Problem {
    let mut weaker = problem.clone();
    let models = weaker.models.len();
    let model = &mut weaker.models[number as usize % models];
    model.slo = model.slo * 3 / 2;
    weaker
}

fn value_of(problem: &Problem, plan: &Plan) -> f64 {
    value(problem, &plan.replicas, Objective::Goodput)
}

/// The problems of which one search with a larger effort found a worse placement than one with a smaller effort.
const MISLEADING: [u64; 2] = [9, 32];

#[test]
fn no_plan_of_a_larger_effort_is_worse() {
    for number in MISLEADING.into_iter().chain(numbers(2)) {
        let problem = problem(number, 1..=10);
        let mut least = f64::NEG_INFINITY;
        for effort in [3, 4, 8] {
            let options = PolicyOptions {
                effort: Effort::new(effort).unwrap(),
                ..PolicyOptions::default()
            };
            let plan = place_with("goodput", &problem, options);
            let value = value_of(&problem, &plan);
            assert!(
                value >= least,
                "problem {number}: {value} with effort {effort}, {least} with less"
            );
            least = value;
        }
    }
}

#[test]
fn no_plan_for_a_device_more_or_a_weaker_slo_is_worse_than_the_one_that_runs() {
    for number in numbers(14) {
        // Larger clusters than of eight devices are divided into cells.
        let problem = problem(number, 7..=12);
        let running = place("goodput", &problem);
        for mut changed in [
            with_a_device_more(&problem),
            with_a_weaker_slo(&problem, number),
        ] {
            changed.current.clone_from(&running.replicas);
            let plan = place("goodput", &changed);
            let (before, after) = (value_of(&changed, &running), value_of(&changed, &plan));
            let serves_more = plan.placed_models() > running.placed_models();
            assert!(
                after >= before - ROUNDING || serves_more,
                "problem {number}: {after} after {before}, {} devices, {:?}",
                changed.devices.len(),
                changed.models
            );
        }
    }
}

/// Checks that no value falls by more than this.
fn check(what: &str, falls: &[(u64, f64)], most: f64) {
    let count = falls.iter().filter(|(_, fall)| *fall > ROUNDING).count();
    let worst = falls.iter().max_by(|a, b| a.1.total_cmp(&b.1));
    let text = format!(
        "{what}: worse in {count} of {}; the worst problem and its fall are {worst:?}",
        falls.len()
    );
    println!("{text}");
    assert!(worst.is_none_or(|(_, fall)| *fall <= most), "{text}");
}

/// Plans problems of so many devices for an empty cluster, and those with a device more or with a weaker SLO. Returns by how much the latter plans fall behind those that ignore
/// the device or the SLO.
fn falls(usual: u64, sizes: RangeInclusive<usize>) -> [Vec<(u64, f64)>; 2] {
    let [mut devices, mut slos] = [Vec::new(), Vec::new()];
    for number in numbers(usual) {
        let problem = problem(number, sizes.clone());
        let plan = place("goodput", &problem);
        for (falls, changed) in [
            (&mut devices, with_a_device_more(&problem)),
            (&mut slos, with_a_weaker_slo(&problem, number)),
        ] {
            let ignoring = value_of(&changed, &plan);
            let found = value_of(&changed, &place("goodput", &changed));
            falls.push((number, ignoring - found));
        }
    }
    [devices, slos]
}

/// Of 300 problems, the plan was worse in 12 with a device more, by 0.0008 at most, and in 17 with a weaker SLO, by 0.0045 at most: less than the error of
/// the estimate.
#[test]
fn a_plan_for_an_empty_cluster_is_seldom_worse_with_a_device_more_or_a_weaker_slo() {
    let [devices, slos] = falls(24, 1..=7);
    check("a device more", &devices, LARGE);
    check("a weaker SLO", &slos, LARGE);
}

/// Of 120 problems, the plan was worse in 11 with a device more, by 0.0008 at most, and in 13 with a weaker SLO, by 0.019 at most.
#[test]
fn a_plan_for_an_empty_cluster_of_several_cells_is_seldom_worse() {
    let [devices, slos] = falls(24, 9..=16);
    check("a device more", &devices, LARGE);
    check("a weaker SLO", &slos, 2.0 * LARGE);
}
