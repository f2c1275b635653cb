//! Tests of what served models keep while others are registered with guessed rates, changed, or get more requests than anybody planned for.

use std::time::Duration;

use packhorse_cluster::{ModelId, ModelSpec, RequestsPerSecond};
use packhorse_control::{Command, ModelSpecChange, PlanReason, PlanReasons};
use packhorse_virtual::Random;

use crate::virtual_cluster::{Settings, VirtualCluster, name, spec};

/// The policies that the cases are tried with.
const POLICIES: [&str; 3] = ["goodput", "first-fit", "gslice"];

/// Returns a cluster of one device with the memory of this many replicas, on which these models serve and get these requests/s.
fn serving_cluster(policy: &'static str, memory: u64, models: &[(&str, f64)]) -> VirtualCluster {
    let mut cluster = VirtualCluster::new(Settings {
        policy,
        ..Settings::default()
    });
    cluster.add_node("n", "T4", 1, memory * 1024 + 512);
    for (model, rate) in models {
        cluster.register(model, *rate);
    }
    let limit = Duration::from_mins(2);
    cluster.run_until("all models serve", limit, VirtualCluster::is_healthy);
    for (model, rate) in models {
        let id: ModelId = model.parse().unwrap();
        cluster.counted.rates.insert(id.clone(), *rate);
        cluster.interruptions.insert(id, 0);
    }
    cluster.run_for(Duration::from_mins(2));
    cluster
}

/// Checks that no model that is watched was without a replica.
fn assert_uninterrupted(cluster: &VirtualCluster, case: &str) {
    let interruptions = &cluster.interruptions;
    let is_none = interruptions.values().all(|count| *count == 0);
    assert!(is_none, "{case}: {interruptions:?}");
}

fn change_rate(cluster: &mut VirtualCluster, model: &str, rate: f64) {
    let change = ModelSpecChange {
        rate: Some(RequestsPerSecond::new(rate).ok()),
        ..ModelSpecChange::default()
    };
    let change = Command::ChangeModel(name(model), None, change);
    cluster.command_and_wait(change).unwrap();
}

#[test]
fn registrations_with_guessed_rates_take_no_served_model_down() {
    for policy in POLICIES {
        let served = [("a:1", 10.0), ("b:1", 10.0), ("c:1", 10.0), ("d:1", 10.0)];
        let mut cluster = serving_cluster(policy, 10, &served);
        for newcomer in ["e:1", "f:1", "g:1", "h:1", "i:1"] {
            cluster.register(newcomer, 900.0);
            cluster.run_for(Duration::from_secs(30));
        }
        assert_uninterrupted(&cluster, policy);
        // Whoever has no room for a guess has a replica and is told so.
        let mut told = 0;
        for newcomer in ["e:1", "f:1", "g:1", "h:1", "i:1"] {
            let (_, reason) = cluster.state(newcomer);
            let forecast = cluster.controller().plan().unwrap();
            let mut forecasts = forecast.forecasts.iter();
            let forecast = forecasts.find(|f| f.model.to_string() == newcomer).unwrap();
            told += usize::from(forecast.shortfall.is_some());
            if policy == "goodput" {
                assert!(
                    !cluster.serving(newcomer).is_empty(),
                    "{newcomer}: {reason}"
                );
            }
        }
        assert!(told > 0, "{policy}");
    }
}

#[test]
fn a_larger_rate_of_one_model_takes_no_other_down() {
    for policy in POLICIES {
        let mut cluster =
            serving_cluster(policy, 3, &[("a:1", 15.0), ("b:1", 15.0), ("c:1", 15.0)]);
        change_rate(&mut cluster, "a", 5_000.0);
        cluster.run_for(Duration::from_mins(1));
        cluster.interruptions.remove(&"a:1".parse().unwrap());
        assert_uninterrupted(&cluster, policy);
    }
}

#[test]
fn a_smaller_rate_of_a_model_does_not_make_it_forget_what_it_gets() {
    for policy in POLICIES {
        let mut cluster = serving_cluster(policy, 3, &[("a:1", 500.0), ("b:1", 15.0)]);
        change_rate(&mut cluster, "a", 1.0);
        let input = cluster.controller().planning_input(
            policy.to_owned(),
            PlanReasons::from(PlanReason::ModelRegistered("b:1".parse().unwrap())),
        );
        let mut models = input.problem.models.iter();
        let a = models.find(|model| model.id.to_string() == "a:1").unwrap();
        assert!(a.need.unwrap().get() > 400.0, "{policy}: {a:?}");
    }
}

#[test]
fn an_overload_of_one_model_takes_no_other_down() {
    for policy in POLICIES {
        let mut cluster =
            serving_cluster(policy, 3, &[("a:1", 15.0), ("b:1", 15.0), ("c:1", 15.0)]);
        cluster
            .counted
            .rates
            .insert("a:1".parse().unwrap(), 5_000.0);
        cluster.run_for(Duration::from_mins(5));
        cluster.interruptions.remove(&"a:1".parse().unwrap());
        assert_uninterrupted(&cluster, policy);
    }
}

#[test]
fn a_restart_of_the_gateway_leaves_models_without_a_reservation_what_they_need() {
    for policy in POLICIES {
        let mut cluster = VirtualCluster::new(Settings {
            policy,
            ..Settings::default()
        });
        cluster.add_node("n", "T4", 2, 4 * 1024);
        let spec = ModelSpec {
            rate: None,
            ..spec("a:1", 1.0)
        };
        let register = Command::Register(Box::new(spec), 1);
        cluster.command_and_wait(register).unwrap();
        // Two devices compute 1,500 requests/s.
        let a: ModelId = "a:1".parse().unwrap();
        cluster.counted.rates.insert(a.clone(), 1_000.0);
        let limit = Duration::from_mins(2);
        cluster.run_until("the model serves", limit, VirtualCluster::is_healthy);
        cluster.run_for(Duration::from_mins(2));
        let replicas = cluster.serving("a:1").len();
        assert_eq!(replicas, 2, "{policy}");
        cluster.kill_gateway(false);
        cluster.start_gateway();
        // It changes much before anything is measured again.
        cluster.register("b:1", 700.0);
        cluster.run_for(Duration::from_secs(4));
        let plan = cluster.controller().plan().unwrap();
        let mut forecasts = plan.forecasts.iter();
        let forecast = forecasts.find(|forecast| forecast.model == a).unwrap();
        assert!(forecast.rate.get() > 900.0, "{policy}: {forecast:?}");
        assert!(forecast.goodput.get() > 900.0, "{policy}: {forecast:?}");
        // A second restart before the first measurement forgets nothing either.
        cluster.kill_gateway(false);
        cluster.start_gateway();
        change_rate(&mut cluster, "b", 1_400.0);
        cluster.run_for(Duration::from_secs(20));
        assert_eq!(cluster.serving("a:1").len(), replicas, "{policy}");
    }
}

/// `PACKHORSE_SEQUENCES` is the number of sequences.
#[test]
#[expect(
    clippy::disallowed_methods,
    reason = "the number of sequences of a longer run"
)]
fn no_sequence_of_registrations_changes_and_removals_takes_a_served_model_down() {
    let seeds = std::env::var("PACKHORSE_SEQUENCES").map_or(12, |count| count.parse().unwrap());
    for seed in 0..seeds {
        let mut random = Random::new(seed);
        let policy = POLICIES[random.below(POLICIES.len())];
        let served = [("a:1", 12.0), ("b:1", 5.0), ("c:1", 20.0)];
        let mut cluster = serving_cluster(policy, 10, &served);
        let mut others: Vec<String> = Vec::new();
        for number in 0..12 {
            match random.below(4) {
                0 | 1 => {
                    let other = format!("m{number}");
                    cluster.register(&format!("{other}:1"), (1 + random.below(2_000)) as f64);
                    others.push(other);
                }
                2 if !others.is_empty() => {
                    let which = random.below(others.len());
                    let rate = (1 + random.below(2_000)) as f64;
                    change_rate(&mut cluster, &others[which], rate);
                }
                _ if !others.is_empty() => {
                    let which = random.below(others.len());
                    let other = others.swap_remove(which);
                    let remove = Command::RemoveModel(name(&other), None);
                    cluster.command_and_wait(remove).unwrap();
                }
                _ => {}
            }
            cluster.run_for(Duration::from_secs(1 + random.below(20) as u64));
        }
        assert_uninterrupted(&cluster, &format!("seed {seed}, {policy}"));
    }
}
