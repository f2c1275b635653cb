//! `/v1/profiles`.

use std::fs;

use serde_json::json;
use wiremock::{
    ResponseTemplate,
    matchers::{body_string, header, query_param},
};

use crate::gateway::{Gateway, admin};

const CSV: &str = "\
model,device_kind,batch_size,compute_share_pct,latency_ms,latency_p99_ms,memory_mib,achieved_occupancy_pct,mean_occupancy_pct,sm_utilization_pct
m:1,cpu-x,1,100.0,10.0,12.0,256.0,,,
m:1,cpu-x,2,100.0,16.0,,,,,50.0
";

async fn has_profiles(gateway: &Gateway) {
    let answer = ResponseTemplate::new(200).set_body_raw(CSV, "text/csv");
    admin("GET", "/v1/profiles")
        .respond_with(answer)
        .mount(&gateway.server)
        .await;
}

#[tokio::test]
async fn profiles_are_shown_for_people_and_programs() {
    let gateway = Gateway::start().await;
    let answer = ResponseTemplate::new(200).set_body_raw(CSV, "text/csv");
    admin("GET", "/v1/profiles")
        .and(query_param("model", "m"))
        .respond_with(answer)
        .mount(&gateway.server)
        .await;
    let rows = gateway.run(&["profile", "show", "m", "--json"]).json();
    let expected = json!({
        "model": "m", "device_kind": "cpu-x", "batch_size": 2, "compute_share_pct": 100.0, "latency_ms": 16.0,
        "latency_p99_ms": null, "memory_mib": null, "achieved_occupancy_pct": null, "mean_occupancy_pct": null,
        "sm_utilization_pct": 50.0,
    });
    assert_eq!((rows.as_array().unwrap().len(), &rows[1]), (2, &expected));
    // 2 requests in 16 ms are 125 a second.
    let ran = gateway.run(&["profile", "show", "m"]);
    let line: Vec<&str> = ran
        .text()
        .lines()
        .nth(2)
        .unwrap()
        .split_whitespace()
        .collect();
    assert_eq!(
        line,
        ["m", "cpu-x", "100", "2", "16.00", "-", "125", "-", "50"]
    );
}

#[tokio::test]
async fn what_is_exported_is_what_the_gateway_has() {
    let gateway = Gateway::start().await;
    has_profiles(&gateway).await;
    assert_eq!(gateway.run(&["profile", "export"]).text(), CSV);
    assert_eq!(
        gateway.run(&["profile", "export", "p.csv"]).text(),
        "exported 1 profile\n"
    );
    assert_eq!(fs::read_to_string(gateway.path("p.csv")).unwrap(), CSV);
}

#[tokio::test]
async fn what_is_imported_is_checked_first() {
    let gateway = Gateway::start().await;
    let import = admin("PUT", "/v1/profiles")
        .and(header("content-type", "text/csv"))
        .and(body_string(CSV));
    import
        .respond_with(ResponseTemplate::new(204))
        .expect(1)
        .mount(&gateway.server)
        .await;
    let good = gateway.file("good.csv", CSV);
    let bad = gateway.file("bad.csv", CSV.replace("16.0", "soon"));
    assert_eq!(
        gateway.run(&["profile", "import", &good, "--json"]).json(),
        json!({"imported": 1})
    );
    let ran = gateway.run(&["profile", "import", &bad]);
    assert!(
        ran.error().contains("bad.csv: line 3: latency_ms"),
        "{ran:?}"
    );
    gateway.server.verify().await;
}

/// A batch of two kernels on a V100: 20 of 80 multiprocessors for 30 us, all for 10 us.
const TRACE: &str = r#"{
    "deviceProperties": [{"id": 0, "computeMajor": 7, "computeMinor": 0, "numSms": 80}],
    "traceEvents": [
        {"cat": "cpu_op", "name": "aten::relu", "ts": 0, "dur": 5},
        {"cat": "kernel", "name": "a", "ts": 1000.5, "dur": 30, "args": {
            "device": 0, "grid": [40, 1, 1], "block": [1024, 1, 1], "registers per thread": 32, "shared memory": 0}},
        {"cat": "kernel", "name": "b", "ts": 1030.5, "dur": 10, "args": {
            "device": 0, "grid": [160, 1, 1], "block": [1024, 1, 1], "registers per thread": 32, "shared memory": 0}}
    ]
}"#;

#[tokio::test]
async fn recorded_kernels_become_metrics_and_a_picture() {
    let gateway = Gateway::start().await;
    let folder = tempfile::tempdir().unwrap();
    let trace = folder.path().join("batch.json");
    fs::write(&trace, TRACE).unwrap();
    let trace = trace.to_str().unwrap();
    let picture = folder.path().join("kernels.svg");
    let plot = ["--plot", picture.to_str().unwrap()];
    let summary = gateway.run(&[&["profile", "kernels", trace, "--json"], &plot[..]].concat());
    let expected = json!({
        "compute_capability": "7.0", "multiprocessors": 80, "kernels": 2, "duration_ms": 0.04,
        "achieved_occupancy_pct": 100.0, "mean_occupancy_pct": 43.75, "sm_utilization_pct": 43.75,
    });
    assert_eq!(summary.json(), expected);
    let svg = fs::read_to_string(picture).unwrap();
    assert!(svg.contains("SM utilisation"));

    // With half the multiprocessors: 20 of 40 for 30 us, all for 10 us.
    let other = gateway.run(&["profile", "kernels", trace, "--json", "--gpu", "7.0:40"]);
    assert_eq!(other.json()["sm_utilization_pct"], 62.5);
}
