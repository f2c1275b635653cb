//! `/v1/audit`.

use serde_json::json;

use packhorse_stand_in::{Gateway, admin};
use wiremock::{
    ResponseTemplate,
    matchers::{query_param, query_param_is_missing},
};

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
            "change": {"slo_ms": 150.0, "rate_rps": null, "queue_limit": null}, "before": {"slo_ms": 200.0, "rate_rps": 10.0},
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
        "slo_ms 200.0 → 150.0",
        "rate_rps 10.0 → null",
        "2023-11-14",
    ] {
        assert!(text.contains(part), "{part} is not in\n{text}");
    }
    assert!(!text.contains("queue_limit"), "{text}");
    assert_eq!(gateway.run(&["audit", "--limit", "100001"]).code, 2);
}

#[tokio::test]
async fn acts_are_chosen_by_subject_person_kind_and_time_and_come_in_pages() {
    let gateway = Gateway::start(crate::PROGRAM).await;
    let entry = |id: u64| {
        json!({
            "id": id, "at_ms": 1_700_000_000_000_i64, "action": "model.change", "subject": "cat:1", "change": {"slo_ms": 1.0}, "before": null,
            "actor": {"name": "deploy", "key_id": null, "session": false, "address": null},
        })
    };
    let mut next = 5001;
    let mut expected = Vec::new();
    for (before, limit) in [(None, 1000), (Some("4001"), 1000), (Some("3001"), 500)] {
        let page: Vec<_> = (0..limit).map(|at| entry(next - 1 - at)).collect();
        next -= limit;
        expected.extend(page.clone());
        let mut mock = admin("GET", "/v1/audit")
            .and(query_param("subject", "cat"))
            .and(query_param("actor", "deploy"))
            .and(query_param("action", "model"))
            .and(query_param("since", "-172800000"))
            .and(query_param("limit", limit.to_string()));
        mock = match before {
            Some(before) => mock.and(query_param("before", before)),
            None => mock.and(query_param_is_missing("before")),
        };
        let answer = ResponseTemplate::new(200).set_body_json(page);
        mock.respond_with(answer).mount(&gateway.server).await;
    }
    let which = [
        "audit",
        "--subject",
        "cat",
        "--who",
        "deploy",
        "--act",
        "model",
    ];
    let ran = gateway.run(&[&which[..], &["--since", "2d", "--limit", "2500", "--json"]].concat());
    assert_eq!(ran.json(), json!(expected));
}
