//! `/v1/requests` of requests that reached no model.

use reqwest::Method;
use serde_json::{Value, json};

use super::keys::serving;
use crate::support::{answer::Answer, gateway::Gateway};

fn body() -> Vec<u8> {
    let tensor = json!({"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]});
    json!({"inputs": [tensor]}).to_string().into_bytes()
}

/// Sends a request with an id to a path, with a key if there is one.
async fn send(gateway: &Gateway, path: &str, id: &str, key: Option<&str>, body: Vec<u8>) -> Answer {
    let key = key.map(|key| format!("Bearer {key}"));
    let mut headers = vec![("x-request-id", id)];
    headers.extend(key.iter().map(|key| ("authorization", &**key)));
    let address = gateway.app.inference_address();
    let sent = gateway.send_with(address, Method::POST, path, headers, body);
    sent.await
}

async fn key(gateway: &Gateway, body: Value) -> (String, String) {
    let created = gateway.post("/v1/keys", &body).await.ok(201);
    let text = |field: &str| created[field].as_str().unwrap().to_owned();
    (text("id"), text("key"))
}

async fn list(gateway: &Gateway, query: &str) -> Vec<Value> {
    let listed = gateway.get(&format!("/v1/requests?{query}")).await.ok(200);
    listed.as_array().unwrap().clone()
}

const INFER: &str = "/v2/models/m/infer";

#[tokio::test]
async fn what_is_refused_before_a_model_has_it_is_found_with_its_status_and_its_reason() {
    let (gateway, _agent) = serving().await;
    let scopes = json!({"name": "shop", "scopes": ["infer:*"]});
    let (shop, secret) = key(&gateway, scopes).await;
    let scopes = json!({"name": "other", "scopes": ["infer:n"]});
    let (_, other) = key(&gateway, scopes).await;
    let scopes = json!({"name": "slow", "scopes": ["infer:m"], "rate_rps": 0.01});
    let (_, slow) = key(&gateway, scopes).await;
    let secret = Some(secret.as_str());
    let answered = send(&gateway, INFER, "served", secret, body()).await;
    assert_eq!(answered.status, 200);
    let mut limited = send(&gateway, INFER, "limited", Some(&slow), body()).await;
    while limited.status == 200 {
        limited = send(&gateway, INFER, "limited", Some(&slow), body()).await;
    }
    for (status, path, id, key, body) in [
        (401, INFER, "stranger", None, body()),
        (403, INFER, "forbidden", Some(&*other), body()),
        (404, "/v2/models/nobody/infer", "unknown", secret, body()),
        (400, INFER, "wrong", secret, b"{".to_vec()),
        (
            404,
            "/v1/embeddings",
            "text",
            secret,
            br#"{"model": "none", "input": "a"}"#.to_vec(),
        ),
    ] {
        let answer = send(&gateway, path, id, key, body).await;
        assert_eq!(answer.status, status, "{id}: {answer:?}");
    }
    assert_eq!(limited.status, 429);

    let all = list(&gateway, "outcome=rejected").await;
    let field = |name: &str| -> Vec<&Value> { all.iter().map(|one| &one[name]).collect() };
    let newest_first = [
        "text",
        "wrong",
        "unknown",
        "forbidden",
        "stranger",
        "limited",
    ];
    assert_eq!(field("request_id"), newest_first);
    assert_eq!(field("status"), [404, 400, 404, 403, 401, 429]);
    let models = ["null", "m", "nobody", "m", "m", "m"].map(|name| match name {
        "null" => Value::Null,
        name => json!(name),
    });
    assert_eq!(field("model"), models.iter().collect::<Vec<_>>());
    let names = [
        json!("shop"),
        json!("shop"),
        json!("shop"),
        json!("other"),
        Value::Null,
        json!("slow"),
    ];
    assert_eq!(field("key_name"), names.iter().collect::<Vec<_>>());
    assert_eq!(all[0]["key"], shop);
    for one in &all {
        assert!(
            one["reason"]
                .as_str()
                .is_some_and(|reason| !reason.is_empty()),
            "{one}"
        );
        assert_eq!(
            (&one["address"], &one["slo_ms"]),
            (&json!("127.0.0.1"), &json!(0.0))
        );
        let address = format!("/v1/requests/{}", one["id"]);
        assert_eq!(gateway.get(&address).await.ok(200), *one);
    }
    let reason = all[3]["reason"].as_str().unwrap();
    assert!(
        reason.contains("may not send requests to model \"m\""),
        "{reason}"
    );

    let ids = async |query: &str| -> Vec<String> {
        let listed = list(&gateway, query).await.into_iter();
        listed
            .map(|one| one["request_id"].as_str().unwrap().to_owned())
            .collect()
    };
    assert_eq!(ids("id=forbidden").await, ["forbidden"]);
    // In the order of their ends, those of the model among them.
    assert_eq!(
        ids("key=shop").await,
        ["text", "wrong", "unknown", "served"]
    );
    assert_eq!(
        ids(&format!("key={shop}&model=m")).await,
        ["wrong", "served"]
    );
    assert_eq!(ids("key=nobody").await, [""; 0]);
    assert_eq!(ids("outcome=missed").await, [""; 0]);
    assert_eq!(ids("model=m&version=1&key=shop").await, ["served"]);
    assert_eq!(ids("limit=2").await, ["text", "wrong"]);
    // They count for no objective.
    let goodput = gateway.get("/v1/goodput?window_s=60").await.ok(200);
    assert_eq!(goodput["total"]["refused_rps"], 0.0, "{goodput}");
}

#[tokio::test]
async fn a_flood_without_a_key_pushes_out_no_other_request() {
    let (gateway, _agent) = serving().await;
    let scopes = json!({"name": "other", "scopes": ["infer:n"]});
    let (_, other) = key(&gateway, scopes).await;
    let (_, may) = key(&gateway, json!({"name": "may", "scopes": ["infer:m"]})).await;
    let served = send(&gateway, INFER, "served", Some(&may), body()).await;
    assert_eq!(served.status, 200);
    send(&gateway, INFER, "forbidden", Some(&other), body())
        .await
        .error(403);
    for _ in 0..15 {
        let strangers = (0..100).map(|_| send(&gateway, INFER, "stranger", None, body()));
        for answer in futures_util::future::join_all(strangers).await {
            assert_eq!(answer.status, 401);
        }
    }
    let strangers = list(&gateway, "id=stranger&limit=10000").await;
    assert_eq!(strangers.len(), 1000);
    assert_eq!(list(&gateway, "id=served").await.len(), 1);
    assert_eq!(list(&gateway, "id=forbidden").await.len(), 1);
}
