//! Authorisation: the routes that each token opens.

use reqwest::Method;
use serde_json::Value;

use crate::support::gateway::Gateway;

/// Every operation under `/v1` of the documented API, with something in place of its parameters.
async fn guarded(gateway: &Gateway) -> Vec<(Method, String)> {
    let document = gateway.get("/openapi.json").await.ok(200);
    let mut operations = Vec::new();
    for (path, item) in document["paths"].as_object().unwrap() {
        let concrete = path
            .replace("{digest}", &format!("sha256:{}", "0".repeat(64)))
            .replace("{generation}", "1")
            .replace("{before}", "1")
            .replace("{after}", "1")
            .replace("{name}", "x")
            .replace("{id}", "00000000")
            .replace("{node}", "x");
        assert!(
            !path.starts_with("/v1") || !concrete.contains('{'),
            "{concrete}"
        );
        for method in item.as_object().unwrap().keys() {
            if let Ok(method) = method.to_uppercase().parse::<Method>() {
                operations.push((method, concrete.clone()));
            }
        }
    }
    // A session is started with a token or code in the body, and ended by whoever has it.
    operations.retain(|(method, path)| {
        path.starts_with("/v1") && (*method == Method::GET || path != "/v1/session")
    });
    operations
}

fn is_for_agents(method: &Method, path: &str) -> bool {
    path.starts_with("/v1/agents/")
        || (*method == Method::GET && path.starts_with("/v1/artifacts/"))
}

#[tokio::test]
async fn every_route_wants_a_token_and_agents_get_no_further_than_they_must() {
    let gateway = Gateway::start().await;
    let address = gateway.app.admin_address();
    let agent = gateway.token("agent-token");
    let admin = gateway.token("admin-token");
    let operations = guarded(&gateway).await;
    assert!(operations.len() > 20, "{operations:?}");
    for (method, path) in operations {
        for token in [None, Some("wrong"), Some(&admin[1..])] {
            let answer = gateway.send(address, method.clone(), &path, token, Vec::new());
            let answer = answer.await;
            answer.error(401);
            assert_eq!(answer.headers["www-authenticate"], "Bearer");
        }
        let answer = gateway.send(address, method.clone(), &path, Some(&agent), Vec::new());
        let answer = answer.await;
        if is_for_agents(&method, &path) {
            assert!(
                !matches!(answer.status, 401 | 403),
                "{method} {path}: {answer:?}"
            );
        } else {
            answer.error(403);
        }
    }
}

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
    for path in ["/v1/models", "/metrics", "/openapi.json"] {
        let address = gateway.app.inference_address();
        let answer = gateway.send(address, Method::GET, path, Some(&admin), Vec::new());
        answer.await.error(404);
    }
}

#[tokio::test]
async fn unknown_paths_and_methods_are_json_errors() {
    let gateway = Gateway::start().await;
    gateway.get("/v1/nothing").await.error(404);
    gateway.get("/nothing").await.error(404);
    gateway.delete("/v1/policy").await.error(405);
    gateway.put("/metrics", &Value::Null).await.error(405);
}
