//! Everything at a glance.

use serde_json::json;
use wiremock::{
    Mock, ResponseTemplate,
    matchers::{method, path, query_param},
};

use packhorse_stand_in::{Gateway, admin, node, placed_model};

async fn serves(gateway: &Gateway) {
    gateway
        .answers("GET", "/v1/nodes", 200, json!([node("laptop", 1, "1-0")]))
        .await;
    gateway
        .answers(
            "GET",
            "/v1/models",
            200,
            json!([placed_model("cat", "1-0", "laptop/cpu0")]),
        )
        .await;
    let goodput = json!({"window_s": 60.0, "models": [{
        "name": "cat", "version": 1, "offered_rps": 12.0, "throughput_rps": 11.5, "goodput_rps": 11.0, "refused_rps": 0.5, "late_rps": 0.5,
        "p50_ms": 20.0, "p95_ms": 30.5, "p99_ms": null, "mean_batch": 2.5,
    }], "total": {"offered_rps": 12.0, "throughput_rps": 11.5, "goodput_rps": 11.0, "refused_rps": 0.5, "late_rps": 0.5}});
    let asked = admin("GET", "/v1/goodput").and(query_param("window_s", "60"));
    asked
        .respond_with(ResponseTemplate::new(200).set_body_json(goodput))
        .mount(&gateway.server)
        .await;
}

pub(crate) async fn is_ready(gateway: &Gateway, status: u16) {
    let server = json!({"name": "packhorse", "version": "0.1.0", "extensions": []});
    let metadata = ResponseTemplate::new(200).set_body_json(server);
    Mock::given(method("GET"))
        .and(path("/v2"))
        .respond_with(metadata)
        .mount(&gateway.server)
        .await;
    let ready = ResponseTemplate::new(status).set_body_json(json!({"ready": status == 200}));
    Mock::given(method("GET"))
        .and(path("/v2/health/ready"))
        .respond_with(ready)
        .mount(&gateway.server)
        .await;
}

#[tokio::test]
async fn status_shows_a_part_of_a_large_cluster() {
    let gateway = Gateway::start(crate::PROGRAM).await;
    let nodes = json!([node("laptop", 1, "1-0"), node("rack1", 1, "2-0")]);
    gateway.answers("GET", "/v1/nodes", 200, nodes).await;
    let mut dog = placed_model("dog", "2-0", "rack1/cpu0");
    dog["state"] = json!("loading");
    let models = json!([placed_model("cat", "1-0", "laptop/cpu0"), dog]);
    gateway.answers("GET", "/v1/models", 200, models).await;
    let total = json!({"offered_rps": 0.0, "throughput_rps": 0.0, "goodput_rps": 0.0, "refused_rps": 0.0, "late_rps": 0.0});
    let goodput = json!({"window_s": 60.0, "models": [], "total": total});
    gateway.answers("GET", "/v1/goodput", 200, goodput).await;
    is_ready(&gateway, 200).await;
    for (filter, shown, hidden) in [
        (&["--not-ready"][..], ["dog", "rack1"], ["cat", "laptop"]),
        (&["--model", "ca"], ["cat", "laptop"], ["dog", "rack1"]),
        (&["--node", "rack1"], ["dog", "rack1"], ["cat", "laptop"]),
    ] {
        let ran = gateway.run(&[&["status"], filter].concat());
        let text = ran.text();
        assert!(shown.iter().all(|name| text.contains(name)), "{ran:?}");
        assert!(!hidden.iter().any(|name| text.contains(name)), "{ran:?}");
    }
    let ran = gateway.run(&["status", "--model", "cow"]);
    assert!(ran.text().contains("no node has them"), "{ran:?}");
    let ran = gateway.run(&["status", "--model", "ca", "--json"]);
    assert_eq!(ran.json()["models"].as_array().unwrap().len(), 1);
}

#[tokio::test]
async fn top_shows_the_models_with_the_least_left_of_their_budgets_first() {
    let gateway = Gateway::start(crate::PROGRAM).await;
    let goodput = |name: &str, goodput: f64, late: f64| {
        json!({
            "name": name, "version": 1, "offered_rps": goodput + late, "throughput_rps": goodput, "goodput_rps": goodput, "refused_rps": 0.0,
            "late_rps": late, "failed_rps": 0.0, "p50_ms": 20.0, "p95_ms": 30.5, "p99_ms": 40.5, "mean_batch": 2.5,
        })
    };
    let models = ["ant", "bee", "cat"].map(|name| placed_model(name, "1-0", "laptop/cpu0"));
    gateway
        .answers("GET", "/v1/models", 200, json!(models))
        .await;
    let finding = json!([{
        "severity": "critical", "subject": {"model": "bee:1"}, "problem": "slo_missed", "text": "bee misses its SLO", "cause": "load", "cure": null,
    }]);
    gateway.answers("GET", "/v1/findings", 200, finding).await;
    let mut lost = node("rack1", 1, "2-0");
    lost["state"] = json!("lost");
    let nodes = json!([node("laptop", 1, "1-0"), lost]);
    gateway.answers("GET", "/v1/nodes", 200, nodes).await;
    let total = json!({"offered_rps": 150.0, "throughput_rps": 148.0, "goodput_rps": 148.0, "refused_rps": 0.0, "late_rps": 2.0});
    for window in ["10", "300"] {
        let view = json!({"window_s": 10.0, "models": [goodput("ant", 100.0, 0.0), goodput("bee", 48.0, 2.0)], "total": total});
        admin("GET", "/v1/goodput")
            .and(query_param("window_s", window))
            .respond_with(ResponseTemplate::new(200).set_body_json(view))
            .mount(&gateway.server)
            .await;
    }
    let ran = gateway.run(&["top", "--count", "1"]);
    let lines: Vec<&str> = ran.text().lines().collect();
    assert!(
        lines[0].contains("148/s in time of 150/s, 1 of 2 nodes lost, 3 models, 1 finding"),
        "{ran:?}"
    );
    assert!(lines[1].contains("bee misses its SLO"), "{ran:?}");
    let first_word = |line: &&str| line.split_whitespace().next().map(str::to_owned);
    let names: Vec<_> = lines[4..].iter().filter_map(first_word).collect();
    assert_eq!(names, ["bee", "ant", "cat"], "{ran:?}");
    assert!(lines[4].contains("400"), "4 % missed of 1 %: {ran:?}");
    let ran = gateway.run(&[
        "top",
        "--count",
        "2",
        "--interval",
        "100ms",
        "--json",
        "--model",
        "an",
    ]);
    let looks: Vec<serde_json::Value> = ran
        .text()
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(looks.len(), 2);
    assert_eq!(looks[1]["models"].as_array().unwrap().len(), 1);
    assert_eq!(looks[1]["models"][0]["name"], "ant");
    let ran = gateway.run(&["top", "--interval", "1ms"]);
    assert!(ran.stderr.contains("expected 100ms or more"), "{ran:?}");
}

#[tokio::test]
async fn status_shows_gateway_nodes_models_and_goodput() {
    let gateway = Gateway::start(crate::PROGRAM).await;
    serves(&gateway).await;
    is_ready(&gateway, 200).await;
    let ran = gateway.run(&["status"]);
    let first = format!("gateway 0.1.0 at {}: ready", gateway.server.uri());
    assert_eq!(ran.text().lines().next(), Some(first.as_str()));
    assert!(
        ran.stdout
            .contains("└─ cat  batch 8  █████░░░░░ 50 %  ready"),
        "{ran:?}"
    );
    let last: Vec<&str> = ran
        .stdout
        .lines()
        .last()
        .unwrap()
        .split_whitespace()
        .collect();
    assert_eq!(
        last,
        [
            "cat", "12", "11.5", "11", "0.5", "0.5", "20", "30.5", "-", "2.5"
        ]
    );

    let json = gateway.run(&["status", "--json"]).json();
    assert_eq!(
        (&json["gateway"]["ready"], &json["gateway"]["version"]),
        (&json!(true), &json!("0.1.0"))
    );
    assert_eq!(json["nodes"][0]["name"], "laptop");
    assert_eq!(json["models"][0]["state"], "ready");
    assert_eq!(json["goodput"]["models"][0]["goodput_rps"], 11.0);
}

#[tokio::test]
async fn a_gateway_that_is_not_ready_is_no_failure_of_the_question() {
    let gateway = Gateway::start(crate::PROGRAM).await;
    serves(&gateway).await;
    is_ready(&gateway, 503).await;
    let ran = gateway.run(&["status"]);
    assert!(
        ran.text().lines().next().unwrap().ends_with(": not ready"),
        "{ran:?}"
    );
    assert_eq!(
        gateway.run(&["status", "--json"]).json()["gateway"]["ready"],
        false
    );
}

#[tokio::test]
async fn a_gateway_without_a_node_says_first_that_nothing_is_served() {
    let lost = || {
        let mut node = node("laptop", 1, "1-0");
        node["state"] = json!("lost");
        node
    };
    for (nodes, serving, end) in [
        (json!([]), false, ": nothing is served: there is no node"),
        (
            json!([lost()]),
            false,
            ": nothing is served: the only node is lost",
        ),
        (
            json!([lost(), lost()]),
            false,
            ": nothing is served: all 2 nodes are lost",
        ),
        (
            json!([lost(), lost()]),
            true,
            ": all 2 nodes are lost; their workers still serve 1 of 1 models",
        ),
        (json!([lost(), node("laptop", 1, "1-0")]), true, ": ready"),
    ] {
        let gateway = Gateway::start(crate::PROGRAM).await;
        gateway.answers("GET", "/v1/nodes", 200, nodes).await;
        let mut model = placed_model("cat", "1-0", "laptop/cpu0");
        model["replicas"][0]["serving"] = json!(serving);
        gateway
            .answers("GET", "/v1/models", 200, json!([model]))
            .await;
        serves(&gateway).await;
        is_ready(&gateway, 200).await;
        let ran = gateway.run(&["status"]);
        assert!(ran.text().lines().next().unwrap().ends_with(end), "{ran:?}");
    }
}

#[tokio::test]
async fn an_inference_listener_that_is_gone_is_told_beside_the_rest() {
    let gateway = Gateway::start(crate::PROGRAM).await;
    serves(&gateway).await;
    let token = gateway.path("admin-token");
    // Nobody can listen on port 0.
    let ran = gateway.run_bare(&[
        "status",
        "--json",
        "--url",
        "http://127.0.0.1:0",
        "--admin-url",
        &gateway.server.uri(),
        "--token-file",
        token.to_str().unwrap(),
    ]);
    let json = ran.json();
    assert_eq!(json["gateway"]["ready"], false);
    assert!(
        json["gateway"]["error"]
            .as_str()
            .unwrap()
            .starts_with("cannot connect to http://127.0.0.1:0: "),
        "{json}"
    );
    assert_eq!(json["nodes"][0]["name"], "laptop");
}
