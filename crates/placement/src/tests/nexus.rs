//! The squishy bin packing of Nexus.

use std::collections::BTreeSet;

use packhorse_cluster::PolicyOptions;

use super::*;

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
    let models = [("a", 64.0, 200), ("b", 32.0, 250), ("c", 32.0, 250)];
    equal_devices(device("k", 16_384), devices, &models, profiles(TABLE_2))
}

/// Returns the number of replicas on devices where their model does not run yet, which Nexus-on-Blox calls swaps.
fn count_swaps(problem: &Problem, plan: &Plan) -> usize {
    let key = |replica: &PlannedReplica| (replica.model, replica.device);
    let current: BTreeSet<_> = problem.current.iter().map(key).collect();
    let planned = plan.replicas.iter().map(key);
    planned.filter(|replica| !current.contains(replica)).count()
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
    // Two nodes of 160/s each. Of the other 80/s, 9 requests arrive in 112.5 ms and take 78.1 ms.
    assert_eq!(batch_sizes(&plan), [16, 16, 9]);
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
    assert_eq!(shortfall(&plan, 1), Some(&Shortfall::NoDeviceLeft));
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
        let plan = place_with("nexus", problem, options);
        plan.replicas[0].batch_size
    };
    // 4/20 s + 50 ms is 250 ms exactly. The published wait for 5 requests is 4/20 s too, but they take 60 ms.
    assert_eq!((batch(&problem, false), batch(&problem, true)), (4, 4));
    problem.models[0].slo = Duration::from_millis(260);
    assert_eq!((batch(&problem, false), batch(&problem, true)), (4, 5));
}

#[test]
fn very_rare_requests_are_served_one_by_one() {
    // One request per minute does not wait for a second one.
    let mut problem = worked_example(1);
    problem.models = vec![model("a", 1.0 / 60.0, 200)];
    let plan = place("nexus", &problem);
    assert_eq!(plan.replicas[0].batch_size, 1);
    assert_eq!(shortfall(&plan, 0), None);
}

#[test]
fn memory_is_a_limit() {
    let mut problem = worked_example(2);
    problem
        .devices
        .iter_mut()
        .for_each(|device| device.memory = ByteCount::from_mib(150).unwrap());
    let plan = place("nexus", &problem);
    // A and B fit one device by time, but not by memory.
    assert_ne!(devices_of(&plan, 0), devices_of(&plan, 1));
}

#[test]
fn models_stay_on_their_devices() {
    // Tables 1 and 2 of Nexus-on-Blox: A runs on two devices and B on one; the rates require two of A and one of C.
    let mut problem = worked_example(3);
    problem.models = vec![
        model("a", 320.0, 200),
        model("b", 0.0, 250),
        model("c", 128.0, 250),
    ];
    problem.current = vec![replica(0, 1, 16), replica(0, 2, 16), replica(1, 0, 16)];
    let plan = place("nexus", &problem);
    assert_eq!(devices_of(&plan, 0), [1, 2]);
    assert_eq!(devices_of(&plan, 2), [0]);
    assert_eq!(count_swaps(&problem, &plan), 1);
    problem.current = plan.replicas.clone();
    assert_eq!(count_swaps(&problem, &place("nexus", &problem)), 0);
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
