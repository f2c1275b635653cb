//! Authorisation beyond the table of `routes.rs`: what needs no token, and paths that are not there.

use reqwest::Method;
use serde_json::Value;

use crate::support::gateway::Gateway;

#[tokio::test]
async fn what_needs_no_token_is_answered_without_one() {
    let gateway = Gateway::start().await;
    let address = gateway.app.admin_address();
    for path in ["/metrics", "/openapi.json", "/docs", "/docs/"] {
        let answer = gateway.send(address, Method::GET, path, None, Vec::new());
        assert_eq!(answer.await.status, 200, "{path}");
    }
    let page = gateway.get("/docs/").await;
    let page = String::from_utf8(page.body).unwrap();
    assert!(
        !page.contains("http://") && !page.contains("https://"),
        "{page}"
    );
}

#[tokio::test]
async fn the_listeners_do_not_answer_for_each_other() {
    let gateway = Gateway::start().await;
    for path in ["/v2", "/v2/health/live", "/v2/models/x/infer"] {
        gateway.get(path).await.error(404);
    }
    let admin = gateway.token("admin-token");
    for path in [
        "/v1/goodput",
        "/v1/models/x/promote",
        "/metrics",
        "/openapi.json",
    ] {
        let address = gateway.app.inference_address();
        let answer = gateway.send(address, Method::GET, path, Some(&admin), Vec::new());
        answer.await.error(404);
    }
    // Both have a list of models, of which that for clients has names alone.
    let address = gateway.app.inference_address();
    let listed = gateway.send(address, Method::GET, "/v1/models", Some(&admin), Vec::new());
    assert_eq!(listed.await.ok(200)["object"], "list");
}

#[tokio::test]
async fn unknown_paths_and_methods_are_json_errors() {
    let gateway = Gateway::start().await;
    gateway.get("/v1/nothing").await.error(404);
    gateway.get("/nothing").await.error(404);
    gateway.delete("/v1/policy").await.error(405);
    gateway.put("/metrics", &Value::Null).await.error(405);
}
