//! Requests that ended lately, and their trace.

use serde_json::json;
use wiremock::{ResponseTemplate, matchers::query_param};

use packhorse_stand_in::{Gateway, admin};

#[tokio::test]
async fn missed_requests_show_where_their_time_went() {
    let gateway = Gateway::start(crate::PROGRAM).await;
    let requests = json!([{
        "id": 9, "request_id": "order-4711", "trace_id": null, "key": "team-a", "key_name": null, "at_ms": 1_795_388_003_313.25, "model": "cat",
        "version": 2, "outcome": "late", "status": null, "address": null, "reason": null,
        "latency_ms": 250.5, "slo_ms": 200.0, "rows": 1, "cache": null,
        "stages_ms": {
            "receive": 1.0, "decode": 0.0, "tokenize": 0.5, "lookup": 0.0, "load": 6.5, "batch": 2.0, "queue": 200.0, "network": 3.0, "worker_queue": 4.0, "copy_in": 0.5, "compute": 39.0,
            "copy_out": 1.0,
        },
        "batch": {"id": 3, "rows": 8, "replica": "1-0", "device": "n/gpu0"},
    }]);
    admin("GET", "/v1/requests")
        .and(query_param("outcome", "missed"))
        .and(query_param("model", "cat"))
        .respond_with(ResponseTemplate::new(200).set_body_json(&requests))
        .mount(&gateway.server)
        .await;
    let ran = gateway.run(&["requests", "--missed", "--model", "cat", "--json"]);
    assert_eq!(ran.json(), requests);
    let ran = gateway.run(&["requests", "--missed", "--model", "cat"]);
    for part in ["cat:2", "late", "250.5", "n/gpu0", "39", "6.5"] {
        assert!(ran.text().contains(part), "{part} is not in {ran:?}");
    }
    admin("GET", "/v1/requests")
        .and(query_param("id", "order-4711"))
        .and(query_param("key", "team-a"))
        .and(query_param("since", "-600000"))
        .and(query_param("until", "1795968720000"))
        .respond_with(ResponseTemplate::new(200).set_body_json(&requests))
        .mount(&gateway.server)
        .await;
    let found = ["requests", "--id", "order-4711", "--key", "team-a"];
    let within = ["--since", "10m", "--until", "2026-11-29T16:12:00Z"];
    let ran = gateway.run(&[&found[..], &within[..]].concat());
    for part in [
        "order-4711  cat:2  late after 250.5 ms (in time within 200 ms)",
        "1 row, key team-a",
        "tokenize 0.5, load 6.5, batch 2, queue 200, network 3",
        "batch     3 of 8 rows on n/gpu0",
    ] {
        assert!(ran.text().contains(part), "{part} is not in {ran:?}");
    }
    let rejected = json!([{
        "id": 281_474_976_710_656_u64, "request_id": "order-4713", "trace_id": null, "key": "1a2b3c4d", "key_name": "shop", "at_ms": 1_795_388_003_313.25,
        "model": "cat", "version": null, "outcome": "rejected", "status": 403, "address": "10.0.0.7", "reason": "the key may not", "latency_ms": 0.5,
        "slo_ms": 0.0, "rows": 0, "cache": null, "stages_ms": requests[0]["stages_ms"], "batch": null,
    }]);
    admin("GET", "/v1/requests")
        .and(query_param("outcome", "rejected"))
        .respond_with(ResponseTemplate::new(200).set_body_json(&rejected))
        .mount(&gateway.server)
        .await;
    let ran = gateway.run(&["requests", "--outcome", "rejected"]);
    for part in ["shop", "cat", "rejected", "403: the key may not"] {
        assert!(ran.text().contains(part), "{part} is not in {ran:?}");
    }
    let ran = gateway.run(&["requests", "--outcome", "rejected", "--id", "order-4713"]);
    for part in [
        "order-4713  cat  rejected after 0.5 ms\n",
        "key shop, from 10.0.0.7",
    ] {
        assert!(ran.text().contains(part), "{part} is not in {ran:?}");
    }
    let ran = gateway.run(&["requests", "--since", "yesterday"]);
    assert!(ran.stderr.contains("expected how long ago"), "{ran:?}");
    admin("GET", "/v1/requests")
        .and(query_param("model", "dog"))
        .and(query_param("version", "3"))
        .respond_with(ResponseTemplate::new(200).set_body_json(json!([])))
        .mount(&gateway.server)
        .await;
    let ran = gateway.run(&["requests", "--model", "dog:3"]);
    assert!(ran.text().contains("no requests"), "{ran:?}");
    let ran = gateway.run(&["requests", "--outcome", "slow"]);
    assert!(
        ran.stderr.contains("expected missed, answered, late"),
        "{ran:?}"
    );
}

#[tokio::test]
async fn a_trace_is_written_to_a_file() {
    let gateway = Gateway::start(crate::PROGRAM).await;
    let trace = r#"{"traceEvents":[]}"#;
    admin("GET", "/v1/trace")
        .and(query_param("from_ms", "-2500"))
        .respond_with(ResponseTemplate::new(200).set_body_raw(trace, "application/json"))
        .mount(&gateway.server)
        .await;
    let file = gateway.path("trace.json");
    let ran = gateway.run(&["trace", "--last", "2.5s", "-o", file.to_str().unwrap()]);
    assert_eq!(ran.text(), "");
    assert!(ran.stderr.contains("ui.perfetto.dev"), "{ran:?}");
    assert_eq!(std::fs::read_to_string(file).unwrap(), trace);
    let ran = gateway.run(&["trace", "--last", "2.5s", "-o", "-"]);
    assert_eq!(ran.text(), trace);
}
