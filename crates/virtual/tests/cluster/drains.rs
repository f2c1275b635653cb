//! Drains of nodes.

use std::time::Duration;

use packhorse_cluster::{NodeName, Scheduling};
use packhorse_control::{Command, Problem, Subject};

use crate::virtual_cluster::{Settings, VirtualCluster};

fn drain(name: &str, time: Option<Duration>) -> Command {
    Command::ScheduleNode(name.parse().unwrap(), Scheduling::Draining, time)
}

/// Returns the number of replicas on a node, of whatever plan.
fn replicas_on(cluster: &VirtualCluster, node: &str) -> usize {
    let node: NodeName = node.parse().unwrap();
    let node = cluster.controller().node(&node).unwrap();
    let devices = node.devices().map(|(id, _)| id);
    devices
        .map(|id| cluster.controller().replicas_on(&id).count())
        .sum()
}

fn waits(cluster: &VirtualCluster) -> Option<String> {
    let findings = cluster.controller().findings();
    let found = findings.iter().find(|f| f.problem == Problem::DrainWaits)?;
    assert_eq!(found.subject, Subject::Node("n0".parse().unwrap()));
    Some(found.text.clone())
}

/// Returns a cluster whose node n0 has these models.
fn cluster_with(models: usize) -> VirtualCluster {
    let mut cluster = VirtualCluster::new(Settings::default());
    cluster.add_node("n0", "T4", 1, 8192);
    for model in 0..models {
        cluster.register(&format!("m{model}:1"), 10.0);
    }
    let limit = Duration::from_mins(2);
    cluster.run_until("all models serve", limit, VirtualCluster::is_healthy);
    for model in 0..models {
        let id = format!("m{model}:1").parse().unwrap();
        cluster.interruptions.insert(id, 0);
    }
    cluster
}

#[test]
fn a_drain_moves_the_models_of_a_node_without_interrupting_one() {
    let mut cluster = cluster_with(4);
    cluster.add_node("n1", "T4", 1, 8192);
    cluster.run_for(Duration::from_secs(10));
    cluster.command_and_wait(drain("n0", None)).unwrap();
    let limit = Duration::from_mins(1);
    cluster.run_until("the node is empty", limit, |c| replicas_on(c, "n0") == 0);
    cluster.run_until("all models serve", limit, VirtualCluster::is_healthy);
    cluster.run_for(Duration::from_secs(10));
    assert!(cluster.interruptions.values().all(|count| *count == 0));
    assert_eq!(waits(&cluster), None);
    assert!(cluster.node("n0").processes.is_empty());
}

#[test]
fn the_drain_of_the_only_node_waits_says_so_and_goes_on_when_there_is_another() {
    let mut cluster = cluster_with(2);
    cluster.command_and_wait(drain("n0", None)).unwrap();
    cluster.run_for(Duration::from_mins(1));
    assert_eq!(replicas_on(&cluster, "n0"), 2);
    let text = waits(&cluster).expect("it waits");
    assert!(text.contains("waits for 2 models"), "{text}");
    // One of the models has room elsewhere: that is progress.
    cluster.add_node("n1", "T4", 1, 1500);
    cluster.run_until("one moves", Duration::from_mins(1), |c| {
        replicas_on(c, "n0") == 1
    });
    cluster.run_for(Duration::from_secs(10));
    let text = waits(&cluster).expect("it waits");
    assert!(text.contains("waits for 1 model"), "{text}");
    cluster.add_node("n2", "T4", 1, 8192);
    let limit = Duration::from_mins(1);
    cluster.run_until("the node is empty", limit, |c| replicas_on(c, "n0") == 0);
    cluster.run_until("all models serve", limit, VirtualCluster::is_healthy);
    assert!(cluster.interruptions.values().all(|count| *count == 0));
}

#[test]
fn a_drain_with_a_deadline_ends_whatever_has_no_other_place() {
    let mut cluster = cluster_with(2);
    let time = Duration::from_secs(30);
    cluster.command_and_wait(drain("n0", Some(time))).unwrap();
    cluster.run_for(Duration::from_secs(29));
    assert_eq!(replicas_on(&cluster, "n0"), 2);
    cluster.run_for(Duration::from_secs(5));
    assert_eq!(replicas_on(&cluster, "n0"), 0);
    cluster.run_for(Duration::from_secs(5));
    assert_eq!(waits(&cluster), None);
    // Opened again, it gets its models back.
    let open = Command::ScheduleNode("n0".parse().unwrap(), Scheduling::Open, None);
    cluster.command_and_wait(open).unwrap();
    let limit = Duration::from_mins(1);
    cluster.run_until("all models serve", limit, VirtualCluster::is_healthy);
    assert!(!cluster.serving("m0:1").is_empty() && !cluster.serving("m1:1").is_empty());
}

#[test]
fn a_drain_goes_on_after_a_restart_of_the_gateway() {
    let mut cluster = cluster_with(2);
    cluster.command_and_wait(drain("n0", None)).unwrap();
    cluster.run_for(Duration::from_secs(10));
    cluster.kill_gateway(false);
    cluster.run_for(Duration::from_secs(1));
    cluster.start_gateway();
    cluster.run_for(Duration::from_secs(20));
    assert_eq!(replicas_on(&cluster, "n0"), 2);
    cluster.add_node("n1", "T4", 1, 8192);
    let limit = Duration::from_mins(1);
    cluster.run_until("the node is empty", limit, |c| replicas_on(c, "n0") == 0);
    cluster.run_until("all models serve", limit, VirtualCluster::is_healthy);
}
