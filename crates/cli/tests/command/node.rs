//! `/v1/nodes`.

use serde_json::{Value, json};

use packhorse_stand_in::{Gateway, node, placed_model};

#[tokio::test]
async fn nodes_show_who_sits_on_their_devices() {
    let gateway = Gateway::start(crate::PROGRAM).await;
    gateway
        .answers("GET", "/v1/nodes", 200, json!([node("laptop", 2, "1-0")]))
        .await;
    gateway
        .answers(
            "GET",
            "/v1/models",
            200,
            json!([placed_model("cat", "1-0", "laptop/cpu0")]),
        )
        .await;
    let expected = "\
laptop  ready  (agent 0.1.0, seen 0.2 s ago)
├─ cpu0  cpu-x  (1.0 GiB, 2 threads)
│  └─ cat  batch 8  █████░░░░░ 50 %  ready
└─ cpu1  cpu-x  (1.0 GiB, 2 threads)
   └─ idle
";
    assert_eq!(gateway.run(&["node", "list"]).text(), expected);
    assert_eq!(
        gateway.run(&["node", "list", "--json"]).json(),
        json!([node("laptop", 2, "1-0")])
    );
}

#[tokio::test]
async fn nodes_are_taken_out_of_service_and_back() {
    let gateway = Gateway::start(crate::PROGRAM).await;
    for (action, state) in [
        ("cordon", "cordoned"),
        ("drain", "draining"),
        ("uncordon", "ready"),
    ] {
        let mut view = node("rack1", 1, "1-0");
        view["state"] = json!(state);
        view["consequences"] = json!([]);
        gateway
            .answers(
                "POST",
                &format!("/v1/nodes/rack1/{action}"),
                200,
                view.clone(),
            )
            .await;
        assert_eq!(
            gateway.run(&["node", action, "rack1"]).text(),
            format!("rack1 is {state}\n")
        );
        assert_eq!(
            gateway.run(&["node", action, "rack1", "--json"]).json(),
            view
        );
    }
}

/// The node that is drained, with or without its replica.
fn draining(replicas: &[&str]) -> Value {
    let mut view = node("rack1", 1, "1-0");
    view["state"] = json!("draining");
    view["devices"][0]["replicas"] = json!(replicas);
    view
}

/// A gateway that begins to drain a node, and has these nodes afterwards.
async fn gateway_that_drains(then: Value) -> Gateway {
    let gateway = Gateway::start(crate::PROGRAM).await;
    let mut begun = draining(&["1-0"]);
    begun["consequences"] = json!([]);
    gateway
        .answers("POST", "/v1/nodes/rack1/drain", 200, begun)
        .await;
    gateway.answers("GET", "/v1/nodes", 200, then).await;
    gateway
}

#[tokio::test]
async fn a_drain_has_a_deadline_and_waits_until_the_node_has_no_replica() {
    let gateway = gateway_that_drains(json!([draining(&[])])).await;
    let drain = ["node", "drain", "rack1", "--yes"];
    let ran = gateway.run(&[&drain[..], &["--deadline", "2m", "--wait", "--json"]].concat());
    assert_eq!(ran.json()["devices"][0]["replicas"], json!([]));
    let asked = gateway.server.received_requests().await.unwrap();
    let asked: Vec<String> = asked
        .iter()
        .map(|request| format!("{} {}", request.method, request.url.path()))
        .collect();
    assert_eq!(asked, ["POST /v1/nodes/rack1/drain", "GET /v1/nodes"]);
    let sent = &gateway.server.received_requests().await.unwrap()[0];
    assert_eq!(sent.url.query(), Some("deadline_s=120"));
}

#[tokio::test]
async fn a_wait_for_a_drain_ends_where_the_drain_does() {
    for (found, said) in [
        (json!([]), "node rack1 was removed meanwhile"),
        (
            json!([node("rack1", 1, "1-0")]),
            "node rack1 is ready and no longer drained, with replicas left",
        ),
    ] {
        let gateway = gateway_that_drains(found).await;
        let ran = gateway.run(&["node", "drain", "rack1", "--yes", "--wait"]);
        assert_eq!(ran.error(), format!("error: {said}\n"));
    }
}

#[tokio::test]
async fn a_token_of_a_node_is_printed_alone_so_that_it_can_be_redirected_to_its_file() {
    let gateway = Gateway::start(crate::PROGRAM).await;
    let made = json!({"node": "rack1", "token": "0123456789abcdef"});
    gateway
        .answers("POST", "/v1/nodes/rack1/token", 201, made.clone())
        .await;
    let ran = gateway.run(&["node", "token", "rack1"]);
    assert_eq!(ran.text(), "0123456789abcdef\n");
    assert_eq!(
        gateway.run(&["node", "token", "rack1", "--json"]).json(),
        made
    );
}
