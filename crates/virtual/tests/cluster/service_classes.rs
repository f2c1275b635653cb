//! Tests of service classes: what a model without a reservation is planned for, and which models give way to others.

use std::time::Duration;

use packhorse_cluster::{
    MinReplicas, ModelId, ModelSpec, ModelState, ModelVersion, Priority, RateMode,
    RequestsPerSecond,
};
use packhorse_control::{Command, ModelSpecChange, PlanReason, PlanReasons, Problem};
use packhorse_virtual::Random;

use crate::virtual_cluster::{Settings, VirtualCluster, name, spec};

/// The policies that the cases are tried with.
const POLICIES: [&str; 2] = ["goodput", "first-fit"];

/// Returns a cluster of one device with the memory of this many replicas.
fn cluster(policy: &'static str, memory: u64) -> VirtualCluster {
    let mut cluster = VirtualCluster::new(Settings {
        policy,
        ..Settings::default()
    });
    cluster.add_node("n", "T4", 1, memory * 1024 + 512);
    cluster
}

fn register(cluster: &mut VirtualCluster, spec: ModelSpec) {
    let register = Command::Register(Box::new(spec), 1);
    cluster.command_and_wait(register).unwrap();
}

/// Returns the specification of a model without a reservation.
fn unreserved(model: &str) -> ModelSpec {
    ModelSpec {
        rate: None,
        ..spec(model, 0.0)
    }
}

fn change(cluster: &mut VirtualCluster, model: &str, change: ModelSpecChange) {
    let change = Command::ChangeModel(name(model), None, change);
    cluster.command_and_wait(change).unwrap();
}

/// Returns the rate that the next plan is made for.
fn planned_rate(cluster: &VirtualCluster, policy: &str, model: &str) -> f64 {
    let id: ModelId = model.parse().unwrap();
    let reasons = PlanReasons::from(PlanReason::ModelRegistered(id.clone()));
    let controller = cluster.controller();
    let input = controller.planning_input(policy.to_owned(), reasons);
    input.rates[&id].get()
}

fn healthy(cluster: &mut VirtualCluster) {
    let limit = Duration::from_mins(2);
    cluster.run_until("all models serve", limit, VirtualCluster::is_healthy);
}

#[test]
fn a_model_without_a_reservation_is_planned_for_its_measured_rate() {
    let mut cluster = cluster("goodput", 3);
    register(&mut cluster, unreserved("used:1"));
    register(&mut cluster, unreserved("idle:1"));
    healthy(&mut cluster);
    for model in ["used:1", "idle:1"] {
        let planned = planned_rate(&cluster, "goodput", model);
        assert!((planned - 1.0).abs() < 1e-6, "{model}: {planned}");
    }
    cluster
        .counted
        .rates
        .insert("used:1".parse().unwrap(), 200.0);
    cluster.run_for(Duration::from_mins(7));
    let planned = planned_rate(&cluster, "goodput", "used:1");
    assert!((190.0..220.0).contains(&planned), "{planned}");
    // Nobody uses the other one, which keeps a replica all the same.
    let planned = planned_rate(&cluster, "goodput", "idle:1");
    assert!(planned < 0.1, "{planned}");
    assert!(!cluster.serving("idle:1").is_empty());
}

#[test]
fn a_reservation_that_is_removed_leaves_the_measured_rate() {
    let mut cluster = cluster("goodput", 3);
    register(&mut cluster, spec("used:1", 500.0));
    register(&mut cluster, spec("idle:1", 500.0));
    healthy(&mut cluster);
    cluster
        .counted
        .rates
        .insert("used:1".parse().unwrap(), 40.0);
    cluster.run_for(Duration::from_mins(2));
    let removed = ModelSpecChange {
        rate: Some(None),
        ..ModelSpecChange::default()
    };
    for (model, range) in [("used", 30.0..50.0), ("idle", 0.9..1.1)] {
        let id = format!("{model}:1");
        let before = planned_rate(&cluster, "goodput", &id);
        assert!((before - 500.0).abs() < 1e-6, "{model}: {before}");
        change(&mut cluster, model, removed.clone());
        let planned = planned_rate(&cluster, "goodput", &id);
        assert!(range.contains(&planned), "{model}: {planned}");
    }
    // Afterwards it may be reserved again.
    let reserved = ModelSpecChange {
        rate: Some(RequestsPerSecond::new(90.0).ok()),
        ..ModelSpecChange::default()
    };
    change(&mut cluster, "used", reserved);
    let planned = planned_rate(&cluster, "goodput", "used:1");
    assert!((planned - 90.0).abs() < 1e-6, "{planned}");
}

/// Returns the specification of a model with a reservation and a priority.
fn prioritized(model: &str, rate: f64, priority: u32) -> ModelSpec {
    ModelSpec {
        priority: Priority::new(priority).unwrap(),
        ..spec(model, rate)
    }
}

/// Returns a cluster with memory for this many replicas, on which these models with these priorities serve, and each gets 10 requests/s.
fn serving(policy: &'static str, memory: u64, models: &[(&str, u32)]) -> VirtualCluster {
    let mut cluster = cluster(policy, memory);
    for (model, priority) in models {
        register(&mut cluster, prioritized(model, 10.0, *priority));
    }
    healthy(&mut cluster);
    for (model, _) in models {
        let id: ModelId = model.parse().unwrap();
        cluster.counted.rates.insert(id.clone(), 10.0);
        cluster.interruptions.insert(id, 0);
    }
    cluster.run_for(Duration::from_mins(2));
    cluster
}

/// Returns true if a model that was served has had no replica since.
fn was_interrupted(cluster: &VirtualCluster, model: &str) -> bool {
    cluster.interruptions[&model.parse().unwrap()] > 0
}

#[test]
fn a_newcomer_takes_the_place_of_a_model_of_a_lower_priority_and_of_no_other() {
    for policy in POLICIES {
        for (newcomer, gives_way) in [(9, Some("b:1")), (5, Some("b:1")), (3, None), (2, None)] {
            let case = format!("{policy}, {newcomer}");
            let mut cluster = serving(policy, 2, &[("a:1", 5), ("b:1", 3)]);
            register(&mut cluster, prioritized("c:1", 50.0, newcomer));
            cluster.run_for(Duration::from_mins(1));
            assert!(!was_interrupted(&cluster, "a:1"), "{case}");
            assert_eq!(
                was_interrupted(&cluster, "b:1"),
                gives_way.is_some(),
                "{case}"
            );
            assert_eq!(
                cluster.serving("c:1").is_empty(),
                gives_way.is_none(),
                "{case}"
            );
            let (state, reason) = cluster.state(gives_way.unwrap_or("c:1"));
            assert_eq!(state, ModelState::Unplaced, "{case}: {reason}");
        }
    }
}

#[test]
fn a_higher_priority_takes_a_place_and_a_lower_one_gives_it_back() {
    for policy in POLICIES {
        let mut cluster = serving(policy, 2, &[("a:1", 5), ("b:1", 5)]);
        register(&mut cluster, prioritized("c:1", 50.0, 5));
        cluster.run_for(Duration::from_mins(1));
        assert!(cluster.serving("c:1").is_empty(), "{policy}");
        let set = |priority: u32| ModelSpecChange {
            priority: Priority::new(priority).ok(),
            ..ModelSpecChange::default()
        };
        change(&mut cluster, "c", set(6));
        cluster.run_for(Duration::from_mins(1));
        assert!(!cluster.serving("c:1").is_empty(), "{policy}");
        let served = ["a:1", "b:1"].map(|model| !cluster.serving(model).is_empty());
        assert_eq!(
            served.iter().filter(|served| **served).count(),
            1,
            "{policy}"
        );
        change(&mut cluster, "c", set(4));
        cluster.run_for(Duration::from_mins(1));
        for model in ["a:1", "b:1"] {
            let state = cluster.state(model);
            assert!(
                !cluster.serving(model).is_empty(),
                "{policy}: {model}: {state:?}"
            );
        }
    }
}

#[test]
fn the_reservation_and_the_priority_stay_when_the_newest_version_is_removed() {
    let mut cluster = cluster("goodput", 3);
    let first = ModelSpec {
        slo: Duration::from_millis(300),
        ..prioritized("m:1", 20.0, 3)
    };
    register(&mut cluster, first.clone());
    register(&mut cluster, prioritized("m:3", 30.0, 4));
    register(&mut cluster, prioritized("m:2", 40.0, 5));
    let changed = ModelSpecChange {
        rate: Some(RequestsPerSecond::new(50.0).ok()),
        rate_mode: Some(RateMode::Declared),
        priority: Priority::new(7).ok(),
        min_replicas: MinReplicas::new(2).ok(),
        ..ModelSpecChange::default()
    };
    change(&mut cluster, "m", changed);
    // An older version has no say.
    let mut remove = |version: u32| {
        let version = ModelVersion::new(version).ok();
        let remove = Command::RemoveModel(name("m"), version);
        cluster.command_and_wait(remove).unwrap();
    };
    remove(2);
    remove(3);
    let left = ModelSpec {
        rate: RequestsPerSecond::new(50.0).ok(),
        rate_mode: RateMode::Declared,
        priority: Priority::new(7).unwrap(),
        min_replicas: MinReplicas::new(2).unwrap(),
        ..first
    };
    let spec = |cluster: &VirtualCluster| {
        let model = cluster.controller().model(&"m:1".parse().unwrap());
        ModelSpec::clone(&model.unwrap().spec)
    };
    assert_eq!(spec(&cluster), left);
    healthy(&mut cluster);
    let planned = planned_rate(&cluster, "goodput", "m:1");
    assert!((planned - 50.0).abs() < 1e-6, "{planned}");
    cluster.kill_gateway(false);
    cluster.start_gateway();
    assert_eq!(spec(&cluster), left);
}

/// `PACKHORSE_SEQUENCES` is the number of sequences.
#[test]
#[expect(
    clippy::disallowed_methods,
    reason = "the number of sequences of a longer run"
)]
fn no_sequence_of_changes_takes_a_model_down_for_others_of_at_most_its_priority() {
    let seeds = std::env::var("PACKHORSE_SEQUENCES").map_or(8, |count| count.parse().unwrap());
    for seed in 0..seeds {
        let mut random = Random::new(seed);
        let policy = ["goodput", "first-fit", "gslice"][random.below(3)];
        let watched = [("a:1", 7), ("b:1", 7), ("c:1", 7)];
        let mut cluster = serving(policy, 6, &watched);
        let mut others: Vec<String> = Vec::new();
        for number in 0..12 {
            match random.below(4) {
                0 | 1 => {
                    let other = format!("m{number}");
                    let rate = (1 + random.below(2_000)) as f64;
                    let priority = 3 + random.below(5) as u32;
                    register(
                        &mut cluster,
                        prioritized(&format!("{other}:1"), rate, priority),
                    );
                    others.push(other);
                }
                2 if !others.is_empty() => {
                    let which = random.below(others.len());
                    let changed = ModelSpecChange {
                        rate: Some(RequestsPerSecond::new(random.below(2_000) as f64).ok()),
                        priority: Priority::new(random.below(8) as u32).ok(),
                        ..ModelSpecChange::default()
                    };
                    change(&mut cluster, &others[which], changed);
                }
                _ if !others.is_empty() => {
                    let other = others.swap_remove(random.below(others.len()));
                    let remove = Command::RemoveModel(name(&other), None);
                    cluster.command_and_wait(remove).unwrap();
                }
                _ => {}
            }
            cluster.run_for(Duration::from_secs(1 + random.below(20) as u64));
        }
        for (model, _) in watched {
            assert!(
                !was_interrupted(&cluster, model),
                "seed {seed}, {policy}: {model}"
            );
        }
    }
}

#[test]
fn a_model_with_two_replicas_answers_while_a_node_is_away() {
    for policy in POLICIES {
        let mut cluster = cluster(policy, 4);
        cluster.add_node("other", "T4", 1, 4 * 1024 + 512);
        register(&mut cluster, spec("twice:1", 1.0));
        register(&mut cluster, spec("once:1", 1.0));
        healthy(&mut cluster);
        let twice = ModelSpecChange {
            min_replicas: MinReplicas::new(2).ok(),
            ..ModelSpecChange::default()
        };
        let fewer = |c: &VirtualCluster| -> Vec<String> {
            let findings = c.controller().findings().iter();
            let fewer = findings.filter(|found| found.problem == Problem::FewerReplicas);
            fewer.map(|found| found.text.clone()).collect()
        };
        change(&mut cluster, "twice", twice);
        let limit = Duration::from_mins(2);
        let both = |c: &VirtualCluster| c.serving("twice:1").len() == 2;
        cluster.run_until("the second replica serves", limit, both);
        assert_eq!(cluster.serving("once:1").len(), 1, "{policy}");
        assert_eq!(fewer(&cluster), [""; 0], "{policy}");

        cluster.interruptions.insert("twice:1".parse().unwrap(), 0);
        cluster.kill_agent(&"n".parse().unwrap());
        let found = |c: &VirtualCluster| !fewer(c).is_empty();
        cluster.run_until("the plan has one device", limit, found);
        let text = "model twice:1 has replicas on 1 of the 2 devices that it asks for";
        assert_eq!(fewer(&cluster), [text], "{policy}");
        assert!(!was_interrupted(&cluster, "twice:1"), "{policy}");

        cluster.add_node("third", "T4", 1, 4 * 1024 + 512);
        cluster.run_until("both serve again", limit, both);
        cluster.run_until("the finding is gone", limit, |c| fewer(c).is_empty());
        assert!(!was_interrupted(&cluster, "twice:1"), "{policy}");
    }
}
