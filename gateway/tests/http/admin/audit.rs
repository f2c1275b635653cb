//! `/v1/audit`.

use serde_json::{Value, json};

use crate::support::gateway::Gateway;

async fn list(gateway: &Gateway, query: &str) -> Vec<Value> {
    let listed = gateway.get(&format!("/v1/audit?{query}")).await.ok(200);
    listed.as_array().unwrap().clone()
}

#[tokio::test]
async fn acts_have_old_and_new_values_and_are_chosen_by_subject_person_kind_and_time() {
    let gateway = Gateway::start().await;
    for name in ["m", "more"] {
        gateway.register(name).await;
    }
    let change = json!({"slo_ms": 150, "priority": 7});
    gateway
        .patch("/v1/models/m?version=1", &change)
        .await
        .ok(200);
    gateway
        .patch("/v1/models/m", &json!({"rate_rps": null}))
        .await
        .ok(200);
    let policy = json!({"policy": "first-fit"});
    gateway.put("/v1/policy", &policy).await.ok(200);
    let key = json!({"name": "m", "scopes": ["read"]});
    let key = gateway.post("/v1/keys", &key).await.ok(201);

    let acts = async |query: &str| -> Vec<String> {
        let listed = list(&gateway, query).await.into_iter();
        listed
            .map(|act| act["action"].as_str().unwrap().to_owned())
            .collect()
    };
    let of_m = list(&gateway, "subject=m").await;
    let changes: Vec<_> = of_m
        .iter()
        .map(|act| (&act["subject"], &act["before"]))
        .collect();
    let before = json!({"slo_ms": 200.0, "priority": of_m[1]["before"]["priority"]});
    assert!(before["priority"].is_u64(), "{of_m:?}");
    assert_eq!(
        changes,
        [
            (&json!("m"), &json!({"rate_rps": 50.0})),
            (&json!("m:1"), &before),
            (&json!("m:1"), &Value::Null)
        ]
    );
    assert_eq!(
        acts("subject=m:1").await,
        ["model.change", "model.register"]
    );
    assert_eq!(acts("action=model.register").await.len(), 2);
    assert_eq!(acts("action=model").await.len(), 4);
    let policy = list(&gateway, "action=policy").await;
    assert_eq!(policy[0]["before"], json!({"policy": "goodput"}));
    let id = key["id"].as_str().unwrap();
    assert_eq!(acts(&format!("subject={id}")).await, ["key.create"]);
    let all = list(&gateway, "limit=1000").await;
    let who = all[0]["actor"]["name"].as_str().unwrap();
    assert_eq!(
        list(&gateway, &format!("actor={who}&limit=1000")).await,
        all
    );
    assert_eq!(acts("actor=nobody").await, [""; 0]);
    assert_eq!(list(&gateway, "since=-60000&limit=1000").await, all);
    assert_eq!(acts("until=-60000").await, [""; 0]);
    let at = all[2]["at_ms"].as_i64().unwrap();
    let then = list(&gateway, &format!("since={at}&until={at}")).await;
    assert!(then.contains(&all[2]), "{then:?}");
    // Page by page there is no end but the first act.
    let mut paged = list(&gateway, "limit=2").await;
    loop {
        let last = paged.last().unwrap()["id"].as_u64().unwrap();
        let page = list(&gateway, &format!("limit=2&before={last}")).await;
        if page.is_empty() {
            break;
        }
        paged.extend(page);
    }
    assert_eq!(paged, all);
    let reversed = gateway.get("/v1/audit?since=-1000&until=-2000").await;
    assert_eq!(reversed.error(400), "since: expected a time before until");
}
