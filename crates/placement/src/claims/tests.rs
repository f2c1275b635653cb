//! Tests of what models keep, with plans of `goodput` and of other policies.

use std::{cmp::Ordering, fmt::Write as _};

use packhorse_cluster::{
    ByteCount, Plan, PlannedReplica, Priority, Problem, RequestsPerSecond, Shortfall,
};

mod registrations;

use super::{
    Claims, levels,
    shares::{Shares, max_min_level},
};
use crate::{
    Budget, PlanningOptions, estimate, policy,
    tests::{device, equal_devices, profiles},
};

/// Profiles of `n` models with a time of `ms` for batches of 1 to 16 that grows by half of it, and 400 MiB.
fn rows(models: &[(String, f64)]) -> String {
    let mut text = String::new();
    for (name, ms) in models {
        for (size, factor) in [(1, 1.0), (4, 1.5), (16, 3.0)] {
            writeln!(text, "{name},g,{size},,{},,400,90,,", ms * factor).unwrap();
        }
    }
    text
}

/// Returns a problem of devices of 4 GiB with models of these times in ms, rates, and needs, with SLOs of 200 ms.
fn problem(devices: usize, models: &[(f64, f64, f64)]) -> Problem {
    let names: Vec<String> = (0..models.len()).map(|index| format!("m{index}")).collect();
    let times: Vec<(String, f64)> = names
        .iter()
        .cloned()
        .zip(models.iter().map(|model| model.0))
        .collect();
    let demands: Vec<(&str, f64, u64)> = names
        .iter()
        .zip(models)
        .map(|(name, model)| (name.as_str(), model.1, 200))
        .collect();
    let table = profiles(&rows(&times));
    let mut problem = equal_devices(device("g", 4_096), devices, &demands, table);
    for (model, (_, _, need)) in problem.models.iter_mut().zip(models) {
        model.need = RequestsPerSecond::new(*need).ok();
    }
    problem
}

fn place(name: &str, problem: &Problem) -> Plan {
    let options = PlanningOptions::default();
    let plan = policy(name).unwrap();
    let plan = plan.place_with(problem, &options, &mut Budget::unlimited());
    let plan = plan.unwrap();
    assert_eq!(plan.violations(problem), []);
    plan
}

fn count(plan: &[PlannedReplica], model: usize) -> usize {
    plan.iter()
        .filter(|replica| replica.model.0 == model)
        .count()
}

/// Returns the estimated goodput of each model when requests come at the rates of the needs.
fn at_needs(problem: &Problem, replicas: &[PlannedReplica]) -> Vec<f64> {
    let mut measured = problem.clone();
    for model in &mut measured.models {
        model.rate = model.need.unwrap_or(model.rate);
    }
    let forecasts = estimate(&measured, replicas);
    forecasts.iter().map(|model| model.goodput.get()).collect()
}

#[test]
fn guessed_rates_of_newcomers_take_no_served_model_down() {
    // Four served models with little traffic on one device, and six newcomers that say 60 requests/s each.
    let mut before = problem(1, &[(20.0, 5.0, 5.0); 4]);
    before.current = place("goodput", &before).replicas;
    let mut models = vec![(20.0, 5.0, 5.0); 4];
    models.extend([(8.0, 60.0, 0.01); 6]);
    let mut after = problem(1, &models);
    after.current.clone_from(&before.current);
    for name in ["goodput", "first-fit", "exclusive"] {
        let plan = place(name, &after);
        let kept = at_needs(&after, &plan.replicas);
        for model in 0..4 {
            assert!(count(&plan.replicas, model) > 0, "{name}: {plan:?}");
            assert!(kept[model] > 4.9, "{name}: {kept:?}");
        }
    }
    // The newcomers have homes, and are told what they are planned for.
    let plan = place("goodput", &after);
    for model in 4..10 {
        assert!(count(&plan.replicas, model) > 0, "{plan:?}");
    }
    let told = plan.models[4..]
        .iter()
        .filter(|model| model.shortfall.is_some());
    assert!(told.count() > 0, "{plan:?}");
    // Without needs the rates are facts, and serving the cheap requests is right.
    for model in &mut after.models {
        model.need = None;
    }
    let plan = place("goodput", &after);
    assert!((0..4).any(|model| count(&plan.replicas, model) == 0));
}

#[test]
fn a_reservation_of_a_higher_priority_comes_before_those_of_others_which_keep_the_rest() {
    // Beside the second one's reservation, the first one's is far too much for one device.
    let mut together = problem(1, &[(4.0, 2000.0, 0.01), (20.0, 60.0, 0.01)]);
    together.models[1].priority = Priority::new(7).unwrap();
    together.current = place("goodput", &together).replicas;
    // One that no device can serve changes nothing.
    let mut with_third = problem(
        1,
        &[(4.0, 2000.0, 0.01), (20.0, 60.0, 0.01), (400.0, 20.0, 0.01)],
    );
    with_third.models[1].priority = Priority::new(7).unwrap();
    with_third.current.clone_from(&together.current);
    let alone = place("goodput", &problem(1, &[(4.0, 2000.0, 0.01)]));
    let alone = alone.models[0].goodput.get();
    for problem in [together, with_third] {
        let plan = place("goodput", &problem);
        let expected: Vec<f64> = { plan.models.iter() }
            .map(|model| model.goodput.get())
            .collect();
        assert!(expected[1] > 57.0, "{expected:?}: {:?}", plan.replicas);
        // 60 requests/s of 20 ms, in batches of 4 rows, are half of the device.
        assert!(
            expected[0] > 0.3 * alone,
            "{expected:?} of {alone}: {:?}",
            plan.replicas
        );
    }
}

#[test]
fn reservations_that_do_not_fit_leave_every_model_a_home() {
    // Nothing is served yet, and all guess too much.
    let plan_of = |need: f64| {
        let mut models = vec![(40.0, 30.0, need); 3];
        models.extend([(4.0, 400.0, need); 3]);
        let problem = problem(1, &models);
        place("goodput", &problem)
    };
    let plan = plan_of(0.01);
    for model in 0..6 {
        assert!(count(&plan.replicas, model) > 0, "{model}: {plan:?}");
    }
    let is_told = |shortfall: &Option<Shortfall>| shortfall.is_some();
    assert!(plan.models.iter().any(|model| is_told(&model.shortfall)));
}

#[test]
fn an_overload_of_one_model_leaves_its_neighbours_what_they_need() {
    let mut before = problem(1, &[(20.0, 15.0, 15.0), (30.0, 5.0, 5.0), (30.0, 5.0, 5.0)]);
    before.current = place("goodput", &before).replicas;
    let mut after = problem(
        1,
        &[(20.0, 400.0, 400.0), (30.0, 5.0, 5.0), (30.0, 5.0, 5.0)],
    );
    after.current.clone_from(&before.current);
    let plan = place("goodput", &after);
    let told = &plan.models[0].shortfall;
    assert!(told.is_some(), "{plan:?}");
    for model in 1..3 {
        assert!(count(&plan.replicas, model) > 0, "{plan:?}");
        assert!(plan.models[model].goodput.get() > 4.8, "{plan:?}");
    }
}

#[test]
fn a_guess_without_requests_gives_way_to_a_model_whose_requests_grow() {
    // The first model guesses and gets nothing, the second one has a replica of its own and now gets more requests.
    let mut before = problem(1, &[(20.0, 150.0, 0.01), (20.0, 2.0, 2.0)]);
    before.current = place("goodput", &before).replicas;
    let mut after = problem(1, &[(20.0, 250.0, 0.01), (20.0, 100.0, 100.0)]);
    after.current.clone_from(&before.current);
    let plan = place("goodput", &after);
    let served = at_needs(&after, &plan.replicas);
    assert!(count(&plan.replicas, 0) > 0, "{plan:?}");
    assert!(served[1] > 90.0, "{served:?} {plan:?}");
}

#[test]
fn a_newcomer_with_traffic_gets_its_fair_share() {
    // One model has the whole device; another one comes and is measured to need as much.
    let mut before = problem(1, &[(20.0, 200.0, 200.0)]);
    before.current = place("goodput", &before).replicas;
    let mut after = problem(1, &[(20.0, 200.0, 200.0), (20.0, 200.0, 200.0)]);
    after.current.clone_from(&before.current);
    let plan = place("goodput", &after);
    assert!(count(&plan.replicas, 1) > 0, "{plan:?}");
    let shares: Vec<f64> = plan
        .models
        .iter()
        .map(|model| model.goodput.get())
        .collect();
    assert!(shares[1] > 0.3 * shares[0], "{shares:?}");
}

#[test]
fn models_that_no_device_can_hold_hold_nothing_up() {
    let mut problem = problem(1, &[(20.0, 5.0, 5.0), (500.0, 5.0, 5.0)]);
    let plan = place("goodput", &problem);
    assert_eq!(count(&plan.replicas, 1), 0);
    assert_eq!(plan.models[0].shortfall, None);
    problem.current = plan.replicas.clone();
    assert_eq!(place("goodput", &problem), plan);
}

#[test]
fn a_current_replica_that_breaks_a_rule_is_no_claim() {
    let mut problem = problem(2, &[(20.0, 5.0, 5.0)]);
    problem.current = place("goodput", &problem).replicas;
    problem.current[0].batch_size = 4_000;
    let plan = place("goodput", &problem);
    assert_eq!(plan.models[0].shortfall, None);
    assert_eq!(plan.violations(&problem), []);
}

#[test]
fn levels_divide_the_capacity() {
    for (demands, capacity, expected) in [
        (vec![1.0, 2.0], 4.0, f64::INFINITY),
        (vec![1.0, 5.0, 9.0], 9.0, 4.0),
        (vec![6.0, 6.0], 4.0, 2.0),
        (vec![], 4.0, f64::INFINITY),
    ] {
        let level = max_min_level(&mut demands.clone(), capacity);
        assert_eq!(level.total_cmp(&expected), Ordering::Equal, "{demands:?}");
    }
}

/// Sets the priorities of a problem's models.
fn set_priorities(problem: &mut Problem, priorities: &[u32]) {
    for (model, priority) in problem.models.iter_mut().zip(priorities) {
        model.priority = Priority::new(*priority).unwrap();
    }
}

/// Returns a problem of devices that have memory for one replica each.
fn tight(devices: usize, models: &[(f64, f64, f64)], priorities: &[u32]) -> Problem {
    let mut problem = problem(devices, models);
    for device in &mut problem.devices {
        device.memory = ByteCount::from_mib(450).unwrap();
    }
    set_priorities(&mut problem, priorities);
    problem
}

#[test]
fn a_reservation_takes_what_models_of_a_lower_priority_need_and_nothing_of_others() {
    // Two served models have all there is, and a newcomer reserves most of a device.
    let served = [(20.0, 60.0, 60.0), (20.0, 60.0, 60.0)];
    let newcomer = (20.0, 180.0, 0.01);
    let all = [served[0], served[1], newcomer];
    for name in ["goodput", "first-fit", "exclusive"] {
        for (priorities, has_replica) in [
            ([5, 5, 5], [true, true, false]),
            ([5, 5, 4], [true, true, false]),
            ([7, 3, 5], [true, false, true]),
            ([3, 7, 5], [false, true, true]),
            ([3, 3, 3], [true, true, false]),
        ] {
            let mut before = tight(2, &served, &priorities);
            before.current = place(name, &before).replicas;
            let mut after = tight(2, &all, &priorities);
            after.current.clone_from(&before.current);
            let plan = place(name, &after);
            let placed = [0, 1, 2].map(|model| count(&plan.replicas, model) > 0);
            assert_eq!(placed, has_replica, "{name}, {priorities:?}: {plan:?}");
            for (model, placed) in placed.into_iter().enumerate() {
                let forecast = &plan.models[model];
                let told = forecast.shortfall.is_some();
                assert_eq!(told, !placed, "{name}, {priorities:?}: {plan:?}");
            }
        }
    }
}

#[test]
fn a_reservation_of_a_higher_priority_counts_against_the_needs_of_a_lower_one() {
    // There is memory for all on one device, whose time the newcomer reserves.
    let served = [(20.0, 60.0, 60.0), (20.0, 60.0, 60.0)];
    let mut before = problem(1, &served);
    before.current = place("goodput", &before).replicas;
    let mut after = problem(1, &[served[0], served[1], (20.0, 250.0, 0.01)]);
    after.current.clone_from(&before.current);
    for (newcomer, gets, others_get) in [(6, 190.0..250.0, 0.0..30.0), (5, 0.0..150.0, 59.0..61.0)]
    {
        set_priorities(&mut after, &[5, 5, newcomer]);
        let plan = place("goodput", &after);
        let goodput = |model: usize| plan.models[model].goodput.get();
        assert!(gets.contains(&goodput(2)), "{newcomer}: {plan:?}");
        for model in 0..2 {
            assert!(others_get.contains(&goodput(model)), "{newcomer}: {plan:?}");
            // It keeps its replica, and has what it needs as long as nobody uses the reservation.
            assert!(count(&plan.replicas, model) > 0, "{newcomer}: {plan:?}");
            let now = at_needs(&after, &plan.replicas)[model];
            assert!(now > 59.0, "{newcomer}: {now} {plan:?}");
        }
    }
}

#[test]
fn an_overload_is_lost_by_the_lowest_priority_first() {
    for name in ["goodput", "first-fit", "nexus"] {
        for priorities in [[5, 9, 0], [0, 5, 9], [9, 0, 5]] {
            let lowest = priorities
                .iter()
                .position(|priority| *priority == 0)
                .unwrap();
            let problem = tight(2, &[(20.0, 150.0, 150.0); 3], &priorities);
            let plan = place(name, &problem);
            for model in 0..3 {
                let is_served = at_needs(&problem, &plan.replicas)[model] > 135.0;
                assert_eq!(
                    is_served,
                    model != lowest,
                    "{name}, {priorities:?}: {plan:?}"
                );
            }
            let told = &plan.models[lowest].shortfall;
            assert!(told.is_some(), "{name}, {priorities:?}: {plan:?}");
        }
    }
}

#[test]
fn an_equal_need_of_a_higher_priority_is_planned_for_first() {
    // All have memory on one device, which has time for 266 requests/s.
    let mut problem = problem(1, &[(20.0, 150.0, 150.0); 3]);
    set_priorities(&mut problem, &[5, 9, 0]);
    let plan = place("goodput", &problem);
    let [middle, high, low] = [0, 1, 2].map(|model| plan.models[model].goodput.get());
    assert!(
        high > 140.0 && high >= middle && middle >= low && low < 60.0,
        "{plan:?}"
    );
    let told = plan.models[2].shortfall.as_ref().map(ToString::to_string);
    let told = told.unwrap_or_default();
    assert!(
        told.contains("a higher priority than 0 come first"),
        "{told}"
    );
}

/// Returns a problem of the devices `big`, with 8 GiB, and `g`, with 4 GiB. One model of the priority 9 reserves more than all devices compute, and no
/// other device than `reached` can hold it. A second one is served and needs what a device of `g` computes, and a third one reserves as much.
fn unreachable_reservation(devices: &[&str], memory_mib: u64, reached: &str) -> Problem {
    let mut rows = String::new();
    for kind in ["big", "g"] {
        for (name, memory) in [("m0", memory_mib), ("m1", 400), ("m2", 400)] {
            if name == "m0" && kind != reached && reached != "none" {
                continue;
            }
            for (size, ms) in [(1, 20), (4, 30), (16, 60)] {
                writeln!(rows, "{name},{kind},{size},,{ms},,{memory},90,,").unwrap();
            }
        }
    }
    let demands = [("m0", 5e3, 200), ("m1", 200.0, 200), ("m2", 400.0, 200)];
    let mut problem = equal_devices(device("g", 4_096), devices.len(), &demands, profiles(&rows));
    for (of, kind) in problem.devices.iter_mut().zip(devices) {
        let memory = if *kind == "big" { 8_192 } else { 4_096 };
        *of = device(kind, memory);
    }
    for (model, need) in problem.models.iter_mut().zip([0.01, 200.0, 0.01]) {
        model.need = RequestsPerSecond::new(need).ok();
    }
    set_priorities(&mut problem, &[9, 5, 5]);
    problem
}

#[test]
fn what_a_reservation_of_a_higher_priority_cannot_reach_is_shared_among_the_others() {
    for (devices, memory_mib, reached) in [
        // A model that has a profile on one of the devices only.
        (vec!["big", "g"], 400, "big"),
        // One that only one of the devices has memory for, and one that none has.
        (vec!["big", "g"], 6_000, "none"),
        (vec!["g"], 6_000, "none"),
    ] {
        let mut problem = unreachable_reservation(&devices, memory_mib, reached);
        let case = format!("{devices:?}, {memory_mib} MiB");
        let shares = Shares::new(&problem, &levels(&problem));
        let fair = shares.fair[1].get();
        assert!(fair > 190.0, "{case}: {fair}");
        let is_held = devices.contains(&"big");
        assert_eq!(shares.is_reachable(0), is_held, "{case}");
        if is_held {
            // What one device computes.
            let entitled = shares.entitled[0].get();
            assert!((150.0..220.0).contains(&entitled), "{case}: {entitled}");
        }
        // The second model is served before the others are registered.
        let mut before = problem.clone();
        for model in [0, 2] {
            before.models[model].rate = RequestsPerSecond::ZERO;
        }
        let mut current = place("goodput", &before).replicas;
        current.retain(|replica| replica.model.0 == 1);
        problem.current = current;
        for name in ["goodput", "first-fit"] {
            let plan = place(name, &problem);
            let served = at_needs(&problem, &plan.replicas)[1];
            assert!(served > 180.0, "{case}, {name}: {served} {plan:?}");
        }
    }
}

#[test]
fn a_model_that_no_device_can_hold_takes_no_home_and_makes_no_policy_try_again() {
    let mut problem = unreachable_reservation(&["g"], 6_000, "none");
    problem.models[0].need = RequestsPerSecond::new(50.0).ok();
    problem.models[2].rate = RequestsPerSecond::new(5.0).unwrap();
    problem.models[2].need = RequestsPerSecond::new(5.0).ok();
    let mut calls = 0;
    let claims = Claims::new(&problem).unwrap();
    let plan = claims.place(|problem| {
        calls += 1;
        let options = PlanningOptions::default();
        policy("first-fit")
            .unwrap()
            .place_once(problem, &options, &mut Budget::unlimited())
    });
    let plan = plan.unwrap();
    assert_eq!(calls, 1, "{plan:?}");
    for model in [1, 2] {
        assert!(count(&plan.replicas, model) > 0, "{plan:?}");
    }
}

#[test]
fn only_as_many_models_of_a_lower_priority_give_way_as_a_higher_one_needs() {
    // Each model has a device, and the first one comes to need one or two more.
    for name in ["goodput", "first-fit", "exclusive", "nexus"] {
        for (need, giving) in [(400.0, 1), (700.0, 2)] {
            for low_need in [10.0, 45.0] {
                let mut models = vec![(20.0, 60.0, 60.0)];
                models.extend(vec![(20.0, low_need, low_need); 4]);
                let priorities = [9, 3, 3, 3, 3];
                let mut before = tight(5, &models, &priorities);
                before.current = place(name, &before).replicas;
                models[0] = (20.0, need, need);
                let mut after = tight(5, &models, &priorities);
                after.current.clone_from(&before.current);
                let plan = place(name, &after);
                let case = format!("{name}, {need}, {low_need}: {plan:?}");
                let served = at_needs(&after, &plan.replicas);
                assert!(served[0] > 0.94 * need, "{case}");
                let others = served[1..].iter();
                let keeping = others.filter(|served| **served > 0.94 * low_need);
                assert_eq!(keeping.count(), 4 - giving, "{case}");
                // Who gives way is told why, and no one else.
                let told = plan.models.iter().filter(|model| model.shortfall.is_some());
                assert_eq!(told.count(), giving, "{case}");
            }
        }
    }
}

fn problem_with(devices: usize, models: &[(f64, f64, f64)], current: &[PlannedReplica]) -> Problem {
    let mut problem = problem(devices, models);
    problem.current = current.to_vec();
    problem
}

#[test]
fn a_model_that_cannot_have_what_it_needs_takes_no_reservation_in_vain() {
    // Batches of the last one take half of the SLO: not all of its requests are in time, however little the others ask for.
    for slow in [90.0, 120.0, 150.0] {
        let problem = problem(1, &[(0.1, 20.0, 0.0), (0.3, 20.0, 0.0), (slow, 7.3, 7.3)]);
        let plan = place("goodput", &problem);
        for (model, forecast) in plan.models.iter().take(2).enumerate() {
            assert!(
                forecast.goodput.get() > 19.0 && forecast.shortfall.is_none(),
                "{slow} ms: model {model}: {forecast:?}"
            );
        }
    }
}
