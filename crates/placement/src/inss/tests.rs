use packhorse_cluster::RequestsPerSecond;

use super::*;
use crate::tests::{device, equal_devices, profiles};

/// Two models of which a batch of 1 or 8 takes 10 ms and 100 MiB, so that a device carries 800 requests/s of either.
const ROWS: &str = "
a,k,1,,10,,100,,,
a,k,8,,10,,100,,,
b,k,1,,10,,100,,,
b,k,8,,10,,100,,,
";

fn problem(devices: usize, memory: u64, rates: [f64; 2]) -> Problem {
    let models = [("a", rates[0], 100), ("b", rates[1], 100)];
    equal_devices(device("k", memory), devices, &models, profiles(ROWS))
}

/// An actor that prefers the given outputs of every model, more strongly the later ones, whatever it sees.
fn stubborn(preferred: &[usize]) -> Network {
    let mut actor = Network::zeros(&[INPUTS, OUTPUTS]);
    for model in 0..MODELS {
        for (weight, option) in preferred.iter().enumerate() {
            actor.layers[0].biases[model * OPTIONS + option] = 1.0 + weight as f32;
        }
    }
    actor
}

fn plan_of(actor: &Network, problem: &Problem) -> Vec<(usize, usize, u32, Option<f64>)> {
    let options = PlanningOptions::default();
    let plan = place_by(actor, problem, &options, &mut Budget::unlimited()).unwrap();
    assert_eq!(plan.violations(problem), []);
    let replicas = plan.replicas.iter().map(|replica| {
        let share = replica
            .compute_share
            .map(packhorse_cluster::ComputeShare::get);
        (replica.model.0, replica.device.0, replica.batch_size, share)
    });
    replicas.collect()
}

#[test]
fn levels_become_shares_that_fill_a_device() {
    // Both prefer the second device, and level 3 of 0 to 15. Each has 1 %, and half of the other 98.
    let actor = stubborn(&[1, DEVICES + 3]);
    let shared = plan_of(&actor, &problem(2, 1_000, [50.0, 40.0]));
    assert_eq!(shared.len(), 2);
    for replica in shared {
        assert_eq!((replica.1, replica.3), (1, Some(50.0)));
    }
    // A model without requests gets the lowest level: 1 + 98 · 4 / 5 and 1 + 98 · 1 / 5 percent.
    let idle = plan_of(&actor, &problem(2, 1_000, [50.0, 0.0]));
    assert_eq!(idle[0].3, Some(79.0));
    assert_eq!(idle[1].3, Some(20.0));
}

#[test]
fn devices_that_are_not_there_or_full_are_masked() {
    // The preferred fourth device is not there, and the second one has the memory for one model.
    let actor = stubborn(&[0, 1, 3]);
    let placed = plan_of(&actor, &problem(2, 150, [50.0, 40.0]));
    let devices: Vec<_> = placed
        .iter()
        .map(|replica| (replica.0, replica.1))
        .collect();
    assert_eq!(devices, [(0, 1), (1, 0)]);
    // A device of its own needs no share, and batches are as large as profiled.
    assert!(placed.iter().all(|replica| replica.3.is_none()));
    // No memory for both.
    assert_eq!(plan_of(&actor, &problem(1, 150, [50.0, 40.0])).len(), 1);
}

#[test]
fn a_model_beyond_a_device_becomes_parts() {
    // 1000 requests/s are two parts of 500, the first two in the order of load; the actor tells the parts apart by their place.
    let mut actor = stubborn(&[0]);
    actor.layers[0].biases[OPTIONS + 1] = 9.0;
    let placed = plan_of(&actor, &problem(2, 1_000, [1_000.0, 40.0]));
    let devices: Vec<_> = placed
        .iter()
        .map(|replica| (replica.0, replica.1))
        .collect();
    assert_eq!(devices, [(0, 0), (0, 1), (1, 0)]);
}

#[test]
fn parts_spread_over_cells_and_groups() {
    let rows = (0..40).map(|model| format!("m{model},k,1,,10,,10,,,\n"));
    let table = profiles(&rows.collect::<String>());
    let names: Vec<String> = (0..40).map(|model| format!("m{model}")).collect();
    let models: Vec<_> = names.iter().map(|name| (name.as_str(), 5.0, 100)).collect();
    let mut problem = equal_devices(device("k", 1_000), 6, &models, table);
    // Six devices are two cells of three, each with 20 parts in three groups. The actor wants the first device of a cell.
    let placed = plan_of(&stubborn(&[0]), &problem);
    assert_eq!(placed.len(), 40);
    let on = |device| placed.iter().filter(|replica| replica.1 == device).count();
    assert_eq!([on(0), on(3)], [20, 20]);
    // More replicas than a device has percents are left out.
    problem.devices.truncate(1);
    let many = (0..3).flat_map(|_| 0..40);
    let placed: Vec<Placed> = many
        .map(|model| Placed {
            model: ModelIndex(model),
            device: DeviceIndex(0),
            level: 15,
        })
        .collect();
    let plan = plan(&problem, &PlanningOptions::default(), &placed);
    assert_eq!(
        plan.replicas.len(),
        40,
        "decisions on a model are one replica"
    );
    let sum: f64 = plan
        .replicas
        .iter()
        .filter_map(|replica| replica.compute_share)
        .map(packhorse_cluster::ComputeShare::get)
        .sum();
    assert!(sum <= 100.0, "{sum}");
}

#[test]
fn the_traits_of_a_model_are_those_of_its_profile() {
    let problem = problem(1, 200, [50.0, 40.0]);
    let options = PlanningOptions::default();
    let traits = ModelTraits::new(&problem, &options, ModelIndex(0), DeviceIndex(0)).unwrap();
    let close = |a: f64, b: f64| assert!((a - b).abs() < 1e-6, "{a} and {b}");
    close(traits.capacity, 800.0);
    close(traits.single, 100.0);
    close(traits.slo_part, 0.1);
    close(traits.memory, 0.5);
    // Too large for the device.
    let small = self::problem(1, 50, [50.0, 40.0]);
    let none = ModelTraits::new(&small, &options, ModelIndex(0), DeviceIndex(0));
    assert_eq!(none, None);
}

#[test]
fn the_trained_actor_serves_a_small_problem() {
    // An eighth of a device for each model: anything sensible serves both.
    let mut problem = problem(2, 1_000, [100.0, 100.0]);
    let plan = crate::policy(NAME)
        .unwrap()
        .place(&problem, &mut Budget::unlimited())
        .unwrap();
    let estimates = crate::estimate(&problem, &plan.replicas);
    for estimate in estimates {
        assert!(estimate.goodput.get() > 95.0, "{estimate:?}");
    }
    problem.models[0].rate = RequestsPerSecond::new(0.0).unwrap();
    let plan = crate::policy(NAME)
        .unwrap()
        .place(&problem, &mut Budget::unlimited())
        .unwrap();
    assert_eq!(plan.replicas.len(), 2);
}
