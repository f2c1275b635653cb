use packhorse_cluster::{DroppedRewriting, InspectionResult, ProfileProgress, WorkerKind};

use super::*;

fn ready(id: &str) -> ReplicaStatus {
    ReplicaStatus {
        id: id.parse().unwrap(),
        state: ReplicaState::Ready,
        address: Some("127.0.0.1:9".parse().unwrap()),
        local_path: None,
        pid: Some(7),
        restarts: 0,
        reason: None,
        memory_bytes: None,
        capacity: Some(Capacity {
            batch_size: 4,
            in_flight: 2,
            multiprocessors: Some(80),
        }),
        verification: None,
        worker: WorkerKind::Own,
    }
}

fn measurement() -> ProfileProgress {
    ProfileProgress {
        model: "m:1".parse().unwrap(),
        device_kind: "T4".parse().unwrap(),
        done: 1,
        total: 4,
        csv: None,
        kernels: None,
        operators: None,
        error: None,
    }
}

fn inspection(model: &str) -> InspectionResult {
    InspectionResult {
        model: model.parse().unwrap(),
        operators: Some("{}".to_owned()),
        error: None,
    }
}

fn status() -> AgentStatus {
    AgentStatus {
        instance: "i".to_owned(),
        epoch: 1,
        revision: 1,
        replicas: vec![ready("1-0"), ready("1-1")],
        profiles: vec![measurement()],
        inspections: Some(vec![inspection("m:1"), inspection("n:1")]),
        gpus: vec![GpuStatus {
            device: "gpu0".to_owned(),
            ..GpuStatus::default()
        }],
    }
}

fn check(change: impl Fn(&mut AgentStatus), expected: &str) {
    let mut status = status();
    change(&mut status);
    let problem = status.validate().unwrap_err().to_string();
    assert_eq!(problem, expected);
}

#[test]
fn a_status_that_an_agent_can_have_is_valid() {
    status().validate().unwrap();
    let mut waiting = status();
    waiting.replicas[0] = ReplicaStatus {
        state: ReplicaState::Loading,
        address: None,
        local_path: None,
        pid: None,
        capacity: None,
        ..ready("1-0")
    };
    waiting.validate().unwrap();
}

#[test]
fn a_comparison_has_a_limited_number_of_short_texts() {
    let dropped = |rewriting: &str| DroppedRewriting {
        rewriting: rewriting.to_owned(),
        reason: "its answers differ".to_owned(),
    };
    let with = |status: &mut AgentStatus, dropped: Vec<DroppedRewriting>| {
        status.replicas[1].verification = Some(Verification {
            compared: 6,
            not_compared: None,
            dropped,
        });
    };
    let mut valid = status();
    with(&mut valid, vec![dropped("oneDNN's aten::add"); 16]);
    valid.validate().unwrap();
    check(
        |s| with(s, vec![dropped("x"); 17]),
        "replicas[1].verification.dropped: expected at most 16 rewritings, got 17",
    );
    check(
        |s| with(s, vec![dropped(&"x".repeat(1025))]),
        "replicas[1].verification.dropped.rewriting: expected at most 1024 bytes, got 1025",
    );
}

#[test]
fn each_impossible_field_is_named() {
    let capacity = |status: &mut AgentStatus, batch_size, in_flight, multiprocessors| {
        status.replicas[1].capacity = Some(Capacity {
            batch_size,
            in_flight,
            multiprocessors,
        });
    };
    check(
        |s| capacity(s, 0, 2, None),
        "replicas[1].capacity.batch_size: expected 1 to 4096, got 0",
    );
    check(
        |s| capacity(s, 4097, 2, None),
        "replicas[1].capacity.batch_size: expected 1 to 4096, got 4097",
    );
    check(
        |s| capacity(s, 1, 0, None),
        "replicas[1].capacity.in_flight: expected 1 to 1024, got 0",
    );
    check(
        |s| capacity(s, 1, u32::MAX, None),
        "replicas[1].capacity.in_flight: expected 1 to 1024, got 4294967295",
    );
    check(
        |s| capacity(s, 1, 1, Some(0)),
        "replicas[1].capacity.multiprocessors: expected 1 to 4294967295, got 0",
    );
    check(
        |s| s.replicas[1].id = s.replicas[0].id,
        "replicas[1].id: replica 1-0 appears twice",
    );
    let address = |s: &mut AgentStatus, text: &str| {
        s.replicas[0].address = Some(text.parse().unwrap());
    };
    check(
        |s| address(s, "127.0.0.1:0"),
        "replicas[0].address: 127.0.0.1:0 has port 0",
    );
    check(
        |s| address(s, "0.0.0.0:7"),
        "replicas[0].address: 0.0.0.0:7 is not the address of one machine",
    );
    check(
        |s| address(s, "[ff02::1]:7"),
        "replicas[0].address: [ff02::1]:7 is not the address of one machine",
    );
    check(
        |s| s.replicas[0].address = None,
        "replicas[0].address: a ready replica has an address",
    );
    let local = "replicas[0].local_path: expected an absolute path of at most 107 bytes that ends in /link.sock";
    for path in [
        "w/link.sock",
        "/run/docker.sock",
        &format!("/{}/link.sock", "w".repeat(97)),
    ] {
        check(|s| s.replicas[0].local_path = Some(path.to_owned()), local);
    }
    check(
        |s| s.replicas[0].pid = Some(0),
        "replicas[0].pid: expected a process id",
    );
    check(
        |s| s.profiles.push(measurement()),
        "profiles[1]: the measurement of m:1 appears twice",
    );
    check(
        |s| s.profiles[0].done = 5,
        "profiles[0].done: expected at most total, which is 4",
    );
    check(
        |s| s.profiles[0].operators = Some("x".repeat(131_073)),
        "profiles[0].operators: expected at most 131072 bytes, got 131073",
    );
    check(
        |s| s.inspections.as_mut().unwrap().push(inspection("m:1")),
        "inspections[2]: the inspection of m:1 appears twice",
    );
    check(
        |s| s.inspections.as_mut().unwrap()[1].operators = Some("x".repeat(131_073)),
        "inspections[1].operators: expected at most 131072 bytes, got 131073",
    );
    check(
        |s| s.gpus.push(s.gpus[0].clone()),
        "gpus[1].device: device \"gpu0\" appears twice",
    );
    check(
        |s| s.gpus[0].power_watts = Some(-1.0),
        "gpus[0].power_watts: expected a number that is not negative",
    );
}

#[test]
fn the_protocol_of_an_agent_may_be_one_version_away_but_must_overlap() {
    let lease = |first, last| LeaseRequest {
        instance: "i".to_owned(),
        agent_version: "v".to_owned(),
        libtorch: None,
        devices: Vec::new(),
        protocol: ProtocolRange { first, last },
        cluster_id: None,
        highest_epoch: 0,
        nonce: None,
    };
    lease(1, 1).validate().unwrap();
    lease(1, 2).validate().unwrap();
    assert_eq!(
        lease(2, 3).validate().unwrap_err().to_string(),
        "protocol: the agent speaks version 2 to 3, this gateway 1; update the older one"
    );
    for nonce in ["", "xyz", &"a".repeat(129)] {
        let bad = LeaseRequest {
            nonce: Some(nonce.to_owned()),
            ..lease(1, 1)
        };
        assert_eq!(
            bad.validate().unwrap_err().to_string(),
            "nonce: expected 1 to 128 hexadecimal digits"
        );
    }
}

#[test]
fn the_progress_of_a_measurement_may_be_one_version_away() {
    let older = r#"{"model":"m:1","device_kind":"T4","done":1,"total":4,"csv":null,"error":null}"#;
    assert_eq!(
        serde_json::from_str::<ProfileProgress>(older).unwrap(),
        measurement()
    );
    let newer = older.replace("\"done\"", "\"operators\":\"{}\",\"later\":1,\"done\"");
    let newer: ProfileProgress = serde_json::from_str(&newer).unwrap();
    assert_eq!(newer.operators.as_deref(), Some("{}"));
}

#[test]
fn an_older_agent_makes_no_inspections_and_an_older_gateway_wants_none() {
    let status = r#"{"instance":"i","epoch":1,"revision":1,"replicas":[],"profiles":[]}"#;
    let status: AgentStatus = serde_json::from_str(status).unwrap();
    assert_eq!(status.inspections, None);
    let wanted = r#"{"epoch":1,"revision":1,"replicas":[],"profiles":[]}"#;
    let wanted: packhorse_cluster::WantedState = serde_json::from_str(wanted).unwrap();
    assert_eq!(wanted.inspections, []);
}

#[test]
fn an_older_gateway_wants_no_operators() {
    let wanted = r#"{"program":{"model":"m:1","artifact":"sha256:0000000000000000000000000000000000000000000000000000000000000000",
        "max_batch_size":4,"inputs":[],"outputs":[]},"device":"d","device_kind":"T4","time_limit_ms":1000}"#;
    let wanted: packhorse_cluster::WantedProfile = serde_json::from_str(wanted).unwrap();
    assert!(!wanted.inspect);
}
