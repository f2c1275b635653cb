//! The smallest cluster against an exhaustive search and against the results of the thesis.

use proptest::prelude::*;

use super::{
    thesis::{MIX, VISION, devices_used, setting},
    *,
};
use crate::{
    PlanningOptions, SmallestCluster, SmallestClusterError, devices_needed, smallest_cluster,
};

fn smallest(
    name: &str,
    problem: &Problem,
    limit: usize,
) -> Result<SmallestCluster, SmallestClusterError> {
    let found = smallest_cluster(
        policy(name).unwrap(),
        problem,
        limit,
        &PlanningOptions::default(),
        &mut Budget::unlimited(),
        &mut |_| {},
    )?;
    assert_eq!(found.plan.violations(&found.problem), []);
    assert_eq!(devices_used(&found.plan), found.problem.devices.len());
    Ok(found)
}

fn serves_all(problem: &Problem, plan: &Plan) -> bool {
    let mut models = problem.models.iter().zip(&plan.models);
    models.all(|(model, forecast)| forecast.goodput.get() >= model.rate.get() * (1.0 - 1e-9))
}

fn kinds(found: &SmallestCluster) -> Vec<&str> {
    let devices = found.problem.devices.iter();
    devices.map(|device| device.kind.as_str()).collect()
}

#[test]
fn usher_needs_the_six_devices_of_figure_6_5() {
    let found = smallest("usher", &setting(1, &VISION, 500.0, 200), 64).unwrap();
    assert_eq!(found.problem.devices.len(), 6);
    assert!(found.exhaustive);
}

#[test]
fn wao_usher_needs_the_three_devices_of_figures_6_3_and_6_11() {
    let vision = setting(9, &VISION, 500.0, 200);
    let mix = setting(1, &MIX, 300.0, 300);
    for problem in [vision, mix] {
        let found = smallest("wao-usher", &problem, 64).unwrap();
        assert_eq!(found.problem.devices.len(), 3);
    }
}

#[test]
fn the_number_of_devices_in_the_template_does_not_matter() {
    let models = [("alexnet", 400.0, 200), ("bert", 400.0, 200)];
    for name in BASELINES {
        let of_one = smallest(name, &v100s(1, &models), 64).unwrap();
        let of_nine = smallest(name, &v100s(9, &models), 64).unwrap();
        assert_eq!(of_one, of_nine, "{name}");
    }
}

/// Returns the devices that are needed, beginning with this many.
fn needed(
    name: &str,
    problem: &Problem,
    near: &[(&str, usize)],
) -> Result<Vec<(String, usize)>, SmallestClusterError> {
    let near = near.iter();
    let near = near.map(|(kind, count)| (kind.parse().unwrap(), *count));
    let found = devices_needed(
        policy(name).unwrap(),
        problem,
        &near.collect(),
        &PlanningOptions::default(),
        &mut Budget::unlimited(),
    )?;
    let counts = found.into_iter();
    Ok(counts
        .map(|(kind, count)| (kind.to_string(), count))
        .collect())
}

#[test]
fn the_devices_needed_are_those_of_the_smallest_cluster_wherever_the_search_begins() {
    let problem = v100s(200, &[("bert", 50_000.0, 200)]);
    for near in [0, 1, 399, 400, 401, 402, 416, 10_000] {
        let found = needed("exclusive", &problem, &[("V100", near)]).unwrap();
        assert_eq!(found, [("V100".to_owned(), 401)], "{near}");
    }
    let kind = "V100-SXM2-16GB";
    for (name, rate) in [("first-fit", 300.0), ("goodput", 900.0), ("gslice", 900.0)] {
        let problem = setting(1, &VISION, rate, 200);
        let smallest = smallest(name, &problem, 64).unwrap().problem.devices.len();
        for near in [1, smallest, smallest + 5] {
            let found = needed(name, &problem, &[(kind, near)]).unwrap();
            assert_eq!(found, [(kind.to_owned(), smallest)], "{name} {near}");
        }
    }
}

#[test]
fn models_that_no_cluster_serves_need_no_devices() {
    // No batch of gpt2 takes less than 30 ms.
    let models = [("bert", 200.0, 200), ("gpt2", 10.0, 30)];
    let found = needed("exclusive", &v100s(1, &models), &[]).unwrap();
    assert_eq!(found, [("V100".to_owned(), 2)]);
    let none = needed("exclusive", &v100s(0, &models), &[]);
    assert_eq!(none, Err(SmallestClusterError::NoDevices));
}

#[test]
fn a_cluster_too_large_for_the_exhaustive_search_is_found_by_bisection() {
    // Batches of 16 in 128.123 ms are 124.88 requests/s: 50,000 requests/s need 401 devices.
    let found = smallest("exclusive", &v100s(1, &[("bert", 50_000.0, 200)]), 1_000).unwrap();
    assert_eq!(found.problem.devices.len(), 401);
    assert!(!found.exhaustive);
    let short = smallest("exclusive", &v100s(1, &[("bert", 50_000.0, 200)]), 400);
    assert!(
        matches!(
            short,
            Err(SmallestClusterError::Unserved { limit: 400, .. })
        ),
        "{short:?}"
    );
}

#[test]
fn models_that_no_cluster_serves_are_named_with_the_reason() {
    let problem = v100s(
        2,
        &[
            ("alexnet", 400.0, 200),
            ("bert", 1.0, 20),
            ("densenet121", 1.0, 10),
        ],
    );
    let said = smallest("exclusive", &problem, 64).unwrap_err().to_string();
    assert_eq!(
        said,
        "no cluster of up to 64 devices serves every model: \
         bert:1 (no batch size meets the SLO of 20 ms: a batch of 4 takes 34.089 ms on V100); \
         densenet121:1 (no batch size meets the SLO of 10 ms: a batch of 8 takes 16.923 ms on V100)"
    );
    let nothing = v100s(0, &[("alexnet", 400.0, 200)]);
    assert_eq!(
        smallest("exclusive", &nothing, 64),
        Err(SmallestClusterError::NoDevices)
    );
}

/// Profile rows of two kinds of devices, one about three times as fast as the other.
const TWO_KINDS: &str = "
a,Slow,8,,80,,1000,20,20,20
a,Fast,8,,26,,1000,20,20,20
b,Slow,8,,40,,1000,30,30,30
b,Fast,8,,14,,1000,30,30,30
";

fn two_kinds(costs: [Option<f64>; 2], rates: [f64; 2]) -> Problem {
    let mut devices = vec![device("Slow", 16_384), device("Fast", 16_384)];
    for (device, cost) in devices.iter_mut().zip(costs) {
        device.cost_per_hour = cost;
    }
    let names = ["a", "b"].into_iter().zip(rates);
    Problem {
        devices,
        models: names.map(|(name, rate)| model(name, rate, 200)).collect(),
        profiles: profiles(TWO_KINDS),
        ..Problem::default()
    }
}

#[test]
fn the_smallest_cluster_is_the_cheapest_if_all_kinds_have_a_cost_and_else_the_one_with_the_fewest_devices()
 {
    // A replica of a carries 100 requests/s on a slow device and 307.7 on a fast one, a replica of b 200 and 571.4.
    let cheap_slow = two_kinds([Some(1.0), Some(4.0)], [190.0, 190.0]);
    let found = smallest("exclusive", &cheap_slow, 16).unwrap();
    assert_eq!(kinds(&found), ["Slow", "Slow", "Slow"]);
    // One slow and one fast device cost less, but the model that comes first takes both.
    let cheap_fast = two_kinds([Some(1.0), Some(1.4)], [190.0, 190.0]);
    let found = smallest("exclusive", &cheap_fast, 16).unwrap();
    assert_eq!(kinds(&found), ["Fast", "Fast"]);
    for costs in [[None, None], [Some(1.0), None]] {
        let found = smallest("exclusive", &two_kinds(costs, [190.0, 190.0]), 16).unwrap();
        assert_eq!(found.problem.devices.len(), 2, "{costs:?}");
    }
}

fn cost_of(found: &SmallestCluster) -> f64 {
    let devices = found.problem.devices.iter();
    devices.filter_map(|device| device.cost_per_hour).sum()
}

/// Checks that the cheapest cluster of all kinds of a template costs no more than that of any one.
fn costs_no_more_than_one_kind(name: &str, template: &Problem) -> Result<(), TestCaseError> {
    const LIMIT: usize = 12;
    let all = smallest(name, template, LIMIT);
    for device in &template.devices {
        let mut alone = template.clone();
        alone.devices = vec![device.clone()];
        if let Ok(of_kind) = smallest(name, &alone, LIMIT) {
            let (all, of_kind) = (all.as_ref().map(cost_of), cost_of(&of_kind));
            prop_assert!(
                all.as_ref().is_ok_and(|all| *all <= of_kind + 1e-9),
                "{name}: {all:?} of all kinds, {of_kind} of {}",
                device.kind
            );
        }
    }
    Ok(())
}

#[test]
fn three_kinds_cost_the_vision_models_no_more_than_t4s_alone() {
    // The kinds of docs/experiments/prices.md.
    let mut template = setting(1, &VISION, 500.0, 75);
    for model in &mut template.models {
        model.payload = ByteCount::new(602_112);
    }
    let measured = include_str!("../../../../profiles/v100-thesis.csv");
    let estimated = include_str!("../../../../scenarios/prices/estimated.csv");
    template.profiles = ProfileTable::from_csv(measured).unwrap();
    for (model, kind, profile) in ProfileTable::from_csv(estimated).unwrap().iter() {
        template
            .profiles
            .insert(model.clone(), kind.clone(), profile.clone());
    }
    let prices = [
        ("T4", 0.526),
        ("V100-SXM2-16GB", 3.06),
        ("H100-SXM5-80GB", 12.29),
    ];
    template.devices = prices
        .map(|(kind, cost)| {
            let (memory, multiprocessors) =
                packhorse_cluster::known_kind(&kind.parse().unwrap()).unwrap();
            Device {
                memory,
                multiprocessors: Some(multiprocessors),
                cost_per_hour: Some(cost),
                ..device(kind, 16_384)
            }
        })
        .to_vec();
    let t4 = Problem {
        devices: vec![template.devices[0].clone()],
        ..template.clone()
    };
    let [all, of_t4] = [&template, &t4].map(|of| cost_of(&smallest("goodput", of, 16).unwrap()));
    assert!(all <= of_t4 + 1e-9, "{all} for {of_t4}");
}

/// Returns the cost of the cheapest cluster of up to `limit` devices, by trying all of them.
fn exhaustive(name: &str, template: &Problem, limit: usize) -> Option<f64> {
    let mut best: Option<f64> = None;
    for slow in 0..=limit {
        for fast in 0..=limit - slow {
            let mut devices = vec![template.devices[0].clone(); slow];
            devices.extend(vec![template.devices[1].clone(); fast]);
            let cost = devices
                .iter()
                .filter_map(|device| device.cost_per_hour)
                .sum();
            let problem = Problem {
                devices,
                ..template.clone()
            };
            if serves_all(&problem, &place(name, &problem)) {
                best = Some(best.map_or(cost, |best| best.min(cost)));
            }
        }
    }
    best
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn no_cheaper_cluster_serves_all(
        costs in [1_u32..9, 1_u32..9],
        rates in [0.0_f64..900.0, 0.0_f64..900.0],
        name in proptest::sample::select(vec!["exclusive", "first-fit", "nexus", "usher"]),
    ) {
        const LIMIT: usize = 7;
        let template = two_kinds(costs.map(|cost| Some(f64::from(cost))), rates);
        let best = exhaustive(name, &template, LIMIT);
        match smallest(name, &template, LIMIT) {
            Ok(found) => {
                prop_assert!(found.exhaustive);
                prop_assert!(serves_all(&found.problem, &found.plan));
                let cost: f64 = found.problem.devices.iter().filter_map(|device| device.cost_per_hour).sum();
                // The cost may be lower, because devices that the policy leaves idle are removed.
                prop_assert!(best.is_some_and(|best| cost <= best), "{cost} for {best:?}");
            }
            Err(SmallestClusterError::Unserved { .. }) => prop_assert!(best.is_none(), "{best:?}"),
            Err(e) => prop_assert!(false, "{e}"),
        }
    }

    #[test]
    fn no_cluster_of_several_kinds_costs_more_than_the_cheapest_of_one(
        costs in [1_u32..5, 1_u32..5],
        rates in [0.0_f64..900.0, 0.0_f64..900.0],
        name in proptest::sample::select(vec!["first-fit", "goodput", "nexus", "usher"]),
    ) {
        let template = two_kinds(costs.map(|cost| Some(f64::from(cost))), rates);
        costs_no_more_than_one_kind(name, &template)?;
    }

    #[test]
    fn the_same_problem_has_the_same_smallest_cluster(rates in [0.0_f64..900.0, 0.0_f64..900.0]) {
        for entry in POLICIES.iter().filter(|entry| !entry.name.ends_with("milp")) {
            let template = two_kinds([Some(1.0), Some(2.0)], rates);
            prop_assert_eq!(smallest(entry.name, &template, 8), smallest(entry.name, &template, 8));
        }
    }
}
