//! Troubles of the cluster, as far as the gateway can tell.

use serde_json::{Value, json};

use packhorse_stand_in::{Gateway, Ran, node, placed_model};

use crate::status::is_ready;

async fn serves(gateway: &Gateway, nodes: Value, models: Value) {
    gateway.answers("GET", "/v1/nodes", 200, nodes).await;
    gateway.answers("GET", "/v1/models", 200, models).await;
}

/// Returns what the doctor says of a part: verdict, text and cure of each check.
fn said(ran: &Ran, part: &str) -> Vec<(String, String, String)> {
    let diagnosis: Value = serde_json::from_str(&ran.stdout).unwrap();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let checks = diagnosis["checks"].as_array().unwrap().iter();
    checks
        .filter(|check| check["part"] == part)
        .map(|check| {
            (
                text(&check["verdict"]),
                text(&check["text"]),
                text(&check["cure"]),
            )
        })
        .collect()
}

#[tokio::test]
async fn a_cluster_in_which_all_is_well_is_said_to_be() {
    let gateway = Gateway::start(crate::PROGRAM).await;
    let mut node = node("laptop", 1, "1-0");
    node["agent_version"] = json!(env!("CARGO_PKG_VERSION"));
    let models = json!([placed_model("cat", "1-0", "laptop/cpu0")]);
    serves(&gateway, json!([node]), models).await;
    is_ready(&gateway, 200).await;
    let ran = gateway.run(&["doctor", "--json"]);
    for part in ["inference", "admin", "agents", "workers"] {
        let said = said(&ran, part);
        assert_eq!((said.len(), said[0].0.as_str()), (1, "ok"), "{said:?}");
    }
    let shown = gateway.run(&["doctor"]).stdout;
    assert!(
        shown.contains("ok       workers       1 workers are connected"),
        "{shown}"
    );
}

#[tokio::test]
async fn each_problem_of_the_cluster_has_the_line_that_mends_it() {
    let gateway = Gateway::start(crate::PROGRAM).await;
    let mut lost = node("rack1", 1, "1-0");
    lost["state"] = json!("lost");
    lost["last_seen_ms"] = json!(61_000);
    let mut model = placed_model("cat", "1-0", "rack1/cpu0");
    model["replicas"][0]["serving"] = json!(false);
    model["replicas"][0]["state"] = json!("ready");
    model["replicas"][0]["reason"] = json!("connection refused");
    serves(&gateway, json!([lost]), json!([model])).await;
    is_ready(&gateway, 503).await;
    let ran = gateway.run(&["doctor", "--json"]);
    assert_eq!(ran.code, 1, "{ran:?}");
    assert!(ran.stderr.contains("problem"), "{ran:?}");
    let (verdict, text, cure) = said(&ran, "agents").remove(0);
    assert_eq!(verdict, "problem");
    assert_eq!(text, "the agent of node rack1 has not been heard for 61 s");
    assert!(
        cure.starts_with("on rack1: packhorse-agent --node rack1"),
        "{cure}"
    );
    let (verdict, text, cure) = said(&ran, "workers").remove(0);
    assert_eq!(verdict, "problem");
    assert!(
        text.ends_with("cat:1 on rack1/cpu0: connection refused"),
        "{text}"
    );
    assert!(cure.contains("--listen-address"), "{cure}");
    let (verdict, _, cure) = said(&ran, "inference").remove(0);
    assert_eq!(
        (verdict.as_str(), cure.as_str()),
        ("warning", "packhorse findings")
    );
}

#[tokio::test]
async fn a_gateway_that_is_not_there_or_wants_another_token_is_a_problem() {
    let gateway = Gateway::start(crate::PROGRAM).await;
    is_ready(&gateway, 200).await;
    // The stand-in answers 404 to all that it does not know: another program.
    let ran = gateway.run(&["doctor", "--json"]);
    let (verdict, text, _) = said(&ran, "admin").remove(0);
    assert_eq!(verdict, "problem");
    assert!(text.contains("no Packhorse gateway"), "{text}");
    for route in ["/v1/nodes", "/v1/models"] {
        gateway
            .answers("GET", route, 401, json!({"error": "no"}))
            .await;
    }
    let ran = gateway.run(&["doctor", "--json"]);
    let (_, text, cure) = said(&ran, "admin").remove(0);
    assert!(text.ends_with("does not accept the token"), "{text}");
    assert!(cure.contains("--token-file"), "{cure}");

    let nowhere = "http://127.0.0.1:9";
    let ran = gateway.run_bare(&["doctor", "--json", "--url", nowhere, "--admin-url", nowhere]);
    assert_eq!(ran.code, 1);
    let (verdict, text, cure) = said(&ran, "inference").remove(0);
    assert_eq!(verdict, "problem");
    assert!(
        text.starts_with("nothing listens at http://127.0.0.1:9"),
        "{text}"
    );
    assert!(cure.starts_with("packhorse-gateway"), "{cure}");
    assert_eq!(said(&ran, "state folder")[0].0, "skipped");
}
