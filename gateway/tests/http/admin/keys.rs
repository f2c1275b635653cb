//! API keys: made, used on both listeners, limited, rotated, deleted.

use reqwest::Method;
use serde_json::{Value, json};

use crate::support::{agent::Agent, answer::Answer, gateway::Gateway, worker::double};

async fn create(gateway: &Gateway, body: Value) -> Value {
    gateway.post("/v1/keys", &body).await.ok(201)
}

fn key(created: &Value) -> &str {
    created["key"].as_str().unwrap()
}

async fn infer(gateway: &Gateway, model: &str, key: Option<&str>) -> Answer {
    let tensor = json!({"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]});
    let body = json!({"inputs": [tensor]}).to_string();
    let path = format!("/v2/models/{model}/infer");
    let address = gateway.app.inference_address();
    gateway
        .send(address, Method::POST, &path, key, body.into())
        .await
}

async fn with_key(gateway: &Gateway, method: Method, path: &str, key: &str) -> Answer {
    let address = gateway.app.admin_address();
    gateway
        .send(address, method, path, Some(key), b"{}".to_vec())
        .await
}

/// A gateway that requires keys and serves `m`.
pub(super) async fn serving() -> (Gateway, Agent) {
    let gateway = Gateway::with_flags(&["--inference-keys=required"]).await;
    let mut agent = Agent::new("n");
    agent.computes = Some(double);
    gateway.register("m").await;
    agent.work_until_ready(&gateway, "m").await;
    (gateway, agent)
}

#[tokio::test]
async fn a_request_needs_a_key_for_its_model() {
    let (gateway, _agent) = serving().await;
    let none = infer(&gateway, "m", None).await;
    assert!(none.error(401).contains("requires an API key"));
    assert_eq!(none.headers["www-authenticate"], "Bearer");
    for wrong in [
        "phk_12345678_x",
        "phk_",
        "secret",
        &gateway.token("admin-token"),
    ] {
        infer(&gateway, "m", Some(wrong)).await.error(401);
    }
    let address = gateway.app.inference_address();
    for path in ["/v2/health/live", "/v2/health/ready"] {
        let health = gateway.send(address, Method::GET, path, None, Vec::new());
        assert_eq!(health.await.status, 200, "balancers have no key");
    }

    let allowed = create(&gateway, json!({"name": "a", "scopes": ["infer:m*"]})).await;
    assert_eq!(infer(&gateway, "m", Some(key(&allowed))).await.status, 200);
    let other = create(
        &gateway,
        json!({"name": "b", "scopes": ["infer:other", "read"]}),
    )
    .await;
    let refused = infer(&gateway, "m", Some(key(&other))).await;
    assert!(
        refused
            .error(403)
            .contains("may not send requests to model \"m\"")
    );
    let reader = create(&gateway, json!({"name": "c", "scopes": ["admin"]})).await;
    let refused = infer(&gateway, "m", Some(key(&reader))).await;
    assert!(
        refused
            .error(403)
            .contains("may not send inference requests")
    );

    // What the key was used for is seen, and its secret is nowhere.
    let id = allowed["id"].as_str().unwrap();
    let its = gateway.get(&format!("/v1/requests?key={id}")).await.ok(200);
    assert_eq!(its.as_array().unwrap().len(), 1);
    assert_eq!(
        (&its[0]["key"], &its[0]["outcome"]),
        (&json!(id), &json!("answered"))
    );
    let unused = other["id"].as_str().unwrap();
    let others = gateway.get(&format!("/v1/requests?key={unused}")).await;
    let others = others.ok(200);
    let mut ends = others.as_array().unwrap().iter();
    assert!(
        ends.all(|one| one["outcome"] == "rejected" && one["status"] == 403),
        "what a key may not do is no request of a model: {others}"
    );
    let path = format!("/v1/keys/{}", allowed["id"].as_str().unwrap());
    let view = gateway.get(&path).await.ok(200);
    assert!(view["last_used_at_ms"].as_i64().unwrap() > 0);
    let all = gateway.get("/v1/keys").await;
    assert_eq!(all.ok(200).as_array().unwrap().len(), 3);
    assert!(!all.text().contains(key(&allowed)));
    for (client, names) in [(&allowed, vec!["m"]), (&other, vec![])] {
        let list =
            |method, path| gateway.send(address, method, path, Some(key(client)), Vec::new());
        let index = list(Method::POST, "/v2/repository/index").await.ok(200);
        let listed = index.as_array().unwrap().iter();
        assert_eq!(
            listed.map(|model| &model["name"]).collect::<Vec<_>>(),
            names
        );
        let stats = list(Method::GET, "/v2/models/stats").await.ok(200);
        let listed = stats["model_stats"].as_array().unwrap().iter();
        assert_eq!(
            listed.map(|model| &model["name"]).collect::<Vec<_>>(),
            names
        );
    }
    let metadata = gateway.send(address, Method::GET, "/v2", Some(key(&allowed)), Vec::new());
    assert_eq!(metadata.await.status, 200);
}

#[tokio::test]
async fn a_key_is_limited_in_rate_and_in_requests_at_the_same_time() {
    let (gateway, mut agent) = serving().await;
    let slow = json!({"name": "slow", "scopes": ["infer:*"], "rate_rps": 0.001});
    let slow = create(&gateway, slow).await;
    assert_eq!(infer(&gateway, "m", Some(key(&slow))).await.status, 200);
    let refused = infer(&gateway, "m", Some(key(&slow))).await;
    assert!(refused.error(429).contains("more than 0.001 requests/s"));
    let seconds: u64 = refused.headers["retry-after"]
        .to_str()
        .unwrap()
        .parse()
        .unwrap();
    assert!((900..=1000).contains(&seconds), "{seconds}");

    // The only replica does not answer: the second request is one too many.
    agent.computes = None;
    gateway.register("other").await;
    agent.work_until_ready(&gateway, "other").await;
    let one = json!({"name": "one", "scopes": ["infer:*"], "max_in_flight": 1});
    let one = create(&gateway, one).await;
    let gateway = std::sync::Arc::new(gateway);
    let first = {
        let (gateway, one) = (std::sync::Arc::clone(&gateway), key(&one).to_owned());
        tokio::spawn(async move { infer(&gateway, "other", Some(&one)).await })
    };
    let id = gateway.get("/v1/models/other").await.ok(200)["replicas"][0]["id"].clone();
    let worker = agent.workers[&id.as_str().unwrap().parse().unwrap()].clone();
    let batch = worker.batch().await;
    let second = infer(&gateway, "other", Some(key(&one))).await;
    assert!(
        second
            .error(429)
            .contains("1 requests in flight, its limit")
    );
    batch.answer(double(&batch)).await;
    assert_eq!(first.await.unwrap().status, 200);
}

#[tokio::test]
async fn a_key_has_limits_for_single_models_which_a_restart_keeps() {
    let flags = ["--inference-keys", "required"];
    let gateway = Gateway::with_flags(&flags).await;
    let limits = json!([
        {"model": "res*", "rate_rps": 0.001},
        {"model": "bert", "max_in_flight": 2},
    ]);
    let made = json!({"name": "k", "scopes": ["infer:*"], "model_limits": limits});
    let made = create(&gateway, made).await;
    let gateway = gateway.restarted().await;
    let id = made["id"].as_str().unwrap();
    let view = gateway.get(&format!("/v1/keys/{id}")).await.ok(200);
    assert_eq!(view["model_limits"], limits);
    // There are no models: whom the limit lets pass gets a 404.
    let secret = Some(key(&made));
    infer(&gateway, "resnet50", secret).await.error(404);
    let refused = infer(&gateway, "resnext", secret).await;
    let text = refused.error(429);
    assert!(
        text.contains("0.001 requests/s to models \"res*\""),
        "{text}"
    );
    for _ in 0..3 {
        infer(&gateway, "bert", secret).await.error(404);
        infer(&gateway, "gpt2", secret).await.error(404);
    }
}

#[tokio::test]
async fn what_a_limit_for_a_model_refuses_takes_nothing_from_the_rate_for_all() {
    let gateway = Gateway::with_flags(&["--inference-keys", "required"]).await;
    let limits = json!([{"model": "resnet", "rate_rps": 0.001}]);
    // Two requests may come at once, and the third after half a second.
    let made = json!({"name": "k", "scopes": ["infer:*"], "rate_rps": 2, "model_limits": limits});
    let made = create(&gateway, made).await;
    let secret = Some(key(&made));
    infer(&gateway, "resnet", secret).await.error(404);
    for _ in 0..3 {
        let refused = infer(&gateway, "resnet", secret).await;
        assert!(refused.error(429).contains("to models"));
    }
    infer(&gateway, "bert", secret).await.error(404);
}

#[tokio::test]
async fn a_key_with_the_scope_read_reads_and_one_with_admin_does_everything() {
    let gateway = Gateway::start().await;
    let reader = create(&gateway, json!({"name": "r", "scopes": ["read"]})).await;
    let admin = create(&gateway, json!({"name": "a", "scopes": ["admin"]})).await;
    let client = create(&gateway, json!({"name": "c", "scopes": ["infer:*"]})).await;
    for path in ["/v1/models", "/v1/nodes", "/v1/keys", "/v1/findings"] {
        assert_eq!(
            with_key(&gateway, Method::GET, path, key(&reader))
                .await
                .status,
            200
        );
        assert_eq!(
            with_key(&gateway, Method::GET, path, key(&admin))
                .await
                .status,
            200
        );
        with_key(&gateway, Method::GET, path, key(&client))
            .await
            .error(403);
    }
    for (method, path) in [
        (Method::POST, "/v1/keys"),
        (Method::PUT, "/v1/policy"),
        (Method::DELETE, "/v1/models/m"),
        (Method::POST, "/v1/nodes/n/token"),
        (Method::GET, "/v1/backup"),
    ] {
        let refused = with_key(&gateway, method, path, key(&reader)).await;
        refused.error(403);
    }
    let unknown = with_key(&gateway, Method::DELETE, "/v1/models/m", key(&admin)).await;
    unknown.error(404);
    // Inference needs no key on loopback.
    infer(&gateway, "m", None).await.error(404);
}

#[tokio::test]
async fn a_rotated_key_is_valid_for_its_overlap_and_keys_outlive_a_restart() {
    let gateway = Gateway::with_flags(&["--inference-keys=required"]).await;
    let old = create(&gateway, json!({"name": "k", "scopes": ["infer:*"]})).await;
    let id = old["id"].as_str().unwrap().to_owned();
    let status = async |gateway: &Gateway, created: &Value| {
        infer(gateway, "m", Some(key(created))).await.status
    };
    assert_eq!(
        status(&gateway, &old).await,
        404,
        "there is no model, but the key is valid"
    );
    let path = format!("/v1/keys/{id}/rotate");
    let new = gateway
        .post(&path, &json!({"overlap_s": 600}))
        .await
        .ok(200);
    assert_ne!(new["key"], old["key"]);
    assert_eq!(
        (status(&gateway, &old).await, status(&gateway, &new).await),
        (404, 404)
    );

    let gateway = gateway.restarted().await;
    assert_eq!(
        (status(&gateway, &old).await, status(&gateway, &new).await),
        (404, 404)
    );
    let used = gateway.get(&format!("/v1/keys/{id}")).await.ok(200);
    assert!(used["last_used_at_ms"].is_i64(), "{used}");
    let newest = gateway.post(&path, &json!({})).await.ok(200);
    assert_eq!(
        (status(&gateway, &old).await, status(&gateway, &new).await),
        (401, 401)
    );
    assert_eq!(status(&gateway, &newest).await, 404);

    assert_eq!(gateway.delete(&format!("/v1/keys/{id}")).await.status, 204);
    assert_eq!(status(&gateway, &newest).await, 401);
    gateway.delete(&format!("/v1/keys/{id}")).await.error(404);
    gateway.post(&path, &json!({})).await.error(404);
}

#[tokio::test]
async fn changed_limits_hold_at_once_and_after_a_restart() {
    let gateway = Gateway::with_flags(&["--inference-keys=required"]).await;
    let limits = json!({"name": "k", "scopes": ["infer:*"], "rate_rps": 1.0, "max_in_flight": 7});
    let created = create(&gateway, limits).await;
    let status = async |gateway: &Gateway| infer(gateway, "m", Some(key(&created))).await.status;
    assert_eq!(status(&gateway).await, 404);
    assert_eq!(status(&gateway).await, 429, "one request/s is the limit");
    let path = format!("/v1/keys/{}", created["id"].as_str().unwrap());
    let change = json!({"rate_rps": null, "model_limits": [{"model": "x*", "max_in_flight": 2}]});
    let changed = gateway.patch(&path, &change).await.ok(200);
    assert_eq!(changed["rate_rps"], json!(null));
    assert_eq!(changed["max_in_flight"], 7, "it was not named");
    assert_eq!(changed["model_limits"][0]["model"], "x*");
    for _ in 0..3 {
        assert_eq!(status(&gateway).await, 404, "the limit is gone");
    }
    for (change, field) in [
        (json!({"rate_rps": 0}), "rate_rps"),
        (json!({"max_in_flight": 0}), "max_in_flight"),
        (
            json!({"model_limits": [{"model": "", "rate_rps": 1}]}),
            "model_limits[0].model",
        ),
        (json!({"name": "other"}), "name"),
    ] {
        let error = gateway.patch(&path, &change).await.error(400);
        assert!(error.contains(field), "{error}");
    }
    let gateway = gateway.restarted().await;
    let kept = gateway.get(&path).await.ok(200);
    for field in ["rate_rps", "max_in_flight", "model_limits"] {
        assert_eq!(kept[field], changed[field], "{field}");
    }
}

#[tokio::test]
async fn wrong_properties_of_a_key_are_refused_by_name() {
    let gateway = Gateway::start().await;
    let good = json!({"name": "k", "scopes": ["read"]});
    for (field, value) in [
        ("name", json!("")),
        ("name", json!("a\nb")),
        ("scopes", json!([])),
        ("scopes", json!(["write"])),
        ("scopes", json!(["infer:"])),
        ("expires_at_ms", json!(1)),
        ("rate_rps", json!(0)),
        ("rate_rps", json!(-1)),
        ("rate_rps", json!(1e9)),
        ("max_in_flight", json!(0)),
        ("model_limits[0].model", json!([{"model": ""}])),
        (
            "model_limits[1].rate_rps",
            json!([{"model": "a"}, {"model": "b", "rate_rps": 0}]),
        ),
        (
            "model_limits[0].max_in_flight",
            json!([{"model": "a", "max_in_flight": 0}]),
        ),
        ("owner", json!("me")),
    ] {
        let mut body = good.clone();
        body[field.split('[').next().unwrap()] = value.clone();
        let refused = gateway.post("/v1/keys", &body).await;
        assert!(
            refused.error(400).contains(field),
            "{field} {value}: {}",
            refused.text()
        );
    }
    let made = create(&gateway, good).await;
    let path = format!("/v1/keys/{}/rotate", made["id"].as_str().unwrap());
    let refused = gateway.post(&path, &json!({"overlap_s": 2_592_001})).await;
    assert!(refused.error(400).contains("overlap_s"));
}

#[tokio::test]
async fn a_key_opens_the_models_that_calls_of_texts_name_in_their_bodies() {
    let (gateway, _agent) = serving().await;
    let address = gateway.app.inference_address();
    let call = async |path: &str, model: &str, key: Option<&str>| {
        let body = json!({"model": model, "input": "a", "query": "q", "documents": ["d"]});
        let sent = gateway.send(address, Method::POST, path, key, body.to_string().into());
        let answer = sent.await;
        let message = &answer.json()["error"];
        let message = message["message"].as_str().or(message.as_str());
        (answer.status, message.unwrap_or_default().to_owned())
    };
    let allowed = create(&gateway, json!({"name": "a", "scopes": ["infer:m*"]})).await;
    let other = create(&gateway, json!({"name": "b", "scopes": ["infer:other"]})).await;
    for path in ["/v1/embeddings", "/v1/rerank", "/v2/rerank"] {
        assert_eq!(call(path, "m", None).await.0, 401);
        let (status, message) = call(path, "m", Some(key(&other))).await;
        assert_eq!(status, 403, "{message}");
        assert!(
            message.contains("may not send requests to model \"m\""),
            "{message}"
        );
        // The model takes no texts, which only its own clients are told.
        let (status, message) = call(path, "m", Some(key(&allowed))).await;
        assert_eq!(status, 400, "{message}");
        assert!(
            message.contains("the model does not declare which output"),
            "{message}"
        );
        assert_eq!(call(path, "more", Some(key(&allowed))).await.0, 404);
    }
    let listed = gateway.send(
        address,
        Method::GET,
        "/v1/models",
        Some(key(&other)),
        Vec::new(),
    );
    assert_eq!(listed.await.ok(200)["data"], json!([]));
    let listed = gateway.send(
        address,
        Method::GET,
        "/v1/models",
        Some(key(&allowed)),
        Vec::new(),
    );
    assert_eq!(listed.await.ok(200)["data"][0]["id"], "m");
    let slow = json!({"name": "slow", "scopes": ["infer:*"], "rate_rps": 0.001});
    let slow = create(&gateway, slow).await;
    assert_eq!(call("/v1/embeddings", "m", Some(key(&slow))).await.0, 400);
    assert_eq!(call("/v1/embeddings", "m", Some(key(&slow))).await.0, 429);
}
