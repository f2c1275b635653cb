//! The contracts of `KServe` (version 1), `SageMaker` and Vertex AI.

use std::{fs, path::Path};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use half::f16;
use packhorse_cluster::{Datatype, ModelSpec};
use packhorse_gateway::{
    api::inference::{InferenceLimits, Platforms, VertexRoutes},
    driver::DataPlaneConfig,
};
use reqwest::Method;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::{
    pictures::{CMYK, PICTURE, means, means_model},
    texts::{ends, ends_model},
};
use crate::support::{
    agent::Agent,
    answer::Answer,
    gateway::Gateway,
    inference_gateway::{InferenceGateway, double_model, double_request, model, tensor},
    worker::{Batch, double, output},
};

const DOUBLE: &str = "/v1/models/double:predict";

fn platforms(given: &[&str]) -> Platforms {
    let given: Vec<_> = given.iter().map(|text| text.parse().unwrap()).collect();
    Platforms::new(&given, &VertexRoutes::default()).unwrap()
}

/// A model of several inputs and outputs: its large integers, whether they are even, and halves.
fn mixed_model() -> ModelSpec {
    let first = tensor("a", Datatype::Int64, &[-1, 2], None);
    let mut spec = model("mixed:1", 4, first.clone(), first.clone());
    spec.program
        .inputs
        .push(tensor("b", Datatype::Bool, &[-1], None));
    spec.program
        .inputs
        .push(tensor("c", Datatype::Fp16, &[-1], None));
    spec.program
        .inputs
        .push(tensor("d", Datatype::Fp64, &[-1], None));
    spec.program.outputs = spec.program.inputs.clone();
    spec.validate().unwrap();
    spec
}

/// Answers the inputs of `mixed`.
fn same(batch: &Batch) -> Vec<(packhorse_wire::TensorHeader, Vec<u8>)> {
    let rows = batch.header.inputs[1].shape().dims()[0].cast_signed();
    vec![
        output(&[rows, 2], &batch.input::<i64>(0)),
        output(&[rows], &batch.input::<bool>(1)),
        output(&[rows], &batch.input::<f16>(2)),
        output(&[rows], &batch.input::<f64>(3)),
    ]
}

/// A gateway of all platforms with models of tensors, pictures and texts.
async fn gateway() -> (InferenceGateway, TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let digits = "5".repeat(64);
    let texts = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates/preprocess/tests/texts");
    fs::copy(texts.join("wordpiece.json"), folder.path().join(&digits)).unwrap();
    let config = DataPlaneConfig {
        files: folder.path().to_owned(),
        ..DataPlaneConfig::default()
    };
    let all = platforms(&["kserve-v1", "sagemaker=double", "vertex=double:1"]);
    let limits = InferenceLimits::default();
    let mut gateway = InferenceGateway::for_platforms(config, limits, all).await;
    gateway.add_model(double_model());
    gateway.add_model(mixed_model());
    gateway.add_model(means_model());
    gateway.add_model(ends_model(&format!("sha256:{digits}")));
    gateway.add_worker("double:1", 0).await.answer_all(double);
    gateway.add_worker("mixed:1", 1).await.answer_all(same);
    gateway.add_worker("means:1", 2).await.answer_all(means);
    gateway.add_worker("ends:1", 3).await.answer_all(ends);
    (gateway, folder)
}

async fn predict(gateway: &InferenceGateway, model: &str, body: &Value) -> Answer {
    let path = format!("/v1/models/{model}:predict");
    gateway.post(&path, body.to_string()).await
}

async fn predictions(gateway: &InferenceGateway, model: &str, body: &Value) -> Value {
    let answer = predict(gateway, model, body).await.ok(200);
    let fields: Vec<_> = answer.as_object().unwrap().keys().collect();
    assert_eq!(fields, ["predictions"]);
    answer["predictions"].clone()
}

/// Sends a body of a type, with a further header.
async fn send(
    gateway: &InferenceGateway,
    path: &str,
    kind: &str,
    (name, value): (&str, &str),
    body: impl Into<reqwest::Body>,
) -> Answer {
    let request = gateway.client.post(gateway.url(path)).body(body);
    let request = request.header("content-type", kind).header(name, value);
    Answer::read(request.send().await.unwrap()).await
}

#[tokio::test]
async fn rows_are_answered_in_their_order_however_many_they_are() {
    let (gateway, _folder) = gateway().await;
    let row = |i: u32| json!([f64::from(i), 0.5]);
    let rows: Vec<Value> = (0..30).map(row).collect();
    let doubled: Vec<Value> = (0..30).map(|i| json!([f64::from(2 * i), 1.0])).collect();
    // The model takes eight rows at once.
    for body in [json!({"instances": rows}), json!({"inputs": {"x": rows}})] {
        assert_eq!(predictions(&gateway, "double", &body).await, json!(doubled));
    }
    let named = json!({"instances": [{"x": [1, 2]}]});
    assert_eq!(
        predictions(&gateway, "double", &named).await,
        json!([[2.0, 4.0]])
    );
}

#[tokio::test]
async fn every_datatype_comes_back_as_it_was() {
    let (gateway, _folder) = gateway().await;
    let row = json!({"a": [i64::MAX, i64::MIN + 1], "b": true, "c": 0.5, "d": 0.1});
    let other = json!({"a": [1, 2], "b": false, "c": -65504.0, "d": f64::MAX});
    let body = json!({"instances": [row, other]});
    assert_eq!(
        predictions(&gateway, "mixed", &body).await,
        json!([row, other])
    );
    let answer = predict(&gateway, "mixed", &body).await.text();
    assert!(
        answer.contains("[9223372036854775807,-9223372036854775807]"),
        "{answer}"
    );
    assert!(answer.contains(r#""d":0.1"#), "{answer}");
}

#[tokio::test]
async fn pictures_and_texts_are_answered_as_the_model_declares() {
    let (gateway, _folder) = gateway().await;
    let picture = json!({"b64": BASE64_STANDARD.encode(PICTURE)});
    let best = json!([{"index": 1, "label": "green", "score": 200.0}, {"index": 2, "label": "blue", "score": 77.0}]);
    // The model takes four at once.
    let five = json!({"instances": [picture, picture, {"x": picture}, picture, picture]});
    assert_eq!(
        predictions(&gateway, "means", &five).await,
        json!([best, best, best, best, best])
    );
    let pixels = [1.0, 2.0, 3.0].map(|value| [[value; 4]; 4]);
    let pixels = json!({"instances": [pixels]});
    assert_eq!(
        predictions(&gateway, "means", &pixels).await,
        json!([[1.0, 2.0, 3.0]])
    );
    let cmyk = json!({"instances": [picture, {"b64": BASE64_STANDARD.encode(CMYK)}]});
    let refused = predict(&gateway, "means", &cmyk).await.error(400);
    assert!(refused.starts_with("input \"x\", picture 1: "), "{refused}");
    let texts = json!({"instances": ["the dog", "", "the", "a", {"text": "the dog"}]});
    let embeddings = predictions(&gateway, "ends", &texts).await;
    assert_eq!(embeddings[0], json!([2.0, 3.0, 4.0]));
    assert_eq!(embeddings[1], json!([2.0, 3.0, 2.0]));
    assert_eq!(embeddings[4], embeddings[0]);
    let tokens = json!({"instances": [[7, 9]]});
    assert_eq!(
        predictions(&gateway, "ends", &tokens).await,
        json!([[7.0, 9.0, 2.0]])
    );
    let long = json!({"instances": ["the", "dog ".repeat(40)]});
    assert_eq!(
        predict(&gateway, "ends", &long).await.error(400),
        "text 1: it has 42 tokens, over the limit of 24 that the model declares (max_length)"
    );
    let many = json!({"instances": vec!["a"; 2049]});
    assert_eq!(
        predict(&gateway, "ends", &many).await.error(400),
        "more texts than the limit of 2048"
    );
}

#[tokio::test]
async fn a_wrong_call_is_refused_by_name() {
    let (gateway, _folder) = gateway().await;
    for (body, status, named) in [
        ("no json", 400, "invalid JSON"),
        (
            r#"{"instances": [[1, 2], [3]]}"#,
            400,
            "instances[1]: a list of length 1",
        ),
        (
            r#"{"instances": [[1, 2, 3]]}"#,
            400,
            r#"input "x": shape [1,3]"#,
        ),
        (
            r#"{"instances": [["a", 2]]}"#,
            400,
            "instances[0]: expected a number for FP32",
        ),
        (r#"{"instances": [[NaN, 2]]}"#, 400, "found NaN"),
        (r#"{"instances": [{}]}"#, 400, "without inputs"),
        (
            r#"{"instances": [{"z": [1, 2]}]}"#,
            400,
            r#"no input "z", only x"#,
        ),
        (r#"{"instances": [{"b64": "!"}]}"#, 400, "expected lists"),
        (
            r#"{"instances": [[1, 2]], "parameters": {"timeout": -1}}"#,
            400,
            "parameters.timeout",
        ),
    ] {
        let error = gateway.post(DOUBLE, body).await.error(status);
        assert!(error.contains(named), "{error} does not name {named}");
        assert!(error.len() < 500, "{error}");
    }
    let error = predict(&gateway, "mixed", &json!({"instances": [{"a": [1, 2]}]})).await;
    assert_eq!(error.error(400), "input \"b\": missing");
    let wrong = json!({"instances": [{"b64": "!"}]});
    let error = predict(&gateway, "means", &wrong).await.error(400);
    assert!(error.starts_with("instances[0]: b64: "), "{error}");
    let deep = format!(r#"{{"instances": {}"#, "[".repeat(100_000));
    gateway.post(DOUBLE, deep).await.error(400);
    let many = format!(r#"{{"instances": [{}[0,0]]}}"#, "[0,0],".repeat(65_536));
    assert_eq!(
        gateway.post(DOUBLE, many).await.error(400),
        "instances: more rows than the limit of 65536"
    );
    predict(&gateway, "nothing", &json!({})).await.error(404);
    gateway.post("/v1/models/double", "{}").await.error(404);
    gateway
        .post("/v1/models/double:explain", "{}")
        .await
        .error(404);
}

#[tokio::test]
async fn ten_megabytes_of_numbers_are_read_and_answered() {
    let (gateway, _folder) = gateway().await;
    let row = format!("[{:>290},1.5],", "0.12345678901234567890");
    let count = 10_000_000 / row.len() + 1;
    let rows = format!(r#"{{"instances": [{}[2,3]]}}"#, row.repeat(count));
    assert!(rows.len() > 10_000_000);
    let answer = gateway.post(DOUBLE, rows).await.ok(200);
    let answered = answer["predictions"].as_array().unwrap();
    assert_eq!(answered.len(), count + 1);
    assert_eq!(answered[count], json!([4.0, 6.0]));
    let large = gateway.post(DOUBLE, vec![b' '; (64 << 20) + 1]).await;
    assert!(large.error(413).contains("67108864 bytes"));
}

#[tokio::test]
async fn a_call_has_its_own_timeout() {
    let (mut gateway, _folder) = gateway().await;
    let mut spec = double_model();
    spec.program.model = "slow:1".parse().unwrap();
    gateway.add_model(spec);
    let worker = gateway.add_worker("slow:1", 9).await;
    let body = json!({"instances": [[1, 2]], "parameters": {"timeout": 1}});
    let late = predict(&gateway, "slow", &body).await;
    assert!([503, 504].contains(&late.status), "{}", late.text());
    drop(worker);
}

#[tokio::test]
async fn what_json_cannot_say_is_a_failure_unless_it_is_wanted_as_null() {
    let (mut gateway, _folder) = gateway().await;
    let mut spec = double_model();
    spec.program.model = "nan:1".parse().unwrap();
    gateway.add_model(spec);
    gateway.add_worker("nan:1", 9).await.answer_all(|batch| {
        let rows = batch.header.inputs[0].shape().dims()[0].cast_signed();
        vec![output(&[rows, 2], &vec![f32::NAN; 2 * rows as usize])]
    });
    let mut body = json!({"instances": [[1, 2]]});
    let failed = predict(&gateway, "nan", &body).await.error(500);
    assert!(failed.contains("element 0 is NaN"), "{failed}");
    body["parameters"] = json!({"non_finite_as_null": true});
    assert_eq!(
        predictions(&gateway, "nan", &body).await,
        json!([[null, null]])
    );
}

#[tokio::test]
async fn the_list_of_models_is_that_of_openai_and_of_kserve() {
    let (gateway, _folder) = gateway().await;
    let list = gateway.get("/v1/models").await.ok(200);
    assert_eq!(list["object"], "list");
    assert_eq!(list["models"], json!(["double", "ends", "means", "mixed"]));
    let one = gateway.get("/v1/models/double").await.ok(200);
    assert_eq!(
        one,
        json!({"id": "double", "object": "model", "created": 0, "owned_by": "packhorse", "name": "double", "ready": true})
    );
}

#[tokio::test]
async fn sagemaker_asks_whether_the_model_is_ready_and_sends_any_body() {
    const PATH: &str = "/invocations";
    let none = ("x-none", "");
    let (mut gateway, _folder) = gateway().await;
    assert_eq!(gateway.get("/ping").await.status, 200);
    let rows = send(
        &gateway,
        PATH,
        "application/json",
        none,
        r#"{"instances": [[1, 2]]}"#,
    )
    .await;
    assert_eq!(rows.ok(200), json!({"predictions": [[2.0, 4.0]]}));
    let oip = double_request(1, 3.0).to_string();
    let answer = send(&gateway, PATH, "application/json", none, oip.clone()).await;
    assert_eq!(answer.ok(200)["outputs"][0]["data"], json!([6.0, 6.0]));
    let input = json!({"name": "x", "datatype": "FP32", "shape": [1, 2], "parameters": {"binary_data_size": 8}});
    let head = json!({"inputs": [input], "parameters": {"binary_data_output": true}}).to_string();
    let kind = "application/vnd.sagemaker-triton.binary+json;json-header-size=";
    let body = [head.as_bytes(), &[0; 8]].concat();
    let answer = send(&gateway, PATH, &format!("{kind}{}", head.len()), none, body).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    let answered = answer.headers["content-type"].to_str().unwrap();
    let length: usize = answered.strip_prefix(kind).unwrap().parse().unwrap();
    assert_eq!(answer.body[length..], [0; 8]);
    let target = |model| ("X-Amzn-SageMaker-Target-Model", model);
    let picture = send(&gateway, PATH, "image/png", target("means"), PICTURE).await;
    assert_eq!(picture.ok(200)["predictions"][0][0]["label"], "green");
    let text = send(
        &gateway,
        PATH,
        "text/plain; charset=utf-8",
        target("ends:1"),
        "the dog",
    )
    .await;
    assert_eq!(text.ok(200)["predictions"], json!([[2.0, 3.0, 4.0]]));
    for (model, kind, status, named) in [
        ("gone", "application/json", 404, "gone"),
        ("means:7", "application/json", 404, "7"),
        ("means:", "application/json", 400, "version"),
        ("", "application/json", 400, "X-Amzn-SageMaker-Target-Model"),
        ("double", "image/png", 400, "the body is a picture"),
        ("double", "text/plain", 400, "the body is a text"),
    ] {
        let error = send(&gateway, PATH, kind, target(model), oip.clone()).await;
        let error = error.error(status);
        assert!(error.contains(named), "{error}");
    }
    let packed = [0x1f, 0x8b, 8, 0];
    let broken = send(
        &gateway,
        PATH,
        "application/json",
        ("content-encoding", "gzip"),
        packed.to_vec(),
    );
    broken.await.error(400);
    gateway.drain(0);
    gateway.settled().await;
    assert!(gateway.get("/ping").await.error(503).contains("\"double\""));
}

#[tokio::test]
async fn vertex_asks_on_the_paths_that_it_was_told() {
    let (gateway, _folder) = gateway().await;
    assert_eq!(gateway.get("/health").await.status, 200);
    let body = json!({"instances": [[1, 2]], "parameters": {"priority": 1}}).to_string();
    let answer = gateway.post("/predict", body.clone()).await;
    assert_eq!(answer.ok(200), json!({"predictions": [[2.0, 4.0]]}));
    gateway.get("/predict").await.error(405);
    // Its paths may be those of others, which it then has.
    let routes = VertexRoutes {
        health: "/v2/health/live".to_owned(),
        predict: "/v1/endpoints/7/deployedModels/8:predict".to_owned(),
    };
    let predict = routes.predict.clone();
    let platforms = Platforms::new(&["vertex=nothing".parse().unwrap()], &routes).unwrap();
    let limits = InferenceLimits::default();
    let gateway =
        InferenceGateway::for_platforms(DataPlaneConfig::default(), limits, platforms).await;
    gateway.get("/v2/health/live").await.error(503);
    assert_eq!(gateway.get("/v2").await.ok(200)["name"], "packhorse");
    gateway.post(&predict, body).await.error(404);
    gateway.get("/nowhere").await.error(404);
}

#[tokio::test]
async fn without_its_flag_a_platform_has_no_paths() {
    let gateway = InferenceGateway::with_computing_double().await;
    for path in ["/ping", "/health"] {
        gateway.get(path).await.error(404);
    }
    for path in ["/invocations", "/predict"] {
        gateway.post(path, "{}").await.error(404);
    }
    gateway.post(DOUBLE, "{}").await.error(405);
    let list = gateway.get("/v1/models").await.ok(200);
    assert_eq!(list.get("models"), None);
    let one = gateway.get("/v1/models/double").await.ok(200);
    assert_eq!(one.get("ready"), None);
}

#[tokio::test]
async fn a_key_may_use_the_models_of_its_scopes_and_health_needs_none() {
    let flags = [
        "--inference-keys=required",
        "--platform=kserve-v1,sagemaker=m,vertex=m",
    ];
    let gateway = Gateway::with_flags(&flags).await;
    let mut agent = Agent::new("n");
    agent.computes = Some(double);
    gateway.register("m").await;
    agent.work_until_ready(&gateway, "m").await;
    let key = async |scopes: Value| {
        let key = json!({"name": "of a test", "scopes": scopes});
        let key = gateway.post("/v1/keys", &key).await.ok(201);
        key["key"].as_str().unwrap().to_owned()
    };
    let (own, other) = (key(json!(["infer:m"])).await, key(json!(["infer:x"])).await);
    let address = gateway.app.inference_address();
    let body = json!({"instances": [[1, 2, 3, 4]]}).to_string();
    for path in ["/v1/models/m:predict", "/invocations", "/predict"] {
        let post = async |key: Option<&str>| {
            let body = body.clone().into_bytes();
            gateway.send(address, Method::POST, path, key, body).await
        };
        let answer = post(Some(&own)).await.ok(200);
        assert_eq!(
            answer["predictions"],
            json!([[2.0, 4.0, 6.0, 8.0]]),
            "{path}"
        );
        assert!(
            post(Some(&other)).await.error(403).contains("\"m\""),
            "{path}"
        );
        post(Some("wrong")).await.error(401);
        post(None).await.error(401);
    }
    for path in ["/ping", "/health"] {
        let answer = gateway.send(address, Method::GET, path, None, Vec::new());
        assert_eq!(answer.await.status, 200, "{path}");
    }
    let count = async |outcome: &str| {
        let path = format!("/v1/requests?outcome={outcome}");
        let requests = gateway.get(&path).await.ok(200);
        requests.as_array().unwrap().len()
    };
    // Of each path one request was answered, and three were of a wrong key, of another model's, or of none.
    assert_eq!((count("answered").await, count("rejected").await), (3, 9));
}

#[tokio::test]
async fn a_call_of_rows_is_a_hit_if_all_its_portions_are() {
    let limits = InferenceLimits::default();
    let all = platforms(&["kserve-v1"]);
    let mut gateway =
        InferenceGateway::for_platforms(DataPlaneConfig::default(), limits, all).await;
    let mut spec = double_model();
    spec.cache = true;
    let limit = spec.program.max_batch_size;
    gateway.add_model(spec);
    gateway.add_worker("double:1", 0).await.answer_all(double);
    let rows = |count: u32| -> Vec<[u32; 2]> { (0..count).map(|row| [row; 2]).collect() };
    let mut told = Vec::new();
    // The last portion of the third call is another one.
    for count in [2 * limit, 2 * limit, 2 * limit + 1] {
        let answer = predict(&gateway, "double", &json!({"instances": rows(count)})).await;
        told.push(answer.headers["x-packhorse-cache"].clone());
        answer.ok(200);
    }
    assert_eq!(told, ["miss", "hit", "miss"]);
}
