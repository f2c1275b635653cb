//! Tests of service classes: what a model without a reservation is planned for.

use std::time::Duration;

use packhorse_cluster::{ModelId, ModelSpec, RequestsPerSecond};
use packhorse_control::{Command, ModelSpecChange, PlanReason, PlanReasons};

use crate::virtual_cluster::{Settings, VirtualCluster, name, spec};

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
    cluster.traffic.insert("used:1".parse().unwrap(), 200.0);
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
    cluster.traffic.insert("used:1".parse().unwrap(), 40.0);
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
