//! Restarts of the gateway: the restored state, and the workers that run meanwhile.

use packhorse_gateway::{
    app::{App, StartError},
    store::Store,
};
use serde_json::json;

use crate::support::{
    agent::Agent,
    gateway::{Gateway, settings},
    poll,
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
async fn a_folder_whose_database_is_lost_is_refused_untouched_until_a_new_cluster_is_wanted() {
    let gateway = Gateway::start().await;
    let digest = gateway.upload(b"a model").await;
    gateway.app.shutdown().await;
    let state = gateway.folder.path().join("state");
    let database = state.join("packhorse.db");
    let whole = std::fs::read(&database).unwrap();
    let mut damaged = whole.clone();
    damaged[4096..].fill(7);
    let file = state.join("artifacts").join(digest.to_hex());
    for (content, reason) in [
        (None, "its database is empty"),
        (Some(Vec::new()), "its database is empty"),
        (Some(damaged), "is damaged"),
        (Some(vec![7; 9000]), "is damaged"),
    ] {
        match &content {
            Some(bytes) => std::fs::write(&database, bytes).unwrap(),
            None => std::fs::remove_file(&database).unwrap(),
        }
        let error = App::start(settings(gateway.folder.path(), &[]))
            .await
            .unwrap_err();
        let error = format!("{:#}", anyhow::Error::from(error));
        assert!(error.contains(reason), "{error}");
        assert!(error.contains("packhorse restore") && error.contains("--new-cluster"));
        assert_eq!(std::fs::read(&database).ok(), content);
        assert!(file.exists());
    }

    let flags = ["--new-cluster".to_owned()];
    let app = App::start(settings(gateway.folder.path(), &flags))
        .await
        .unwrap();
    app.shutdown().await;
    let aside = state.join("replaced-1");
    assert_eq!(
        std::fs::read(aside.join("packhorse.db")).unwrap(),
        [7; 9000]
    );
    assert_eq!(
        std::fs::read(aside.join("artifacts").join(digest.to_hex())).unwrap(),
        b"a model"
    );
    // The flag changes nothing where there is nothing to replace.
    let app = App::start(settings(gateway.folder.path(), &flags))
        .await
        .unwrap();
    app.shutdown().await;
    assert!(!state.join("replaced-2").exists());
}

#[tokio::test]
async fn a_database_that_is_older_than_its_folder_or_of_another_cluster_is_refused() {
    let gateway = Gateway::start().await;
    gateway.app.shutdown().await;
    let folder = gateway.folder.path();
    let database = folder.join("state/packhorse.db");
    let old = std::fs::read(&database).unwrap();
    let app = App::start(settings(folder, &[])).await.unwrap();
    app.shutdown().await;
    let other = Gateway::start().await;
    other.app.shutdown().await;
    let others = std::fs::read(other.folder.path().join("state/packhorse.db")).unwrap();
    for (content, reason) in [(old, "epoch 1, not 2"), (others, "is of cluster")] {
        std::fs::write(&database, content).unwrap();
        let error = App::start(settings(folder, &[])).await.unwrap_err();
        let error = format!("{:#}", anyhow::Error::from(error));
        assert!(error.contains(reason), "{error}");
    }
}

#[tokio::test]
async fn what_was_acknowledged_is_in_the_database_file_soon_without_its_log() {
    let gateway = Gateway::start().await;
    gateway.register("a").await;
    let state = gateway.folder.path().join("state");
    let alone = tempfile::tempdir().unwrap();
    let copy = alone.path().join("packhorse.db");
    poll("the checkpoint", async || {
        std::fs::copy(state.join("packhorse.db"), &copy).unwrap();
        let store = Store::open(&copy).await.map_err(|e| e.to_string())?;
        let models = store.models().await.map_err(|e| e.to_string())?;
        store.close().await;
        if models.len() == 1 {
            Ok(())
        } else {
            Err("the file does not have the model".to_owned())
        }
    })
    .await;
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
