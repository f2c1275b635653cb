//! The rollout of plans: make before break, lost nodes, silent agents.

use serde_json::json;

use crate::support::{agent::Agent, gateway::Gateway};

#[tokio::test]
async fn a_model_goes_all_the_way_from_registration_to_ready() {
    let gateway = Gateway::start().await;
    let mut agent = Agent::new("n");
    gateway.register("m").await;
    let view = agent.work_until_ready(&gateway, "m").await;
    assert_eq!(view["profiled_on"], json!(["T4"]));
    let replica = &view["replicas"][0];
    assert_eq!(replica["device"], "n/sim0");
    assert_eq!(
        (&replica["state"], &replica["serving"]),
        (&json!("ready"), &json!(true))
    );
    let plan = gateway.get("/v1/plan").await.ok(200);
    assert_eq!(plan["replicas"][0]["id"], replica["id"]);
    assert_eq!(plan["policy"], packhorse_placement::DEFAULT_POLICY);
    let nodes = gateway.get("/v1/nodes").await.ok(200);
    assert_eq!(nodes[0]["devices"][0]["replicas"], json!([replica["id"]]));
    let ready = gateway.send(
        gateway.app.inference_address(),
        reqwest::Method::GET,
        "/v2/models/m/ready",
        None,
        Vec::new(),
    );
    assert_eq!(ready.await.status, 200);
}

#[tokio::test]
async fn a_new_replica_serves_before_the_old_one_ends() {
    let gateway = Gateway::start().await;
    let mut agent = Agent::new("n");
    gateway.register("m").await;
    let before = agent.work_until_ready(&gateway, "m").await;
    let old = before["replicas"][0]["id"].clone();
    assert_eq!(before["replicas"][0]["batch_size"], 8);

    // A batch of 8 takes 18 ms: it no longer fits, and a smaller one is another replica.
    agent.starts = false;
    gateway
        .patch("/v1/models/m", &json!({"slo_ms": 12, "rate_rps": 5}))
        .await
        .ok(200);
    let view = agent
        .work_until(&gateway, "m", |view| view["replicas"][0]["id"] != old)
        .await;
    for _ in 0..5 {
        agent.turn(&gateway).await;
        let view = gateway.get("/v1/models/m").await.ok(200);
        assert_eq!(view["state"], "ready", "{view}");
        assert_eq!(agent.workers.len(), 1, "the old one is still wanted");
    }
    assert_eq!(view["replicas"].as_array().unwrap().len(), 2);

    agent.starts = true;
    let after = agent
        .work_until(&gateway, "m", |view| {
            let replicas = view["replicas"].as_array().unwrap();
            assert_eq!(view["state"], "ready", "it serves all the while");
            replicas.len() == 1 && replicas[0]["serving"] == true
        })
        .await;
    assert_ne!(after["replicas"][0]["id"], old);
    agent.turn(&gateway).await;
    assert_eq!(agent.workers.len(), 1);
}

#[tokio::test]
async fn another_model_leaves_what_runs_alone() {
    let gateway = Gateway::start().await;
    let mut agent = Agent::new("n");
    gateway.register("a").await;
    let before = agent.work_until_ready(&gateway, "a").await;
    gateway.register("b").await;
    agent.work_until_ready(&gateway, "b").await;
    let after = gateway.get("/v1/models/a").await.ok(200);
    assert_eq!(before["replicas"][0]["id"], after["replicas"][0]["id"]);
    for worker in agent.workers.values() {
        assert_eq!(worker.connections(), 1);
    }
}

#[tokio::test]
async fn a_removed_model_is_wanted_nowhere() {
    let gateway = Gateway::start().await;
    let mut agent = Agent::new("n");
    gateway.register("m").await;
    agent.work_until_ready(&gateway, "m").await;
    gateway.delete("/v1/models/m").await;
    for _ in 0..500 {
        if agent.workers.is_empty() {
            break;
        }
        agent.turn(&gateway).await;
    }
    assert!(agent.workers.is_empty());
    let plan = gateway.get("/v1/plan").await.ok(200);
    assert_eq!(
        (&plan["replicas"], &plan["models"]),
        (&json!([]), &json!([]))
    );
}

#[tokio::test]
async fn what_ran_on_a_lost_node_moves_to_another() {
    let gateway = Gateway::with_flags(&["--lease-ms=500"]).await;
    let mut first = Agent::new("first");
    gateway.register("m").await;
    first.work_until_ready(&gateway, "m").await;
    // Machine and workers are gone together.
    drop(first);
    gateway.wait_for_node("first", "lost").await;
    let mut second = Agent::new("second");
    let view = second.work_until_ready(&gateway, "m").await;
    assert_eq!(view["replicas"][0]["device"], "second/sim0");
}

#[tokio::test]
async fn workers_of_a_silent_agent_serve_on_and_are_taken_up_again() {
    let gateway = Gateway::with_flags(&["--lease-ms=300"]).await;
    let mut agent = Agent::new("n");
    gateway.register("m").await;
    let before = agent.work_until_ready(&gateway, "m").await;
    gateway.wait_for_node("n", "lost").await;
    // Long enough for a plan without the node.
    gateway.register("other").await;
    for _ in 0..20 {
        let view = gateway.get("/v1/models/m").await.ok(200);
        assert_eq!(view["state"], "ready", "{view}");
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    agent.instance = "its successor".to_owned();
    agent.turn(&gateway).await;
    let after = agent.work_until_ready(&gateway, "m").await;
    assert_eq!(before["replicas"][0]["id"], after["replicas"][0]["id"]);
    let id = after["replicas"][0]["id"]
        .as_str()
        .unwrap()
        .parse()
        .unwrap();
    assert_eq!(agent.workers[&id].connections(), 1, "nobody connected anew");
}
