//! `/v1/policy`.

use serde_json::json;
use wiremock::{ResponseTemplate, matchers::body_json};

use packhorse_stand_in::{Gateway, admin, policy_options};

#[tokio::test]
async fn the_policy_is_shown_and_set() {
    let gateway = Gateway::start(crate::PROGRAM).await;
    let view = json!({
        "policy": "first-fit", "discipline": "deadline", "options": policy_options(),
        "policies": [
            {"name": "exclusive", "summary": "one replica a device", "source": "baseline"},
            {"name": "first-fit", "summary": "packs", "source": "folklore"},
        ],
        "disciplines": [], "consequences": [],
    });
    gateway
        .answers("GET", "/v1/policy", 200, view.clone())
        .await;
    let set = admin("PUT", "/v1/policy").and(body_json(json!({"policy": "first-fit"})));
    set.respond_with(ResponseTemplate::new(200).set_body_json(&view))
        .expect(1)
        .mount(&gateway.server)
        .await;

    let shown = gateway.run(&["policy"]);
    assert!(
        shown
            .text()
            .starts_with("policy first-fit, discipline deadline, creq mean, objective goodput, prefers small batches\n"),
        "{shown:?}"
    );
    assert!(
        shown
            .stdout
            .lines()
            .any(|line| line.starts_with("* first-fit")),
        "{shown:?}"
    );
    assert_eq!(
        gateway
            .run(&["policy", "set", "first-fit", "--json"])
            .json(),
        view
    );
    gateway.server.verify().await;
}

#[tokio::test]
async fn options_are_set_together() {
    let gateway = Gateway::start(crate::PROGRAM).await;
    let view = json!({
        "policy": "first-fit", "discipline": "deadline", "options": policy_options(), "policies": [],
        "disciplines": [], "consequences": [],
    });
    admin("PUT", "/v1/policy")
        .and(body_json(json!({"options": policy_options()})))
        .respond_with(ResponseTemplate::new(200).set_body_json(&view))
        .expect(1)
        .mount(&gateway.server)
        .await;
    let args = [
        "policy",
        "set",
        "--creq",
        "mean",
        "--objective",
        "goodput",
        "--prefer",
        "small-batch",
        "--json",
    ];
    assert_eq!(gateway.run(&args).json(), view);
    gateway.server.verify().await;
    assert!(gateway.run(&["policy", "set"]).stderr.contains("required"));
}
