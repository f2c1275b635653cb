//! `/v1/keys`, and inference with a key.

use serde_json::{Value, json};

use packhorse_stand_in::Gateway;

fn view() -> Value {
    json!({
        "id": "1f3a5b7c", "name": "checkout", "scopes": ["infer:minilm*", "read"], "created_at_ms": 0, "expires_at_ms": null,
        "rate_rps": 100.0, "max_in_flight": null, "model_limits": [], "last_used_at_ms": 1_700_000_000_000_i64,
    })
}

#[tokio::test]
async fn a_key_is_made_and_printed_alone() {
    let gateway = Gateway::start(crate::PROGRAM).await;
    let mut created = view();
    created["key"] = json!("phk_1f3a5b7c_secret");
    gateway
        .answers("POST", "/v1/keys", 201, created.clone())
        .await;
    let flags = [
        "--scope",
        "infer:minilm*",
        "--scope",
        "read",
        "--rate-rps",
        "100",
    ];
    let create = [&["keys", "create", "checkout"][..], &flags].concat();
    assert_eq!(gateway.run(&create).text(), "phk_1f3a5b7c_secret\n");
    let as_json = [&create[..], &["--json"]].concat();
    assert_eq!(gateway.run(&as_json).json(), created);
    let wrong = gateway.run(&["keys", "create", "checkout", "--scope", "write"]);
    assert_eq!(wrong.code, 2);
    assert!(wrong.stderr.contains("expected infer:PATTERN"), "{wrong:?}");

    let rotate = "/v1/keys/1f3a5b7c/rotate";
    gateway.answers("POST", rotate, 200, created).await;
    let rotated = gateway.run(&["keys", "rotate", "1f3a5b7c", "--overlap", "1h"]);
    assert_eq!(rotated.text(), "phk_1f3a5b7c_secret\n");
}

#[tokio::test]
async fn keys_are_listed_and_deleted() {
    let gateway = Gateway::start(crate::PROGRAM).await;
    gateway
        .answers("GET", "/v1/keys", 200, json!([view()]))
        .await;
    let list = gateway.run(&["keys", "list"]);
    let list = list.text();
    for word in [
        "1f3a5b7c",
        "checkout",
        "infer:minilm*, read",
        "100",
        "no limit",
        "never",
        "2023-11-14",
    ] {
        assert!(list.contains(word), "{word} is not in\n{list}");
    }
    gateway
        .answers("DELETE", "/v1/keys/1f3a5b7c", 204, Value::Null)
        .await;
    let deleted = gateway.run(&["keys", "delete", "1f3a5b7c"]);
    assert_eq!(deleted.text(), "deleted 1f3a5b7c\n");
}
