//! The cache of predictions: what it answers, for whom, and what its answers count as.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use packhorse_cluster::{ArtifactDigest, Datatype, ModelSpec};
use packhorse_control::LinkState;
use packhorse_gateway::{api::inference::InferenceLimits, driver::DataPlaneConfig};
use packhorse_grpc::messages::inference::ModelInferResponse;
use packhorse_wire::{FailureKind, TensorHeader};
use prost::Message as _;
use serde_json::{Value, json};

use crate::support::{
    answer::Answer,
    grpc::{GrpcClient, INFER, frame, infer_request},
    inference_gateway::{ADDRESS, InferenceGateway, double_model, double_request, tensor},
    worker::{Batch, Compute, Worker, double, output},
};

/// The model `double` with a cache.
fn cached() -> ModelSpec {
    ModelSpec {
        cache: true,
        ..double_model()
    }
}

/// A gateway with the model `double`, which has a cache, and a worker that the test answers for.
async fn with_cached() -> (InferenceGateway, Arc<Worker>) {
    let mut gateway = InferenceGateway::start().await;
    gateway.add_model(cached());
    let worker = gateway.add_worker("double:1", 0).await;
    (gateway, worker)
}

/// Has a worker compute, and count its batches.
fn compute(worker: &Arc<Worker>, compute: Compute) -> Arc<AtomicUsize> {
    let batches = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&batches);
    worker.answer_all(move |batch| {
        counted.fetch_add(1, SeqCst);
        compute(batch)
    });
    batches
}

/// Returns what the cache had for an answer, by its header.
#[track_caller]
fn cache_of(answer: &Answer) -> Option<&str> {
    assert_eq!(answer.status, 200, "{}", answer.text());
    Some(answer.headers.get("x-packhorse-cache")?.to_str().unwrap())
}

#[tokio::test]
async fn a_request_with_the_same_inputs_is_answered_without_a_batch() {
    let (gateway, worker) = with_cached().await;
    let batches = compute(&worker, double);
    let first = gateway.double(2, 1.5).await;
    assert_eq!(cache_of(&first), Some("miss"));
    for _ in 0..3 {
        let again = gateway.double(2, 1.5).await;
        assert_eq!(cache_of(&again), Some("hit"));
        assert_eq!(again.body, first.body);
    }
    assert_eq!(batches.load(SeqCst), 1);
    for (rows, x) in [(1, 1.5), (2, 1.25), (2, -1.5)] {
        assert_eq!(cache_of(&gateway.double(rows, x).await), Some("miss"));
    }
    assert_eq!(batches.load(SeqCst), 4);
}

/// Sums its two inputs.
fn sum(batch: &Batch) -> Vec<(TensorHeader, Vec<u8>)> {
    let pairs = batch.input::<f32>(0).into_iter().zip(batch.input::<f32>(1));
    let sums: Vec<f32> = pairs.map(|(a, b)| a + b).collect();
    vec![output(&[sums.len().cast_signed() as i64], &sums)]
}

#[tokio::test]
async fn neither_the_order_of_inputs_nor_their_form_matters() {
    let mut gateway = InferenceGateway::start().await;
    let mut spec = cached();
    spec.program.model = "sum:1".parse().unwrap();
    let row = |name| tensor(name, Datatype::Fp32, &[-1], None);
    spec.program.inputs = vec![row("a"), row("b")];
    spec.program.outputs = vec![row("y")];
    gateway.add_model(spec);
    let worker = gateway.add_worker("sum:1", 0).await;
    let batches = compute(&worker, sum);
    let json =
        |name: &str, x: f64| json!({"name": name, "datatype": "FP32", "shape": [1], "data": [x]});
    let post = async |inputs: Value| {
        let path = "/v2/models/sum/infer";
        gateway
            .post(path, json!({"inputs": inputs}).to_string())
            .await
    };
    let first = post(json!([json("a", 1.0), json("b", 2.0)])).await;
    assert_eq!(cache_of(&first), Some("miss"));
    let swapped = post(json!([json("b", 2.0), json("a", 1.0)])).await;
    assert_eq!(cache_of(&swapped), Some("hit"));
    assert_eq!(swapped.ok(200), first.ok(200));
    let binary = |name: &str| json!({"name": name, "datatype": "FP32", "shape": [1], "parameters": {"binary_data_size": 4}});
    let head = json!({"id": "other", "inputs": [binary("b"), binary("a")]}).to_string();
    let body = [head.as_bytes(), &2_f32.to_le_bytes(), &1_f32.to_le_bytes()].concat();
    let sent = gateway
        .client
        .post(gateway.url("/v2/models/sum/infer"))
        .header("Inference-Header-Content-Length", head.len())
        .body(body);
    let binary = Answer::read(sent.send().await.unwrap()).await;
    assert_eq!(cache_of(&binary), Some("hit"));
    assert_eq!(batches.load(SeqCst), 1);
    let other = post(json!([json("a", 2.0), json("b", 1.0)])).await;
    assert_eq!(cache_of(&other), Some("miss"));
}

#[tokio::test]
async fn a_call_of_grpc_finds_what_a_request_of_http_has_left() {
    let (gateway, worker) = with_cached().await;
    let batches = compute(&worker, double);
    assert_eq!(cache_of(&gateway.double(1, 3.0).await), Some("miss"));
    let listener = gateway.listen_for_grpc().await;
    let client = GrpcClient::connect(listener.address()).await;
    for (x, expected) in [(3.0, "hit"), (4.0, "miss"), (4.0, "hit")] {
        let mut call = client.begin(INFER, &[]);
        call.send(&frame(
            0,
            &infer_request("double", [1, 2], x).encode_to_vec(),
        ));
        call.finish();
        call.read_head().await;
        assert_eq!(
            call.head_value("x-packhorse-cache").as_deref(),
            Some(expected)
        );
        let answer = ModelInferResponse::decode(call.next().await.unwrap()).unwrap();
        let doubled = [2.0 * x, 2.0 * x].map(f32::to_le_bytes).concat();
        assert_eq!(answer.raw_output_contents, [doubled]);
    }
    assert_eq!(batches.load(SeqCst), 2);
}

#[tokio::test]
async fn a_model_without_a_cache_and_a_gateway_without_memory_for_it_compute_each_request() {
    let gateway = InferenceGateway::with_computing_double().await;
    let config = DataPlaneConfig {
        prediction_cache_bytes: 0,
        ..DataPlaneConfig::default()
    };
    let mut without = InferenceGateway::start_with(config, InferenceLimits::default()).await;
    without.add_model(cached());
    let worker = without.add_worker("double:1", 0).await;
    worker.answer_all(double);
    for gateway in [gateway, without] {
        for _ in 0..2 {
            assert_eq!(cache_of(&gateway.double(1, 1.0).await), None);
        }
        let stats = gateway.get("/v2/models/double/stats").await.ok(200);
        let stages = &stats["model_stats"][0]["inference_stats"];
        assert_eq!(
            (
                &stages["cache_hit"]["count"],
                &stages["cache_miss"]["count"]
            ),
            (&json!(0), &json!(0))
        );
        assert_eq!(stages["success"]["count"], 2);
        let metrics = gateway.metrics();
        assert!(
            !metrics.contains("nv_cache_num_hits_per_model{"),
            "{metrics}"
        );
        assert!(!metrics.contains("stage=\"lookup\""), "{metrics}");
    }
}

#[tokio::test]
async fn a_cache_that_is_switched_off_answers_nothing() {
    let (mut gateway, worker) = with_cached().await;
    let batches = compute(&worker, double);
    assert_eq!(cache_of(&gateway.double(1, 1.0).await), Some("miss"));
    gateway.add_model(double_model());
    gateway.settled().await;
    assert_eq!(cache_of(&gateway.double(1, 1.0).await), None);
    gateway.add_model(cached());
    gateway.settled().await;
    assert_eq!(cache_of(&gateway.double(1, 1.0).await), Some("hit"));
    assert_eq!(batches.load(SeqCst), 2);
}

#[tokio::test]
async fn hits_are_answered_requests_and_no_work_of_devices() {
    let (gateway, worker) = with_cached().await;
    worker.answer_all(double);
    for _ in 0..4 {
        assert_eq!(gateway.double(2, 1.0).await.status, 200);
    }
    let stats = gateway.get("/v2/models/double/stats").await.ok(200);
    let stats = &stats["model_stats"][0];
    assert_eq!(
        (&stats["inference_count"], &stats["execution_count"]),
        (&json!(2), &json!(1))
    );
    let stages = &stats["inference_stats"];
    for (stage, count) in [
        ("success", 4),
        ("fail", 0),
        ("queue", 1),
        ("compute_infer", 1),
        ("cache_hit", 3),
        ("cache_miss", 1),
    ] {
        assert_eq!(stages[stage]["count"], count, "{stage}");
    }
    assert!(stages["cache_hit"]["ns"].as_u64().unwrap() > 0);
    let text = gateway.metrics();
    let labels = "{model=\"double\",version=\"1\"}";
    for line in [
        format!("nv_inference_request_success{labels} 4"),
        format!("nv_cache_num_hits_per_model{labels} 3"),
        format!("nv_cache_num_misses_per_model{labels} 1"),
        format!("packhorse_slo_met_total{labels} 1"),
        "packhorse_prediction_cache_limit_bytes 67108864".to_owned(),
        "packhorse_stage_duration_seconds_count{model=\"double\",version=\"1\",stage=\"lookup\"} 4"
            .to_owned(),
        "packhorse_prediction_cache_evictions_total 0".to_owned(),
    ] {
        assert!(
            text.lines().any(|present| present == line),
            "{line} is not in\n{text}"
        );
    }
    assert!(!text.contains("packhorse_prediction_cache_bytes 0\n"));
    let goodput = gateway.data_plane.goodput(Duration::from_mins(1)).remove(0);
    let each = goodput.offered_rps;
    assert!(
        each > 0.0 && (goodput.throughput_rps, goodput.goodput_rps) == (each, each),
        "{goodput:?}"
    );
}

#[tokio::test]
async fn a_program_in_place_of_another_never_answers_as_that_did() {
    fn triple(batch: &Batch) -> Vec<(TensorHeader, Vec<u8>)> {
        let tripled: Vec<f32> = batch.input::<f32>(0).iter().map(|x| 3.0 * x).collect();
        vec![output(
            &[tripled.len().cast_signed() as i64 / 2, 2],
            &tripled,
        )]
    }
    let (mut gateway, worker) = with_cached().await;
    worker.answer_all(double);
    let data = |answer: &Answer| answer.ok(200)["outputs"][0]["data"][0].as_f64().unwrap();
    assert!((data(&gateway.double(1, 1.0).await) - 2.0).abs() < 1e-9);
    assert_eq!(cache_of(&gateway.double(1, 1.0).await), Some("hit"));
    gateway.target.replicas.clear();
    let mut other = cached();
    other.program.artifact = ArtifactDigest::from_sha256([4; 32]);
    gateway.add_model(other.clone());
    let worker = gateway.add_worker("double:1", 1).await;
    worker.answer_all(triple);
    let answer = gateway.double(1, 1.0).await;
    assert_eq!(
        (cache_of(&answer), data(&answer).round() as i64),
        (Some("miss"), 3)
    );
    // Another version has another number, too.
    other.program.model = "double:2".parse().unwrap();
    gateway.add_model(other);
    let second = gateway.add_worker("double:2", 2).await;
    second.answer_all(double);
    gateway
        .wait_for_link(2, |state| *state == LinkState::Serving)
        .await;
    let answer = gateway
        .post(
            "/v2/models/double/versions/2/infer",
            double_request(1, 1.0).to_string(),
        )
        .await;
    assert_eq!(
        (cache_of(&answer), data(&answer).round() as i64),
        (Some("miss"), 2)
    );
    let answer = gateway
        .post(
            "/v2/models/double/versions/1/infer",
            double_request(1, 1.0).to_string(),
        )
        .await;
    assert_eq!(
        (cache_of(&answer), data(&answer).round() as i64),
        (Some("hit"), 3)
    );
}

#[tokio::test]
async fn what_was_not_answered_is_not_kept_and_equal_requests_do_not_wait_for_each_other() {
    let (gateway, worker) = with_cached().await;
    let failing = gateway.begin_double(1, 1.0);
    worker
        .batch()
        .await
        .fail(FailureKind::ModuleThrew, "no")
        .await;
    failing.await.unwrap().error(500);
    let first = gateway.begin_double(1, 1.0);
    let batch = worker.batch().await;
    let second = gateway.begin_double(1, 1.0);
    // Both are computed: the first has not been answered when the second one comes.
    gateway.wait_for_queued(0).await;
    let other = worker.batch().await;
    for batch in [batch, other] {
        let outputs = double(&batch);
        batch.answer(outputs).await;
    }
    for computed in [first, second] {
        assert_eq!(cache_of(&computed.await.unwrap()), Some("miss"));
    }
    assert_eq!(cache_of(&gateway.double(1, 1.0).await), Some("hit"));
}

#[tokio::test]
async fn an_output_that_cannot_be_answered_is_not_kept() {
    let mut gateway = InferenceGateway::start().await;
    let mut spec = cached();
    spec.program.outputs = vec![tensor("y", Datatype::Bool, &[-1], None)];
    gateway.add_model(spec);
    let worker = gateway.add_worker("double:1", 0).await;
    // Neither true nor false.
    let batches = compute(&worker, |_| {
        let (_, bytes) = output(&[1], &[7_u8]);
        let (header, _) = output(&[1], &[true]);
        vec![(header, bytes)]
    });
    for _ in 0..2 {
        gateway.double(1, 1.0).await.error(500);
    }
    assert_eq!(batches.load(SeqCst), 2);
}

#[tokio::test]
async fn clients_do_not_learn_what_others_have_asked() {
    let (gateway, worker) = with_cached().await;
    let batches = compute(&worker, double);
    let ask = async |address: &str| {
        let request = gateway.client.post(gateway.url("/v2/models/double/infer"));
        let request = request
            .header(ADDRESS, address)
            .body(double_request(1, 1.0).to_string());
        Answer::read(request.send().await.unwrap()).await
    };
    for address in ["10.0.0.1:5", "10.0.0.2:5"] {
        assert_eq!(cache_of(&ask(address).await), Some("miss"));
        assert_eq!(cache_of(&ask(address).await), Some("hit"));
    }
    assert_eq!(batches.load(SeqCst), 2);
}

#[tokio::test]
async fn a_request_whose_time_is_over_is_refused_though_its_answer_is_kept() {
    let (gateway, worker) = with_cached().await;
    worker.answer_all(double);
    assert_eq!(gateway.double(1, 1.0).await.status, 200);
    let mut late = double_request(1, 1.0);
    late["parameters"] = json!({"timeout": 1});
    gateway
        .post("/v2/models/double/infer", late.to_string())
        .await
        .error(503);
}

#[tokio::test]
async fn classes_and_wanted_outputs_are_made_of_a_kept_answer_for_each_request() {
    let (gateway, worker) = with_cached().await;
    let batches = compute(&worker, |batch| {
        let rows = batch.input::<f32>(0).len().cast_signed() as i64 / 2;
        vec![output(&[rows, 2], &[0.25_f32, 0.75].repeat(rows as usize))]
    });
    assert_eq!(cache_of(&gateway.double(1, 1.0).await), Some("miss"));
    let mut request = double_request(1, 1.0);
    request["id"] = json!("mine");
    request["outputs"] = json!([{"name": "y", "parameters": {"classification": 1}}]);
    let answer = gateway
        .post("/v2/models/double/infer", request.to_string())
        .await;
    assert_eq!(cache_of(&answer), Some("hit"));
    let answer = answer.ok(200);
    assert_eq!(answer["id"], "mine");
    assert_eq!(answer["outputs"][0]["datatype"], "BYTES");
    assert!(
        answer["outputs"][0]["data"][0]
            .as_str()
            .unwrap()
            .starts_with("0.75"),
        "{answer}"
    );
    assert_eq!(batches.load(SeqCst), 1);
}

#[tokio::test]
async fn large_inputs_and_outputs_are_kept_too_and_those_beyond_the_limit_are_not() {
    let mut gateway = InferenceGateway::start().await;
    let mut spec = cached();
    let wide = |name| tensor(name, Datatype::Fp32, &[-1, -1], None);
    spec.program.inputs = vec![wide("x")];
    spec.program.outputs = vec![wide("y")];
    gateway.add_model(spec);
    let worker = gateway.add_worker("double:1", 0).await;
    let batches = compute(&worker, double);
    let ask = async |numbers: usize| {
        let head = json!({"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, numbers], "parameters": {"binary_data_size": 4 * numbers}}],
            "parameters": {"binary_data_output": true}});
        let head = head.to_string();
        let body = [head.as_bytes(), &1.5_f32.to_le_bytes().repeat(numbers)].concat();
        let request = gateway.client.post(gateway.url("/v2/models/double/infer"));
        let request = request
            .header("Inference-Header-Content-Length", head.len())
            .body(body);
        Answer::read(request.send().await.unwrap()).await
    };
    let first = ask(200_000).await;
    assert_eq!(cache_of(&first), Some("miss"));
    let again = ask(200_000).await;
    assert_eq!((cache_of(&again), &again.body), (Some("hit"), &first.body));
    // More than 1 MiB, the 64th part of the whole.
    for _ in 0..2 {
        assert_eq!(cache_of(&ask(300_000).await), Some("miss"));
    }
    assert_eq!(batches.load(SeqCst), 3);
}
