//! The consequences of changes, and dry runs.

use std::time::Duration;

use packhorse_cluster::{ByteCount, Profile, ProfileTable};
use reqwest::Method;
use serde_json::{Value, json};

use crate::support::{
    agent::Agent,
    event_reader::EventReader,
    gateway::{Gateway, registration},
    poll, profile_row,
};

/// A gateway whose leases outlast a test, with one node that serves these models, one on each of its devices.
async fn serving(policy: &str, devices: u32, models: &[&str]) -> (Gateway, Agent) {
    let policy = format!("--policy={policy}");
    let gateway = Gateway::with_flags(&[&policy, "--lease-ms=600000"]).await;
    let mut agent = Agent::new("n");
    let device = |number| json!({"name": format!("sim{number}"), "kind": "T4", "memory_bytes": 1 << 30, "multiprocessors": 80, "description": "a test"});
    agent.devices = (0..devices).map(device).collect();
    for model in models {
        gateway.register(model).await;
        agent.work_until_ready(&gateway, model).await;
    }
    (gateway, agent)
}

/// Gives a model that is not registered yet the profile of the others.
async fn import_profile(gateway: &Gateway, model: &str) {
    let row = |batch_size: u32| {
        let latency = Duration::from_millis(2 + 2 * u64::from(batch_size));
        profile_row(batch_size, latency, ByteCount::from_mib(100))
    };
    let rows = [1, 2, 4, 8].map(row).to_vec();
    let mut table = ProfileTable::default();
    let profile = Profile::new(rows).unwrap();
    table.insert(model.parse().unwrap(), "T4".parse().unwrap(), profile);
    let answer = gateway.admin(Method::PUT, "/v1/profiles", table.to_csv());
    assert_eq!(answer.await.status, 200);
}

/// The registration of a model that comes before all others.
async fn urgent(gateway: &Gateway, name: &str) -> Value {
    let digest = gateway
        .upload(format!("the file of {name}").as_bytes())
        .await;
    let mut body = registration(name, digest);
    body["priority"] = json!(9);
    body
}

/// Schedules the node, and returns the events that a reader reads before that of the node: their texts, but for
/// those of plans, which are made by themselves.
async fn schedule(gateway: &Gateway, reader: &mut EventReader, action: &str) -> Vec<String> {
    let path = format!("/v1/nodes/n/{action}");
    let node = gateway.post(&path, &json!({})).await.ok(200);
    let mut texts = Vec::new();
    loop {
        let event = reader.change().await.expect("the stream goes on");
        if event.name == "node" && event.data["state"] == node["state"] {
            return texts;
        }
        if event.name != "plan" {
            texts.push(event.data.to_string());
        }
    }
}

/// Everything that a change of an admin changes.
async fn cluster(gateway: &Gateway) -> Value {
    let models = gateway.get("/v1/models").await.ok(200);
    let model = |view: &Value| {
        json!([
            view["name"],
            view["version"],
            view["slo_ms"],
            view["rate_rps"],
            view["split"],
            view["state"]
        ])
    };
    let nodes = gateway.get("/v1/nodes").await.ok(200);
    json!({
        "models": models.as_array().unwrap().iter().map(model).collect::<Value>(),
        "plans": gateway.get("/v1/plans").await.ok(200).as_array().unwrap().len(),
        "policy": gateway.get("/v1/policy").await.ok(200),
        "node": nodes[0]["state"],
        "audit": gateway.get("/v1/audit").await.ok(200),
        "artifacts": gateway.get("/v1/artifacts").await.ok(200),
    })
}

/// The names of the models that lose something.
fn losers(answer: &Value) -> Vec<&str> {
    let consequences = answer["consequences"].as_array();
    let consequences = consequences.unwrap_or_else(|| panic!("{answer}"));
    let names = consequences.iter().map(|loss| loss["model"].as_str());
    names.map(Option::unwrap).collect()
}

/// The goodput of a model in the current plan.
async fn planned(gateway: &Gateway, model: &str) -> f64 {
    let plan = gateway.get("/v1/plan").await.ok(200);
    let mut models = plan["models"].as_array().unwrap().iter();
    let forecast = models.find(|forecast| forecast["name"] == model);
    forecast.map_or(0.0, |forecast| {
        forecast["predicted_goodput_rps"].as_f64().unwrap()
    })
}

#[tokio::test]
async fn a_registration_names_exactly_the_models_from_which_it_takes_goodput() {
    let (gateway, _agent) = serving("exclusive", 2, &["a", "c"]).await;
    gateway
        .patch("/v1/models/a", &json!({"priority": 8}))
        .await
        .ok(200);
    import_profile(&gateway, "b:1").await;
    let body = urgent(&gateway, "b").await;
    let dry = gateway.post("/v1/models?dry_run=true", &body).await.ok(200);
    assert_eq!(losers(&dry), ["c"], "{dry}");
    let loss = &dry["consequences"][0];
    assert_eq!(loss["before_rps"], 50.0);
    let left = loss["after_rps"].as_f64().unwrap();
    assert!(left < 1.0, "{loss}");
    let reason = loss["reason"].as_str().unwrap();
    assert!(reason.contains(" of 50 requests/s"), "{reason}");

    let made = gateway.post("/v1/models", &body).await.ok(201);
    assert_eq!(made["name"], "b");
    assert_eq!(made["consequences"], dry["consequences"]);
    // It happens as it was told.
    poll("the plan with the model", async || {
        match planned(&gateway, "b").await {
            50.0 => Ok(()),
            other => Err(other),
        }
    })
    .await;
    assert_eq!(
        (planned(&gateway, "a").await, planned(&gateway, "c").await),
        (50.0, left)
    );
    // Whoever registers many need not wait for them.
    import_profile(&gateway, "many:1").await;
    let path = "/v1/models?consequences=false";
    let many = urgent(&gateway, "many").await;
    let many = gateway.post(path, &many).await.ok(201);
    assert_eq!(many["consequences"], Value::Null);
    assert_eq!(many["consequences_unknown"], "they were not asked for");
    gateway.delete("/v1/models/many").await;
    // Nobody else loses anything by a second one that comes after all.
    import_profile(&gateway, "d:1").await;
    let mut last = urgent(&gateway, "d").await;
    last["priority"] = json!(0);
    let made = gateway.post("/v1/models", &last).await.ok(201);
    assert_eq!(made["consequences"], json!([]));
    assert_eq!(made.get("consequences_unknown"), None);
}

#[tokio::test]
async fn a_registration_with_a_known_program_is_planned_with_its_profile() {
    let (gateway, _agent) = serving("exclusive", 1, &["a"]).await;
    let mut body = urgent(&gateway, "b").await;
    body["artifact"] = json!(gateway.upload(b"the file of a").await);
    let dry = gateway.post("/v1/models?dry_run=true", &body).await.ok(200);
    assert_eq!(losers(&dry), ["a"], "{dry}");
}

#[tokio::test]
async fn a_registration_without_a_profile_has_no_consequences_that_are_known() {
    let (gateway, _agent) = serving("exclusive", 1, &["a"]).await;
    let body = urgent(&gateway, "b").await;
    let unknown = json!(
        "model b:1 has no profile yet, so that there is no plan with it; it takes its place once it is measured or estimated"
    );
    let dry = gateway.post("/v1/models?dry_run=true", &body).await.ok(200);
    assert_eq!(
        dry,
        json!({"dry_run": true, "consequences": null, "consequences_unknown": unknown})
    );
    let made = gateway.post("/v1/models", &body).await.ok(201);
    assert_eq!(made["consequences"], Value::Null);
    assert_eq!(made["consequences_unknown"], unknown);
}

#[tokio::test]
async fn a_change_of_a_model_names_those_from_which_it_takes_goodput() {
    let (gateway, _agent) = serving("exclusive", 1, &["a"]).await;
    import_profile(&gateway, "c:1").await;
    gateway.register("c").await;
    gateway.wait_for_state("c", "unplaced").await;
    let before = cluster(&gateway).await;
    let more = json!({"rate_rps": 80, "priority": 9});
    let path = "/v1/models/c?dry_run=true";
    let dry = gateway.patch(path, &more).await.ok(200);
    assert_eq!(losers(&dry), ["a"], "{dry}");
    for harmless in [
        json!({"queue_limit": 7}),
        json!({"rate_rps": 10}),
        json!({"sticky": "request-id", "rate_rps": 12}),
        json!({}),
    ] {
        let dry = gateway.patch(path, &harmless).await.ok(200);
        assert_eq!(
            dry,
            json!({"dry_run": true, "consequences": []}),
            "{harmless}"
        );
    }
    assert_eq!(cluster(&gateway).await, before);
    let made = gateway.patch("/v1/models/c", &more).await.ok(200);
    assert_eq!(made["rate_rps"], 80.0);
    assert_eq!(losers(&made), ["a"]);
}

#[tokio::test]
async fn a_model_that_asks_for_less_loses_nothing_and_one_that_cannot_be_in_time_does() {
    let (gateway, _agent) = serving("goodput", 1, &["a"]).await;
    let path = "/v1/models/a?dry_run=true";
    let less = gateway.patch(path, &json!({"rate_rps": 5})).await.ok(200);
    assert_eq!(less, json!({"dry_run": true, "consequences": []}));
    let hasty = gateway.patch(path, &json!({"slo_ms": 1})).await.ok(200);
    assert_eq!(losers(&hasty), ["a"], "{hasty}");
}

#[tokio::test]
async fn a_dry_run_changes_nothing_and_is_no_event() {
    let (gateway, _agent) = serving("exclusive", 1, &["a"]).await;
    let body = urgent(&gateway, "b").await;
    let mut reader = EventReader::open(&gateway, "", None).await;
    reader.named("snapshot").await;
    schedule(&gateway, &mut reader, "cordon").await;
    let before = cluster(&gateway).await;
    let change = json!({"slo_ms": 100, "rate_rps": 10});
    for (method, path, body) in [
        (Method::POST, "/v1/models", &body),
        (Method::POST, "/v1/models?replace=true", &body),
        (Method::PATCH, "/v1/models/a", &change),
        (Method::PATCH, "/v1/models/a", &json!({"split": {"1": 100}})),
        (Method::POST, "/v1/models/a/promote", &json!({"version": 1})),
        (Method::POST, "/v1/nodes/n/uncordon", &json!({})),
        (Method::POST, "/v1/nodes/n/drain", &json!({})),
        (Method::PUT, "/v1/policy", &json!({"policy": "first-fit"})),
    ] {
        let separator = if path.contains('?') { '&' } else { '?' };
        let path = format!("{path}{separator}dry_run=true");
        let answer = gateway.admin(method, &path, body.to_string()).await;
        let answer = answer.ok(200);
        assert!(answer.get("consequences").is_some(), "{path}: {answer}");
        assert_eq!(cluster(&gateway).await, before, "{path}");
    }
    let told = schedule(&gateway, &mut reader, "uncordon").await;
    assert_eq!(told, [""; 0]);
}

#[tokio::test]
async fn a_drain_names_the_models_that_have_no_place_elsewhere() {
    let (gateway, _agent) = serving("exclusive", 1, &["a"]).await;
    let before = cluster(&gateway).await;
    let path = "/v1/nodes/n/drain?dry_run=true";
    let dry = gateway.post(path, &json!({})).await.ok(200);
    assert_eq!(losers(&dry), ["a"], "{dry}");
    let reason = dry["consequences"][0]["reason"].as_str().unwrap();
    let stays = "; its replicas on n stay until another node has room for them";
    assert!(reason.ends_with(stays), "{reason}");
    let path = "/v1/nodes/n/drain?dry_run=true&deadline_s=60";
    let dry = gateway.post(path, &json!({})).await.ok(200);
    let reason = dry["consequences"][0]["reason"].as_str().unwrap();
    assert!(!reason.ends_with(stays), "{reason}");
    // The agent has its lease.
    gateway.delete("/v1/nodes/n?dry_run=true").await.error(409);
    assert_eq!(cluster(&gateway).await, before);

    let drained = gateway.post("/v1/nodes/n/drain", &json!({})).await.ok(200);
    assert_eq!(drained["state"], "draining");
    assert_eq!(losers(&drained), ["a"]);
}

#[tokio::test]
async fn the_removal_of_a_lost_node_takes_nothing_and_a_dry_run_keeps_it() {
    let gateway = Gateway::with_flags(&["--lease-ms=300"]).await;
    Agent::new("n").lease(&gateway).await;
    gateway.wait_for_node("n", "lost").await;
    let dry = gateway.delete("/v1/nodes/n?dry_run=true").await.ok(200);
    assert_eq!(dry, json!({"dry_run": true, "consequences": []}));
    gateway.wait_for_node("n", "lost").await;
    let removed = gateway.delete("/v1/nodes/n").await.ok(200);
    assert_eq!(removed, json!({"removed": "n", "consequences": []}));
    gateway.delete("/v1/nodes/n?dry_run=true").await.error(404);
}

#[tokio::test]
async fn the_removal_of_a_lost_node_takes_the_models_that_still_serve_there() {
    let gateway = Gateway::with_flags(&["--policy=exclusive", "--lease-ms=3000"]).await;
    let mut agent = Agent::new("n");
    gateway.register("a").await;
    agent.work_until_ready(&gateway, "a").await;
    // The agent is gone and its worker is not: nothing else can serve the model.
    gateway.wait_for_node("n", "lost").await;
    let path = "/v1/nodes/n?dry_run=true";
    let dry = gateway.delete(path).await.ok(200);
    assert_eq!(losers(&dry), ["a"]);
    let loss = &dry["consequences"][0];
    assert_eq!(
        (&loss["before_rps"], &loss["after_rps"]),
        (&json!(50.0), &json!(0.0))
    );
    let reason = loss["reason"].as_str().unwrap();
    assert!(
        reason.ends_with("; its replicas on n, which still serve, end"),
        "{reason}"
    );
    let removed = gateway.delete("/v1/nodes/n").await.ok(200);
    assert_eq!(removed["removed"], "n");
    assert_eq!(removed["consequences"], dry["consequences"]);
}

#[tokio::test]
async fn the_removal_of_the_version_that_serves_takes_from_its_model_and_that_of_all_from_nobody() {
    let (gateway, _agent) = serving("exclusive", 1, &["a"]).await;
    let second = gateway.upload(b"the second file of a").await;
    let mut second = registration("a", second);
    second["version"] = json!(2);
    gateway.post("/v1/models", &second).await.ok(201);
    let before = cluster(&gateway).await;
    let path = "/v1/models/a?version=1&dry_run=true";
    let dry = gateway.delete(path).await.ok(200);
    assert_eq!(losers(&dry), ["a"], "{dry}");
    assert_eq!(dry["consequences"][0]["after_rps"], 0.0);
    let all = gateway.delete("/v1/models/a?dry_run=true").await.ok(200);
    assert_eq!(all, json!({"dry_run": true, "consequences": []}));
    gateway
        .delete("/v1/models/a?version=3&dry_run=true")
        .await
        .error(404);
    assert_eq!(cluster(&gateway).await, before);

    let removed = gateway.delete("/v1/models/a?version=1").await.ok(200);
    let consequences = &dry["consequences"];
    assert_eq!(
        removed,
        json!({"removed": "a", "version": 1, "consequences": consequences})
    );
    let removed = gateway.delete("/v1/models/a").await.ok(200);
    assert_eq!(
        removed,
        json!({"removed": "a", "version": null, "consequences": []})
    );
}

#[tokio::test]
async fn a_change_of_the_policy_names_the_models_that_it_leaves_out() {
    let (gateway, _agent) = serving("goodput", 1, &["a", "c"]).await;
    let before = cluster(&gateway).await;
    let change = json!({"policy": "exclusive"});
    let path = "/v1/policy?dry_run=true";
    let dry = gateway.put(path, &change).await.ok(200);
    assert_eq!(losers(&dry).len(), 1, "{dry}");
    assert_eq!(dry["consequences"][0]["after_rps"], 0.0);
    let same = gateway.put(path, &json!({"policy": "goodput"})).await;
    assert_eq!(same.ok(200), json!({"dry_run": true, "consequences": []}));
    assert_eq!(cluster(&gateway).await, before);
    let made = gateway.put("/v1/policy", &change).await.ok(200);
    assert_eq!(made["policy"], "exclusive");
    assert_eq!(made["consequences"], dry["consequences"]);
}

#[tokio::test]
async fn a_dry_run_refuses_what_the_change_would_be_refused_for() {
    let gateway = Gateway::with_flags(&["--artifact-root={folder}"]).await;
    std::fs::write(gateway.folder.path().join("x.pt"), b"a file").unwrap();
    gateway.register("a").await;
    poll("the first plan", async || {
        let answer = gateway.get("/v1/plan").await;
        if answer.status == 200 {
            Ok(())
        } else {
            Err(answer.status)
        }
    })
    .await;
    let body = urgent(&gateway, "a").await;
    let before = cluster(&gateway).await;
    let dry = "?dry_run=true";
    let models = format!("/v1/models{dry}");
    gateway.post(&models, &body).await.error(409);
    for (field, value) in [
        ("slo_ms", json!(0)),
        ("priority", json!(10)),
        ("artifact", json!(format!("sha256:{}", "0".repeat(64)))),
    ] {
        let mut bad = body.clone();
        bad["name"] = json!("b");
        bad[field] = value;
        let message = gateway.post(&models, &bad).await.error(400);
        assert!(message.starts_with(&format!("{field}: ")), "{message}");
    }
    let mut by_path = body.clone();
    by_path["name"] = json!("b");
    by_path.as_object_mut().unwrap().remove("artifact");
    by_path["artifact_path"] = json!("nowhere.pt");
    gateway.post(&models, &by_path).await.error(400);
    by_path["artifact_path"] = json!("x.pt");
    gateway.post(&models, &by_path).await.ok(200);

    let model = format!("/v1/models/a{dry}");
    gateway
        .patch(&model, &json!({"slo_ms": -1}))
        .await
        .error(400);
    gateway
        .patch(&model, &json!({"split": {"7": 100}}))
        .await
        .error(404);
    let unknown = format!("/v1/models/unheard-of{dry}");
    gateway.patch(&unknown, &json!({})).await.error(404);
    let rollback = format!("/v1/models/a/rollback{dry}");
    gateway.post(&rollback, &json!({})).await.error(409);
    for act in ["cordon", "uncordon", "drain"] {
        let path = format!("/v1/nodes/unheard-of/{act}{dry}");
        gateway.post(&path, &json!({})).await.error(404);
    }
    let policy = format!("/v1/policy{dry}");
    for bad in [json!({"policy": "best"}), json!({"discipline": "flex"})] {
        gateway.put(&policy, &bad).await.error(400);
    }
    gateway
        .put("/v1/policy?dry_run=perhaps", &json!({}))
        .await
        .error(400);
    assert_eq!(cluster(&gateway).await, before);
}
