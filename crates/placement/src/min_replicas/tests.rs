use packhorse_cluster::{MinReplicas, Plan, Priority};
use proptest::{collection::vec, prelude::*};

use super::*;
use crate::{
    Budget, POLICIES, policy,
    tests::{device, equal_devices, profiles, properties},
};

/// The profiles of two models of 1000 and 1010 MiB, with one batch size that uses 30 % of the multiprocessors.
const PROFILES: &str = "
a,V100,1,,10,,1000,30,30,30
b,V100,1,,10,,1010,30,30,30
";

/// Returns a problem with four devices on two nodes, whose models ask for these numbers of replicas.
fn problem(mib: u64, replicas: [u32; 2]) -> Problem {
    let models = [("a", 5.0, 100), ("b", 5.0, 100)];
    let mut problem = equal_devices(device("V100", mib), 4, &models, profiles(PROFILES));
    for device in &mut problem.devices[2..] {
        device.node = "other".parse().unwrap();
    }
    for (model, number) in problem.models.iter_mut().zip(replicas) {
        model.min_replicas = MinReplicas::new(number).unwrap();
    }
    problem
}

fn devices_of(replicas: &[PlannedReplica], model: usize) -> Vec<usize> {
    let of_model = replicas.iter().filter(|replica| replica.model.0 == model);
    of_model.map(|replica| replica.device.0).collect()
}

#[test]
fn every_policy_places_a_model_on_as_many_devices_as_it_asks_for() {
    let (problem, alone) = (problem(16_384, [3, 1]), problem(16_384, [1, 1]));
    for policy in POLICIES {
        let plan = policy.place(&problem, &mut Budget::unlimited()).unwrap();
        let takes_turns = plan
            .replicas
            .iter()
            .all(|replica| replica.duty_cycle.is_some());
        let devices: BTreeSet<usize> = devices_of(&plan.replicas, 0).into_iter().collect();
        assert!(
            devices.len() >= 3 || takes_turns,
            "{}: {:?}",
            policy.name,
            plan.replicas
        );
        assert_eq!(plan.violations(&problem), [], "{}", policy.name);
        let sum = |plan: &Plan| -> f64 {
            let goodput = plan.models.iter().map(|forecast| forecast.goodput.get());
            goodput.sum()
        };
        let without = policy.place(&alone, &mut Budget::unlimited()).unwrap();
        assert!(sum(&plan) >= sum(&without) - 0.01, "{}", policy.name);
    }
}

#[test]
fn the_second_replica_is_on_another_node_and_stays_there() {
    let mut problem = problem(16_384, [2, 1]);
    let first_fit = policy("first-fit").unwrap();
    let place = |problem: &Problem| first_fit.place(problem, &mut Budget::unlimited()).unwrap();
    let plan = place(&problem);
    assert_eq!(devices_of(&plan.replicas, 0), [0, 2]);
    // What runs is kept, also where another device is as good.
    problem.current = vec![
        PlannedReplica::new(ModelIndex(0), DeviceIndex(0), 1),
        PlannedReplica::new(ModelIndex(0), DeviceIndex(3), 1),
    ];
    assert_eq!(devices_of(&place(&problem).replicas, 0), [0, 3]);
}

#[test]
fn replicas_beyond_a_rate_take_no_memory_from_others() {
    // A device holds one of the models.
    let problem = problem(1500, [4, 1]);
    let alone = self::problem(1500, [1, 1]);
    for name in ["goodput", "first-fit", "exclusive"] {
        let entry = policy(name).unwrap();
        let place = |problem: &Problem| entry.place(problem, &mut Budget::unlimited()).unwrap();
        let without = place(&alone);
        let with = place(&problem);
        let kept = without
            .replicas
            .iter()
            .all(|replica| with.replicas.contains(replica));
        assert!(kept, "{name}: {:?} {:?}", without.replicas, with.replicas);
        assert!(!devices_of(&with.replicas, 1).is_empty(), "{name}");
        assert_eq!(with.replicas.len(), 4, "{name}: {:?}", with.replicas);
    }
}

#[test]
fn models_of_a_higher_priority_come_first() {
    let mut problem = problem(1500, [2, 2]);
    problem.devices.truncate(3);
    problem.models[1].priority = Priority::new(6).unwrap();
    let mut replicas = vec![
        PlannedReplica::new(ModelIndex(0), DeviceIndex(0), 1),
        PlannedReplica::new(ModelIndex(1), DeviceIndex(1), 1),
    ];
    assert!(add(&problem, false, &mut replicas));
    assert_eq!(
        (devices_of(&replicas, 0), devices_of(&replicas, 1)),
        (vec![0], vec![1, 2])
    );
    assert!(!add(&problem, false, &mut replicas));
}

#[test]
fn a_model_without_a_home_asks_for_nothing() {
    let problem = problem(16_384, [2, 2]);
    let mut replicas = Vec::new();
    assert!(!add(&problem, false, &mut replicas));
}

#[test]
fn shares_of_the_multiprocessors_suffice_for_both() {
    let problem = problem(16_384, [2, 1]);
    let shared = |device, percent| PlannedReplica {
        compute_share: Some(ComputeShare::new(percent).unwrap()),
        ..PlannedReplica::new(ModelIndex(1), DeviceIndex(device), 1)
    };
    let home = PlannedReplica::new(ModelIndex(0), DeviceIndex(0), 1);
    let mut replicas = vec![
        home.clone(),
        shared(1, 80.0),
        shared(2, 60.0),
        shared(3, 75.0),
    ];
    assert!(add(&problem, false, &mut replicas));
    assert_eq!(devices_of(&replicas, 0), [0, 2]);
    assert_eq!(replicas[1].compute_share, ComputeShare::new(40.0).ok());
    let mut full = vec![home, shared(1, 80.0), shared(2, 80.0), shared(3, 80.0)];
    assert!(!add(&problem, false, &mut full));
}

#[test]
fn devices_whose_replicas_take_turns_get_none() {
    let problem = problem(16_384, [2, 1]);
    let in_turn = |device| PlannedReplica {
        duty_cycle: Some(std::time::Duration::from_millis(20)),
        ..PlannedReplica::new(ModelIndex(1), DeviceIndex(device), 1)
    };
    let home = PlannedReplica::new(ModelIndex(0), DeviceIndex(0), 1);
    let mut replicas = vec![home, in_turn(1), in_turn(2), in_turn(3)];
    assert!(!add(&problem, false, &mut replicas));
}

proptest! {
    #[test]
    fn what_is_added_is_asked_for_and_fits(
        problem in properties::problem(),
        numbers in vec(1_u32..5, 5),
        nodes in vec(0_usize..3, 5),
    ) {
        let mut problem = problem;
        for (device, node) in problem.devices.iter_mut().zip(nodes) {
            device.node = format!("n{node}").parse().unwrap();
        }
        let first_fit = policy("first-fit").unwrap();
        let base = first_fit.place(&problem, &mut Budget::unlimited()).unwrap();
        for (model, number) in problem.models.iter_mut().zip(numbers) {
            model.min_replicas = MinReplicas::new(number).unwrap();
        }
        let plan = first_fit.place(&problem, &mut Budget::unlimited()).unwrap();
        prop_assert_eq!(plan.violations(&problem), []);
        for replica in &base.replicas {
            prop_assert!(plan.replicas.contains(replica), "{:?} is gone", replica);
        }
        let homes = |replicas: &[PlannedReplica], model| -> BTreeSet<usize> {
            devices_of(replicas, model).into_iter().collect()
        };
        for (model, demanded) in problem.models() {
            let (before, after) = (homes(&base.replicas, model.0), homes(&plan.replicas, model.0));
            let most = demanded.min_replicas.get().max(before.len());
            prop_assert!(after.len() <= most);
            prop_assert!(!before.is_empty() || after.is_empty());
        }
    }
}
