//! Versions of a model: how a new one takes over, splits by an admin, and rollbacks.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
};

use reqwest::Method;
use serde_json::{Value, json};

use crate::support::{
    agent::Agent,
    gateway::{Gateway, registration},
    worker::double,
};

/// Registers this version of `m`.
async fn register(gateway: &Gateway, version: u32) -> Value {
    let file = format!("version {version}");
    let mut body = registration("m", gateway.upload(file.as_bytes()).await);
    body["version"] = json!(version);
    body["slo_ms"] = json!(10_000);
    gateway.post("/v1/models", &body).await.ok(201)
}

async fn share(gateway: &Gateway, version: u32) -> Value {
    let path = format!("/v1/models/m?version={version}");
    gateway.get(&path).await.ok(200)["share_pct"].clone()
}

#[tokio::test]
async fn a_new_version_takes_over_without_a_refused_request() {
    let gateway = Arc::new(Gateway::start().await);
    let mut agent = Agent::new("n");
    agent.computes = Some(double);
    register(&gateway, 1).await;
    agent.work_until_ready(&gateway, "m").await;

    let (stop, answered) = (
        Arc::new(AtomicBool::new(false)),
        Arc::new(AtomicU64::new(0)),
    );
    let clients: Vec<_> = (0..4)
        .map(|_| {
            let (gateway, stop) = (Arc::clone(&gateway), Arc::clone(&stop));
            let answered = Arc::clone(&answered);
            tokio::spawn(async move {
                let tensor =
                    json!({"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]});
                let body = json!({"inputs": [tensor]}).to_string();
                let mut versions = Vec::new();
                while !stop.load(SeqCst) {
                    let address = gateway.app.inference_address();
                    let path = "/v2/models/m/infer";
                    let answer =
                        gateway.send(address, Method::POST, path, None, body.clone().into());
                    let answer = answer.await.ok(200);
                    versions.push(answer["model_version"].as_str().unwrap().to_owned());
                    answered.fetch_add(1, SeqCst);
                }
                versions
            })
        })
        .collect();

    register(&gateway, 2).await;
    assert_eq!(share(&gateway, 2).await, 0, "it does not serve yet");
    assert_eq!(share(&gateway, 1).await, 100);
    let view = agent
        .work_until(&gateway, "m", |view| {
            view["share_pct"] == 100 && view["version"] == 2
        })
        .await;
    assert_eq!(
        (&view["split"], &view["sticky"]),
        (&Value::Null, &json!("none"))
    );
    let seen = answered.load(SeqCst);
    while answered.load(SeqCst) < seen + 20 {
        agent.turn(&gateway).await;
    }
    stop.store(true, SeqCst);
    for client in clients {
        let versions = client.await.unwrap();
        let first_of_two = versions.iter().position(|version| version == "2");
        assert!(versions[0] == "1" && first_of_two.is_some(), "{versions:?}");
        assert_eq!(versions.last().unwrap(), "2");
    }
    // The replica of the old version stays for the trial.
    assert!(
        !gateway.get("/v1/models/m?version=1").await.ok(200)["replicas"]
            .as_array()
            .unwrap()
            .is_empty()
    );
}

#[tokio::test]
async fn a_split_is_checked_shown_and_kept_over_a_restart() {
    let gateway = Gateway::start().await;
    for version in [1, 2, 3] {
        register(&gateway, version).await;
    }
    let change = async |path: &str, body: Value| gateway.patch(path, &body).await;
    for (split, error) in [
        (json!({"1": 90}), "sum to 100"),
        (json!({"1": 90, "2": 20}), "sum to 100"),
        (json!({"0": 100}), "model version"),
        (json!({"one": 100}), ""),
        (json!({"1": -1, "2": 101}), ""),
        (json!([100]), ""),
    ] {
        let answer = change("/v1/models/m", json!({"split": split})).await;
        assert!(answer.error(400).contains(error), "{split}: {answer:?}");
    }
    let unknown = change("/v1/models/m", json!({"split": {"4": 100}})).await;
    assert_eq!(unknown.error(404), "model m has no version 4");
    let of_version = change("/v1/models/m?version=2", json!({"sticky": "none"})).await;
    assert!(of_version.error(400).contains("without ?version"));
    let nothing_to_return_to = gateway.post("/v1/models/m/rollback", &json!({})).await;
    // Version 3 is taking over from version 1, the only one that was there before.
    assert_eq!(nothing_to_return_to.status, 200);

    let canary = json!({"split": {"1": 90, "2": 10, "3": 0}, "sticky": "request-id"});
    let view = change("/v1/models/m", canary).await.ok(200);
    assert_eq!(view["split"], json!({"1": 90, "2": 10}));
    assert_eq!(view["sticky"], "request-id");

    let promoted = gateway
        .post("/v1/models/m/promote", &json!({"version": 2}))
        .await;
    assert_eq!(promoted.ok(200)["split"], json!({"2": 100}));
    gateway
        .post("/v1/models/m/promote", &json!({"version": 9}))
        .await
        .error(404);
    gateway
        .post("/v1/models/other/promote", &json!({"version": 1}))
        .await
        .error(404);
    let back = gateway
        .post("/v1/models/m/rollback", &json!({}))
        .await
        .ok(200);
    assert_eq!(back["split"], json!({"1": 90, "2": 10}));

    let gateway = gateway.restarted().await;
    let view = gateway.get("/v1/models/m").await.ok(200);
    assert_eq!(view["split"], json!({"1": 90, "2": 10}));
    assert_eq!(view["sticky"], "request-id");
    let automatic = gateway.patch("/v1/models/m", &json!({"split": null})).await;
    assert_eq!(automatic.ok(200)["split"], Value::Null);

    // A registration of the same name begins without a split.
    gateway.delete("/v1/models/m").await;
    register(&gateway, 1).await;
    let gateway = gateway.restarted().await;
    let view = gateway.get("/v1/models/m").await.ok(200);
    assert_eq!(
        (&view["split"], &view["share_pct"]),
        (&Value::Null, &json!(100))
    );
    let none = gateway.post("/v1/models/m/rollback", &json!({})).await;
    assert!(none.error(409).contains("has not been changed"));
}

#[tokio::test]
async fn the_rate_belongs_to_all_versions_and_is_that_of_the_newest() {
    let gateway = Gateway::start().await;
    register(&gateway, 1).await;
    register(&gateway, 2).await;
    let older = gateway
        .patch("/v1/models/m?version=1", &json!({"rate_rps": 5}))
        .await;
    assert!(older.error(400).contains("its newest, version 2"));
    for path in ["/v1/models/m", "/v1/models/m?version=2"] {
        let changed = gateway.patch(path, &json!({"rate_rps": 5})).await;
        assert_eq!(changed.ok(200)["rate_rps"], 5.0);
    }
    let slo = gateway
        .patch("/v1/models/m?version=1", &json!({"slo_ms": 100}))
        .await;
    assert_eq!(slo.ok(200)["slo_ms"], 100.0);
}

#[tokio::test]
async fn a_second_rollback_changes_nothing_and_the_audit_log_has_both_splits() {
    let gateway = Gateway::start().await;
    for version in [1, 2] {
        register(&gateway, version).await;
    }
    let canary = json!({"split": {"1": 90, "2": 10}});
    gateway.patch("/v1/models/m", &canary).await.ok(200);
    let promotion = json!({"version": 2});
    let promoted = gateway.post("/v1/models/m/promote", &promotion).await;
    let promoted = promoted.ok(200);
    assert_eq!(promoted["rollback_split"], json!({"1": 90, "2": 10}));
    for _ in 0..2 {
        let back = gateway.post("/v1/models/m/rollback", &json!({})).await;
        let back = back.ok(200);
        assert_eq!(back["split"], json!({"1": 90, "2": 10}));
        assert_eq!(back["rollback_split"], Value::Null);
    }
    let gateway = gateway.restarted().await;
    let back = gateway.post("/v1/models/m/rollback", &json!({})).await;
    assert_eq!(back.ok(200)["split"], json!({"1": 90, "2": 10}));

    let acts = gateway
        .get("/v1/audit?subject=m&action=model")
        .await
        .ok(200);
    let of = |action: &str| -> Vec<Value> {
        let acts = acts.as_array().unwrap().iter();
        let acts = acts.filter(|act| act["action"] == action);
        acts.map(|act| json!([act["before"], act["change"]]))
            .collect()
    };
    assert_eq!(
        of("model.roll-back"),
        [json!([{"split": {"2": 100}}, {"split": {"1": 90, "2": 10}}])],
        "the second one did nothing"
    );
    let events = gateway.get("/v1/events?follow=false&limit=1000").await;
    let events = events.ok(200);
    let rerouted = events.as_array().unwrap().iter();
    let rerouted = rerouted.filter(|event| event["state"] == "rerouted");
    let texts: Vec<_> = rerouted.map(|event| &event["text"]).collect();
    let canary = "requests for model m go to version 1: 90 %, version 2: 10 %";
    let promoted = "requests for model m go to version 2: 100 %";
    assert_eq!(texts, [canary, promoted, canary]);
    let change = json!({"version": 2, "split": {"2": 100}});
    let before = json!({"split": {"1": 90, "2": 10}});
    assert_eq!(of("model.promote"), [json!([before, change])]);
}
