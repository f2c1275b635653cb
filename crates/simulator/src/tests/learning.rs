//! Learning hidden interference from the observations of a run.

use packhorse_cluster::{DeviceObservation, ModelId, Problem};
use packhorse_contention::{Interference, SlowdownModel};

use super::*;

/// Returns the observations of a run's devices, one per device and second.
fn observe(scenario: &Scenario, replicas: &[PlannedReplica]) -> Vec<DeviceObservation> {
    let mut observed = Vec::new();
    let mut policy = |problem: &Problem| {
        observed.clone_from(&problem.observations);
        None
    };
    let replanning = Replanning::new(Duration::from_secs(1), None, &mut policy);
    let plan = PlanReport::from_replicas(scenario, replicas);
    let discipline = Discipline::Deadline;
    let progress = &mut |_| {};
    simulate_replanning(
        scenario, plan, replicas, discipline, 1, replanning, progress,
    )
    .unwrap();
    observed
}

/// Checks what is learned from the first five seconds of two models on each of three devices.
fn check(extra_slowdown: f64, rate: f64) {
    let mut scenario = vision(3, rate, 200);
    scenario.simulation.interference = Interference::new(1.6, extra_slowdown).unwrap();
    let replicas = [
        ("alexnet", 0, 16),
        ("efficientnet_b7", 0, 8),
        ("resnet50", 1, 8),
        ("vgg19", 1, 16),
        ("densenet121", 2, 8),
        ("efficientnet_b7", 2, 8),
    ];
    let observed = observe(&scenario, &plan(&scenario, &replicas));
    let (training, test) = observed.split_at(15);
    let profiles = &scenario.problem.profiles;
    let learned = SlowdownModel::from_observations(training, profiles);
    let kind = &scenario.problem.devices[0].kind;
    for (subject, neighbour) in [
        ("resnet50", "vgg19"),
        ("resnet50", "densenet121"),
        ("vgg19", "alexnet"),
    ] {
        let ids: [ModelId; 2] = [subject, neighbour].map(|name| name.parse().unwrap());
        let found = learned.sensitivity(kind, &ids[0], &ids[1]);
        for found in [found.unsaturated, found.saturated] {
            assert!(
                (found.mean - extra_slowdown).abs() < 0.15,
                "{extra_slowdown}, {rate} requests/s: {subject} with {neighbour}: {found:?}"
            );
        }
    }
    for device in test {
        let predicted = learned.predict_observed(device, profiles);
        for (replica, predicted) in device.replicas.iter().zip(predicted) {
            assert!(
                (predicted.mean / replica.slowdown - 1.0).abs() < 0.1,
                "{extra_slowdown}, {rate} requests/s: {predicted:?} for {replica:?}"
            );
        }
    }
}

#[test]
fn a_hidden_slowdown_is_learned_within_seconds_and_for_pairs_never_seen_together() {
    for extra_slowdown in [0.0, 0.3, 0.6] {
        // A rate at which devices are idle at times, and one that overloads some.
        check(extra_slowdown, 120.0);
        check(extra_slowdown, 250.0);
    }
}
