//! `/v1/audit`.

use serde_json::json;

use packhorse_stand_in::Gateway;

#[tokio::test]
async fn acts_are_listed_with_actor_and_change() {
    let gateway = Gateway::start(crate::PROGRAM).await;
    let entries = json!([
        {
            "id": 8, "at_ms": 1_700_000_000_000_i64, "action": "policy.change", "subject": null, "change": {"policy": "usher"},
            "actor": {"name": "admin", "key_id": null, "session": true, "address": null},
        },
        {
            "id": 7, "at_ms": 1_700_000_000_000_i64, "action": "model.change", "subject": "minilm",
            "change": {"slo_ms": 150.0, "rate_rps": null},
            "actor": {"name": "deploy", "key_id": "1f3a5b7c", "session": false, "address": "10.0.0.7"},
        },
    ]);
    gateway
        .answers("GET", "/v1/audit", 200, entries.clone())
        .await;
    let list = gateway.run(&["audit", "--before", "9", "--limit", "2"]);
    let text = list.text();
    for part in [
        "admin (dashboard)",
        "policy \"usher\"",
        "deploy (key 1f3a5b7c)",
        "10.0.0.7",
        "model.change",
        "slo_ms 150.0",
        "2023-11-14",
    ] {
        assert!(text.contains(part), "{part} is not in\n{text}");
    }
    assert!(!text.contains("rate_rps"), "{text}");
    assert_eq!(gateway.run(&["audit", "--json"]).json(), entries);
    assert_eq!(gateway.run(&["audit", "--limit", "1001"]).code, 2);
}
