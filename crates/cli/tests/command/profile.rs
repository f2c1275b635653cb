//! `/v1/profiles`.

use std::fs;

use serde_json::json;
use wiremock::{
    ResponseTemplate,
    matchers::{body_string, header, query_param},
};

use packhorse_stand_in::{Gateway, admin};

const CSV: &str = "\
model,device_kind,batch_size,compute_share_pct,latency_ms,latency_p99_ms,memory_mib,achieved_occupancy_pct,mean_occupancy_pct,sm_utilization_pct
m:1,cpu-x,1,100.0,10.0,12.0,256.0,,,
m:1,cpu-x,2,100.0,16.0,,,,,50.0
";

pub(crate) async fn has_profiles(gateway: &Gateway) {
    let answer = ResponseTemplate::new(200).set_body_raw(CSV, "text/csv");
    admin("GET", "/v1/profiles")
        .respond_with(answer)
        .mount(&gateway.server)
        .await;
}

#[tokio::test]
async fn profiles_are_shown_for_people_and_programs() {
    let gateway = Gateway::start(crate::PROGRAM).await;
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
        "sm_utilization_pct": 50.0, "source": "measured", "input_shapes": null,
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
        [
            "m", "cpu-x", "100", "2", "16.00", "-", "125", "-", "-", "-", "50", "measured"
        ]
    );
}

#[tokio::test]
async fn the_shapes_that_were_measured_are_shown_where_they_are_known() {
    let gateway = Gateway::start(crate::PROGRAM).await;
    let csv = CSV.replace("_utilization_pct\n", "_utilization_pct,input_shapes\n");
    let csv = csv.replace(",,,\n", ",,,,-1x128 -1x128\n");
    let csv = csv.replace("50.0\n", "50.0,-1x128 -1x128\n");
    let answer = ResponseTemplate::new(200).set_body_raw(csv, "text/csv");
    { admin("GET", "/v1/profiles").respond_with(answer) }
        .mount(&gateway.server)
        .await;
    let ran = gateway.run(&["profile", "show", "m"]);
    let lines: Vec<String> = ran.text().lines().map(ToOwned::to_owned).collect();
    assert!(lines[0].trim_end().ends_with("INPUTS"), "{lines:?}");
    assert!(
        lines[1].trim_end().ends_with("measured  -1x128 -1x128"),
        "{lines:?}"
    );
    let rows = gateway.run(&["profile", "show", "m", "--json"]).json();
    assert_eq!(rows[0]["input_shapes"], "-1x128 -1x128");
}

#[tokio::test]
async fn what_is_exported_is_what_the_gateway_has() {
    let gateway = Gateway::start(crate::PROGRAM).await;
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
    let gateway = Gateway::start(crate::PROGRAM).await;
    let import = admin("PUT", "/v1/profiles")
        .and(header("content-type", "text/csv"))
        .and(body_string(CSV));
    import
        .respond_with(
            ResponseTemplate::new(200).set_body_json(json!({"imported": 1, "left_out": 0})),
        )
        .expect(1)
        .mount(&gateway.server)
        .await;
    let good = gateway.file("good.csv", CSV);
    let bad = gateway.file("bad.csv", CSV.replace("16.0", "soon"));
    assert_eq!(
        gateway.run(&["profile", "import", &good, "--json"]).json(),
        json!({"imported": 1, "left_out": 0})
    );
    let ran = gateway.run(&["profile", "import", &bad]);
    assert!(
        ran.error().contains("bad.csv: line 3: latency_ms"),
        "{ran:?}"
    );
    gateway.server.verify().await;
}

#[tokio::test]
async fn estimates_that_are_left_out_are_counted_with_the_reason() {
    let gateway = Gateway::start(crate::PROGRAM).await;
    let answer = json!({"imported": 0, "left_out": 1});
    gateway.answers("PUT", "/v1/profiles", 200, answer).await;
    let file = gateway.file("p.csv", CSV);
    assert_eq!(
        gateway.run(&["profile", "import", &file]).text(),
        "imported 0 profiles\nleft out 1 estimate: no estimate replaces a measured profile\n"
    );
}

#[tokio::test]
async fn measured_pairs_are_brought_to_a_gateway_and_back() {
    let gateway = Gateway::start(crate::PROGRAM).await;
    let table = "model_a,model_b,batch_a,batch_b,share_a_pct,share_b_pct,latency_a_ms,latency_b_ms,std_a_ms,std_b_ms,\
                 alone_a_ms,alone_b_ms\na:1,b:1,8,8,100.0,100.0,30.0,30.0,,,18.0,18.0\n";
    let of_kind = || query_param("device_kind", "T4");
    let import = admin("PUT", "/v1/profiles/pairs");
    import
        .and(of_kind())
        .and(header("content-type", "text/csv"))
        .and(body_string(table))
        .respond_with(ResponseTemplate::new(204))
        .expect(1)
        .mount(&gateway.server)
        .await;
    admin("GET", "/v1/profiles/pairs")
        .and(of_kind())
        .respond_with(ResponseTemplate::new(200).set_body_raw(table, "text/csv"))
        .mount(&gateway.server)
        .await;
    let file = gateway.file("pairs.csv", table);
    let imported = gateway.run(&["profile", "import", "--pairs", "T4", &file]);
    assert_eq!(imported.text(), "imported 1 pair\n");
    let exported = gateway.run(&["profile", "export", "--pairs", "T4"]);
    assert_eq!(exported.text(), table);
    let again = gateway.path("again.csv");
    let written = [
        "profile",
        "export",
        "--pairs",
        "T4",
        again.to_str().unwrap(),
    ];
    assert_eq!(gateway.run(&written).text(), "exported 1 pair\n");
    assert_eq!(fs::read_to_string(again).unwrap(), table);
    let bad = gateway.file("bad.csv", table.replace("30.0", "0"));
    let refused = gateway.run(&["profile", "import", "--pairs", "T4", &bad]);
    assert!(
        refused.error().contains("bad.csv: line 2: latency_a_ms"),
        "{refused:?}"
    );
    gateway.server.verify().await;
}

#[tokio::test]
async fn learned_times_are_shown_beside_those_of_the_profile() {
    let gateway = Gateway::start(crate::PROGRAM).await;
    let time = |batch_size: u32, learned| {
        json!({
            "model": "m", "version": 1, "device_kind": "T4", "batch_size": batch_size, "profile_ms": 18.0,
            "source": "measured", "learned": learned,
        })
    };
    let learned = json!({
        "latency_ms": 27.0, "alone_ms": 18.5, "batches": 1200, "age_s": 4.4, "contradicts_profile": true,
    });
    let times = json!([time(1, json!(null)), time(8, learned)]);
    admin("GET", "/v1/profiles/learned")
        .and(query_param("model", "m"))
        .respond_with(ResponseTemplate::new(200).set_body_json(&times))
        .mount(&gateway.server)
        .await;
    let show = ["profile", "show", "m", "--learned"];
    let ran = gateway.run(&show);
    let lines = ran.text().lines().skip(1);
    let lines: Vec<Vec<&str>> = lines
        .map(|line| line.split_whitespace().collect())
        .collect();
    assert_eq!(
        lines,
        [
            vec!["m", "T4", "1", "18.00", "-", "-", "-", "-"],
            vec!["m", "T4", "8", "18.00", "27.00", "18.50", "1200", "4", "!"],
        ]
    );
    assert_eq!(
        gateway.run(&[&show[..], &["--json"]].concat()).json(),
        times
    );
    let error = gateway.run(&["profile", "show", "--learned"]);
    assert_eq!(error.code, 2);
    assert!(error.stderr.contains("<MODEL>"), "{error:?}");
}
