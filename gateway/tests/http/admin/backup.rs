//! `/v1/backup`.

use std::collections::BTreeMap;

use packhorse_gateway::app::App;
use reqwest::Method;
use serde_json::json;

use crate::support::{
    agent::Agent,
    gateway::{Gateway, settings},
};

#[tokio::test]
async fn a_gateway_started_on_a_backup_is_the_one_that_was_backed_up_and_its_agents_obey_it() {
    let gateway = Gateway::start().await;
    let mut agent = Agent::new("n");
    gateway.register("m").await;
    let before = agent.work_until_ready(&gateway, "m").await;
    let cluster = agent.lease(&gateway).await.cluster_id.unwrap();
    let backup = gateway.get("/v1/backup").await;
    assert_eq!(backup.status, 200);
    assert_eq!(backup.headers["content-type"], "application/x-tar");
    // What happens later is not in the backup.
    gateway.register("later").await;
    let gateway = gateway.restarted().await;
    assert_eq!(agent.lease(&gateway).await.epoch, 2);

    let folder = tempfile::tempdir().unwrap();
    let state = folder.path().join("state");
    tar::Archive::new(&backup.body[..]).unpack(&state).unwrap();
    let digest = gateway.upload(b"the file of m").await;
    let restored = App::start(settings(folder.path(), &[])).await.unwrap();
    let admin = gateway.token("admin-token");
    let ask = async |path: &str| {
        let address = restored.admin_address();
        gateway
            .send(address, Method::GET, path, Some(&admin), vec![])
            .await
    };
    let models = ask("/v1/models").await.ok(200);
    assert_eq!(models.as_array().unwrap().len(), 1);
    assert_eq!(models[0]["name"], before["name"]);
    let file = ask(&format!("/v1/artifacts/{digest}")).await;
    assert_eq!(&file.body[..], b"the file of m");

    // Its store knows of one start, and the agent has seen epoch 2 of the gateway that went on.
    let body = json!({"instance": agent.instance, "agent_version": "0.1.0", "devices": agent.devices,
                      "cluster_id": cluster, "highest_epoch": 2});
    let token = gateway.token("agent-token");
    let lease = gateway.send(
        restored.admin_address(),
        Method::PUT,
        "/v1/agents/n/lease",
        Some(&token),
        body.to_string().into_bytes(),
    );
    let grant = lease.await.ok(200);
    assert_eq!(grant["epoch"], 3);
    assert_eq!(grant["cluster_id"], json!(cluster));
    restored.shutdown().await;
}

#[tokio::test]
async fn a_backup_has_the_database_the_model_files_and_the_tokens_and_leaves_nothing_behind() {
    let gateway = Gateway::start().await;
    let digest = gateway.upload(b"a file").await;
    let backup = gateway.get("/v1/backup").await;
    let mut archive = tar::Archive::new(&backup.body[..]);
    let entries = archive.entries().unwrap().map(|entry| {
        let mut entry = entry.unwrap();
        let mut content = Vec::new();
        std::io::Read::read_to_end(&mut entry, &mut content).unwrap();
        (entry.path().unwrap().display().to_string(), content)
    });
    let entries: BTreeMap<String, Vec<u8>> = entries.collect();
    let file = format!("artifacts/{}", digest.to_hex());
    let names: Vec<&str> = entries.keys().map(String::as_str).collect();
    assert_eq!(names, ["admin-token", "agent-token", &file, "packhorse.db"]);
    assert_eq!(entries[&file], b"a file");
    assert!(entries["packhorse.db"].starts_with(b"SQLite format 3\0"));
    let incoming = gateway.folder.path().join("state/artifacts/incoming");
    crate::support::until("the removal of the snapshot", || {
        std::fs::read_dir(&incoming).unwrap().count() == 0
    })
    .await;
    // The next one may be made.
    assert_eq!(gateway.get("/v1/backup").await.status, 200);
    let agent = gateway.token("agent-token");
    let address = gateway.app.admin_address();
    let refused = gateway.send(address, Method::GET, "/v1/backup", Some(&agent), vec![]);
    refused.await.error(403);
}
