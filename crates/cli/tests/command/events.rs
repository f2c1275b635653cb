//! Events and findings of the cluster.

use serde_json::{Value, json};
use wiremock::{
    ResponseTemplate,
    matchers::{header, query_param},
};

use packhorse_stand_in::{Gateway, admin};

fn event(id: u64, kind: &str, subject: &Value, state: &str, text: &str) -> Value {
    json!({
        "id": id, "kind": kind, "at_ms": 1_795_388_003_313_u64, "subject": subject, "state": state, "reason": null, "text": text,
    })
}

fn events() -> Value {
    let mut adopted = event(
        5,
        "plan",
        &json!({"plan": 2}),
        "adopted",
        "plan 2 was adopted",
    );
    adopted["reason"] = json!("node n joined");
    let lost = event(6, "node", &json!({"node": "n"}), "lost", "node n was lost");
    json!([adopted, lost])
}

const LINES: &str = "\
2026-11-22 22:53:23.313Z       5  plan     adopted      plan 2 was adopted (node n joined)
2026-11-22 22:53:23.313Z       6  node     lost         node n was lost
";

async fn has_stored(gateway: &Gateway) {
    admin("GET", "/v1/events")
        .and(query_param("follow", "false"))
        .respond_with(ResponseTemplate::new(200).set_body_json(events()))
        .mount(&gateway.server)
        .await;
}

#[tokio::test]
async fn events_are_lines_without_colours_in_a_pipe() {
    let gateway = Gateway::start(crate::PROGRAM).await;
    has_stored(&gateway).await;
    assert_eq!(gateway.run(&["events"]).text(), LINES);
    assert_eq!(gateway.run(&["events", "--json"]).json(), events());
}

#[tokio::test]
async fn following_prints_what_comes_and_connects_again_until_it_is_refused() {
    let gateway = Gateway::start(crate::PROGRAM).await;
    let line = |id: u64, event: &Value| format!("id: {id}\nevent: node\ndata: {event}\n\n");
    let streams = [
        (
            "6",
            event(7, "node", &json!({"node": "n"}), "ready", "node n joined"),
        ),
        (
            "7",
            event(8, "node", &json!({"node": "n"}), "lost", "node n was lost"),
        ),
    ];
    for (last_id, event) in streams {
        let body = line(event["id"].as_u64().unwrap(), &event);
        let response = ResponseTemplate::new(200).set_body_raw(body, "text/event-stream");
        admin("GET", "/v1/events")
            .and(header("last-event-id", last_id))
            .respond_with(response)
            .mount(&gateway.server)
            .await;
    }
    let refused = ResponseTemplate::new(403).set_body_json(json!({"error": "no longer"}));
    admin("GET", "/v1/events")
        .and(header("last-event-id", "8"))
        .respond_with(refused)
        .mount(&gateway.server)
        .await;
    has_stored(&gateway).await;
    let ran = gateway.run(&["events", "--follow"]);
    let more = "\
2026-11-22 22:53:23.313Z       7  node     ready        node n joined
2026-11-22 22:53:23.313Z       8  node     lost         node n was lost
";
    assert_eq!(
        (ran.code, ran.stdout.as_str()),
        (1, &*format!("{LINES}{more}"))
    );
    assert!(ran.stderr.contains("connected again"), "{ran:?}");
    assert!(ran.stderr.contains("error: no longer"), "{ran:?}");

    let ran = gateway.run(&["events", "--follow", "--json"]);
    let ids: Vec<u64> = ran
        .stdout
        .lines()
        .map(|line| {
            serde_json::from_str::<Value>(line).unwrap()["id"]
                .as_u64()
                .unwrap()
        })
        .collect();
    assert_eq!(ids, [5, 6, 7, 8]);
}

#[tokio::test]
async fn findings_have_cause_and_cure() {
    let gateway = Gateway::start(crate::PROGRAM).await;
    let findings = json!([{
        "severity": "warning", "subject": {"model": "densenet121:1"}, "problem": "slo_missed", "since_ms": 1_795_388_003_313_u64,
        "text": "40 of 100 requests of model densenet121:1 missed", "missed_requests": 40, "cause": "device n/gpu0 is slow",
        "evidence": [{"text": "90 % of their time passed computing", "route": "/v1/requests"}],
        "root": {"device": "n/gpu0"}, "victims": [], "cure": {"text": "as for device n/gpu0", "preview": null},
    }]);
    gateway
        .answers("GET", "/v1/findings", 200, findings.clone())
        .await;
    let expected = "  warning  40 of 100 requests of model densenet121:1 missed
    since: 2026-11-22 22:53:23.313Z
    cause: device n/gpu0 is slow
    shown by: 90 % of their time passed computing
    cure: as for device n/gpu0
";
    assert_eq!(gateway.run(&["findings"]).text(), expected);
    assert_eq!(gateway.run(&["findings", "--json"]).json(), findings);
}

#[tokio::test]
async fn incidents_have_a_begin_an_end_and_their_findings() {
    let gateway = Gateway::start(crate::PROGRAM).await;
    let finding = json!({
        "severity": "warning", "subject": {"device": "n/gpu0"}, "problem": "slow_device", "since_ms": 1_795_388_003_313_u64,
        "text": "batches take 1.5 times as long", "cause": "it may throttle", "evidence": [], "root": null, "victims": [],
        "missed_requests": 7, "cure": null,
    });
    let incident = |id: u64, end: Option<u64>| {
        json!({
            "id": id, "root": {"device": "n/gpu0"}, "severity": "critical", "since_ms": 1_795_388_003_313_u64, "end_ms": end,
            "findings": [{"finding": finding, "end_ms": end}], "missed_requests": 7,
            "missed_by_model": [{"model": "a:1", "requests": 4}, {"model": "b:2", "requests": 3}],
        })
    };
    let (open, over) = (incident(2, None), incident(1, Some(1_795_388_063_313)));
    gateway
        .answers("GET", "/v1/incidents", 200, json!([open, over]))
        .await;
    let expected = "   2  critical  device n/gpu0  2026-11-22 22:53:23.313Z to now, 7 requests missed: 4 of a:1, 3 of b:2
      2026-11-22 22:53:23.313Z to now  batches take 1.5 times as long: it may throttle
   1  critical  device n/gpu0  2026-11-22 22:53:23.313Z to 2026-11-22 22:54:23.313Z, 7 requests missed: 4 of a:1, 3 of b:2
      2026-11-22 22:53:23.313Z to 2026-11-22 22:54:23.313Z  batches take 1.5 times as long: it may throttle
";
    assert_eq!(gateway.run(&["incidents"]).text(), expected);
    let ran = gateway.run(&["incidents", "--open", "--json"]);
    assert_eq!(ran.json(), json!([open]));
}

#[tokio::test]
async fn nothing_wrong_is_said_so() {
    let gateway = Gateway::start(crate::PROGRAM).await;
    gateway.answers("GET", "/v1/findings", 200, json!([])).await;
    assert_eq!(gateway.run(&["findings"]).text(), "nothing is wrong\n");
    gateway.answers("GET", "/v1/events", 200, json!([])).await;
    assert_eq!(gateway.run(&["events"]).text(), "no events\n");
}
