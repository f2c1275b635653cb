//! Requests that are refused for what they are.

use std::{io::Write, time::Duration};

use flate2::{Compression, write::GzEncoder};
use packhorse_gateway::{api::inference::InferenceLimits, driver::DataPlaneConfig};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::support::{
    answer::Answer,
    inference_gateway::{InferenceGateway, double_head, double_model, double_request},
    within,
    worker::double,
};

const INFER: &str = "/v2/models/double/infer";

async fn limited(body_bytes: u64) -> InferenceGateway {
    let limits = InferenceLimits {
        body_bytes,
        body_timeout: Duration::from_millis(200),
    };
    let mut gateway = InferenceGateway::start_with(DataPlaneConfig::default(), limits).await;
    gateway.add_model(double_model());
    gateway.add_worker("double:1", 0).await.answer_all(double);
    gateway
}

fn with_input(change: impl FnOnce(&mut Value)) -> String {
    let mut request = double_request(1, 1.0);
    change(&mut request["inputs"][0]);
    request.to_string()
}

#[tokio::test]
async fn what_the_signature_does_not_want_is_a_400_that_names_the_field() {
    let gateway = limited(1 << 20).await;
    let bad = [
        (with_input(|input| input["shape"] = json!([1, 3])), "\"x\""),
        (with_input(|input| input["shape"] = json!([2])), "\"x\""),
        (with_input(|input| input["shape"] = json!([0, 2])), "\"x\""),
        (with_input(|input| input["shape"] = json!([-1, 2])), "shape"),
        (
            with_input(|input| input["shape"] = json!([i64::MAX, i64::MAX])),
            "shape",
        ),
        (
            with_input(|input| {
                (input["datatype"], input["data"]) = (json!("INT32"), json!([1, 1]));
            }),
            "datatype INT32",
        ),
        (
            with_input(|input| input["datatype"] = json!("FP31")),
            "datatype",
        ),
        (with_input(|input| input["name"] = json!("z")), "\"z\""),
        (with_input(|input| input["data"] = json!([1.0])), "data"),
        (double_request(9, 1.0).to_string(), "9 rows"),
        (json!({"inputs": []}).to_string(), "\"x\": missing"),
        (json!({}).to_string(), "inputs"),
        (format!("{{\"inputs\": {}", "[".repeat(100_000)), "inputs"),
        (String::new(), "JSON"),
        (
            double_request(1, 1.0)
                .to_string()
                .replace("[1.0,1.0]", "[NaN,1.0]"),
            "inputs[0]",
        ),
    ];
    for (body, named) in bad {
        let error = gateway.post(INFER, body).await.error(400);
        assert!(error.contains(named), "{error} does not name {named}");
        assert!(error.len() < 500, "{error}");
    }
    let error = gateway
        .post(INFER, b"{\"inputs\": \"\xff\xfe\"}".to_vec())
        .await
        .error(400);
    assert!(
        error.to_lowercase().contains("utf-8") || error.contains("inputs"),
        "{error}"
    );
}

#[tokio::test]
async fn a_wrong_header_length_is_a_400() {
    let gateway = limited(1 << 20).await;
    for wrong in [
        "-1",
        "x",
        "1e3",
        "99999999999999999999",
        "100000",
        "5",
        "+3",
        " ",
    ] {
        let request = gateway
            .client
            .post(gateway.url(INFER))
            .body(double_request(1, 1.0).to_string());
        let response = request
            .header("Inference-Header-Content-Length", wrong)
            .send()
            .await
            .unwrap();
        Answer::read(response).await.error(400);
    }
    let body = double_request(1, 1.0).to_string();
    let twice = format!(
        "Inference-Header-Content-Length: {0}\r\nInference-Header-Content-Length: {0}\r\n",
        body.len()
    );
    let head = double_head(&format!("{twice}Content-Length: {}\r\n", body.len()));
    assert!(
        gateway
            .send_raw(format!("{head}{body}").as_bytes())
            .await
            .starts_with("HTTP/1.1 400 ")
    );
}

#[tokio::test]
async fn binary_data_must_be_as_long_as_announced() {
    let gateway = limited(1 << 20).await;
    for (announced, sent) in [(8, 7), (8, 9), (16, 16), (u64::MAX, 8)] {
        let input = json!({"name": "x", "datatype": "FP32", "shape": [1, 2], "parameters": {"binary_data_size": announced}});
        let head = json!({"inputs": [input]}).to_string();
        let body = [head.as_bytes(), &vec![0; sent]].concat();
        let request = gateway.client.post(gateway.url(INFER)).body(body);
        let response = request
            .header("Inference-Header-Content-Length", head.len())
            .send()
            .await
            .unwrap();
        Answer::read(response).await.error(400);
    }
}

#[tokio::test]
async fn a_body_over_the_limit_is_a_413_declared_or_not() {
    let gateway = limited(100_000).await;
    let declared = gateway.post(INFER, vec![b' '; 100_001]).await;
    assert!(declared.error(413).contains("100000 bytes"));
    let pieces = (0..20).map(|_| Ok::<_, std::io::Error>(vec![b' '; 10_000]));
    let chunked = gateway
        .post(
            INFER,
            reqwest::Body::wrap_stream(futures_util::stream::iter(pieces)),
        )
        .await;
    assert!(chunked.error(413).contains("100000 bytes"));
    // Even one that is much larger than what fits between the sockets.
    gateway.post(INFER, vec![b' '; 30 << 20]).await.error(413);
}

#[tokio::test]
async fn a_gzip_bomb_is_a_413_and_bad_gzip_a_400() {
    let gateway = limited(100_000).await;
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(&vec![b' '; 50 << 20]).unwrap();
    let bomb = encoder.finish().unwrap();
    assert!(bomb.len() < 100_000);
    let post = |encoding: &str, body: Vec<u8>| {
        let request = gateway
            .client
            .post(gateway.url(INFER))
            .header("Content-Encoding", encoding)
            .body(body);
        async { Answer::read(request.send().await.unwrap()).await }
    };
    post("gzip", bomb).await.error(413);
    post("gzip", b"no gzip".to_vec()).await.error(400);
    post("deflate", b"no zlib".to_vec()).await.error(400);
    assert!(post("br", vec![0; 10]).await.error(415).contains("\"br\""));
    post("gzip, gzip", vec![0; 50_000]).await.error(415);
}

#[tokio::test]
async fn all_bodies_together_have_a_budget() {
    let config = DataPlaneConfig {
        memory_budget_bytes: 1_000_000,
        ..DataPlaneConfig::default()
    };
    let mut gateway = InferenceGateway::start_with(config, InferenceLimits::default()).await;
    gateway.add_model(double_model());
    gateway.add_worker("double:1", 0).await.answer_all(double);
    let refused = gateway.post(INFER, vec![b' '; 200_000]).await;
    assert!(refused.error(503).contains("memory"));
    assert!(refused.headers.contains_key("retry-after"));
    // The model's metrics show it.
    let rejected =
        "nv_inference_request_failure{model=\"double\",version=\"1\",reason=\"REJECTED\"} 1\n";
    assert!(
        gateway.metrics().contains(rejected),
        "{}",
        gateway.metrics()
    );
    // The budget is returned.
    for _ in 0..5 {
        gateway.post(INFER, vec![b' '; 90_000]).await.error(400);
    }
}

#[tokio::test]
async fn a_slow_body_is_a_408() {
    let gateway = limited(1 << 20).await;
    let mut stream = gateway.connect().await;
    stream
        .write_all(double_head("Content-Length: 1000\r\n").as_bytes())
        .await
        .unwrap();
    stream.write_all(b"{").await.unwrap();
    let mut answer = String::new();
    within("the answer", stream.read_to_string(&mut answer))
        .await
        .unwrap();
    assert!(answer.starts_with("HTTP/1.1 408 "), "{answer}");
    assert!(
        answer.contains(r#"{"error":"the request body arrived too slowly: "#),
        "{answer}"
    );
}

#[tokio::test]
async fn tricks_with_names_and_versions_lead_nowhere() {
    let gateway = limited(1 << 20).await;
    let paths = [
        ("/v2/models/unknown", 404),
        ("/v2/models/double/versions/2", 404),
        ("/v2/models/double/versions/0", 400),
        ("/v2/models/double/versions/x", 400),
        ("/v2/models/double/versions/+1", 400),
        ("/v2/models/double/versions/99999999999", 400),
        ("/v2/models/..%2F..%2Fetc%2Fpasswd", 400),
        ("/v2/models/%2e%2e", 400),
        ("/v2/models/double%252Fx", 400),
        ("/v2/models/double%00", 400),
        ("/v2/models/%ff", 400),
        ("/v2/models/d%6Fuble%2Fready", 400),
        ("/v2/models/a/b", 404),
        ("/v2/models/", 404),
        ("/v2/models//ready", 400),
    ];
    for (path, status) in paths {
        let head = format!("GET {path} HTTP/1.1\r\nHost: g\r\nConnection: close\r\n\r\n");
        let answer = gateway.send_raw(head.as_bytes()).await;
        assert!(
            answer.starts_with(&format!("HTTP/1.1 {status} ")),
            "{path}: {answer}"
        );
        assert!(answer.contains("{\"error\":\""), "{path}: {answer}");
    }
    assert_eq!(
        gateway.get("/v2/models/d%6Fuble").await.json()["name"],
        "double"
    );
}

#[tokio::test]
async fn an_unknown_model_is_a_404_even_with_a_large_body() {
    let gateway = limited(100 << 20).await;
    let error = gateway
        .post("/v2/models/unknown/infer", vec![b' '; 20 << 20])
        .await
        .error(404);
    assert_eq!(error, "there is no model \"unknown\"");
}

#[tokio::test]
async fn other_paths_and_methods_get_the_same_kind_of_error() {
    let gateway = limited(1 << 20).await;
    for path in [
        "/",
        "/v1/nodes",
        "/metrics",
        "/v2/nothing",
        "/v2/models/double/nothing",
    ] {
        gateway.get(path).await.error(404);
    }
    gateway.get(INFER).await.error(405);
    gateway.post("/v2/models/double", "").await.error(405);
    let load = gateway.post("/v2/repository/models/double/load", "").await;
    assert!(load.error(405).contains("/v1/models"));
    gateway
        .post("/v2/repository/models/double/unload", "{}")
        .await
        .error(405);
    gateway.post("/v2/repository/index", "[").await.error(400);
    gateway
        .post("/v2/repository/index", vec![b' '; 10_000])
        .await
        .error(413);
}
