//! Statistics, metrics and goodput.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use packhorse_api::ServerTiming;
use packhorse_cluster::ModelSpec;
use packhorse_gateway::{api::inference::InferenceLimits, driver::DataPlaneConfig};
use packhorse_wire::FailureKind;
use serde_json::json;
use tokio::time::Instant;

use crate::support::{
    PATIENCE,
    inference_gateway::{InferenceGateway, double_model, double_request},
    until,
    worker::{STAGES, double},
};

#[tokio::test]
async fn the_durations_of_the_stages_are_answered_to_whoever_asks() {
    let gateway = InferenceGateway::with_computing_double().await;
    let ask = |stages: bool| {
        let request = gateway.client.post(gateway.url("/v2/models/double/infer"));
        let request = request.body(double_request(1, 1.5).to_string());
        let header = stages.then_some("1");
        header.into_iter().fold(request, |request, value| {
            request.header("X-Packhorse-Stages", value)
        })
    };
    let answer = ask(false).send().await.unwrap();
    assert!(!answer.headers().contains_key("server-timing"));
    let answer = ask(true).send().await.unwrap();
    assert_eq!(answer.status(), 200);
    let timing = answer.headers()["server-timing"].to_str().unwrap();
    let timing: ServerTiming = timing.parse().unwrap();
    let measured = [
        timing.stages.copy_in,
        timing.stages.compute,
        timing.stages.copy_out,
    ];
    let expected = [STAGES.copy_in, STAGES.compute, STAGES.copy_out];
    let measured = measured.map(|ms| Duration::from_secs_f64(ms / 1e3));
    assert_eq!(measured, expected);
    let sum: f64 = timing.durations().iter().sum();
    // The stand-in computes for less time than it says.
    assert!(
        timing.total > 0.0 && sum >= timing.total - 1e-6,
        "{timing:?}"
    );
}

#[tokio::test]
async fn statistics_add_up() {
    let (gateway, worker) = InferenceGateway::with_double().await;
    let failing = gateway.begin_double(1, 1.0);
    worker
        .batch()
        .await
        .fail(FailureKind::ModuleThrew, "no")
        .await;
    failing.await.unwrap().error(500);
    worker.answer_all(double);
    for rows in [1, 2, 3] {
        assert_eq!(gateway.double(rows, 1.0).await.status, 200);
    }
    for path in [
        "/v2/models/double/stats",
        "/v2/models/double/versions/1/stats",
        "/v2/models/stats",
    ] {
        let stats = gateway.get(path).await.json()["model_stats"][0].clone();
        assert_eq!(stats["name"], "double");
        assert_eq!(stats["version"], "1");
        assert_eq!(stats["inference_count"], 6);
        assert_eq!(stats["execution_count"], 3);
        assert!(stats["last_inference"].as_u64().unwrap() > 1_500_000_000_000);
        let stages = &stats["inference_stats"];
        assert_eq!(stages["success"]["count"], 3);
        assert_eq!(stages["fail"]["count"], 1);
        // The failed one was dispatched as well.
        assert_eq!(stages["queue"]["count"], 4);
        assert_eq!(
            stages["compute_infer"]["ns"],
            3 * STAGES.compute.as_nanos() as u64
        );
        assert_eq!(
            stages["compute_input"]["ns"],
            3 * STAGES.copy_in.as_nanos() as u64
        );
        assert_eq!(
            stages["compute_output"]["ns"],
            3 * STAGES.copy_out.as_nanos() as u64
        );
        assert!(stages["success"]["ns"].as_u64().unwrap() > 0);
        for cache in ["cache_hit", "cache_miss"] {
            assert_eq!(stages[cache]["count"], 0);
        }
    }
}

#[tokio::test]
async fn metrics_have_the_names_that_boards_chart() {
    let gateway = InferenceGateway::with_computing_double().await;
    assert_eq!(gateway.double(2, 1.0).await.status, 200);
    gateway
        .get("/v2/models/double/secret-path")
        .await
        .error(404);
    gateway
        .post("/v2/models/never-registered/infer", "")
        .await
        .error(404);
    let text = gateway.metrics();
    let labels = "{model=\"double\",version=\"1\"}";
    for line in [
        format!("nv_inference_request_success{labels} 1"),
        format!("nv_inference_count{labels} 2"),
        format!("nv_inference_exec_count{labels} 1"),
        format!("nv_inference_compute_infer_duration_us{labels} 1000"),
        format!("nv_inference_compute_input_duration_us{labels} 100"),
        format!("nv_inference_compute_output_duration_us{labels} 200"),
        format!("nv_inference_pending_request_count{labels} 0"),
        format!("packhorse_slo_met_total{labels} 1"),
        "packhorse_slo_missed_total{model=\"double\",version=\"1\",cause=\"late\"} 0".to_owned(),
        "nv_inference_request_failure{model=\"double\",version=\"1\",reason=\"REJECTED\"} 0".to_owned(),
        "packhorse_stage_duration_seconds_count{model=\"double\",version=\"1\",stage=\"compute\"} 1".to_owned(),
    ] {
        assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
    }
    for name in [
        "nv_inference_request_duration_us",
        "nv_inference_queue_duration_us",
    ] {
        assert!(
            text.contains(&format!("# TYPE {name} counter\n{name}{labels} ")),
            "{name} is not in\n{text}"
        );
    }
    let template = "http_route=\"/v2/models/{model}/infer\",http_response_status_code=\"200\"";
    assert!(text.contains(template), "{text}");
    assert!(
        !text.contains("secret-path") && !text.contains("never-registered"),
        "{text}"
    );
}

#[tokio::test]
async fn goodput_counts_what_was_answered_in_time() {
    let gateway = InferenceGateway::with_computing_double().await;
    for _ in 0..4 {
        assert_eq!(gateway.double(2, 1.0).await.status, 200);
    }
    let goodput = gateway.data_plane.goodput(Duration::from_mins(1)).remove(0);
    assert_eq!(goodput.name.as_str(), "double");
    assert!(
        goodput.goodput_rps > 0.0 && goodput.goodput_rps <= goodput.offered_rps,
        "{goodput:?}"
    );
    assert_eq!(goodput.mean_batch, Some(2.0));
    assert!(
        goodput.p50_ms.unwrap() <= goodput.p99_ms.unwrap(),
        "{goodput:?}"
    );
}

#[tokio::test]
async fn a_removed_model_is_forgotten() {
    let gateway = &mut InferenceGateway::with_computing_double().await;
    assert_eq!(gateway.double(1, 1.0).await.status, 200);
    gateway.target.models.clear();
    gateway.target.replicas.clear();
    gateway.apply();
    until("forgetting", || {
        !gateway.metrics().contains("nv_inference_count{")
    })
    .await;
    gateway.double(1, 1.0).await.error(404);
    assert!(
        gateway
            .data_plane
            .goodput(Duration::from_mins(1))
            .is_empty()
    );
}

#[tokio::test]
async fn the_wait_in_the_drivers_inbox_is_a_stage() {
    let gateway = InferenceGateway::with_computing_double().await;
    for _ in 0..3 {
        assert_eq!(gateway.double(1, 1.0).await.status, 200);
    }
    let metrics = gateway.metrics();
    for stage in ["inbox", "result_inbox"] {
        let count = format!(
            "packhorse_stage_duration_seconds_count{{model=\"double\",version=\"1\",stage=\"{stage}\"}} 3\n"
        );
        assert!(metrics.contains(&count), "{metrics}");
    }
}

#[tokio::test]
async fn an_answer_within_the_timeout_of_its_request_is_in_time_whatever_the_slo_is() {
    let slo = Duration::from_millis(1);
    let mut gateway =
        InferenceGateway::start_with(DataPlaneConfig::default(), InferenceLimits::default()).await;
    gateway.add_model(ModelSpec {
        slo,
        ..double_model()
    });
    let worker = gateway.add_worker("double:1", 0).await;
    let mut request = double_request(1, 1.0);
    request["parameters"] = json!({"timeout": 30_000_000});
    let answered = gateway.begin("/v2/models/double/infer", &request);
    let batch = worker.batch().await;
    tokio::time::sleep(2 * slo).await;
    batch.answer(double(&batch)).await;
    assert_eq!(answered.await.unwrap().status, 200);
    let metrics = gateway.metrics();
    let met = "packhorse_slo_met_total{model=\"double\",version=\"1\"} 1\n";
    assert!(metrics.contains(met), "{metrics}");
}

#[tokio::test]
async fn the_driver_goes_on_while_the_threads_of_http_are_busy() {
    let (gateway, worker) = InferenceGateway::with_double().await;
    let _blockers = [gateway.begin_double(1, 1.0), gateway.begin_double(1, 1.0)];
    let _busy = [worker.batch().await, worker.batch().await];
    let mut request = double_request(1, 1.0);
    request["parameters"] = json!({"timeout": 300_000});
    let _late = gateway.begin("/v2/models/double/infer", &request);
    gateway.wait_for_queued(1).await;
    // From here on the only thread of this runtime does nothing else; the driver still ends the request at its deadline.
    let begin = Instant::now();
    let none = "nv_inference_pending_request_count{model=\"double\",version=\"1\"} 0\n";
    while !gateway.metrics().contains(none) {
        assert!(begin.elapsed() < PATIENCE, "the driver stands still");
        std::thread::yield_now();
    }
}

#[tokio::test]
async fn every_sample_has_help_and_a_type_under_its_own_name() {
    let gateway = InferenceGateway::with_computing_double().await;
    assert_eq!(gateway.double(1, 1.0).await.status, 200);
    let page = gateway.metrics();
    let described = |line: &str| {
        let described = line.split(' ').next().map(ToOwned::to_owned);
        described.expect("a line has a first word")
    };
    let help: BTreeSet<String> = page
        .lines()
        .filter_map(|line| line.strip_prefix("# HELP "))
        .map(described)
        .collect();
    let types: BTreeMap<String, &str> = page
        .lines()
        .filter_map(|line| line.strip_prefix("# TYPE "))
        .filter_map(|line| Some((described(line), line.split(' ').nth(1)?)))
        .collect();
    assert_eq!(help, types.keys().cloned().collect(), "{page}");
    let mut samples = 0;
    for line in page.lines().filter(|line| !line.starts_with('#')) {
        let name = line.split(['{', ' ']).next().unwrap();
        let of_histogram = ["_bucket", "_sum", "_count"]
            .iter()
            .filter_map(|part| name.strip_suffix(part))
            .any(|histogram| types.get(histogram) == Some(&"histogram"));
        assert!(of_histogram || types.contains_key(name), "{line}");
        samples += 1;
    }
    assert!(samples > 50, "{page}");
}
