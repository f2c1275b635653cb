//! `/v1/history`.

use serde_json::json;

use packhorse_stand_in::Gateway;

#[tokio::test]
async fn a_history_is_a_table_in_which_a_gap_is_a_gap() {
    let gateway = Gateway::start(crate::PROGRAM).await;
    let point = |at_ms: u64| {
        json!({
            "at_ms": at_ms, "covered_s": 60.0, "plan": 4, "offered": 600, "in_time": 540, "missed": 60, "late": 50, "refused": 7, "failed": 3,
            "p50_ms": 12.5, "p99_ms": null,
        })
    };
    let begin = 1_700_000_040_000;
    let view = json!({
        "from_ms": begin, "to_ms": begin + 600_000, "step_s": 60, "known_from_ms": begin,
        "requests": [point(begin), point(begin + 60_000), point(begin + 300_000)], "device": [],
        "marks": [{"at_ms": begin, "kind": "plan", "model": null, "device": null, "text": "plan 4 was adopted"}],
    });
    gateway
        .answers("GET", "/v1/history", 200, view.clone())
        .await;
    let text = gateway.run(&["history", "--model", "resnet50", "--since", "2h"]);
    let text = text.text();
    for part in [
        "2023-11-14",
        "10",
        "9",
        "12.5",
        "gap of 180 s",
        "plan 4 was adopted",
    ] {
        assert!(text.contains(part), "{part} is not in\n{text}");
    }
    assert_eq!(text.matches("gap of").count(), 1, "{text}");
    assert_eq!(gateway.run(&["history", "--json"]).json(), view);
    for wrong in [
        &["history", "--model", "m", "--device", "n/cpu0"][..],
        &["history", "--version", "1"],
        &["history", "--since", "soon"],
    ] {
        assert_eq!(gateway.run(wrong).code, 2);
    }
}
