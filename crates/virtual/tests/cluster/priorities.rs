//! Tests of what models keep while one of another priority on their device gets more requests than the device computes.

use std::time::Duration;

use packhorse_cluster::{ModelSpec, Priority};
use packhorse_control::Command;

use crate::virtual_cluster::{Settings, VirtualCluster, WEIGHTS, spec};

/// Returns the proportions of the requests of three models in the pool of one device that are not answered in time, in a minute in which the last model gets 120 requests/s in
/// place of 15: more than the device computes beside the others. The first two have this priority.
fn missed_in_overload(priority: u32) -> [f64; 3] {
    let mut cluster = VirtualCluster::new(Settings {
        policy: "goodput",
        pools: true,
        ..Settings::default()
    });
    cluster.add_node("n", "T4", 1, 16 << 10);
    let models = [
        ("a:1", 60.0, priority),
        ("b:1", 60.0, priority),
        ("c:1", 15.0, 5),
    ];
    let c = "c:1".parse().unwrap();
    cluster.node("n").behaviour.scales.insert(c, 7.0);
    for (model, rate, priority) in models {
        let spec = ModelSpec {
            priority: Priority::new(priority).unwrap(),
            ..spec(model, rate)
        };
        let register = Command::Register(Box::new(spec), WEIGHTS);
        cluster.command_and_wait(register).unwrap();
    }
    let limit = Duration::from_mins(2);
    cluster.run_until("all models serve", limit, VirtualCluster::is_healthy);
    for (model, rate, _) in models {
        cluster.set_clients(model, rate);
    }
    cluster.run_for(Duration::from_mins(2));
    cluster.set_clients("c:1", 120.0);
    let before = cluster.environment.requests.clone();
    cluster.run_for(Duration::from_mins(1));
    [0, 1, 2].map(|model| {
        let (requests, missed) = cluster.environment.requests[&model];
        let (requests_before, missed_before) = before[&model];
        (missed - missed_before) as f64 / (requests - requests_before) as f64
    })
}

#[test]
fn an_overload_of_a_lower_priority_takes_nothing_from_higher_ones_in_a_pool() {
    let as_equals = missed_in_overload(5);
    let missed = missed_in_overload(7);
    println!("{as_equals:?}, {missed:?}");
    for model in [0, 1] {
        assert!(as_equals[model] > 0.1, "{as_equals:?}");
        assert!(missed[model] < 0.01, "{missed:?}");
    }
    // It has what the others leave.
    assert!(missed[2] < 0.5, "{missed:?}");
}
