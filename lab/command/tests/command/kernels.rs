//! The commands of `packhorse profile` that analyse, record and draw kernels, and `packhorse-lab profile pairs`.

use std::fs;

use serde_json::json;
use wiremock::{ResponseTemplate, matchers::query_param};

use packhorse_stand_in::{Gateway, admin};

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
async fn recorded_kernels_become_metrics_and_a_figure() {
    let gateway = Gateway::start(crate::PROGRAM).await;
    let folder = tempfile::tempdir().unwrap();
    let trace = folder.path().join("batch.json");
    fs::write(&trace, TRACE).unwrap();
    let trace = trace.to_str().unwrap();
    let figure = folder.path().join("kernels.svg");
    let plot = ["--plot", figure.to_str().unwrap()];
    let summary = gateway.run(&[&["profile", "kernels", trace, "--json"], &plot[..]].concat());
    let expected = json!({
        "compute_capability": "7.0", "multiprocessors": 80, "kernels": 2, "duration_ms": 0.04,
        "achieved_occupancy_pct": 100.0, "mean_occupancy_pct": 43.75, "sm_utilization_pct": 43.75,
    });
    assert_eq!(summary.json(), expected);
    let svg = fs::read_to_string(figure).unwrap();
    assert!(svg.contains("SM utilisation"));

    // With half the multiprocessors: 20 of 40 for 30 us, all for 10 us.
    let other = gateway.run(&["profile", "kernels", trace, "--json", "--gpu", "7.0:40"]);
    assert_eq!(other.json()["sm_utilization_pct"], 62.5);
}

/// The output of ncu for the kernels of [`TRACE`].
const NCU: &str = r#"==PROF== Connected to process 7
"ID","Process ID","Process Name","Host Name","Kernel Name","Context","Stream","Block Size","Grid Size","Device","CC","Section Name","Metric Name","Metric Unit","Metric Value"
"0","7","w","h","a","1","7","(1024, 1, 1)","(40, 1, 1)","0","7.0","Command line profiler metrics","gpu__time_duration.sum","us","30.00"
"0","7","w","h","a","1","7","(1024, 1, 1)","(40, 1, 1)","0","7.0","Command line profiler metrics","sm__warps_active.avg.pct_of_peak_sustained_active","%","45.00"
"1","7","w","h","b","1","7","(1024, 1, 1)","(160, 1, 1)","0","7.0","Command line profiler metrics","gpu__time_duration.sum","us","10.00"
"1","7","w","h","b","1","7","(1024, 1, 1)","(160, 1, 1)","0","7.0","Command line profiler metrics","sm__warps_active.avg.pct_of_peak_sustained_active","%","90.00"
"#;

#[tokio::test]
async fn estimates_are_compared_with_what_ncu_measured() {
    let gateway = Gateway::start(crate::PROGRAM).await;
    let trace = gateway.file("batch.json", TRACE);
    let ncu = gateway.file("ncu.csv", NCU);
    let args = ["profile", "kernels", &trace, "--ncu-csv", &ncu];
    let measured = &gateway.run(&[&args[..], &["--json"]].concat()).json()["measured"];
    // (30 * 45 + 10 * 90) / 40 measured and (30 * 25 + 10 * 100) / 40 estimated; off by (30 * 20 + 10 * 10) / 40.
    assert_eq!(measured["mean_occupancy_pct"], 56.25);
    assert_eq!(measured["estimated_mean_occupancy_pct"], 43.75);
    assert_eq!(measured["mean_error_points"], 17.5);
    assert_eq!(measured["max_occupancy_pct"], 90.0);
    assert_eq!(measured["by_kernel"][0]["kernel"], "a");
    let text = gateway.run(&args);
    assert!(
        text.text()
            .contains("mean error of the estimates is 17.5 percentage points"),
        "{text:?}"
    );

    let one = NCU.lines().take(4).collect::<Vec<_>>().join("\n");
    let one = gateway.file("one.csv", one);
    let text = gateway.run(&["profile", "kernels", &trace, "--ncu-csv", &one]);
    assert!(
        text.text().contains("only the means are compared"),
        "{text:?}"
    );
    let other = gateway.run(&["profile", "kernels", &trace, "--ncu-csv", &trace]);
    assert!(
        other.error().contains("no measurements of ncu"),
        "{other:?}"
    );
}

#[tokio::test]
async fn a_trace_without_kernels_is_refused_with_the_reason() {
    let gateway = Gateway::start(crate::PROGRAM).await;
    let trace = r#"{"traceEvents": [{"cat": "cpu_op", "name": "aten::mm", "ts": 1, "dur": 2}]}"#;
    let trace = gateway.file("cpu.json", trace);
    let ran = gateway.run(&["profile", "kernels", &trace]);
    assert!(ran.error().contains("recorded on a CPU"), "{ran:?}");
}

const KERNELS: &str = "\
model,device_kind,compute_capability,multiprocessors,batch_size,start_ns,duration_ns,grid_x,grid_y,grid_z,block_x,block_y,block_z,\
registers_per_thread,shared_memory_bytes,kernel
m:1,V100,7.0,80,4,0,30000,40,1,1,1024,1,1,32,0,a
m:1,V100,7.0,80,4,30000,10000,160,1,1,1024,1,1,32,0,b
m:1,V100,7.0,80,8,0,30000,80,1,1,1024,1,1,32,0,a
";

#[tokio::test]
async fn the_recorded_kernels_of_a_profile_are_drawn_per_batch_size() {
    let gateway = Gateway::start(crate::PROGRAM).await;
    let answer = ResponseTemplate::new(200).set_body_raw(KERNELS, "text/csv");
    admin("GET", "/v1/profiles/kernels")
        .and(query_param("model", "m"))
        .respond_with(answer)
        .mount(&gateway.server)
        .await;
    let show = ["profile", "plot", "m", "k.svg"];
    let svg = |more: &[&str]| {
        let ran = gateway.run(&[&show[..], more].concat());
        assert_eq!(ran.text(), "", "{ran:?}");
        fs::read_to_string(gateway.path("k.svg")).unwrap()
    };
    let both = svg(&[]);
    for text in [
        "Kernels of m",
        "weighted mean",
        "batch size 4 on V100",
        "batch size 8 on V100",
    ] {
        assert!(both.contains(text), "{text}: {both}");
    }
    let one = svg(&["--batch-size", "8"]);
    assert!(!one.contains("batch size 4 on V100") && one.contains("batch size 8 on V100"));
    let none = gateway.run(&[&show[..], &["--device-kind", "T4"]].concat());
    assert!(
        none.error()
            .contains("no recorded kernels of m for this batch size or kind of device"),
        "{none:?}"
    );
}

#[tokio::test]
async fn a_model_that_was_never_on_a_gpu_has_nothing_to_draw() {
    let gateway = Gateway::start(crate::PROGRAM).await;
    let answer = ResponseTemplate::new(200).set_body_raw("", "text/csv");
    admin("GET", "/v1/profiles/kernels")
        .respond_with(answer)
        .mount(&gateway.server)
        .await;
    let ran = gateway.run(&["profile", "plot", "m", "k.svg"]);
    assert!(
        ran.error()
            .contains("kernels are recorded when a model is measured on a GPU"),
        "{ran:?}"
    );
}

#[tokio::test]
async fn local_measurements_say_what_is_missing() {
    let gateway = Gateway::start(crate::PROGRAM).await;
    let spec = gateway.file(
        "m.json",
        json!({
            "name": "m", "max_batch_size": 4, "slo_ms": 100, "rate_rps": 1,
            "inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, 3]}],
            "outputs": [{"name": "y", "datatype": "FP32", "shape": [-1, 2]}],
        })
        .to_string(),
    );
    let model = gateway.file("m.pt", "");
    let worker = gateway.file("worker", "");
    let record = ["profile", "record", &spec, "--artifact", &model];
    // The command runs without an environment, and so without a search path.
    let ran = gateway.run(&[&record[..], &["--ncu", "--worker", &worker]].concat());
    assert!(
        ran.error().contains("there is no program ncu in PATH"),
        "{ran:?}"
    );
    let ran = gateway.run(&[&record[..], &["--worker", "/nowhere"]].concat());
    assert!(
        ran.error()
            .contains("the worker program /nowhere does not exist"),
        "{ran:?}"
    );
    let pair = format!("{spec}={model}");
    let pairs = ["profile", "pairs", &pair, "--worker", &worker];
    let ran = gateway.run(&[&pairs[..], &["--shares", "50/50", "--device", "cuda:0"]].concat());
    assert!(
        ran.error().contains("shares of a GPU require MPS"),
        "{ran:?}"
    );
    let ran = gateway.run(&[&pairs[..], &["--pair", "m,n"]].concat());
    assert!(
        ran.error().contains("there is no argument for the model n"),
        "{ran:?}"
    );
}
