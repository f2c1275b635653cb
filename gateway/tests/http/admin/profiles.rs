//! `/v1/profiles`.

use packhorse_cluster::{ProfileProgress, ProfileTable};
use reqwest::Method;

use crate::support::{
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
    assert_eq!(
        answer.ok(200),
        serde_json::json!({"imported": 2, "left_out": 0})
    );
    let parsed = |text: &str| ProfileTable::from_csv(text).unwrap();
    assert_eq!(parsed(&csv(&gateway, "").await), parsed(&table));
    let only = format!("{header}\nb:2,T4,1,100,3,,,,,\n");
    assert_eq!(parsed(&csv(&gateway, "?model=b").await), parsed(&only));

    let newer = format!("{header}\nb:2,T4,4,100,9,,,,,\n");
    gateway
        .admin(Method::PUT, "/v1/profiles", newer.clone())
        .await;
    assert_eq!(parsed(&csv(&gateway, "?model=b").await), parsed(&newer));
    // No estimate replaces it.
    let estimates =
        format!("{header},source\nb:2,T4,4,100,1,,,,,,estimated\nc:1,T4,4,100,1,,,,,,estimated\n");
    let answer = gateway.admin(Method::PUT, "/v1/profiles", estimates).await;
    assert_eq!(
        answer.ok(200),
        serde_json::json!({"imported": 1, "left_out": 1})
    );
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
    // A report is answered before its measurements are stored.
    gateway
        .wait_for("m", "the stored profile", |view| {
            view["profiled_on"] == serde_json::json!([kind])
        })
        .await;
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

#[tokio::test]
async fn a_model_is_placed_by_the_operators_that_its_measurement_reports_first() {
    let gateway = Gateway::start().await;
    let mut agent = Agent::asked_to_measure(&gateway, &["m"]).await;
    let wanted = agent.wanted.profiles[0].clone();
    assert!(wanted.inspect);
    let operators = r#"{"parameters":1000,"parameter_bytes":4000,"activation_bytes":[0,16],"operators":[{"name":"addmm","count":1,
        "operations":[0,2000],"parameter_bytes":4000,"read_bytes":[0,16],"written_bytes":[0,16],"elements":[0,4]}]}"#;
    let begun = ProfileProgress {
        operators: Some(operators.to_owned()),
        ..progress(&wanted)
    };
    let answer = agent
        .try_report(&gateway, vec![], vec![begun.clone()])
        .await;
    assert_eq!(answer.status, 204, "{answer:?}");
    let kind = serde_json::json!([wanted.device_kind]);
    gateway
        .wait_for("m", "the plan", |view| {
            view["estimated_on"] == kind && view["replicas"] != serde_json::json!([])
        })
        .await;
    let estimated = csv(&gateway, "").await;
    let rows: Vec<&str> = estimated.lines().skip(1).collect();
    assert!(!rows.is_empty());
    for row in rows {
        assert!(row.ends_with(",estimated"), "{row}");
    }
    agent.pull(&gateway, 1000).await;
    assert_eq!(agent.wanted.replicas.len(), 1);
    assert!(!agent.wanted.profiles[0].inspect, "the operators are known");

    let gateway = gateway.restarted().await;
    let view = gateway.get("/v1/models/m").await.ok(200);
    assert_eq!(view["estimated_on"], kind);
    assert_eq!(csv(&gateway, "").await, estimated);
    agent.measures = true;
    let measured = |view: &serde_json::Value| view["profiled_on"] == kind;
    let view = agent.work_until(&gateway, "m", measured).await;
    assert_eq!(view["estimated_on"], serde_json::json!([]));
    agent.work_until_ready(&gateway, "m").await;
    assert!(!csv(&gateway, "").await.contains("estimated"));
}

#[tokio::test]
async fn measured_pairs_are_kept_and_replaced() {
    let gateway = Gateway::start().await;
    let table = pairs("m:1", "m:1", 30.0, 1);
    let header = format!("{}\n", table.lines().next().unwrap());
    assert_eq!(csv(&gateway, "/pairs?device_kind=T4").await, header);
    let answer = gateway.admin(Method::PUT, ON_T4, table.clone()).await;
    assert_eq!(answer.status, 204, "{answer:?}");
    assert_eq!(csv(&gateway, "/pairs?device_kind=T4").await, table);
    assert_eq!(csv(&gateway, "/pairs?device_kind=V100").await, header);

    for (body, problem) in [
        (pairs("m", "m", 0.0, 1), "line 2: latency_a_ms"),
        (
            pairs("m", "m", 30.0, 1025),
            "at most 1024 pairs per kind of device are allowed, got 1025",
        ),
    ] {
        let message = gateway.admin(Method::PUT, ON_T4, body).await.error(400);
        assert!(message.contains(problem), "{message}");
    }
    let unnamed = gateway.admin(Method::PUT, "/v1/profiles/pairs", "").await;
    assert!(unnamed.error(400).contains("device_kind"));
    let gateway = gateway.restarted().await;
    assert_eq!(csv(&gateway, "/pairs?device_kind=T4").await, table);
    let empty = gateway.admin(Method::PUT, ON_T4, "").await.error(400);
    assert_eq!(empty, "line 1: the header has no column model_a");
    assert_eq!(csv(&gateway, "/pairs?device_kind=T4").await, table);
    let none = gateway.admin(Method::PUT, ON_T4, header.clone()).await;
    assert_eq!(none.status, 204, "{none:?}");
    assert_eq!(csv(&gateway, "/pairs?device_kind=T4").await, header);
}

/// Two models of which each replica needs nearly half of the only device when it is alone.
#[tokio::test]
async fn less_is_promised_of_models_that_were_measured_to_slow_each_other() {
    let gateway = Gateway::start().await;
    let mut agent = Agent::new("n");
    for model in ["a", "b"] {
        gateway.register(model).await;
        let rate = serde_json::json!({"rate_rps": 180});
        gateway
            .patch(&format!("/v1/models/{model}"), &rate)
            .await
            .ok(200);
    }
    for model in ["a", "b"] {
        agent.work_until_ready(&gateway, model).await;
    }
    let promised = async || {
        let nothing_else = serde_json::json!({});
        let preview = gateway.post("/v1/plans/preview", &nothing_else).await;
        let plan = preview.ok(200)["plan"].clone();
        plan["predicted_goodput_rps"].as_f64().unwrap()
    };
    let before = promised().await;
    let table = pairs("a:1", "b:1", 180.0, 20);
    let answer = gateway.admin(Method::PUT, ON_T4, table).await;
    assert_eq!(answer.status, 204, "{answer:?}");
    let after = promised().await;
    assert!(after < 0.8 * before, "{before} before, {after} after");
}

const ON_T4: &str = "/v1/profiles/pairs?device_kind=T4";

/// This number of measurements of two models at 8 rows, which take 18 ms alone.
fn pairs(a: &str, b: &str, together_ms: f64, count: usize) -> String {
    let header = "model_a,model_b,batch_a,batch_b,share_a_pct,share_b_pct,latency_a_ms,latency_b_ms,std_a_ms,std_b_ms,\
                  alone_a_ms,alone_b_ms\n";
    let row = format!("{a},{b},8,8,100.0,100.0,{together_ms:?},{together_ms:?},,,18.0,18.0\n");
    header.to_owned() + &row.repeat(count)
}

#[tokio::test]
async fn learned_times_stand_beside_those_of_the_profile() {
    let gateway = Gateway::start().await;
    gateway.get("/v1/profiles/learned?model=m").await.error(404);
    gateway.get("/v1/profiles/learned").await.error(400);
    let mut agent = Agent::new("n");
    gateway.register("m").await;
    agent.work_until_ready(&gateway, "m").await;
    let times = gateway.get("/v1/profiles/learned?model=m").await.ok(200);
    let expected = |batch_size: u32| {
        serde_json::json!({
            "model": "m", "version": 1, "device_kind": "T4", "batch_size": batch_size,
            "profile_ms": f64::from(2 + 2 * batch_size), "source": "measured", "learned": null,
        })
    };
    assert_eq!(times, serde_json::json!([1, 2, 4, 8].map(expected)));
}
