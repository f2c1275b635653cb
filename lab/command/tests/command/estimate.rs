//! `packhorse-lab profile estimate`, with a script in the place of the worker.

use std::{fs, os::unix::fs::PermissionsExt as _};

use serde_json::json;

use packhorse_stand_in::Gateway;

/// A matrix product of 1000 x 1000 for each row.
const OPERATORS: &str = r#"{"parameters":1000000,"parameter_bytes":4000000,"activation_bytes":[0,8000],"operators":[{"name":"addmm","count":1,"operations":[0,2000000],"parameter_bytes":4000000,"read_bytes":[0,4000],"written_bytes":[0,4000],"elements":[0,1000]}]}"#;

/// Writes the file of a model, with its signature beside it.
fn model(gateway: &Gateway) -> String {
    let spec = json!({
        "name": "m", "max_batch_size": 4, "slo_ms": 100,
        "inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, 1000]}],
        "outputs": [{"name": "y", "datatype": "FP32", "shape": [-1, 1000]}],
    });
    gateway.file("m.json", spec.to_string());
    gateway.file("m.pt", "a program")
}

/// Writes a worker that runs these lines.
fn worker(gateway: &Gateway, lines: &str) -> String {
    let worker = gateway.file("worker", format!("#!/bin/sh\n{lines}\n"));
    fs::set_permissions(&worker, fs::Permissions::from_mode(0o755)).unwrap();
    worker
}

#[tokio::test]
async fn an_estimate_is_a_profile_that_plans_take_and_says_its_error() {
    let gateway = Gateway::start(crate::PROGRAM).await;
    let model = model(&gateway);
    let worker = worker(&gateway, &format!("echo '{OPERATORS}'"));
    let estimate = ["profile", "estimate", &model, "--worker", &worker];
    let kinds = ["--device-kind", "H100-SXM5-80GB", "--device-kind", "T4"];
    let ran = gateway.run(&[&estimate[..], &kinds].concat());
    let csv = ran.text().to_owned();
    assert!(csv.starts_with("model,device_kind,batch_size,"), "{csv}");
    for kind in ["H100-SXM5-80GB", "T4"] {
        let rows = csv.lines().filter(|line| line.contains(kind));
        assert_eq!(rows.count(), 3, "{csv}");
    }
    assert_eq!(
        ran.stderr,
        "expected error in the median (90th percentile): latency 7.8 % (27.2 %), memory 8.9 % (29.6 %), \
         utilisation of the multiprocessors 2.6 % (40.4 %); found on V100-SXM2-16GB, unknown on other kinds of device\n"
    );

    let file = gateway.path("estimated.csv");
    let to_file = ["--output", file.to_str().unwrap(), "--json"];
    let report = gateway.run(&[&estimate[..], &kinds, &to_file].concat());
    let report = report.json();
    assert_eq!(fs::read_to_string(&file).unwrap(), csv);
    assert_eq!(report["profiles"][0]["source"], "estimated");
    assert_eq!(report["expected_error"]["latency_ms"]["median_pct"], 7.8);
    assert_eq!(report["expected_error"]["measured_on"], "V100-SXM2-16GB");

    let scenario = gateway.file(
        "s.toml",
        "name = \"s\"\nprofiles = [\"estimated.csv\"]\n[[devices]]\nkind = \"T4\"\ncount = 1\n\
         [[devices]]\nkind = \"H100-SXM5-80GB\"\ncount = 1\n[[models]]\nname = \"m\"\nrate_rps = 100\nslo_ms = 100\n",
    );
    let plan = ["plan", "--scenario", &scenario, "--min-cost", "--json"];
    let plan = gateway.run_bare(&plan).json();
    assert_eq!(plan["cost_per_hour"], 0.526, "{plan}");
}

#[tokio::test]
async fn what_cannot_be_estimated_is_named() {
    let gateway = Gateway::start(crate::PROGRAM).await;
    let model = model(&gateway);
    let broken = worker(
        &gateway,
        "echo 'warning: slow' >&2; echo 'no operators: m.pt is no TorchScript program' >&2; exit 1",
    );
    let estimate = ["profile", "estimate", &model, "--worker", &broken];
    let ran = gateway.run(&[&estimate[..], &["--device-kind", "T4"]].concat());
    let error = ran.error();
    assert!(
        error.ends_with("m.pt cannot be estimated: m.pt is no TorchScript program\n"),
        "{error}"
    );
    let ran = gateway.run(&[&estimate[..], &["--device-kind", "abacus"]].concat());
    let error = ran.error();
    assert!(
        error.contains("abacus has no built-in data sheet: expected one of V100-SXM2-16GB, "),
        "{error}"
    );
    assert!(error.contains(", H100-SXM5-80GB, "), "{error}");
    let lonely = gateway.file("lonely.pt", "a program");
    let ran = gateway.run(&[
        "profile",
        "estimate",
        &lonely,
        "--worker",
        &broken,
        "--device-kind",
        "T4",
    ]);
    let error = ran.error();
    assert!(
        error.contains("lonely.json does not exist: name it with --spec"),
        "{error}"
    );
}
