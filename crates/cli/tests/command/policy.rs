//! `/v1/policy`.

use serde_json::json;
use wiremock::{ResponseTemplate, matchers::body_json};

use crate::gateway::{Gateway, admin};

#[tokio::test]
async fn the_policy_is_shown_and_set() {
    let gateway = Gateway::start().await;
    let view = json!({
        "policy": "first-fit", "discipline": "deadline",
        "policies": [
            {"name": "exclusive", "summary": "one replica a device", "source": "baseline"},
            {"name": "first-fit", "summary": "packs", "source": "folklore"},
        ],
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
            .starts_with("policy first-fit, discipline deadline\n"),
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
