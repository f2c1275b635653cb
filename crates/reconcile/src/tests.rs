//! Scenarios of one node, and random histories of wanted states, failures and delays.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use packhorse_cluster::{
    ArtifactDigest, ByteCount, Capacity, DroppedRewriting, InspectionResult, Program, ReplicaState,
    ReplicaStatus, Time, Verification, WantedProfile, WantedReplica, WantedState, WorkerKind,
};
use proptest::prelude::*;

use super::*;

const LIMITS: Limits = Limits {
    drain: Duration::from_secs(15),
    load: Duration::from_mins(5),
    measure_grace: Duration::from_mins(1),
    inspect: Duration::from_mins(1),
    former_cluster: Duration::from_mins(15),
};
const ADDRESS: &str = "127.0.0.1:7";

fn program(model: &str) -> Program {
    let first = model.as_bytes()[0];
    Program {
        model: model.parse().unwrap(),
        artifact: ArtifactDigest::from_sha256([first; 32]),
        max_batch_size: 8,
        inputs: Vec::new(),
        outputs: Vec::new(),
    }
}

fn replica(id: &str, model: &str, device: &str) -> WantedReplica {
    WantedReplica {
        id: id.parse().unwrap(),
        program: program(model),
        device: device.to_owned(),
        batch_size: 4,
        compute_share_pct: None,
        memory_bytes: None,
        attempt: 0,
        worker: None,
        pooled: false,
    }
}

/// Replicas of one worker, whose identity is that of the first.
fn sharing(ids: &[&str], device: &str) -> Vec<WantedReplica> {
    let worker = Some(ids[0].parse().unwrap());
    let replicas = ids.iter().zip('p'..);
    replicas
        .map(|(id, model)| WantedReplica {
            worker,
            ..replica(id, &model.to_string(), device)
        })
        .collect()
}

fn profile(model: &str, device: &str) -> WantedProfile {
    WantedProfile {
        program: program(model),
        device: device.to_owned(),
        device_kind: "kind".parse().unwrap(),
        time_limit_ms: 20_000,
        inspect: true,
    }
}

fn wanted(revision: u64, replicas: &[WantedReplica], profiles: &[WantedProfile]) -> Event {
    Event::Wanted(WantedState {
        epoch: 1,
        revision,
        replicas: replicas.to_vec(),
        profiles: profiles.to_vec(),
        inspections: Vec::new(),
    })
}

fn id(text: &str) -> TaskId {
    TaskId::Replica(text.parse().unwrap())
}

const CAPACITY: Capacity = Capacity {
    batch_size: 2,
    in_flight: 3,
    multiprocessors: Some(40),
};

fn ready() -> WorkerReport {
    WorkerReport::Ready {
        address: ADDRESS.parse().unwrap(),
        local_path: Some("/run/w/link.sock".to_owned()),
        also: Vec::new(),
        memory: Some(ByteCount::new(5)),
        capacity: Some(CAPACITY),
        verification: Some(verification()),
    }
}

fn verification() -> Verification {
    Verification {
        compared: 6,
        not_compared: None,
        dropped: vec![DroppedRewriting {
            rewriting: "oneDNN's aten::add".to_owned(),
            reason: "its answers differ".to_owned(),
        }],
    }
}

fn inspected() -> WorkerReport {
    let operators = "{}".to_owned();
    WorkerReport::Inspected { operators }
}

/// A report of a worker that runs these replicas, too.
fn ready_also(also: &[&str]) -> WorkerReport {
    let listening = also.iter().map(|id| AlsoListening {
        replica: id.parse().unwrap(),
        address: "127.0.0.1:9001".parse().unwrap(),
        local_path: None,
    });
    match ready() {
        WorkerReport::Ready {
            address,
            local_path,
            memory,
            capacity,
            verification,
            ..
        } => WorkerReport::Ready {
            address,
            local_path,
            also: listening.collect(),
            memory,
            capacity,
            verification,
        },
        other => other,
    }
}

/// A reconciler with a clock.
struct TestNode {
    reconciler: Reconciler,
    now: Time,
}

impl TestNode {
    fn new() -> Self {
        Self {
            reconciler: Reconciler::new(["a".to_owned(), "b".to_owned()], LIMITS),
            now: Time::ZERO,
        }
    }

    /// A node on which replica 1-0 of model m is ready on device a.
    fn serving() -> Self {
        let mut node = Self::new();
        let replica = replica("1-0", "m", "a");
        let digest = replica.program.artifact;
        assert_eq!(
            node.on(wanted(1, std::slice::from_ref(&replica), &[])),
            [Action::Fetch(digest)]
        );
        assert_eq!(
            node.on(Event::Fetched(digest)),
            [Action::Start(Task::Serve(replica.into()))]
        );
        assert_eq!(node.on(Event::Started(id("1-0"), 77)), []);
        assert_eq!(node.on(Event::Reported(id("1-0"), ready())), []);
        node
    }

    fn on(&mut self, event: Event) -> Vec<Action> {
        self.reconciler.handle(self.now, event);
        self.reconciler.poll(self.now)
    }

    fn after(&mut self, duration: Duration) -> Vec<Action> {
        self.now += duration;
        self.reconciler.poll(self.now)
    }

    fn status(&self) -> ReplicaStatus {
        self.reconciler.replicas()[0].clone()
    }

    fn reason(&self) -> String {
        self.status().reason.unwrap()
    }
}

fn starts(actions: &[Action]) -> Vec<TaskId> {
    let start = |action: &Action| match action {
        Action::Start(task) => Some(task.id()),
        _ => None,
    };
    actions.iter().filter_map(start).collect()
}

#[test]
fn a_wanted_replica_is_fetched_started_and_reported_ready() {
    let node = TestNode::serving();
    let expected = ReplicaStatus {
        id: "1-0".parse().unwrap(),
        state: ReplicaState::Ready,
        address: Some(ADDRESS.parse().unwrap()),
        local_path: Some("/run/w/link.sock".to_owned()),
        pid: Some(77),
        restarts: 0,
        reason: None,
        memory_bytes: Some(ByteCount::new(5)),
        capacity: Some(CAPACITY),
        verification: Some(verification()),
        worker: WorkerKind::Own,
    };
    assert_eq!(node.status(), expected);
    assert_eq!(node.reconciler.applied(), (1, 1));
}

#[test]
fn a_worker_that_dies_is_started_again_after_a_pause_that_doubles_up_to_ten_seconds() {
    let mut node = TestNode::serving();
    let mut pauses = Vec::new();
    for _ in 0..9 {
        assert_eq!(node.on(Event::Exited(id("1-0"), ExitCause::Signal(9))), []);
        assert_eq!(node.status().state, ReplicaState::BackingOff);
        assert_eq!(
            node.reason(),
            Reason::Exited(ExitCause::Signal(9)).to_string()
        );
        assert_eq!(node.status().address, None);
        let pause = node.reconciler.wakeup().unwrap().saturating_since(node.now);
        assert_eq!(
            node.after(pause.saturating_sub(Duration::from_nanos(1))),
            []
        );
        assert_eq!(starts(&node.after(Duration::from_nanos(1))), [id("1-0")]);
        node.on(Event::Started(id("1-0"), 78));
        pauses.push(u64::try_from(pause.as_millis()).unwrap());
    }
    assert_eq!(
        pauses,
        [100, 200, 400, 800, 1600, 3200, 6400, 10_000, 10_000]
    );
    assert_eq!(node.status().restarts, 9);
}

#[test]
fn half_a_minute_of_health_makes_the_next_death_a_first_one() {
    for (health, pause) in [(29_999, 200), (30_000, 100)] {
        let mut node = TestNode::serving();
        node.on(Event::Exited(id("1-0"), ExitCause::Ended));
        node.after(Duration::from_millis(100));
        node.on(Event::Started(id("1-0"), 78));
        node.on(Event::Reported(id("1-0"), ready()));
        node.after(Duration::from_millis(health));
        node.on(Event::Exited(id("1-0"), ExitCause::Ended));
        let wakeup = node.reconciler.wakeup().unwrap();
        assert_eq!(
            wakeup.saturating_since(node.now),
            Duration::from_millis(pause),
            "{health}"
        );
    }
}

#[test]
fn what_failed_for_good_is_not_started_again_until_something_else_is_wanted() {
    let mut node = TestNode::serving();
    let report = WorkerReport::Failed {
        reason: "forward() takes 2 arguments".to_owned(),
        permanent: true,
    };
    node.on(Event::Reported(id("1-0"), report));
    let status_10 = ExitCause::Status {
        code: 10,
        last_line: None,
    };
    node.on(Event::Exited(id("1-0"), status_10));
    assert_eq!(node.reconciler.wakeup(), None);
    assert_eq!(node.after(Duration::from_hours(1)), []);
    assert_eq!(node.status().state, ReplicaState::Failed);
    assert_eq!(node.reason(), "forward() takes 2 arguments");

    let changed = WantedReplica {
        batch_size: 1,
        ..replica("1-0", "m", "a")
    };
    let actions = node.on(wanted(2, std::slice::from_ref(&changed), &[]));
    assert_eq!(
        actions,
        [
            Action::Forget(id("1-0")),
            Action::Start(Task::Serve(changed.into()))
        ]
    );
}

#[test]
fn a_worker_serves_on_when_only_its_profile_says_something_else() {
    let mut node = TestNode::serving();
    let measured_anew = WantedReplica {
        memory_bytes: Some(ByteCount::new(9)),
        ..replica("1-0", "m", "a")
    };
    assert_eq!(node.on(wanted(2, &[measured_anew], &[])), []);
    assert_eq!(node.status().state, ReplicaState::Ready);
}

#[test]
fn an_unwanted_worker_is_told_to_finish_then_killed_and_its_artifact_goes() {
    let mut node = TestNode::serving();
    assert_eq!(node.on(wanted(2, &[], &[])), [Action::Terminate(id("1-0"))]);
    assert_eq!(node.status().state, ReplicaState::Draining);
    assert_eq!(
        node.after(LIMITS.drain.saturating_sub(Duration::from_nanos(1))),
        []
    );
    assert_eq!(
        node.after(Duration::from_nanos(1)),
        [Action::Kill(id("1-0"))]
    );
    assert_eq!(node.after(Duration::from_hours(1)), []);
    let actions = node.on(Event::Exited(id("1-0"), ExitCause::Signal(9)));
    let digest = program("m").artifact;
    assert_eq!(actions, [Action::Forget(id("1-0")), Action::Evict(digest)]);
    assert_eq!(node.reconciler.replicas(), []);
    assert!(node.reconciler.is_idle());
}

#[test]
fn nothing_is_started_on_a_device_before_what_is_not_wanted_there_has_ended() {
    let mut node = TestNode::serving();
    let next = [replica("2-0", "m", "a"), replica("2-1", "m", "b")];
    let actions = node.on(wanted(2, &next, &[]));
    assert_eq!(
        actions,
        [
            Action::Terminate(id("1-0")),
            Action::Start(Task::Serve(next[1].clone().into()))
        ]
    );
    let actions = node.on(Event::Exited(id("1-0"), ExitCause::Ended));
    let start = Action::Start(Task::Serve(next[0].clone().into()));
    assert_eq!(actions, [Action::Forget(id("1-0")), start]);
}

#[test]
fn a_back_off_that_ends_while_the_device_is_occupied_asks_for_no_wakeup() {
    let mut node = TestNode::serving();
    node.on(Event::Exited(id("1-0"), ExitCause::Signal(9)));
    let failed = Event::DeviceFailed("a".to_owned(), "gone".to_owned());
    assert_eq!(node.on(failed), []);
    let over = node.reconciler.wakeup().unwrap();
    assert_eq!(node.after(over.saturating_since(node.now)), []);
    // The driver would be woken up again and again for as long as the device is gone.
    assert_eq!(node.reconciler.wakeup(), None);
    let actions = node.on(Event::DeviceRecovered("a".to_owned()));
    assert_eq!(starts(&actions), [id("1-0")]);
    assert_eq!(node.status().restarts, 1);
}

#[test]
fn a_worker_that_is_wanted_again_while_it_ends_is_started_afresh_without_a_pause() {
    let mut node = TestNode::serving();
    node.on(wanted(2, &[], &[]));
    assert_eq!(node.on(wanted(3, &[replica("1-0", "m", "a")], &[])), []);
    let actions = node.on(Event::Exited(id("1-0"), ExitCause::Ended));
    assert_eq!(starts(&actions), [id("1-0")]);
    assert_eq!(node.status().restarts, 0);
}

#[test]
fn nothing_older_than_the_newest_seen_is_obeyed() {
    let mut node = TestNode::serving();
    assert_eq!(node.on(wanted(0, &[], &[])), []);
    node.on(Event::Leased { epoch: 2 });
    assert_eq!(
        node.on(wanted(9, &[], &[])),
        [],
        "an epoch before the lease's"
    );
    assert_eq!(node.reconciler.applied(), (1, 1));
    let newer = WantedState {
        epoch: 2,
        revision: 0,
        ..WantedState::default()
    };
    assert_eq!(
        node.on(Event::Wanted(newer)),
        [Action::Terminate(id("1-0"))]
    );
    assert_eq!(node.reconciler.applied(), (2, 0));
}

#[test]
fn a_worker_that_the_gateway_finds_broken_is_told_to_finish_and_started_anew() {
    let mut node = TestNode::serving();
    let again = |attempt| WantedReplica {
        attempt,
        ..replica("1-0", "m", "a")
    };
    let ended = |node: &mut TestNode| node.on(Event::Exited(id("1-0"), ExitCause::Ended));
    assert_eq!(
        node.on(wanted(2, &[again(1)], &[])),
        [Action::Terminate(id("1-0"))]
    );
    assert_eq!(node.status().state, ReplicaState::Draining);
    assert_eq!(node.reason(), Reason::RestartRequested.to_string());
    assert_eq!(
        ended(&mut node),
        [Action::Start(Task::Serve(again(1).into()))],
        "nothing else has to be waited for"
    );
    node.on(Event::Started(id("1-0"), 78));
    node.on(Event::Reported(id("1-0"), ready()));
    assert_eq!(node.status().state, ReplicaState::Ready);
    assert_eq!(node.status().restarts, 1);

    // The same number again is no reason to restart, nor is the lower one of a gateway that has lost its count.
    assert_eq!(node.on(wanted(3, &[again(1)], &[])), []);
    assert_eq!(node.on(wanted(4, &[again(0)], &[])), []);
    assert_eq!(
        node.on(wanted(5, &[again(1)], &[])),
        [Action::Terminate(id("1-0"))]
    );
    // A worker that does not finish is killed.
    assert_eq!(node.after(LIMITS.drain), [Action::Kill(id("1-0"))]);
    assert_eq!(starts(&ended(&mut node)), [id("1-0")]);
}

#[test]
fn an_attempt_that_rises_while_there_is_no_worker_is_the_one_that_starts_anyway() {
    let mut node = TestNode::serving();
    node.on(Event::Exited(id("1-0"), ExitCause::Signal(9)));
    let again = WantedReplica {
        attempt: 1,
        ..replica("1-0", "m", "a")
    };
    assert_eq!(node.on(wanted(2, std::slice::from_ref(&again), &[])), []);
    let actions = node.after(Duration::from_millis(100));
    assert_eq!(actions, [Action::Start(Task::Serve(again.into()))]);
    node.on(Event::Started(id("1-0"), 78));
    assert_eq!(node.on(Event::Reported(id("1-0"), ready())), []);

    // One that had failed for good is tried once more.
    let report = WorkerReport::Failed {
        reason: "no such file".to_owned(),
        permanent: true,
    };
    node.on(Event::Reported(id("1-0"), report));
    node.on(Event::Exited(id("1-0"), ExitCause::Ended));
    assert_eq!(node.status().state, ReplicaState::Failed);
    let last = WantedReplica {
        attempt: 2,
        ..replica("1-0", "m", "a")
    };
    let actions = node.on(wanted(3, std::slice::from_ref(&last), &[]));
    assert_eq!(actions, [Action::Start(Task::Serve(last.into()))]);
}

#[test]
fn the_gateway_of_another_cluster_is_obeyed_from_a_lower_epoch_on_and_the_workers_wait_for_it() {
    let mut node = TestNode::serving();
    node.on(Event::Leased { epoch: 9 });
    let message = |epoch, replicas: &[WantedReplica]| {
        Event::Wanted(WantedState {
            epoch,
            revision: 1,
            replicas: replicas.to_vec(),
            ..WantedState::default()
        })
    };
    assert_eq!(node.on(message(1, &[])), [], "older than the lease");
    assert_eq!(node.on(Event::ClusterChanged { epoch: 1 }), []);
    assert_eq!(node.reconciler.applied(), (0, 0));
    assert_eq!(node.status().state, ReplicaState::Ready);
    let kept = replica("1-0", "m", "a");
    assert_eq!(
        node.on(message(1, &[kept])),
        [],
        "the same worker serves on"
    );
    assert_eq!(node.reconciler.applied(), (1, 1));
    assert_eq!(node.on(message(2, &[])), [Action::Terminate(id("1-0"))]);
}

#[test]
fn workers_of_a_former_cluster_serve_on_for_its_grace_time_unless_their_device_is_needed() {
    let message = |revision, replicas: &[WantedReplica]| {
        Event::Wanted(WantedState {
            epoch: 1,
            revision,
            replicas: replicas.to_vec(),
            ..WantedState::default()
        })
    };
    // A gateway with an empty store takes the node over, and wants nothing.
    let taken_over = || {
        let mut node = TestNode::serving();
        node.on(Event::ClusterChanged { epoch: 1 });
        assert_eq!(node.on(message(1, &[])), []);
        assert_eq!(node.status().state, ReplicaState::Ready);
        node
    };
    // The former cluster comes back in time: its workers are its own again.
    let mut node = taken_over();
    node.on(Event::ClusterChanged { epoch: 7 });
    let back = Event::Wanted(WantedState {
        epoch: 7,
        revision: 1,
        replicas: vec![replica("1-0", "m", "a")],
        ..WantedState::default()
    });
    assert_eq!(node.on(back), []);
    assert_eq!(node.after(LIMITS.former_cluster), []);
    assert_eq!(node.status().state, ReplicaState::Ready);

    // It does not.
    let mut node = taken_over();
    assert_eq!(
        node.after(LIMITS.former_cluster.saturating_sub(Duration::from_secs(1))),
        []
    );
    assert!(node.reconciler.wakeup().is_some());
    let ended = [Action::Terminate(id("1-0"))];
    assert_eq!(node.after(Duration::from_secs(1)), ended);

    // The present one needs another device, then this one.
    let mut node = taken_over();
    let other = replica("1-1", "x", "b");
    let fetch = Action::Fetch(other.program.artifact);
    assert_eq!(node.on(message(2, std::slice::from_ref(&other))), [fetch]);
    let same = replica("1-2", "x", "a");
    let actions = node.on(message(3, &[other, same]));
    assert_eq!(actions, ended);

    // One that dies is not started again.
    let mut node = taken_over();
    let actions = node.on(Event::Exited(id("1-0"), ExitCause::Ended));
    assert_eq!(actions[0], Action::Forget(id("1-0")));
}

#[test]
fn a_new_agent_leaves_what_it_finds_alone_until_it_knows_what_is_wanted() {
    let mut node = TestNode::new();
    let mine = Task::Serve(replica("1-0", "m", "a").into());
    let orphan = Task::Serve(replica("1-1", "x", "a").into());
    let changed = Task::Serve(replica("1-2", "x", "b").into());
    for (task, pid) in [(mine, 1), (orphan, 2), (changed, 3)] {
        assert_eq!(node.on(Event::Fetched(task.artifacts()[0])), []);
        let found = task.id();
        assert_eq!(node.on(Event::Found(task, pid)), []);
        assert_eq!(node.on(Event::Reported(found, ready())), []);
    }
    assert_eq!(node.reconciler.replicas().len(), 3);
    let actions = node.on(wanted(
        1,
        &[replica("1-0", "m", "a"), replica("1-2", "m", "b")],
        &[],
    ));
    assert_eq!(
        actions,
        [Action::Terminate(id("1-1")), Action::Terminate(id("1-2"))]
    );
    assert_eq!(node.status().pid, Some(1));
    assert_eq!(node.status().state, ReplicaState::Ready);
}

#[test]
fn an_artifact_that_cannot_be_fetched_is_tried_again_and_says_why() {
    let mut node = TestNode::new();
    let digest = program("m").artifact;
    node.on(wanted(1, &[replica("1-0", "m", "a")], &[]));
    for pause in [100, 200, 400] {
        assert_eq!(
            node.on(Event::FetchFailed(digest, "its digest differs".to_owned())),
            []
        );
        assert_eq!(node.status().state, ReplicaState::Fetching);
        assert_eq!(node.reason(), "its digest differs");
        assert_eq!(node.after(Duration::from_millis(pause - 1)), []);
        assert_eq!(
            node.after(Duration::from_millis(1)),
            [Action::Fetch(digest)]
        );
    }
}

#[test]
fn a_worker_that_is_never_ready_is_killed_and_started_again() {
    let mut node = TestNode::serving();
    node.on(Event::Exited(id("1-0"), ExitCause::Ended));
    node.after(Duration::from_millis(100));
    node.on(Event::Started(id("1-0"), 78));
    assert_eq!(node.after(LIMITS.load), [Action::Kill(id("1-0"))]);
    node.on(Event::Exited(id("1-0"), ExitCause::Signal(9)));
    assert_eq!(node.reason(), Reason::NotReady(LIMITS.load).to_string());
    assert_eq!(node.status().state, ReplicaState::BackingOff);
}

#[test]
fn a_replica_whose_neighbour_ended_its_process_begins_again_without_a_pause() {
    let mut node = TestNode::serving();
    for _ in 0..20 {
        let with = ExitCause::WithNeighbour("n:1".to_owned());
        assert_eq!(
            starts(&node.on(Event::Exited(id("1-0"), with))),
            [id("1-0")]
        );
        assert_eq!(
            node.reason(),
            "the pool worker ended while it worked for n:1"
        );
        node.on(Event::Started(id("1-0"), 8));
    }
    assert_eq!(node.status().restarts, 20);
    // Its own failures are what a pause follows.
    assert_eq!(node.on(Event::Exited(id("1-0"), ExitCause::Signal(11))), []);
    assert!(node.reconciler.wakeup().is_some());
}

#[test]
fn a_replica_may_wait_for_the_programs_of_others_and_loads_within_its_limit() {
    let mut node = TestNode::serving();
    let with = ExitCause::WithNeighbour("n:1".to_owned());
    node.on(Event::Exited(id("1-0"), with));
    node.on(Event::Started(id("1-0"), 8));
    node.on(Event::Reported(id("1-0"), WorkerReport::Waiting));
    assert_eq!(node.after(10 * LIMITS.load), []);
    node.on(Event::Reported(id("1-0"), WorkerReport::Loading));
    assert_eq!(
        node.after(LIMITS.load.saturating_sub(Duration::from_secs(1))),
        []
    );
    assert_eq!(
        node.after(Duration::from_secs(1)),
        [Action::Kill(id("1-0"))]
    );
}

#[test]
fn a_device_that_is_not_there_is_a_failure_with_a_reason() {
    let mut node = TestNode::new();
    assert_eq!(node.on(wanted(1, &[replica("1-0", "m", "zz")], &[])), []);
    assert_eq!(node.status().state, ReplicaState::Failed);
    assert_eq!(node.reason(), Reason::NoDevice("zz".to_owned()).to_string());
}

#[test]
fn a_failed_device_takes_all_its_workers_with_it_and_the_others_serve_on() {
    let mut node = TestNode::new();
    let replicas = [
        replica("1-0", "m", "a"),
        replica("1-1", "x", "a"),
        replica("1-2", "y", "b"),
    ];
    for replica in &replicas {
        node.on(Event::Fetched(replica.program.artifact));
    }
    node.on(wanted(1, &replicas, &[]));
    for (name, pid) in [("1-0", 1), ("1-1", 2), ("1-2", 3)] {
        node.on(Event::Started(id(name), pid));
        node.on(Event::Reported(id(name), ready()));
    }
    let failed = Event::DeviceFailed("a".to_owned(), "the MPS server failed".to_owned());
    let kills = [Action::Kill(id("1-0")), Action::Kill(id("1-1"))];
    assert_eq!(node.on(failed.clone()), kills);
    assert_eq!(node.on(failed), [], "nothing is killed twice");
    let states: Vec<ReplicaState> = node
        .reconciler
        .replicas()
        .iter()
        .map(|replica| replica.state)
        .collect();
    let expected = [
        ReplicaState::Draining,
        ReplicaState::Draining,
        ReplicaState::Ready,
    ];
    assert_eq!(states, expected);

    assert_eq!(node.on(Event::Exited(id("1-0"), ExitCause::Signal(9))), []);
    assert_eq!(node.status().state, ReplicaState::BackingOff);
    assert_eq!(node.reason(), "the MPS server failed");
    // Neither before the device is well nor before the last of its workers has ended.
    assert_eq!(node.after(Duration::from_mins(1)), []);
    assert_eq!(node.on(Event::DeviceRecovered("a".to_owned())), []);
    let actions = node.on(Event::Exited(id("1-1"), ExitCause::Signal(9)));
    assert_eq!(starts(&actions), [id("1-0")]);
    let later = node.after(Duration::from_millis(100));
    assert_eq!(starts(&later), [id("1-1")]);
}

#[test]
fn a_draining_worker_of_a_failed_device_is_killed_and_not_missed() {
    let mut node = TestNode::serving();
    assert_eq!(node.on(wanted(2, &[], &[])), [Action::Terminate(id("1-0"))]);
    let failed = Event::DeviceFailed("a".to_owned(), "gone".to_owned());
    assert_eq!(node.on(failed), [Action::Kill(id("1-0"))]);
    assert_eq!(node.after(LIMITS.drain), []);
    let actions = node.on(Event::Exited(id("1-0"), ExitCause::Signal(9)));
    assert!(actions.contains(&Action::Forget(id("1-0"))));
}

#[test]
fn a_measurement_is_made_again_when_its_device_failed_under_it() {
    let mut node = TestNode::new();
    let wish = profile("x", "a");
    let task = Task::Measure(wish.clone()).id();
    node.on(Event::Fetched(wish.program.artifact));
    node.on(wanted(1, &[], std::slice::from_ref(&wish)));
    node.on(Event::Started(task.clone(), 1));
    let failed = Event::DeviceFailed("a".to_owned(), "gone".to_owned());
    assert_eq!(node.on(failed), [Action::Kill(task.clone())]);
    node.on(Event::Exited(task.clone(), ExitCause::Signal(9)));
    assert_eq!(node.reconciler.profiles()[0].error, None);
    node.on(Event::DeviceRecovered("a".to_owned()));
    let actions = node.after(Duration::from_millis(100));
    assert_eq!(starts(&actions), [task]);
}

#[test]
fn the_next_process_of_a_replica_has_the_memory_that_is_planned_by_then() {
    let mut node = TestNode::serving();
    let measured = WantedReplica {
        memory_bytes: Some(ByteCount::new(7)),
        ..replica("1-0", "m", "a")
    };
    assert_eq!(node.on(wanted(2, std::slice::from_ref(&measured), &[])), []);
    node.on(Event::Exited(id("1-0"), ExitCause::Signal(9)));
    let actions = node.after(Duration::from_mins(1));
    assert_eq!(actions, [Action::Start(Task::Serve(measured.into()))]);
}

#[test]
fn measurements_take_turns_on_a_device_and_end_with_a_result_or_a_reason() {
    let mut node = TestNode::new();
    let profiles = [profile("x", "a"), profile("y", "a"), profile("z", "b")];
    for p in &profiles {
        node.on(Event::Fetched(p.program.artifact));
    }
    let task = |model: &str| Task::Measure(profile(model, "a")).id();
    let progress = |node: &TestNode, i: usize| node.reconciler.profiles()[i].clone();
    assert_eq!(
        starts(&node.on(wanted(1, &[], &profiles))),
        [task("x"), task("z")]
    );
    node.on(Event::Started(task("x"), 1));
    node.on(Event::Reported(
        task("x"),
        WorkerReport::Measuring {
            done: 1,
            total: 4,
            operators: Some("{}".to_owned()),
        },
    ));
    assert_eq!((progress(&node, 0).done, progress(&node, 0).total), (1, 4));
    assert_eq!(progress(&node, 0).operators.as_deref(), Some("{}"));
    // That the gateway knows the operators by now is no reason to measure again.
    let mut known = profiles.clone();
    known[0].inspect = false;
    assert_eq!(node.on(wanted(2, &[], &known)), []);
    let csv = "model,…\n".to_owned();
    let measured = WorkerReport::Measured {
        done: 4,
        total: 4,
        csv: csv.clone(),
        kernels: Some("kernel,…\n".to_owned()),
        operators: None,
    };
    node.on(Event::Reported(task("x"), measured));
    let actions = node.on(Event::Exited(task("x"), ExitCause::Ended));
    assert_eq!(starts(&actions), [task("y")]);
    assert_eq!(progress(&node, 0).csv, Some(csv));
    assert_eq!(progress(&node, 0).kernels.as_deref(), Some("kernel,…\n"));

    node.on(Event::Started(task("y"), 2));
    node.on(Event::Exited(task("y"), ExitCause::Signal(11)));
    let signal_11 = Reason::Exited(ExitCause::Signal(11));
    assert_eq!(progress(&node, 1).error, Some(signal_11.to_string()));

    node.on(Event::Started(task("z"), 3));
    let actions = node.after(Duration::from_secs(80));
    assert_eq!(actions, [Action::Kill(task("z"))]);
    node.on(Event::Exited(task("z"), ExitCause::Signal(9)));
    let late = Reason::NotMeasured(Duration::from_secs(80));
    assert_eq!(progress(&node, 2).error, Some(late.to_string()));
    assert_eq!(
        node.after(Duration::from_hours(1)),
        [],
        "results are kept, failures too"
    );

    let forgotten = node.on(wanted(3, &[], &[]));
    assert!(forgotten.contains(&Action::Forget(task("x"))));
    assert_eq!(node.reconciler.profiles(), []);
}

#[test]
fn a_worker_that_cannot_report_says_so_through_its_agent_and_serves_once_it_can() {
    let mut node = TestNode::serving();
    let obstacle = || Some("status.json: no space left on device".to_owned());
    node.on(Event::ReportsFail(id("1-0"), obstacle()));
    assert_eq!(node.status().state, ReplicaState::BackingOff);
    assert_eq!(
        node.reason(),
        "the worker cannot say whether it is ready: status.json: no space left on device"
    );
    node.on(Event::ReportsFail(id("1-0"), None));
    assert_eq!(node.on(Event::Reported(id("1-0"), ready())), []);
    assert_eq!(node.status().state, ReplicaState::Ready);
    assert_eq!(node.status().reason, None);
}

#[test]
fn a_measurement_that_cannot_report_its_result_is_made_again() {
    let mut node = TestNode::new();
    node.on(wanted(1, &[], &[profile("x", "a")]));
    let task = Task::Measure(profile("x", "a")).id();
    node.on(Event::Fetched(program("x").artifact));
    node.on(Event::Started(task.clone(), 1));
    let obstacle = Some("no space left on device".to_owned());
    node.on(Event::ReportsFail(task.clone(), obstacle));
    let actions = node.after(Duration::from_secs(80));
    assert_eq!(actions, [Action::Kill(task.clone())]);
    node.on(Event::Exited(task.clone(), ExitCause::Signal(9)));
    assert_eq!(node.reconciler.profiles()[0].error, None);
    let actions = node.after(Duration::from_secs(1));
    assert_eq!(starts(&actions), [task]);
}

#[test]
fn a_measurement_that_was_killed_from_outside_is_made_once_more() {
    let mut node = TestNode::new();
    node.on(wanted(1, &[], &[profile("x", "a")]));
    let task = Task::Measure(profile("x", "a")).id();
    node.on(Event::Fetched(program("x").artifact));
    node.on(Event::Started(task.clone(), 1));
    node.on(Event::Exited(task.clone(), ExitCause::Signal(9)));
    assert_eq!(node.reconciler.profiles()[0].error, None);
    let actions = node.after(Duration::from_secs(1));
    assert_eq!(starts(&actions), std::slice::from_ref(&task));
    node.on(Event::Started(task.clone(), 2));
    node.on(Event::Exited(task, ExitCause::Signal(9)));
    let killed = Reason::Exited(ExitCause::Signal(9));
    let error = node.reconciler.profiles()[0].error.clone();
    assert_eq!(error, Some(killed.to_string()));
    assert_eq!(starts(&node.after(Duration::from_hours(1))), []);
}

#[test]
fn inspections_take_turns_on_a_node_and_need_no_device() {
    let mut node = TestNode::new();
    let wanted = |revision, inspected: &[&str]| {
        Event::Wanted(WantedState {
            epoch: 1,
            revision,
            profiles: vec![profile("m", "a")],
            inspections: inspected.iter().map(|model| program(model)).collect(),
            ..WantedState::default()
        })
    };
    for model in ["m", "x", "y", "z"] {
        node.on(Event::Fetched(program(model).artifact));
    }
    let task = |model: &str| Task::Inspect(program(model)).id();
    node.on(Event::DeviceFailed("a".to_owned(), "gone".to_owned()));
    let actions = node.on(wanted(1, &["x", "y", "z"]));
    assert_eq!(starts(&actions), [task("x")]);
    node.on(Event::Started(task("x"), 1));
    assert_eq!(node.on(Event::Reported(task("x"), inspected())), []);
    assert_eq!(node.reconciler.inspections(), [], "it has not ended");
    let actions = node.on(Event::Exited(task("x"), ExitCause::Ended));
    assert_eq!(starts(&actions), [task("y")]);

    node.on(Event::Started(task("y"), 2));
    let actions = node.after(LIMITS.inspect);
    assert_eq!(actions, [Action::Kill(task("y"))]);
    let actions = node.on(Event::Exited(task("y"), ExitCause::Signal(9)));
    assert_eq!(starts(&actions), [task("z")]);
    node.on(Event::Started(task("z"), 3));
    let result = |model: &str, operators: Option<&str>, error: Option<Reason>| InspectionResult {
        model: model.parse().unwrap(),
        operators: operators.map(str::to_owned),
        error: error.map(|reason| reason.to_string()),
    };
    let late = Reason::NotInspected(LIMITS.inspect);
    assert_eq!(
        node.reconciler.inspections(),
        [
            result("x", Some("{}"), None),
            result("y", None, Some(late.clone()))
        ],
    );

    let actions = node.on(wanted(2, &["y"]));
    assert!(actions.contains(&Action::Terminate(task("z"))));
    assert!(actions.contains(&Action::Forget(task("x"))));
    assert_eq!(
        node.reconciler.inspections(),
        [result("y", None, Some(late))]
    );
}

#[test]
fn an_agent_that_takes_its_workers_along_stops_them_all_whatever_is_wanted_later() {
    let mut node = TestNode::serving();
    assert_eq!(node.on(Event::StopAll), [Action::Terminate(id("1-0"))]);
    assert_eq!(node.on(wanted(2, &[replica("2-0", "m", "a")], &[])), []);
    assert!(!node.reconciler.is_idle());
    node.on(Event::Exited(id("1-0"), ExitCause::Ended));
    assert!(node.reconciler.is_idle());
}

/// An event of a random history.
#[derive(Clone, Debug)]
enum SimEvent {
    SetWanted(Vec<(u8, u8, bool)>),
    RepeatOldWanted(u64),
    PassTime(u64),
    EndFetch(bool),
    EndLaunch(bool),
    ReportReady,
    Die(usize, bool),
    EndTerminated,
    FailDevice(bool),
    AskForRestarts,
}

fn sim_event() -> impl Strategy<Value = SimEvent> {
    prop_oneof![
        2 => prop::collection::vec((0..3_u8, 0..3_u8, any::<bool>()), 0..5).prop_map(SimEvent::SetWanted),
        1 => (0..3_u64).prop_map(SimEvent::RepeatOldWanted),
        3 => (0..12_000_u64).prop_map(SimEvent::PassTime),
        3 => any::<bool>().prop_map(SimEvent::EndFetch),
        3 => any::<bool>().prop_map(SimEvent::EndLaunch),
        3 => Just(SimEvent::ReportReady),
        2 => (any::<usize>(), any::<bool>()).prop_map(|(which, permanent)| SimEvent::Die(which, permanent)),
        2 => Just(SimEvent::EndTerminated),
        1 => any::<bool>().prop_map(SimEvent::FailDevice),
        1 => Just(SimEvent::AskForRestarts),
    ]
}

/// A driver with the processes, the cache and the fetches that a real one would have.
struct SimDriver {
    node: TestNode,
    revision: u64,
    /// The attempt of every wanted replica.
    attempt: u32,
    wanted: BTreeMap<TaskId, Task>,
    fetching: BTreeSet<ArtifactDigest>,
    cached: BTreeSet<ArtifactDigest>,
    launching: BTreeMap<TaskId, Task>,
    running: BTreeMap<TaskId, Task>,
    told: BTreeSet<TaskId>,
}

impl SimDriver {
    fn new() -> Self {
        Self {
            node: TestNode::new(),
            revision: 0,
            attempt: 0,
            wanted: BTreeMap::new(),
            fetching: BTreeSet::new(),
            cached: BTreeSet::new(),
            launching: BTreeMap::new(),
            running: BTreeMap::new(),
            told: BTreeSet::new(),
        }
    }

    fn on(&mut self, event: Event) {
        let actions = self.node.on(event);
        self.execute(actions);
    }

    fn execute(&mut self, actions: Vec<Action>) {
        for action in actions {
            match action {
                Action::Fetch(digest) => {
                    assert!(self.fetching.insert(digest), "fetched twice at once");
                }
                Action::Evict(digest) => {
                    assert!(self.cached.remove(&digest), "evicts what is not there");
                    let users = self.running.values().chain(self.launching.values());
                    assert!(
                        users
                            .chain(self.wanted.values())
                            .all(|t| !t.artifacts().contains(&digest))
                    );
                }
                Action::Start(task) => self.started(task),
                Action::Terminate(id) => {
                    assert!(self.running.contains_key(&id) && self.told.insert(id));
                }
                Action::Kill(id) => {
                    assert!(self.running.contains_key(&id), "kills what does not run");
                    self.exit(&id);
                }
                Action::Forget(id) => {
                    assert!(!self.running.contains_key(&id) && !self.launching.contains_key(&id));
                }
            }
        }
    }

    fn started(&mut self, task: Task) {
        assert_eq!(
            self.wanted.get(&task.id()),
            Some(&task),
            "starts what is not wanted"
        );
        assert!(
            task.artifacts()
                .iter()
                .all(|digest| self.cached.contains(digest)),
            "starts without its artifact"
        );
        for (id, other) in self.running.iter().chain(&self.launching) {
            assert_ne!(*id, task.id(), "two processes for one task");
            if other.device() == task.device() {
                // One that is to be restarted leaves its memory to its own successor.
                assert!(
                    self.wanted
                        .get(id)
                        .is_some_and(|wanted| wanted.runs_as(other)),
                    "starts beside what still leaves"
                );
                assert!(
                    !(other.has_result() && task.has_result()),
                    "two measurements on one device, or two inspections"
                );
            }
        }
        self.launching.insert(task.id(), task);
    }

    fn exit(&mut self, id: &TaskId) {
        self.running.remove(id);
        self.told.remove(id);
        self.on(Event::Exited(id.clone(), ExitCause::Ended));
    }

    fn apply(&mut self, event: SimEvent) {
        match event {
            SimEvent::SetWanted(tasks) => {
                self.revision += 1;
                let name = |model: u8| char::from(b'a' + model).to_string();
                let device = |device: u8| ["a", "b"][usize::from(device)];
                let mut tasks: BTreeMap<TaskId, Task> = tasks
                    .into_iter()
                    .map(|(model, on, measure)| {
                        let (model, id) = (name(model), format!("1-{model}"));
                        if on == 2 {
                            Task::Inspect(program(&model))
                        } else if measure {
                            Task::Measure(profile(&model, device(on)))
                        } else {
                            self.served(&id, &model, device(on))
                        }
                    })
                    .map(|task| (task.id(), task))
                    .collect();
                std::mem::swap(&mut self.wanted, &mut tasks);
                self.on(self.message(self.revision));
            }
            SimEvent::RepeatOldWanted(back) => {
                let kept = std::mem::take(&mut self.wanted);
                let stale = self.message(self.revision.saturating_sub(back));
                self.wanted = kept;
                if self.revision > 0 {
                    self.on(stale);
                }
            }
            SimEvent::AskForRestarts => self.ask_for_restarts(),
            SimEvent::PassTime(millis) => {
                let actions = self.node.after(Duration::from_millis(millis));
                self.execute(actions);
            }
            SimEvent::EndFetch(works) => {
                if let Some(digest) = self.fetching.pop_first() {
                    if works {
                        self.cached.insert(digest);
                        self.on(Event::Fetched(digest));
                    } else {
                        self.on(Event::FetchFailed(digest, "no".to_owned()));
                    }
                }
            }
            SimEvent::EndLaunch(works) => {
                if let Some((id, task)) = self.launching.pop_first() {
                    if works {
                        self.running.insert(id.clone(), task);
                        self.on(Event::Started(id, 1));
                    } else {
                        self.on(Event::StartFailed(id, "no".to_owned()));
                    }
                }
            }
            SimEvent::ReportReady => {
                for (id, task) in self.running.clone() {
                    if !task.has_result() && !self.told.contains(&id) {
                        self.on(Event::Reported(id, ready()));
                    }
                }
            }
            SimEvent::Die(which, permanent) => {
                if self.running.is_empty() {
                    return;
                }
                let id = self
                    .running
                    .keys()
                    .nth(which % self.running.len())
                    .unwrap()
                    .clone();
                // A failure for good would rightly keep the node from what is wanted: only tasks with a result get it here.
                if permanent && self.running[&id].has_result() {
                    let reason = "no".to_owned();
                    self.on(Event::Reported(
                        id.clone(),
                        WorkerReport::Failed { reason, permanent },
                    ));
                }
                if self.running.contains_key(&id) {
                    self.exit(&id);
                }
            }
            SimEvent::FailDevice(lasts) => {
                self.on(Event::DeviceFailed("a".to_owned(), "gone".to_owned()));
                let mut running = self.running.values();
                let left = running.any(|task| task.device() == Some("a"));
                assert!(!left, "runs on a failed device");
                if !lasts {
                    self.on(Event::DeviceRecovered("a".to_owned()));
                }
            }
            SimEvent::EndTerminated => {
                let told: Vec<TaskId> = self.told.iter().cloned().collect();
                for id in told {
                    self.exit(&id);
                }
            }
        }
    }

    /// The task of a worker, some of which run a second program.
    fn served(&self, id: &str, model: &str, device: &str) -> Task {
        let first = WantedReplica {
            attempt: self.attempt,
            ..replica(id, model, device)
        };
        let also = (model == "a").then(|| WantedReplica {
            attempt: self.attempt,
            worker: Some(first.id),
            ..replica("2-0", "also", device)
        });
        let replicas = std::iter::once(first).chain(also);
        Task::Serve(ServedReplicas::new(replicas).unwrap())
    }

    fn ask_for_restarts(&mut self) {
        self.revision += 1;
        self.attempt += 1;
        for task in self.wanted.values_mut() {
            if let Task::Serve(replicas) = task {
                let asked = replicas.iter().cloned().map(|replica| WantedReplica {
                    attempt: self.attempt,
                    ..replica
                });
                *replicas = ServedReplicas::new(asked.collect::<Vec<_>>()).unwrap();
            }
        }
        self.on(self.message(self.revision));
    }

    fn message(&self, revision: u64) -> Event {
        let mut state = WantedState {
            epoch: 1,
            revision,
            ..WantedState::default()
        };
        for task in self.wanted.values().cloned() {
            match task {
                Task::Serve(replicas) => state.replicas.extend(replicas.iter().cloned()),
                Task::Measure(profile) => state.profiles.push(profile),
                Task::Inspect(program) => state.inspections.push(program),
            }
        }
        Event::Wanted(state)
    }

    fn settle(&mut self) {
        self.on(Event::DeviceRecovered("a".to_owned()));
        for _ in 0..40 {
            for calm in [
                SimEvent::EndTerminated,
                SimEvent::EndFetch(true),
                SimEvent::EndLaunch(true),
                SimEvent::ReportReady,
                SimEvent::PassTime(10_000),
            ] {
                self.apply(calm);
            }
            for (id, task) in self.running.clone() {
                let report = match task {
                    Task::Serve(_) => continue,
                    Task::Measure(_) => WorkerReport::Measured {
                        done: 1,
                        total: 1,
                        csv: String::new(),
                        kernels: None,
                        operators: None,
                    },
                    Task::Inspect(_) => inspected(),
                };
                self.on(Event::Reported(id.clone(), report));
                self.exit(&id);
            }
        }
    }
}

#[test]
fn replicas_that_share_a_worker_start_together_and_report_for_themselves() {
    let mut node = TestNode::new();
    let three = sharing(&["1-0", "1-1", "1-2"], "a");
    let fetches = node.on(wanted(1, &three, &[]));
    assert_eq!(fetches.len(), 3);
    let artifacts: Vec<ArtifactDigest> = three.iter().map(|r| r.program.artifact).collect();
    assert_eq!(node.on(Event::Fetched(artifacts[0])), []);
    assert_eq!(node.on(Event::Fetched(artifacts[1])), []);
    let task = Task::Serve(ServedReplicas::new(three.clone()).unwrap());
    assert_eq!(node.on(Event::Fetched(artifacts[2])), [Action::Start(task)]);
    node.on(Event::Started(id("1-0"), 7));
    node.on(Event::Reported(id("1-0"), ready_also(&["1-1", "1-2"])));
    let replicas = node.reconciler.replicas();
    let addresses: Vec<_> = replicas.iter().map(|r| (r.id, r.address)).collect();
    let at = |text: &str| Some(text.parse().unwrap());
    assert_eq!(
        addresses,
        [
            (three[0].id, at(ADDRESS)),
            (three[1].id, at("127.0.0.1:9001")),
            (three[2].id, at("127.0.0.1:9001")),
        ]
    );
    let memory: Vec<_> = replicas.iter().map(|r| r.memory_bytes).collect();
    assert_eq!(
        memory,
        [Some(ByteCount::new(5)), None, None],
        "it counts once"
    );

    // The worker stays while one of its replicas is wanted, also without the first.
    assert_eq!(node.on(wanted(2, &three[1..], &[])), []);
    assert_eq!(node.reconciler.replicas().len(), 2);
    // A restart that one of them needs concerns all.
    let mut asked = three[1..].to_vec();
    asked[1].attempt = 1;
    assert_eq!(
        node.on(wanted(3, &asked, &[])),
        [Action::Terminate(id("1-0"))]
    );
    let again = Task::Serve(ServedReplicas::new(asked.clone()).unwrap());
    let actions = node.on(Event::Exited(id("1-0"), ExitCause::Ended));
    assert_eq!(actions, [Action::Evict(artifacts[0]), Action::Start(again)]);
    node.on(Event::Started(id("1-0"), 8));

    // One more program needs another worker.
    let mut four = three.clone();
    four.push(WantedReplica {
        worker: Some(three[0].id),
        ..replica("2-0", "z", "a")
    });
    let actions = node.on(wanted(4, &four, &[]));
    assert!(
        actions.contains(&Action::Terminate(id("1-0"))),
        "{actions:?}"
    );
}

proptest! {
    #[test]
    fn whatever_happened_the_node_runs_what_is_wanted(events in prop::collection::vec(sim_event(), 1..80)) {
        let mut driver = SimDriver::new();
        for event in events {
            driver.apply(event);
        }
        driver.settle();
        let serve: BTreeMap<TaskId, Task> = driver.wanted.clone().into_iter().filter(|(_, t)| !t.has_result()).collect();
        prop_assert_eq!(&driver.running, &serve);
        prop_assert!(driver.launching.is_empty());
        let replicas = driver.node.reconciler.replicas();
        let served = serve.values().map(|task| task.artifacts().len()).sum::<usize>();
        prop_assert_eq!(replicas.len(), served);
        prop_assert!(replicas.iter().all(|r| r.state == ReplicaState::Ready));
        let profiles = driver.node.reconciler.profiles();
        let inspections = driver.node.reconciler.inspections();
        prop_assert_eq!(profiles.len() + inspections.len(), driver.wanted.len() - serve.len());
        prop_assert!(profiles.iter().all(|p| p.csv.is_some() != p.error.is_some()));
        prop_assert!(inspections.iter().all(|i| i.operators.is_some() != i.error.is_some()));
        let used: BTreeSet<ArtifactDigest> = driver.wanted.values().flat_map(Task::artifacts).collect();
        prop_assert_eq!(&driver.cached, &used, "the cache holds what is used and nothing else");
    }
}
