//! Squishy bin packing.

use super::*;
use crate::{PolicyOptions, swaps};

/// The batch profiles of the Nexus paper's table 2.
const TABLE_2: &str = "
a,k,4,,50,,100,,,
a,k,8,,75,,100,,,
a,k,16,,100,,100,,,
b,k,4,,50,,100,,,
b,k,8,,90,,100,,,
b,k,16,,125,,100,,,
c,k,4,,60,,100,,,
c,k,8,,95,,100,,,
c,k,16,,125,,100,,,
";

fn worked_example(devices: usize) -> Problem {
    Problem {
        devices: vec![device("k", 16_384); devices],
        models: vec![
            model("a", 64.0, 200),
            model("b", 32.0, 250),
            model("c", 32.0, 250),
        ],
        profiles: profiles(TABLE_2),
        ..Problem::default()
    }
}

#[test]
fn the_papers_worked_example_puts_a_and_b_together_and_c_alone() {
    let problem = worked_example(2);
    let plan = place("nexus", &problem);
    assert_eq!(devices_of(&plan, 0), devices_of(&plan, 1));
    assert_ne!(devices_of(&plan, 0), devices_of(&plan, 2));
    // A's 8 take 75 ms and B's 4 take 50 ms of every 125 ms.
    let (a, b) = (&plan.replicas[0], &plan.replicas[1]);
    assert_eq!((a.batch_size, b.batch_size), (8, 4));
    assert_eq!(a.duty_cycle, Some(Duration::from_millis(125)));
    assert_eq!(b.duty_cycle, Some(Duration::from_millis(125)));
    assert!(
        plan.models
            .iter()
            .all(|forecast| forecast.shortfall.is_none())
    );
}

#[test]
fn high_rates_fill_whole_nodes_with_the_largest_batch_that_may_be_waited_for() {
    // 16 in 100 ms is 160/s, and twice 100 ms is A's SLO exactly.
    let mut problem = worked_example(4);
    problem.models = vec![model("a", 400.0, 200)];
    let plan = place("nexus", &problem);
    assert_eq!(devices_of(&plan, 0).len(), 3);
    let batches: Vec<u32> = plan
        .replicas
        .iter()
        .map(|replica| replica.batch_size)
        .collect();
    // Two of 160/s; the other 80/s have 8 in 100 ms and 75 ms to compute them.
    assert_eq!(batches, [16, 16, 9]);
    assert_eq!(
        plan.models[0].goodput,
        RequestsPerSecond::new(400.0).unwrap()
    );
}

#[test]
fn devices_go_to_the_first_comers() {
    let mut problem = worked_example(1);
    problem.models = vec![model("a", 160.0, 200), model("b", 64.0, 250)];
    let plan = place("nexus", &problem);
    assert_eq!(devices_of(&plan, 0), [0]);
    assert_eq!(shortfall(&plan, 1), "no device is left");
    assert_eq!(
        plan.models[0].goodput,
        RequestsPerSecond::new(160.0).unwrap()
    );
}

#[test]
fn the_published_wait_allows_larger_batches() {
    let mut problem = worked_example(1);
    problem.models = vec![model("b", 20.0, 250)];
    let batch = |problem: &Problem, nexus_published| {
        let options = PolicyOptions {
            nexus_published,
            ..PolicyOptions::default()
        };
        let plan = place_with("nexus", problem, &options);
        plan.replicas[0].batch_size
    };
    // 4/20 s + 50 ms is 250 ms exactly; without waiting for the first one 5 wait as long, but take 60 ms.
    assert_eq!((batch(&problem, false), batch(&problem, true)), (4, 4));
    problem.models[0].slo = Duration::from_millis(260);
    assert_eq!((batch(&problem, false), batch(&problem, true)), (4, 5));
}

#[test]
fn a_trickle_is_served_one_by_one() {
    // One request a minute waits for nobody.
    let mut problem = worked_example(1);
    problem.models = vec![model("a", 1.0 / 60.0, 200)];
    let plan = place("nexus", &problem);
    assert_eq!(plan.replicas[0].batch_size, 1);
    assert_eq!(shortfall(&plan, 0), "none");
}

#[test]
fn memory_is_a_limit() {
    let mut problem = worked_example(2);
    problem
        .devices
        .iter_mut()
        .for_each(|device| device.memory = ByteCount::from_mib(150).unwrap());
    let plan = place("nexus", &problem);
    // A and B have time for each other, and no memory.
    assert_ne!(devices_of(&plan, 0), devices_of(&plan, 1));
}

#[test]
fn models_stay_where_they_are_and_swaps_are_counted() {
    // Tables 1 and 2 of Nexus-on-Blox: A runs on 0 and 1, B on 2; asked for are two of A and one of C.
    let mut problem = worked_example(3);
    problem.models = vec![
        model("a", 320.0, 200),
        model("b", 0.0, 250),
        model("c", 128.0, 250),
    ];
    let replica = |model, device| PlannedReplica {
        model: ModelIndex(model),
        device: DeviceIndex(device),
        batch_size: 16,
        compute_share: None,
        duty_cycle: None,
    };
    problem.current = vec![replica(0, 1), replica(0, 2), replica(1, 0)];
    let plan = place("nexus", &problem);
    assert_eq!(devices_of(&plan, 0), [1, 2]);
    assert_eq!(devices_of(&plan, 2), [0]);
    assert_eq!(swaps(&problem, &plan), 1);
    problem.current = plan.replicas.clone();
    assert_eq!(swaps(&problem, &place("nexus", &problem)), 0);
}

#[test]
fn nodes_are_opened_where_a_request_is_cheapest() {
    let mut problem = worked_example(1);
    problem.profiles = profiles(&format!(
        "{}{}",
        TABLE_2.trim_start(),
        "a,fast,16,,50,,100,,,\n"
    ));
    problem.devices.push(device("fast", 16_384));
    problem.models.truncate(1);
    assert_eq!(devices_of(&place("nexus", &problem), 0), [1]);
    problem.devices[0].cost_per_hour = Some(1.0);
    problem.devices[1].cost_per_hour = Some(4.0);
    assert_eq!(devices_of(&place("nexus", &problem), 0), [0]);
}
