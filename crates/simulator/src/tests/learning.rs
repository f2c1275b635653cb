//! What can be learned of hidden interference from a run's own feedback.

use packhorse_cluster::{DeviceObservation, ModelId, Problem};
use packhorse_contention::{Interference, SlowdownModel};

use super::*;

/// What a run shows of its devices, a period a second.
fn observed(scenario: &Scenario, replicas: &[PlannedReplica]) -> Vec<DeviceObservation> {
    let mut observed = Vec::new();
    let mut policy = |problem: &Problem| {
        observed.clone_from(&problem.observations);
        None
    };
    let replanning = Replanning {
        every: Duration::from_secs(1),
        policy: &mut policy,
    };
    let plan = PlanReport::from_replicas(scenario, replicas);
    let discipline = Discipline::Deadline;
    let progress = &mut |_| {};
    simulate_replanning(
        scenario, plan, replicas, discipline, 1, replanning, progress,
    )
    .unwrap();
    observed
}

/// Learns from the first five seconds of two models on each of three devices.
fn check(kappa: f64, rate: f64) {
    let mut scenario = vision(3, rate, 200);
    scenario.simulation.interference = Interference::new(1.6, kappa).unwrap();
    let replicas = [
        ("alexnet", 0, 16),
        ("efficientnet_b7", 0, 8),
        ("resnet50", 1, 8),
        ("vgg19", 1, 16),
        ("densenet121", 2, 8),
        ("efficientnet_b7", 2, 8),
    ];
    let observed = observed(&scenario, &plan(&scenario, &replicas));
    let (seen, to_come) = observed.split_at(15);
    let profiles = &scenario.problem.profiles;
    let learned = SlowdownModel::learned(seen, profiles);
    let kind = &scenario.problem.devices[0].kind;
    for (subject, neighbour) in [
        ("resnet50", "vgg19"),
        ("resnet50", "densenet121"),
        ("vgg19", "alexnet"),
    ] {
        let ids: [ModelId; 2] = [subject, neighbour].map(|name| name.parse().unwrap());
        let found = learned.sensitivity(kind, &ids[0], &ids[1]);
        assert!(
            (found.mean - kappa).abs() < 0.15,
            "{kappa}, {rate} requests/s: {subject} beside {neighbour}: {found:?}"
        );
    }
    for device in to_come {
        let expected = learned.expected_of(device, profiles);
        for (replica, expected) in device.replicas.iter().zip(expected) {
            assert!(
                (expected.mean / replica.slowdown - 1.0).abs() < 0.1,
                "{kappa}, {rate} requests/s: {expected:?} for {replica:?}"
            );
        }
    }
}

#[test]
fn a_hidden_slowdown_is_learned_within_seconds_and_for_pairs_never_seen_together() {
    for kappa in [0.0, 0.3, 0.6] {
        // A rate that leaves devices idle at times, and one that is too much for some.
        check(kappa, 120.0);
        check(kappa, 250.0);
    }
}
