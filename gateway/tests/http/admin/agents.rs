//! `/v1/agents` and `/v1/nodes`: leases, statuses, and what is wanted.

use packhorse_api::agent::{GpuStatus, ProtocolRange};
use packhorse_cluster::{Capacity, ReplicaState, ReplicaStatus};
use packhorse_wire::{ClusterKey, LinkSecret};
use reqwest::Method;
use serde_json::{Value, json};

use crate::support::{
    agent::{Agent, devices, progress, status},
    gateway::Gateway,
};

#[tokio::test]
async fn one_agent_holds_the_lease_of_a_node() {
    let gateway = Gateway::with_flags(&["--lease-ms=400"]).await;
    let first = Agent::new("n");
    let grant = first.lease(&gateway).await;
    assert_eq!((grant.epoch, grant.lease_ms), (1, 400));
    let second = Agent {
        instance: "second".to_owned(),
        ..Agent::new("n")
    };
    assert!(second.try_lease(&gateway).await.error(409).contains('n'));
    second.try_report(&gateway, vec![], vec![]).await.error(409);
    assert_eq!(first.try_report(&gateway, vec![], vec![]).await.status, 204);
    assert_eq!(first.lease(&gateway).await, grant);

    // The first is silent until its lease has run out; then the second may have it.
    gateway.wait_for_node("n", "lost").await;
    first.try_report(&gateway, vec![], vec![]).await.error(409);
    second.lease(&gateway).await;
    first.try_lease(&gateway).await.error(409);
    gateway.wait_for_node("n", "ready").await;
}

#[tokio::test]
async fn an_agent_one_version_ahead_is_served_and_one_without_a_common_version_is_told() {
    let gateway = Gateway::start().await;
    let mut agent = Agent::new("n");
    agent.says = json!({"protocol": {"first": 1, "last": 2}, "rack": "b7", "highest_epoch": 0});
    agent.devices[0]["numa_node"] = json!(1);
    let grant = agent.lease(&gateway).await;
    assert_eq!(grant.protocol, ProtocolRange::SUPPORTED);
    let status = json!({
        "instance": agent.instance, "epoch": 1, "revision": 0, "profiles": [], "mood": "good",
        "gpus": [{"device": "sim0", "fan_pct": 3, "processes": [{"pid": 1, "memory_bytes": 2, "user": "x"}]}],
        "replicas": [{"id": "9-9", "state": "hibernating", "address": null, "pid": null, "restarts": 0, "reason": null,
                      "memory_bytes": null, "since_ms": 5}],
    });
    let answer = agent
        .send(&gateway, Method::PUT, "status", status.to_string())
        .await;
    assert_eq!(answer.status, 204, "{answer:?}");
    let what = "wanted?epoch=0&revision=0&wait_ms=10&format=2";
    let wanted = agent.send(&gateway, Method::GET, what, String::new()).await;
    assert_eq!(wanted.ok(200)["epoch"], 1);

    agent.says = json!({"protocol": {"first": 2, "last": 3}});
    assert_eq!(
        agent.try_lease(&gateway).await.error(400),
        "protocol: the agent speaks version 2 to 3, this gateway 1; update the older one"
    );
}

#[tokio::test]
async fn an_impossible_status_is_refused_by_field_and_planning_goes_on() {
    let gateway = Gateway::start().await;
    let mut agent = Agent::new("n");
    gateway.register("m").await;
    agent.work_until_ready(&gateway, "m").await;
    let id = *agent.workers.keys().next().unwrap();
    let broken = ReplicaStatus {
        address: Some(agent.workers[&id].address),
        local_path: None,
        capacity: Some(Capacity {
            batch_size: 0,
            in_flight: 1,
            multiprocessors: None,
        }),
        ..status(id, ReplicaState::Ready, None)
    };
    let twice = || vec![status(id, ReplicaState::Loading, None); 2];
    for (replicas, problem) in [
        (
            vec![broken],
            "replicas[0].capacity.batch_size: expected 1 to 4096, got 0".to_owned(),
        ),
        (
            twice(),
            format!("replicas[1].id: replica {id} appears twice"),
        ),
    ] {
        let answer = agent.try_report(&gateway, replicas, vec![]).await;
        assert_eq!(answer.error(400), problem);
    }
    gateway.register("other").await;
    agent.work_until_ready(&gateway, "other").await;
}

#[tokio::test]
async fn a_worker_that_is_not_on_its_node_is_refused() {
    let elsewhere = |id| ReplicaStatus {
        address: Some("192.0.2.7:9000".parse().unwrap()),
        local_path: None,
        ..status(id, ReplicaState::Ready, None)
    };
    let id = "1-0".parse().unwrap();
    let gateway = Gateway::start().await;
    let agent = Agent::new("n");
    agent.lease(&gateway).await;
    let refused = agent
        .try_report(&gateway, vec![elsewhere(id)], vec![])
        .await;
    let reason = refused.error(400);
    assert!(
        reason.starts_with("replicas[0].address: 192.0.2.7:9000 is not an address of the node"),
        "{reason}"
    );

    let gateway = Gateway::with_flags(&["--worker-networks=192.0.2.0/24"]).await;
    agent.lease(&gateway).await;
    let accepted = agent
        .try_report(&gateway, vec![elsewhere(id)], vec![])
        .await;
    assert_eq!(accepted.status, 204, "{accepted:?}");
}

#[tokio::test]
async fn a_gateway_raises_its_epoch_above_what_an_agent_of_its_own_cluster_has_seen() {
    let gateway = Gateway::start().await;
    let (mut first, mut second) = (Agent::new("a"), Agent::new("b"));
    for agent in [&mut first, &mut second] {
        agent.turn(&gateway).await;
    }
    let cluster = first.lease(&gateway).await.cluster_id.unwrap();
    assert_eq!(first.known.0, 1);

    // A renewal says what the agent has from this gateway, and changes nothing.
    first.says = json!({"cluster_id": cluster, "highest_epoch": 1});
    assert_eq!(first.lease(&gateway).await.epoch, 1);
    // The agent has seen epoch 5 before the gateway's store was restored.
    first.says = json!({"cluster_id": cluster, "highest_epoch": 5});
    let grant = first.lease(&gateway).await;
    assert_eq!((grant.epoch, grant.proof), (6, None));
    for agent in [&mut first, &mut second] {
        agent.pull(&gateway, 10_000).await;
        assert_eq!(
            agent.known.0, 6,
            "what is wanted is said again with the new epoch"
        );
    }
    // Another cluster's epochs mean nothing here.
    second.says = json!({"cluster_id": "other", "highest_epoch": 99, "nonce": "00ff"});
    assert_eq!(second.lease(&gateway).await.epoch, 6);
    second.says = json!({"cluster_id": cluster, "highest_epoch": u64::MAX});
    let reason = second.try_lease(&gateway).await.error(400);
    assert!(reason.starts_with("highest_epoch: "), "{reason}");

    let gateway = gateway.restarted().await;
    let grant = Agent::new("c").lease(&gateway).await;
    assert_eq!(grant.epoch, 7, "the raised epoch is durable");
    assert_eq!(grant.cluster_id, Some(cluster));
}

#[tokio::test]
async fn an_agent_of_another_cluster_gets_a_proof_over_its_nonce() {
    let gateway = Gateway::start().await;
    let mut agent = Agent::new("n");
    agent.says = json!({"cluster_id": "other", "highest_epoch": 9, "nonce": "00ff"});
    let grant = agent.lease(&gateway).await;
    let cluster = grant.cluster_id.unwrap();
    let proof = hex::decode(grant.proof.unwrap()).unwrap();
    let key = |token: &str| ClusterKey::new(&LinkSecret::none(), token);
    assert!(key(&gateway.token("agent-token")).verifies("00ff", &cluster, &proof));
    assert!(!key("another token").verifies("00ff", &cluster, &proof));
    agent.says["nonce"] = json!("not hexadecimal");
    let reason = agent.try_lease(&gateway).await.error(400);
    assert!(reason.starts_with("nonce: "), "{reason}");

    // A link secret is the key where there is one.
    let secret = "a secret of the link";
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("secret");
    std::fs::write(&file, secret.replace(' ', "-")).unwrap();
    let flag = format!("--link-secret-file={}", file.display());
    let gateway = Gateway::with_flags(&[&flag]).await;
    agent.says["nonce"] = json!("00fe");
    let grant = agent.lease(&gateway).await;
    let proof = hex::decode(grant.proof.unwrap()).unwrap();
    let shared = LinkSecret::from_file_content(secret.replace(' ', "-").as_bytes());
    let key = ClusterKey::new(&shared, "any token");
    assert!(key.verifies("00fe", &grant.cluster_id.unwrap(), &proof));
}

#[tokio::test]
async fn a_node_with_a_token_of_its_own_is_leased_with_it_only() {
    let gateway = Gateway::start().await;
    let made = gateway.post("/v1/nodes/n/token", &json!({})).await.ok(201);
    let own = made["token"].as_str().unwrap().to_owned();
    assert_eq!((made["node"].as_str(), own.len()), (Some("n"), 64));

    let common = Agent::new("n");
    let reason = common.try_lease(&gateway).await.error(403);
    assert!(reason.contains("has a token of its own"), "{reason}");
    Agent::new("m").lease(&gateway).await;
    let agent = Agent {
        token: Some(own.clone()),
        ..Agent::new("n")
    };
    agent.lease(&gateway).await;
    agent.report(&gateway).await;
    agent.try_wanted(&gateway, 0).await.ok(200);
    let digest = gateway.upload(b"a file").await;
    let address = gateway.app.admin_address();
    let path = format!("/v1/artifacts/{digest}");
    let file = gateway
        .send(address, Method::GET, &path, Some(&own), vec![])
        .await;
    assert_eq!((file.status, &file.body[..]), (200, &b"a file"[..]));
    for (method, path) in [
        (Method::GET, "/v1/nodes"),
        (Method::POST, "/v1/nodes/n/token"),
    ] {
        let refused = gateway
            .send(address, method, path, Some(&own), vec![])
            .await;
        refused.error(403);
    }
    let elsewhere = Agent {
        token: Some(own.clone()),
        ..Agent::new("m")
    };
    let reason = elsewhere.try_lease(&gateway).await.error(403);
    assert!(reason.contains("is that of node n"), "{reason}");

    // It survives a restart, and a new one replaces it.
    let gateway = gateway.restarted().await;
    agent.lease(&gateway).await;
    common.try_lease(&gateway).await.error(403);
    gateway.post("/v1/nodes/n/token", &json!({})).await.ok(201);
    agent.try_lease(&gateway).await.error(401);
}

#[tokio::test]
async fn a_lease_out_of_its_limits_is_refused() {
    let gateway = Gateway::start().await;
    let mut agent = Agent::new("n");
    let twice = devices("T4", 1)[0].clone();
    let bad_name = json!([{"name": "a/b", "kind": "T4", "memory_bytes": 1, "multiprocessors": null, "description": ""}]);
    for bad in [
        json!([twice, twice]),
        bad_name,
        json!(vec![twice.clone(); 65]),
    ] {
        agent.devices = bad;
        assert!(
            agent
                .try_lease(&gateway)
                .await
                .error(400)
                .contains("devices")
        );
    }
    agent.devices = devices("T4", 1);
    agent.instance = String::new();
    assert!(
        agent
            .try_lease(&gateway)
            .await
            .error(400)
            .contains("instance")
    );
    assert_eq!(gateway.get("/v1/nodes").await.ok(200), json!([]));
}

#[tokio::test]
async fn what_an_agent_reads_of_its_gpus_is_shown_and_measured_until_it_is_silent() {
    let gateway = Gateway::with_flags(&["--lease-ms=1500"]).await;
    let gpu = |device: &str| GpuStatus {
        device: device.to_owned(),
        utilization_pct: Some(50.0),
        mps: true,
        ..GpuStatus::default()
    };
    let agent = Agent {
        gpus: vec![gpu("sim0"), gpu("not-its-own")],
        ..Agent::new("n")
    };
    agent.lease(&gateway).await;
    agent.report(&gateway).await;
    let node = gateway.wait_for_node("n", "ready").await;
    assert_eq!(node["devices"][0]["gpu"]["utilization_pct"], 50.0);
    let metrics = async || String::from_utf8(gateway.get("/metrics").await.body).unwrap();
    let page = metrics().await;
    assert!(
        page.contains("nv_gpu_utilization{gpu_uuid=\"sim0\"} 0.5\n"),
        "{page}"
    );
    assert!(!page.contains("not-its-own"));

    gateway.wait_for_node("n", "lost").await;
    assert!(!metrics().await.contains("gpu_uuid"));
}

#[tokio::test]
async fn what_is_wanted_is_told_only_to_who_holds_the_lease_and_has_reported() {
    let gateway = Gateway::start().await;
    let agent = Agent::new("n");
    agent.try_wanted(&gateway, 0).await.error(409);
    agent.lease(&gateway).await;
    agent.try_wanted(&gateway, 0).await.error(409);
    agent.report(&gateway).await;
    let wanted = agent.try_wanted(&gateway, 10_000).await.ok(200);
    assert_eq!(
        wanted,
        json!({"epoch": 1, "revision": 1, "replicas": [], "profiles": [], "inspections": []})
    );
    agent.try_wanted(&gateway, 30_001).await.error(400);
}

#[tokio::test]
async fn a_long_poll_ends_when_something_else_is_wanted_and_not_before() {
    let gateway = Gateway::start().await;
    let mut agent = Agent::new("n");
    agent.lease(&gateway).await;
    agent.report(&gateway).await;
    agent.pull(&gateway, 10_000).await;
    let same = agent.try_wanted(&gateway, 30).await.ok(200);
    assert_eq!(same["revision"], 1);
    let (news, _) = tokio::join!(agent.try_wanted(&gateway, 15_000), gateway.register("m"));
    let news = news.ok(200);
    assert_eq!(news["revision"], 2);
    assert_eq!(news["profiles"][0]["program"]["model"], "m:1");
    assert_eq!(news["profiles"][0]["device"], "sim0");
}

#[tokio::test]
async fn a_model_is_measured_once_per_kind_and_one_at_a_time_on_a_device() {
    let gateway = Gateway::start().await;
    let mut agent = Agent::asked_to_measure(&gateway, &["a", "b", "c"]).await;
    // The agent knows the next one.
    let wanted = agent.wanted.profiles.iter();
    let wanted: Vec<String> = wanted.map(|of| of.program.model.to_string()).collect();
    assert_eq!(wanted, ["a:1", "b:1"]);
    let view = gateway.wait_for_state("b", "profiling").await;
    assert_eq!(
        view["reason"],
        "waiting for a device that is measuring another model"
    );

    let wanted = agent.wanted.profiles[0].clone();
    let under_way = packhorse_cluster::ProfileProgress {
        done: 3,
        total: 4,
        ..progress(&wanted)
    };
    agent.try_report(&gateway, vec![], vec![under_way]).await;
    let view = gateway.wait_for_state("a", "profiling").await;
    assert_eq!(view["reason"], "being measured on T4: 3 of 4 batch sizes");
    assert_eq!(
        view["profiling"],
        json!([{"device_kind": "T4", "done": 3, "total": 4}])
    );

    agent.measures = true;
    agent.work_until_ready(&gateway, "a").await;
    agent.work_until_ready(&gateway, "b").await;
    agent.work_until_ready(&gateway, "c").await;
    assert_eq!(agent.wanted.profiles, []);
}

#[tokio::test]
async fn a_measurement_of_an_earlier_model_of_the_same_name_does_not_count() {
    let gateway = Gateway::start().await;
    let mut agent = Agent::asked_to_measure(&gateway, &["m"]).await;
    let stale = packhorse_cluster::ProfileProgress {
        csv: Some(crate::support::agent::profile(&agent.wanted.profiles[0])),
        ..progress(&agent.wanted.profiles[0])
    };
    gateway.delete("/v1/models/m").await;
    gateway.register("m").await;
    // The report is for the revision that wanted the measurement of the earlier model.
    let answer = agent.try_report(&gateway, vec![], vec![stale]).await;
    assert_eq!(answer.status, 204);
    let view = gateway.get("/v1/models/m").await.ok(200);
    assert_eq!(view["profiled_on"], json!([]));
    agent.measures = true;
    agent.work_until_ready(&gateway, "m").await;
}

#[tokio::test]
async fn a_model_that_cannot_be_measured_fails_with_the_reason_and_stays_failed() {
    let gateway = Gateway::start().await;
    let mut agent = Agent::asked_to_measure(&gateway, &["m"]).await;
    let failed = packhorse_cluster::ProfileProgress {
        error: Some("it takes 2 arguments, not 1".to_owned()),
        ..progress(&agent.wanted.profiles[0])
    };
    agent.try_report(&gateway, vec![], vec![failed]).await;
    let view = gateway.wait_for_state("m", "failed").await;
    assert_eq!(view["reason"], "it takes 2 arguments, not 1");
    let gateway = gateway.restarted().await;
    agent.measures = true;
    agent.turn(&gateway).await;
    let view = gateway.wait_for_state("m", "failed").await;
    assert_eq!(view["reason"], "it takes 2 arguments, not 1");
    agent.turn(&gateway).await;
    assert_eq!(agent.wanted.profiles, []);
}

#[tokio::test]
async fn a_replica_that_can_never_be_ready_fails_its_model() {
    let gateway = Gateway::start().await;
    let mut agent = Agent {
        fails: Some("no output y".to_owned()),
        ..Agent::new("n")
    };
    gateway.register("m").await;
    let view = agent
        .work_until(&gateway, "m", |view| view["state"] == "failed")
        .await;
    assert_eq!(view["reason"], "no output y");
    agent.turn(&gateway).await;
    agent.pull(&gateway, 1000).await;
    assert_eq!(agent.wanted.replicas, []);
}

#[tokio::test]
async fn what_did_not_fit_is_planned_no_more_until_there_is_a_new_profile() {
    let gateway = Gateway::start().await;
    let mut agent = Agent::new("n");
    gateway.register("m").await;
    agent.work_until_ready(&gateway, "m").await;
    let planned = agent.wanted.replicas[0].clone();
    assert!(planned.batch_size > 1, "{planned:?}");
    // While it serves, the worker finds that there is memory for single rows only.
    let found = ReplicaStatus {
        address: Some(agent.workers[&planned.id].address),
        local_path: None,
        capacity: Some(Capacity {
            batch_size: 1,
            in_flight: 2,
            multiprocessors: None,
        }),
        ..status(planned.id, ReplicaState::Ready, None)
    };
    let answer = agent.try_report(&gateway, vec![found], vec![]).await;
    assert_eq!(answer.status, 204, "{answer:?}");
    let view = agent
        .work_until(&gateway, "m", |view| view["replicas"][0]["batch_size"] == 1)
        .await;
    assert_eq!(view["state"], "ready", "one serves all the while: {view}");
    let plan = gateway.get("/v1/plan").await.ok(200);
    let reason = format!(
        "model m:1 has memory for batches of 1 on T4, not of {}",
        planned.batch_size
    );
    assert_eq!(plan["reason"], reason);
    // The profiles are returned without the limit, and importing them again removes it.
    let profiles = gateway.get("/v1/profiles").await.body;
    let shown = String::from_utf8(profiles.clone()).unwrap();
    assert_eq!(shown.lines().count(), 5, "{shown}");
    let imported = gateway.admin(Method::PUT, "/v1/profiles", profiles).await;
    assert_eq!(imported.status, 200, "{imported:?}");
    // Single rows are enough for what is asked of it so far.
    let more = json!({"rate_rps": 400});
    gateway.patch("/v1/models/m", &more).await.ok(200);
    agent
        .work_until(&gateway, "m", |view| {
            let size = view["replicas"][0]["batch_size"].as_u64();
            size.is_some_and(|size| size > 1)
        })
        .await;
}

#[tokio::test]
async fn a_model_tells_what_its_replica_waits_for() {
    let gateway = Gateway::start().await;
    let mut agent = Agent {
        starts: false,
        ..Agent::new("n")
    };
    gateway.register("m").await;
    agent
        .work_until(&gateway, "m", |view| view["state"] == "loading")
        .await;
    agent.turn(&gateway).await;
    let id = agent.wanted.replicas[0].id;
    for (state, shown, reason) in [
        (
            ReplicaState::Fetching,
            "fetching",
            "the node is fetching the artifact",
        ),
        (
            ReplicaState::Loading,
            "loading",
            "the worker is loading the model",
        ),
        (
            ReplicaState::BackingOff,
            "loading",
            "the worker ended and will be restarted: exit 1",
        ),
    ] {
        let why = (state == ReplicaState::BackingOff).then_some("exit 1");
        agent
            .try_report(&gateway, vec![status(id, state, why)], vec![])
            .await;
        let view = gateway.wait_for_state("m", shown).await;
        assert_eq!(view["reason"], reason);
        assert_eq!(view["replicas"][0]["id"], id.to_string());
    }
}

#[tokio::test]
async fn a_cordoned_node_keeps_what_it_has_and_a_drained_one_gives_it_away() {
    let gateway = Gateway::start().await;
    let mut first = Agent::new("first");
    gateway.register("m").await;
    first.work_until_ready(&gateway, "m").await;
    gateway
        .post("/v1/nodes/nowhere/cordon", &Value::Null)
        .await
        .error(404);
    let view = gateway
        .post("/v1/nodes/first/cordon", &Value::Null)
        .await
        .ok(200);
    assert_eq!(view["state"], "cordoned");

    let mut second = Agent::new("second");
    second.turn(&gateway).await;
    gateway.register("other").await;
    second.work_until_ready(&gateway, "other").await;
    first.turn(&gateway).await;
    assert_eq!((first.workers.len(), second.workers.len()), (1, 1));

    gateway
        .post("/v1/nodes/first/drain", &Value::Null)
        .await
        .ok(200);
    for _ in 0..200 {
        first.turn(&gateway).await;
        second.turn(&gateway).await;
        let view = gateway.get("/v1/models/m").await.ok(200);
        assert_eq!(view["state"], "ready", "it serves all the while: {view}");
        if first.workers.is_empty() {
            break;
        }
    }
    assert_eq!((first.workers.len(), second.workers.len()), (0, 2));
    let view = gateway
        .post("/v1/nodes/first/uncordon", &Value::Null)
        .await
        .ok(200);
    assert_eq!(view["state"], "ready");
}
