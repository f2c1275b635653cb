//! Restarts of gateway and agents, and lost or outdated state folders.

use std::time::Duration;

use packhorse_cluster::{Discipline, Generation, NodeName, Time};
use packhorse_control::{Command, Notice, PlanNotice, record::Settings as Changed};
use packhorse_virtual::{LIMITS, Store};

use crate::virtual_cluster::{Settings, VirtualCluster};

fn is_adopted(notice: &Notice) -> bool {
    matches!(notice, Notice::Plan(_, PlanNotice::Adopted, _))
}

fn serving_cluster(nodes: usize, models: usize) -> VirtualCluster {
    let mut cluster = VirtualCluster::new(Settings {
        measure: Duration::from_millis(500),
        ..Settings::default()
    });
    for node in 0..nodes {
        cluster.add_node(&format!("n{node}"), "T4", 4, 16 << 10);
    }
    for model in 0..models {
        cluster.register(&format!("m{model}:1"), 5.0);
    }
    let limit = Duration::from_mins(10);
    cluster.run_until("all models serve", limit, VirtualCluster::is_healthy);
    cluster.run_for(Duration::from_secs(30));
    cluster
}

fn generation(cluster: &VirtualCluster) -> Option<Generation> {
    cluster.controller().plan().map(|plan| plan.generation)
}

#[test]
fn a_restart_with_a_thousand_models_moves_nothing_and_is_ready_within_2s_but_not_before_they_serve()
{
    let mut cluster = serving_cluster(25, 1000);
    let (starts, before) = (cluster.worker_starts(), generation(&cluster));
    cluster.kill_gateway(false);
    cluster.run_for(Duration::from_secs(1));
    let restart = cluster.now;
    cluster.start_gateway();
    let took = cluster.run_until("it is ready", Duration::from_secs(10), |c| {
        c.gateway.as_ref().unwrap().ready_since.is_some()
    });
    for model in 0..1000 {
        assert!(!cluster.serving(&format!("m{model}:1")).is_empty());
    }
    assert!(took < Duration::from_secs(2), "{took:?}");
    cluster.run_for(Duration::from_mins(1));
    assert_eq!(cluster.worker_starts(), starts);
    assert_eq!(generation(&cluster), before);
    assert_eq!(cluster.count_notices(restart, is_adopted), 0);
}

#[test]
fn a_restart_without_the_nodes_is_ready_once_they_had_their_time() {
    let mut cluster = serving_cluster(1, 2);
    let node: NodeName = "n0".parse().unwrap();
    cluster.switch_off(&node);
    cluster.kill_gateway(false);
    cluster.start_gateway();
    let took = cluster.run_until("it is ready", Duration::from_secs(30), |c| {
        c.gateway.as_ref().unwrap().ready_since.is_some()
    });
    assert_eq!(took, crate::virtual_cluster::LEASE);
}

#[test]
fn a_restart_whose_workers_load_for_longer_than_a_lease_is_ready_when_the_first_model_serves() {
    let mut cluster = serving_cluster(1, 3);
    let node: NodeName = "n0".parse().unwrap();
    cluster.kill_gateway(false);
    // Like a machine that lost its power: nothing runs any more.
    cluster.switch_off(&node);
    cluster.node("n0").behaviour.load = crate::virtual_cluster::LEASE * 3;
    cluster.start_gateway();
    cluster.start_agent(&node);
    let took = cluster.run_until("it is ready", Duration::from_mins(2), |c| {
        c.gateway.as_ref().unwrap().ready_since.is_some()
    });
    assert!(took >= crate::virtual_cluster::LEASE * 3, "{took:?}");
    let served = (0..3).filter(|model| !cluster.serving(&format!("m{model}:1")).is_empty());
    assert!(served.count() >= 1);
}

#[test]
fn a_restored_backup_is_obeyed_and_moves_nothing() {
    let mut cluster = serving_cluster(3, 6);
    let backup = cluster.store.disk.clone();
    // Restarts after the backup, which the agents have seen.
    for _ in 0..3 {
        cluster.kill_gateway(false);
        cluster.start_gateway();
        cluster.run_for(Duration::from_secs(10));
    }
    let (starts, plan) = (cluster.worker_starts(), generation(&cluster));
    let epoch = cluster.controller().epoch();
    cluster.kill_gateway(false);
    cluster.invariants.store_replaced();
    cluster.store.disk = backup;
    cluster.start_gateway();
    assert!(cluster.controller().epoch() < epoch);
    cluster.run_for(Duration::from_secs(10));
    assert!(cluster.controller().epoch() > epoch);
    cluster.run_for(Duration::from_secs(30));
    assert!(cluster.is_healthy());
    assert_eq!(cluster.worker_starts(), starts);
    assert_eq!(generation(&cluster), plan);
    // It is obeyed from now on.
    cluster.register("new:1", 5.0);
    let limit = Duration::from_mins(1);
    cluster.run_until("a new model serves", limit, |c| {
        !c.serving("new:1").is_empty()
    });
}

#[test]
fn a_wiped_gateway_takes_the_nodes_over_and_serves_what_is_registered_again() {
    let mut cluster = serving_cluster(2, 3);
    cluster.kill_gateway(false);
    cluster.invariants.store_replaced();
    cluster.invariants.other_store = true;
    cluster.store = Store::new("00000000000000000000000000000002".parse().unwrap());
    cluster.start_gateway();
    cluster.register("again:1", 5.0);
    let limit = Duration::from_mins(1);
    cluster.run_until("it serves", limit, |c| {
        !c.serving("again:1").is_empty() && c.is_healthy()
    });
    // The workers of the earlier cluster end where something else is needed, and everywhere after their grace time.
    cluster.run_for(LIMITS.former_cluster);
    let workers: usize = cluster.nodes.iter().map(|m| m.processes.len()).sum();
    assert_eq!(workers, cluster.serving("again:1").len());
}

#[test]
fn an_agent_with_a_wiped_folder_gets_its_node_back() {
    let mut cluster = serving_cluster(2, 4);
    let node: NodeName = "n0".parse().unwrap();
    cluster.kill_agent(&node);
    cluster.wipe(&"n0".parse().unwrap());
    cluster.start_agent(&node);
    let limit = Duration::from_mins(1);
    cluster.run_for(Duration::from_secs(10));
    cluster.run_until("all models serve", limit, VirtualCluster::is_healthy);
    let held = cluster.controller().node(&node).unwrap().holds_lease();
    assert!(held);
}

#[test]
fn an_agent_that_is_restarted_adopts_its_workers_and_loses_no_request() {
    let mut cluster = serving_cluster(1, 3);
    let node: NodeName = "n0".parse().unwrap();
    let (starts, before) = (cluster.worker_starts(), generation(&cluster));
    for model in 0..3 {
        let id = format!("m{model}:1").parse().unwrap();
        cluster.interruptions.insert(id, 0);
    }
    cluster.kill_agent(&node);
    cluster.run_for(Duration::from_secs(2));
    cluster.start_agent(&node);
    cluster.run_for(Duration::from_secs(30));
    assert_eq!(cluster.worker_starts(), starts);
    assert_eq!(generation(&cluster), before);
    assert!(cluster.interruptions.values().all(|count| *count == 0));
}

#[test]
fn a_gateway_that_dies_in_the_middle_of_a_rollout_ends_it_after_its_restart() {
    for carried_out in [false, true] {
        let mut cluster = serving_cluster(2, 4);
        cluster.environment.policy_fault = crate::virtual_cluster::PolicyFault::Moves;
        cluster.register("late:1", 5.0);
        cluster.environment.policy_fault = crate::virtual_cluster::PolicyFault::None;
        cluster.run_for(Duration::from_millis(700));
        cluster.kill_gateway(carried_out);
        cluster.run_for(Duration::from_secs(2));
        cluster.start_gateway();
        let limit = Duration::from_mins(2);
        cluster.run_until("all models serve", limit, VirtualCluster::is_healthy);
        assert_eq!(cluster.controller().models().count(), 5);
    }
}

#[test]
fn a_replica_that_a_plan_takes_back_does_not_drain_while_that_plan_is_stored() {
    let mut cluster = VirtualCluster::new(Settings {
        load: Duration::from_millis(1400),
        ..Settings::default()
    });
    for node in ["n0", "n1"] {
        cluster.add_node(node, "T4", 1, 8192);
    }
    cluster.register("a:1", 20.0);
    let limit = Duration::from_mins(1);
    cluster.run_until("it serves", limit, VirtualCluster::is_healthy);
    cluster.run_for(Duration::from_secs(10));
    let before = cluster.serving("a:1");
    cluster.interruptions.insert("a:1".parse().unwrap(), 0);
    cluster.settings.store_delay = Duration::from_millis(900);
    cluster.environment.policy_fault = crate::virtual_cluster::PolicyFault::Moves;
    let discipline = |discipline| {
        Command::ChangeSettings(Changed {
            discipline: Some(discipline),
            ..Changed::default()
        })
    };
    // The first plan moves the model, and the second one moves it back while its new replica is loading.
    cluster.command(discipline(Discipline::FixedWait));
    cluster.run_for(Duration::from_millis(1880));
    cluster.command(discipline(Discipline::Deadline));
    let drafted = cluster.now + Duration::from_millis(1370);
    cluster.run_for(Duration::from_secs(20));
    let proposed = |notice: &Notice| matches!(notice, Notice::Plan(_, PlanNotice::Proposed, _));
    assert_eq!(cluster.count_notices(drafted, proposed), 0);
    assert!(cluster.is_healthy());
    assert_eq!(cluster.serving("a:1"), before);
    assert!(cluster.interruptions.values().all(|count| *count == 0));
}

#[test]
fn a_gateway_that_dies_before_its_first_plan_starts_from_nothing() {
    let mut cluster = VirtualCluster::new(Settings::default());
    cluster.add_node("n0", "T4", 1, 4096);
    cluster.run_for(Duration::from_secs(2));
    cluster.kill_gateway(true);
    cluster.start_gateway();
    assert!(cluster.gateway.as_ref().unwrap().ready_since.is_some());
    cluster.register("m0:1", 5.0);
    let limit = Duration::from_mins(1);
    cluster.run_until("it serves", limit, VirtualCluster::is_healthy);
    assert!(cluster.now > Time::ZERO);
}
