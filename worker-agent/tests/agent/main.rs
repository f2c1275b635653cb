//! The real agent with a stand-in for the gateway: with real workers on simulated devices, and on GPUs of stand-in libraries.

#![expect(clippy::unwrap_used, reason = "a test ends where an unwrap does")]

mod common;
mod gpus;
mod worker_user;

use std::{
    process::{Command, Stdio},
    time::Duration,
};

use common::{
    Agent, FakeGateway, FakeState, Home, LIMIT, digest, profile, program, replica, signal,
};
use packhorse_api::agent::ProtocolRange;
use packhorse_cluster::{ClusterId, ProfileTable, ReplicaState, WantedReplica};
use packhorse_reconcile::Fence;
use packhorse_worker_agent::handoff::ProcessIdentity;
use tokio::{net::TcpStream, time::timeout};

#[tokio::test]
async fn a_wanted_replica_gets_ready_and_goes_with_everything_of_it_when_it_is_not_wanted() {
    let (gateway, home) = (FakeGateway::start().await, Home::new());
    let _agent = home.agent(gateway.address, &[]);
    gateway.want(vec![replica("1-0")], vec![]);
    let ready = gateway.until_state(ReplicaState::Ready).await;
    assert_eq!(home.workers(), [ready.pid.unwrap()]);
    TcpStream::connect(ready.address.unwrap()).await.unwrap();
    let devices = gateway.state.borrow().leases[0].devices.clone();
    let names: Vec<&str> = devices.iter().map(|device| device.name.as_str()).collect();
    assert_eq!(names, ["sim0", "sim1"]);
    let artifact = home.path("state/artifacts").join(digest().to_hex());
    assert!(artifact.exists());

    gateway.want(vec![], vec![]);
    gateway.until_empty().await;
    assert!(home.workers().is_empty());
    assert!(!home.path("state/replicas/1-0").exists());
    assert!(!artifact.exists());
}

#[tokio::test]
async fn a_killed_worker_is_started_again() {
    let (gateway, home) = (FakeGateway::start().await, Home::new());
    let _agent = home.agent(gateway.address, &[]);
    gateway.want(vec![replica("1-0")], vec![]);
    let first = gateway.until_state(ReplicaState::Ready).await;
    signal(first.pid.unwrap(), "KILL");
    let dead = gateway.until_state(ReplicaState::BackingOff).await;
    assert_eq!(
        dead.reason.as_deref(),
        Some("the worker was killed by signal 9")
    );
    assert_eq!(dead.address, None);
    let second = gateway.until_state(ReplicaState::Ready).await;
    assert_eq!(second.restarts, 1);
    assert_ne!(second.pid, first.pid);
}

#[tokio::test]
async fn a_killed_agents_worker_lives_on_and_the_next_agent_adopts_it() {
    let (gateway, home) = (FakeGateway::start().await, Home::new());
    let mut agent = home.agent(gateway.address, &[]);
    gateway.want(vec![replica("1-0")], vec![]);
    let before = gateway.until_state(ReplicaState::Ready).await;
    agent.kill();
    gateway.state.send_modify(|state| state.status = None);
    TcpStream::connect(before.address.unwrap()).await.unwrap();

    let _next = home.agent(gateway.address, &[]);
    let after = gateway.until_state(ReplicaState::Ready).await;
    assert_eq!(after, before);
    let leases = gateway.state.borrow().leases.clone();
    let instances = leases.iter().map(|lease| &lease.instance);
    assert!(
        instances.is_sorted_by(|a, b| a == b),
        "it takes the lease over"
    );
    signal(after.pid.unwrap(), "KILL");
    let restarted = gateway
        .until("a restarted replica", |state| {
            let replica = state.status.as_ref()?.replicas.first()?.clone();
            (replica.restarts == 1 && replica.state == ReplicaState::Ready).then_some(replica)
        })
        .await;
    assert_ne!(
        restarted.pid, before.pid,
        "an adopted worker is watched, too"
    );
}

#[tokio::test]
async fn a_process_that_only_names_the_folder_is_neither_adopted_nor_killed_nor_instead_of_the_worker()
 {
    let (gateway, home) = (FakeGateway::start().await, Home::new());
    let mut agent = home.agent(gateway.address, &[]);
    gateway.want(vec![replica("1-0")], vec![]);
    let before = gateway.until_state(ReplicaState::Ready).await;
    agent.kill();
    gateway.state.send_modify(|state| state.status = None);

    // Its process id may be below or above the worker's: either way it is found, too.
    let folder = home.path("state/replicas/1-0");
    let mut other = Command::new("sh")
        .args(["-c", "read line", "--dir"])
        .arg(&folder)
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    let _next = home.agent(gateway.address, &[]);
    let after = gateway.until_state(ReplicaState::Ready).await;
    assert_eq!(after, before);
    assert_eq!(other.try_wait().unwrap(), None, "it is left alone");

    // Without the worker it is still no worker: another one is started beside it.
    signal(after.pid.unwrap(), "KILL");
    let restarted = gateway
        .until("a restarted replica", |state| {
            let replica = state.status.as_ref()?.replicas.first()?.clone();
            (replica.restarts == 1 && replica.state == ReplicaState::Ready).then_some(replica)
        })
        .await;
    assert_ne!(restarted.pid, Some(other.id()));
    assert_eq!(other.try_wait().unwrap(), None);
    other.kill().unwrap();
    other.wait().unwrap();
}

#[tokio::test]
async fn an_orphan_that_nobody_wants_is_stopped() {
    let (gateway, home) = (FakeGateway::start().await, Home::new());
    let mut agent = home.agent(gateway.address, &[]);
    gateway.want(vec![replica("1-0")], vec![]);
    gateway.until_state(ReplicaState::Ready).await;
    agent.kill();
    gateway.want(vec![], vec![]);
    let _next = home.agent(gateway.address, &[]);
    gateway.until_empty().await;
    assert!(home.workers().is_empty());
}

#[tokio::test]
async fn a_wanted_state_of_an_older_epoch_is_not_obeyed() {
    let (gateway, home) = (FakeGateway::start().await, Home::new());
    gateway.state.send_modify(|state| state.epoch = 2);
    let _agent = home.agent(gateway.address, &[]);
    gateway.want(vec![replica("1-0")], vec![]);
    let before = gateway.until_state(ReplicaState::Ready).await;
    gateway.state.send_modify(|state| state.epoch = 1);
    gateway.want(vec![], vec![]);
    gateway.state.send_modify(|state| state.hasty = true);
    let polls = gateway.state.borrow().polls;
    gateway
        .until("some stale answers", |state| {
            (state.polls > polls + 3).then_some(())
        })
        .await;
    let status = gateway.state.borrow().status.clone().unwrap();
    assert_eq!(status.epoch, 2);
    assert_eq!(status.replicas, [before]);
}

/// The cluster file of an agent's folder.
fn fence(home: &Home) -> Fence {
    let text = std::fs::read(home.path("state/cluster.json")).unwrap();
    serde_json::from_slice(&text).unwrap()
}

fn cluster(id: &str) -> ClusterId {
    id.parse().unwrap()
}

#[tokio::test]
async fn the_epoch_that_an_agent_has_seen_is_told_and_outlives_the_agent() {
    let (gateway, home) = (FakeGateway::start().await, Home::new());
    gateway.state.send_modify(|state| {
        state.epoch = 7;
        state.cluster = Some(cluster("c1"));
        state.proves = true;
    });
    let mut agent = home.agent(gateway.address, &[]);
    gateway.want(vec![replica("1-0")], vec![]);
    let before = gateway.until_state(ReplicaState::Ready).await;
    agent.kill();
    assert_eq!(fence(&home).highest_epoch, 7);

    // A backup was restored: the gateway has an older epoch, and wants nothing.
    gateway.state.send_modify(|state| {
        state.epoch = 3;
        state.leases.clear();
        state.status = None;
        state.hasty = true;
    });
    gateway.want(vec![], vec![]);
    let _next = home.agent(gateway.address, &[]);
    let lease = gateway
        .until("a lease request", |state| state.leases.first().cloned())
        .await;
    assert_eq!(
        (lease.cluster_id, lease.highest_epoch),
        (Some(cluster("c1")), 7)
    );
    gateway
        .until("a second try", |state| state.leases.get(1).cloned())
        .await;
    assert_eq!(
        home.workers(),
        [before.pid.unwrap()],
        "the worker serves on"
    );
    assert_eq!(
        gateway.state.borrow().status,
        None,
        "nothing older is obeyed"
    );

    // The gateway raises its epoch, as the request tells it to.
    gateway.state.send_modify(|state| {
        state.epoch = 8;
        state.wanted.epoch = 8;
        state.wanted.replicas = vec![replica("1-0")];
    });
    assert_eq!(gateway.until_state(ReplicaState::Ready).await, before);
    assert_eq!(fence(&home).highest_epoch, 8);
}

#[tokio::test]
async fn the_gateway_of_another_cluster_is_obeyed_only_after_its_proof_and_from_its_own_epoch_on() {
    let (gateway, home) = (FakeGateway::start().await, Home::new());
    gateway.state.send_modify(|state| {
        state.epoch = 7;
        state.cluster = Some(cluster("c1"));
        state.proves = true;
    });
    let _agent = home.agent(gateway.address, &[]);
    gateway.want(vec![replica("1-0")], vec![]);
    let before = gateway.until_state(ReplicaState::Ready).await;

    gateway.state.send_modify(|state| {
        state.epoch = 1;
        state.cluster = Some(cluster("c2"));
        state.proves = false;
        state.hasty = true;
        state.wanted.epoch = 99;
        state.wanted.replicas.clear();
        state.leases.clear();
    });
    gateway
        .until("some tries", |state| state.leases.get(2).cloned())
        .await;
    assert_eq!(home.workers(), [before.pid.unwrap()]);
    assert_eq!(fence(&home).cluster_id, Some(cluster("c1")));

    gateway.state.send_modify(|state| {
        state.proves = true;
        state.wanted.epoch = 1;
        state.wanted.revision = 1;
        state.wanted.replicas = vec![replica("1-0")];
    });
    gateway
        .until("the new cluster's state", |state| {
            let status = state.status.as_ref()?;
            (status.epoch == 1 && status.revision == 1).then_some(())
        })
        .await;
    assert_eq!(gateway.until_state(ReplicaState::Ready).await, before);
    assert_eq!(
        (fence(&home).cluster_id, fence(&home).highest_epoch),
        (Some(cluster("c2")), 1)
    );
    gateway.want(vec![], vec![]);
    gateway.until_empty().await;
}

#[tokio::test]
async fn a_gateway_one_version_ahead_is_obeyed_and_one_without_a_common_version_is_not() {
    let (gateway, home) = (FakeGateway::start().await, Home::new());
    gateway
        .state
        .send_modify(|state| state.protocol = ProtocolRange { first: 2, last: 3 });
    let _agent = home.agent(gateway.address, &[]);
    gateway
        .until("some tries", |state| state.leases.get(2).cloned())
        .await;
    assert_eq!(gateway.state.borrow().status, None);
    gateway
        .state
        .send_modify(|state| state.protocol = ProtocolRange { first: 1, last: 2 });
    gateway.want(vec![replica("1-0")], vec![]);
    gateway.until_state(ReplicaState::Ready).await;
}

#[tokio::test]
async fn a_worker_is_restarted_when_the_gateway_asks_for_another_attempt() {
    let (gateway, home) = (FakeGateway::start().await, Home::new());
    let _agent = home.agent(gateway.address, &[]);
    gateway.want(vec![replica("1-0")], vec![]);
    let before = gateway.until_state(ReplicaState::Ready).await;
    let again = WantedReplica {
        attempt: 1,
        ..replica("1-0")
    };
    gateway.want(vec![again], vec![]);
    let after = gateway
        .until("another worker", |state| {
            let replica = state.status.as_ref()?.replicas.first()?.clone();
            (replica.state == ReplicaState::Ready && replica.pid != before.pid).then_some(replica)
        })
        .await;
    assert_eq!(after.restarts, 1);
    assert_eq!(home.workers(), [after.pid.unwrap()]);
}

#[tokio::test]
async fn workers_serve_while_the_gateway_is_away_and_are_reported_when_it_is_back() {
    let (gateway, home) = (FakeGateway::start().await, Home::new());
    let _agent = home.agent(gateway.address, &[]);
    gateway.want(vec![replica("1-0")], vec![]);
    let before = gateway.until_state(ReplicaState::Ready).await;
    let (address, mut state) = (gateway.address, gateway.state.borrow().clone());
    drop(gateway);
    TcpStream::connect(before.address.unwrap()).await.unwrap();
    state.epoch = 2;
    state.wanted.epoch = 2;
    state.status = None;
    let gateway = FakeGateway::start_at(address, state).await;
    gateway
        .until("the new epoch", |state| {
            (state.status.as_ref()?.epoch == 2).then_some(())
        })
        .await;
    assert_eq!(gateway.until_state(ReplicaState::Ready).await, before);
}

#[tokio::test]
async fn an_artifact_with_another_digest_is_refused_with_a_reason_and_tried_again() {
    let (gateway, home) = (FakeGateway::start().await, Home::new());
    let name = digest().to_string();
    let right = gateway.state.borrow().artifacts[&name].clone();
    gateway.state.send_modify(|state| {
        state.artifacts.insert(name.clone(), b"wrong".to_vec());
    });
    let _agent = home.agent(gateway.address, &[]);
    gateway.want(vec![replica("1-0")], vec![]);
    let reason = gateway
        .until("a reason", |state| {
            state.status.as_ref()?.replicas.first()?.reason.clone()
        })
        .await;
    assert!(
        reason.starts_with("the artifact's digest does not match: got sha256:"),
        "{reason}"
    );
    gateway.state.send_modify(|state| {
        state.artifacts.insert(name.clone(), right.clone());
    });
    gateway.until_state(ReplicaState::Ready).await;
}

#[tokio::test]
async fn a_worker_that_cannot_start_backs_off_and_says_why() {
    let (gateway, home) = (FakeGateway::start().await, Home::new());
    let script = home.script(
        "worker",
        "echo cannot open /home/x/libtorch.so >&2\nexit 1\n",
    );
    let _agent = home.agent(gateway.address, &["--worker", script.to_str().unwrap()]);
    gateway.want(vec![replica("1-0")], vec![]);
    let failing = gateway
        .until("restarts", |state| {
            let replica = state.status.as_ref()?.replicas.first()?.clone();
            (replica.restarts >= 2 && replica.state == ReplicaState::BackingOff).then_some(replica)
        })
        .await;
    let reason = failing.reason.unwrap();
    assert_eq!(reason, "the worker ended with status 1: cannot open …");
}

#[tokio::test]
async fn a_measurement_is_made_and_its_result_kept_until_it_is_not_wanted() {
    let (gateway, home) = (FakeGateway::start().await, Home::new());
    let _agent = home.agent(gateway.address, &[]);
    gateway.want(vec![], vec![profile()]);
    let csv = gateway
        .until("a measurement", |state| {
            state.status.as_ref()?.profiles.first()?.csv.clone()
        })
        .await;
    let table = ProfileTable::from_csv(&csv).unwrap();
    let measured = table
        .get(&"m:1".parse().unwrap(), &"T4".parse().unwrap())
        .unwrap();
    let sizes: Vec<u32> = measured.rows().iter().map(|row| row.batch_size).collect();
    assert_eq!(sizes, [1, 2, 4]);
    gateway.want(vec![], vec![]);
    gateway
        .until("no measurement", |state| {
            state.status.as_ref()?.profiles.is_empty().then_some(())
        })
        .await;
}

#[tokio::test]
async fn an_inspection_needs_no_device_and_its_result_is_kept_until_it_is_not_wanted() {
    let (gateway, home) = (FakeGateway::start().await, Home::new());
    let mut command = home.agent_command(gateway.address);
    let _agent = Agent(command.args(["--devices", "cpu"]).spawn().unwrap());
    gateway.want_inspections(vec![program()]);
    let first = |state: &FakeState| {
        state
            .status
            .as_ref()?
            .inspections
            .as_ref()?
            .first()
            .cloned()
    };
    let ended = gateway.until("an inspection", first).await;
    assert_eq!(ended.model.to_string(), "m:1");
    assert_eq!(ended.operators, None, "the artifact is no program");
    assert!(ended.error.is_some());
    gateway.want_inspections(vec![]);
    gateway
        .until("no inspection", |state| {
            let inspections = state.status.as_ref()?.inspections.as_ref()?;
            inspections.is_empty().then_some(())
        })
        .await;
    assert!(!home.path("state/inspections/m:1").exists());
}

#[tokio::test]
async fn an_agent_with_simulated_devices_alone_makes_no_inspections() {
    let (gateway, home) = (FakeGateway::start().await, Home::new());
    let _agent = home.agent(gateway.address, &[]);
    let status = gateway
        .until("a status", |state| state.status.clone())
        .await;
    assert_eq!(status.inspections, None);
}

#[tokio::test]
async fn an_agent_leaves_its_workers_or_takes_them_along_as_it_is_told() {
    let (gateway, home) = (FakeGateway::start().await, Home::new());
    let agent = home.agent(gateway.address, &[]);
    gateway.want(vec![replica("1-0"), replica("1-1")], vec![]);
    let all_ready = |state: &common::FakeState| {
        let replicas = &state.status.as_ref()?.replicas;
        let ready = replicas
            .iter()
            .all(|replica| replica.state == ReplicaState::Ready);
        (replicas.len() == 2 && ready).then_some(())
    };
    gateway.until("two replicas", all_ready).await;
    assert!(agent.stop().success());
    assert_eq!(home.workers().len(), 2);

    gateway.state.send_modify(|state| state.status = None);
    let leases = gateway.state.borrow().leases.len();
    let agent = home.agent(gateway.address, &["--stop-workers-on-exit"]);
    // The last status of the agent before may arrive late; this one listens to signals before it takes its lease.
    gateway
        .until("two replicas of the next agent", |state| {
            (state.leases.len() > leases).then(|| all_ready(state))?
        })
        .await;
    let pids = home.workers();
    assert_eq!(pids.len(), 2);
    let stopped = tokio::task::spawn_blocking(move || agent.stop());
    assert!(timeout(LIMIT, stopped).await.unwrap().unwrap().success());
    assert!(home.workers().is_empty());
    assert!(
        pids.into_iter()
            .all(|pid| ProcessIdentity::from_pid(pid).is_none())
    );
}

#[tokio::test]
async fn a_second_agent_on_the_same_folder_is_refused() {
    let (gateway, home) = (FakeGateway::start().await, Home::new());
    let _agent = home.agent(gateway.address, &[]);
    gateway
        .until("a lease", |state| (!state.leases.is_empty()).then_some(()))
        .await;
    let second = Command::new(env!("CARGO_BIN_EXE_packhorse-agent"))
        .args([
            "--gateway",
            &format!("http://{}", gateway.address),
            "--devices",
            "cpu",
        ])
        .arg("--state-dir")
        .arg(home.path("state"))
        .arg("--token-file")
        .arg(home.path("token"))
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert!(!second.status.success());
    let message = String::from_utf8(second.stderr).unwrap();
    assert!(
        message.contains("is in use by another process (process "),
        "{message}"
    );
}

#[tokio::test]
async fn the_death_of_a_worker_is_reported_within_a_tenth_of_a_second_or_so() {
    let (gateway, home) = (FakeGateway::start().await, Home::new());
    let _agent = home.agent(gateway.address, &[]);
    gateway.want(vec![replica("1-0")], vec![]);
    let ready = gateway.until_state(ReplicaState::Ready).await;
    signal(ready.pid.unwrap(), "KILL");
    // The design's bound is 100 ms; the test allows for a busy machine.
    let noticed = gateway.until_state(ReplicaState::BackingOff);
    timeout(Duration::from_secs(1), noticed).await.unwrap();
}
