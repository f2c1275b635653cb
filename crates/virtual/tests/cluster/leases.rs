//! Leases, reports and measurements at the size of a large cluster, and in pauses.

use std::time::Duration;

use packhorse_cluster::{
    Capacity, ModelId, ModelState, NodeName, NodeState, ReplicaStatus, Scheduling, Time, WorkerKind,
};
use packhorse_control::{
    Command, CommandError, LeaseClaim, NodeReport, Notice, PlanNotice, record::Settings as Changed,
};

use crate::virtual_cluster::{LEASE, Settings, VirtualCluster, name, spec};

const GIB: u64 = 1024;

fn is_lost(notice: &Notice) -> bool {
    matches!(notice, Notice::Node(_, Some(NodeState::Lost), _))
}

fn is_adopted(notice: &Notice) -> bool {
    matches!(notice, Notice::Plan(_, PlanNotice::Adopted, _))
}

/// Returns a cluster with this many nodes of one device each, and models that serve.
fn serving_cluster(nodes: usize, models: usize) -> VirtualCluster {
    let mut cluster = VirtualCluster::new(Settings::default());
    for node in 0..nodes {
        cluster.add_node(&format!("n{node}"), "T4", 1, 4 * GIB);
    }
    for model in 0..models {
        cluster.register(&format!("m{model}:1"), 20.0);
    }
    let limit = Duration::from_mins(5);
    cluster.run_until("all models serve", limit, VirtualCluster::is_healthy);
    // Until nothing more is to be planned.
    cluster.run_for(Duration::from_secs(20));
    cluster
}

#[test]
fn a_thousand_unprofiled_models_on_504_devices_are_all_measured_and_no_lease_ends() {
    let mut cluster = VirtualCluster::new(Settings {
        measure: Duration::from_secs(8),
        solve_delay: Duration::from_secs(1),
        ..Settings::default()
    });
    for node in 0..63 {
        cluster.add_node(&format!("n{node}"), "T4", 8, 16 * GIB);
    }
    for model in 0..1000 {
        let register = Command::Register(Box::new(spec(&format!("m{model}:1"), 5.0)), 1);
        cluster.command(register);
        // As quickly as the store is.
        cluster.run_for(Duration::from_millis(5));
    }
    let limit = Duration::from_mins(10);
    cluster.run_until("all models serve", limit, |cluster| {
        cluster.controller().measurements() == (0, 0) && cluster.is_healthy()
    });
    assert_eq!(cluster.controller().models().count(), 1000);
    for (id, _) in cluster.controller().models() {
        let measured = cluster.controller().profiles().of_model(id).count();
        assert_eq!(measured, 1, "{id}");
    }
    assert_eq!(cluster.count_notices(Time::ZERO, is_lost), 0);
}

#[test]
fn a_pause_of_the_gateway_of_8s_moves_nothing_and_ends_no_lease() {
    let mut cluster = serving_cluster(6, 12);
    let (before, starts) = (cluster.now, cluster.worker_starts());
    let generation = cluster.controller().plan().map(|plan| plan.generation);
    cluster.pause_gateway(Duration::from_secs(8));
    cluster.run_for(Duration::from_mins(1));
    assert_eq!(cluster.count_notices(before, is_lost), 0);
    assert_eq!(cluster.worker_starts(), starts);
    let after = cluster.controller().plan().map(|plan| plan.generation);
    assert_eq!(after, generation);
    let paused = |notice: &Notice| matches!(notice, Notice::Paused(_));
    assert_eq!(cluster.count_notices(before, paused), 1);
}

#[test]
fn a_network_that_is_cut_for_8s_ends_all_leases_and_moves_nothing() {
    let mut cluster = serving_cluster(6, 12);
    let (before, starts) = (cluster.now, cluster.worker_starts());
    for node in 0..6 {
        cluster.node(&format!("n{node}")).reachable = false;
    }
    cluster.run_for(Duration::from_secs(8));
    assert_eq!(cluster.count_notices(before, is_lost), 6);
    // They come back one after the other.
    for node in 0..6 {
        cluster.node(&format!("n{node}")).reachable = true;
        cluster.run_for(Duration::from_millis(90));
    }
    cluster.run_for(Duration::from_mins(1));
    assert!(cluster.is_healthy());
    assert_eq!(cluster.worker_starts(), starts);
}

#[test]
fn a_node_that_is_gone_is_planned_around_within_its_lease() {
    let mut cluster = serving_cluster(3, 4);
    let lost = cluster.node_of("m0:1");
    cluster.switch_off(&lost);
    let took = cluster.run_until("m0 serves again", Duration::from_secs(30), |c| {
        !c.serving("m0:1").is_empty()
    });
    assert!(took < LEASE + Duration::from_secs(3), "{took:?}");
    cluster.start_agent(&lost);
    let limit = Duration::from_mins(1);
    cluster.run_until("the node is back", limit, |cluster| {
        let node = cluster.controller().node(&lost);
        node.map(packhorse_control::Node::state) == Some(NodeState::Ready) && cluster.is_healthy()
    });
}

#[test]
fn a_status_without_room_for_one_row_stops_planning_for_nobody() {
    let mut cluster = serving_cluster(2, 2);
    let (id, _) = cluster.serving("m0:1")[0];
    let replica = cluster.controller().replica(id).unwrap().clone();
    let node = replica.spec.device.node().clone();
    let mut report: NodeReport = cluster.node(node.as_str()).report().unwrap();
    let status: &mut ReplicaStatus = report.replicas.get_mut(&id).unwrap();
    status.capacity = Some(Capacity {
        batch_size: 0,
        in_flight: 1,
        multiprocessors: None,
    });
    // The gateway's edge refuses it; here it comes through all the same.
    cluster
        .command_and_wait(Command::Report(node, report))
        .unwrap();
    cluster.register("other:1", 20.0);
    let limit = Duration::from_mins(1);
    cluster.run_until("the other model serves", limit, |cluster| {
        cluster.state("other:1").0 == ModelState::Ready
    });
    assert!(!cluster.serving("m1:1").is_empty());
}

#[test]
fn nodes_are_removed_and_make_room_for_others() {
    let mut cluster = VirtualCluster::new(Settings::default());
    let claim = |number: usize| LeaseClaim {
        instance: format!("folder {number}"),
        agent_version: "1".to_owned(),
        libtorch: None,
        devices: Vec::new(),
        cluster_id: None,
        highest_epoch: 0,
    };
    let node = |number: usize| -> NodeName { format!("x{number}").parse().unwrap() };
    for number in 0..1024 {
        let lease = Command::TakeLease(node(number), claim(number));
        cluster.command_and_wait(lease).unwrap();
    }
    let one_more = || Command::TakeLease(node(1024), claim(1024));
    let refused = cluster.command_and_wait(one_more());
    assert_eq!(refused, Err(CommandError::TooManyNodes));
    let held = cluster.command_and_wait(Command::RemoveNode(node(0)));
    assert_eq!(held, Err(CommandError::NodeInUse(node(0))));
    cluster.run_for(LEASE + Duration::from_secs(1));
    let removed = cluster.command_and_wait(Command::RemoveNode(node(0)));
    assert_eq!(removed, Ok(()));
    assert_eq!(cluster.command_and_wait(one_more()), Ok(()));
    cluster.run_for(Duration::from_secs(1));
    let on_disk: Vec<&NodeName> = cluster.store.disk.nodes.iter().map(|n| &n.name).collect();
    assert_eq!(on_disk.len(), 1024);
    assert!(!on_disk.contains(&&node(0)) && on_disk.contains(&&node(1024)));
}

#[test]
fn a_node_that_comes_back_while_its_removal_is_stored_is_not_lost() {
    let mut cluster = serving_cluster(2, 3);
    let node: NodeName = "n0".parse().unwrap();
    cluster.change_network(&node, |node| node.reachable = false);
    let limit = Duration::from_secs(20);
    cluster.run_until("its lease ends", limit, |cluster| {
        let node = cluster.controller().node(&node);
        node.map(packhorse_control::Node::state) == Some(NodeState::Lost)
    });
    cluster.settings.store_delay = Duration::from_secs(3);
    let removal = cluster.command(Command::RemoveNode(node.clone()));
    cluster.change_network(&node, |node| node.reachable = true);
    cluster.run_until("the removal is answered", limit, |cluster| {
        cluster.invariants.answers.contains_key(&removal)
    });
    cluster.settings.store_delay = Duration::from_millis(5);
    cluster.run_for(Duration::from_secs(20));
    assert!(cluster.controller().node(&node).is_some());
    assert!(cluster.store.disk.nodes.iter().any(|n| n.name == node));
}

#[test]
fn a_node_whose_devices_change_keeps_the_scheduling_that_is_being_stored() {
    let mut cluster = serving_cluster(2, 1);
    let node: NodeName = "n0".parse().unwrap();
    cluster.settings.store_delay = Duration::from_secs(2);
    let cordon = Command::ScheduleNode(node.clone(), Scheduling::Cordoned, None);
    let key = cluster.command(cordon);
    // A device is gone before the first write is stored; the second one is written behind it.
    cluster.kill_agent(&node);
    cluster.node("n0").devices[0].description = "another driver".to_owned();
    cluster.start_agent(&node);
    cluster.run_for(Duration::from_secs(10));
    assert_eq!(cluster.invariants.answers.get(&key), Some(&Ok(())));
    let on_disk = cluster.store.disk.nodes.iter().find(|n| n.name == node);
    let on_disk = on_disk.unwrap();
    assert_eq!(on_disk.scheduling, Scheduling::Cordoned);
    assert_eq!(on_disk.devices[0].description, "another driver");
}

#[test]
fn a_report_of_replicas_that_nobody_knows_changes_nothing() {
    let mut cluster = serving_cluster(2, 2);
    let before = cluster.now;
    let mut report = cluster.node("n0").report().unwrap();
    let status = ReplicaStatus {
        id: "99-7".parse().unwrap(),
        state: packhorse_cluster::ReplicaState::BackingOff,
        address: None,
        local_path: None,
        pid: None,
        restarts: 9,
        reason: Some("of a later version".to_owned()),
        memory_bytes: None,
        capacity: None,
        verification: None,
        worker: WorkerKind::Own,
    };
    report.replicas.insert(status.id, status);
    let node: NodeName = "n0".parse().unwrap();
    cluster
        .command_and_wait(Command::Report(node, report))
        .unwrap();
    cluster.run_for(Duration::from_secs(10));
    assert_eq!(cluster.count_notices(before, is_adopted), 0);
    assert!(cluster.is_healthy());
}

#[test]
fn a_measurement_that_cannot_be_stored_is_stored_once_it_can() {
    let mut cluster = VirtualCluster::new(Settings::default());
    cluster.add_node("n0", "T4", 1, 4 * GIB);
    cluster.register("m0:1", 20.0);
    cluster.store.failure = Some(packhorse_control::WriteError::DiskFull);
    cluster.run_for(Duration::from_secs(10));
    assert!(cluster.controller().profiles().is_empty());
    cluster.store.failure = None;
    let limit = Duration::from_mins(1);
    cluster.run_until("the model serves", limit, VirtualCluster::is_healthy);
}

#[test]
fn a_policy_that_fails_is_asked_again() {
    let mut cluster = serving_cluster(1, 1);
    cluster.environment.policy_fault = crate::virtual_cluster::PolicyFault::Fails;
    cluster.register("late:1", 10.0);
    cluster.run_for(Duration::from_secs(10));
    let (state, reason) = cluster.state("late:1");
    assert_eq!(state, ModelState::Planning);
    assert!(reason.contains("the policy is broken"), "{reason}");
    // It is not asked all the time.
    let asked = cluster.gateway.as_ref().unwrap().plans_made;
    cluster.run_for(Duration::from_mins(10));
    let more = cluster.gateway.as_ref().unwrap().plans_made - asked;
    assert!((5..=40).contains(&more), "{more}");
    cluster.environment.policy_fault = crate::virtual_cluster::PolicyFault::None;
    let limit = Duration::from_mins(2);
    cluster.run_until("the model serves", limit, VirtualCluster::is_healthy);
}

#[test]
fn models_that_are_removed_leave_nothing_behind() {
    let mut cluster = serving_cluster(2, 3);
    let id: ModelId = "m1:1".parse().unwrap();
    let remove = Command::RemoveModel(name("m1"), None);
    cluster.command_and_wait(remove).unwrap();
    let limit = Duration::from_secs(30);
    cluster.run_until("its workers end", limit, VirtualCluster::is_healthy);
    assert!(cluster.serving("m1:1").is_empty());
    assert!(
        cluster
            .controller()
            .profiles()
            .of_model(&id)
            .next()
            .is_none()
    );
    assert!(
        !cluster
            .store
            .disk
            .models
            .iter()
            .any(|m| m.spec.program.model == id)
    );
    // Another model of the same name is measured anew.
    cluster.register("m1:1", 20.0);
    cluster.run_until(
        "it serves",
        Duration::from_mins(1),
        VirtualCluster::is_healthy,
    );
    assert!(!cluster.serving("m1:1").is_empty());
    let policy = Changed {
        policy: Some("exclusive".to_owned()),
        ..Changed::default()
    };
    cluster
        .command_and_wait(Command::ChangeSettings(policy.clone()))
        .unwrap();
    assert_eq!(cluster.store.disk.settings.policy, policy.policy);
}
