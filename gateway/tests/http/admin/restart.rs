//! Restarts of the gateway: the restored state, and the workers that run meanwhile.

use packhorse_gateway::app::{App, StartError};
use serde_json::json;

use crate::support::{
    agent::Agent,
    gateway::{Gateway, settings},
};

#[tokio::test]
async fn what_was_acknowledged_is_there_after_a_restart() {
    let gateway = Gateway::start().await;
    gateway.register("a").await;
    gateway.register("b").await;
    gateway
        .patch("/v1/models/a", &json!({"slo_ms": 77, "rate_rps": 3}))
        .await;
    gateway.delete("/v1/models/b").await;
    let before = gateway.get("/v1/models").await.ok(200);
    let artifacts = gateway.get("/v1/artifacts").await.ok(200);
    let token = gateway.token("admin-token");
    let gateway = gateway.restarted().await;
    assert_eq!(gateway.token("admin-token"), token);
    assert_eq!(gateway.get("/v1/models").await.ok(200), before);
    assert_eq!(gateway.get("/v1/artifacts").await.ok(200), artifacts);
}

#[tokio::test]
async fn running_workers_are_taken_up_and_nothing_is_loaded_again() {
    let gateway = Gateway::start().await;
    let mut agent = Agent::new("n");
    gateway.register("m").await;
    let before = agent.work_until_ready(&gateway, "m").await;
    let plan = gateway.get("/v1/plan").await.ok(200);
    let epoch = agent.known.0;
    let workers: Vec<_> = agent.workers.keys().copied().collect();

    let gateway = gateway.restarted().await;
    // Before the agent is back, nothing is concluded from its absence.
    let view = gateway.get("/v1/models/m").await.ok(200);
    assert_eq!(view["replicas"][0]["id"], before["replicas"][0]["id"]);
    assert_eq!(gateway.get("/v1/plan").await.ok(200), plan);

    let after = agent.work_until_ready(&gateway, "m").await;
    assert_eq!(agent.known.0, epoch + 1);
    assert_eq!(after["replicas"][0]["id"], before["replicas"][0]["id"]);
    assert_eq!(agent.workers.keys().copied().collect::<Vec<_>>(), workers);
    // A further turn, with the plan that the start asked for: the placement is the same.
    agent.turn(&gateway).await;
    assert_eq!(
        gateway.get("/v1/plan").await.ok(200)["generation"],
        plan["generation"]
    );
}

#[tokio::test]
async fn a_node_that_does_not_come_back_is_planned_without() {
    let gateway = Gateway::with_flags(&["--lease-ms=500"]).await;
    let mut first = Agent::new("first");
    gateway.register("m").await;
    first.work_until_ready(&gateway, "m").await;
    let gateway = gateway.restarted().await;
    drop(first);
    let mut second = Agent::new("second");
    let view = second.work_until_ready(&gateway, "m").await;
    assert_eq!(view["replicas"][0]["device"], "second/sim0");
}

#[tokio::test]
async fn a_second_gateway_on_the_same_folder_does_not_start() {
    let gateway = Gateway::start().await;
    let second = App::start(settings(gateway.folder.path(), &[])).await;
    let error = second.unwrap_err();
    assert!(matches!(error, StartError::State(_)));
    let source = std::error::Error::source(&error).unwrap().to_string();
    assert!(source.contains("in use by another process"), "{source}");
}

#[tokio::test]
async fn a_policy_that_does_not_exist_keeps_the_gateway_from_starting() {
    let folder = tempfile::tempdir().unwrap();
    let flags = ["--policy=best".to_owned()];
    let error = App::start(settings(folder.path(), &flags))
        .await
        .unwrap_err();
    let source = std::error::Error::source(&error).unwrap().to_string();
    assert!(source.contains("first-fit"), "{source}");
}

#[tokio::test]
async fn the_endpoints_are_written_while_it_runs() {
    let gateway = Gateway::start().await;
    let file = gateway.folder.path().join("state/endpoints.json");
    let text = std::fs::read_to_string(&file).unwrap();
    let json: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(json["admin"], gateway.app.admin_address().to_string());
    assert_eq!(
        json["inference"],
        gateway.app.inference_address().to_string()
    );
    assert_eq!(json["pid"], std::process::id());
    gateway.app.shutdown().await;
    assert!(!file.exists());
}
