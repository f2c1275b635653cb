//! Requests on their way through a cluster, while it breaks.

use std::time::Duration;

use packhorse_cluster::{ModelId, NodeName};
use packhorse_control::{Notice, ReplicaNotice};
use packhorse_virtual::End;

use crate::virtual_cluster::{Settings, VirtualCluster};

/// Returns a cluster with this many nodes of one device each, on which a model serves these requests/s.
fn serving_cluster(nodes: usize, rate: f64) -> VirtualCluster {
    let mut cluster = VirtualCluster::new(Settings::default());
    for number in 0..nodes {
        cluster.add_node(&format!("n{number}"), "T4", 1, 1500);
    }
    // More than one device computes, so that each has a replica.
    cluster.register("a:1", 400.0 * nodes as f64);
    let limit = Duration::from_mins(2);
    cluster.run_until("all replicas serve", limit, |c| {
        c.serving("a:1").len() == nodes
    });
    cluster.set_clients("a:1", rate);
    cluster.run_for(Duration::from_secs(5));
    cluster
}

/// Returns the number of requests that ended so until now.
fn ends(cluster: &VirtualCluster, which: &[End]) -> u64 {
    which.iter().map(|end| cluster.clients.count(*end)).sum()
}

const BAD: [End; 6] = [
    End::Late,
    End::Refused,
    End::Expired,
    End::Lost,
    End::Failed,
    End::Broken,
];

#[test]
fn requests_are_answered_in_time() {
    let mut cluster = serving_cluster(2, 100.0);
    cluster.run_for(Duration::from_secs(15));
    assert!(ends(&cluster, &[End::InTime]) > 1800);
    assert_eq!(ends(&cluster, &BAD), 0, "{:?}", cluster.clients.ends());
    let id: ModelId = "a:1".parse().unwrap();
    let goodput = cluster.controller().predicted_goodput(&id);
    assert!(goodput.is_some_and(|goodput| goodput.observed_rps > 80.0));
}

#[test]
fn the_requests_of_a_worker_that_dies_are_computed_by_another() {
    let mut cluster = serving_cluster(2, 100.0);
    let node: NodeName = "n0".parse().unwrap();
    for _ in 0..5 {
        cluster.kill_worker(&node, 0);
        cluster.run_for(Duration::from_secs(20));
    }
    assert_eq!(ends(&cluster, &BAD), 0, "{:?}", cluster.clients.ends());
}

#[test]
fn a_node_that_is_cut_off_costs_the_requests_that_it_has() {
    let mut cluster = serving_cluster(2, 100.0);
    let node: NodeName = "n0".parse().unwrap();
    cluster.change_network(&node, |machine| machine.reachable = false);
    cluster.run_for(Duration::from_secs(20));
    // Two batches wait at the worker; the time to notice is beyond their deadlines.
    let lost = ends(&cluster, &BAD);
    assert!((1..=40).contains(&lost), "{:?}", cluster.clients.ends());
    cluster.change_network(&node, |machine| machine.reachable = true);
    let limit = Duration::from_mins(1);
    cluster.run_until("both serve", limit, |c| c.serving("a:1").len() == 2);
    cluster.run_for(Duration::from_secs(5));
    assert_eq!(ends(&cluster, &BAD), lost, "{:?}", cluster.clients.ends());
}

#[test]
fn a_request_on_which_the_model_throws_fails_alone() {
    let mut cluster = serving_cluster(2, 100.0);
    let id: ModelId = "a:1".parse().unwrap();
    for _ in 0..20 {
        let tag = cluster.send_request(&id);
        cluster.clients.poison.insert(tag);
        cluster.run_for(Duration::from_millis(300));
    }
    cluster.run_for(Duration::from_secs(5));
    let failed = ends(&cluster, &[End::Failed]);
    // Some clients hang up.
    assert!((15..=20).contains(&failed), "{:?}", cluster.clients.ends());
    assert_eq!(ends(&cluster, &BAD), failed, "{:?}", cluster.clients.ends());
}

#[test]
fn a_worker_that_stops_is_given_up_and_one_that_goes_on_serves_again() {
    let mut cluster = serving_cluster(2, 50.0);
    let node: NodeName = "n0".parse().unwrap();
    let since = cluster.now;
    cluster.stop_worker(&node, 0, Duration::from_secs(30));
    cluster.run_for(Duration::from_secs(29));
    assert_eq!(cluster.serving("a:1").len(), 1);
    let lost = ends(&cluster, &BAD);
    assert!((1..=40).contains(&lost), "{:?}", cluster.clients.ends());
    let limit = Duration::from_secs(10);
    cluster.run_until("both serve", limit, |c| c.serving("a:1").len() == 2);
    cluster.run_for(Duration::from_secs(5));
    assert_eq!(ends(&cluster, &BAD), lost, "{:?}", cluster.clients.ends());
    let told = |notice: &Notice| matches!(notice, Notice::Replica(_, _, ReplicaNotice::Lost, _));
    assert!(cluster.count_notices(since, told) > 0);
}

#[test]
fn a_replica_that_drains_answers_what_it_has() {
    let mut cluster = serving_cluster(2, 100.0);
    let node: NodeName = "n0".parse().unwrap();
    let drain = packhorse_control::Command::ScheduleNode(
        node,
        packhorse_cluster::Scheduling::Draining,
        None,
    );
    cluster.command_and_wait(drain).unwrap();
    cluster.run_for(Duration::from_secs(30));
    assert_eq!(ends(&cluster, &BAD), 0, "{:?}", cluster.clients.ends());
}
