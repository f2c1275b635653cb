//! `/v1/profiles`.

use packhorse_cluster::{ProfileProgress, ProfileTable};
use reqwest::Method;

use crate::{
    agent::{Agent, profile, progress},
    gateway::Gateway,
};

async fn csv(gateway: &Gateway, query: &str) -> String {
    let answer = gateway.get(&format!("/v1/profiles{query}")).await;
    assert_eq!(answer.status, 200);
    assert_eq!(answer.headers["content-type"], "text/csv; charset=utf-8");
    String::from_utf8(answer.body).unwrap()
}

#[tokio::test]
async fn profiles_are_imported_exported_and_replaced() {
    let gateway = Gateway::start().await;
    let header = ProfileTable::CSV_HEADER;
    assert_eq!(csv(&gateway, "").await, format!("{header}\n"));
    let table = format!("{header}\na:1,T4,1,100,7.5,8,100,10,,50\nb:2,T4,1,100,3,,,,,\n");
    let answer = gateway
        .admin(Method::PUT, "/v1/profiles", table.clone())
        .await;
    assert_eq!(answer.status, 204);
    let parsed = |text: &str| ProfileTable::from_csv(text).unwrap();
    assert_eq!(parsed(&csv(&gateway, "").await), parsed(&table));
    let only = format!("{header}\nb:2,T4,1,100,3,,,,,\n");
    assert_eq!(parsed(&csv(&gateway, "?model=b").await), parsed(&only));

    let newer = format!("{header}\nb:2,T4,4,100,9,,,,,\n");
    gateway
        .admin(Method::PUT, "/v1/profiles", newer.clone())
        .await;
    assert_eq!(parsed(&csv(&gateway, "?model=b").await), parsed(&newer));
    let gateway = gateway.restarted().await;
    assert_eq!(parsed(&csv(&gateway, "?model=b").await), parsed(&newer));
}

#[tokio::test]
async fn a_table_with_a_bad_line_changes_nothing() {
    let gateway = Gateway::start().await;
    let header = ProfileTable::CSV_HEADER;
    let table = format!("{header}\na:1,T4,1,,7.5,,,,,\na:1,T4,2,,fast,,,,,\n");
    let answer = gateway.admin(Method::PUT, "/v1/profiles", table).await;
    let message = answer.error(400);
    assert!(
        message.contains("line 3") && message.contains("latency_ms"),
        "{message}"
    );
    gateway
        .admin(Method::PUT, "/v1/profiles", vec![0xff, 0xfe])
        .await
        .error(400);
    assert_eq!(csv(&gateway, "").await, format!("{header}\n"));
}

#[tokio::test]
async fn a_model_takes_its_profiles_along() {
    let gateway = Gateway::start().await;
    gateway.register("a").await;
    let header = ProfileTable::CSV_HEADER;
    let table = format!("{header}\na:1,T4,1,,7.5,,,,,\n");
    gateway.admin(Method::PUT, "/v1/profiles", table).await;
    let view = gateway.get("/v1/models/a").await.ok(200);
    assert_eq!(view["profiled_on"], serde_json::json!(["T4"]));
    gateway.delete("/v1/models/a").await;
    assert_eq!(csv(&gateway, "").await, format!("{header}\n"));
}

#[tokio::test]
async fn recorded_kernels_are_kept_until_the_profile_is_another() {
    let gateway = Gateway::start().await;
    let agent = Agent::asked_to_measure(&gateway, &["m"]).await;
    let wanted = &agent.wanted.profiles[0];
    let kind = &wanted.device_kind;
    let kernels = format!(
        "model,device_kind,compute_capability,multiprocessors,batch_size,start_ns,duration_ns,grid_x,grid_y,grid_z,\
         block_x,block_y,block_z,registers_per_thread,shared_memory_bytes,kernel\n\
         m:1,{kind},9.0,132,1,0,1500,8,12,1,128,1,1,32,1024,gemm\n"
    );
    let measured = ProfileProgress {
        done: 1,
        total: 1,
        csv: Some(profile(wanted)),
        kernels: Some(kernels.clone()),
        ..progress(wanted)
    };
    let answer = agent.try_report(&gateway, vec![], vec![measured]).await;
    assert_eq!(answer.status, 204);
    assert_eq!(csv(&gateway, "/kernels?model=m").await, kernels);
    assert_eq!(csv(&gateway, "/kernels?model=other").await, "");
    let gateway = gateway.restarted().await;
    assert_eq!(csv(&gateway, "/kernels?model=m").await, kernels);

    let header = ProfileTable::CSV_HEADER;
    let imported = format!("{header}\nm:1,{kind},1,,7.5,,,,,\n");
    gateway.admin(Method::PUT, "/v1/profiles", imported).await;
    assert_eq!(csv(&gateway, "/kernels?model=m").await, "");
    gateway.get("/v1/profiles/kernels").await.error(400);
}
