//! `packhorse-lab bench`, against a gateway that answers, refuses and fails as it is told.

use std::sync::atomic::{AtomicU64, Ordering};

use packhorse_cluster::Shape;
use packhorse_protocol::{HEADER_LENGTH, InferResponse, Limits, RequestMessage, Tensor};
use serde_json::{Value, json};
use wiremock::{
    Mock, Request, ResponseTemplate,
    matchers::{method, path},
};

use packhorse_stand_in::{Gateway, Ran};

const PROFILE: &str = "model,device_kind,batch_size,compute_share_pct,latency_ms,latency_p99_ms,memory_mib,\
    achieved_occupancy_pct,mean_occupancy_pct,sm_utilization_pct\nm,V100-SXM2-16GB,1,,5,,100,,,50\n";

/// A hundred requests for `m` within half a second, of which those after a tenth of it count.
const SCENARIO: &str = r#"
name = "live"
profiles = ["p.csv"]
[[devices]]
kind = "V100-SXM2-16GB"
count = 1
[[models]]
name = "m"
rate_rps = 200
slo_ms = 200
requests = 100
payload_bytes = 64
[simulation]
warmup_s = 0.05
"#;

async fn gateway(scenario: &str) -> (Gateway, String) {
    let gateway = Gateway::start(crate::PROGRAM).await;
    gateway.file("p.csv", PROFILE);
    let scenario = gateway.file("live.toml", scenario);
    (gateway, scenario)
}

async fn get(gateway: &Gateway, route: &str, answer: ResponseTemplate) {
    Mock::given(method("GET"))
        .and(path(route))
        .respond_with(answer)
        .mount(&gateway.server)
        .await;
}

/// The model, which answers the `i`-th request as `answer` says.
async fn serves(
    gateway: &Gateway,
    answer: impl Fn(u64) -> ResponseTemplate + Send + Sync + 'static,
) {
    let metadata = json!({
        "name": "m", "versions": ["1"], "platform": "pytorch_libtorch",
        "inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, -1]}],
        "outputs": [{"name": "y", "datatype": "FP32", "shape": [-1, 1]}],
    });
    let described = ResponseTemplate::new(200).set_body_json(metadata);
    get(gateway, "/v2/models/m/versions/1", described).await;
    let asked = AtomicU64::new(0);
    let respond = move |request: &Request| {
        let length = request.headers[HEADER_LENGTH].to_str().unwrap();
        let length = Some(length.parse().unwrap());
        let body = request.body.clone().into();
        let request = RequestMessage::parse(body, length, &Limits::default()).unwrap();
        // As many numbers as 64 bytes hold, and the scenario's objective as the deadline.
        assert_eq!(request.inputs[0].shape().dims(), [1, 16]);
        assert_eq!(request.timeout.unwrap().as_millis(), 200);
        answer(asked.fetch_add(1, Ordering::Relaxed))
    };
    Mock::given(method("POST"))
        .and(path("/v2/models/m/versions/1/infer"))
        .respond_with(respond)
        .mount(&gateway.server)
        .await;
}

fn answered() -> ResponseTemplate {
    let shape = Shape::new(&[1, 1]).unwrap();
    let response = InferResponse {
        model_name: "m".to_owned(),
        model_version: "1".to_owned(),
        id: String::new(),
        variant: None,
        outputs: vec![Tensor::from_values("y", shape, &[1.0_f32]).unwrap()],
    };
    let message = response.encode().unwrap();
    let length = message.header_length().unwrap().to_string();
    ResponseTemplate::new(200)
        .insert_header(HEADER_LENGTH, length)
        .set_body_raw(
            message.into_body().to_bytes().to_vec(),
            "application/octet-stream",
        )
}

fn refused(status: u16) -> ResponseTemplate {
    ResponseTemplate::new(status)
        .set_body_json(json!({"error": format!("told to answer {status}")}))
}

fn bench(gateway: &Gateway, options: &[&str]) -> Ran {
    gateway.run(&[&["bench", "--scenario", "live.toml"], options].concat())
}

#[tokio::test]
async fn answered_refused_and_lost_requests_are_counted_apart() {
    let (gateway, _) = gateway(SCENARIO).await;
    serves(&gateway, |i| match i % 10 {
        0 => refused(503).insert_header("retry-after", "1"),
        1 => refused(504),
        2 => refused(503),
        3 => refused(500),
        _ => answered(),
    })
    .await;
    let report = bench(&gateway, &["--seed", "3", "--json"]).json();
    assert_eq!(
        (&report["scenario"], &report["seed"]),
        (&json!("live"), &json!(3))
    );
    let client = &report["client"];
    assert_eq!(
        (&client["sent"], &client["failed"]),
        (&json!(100), &json!(20))
    );
    let failures = json!({"503: told to answer 503": 10, "500: told to answer 500": 10});
    assert_eq!(client["failures"], failures);
    assert_eq!(report["totals"]["dropped"], 20);
    let model = &report["models"][0];
    assert_eq!(
        (&model["name"], &model["dropped"]),
        (&json!("m"), &json!(20))
    );
    let number = |key: &str| model[key].as_f64().unwrap();
    assert!(number("offered_rps") > 100.0);
    assert!((0.0..number("offered_rps")).contains(&number("goodput_rps")));
    assert!(model["latency_ms"]["p50"].as_f64().unwrap() > 0.0);
    // The stand-in does not return these.
    assert_eq!(model["stages_ms_p95"]["queue"], Value::Null);
    assert_eq!(model["mean_batch"], Value::Null);
    assert_eq!(
        (&report["discipline"], &report["plan"]),
        (&Value::Null, &Value::Null)
    );
}

#[tokio::test]
async fn plan_and_discipline_are_those_of_the_live_cluster() {
    let (gateway, _) = gateway(SCENARIO).await;
    serves(&gateway, |_| answered()).await;
    let options = packhorse_stand_in::policy_options();
    let policy =
        json!({"policy": "nexus", "discipline": "deadline", "options": options, "policies": []});
    gateway.answers("GET", "/v1/policy", 200, policy).await;
    gateway.answers("GET", "/v1/nodes", 200, json!([])).await;
    let plan = json!({
        "generation": 3, "policy": "nexus", "created_unix_ms": 0, "reason": "", "solve_ms": 1.0,
        "predicted_goodput_rps": 200.0, "models": [], "unserved": [], "devices_used": 1,
        "replicas": [{
            "id": null, "model": "m", "version": 1, "device": "node1/gpu0", "device_kind": "V100-SXM2-16GB",
            "batch_size": 8, "compute_share_pct": null,
        }],
    });
    gateway.answers("GET", "/v1/plan", 200, plan).await;
    let report = bench(&gateway, &["--json"]).json();
    assert_eq!(report["discipline"], "deadline");
    assert_eq!(report["plan"]["policy"], "nexus");
    assert_eq!(report["plan"]["replicas"][0]["batch_size"], 8);
    let text = bench(&gateway, &["--concurrency", "1"]);
    let first = text.text().lines().next().unwrap();
    assert!(first.starts_with("seed 1: live against http://"), "{first}");
    assert!(
        first.ends_with("planned by nexus, dispatched by deadline"),
        "{first}"
    );
    assert!(text.text().contains("100 requests, "), "{text:?}");
}

#[tokio::test]
async fn the_delay_of_a_slow_client_is_counted_and_measured() {
    let (gateway, _) = gateway(SCENARIO).await;
    // A hundred answers of 20 ms, one after the other, take two seconds; half a second of them was asked for.
    let slow = std::time::Duration::from_millis(20);
    serves(&gateway, move |_| answered().set_delay(slow)).await;
    let report = bench(&gateway, &["--concurrency", "1", "--json"]).json();
    let client = &report["client"];
    assert!(client["sent_late"].as_u64().unwrap() > 50, "{client}");
    let latest = client["max_lateness_ms"].as_f64().unwrap();
    assert!(latest > 1000.0, "{client}");
    let p99 = report["models"][0]["latency_ms"]["p99"].as_f64().unwrap();
    assert!(p99 > 1000.0, "{p99}: the wait is in the latency");
}

#[tokio::test]
async fn models_that_cannot_be_driven_are_named() {
    let (gateway, _) = gateway(SCENARIO).await;
    get(&gateway, "/v2/models/m/versions/1", refused(404)).await;
    let ran = bench(&gateway, &[]);
    let error = ran.error();
    assert!(
        error.contains("live.toml: models[0] is m:1: told to answer 404"),
        "{error}"
    );
    gateway.file(
        "live.toml",
        SCENARIO.replace("requests = 100", "requests = 1"),
    );
    let ran = bench(&gateway, &[]);
    assert!(
        ran.error()
            .contains("models[0].requests: all 1 are sent before"),
        "{ran:?}"
    );
    let ran = gateway.run_bare(&["bench", "--scenario", "live.toml", "--concurrency", "0"]);
    assert_eq!(ran.code, 2);
}
