//! Requests that are answered.

use std::io::{Read, Write};

use flate2::{
    Compression,
    read::GzDecoder,
    write::{GzEncoder, ZlibEncoder},
};
use packhorse_cluster::Datatype;
use serde_json::json;

use crate::support::{
    answer::Answer,
    inference_gateway::{InferenceGateway, double_head, double_request, model, numbers, tensor},
    worker::{double, output},
};

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes
        .chunks_exact(4)
        .map(|chunk| f32::from_le_bytes(chunk.try_into().unwrap()))
        .collect()
}

fn bytes(values: &[f32]) -> Vec<u8> {
    values
        .iter()
        .flat_map(|value| value.to_le_bytes())
        .collect()
}

#[tokio::test]
async fn json_is_answered_in_json() {
    let gateway = InferenceGateway::with_computing_double().await;
    let mut request = double_request(2, 1.5);
    request["id"] = json!("r-1");
    let answer = gateway
        .post("/v2/models/double/versions/1/infer", request.to_string())
        .await;
    assert_eq!(answer.status, 200);
    assert_eq!(answer.headers["content-type"], "application/json");
    assert!(
        !answer
            .headers
            .contains_key("inference-header-content-length")
    );
    let expected = json!({
        "model_name": "double", "model_version": "1", "id": "r-1",
        "outputs": [{"name": "y", "datatype": "FP32", "shape": [2, 2], "data": [3.0, 3.0, 3.0, 3.0]}],
    });
    assert_eq!(answer.json(), expected);
}

#[tokio::test]
async fn binary_tensors_go_both_ways() {
    let gateway = InferenceGateway::with_computing_double().await;
    let head = json!({
        "parameters": {"binary_data_output": true},
        "inputs": [{"name": "x", "datatype": "FP32", "shape": [2, 2], "parameters": {"binary_data_size": 16}}],
    })
    .to_string();
    let body = [head.as_bytes(), &bytes(&[1.0, 2.0, 3.0, 4.0])].concat();
    let request = gateway
        .client
        .post(gateway.url("/v2/models/double/infer"))
        .body(body);
    let response = request
        .header("Inference-Header-Content-Length", head.len())
        .send()
        .await
        .unwrap();
    let answer = Answer::read(response).await;
    assert_eq!(answer.status, 200);
    assert_eq!(answer.headers["content-type"], "application/octet-stream");
    let length: usize = answer.headers["inference-header-content-length"]
        .to_str()
        .unwrap()
        .parse()
        .unwrap();
    assert_eq!(
        answer.headers["content-length"].to_str().unwrap(),
        (length + 16).to_string()
    );
    let head: serde_json::Value = serde_json::from_slice(&answer.body[..length]).unwrap();
    assert_eq!(head["outputs"][0]["parameters"]["binary_data_size"], 16);
    assert_eq!(floats(&answer.body[length..]), [2.0, 4.0, 6.0, 8.0]);
}

#[tokio::test]
async fn a_raw_tensor_needs_no_json() {
    let gateway = InferenceGateway::with_computing_double().await;
    let request = gateway
        .client
        .post(gateway.url("/v2/models/double/infer"))
        .body(bytes(&[1.0, 2.0]));
    let response = request
        .header("Inference-Header-Content-Length", 0)
        .send()
        .await
        .unwrap();
    let answer = Answer::read(response).await;
    assert_eq!(answer.status, 200);
    assert_eq!(floats(&answer.body[answer.body.len() - 8..]), [2.0, 4.0]);
}

#[tokio::test]
async fn a_large_tensor_arrives_unharmed() {
    let mut gateway = InferenceGateway::start().await;
    let spec = |name| tensor(name, Datatype::Fp32, &[-1, -1], None);
    gateway.add_model(model("large:1", 8, spec("x"), spec("y")));
    gateway.add_worker("large:1", 0).await.answer_all(double);
    let values: Vec<f32> = (0..1_000_000_u32).map(|i| i as f32).collect();
    let head = json!({
        "parameters": {"binary_data_output": true},
        "inputs": [{"name": "x", "datatype": "FP32", "shape": [2, 500_000], "parameters": {"binary_data_size": 4_000_000}}],
    })
    .to_string();
    let body = [head.as_bytes(), &bytes(&values)].concat();
    // Twice, so that the second answer finds the buffer of the first.
    for _ in 0..2 {
        let request = gateway
            .client
            .post(gateway.url("/v2/models/large/infer"))
            .body(body.clone());
        let response = request
            .header("Inference-Header-Content-Length", head.len())
            .send()
            .await
            .unwrap();
        let answer = Answer::read(response).await;
        assert_eq!(answer.status, 200);
        let doubled = floats(&answer.body[answer.body.len() - 4_000_000..]);
        let expected: Vec<f32> = values.iter().map(|x| 2.0 * x).collect();
        assert!(doubled == expected);
    }
}

#[tokio::test]
async fn large_json_is_answered_too() {
    let mut gateway = InferenceGateway::start().await;
    let spec = |name| tensor(name, Datatype::Fp32, &[-1, -1], None);
    gateway.add_model(model("large:1", 8, spec("x"), spec("y")));
    gateway.add_worker("large:1", 0).await.answer_all(double);
    let request = json!({"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 600_000], "data": vec![0.5; 600_000]}]});
    let answer = gateway
        .post("/v2/models/large/infer", request.to_string())
        .await;
    let doubled = numbers(&answer);
    assert!(doubled == vec![1.0; 600_000]);
}

#[tokio::test]
async fn a_model_without_a_batch_dimension_takes_one_request_at_a_time() {
    let mut gateway = InferenceGateway::start().await;
    gateway.add_model(model(
        "single:1",
        0,
        tensor("x", Datatype::Fp32, &[3], None),
        tensor("y", Datatype::Fp32, &[-1], None),
    ));
    let worker = gateway.add_worker("single:1", 0).await;
    let request =
        json!({"inputs": [{"name": "x", "datatype": "FP32", "shape": [3], "data": [1, 2, 3]}]});
    let (first, second) = (
        gateway.begin("/v2/models/single/infer", &request),
        gateway.begin("/v2/models/single/infer", &request),
    );
    for _ in 0..2 {
        let batch = worker.batch().await;
        assert_eq!(batch.header.rows, 1);
        assert_eq!(batch.header.inputs[0].shape().dims(), [3]);
        batch.answer(vec![output(&[2], &[6.0_f32, 7.0])]).await;
    }
    assert_eq!(numbers(&first.await.unwrap()), [6.0, 7.0]);
    assert_eq!(numbers(&second.await.unwrap()), [6.0, 7.0]);
}

#[tokio::test]
async fn a_body_may_come_deflated() {
    let gateway = InferenceGateway::with_computing_double().await;
    let request = double_request(1, 4.0).to_string();
    let mut gzip = GzEncoder::new(Vec::new(), Compression::fast());
    gzip.write_all(request.as_bytes()).unwrap();
    let mut zlib = ZlibEncoder::new(Vec::new(), Compression::fast());
    zlib.write_all(request.as_bytes()).unwrap();
    for (encoding, body) in [
        ("gzip", gzip.finish().unwrap()),
        ("deflate", zlib.finish().unwrap()),
    ] {
        let request = gateway
            .client
            .post(gateway.url("/v2/models/double/infer"))
            .body(body);
        // The length is that of the inflated JSON.
        let request = request.header("Content-Encoding", encoding).header(
            "Inference-Header-Content-Length",
            double_request(1, 4.0).to_string().len(),
        );
        let answer = Answer::read(request.send().await.unwrap()).await;
        assert_eq!(numbers(&answer), [8.0, 8.0]);
    }
}

#[tokio::test]
async fn only_answers_of_models_are_compressed_and_only_when_asked() {
    let gateway = InferenceGateway::with_computing_double().await;
    let request = gateway
        .client
        .post(gateway.url("/v2/models/double/infer"))
        .body(double_request(8, 1.0).to_string());
    let answer = Answer::read(
        request
            .header("Accept-Encoding", "gzip")
            .send()
            .await
            .unwrap(),
    )
    .await;
    assert_eq!(answer.headers["content-encoding"], "gzip");
    let mut json = String::new();
    GzDecoder::new(&answer.body[..])
        .read_to_string(&mut json)
        .unwrap();
    assert!(json.contains("double"));
    let plain = gateway.double(8, 1.0).await;
    assert!(!plain.headers.contains_key("content-encoding"));
    let metadata = gateway
        .client
        .get(gateway.url("/v2/models/double"))
        .header("Accept-Encoding", "gzip");
    let metadata = Answer::read(metadata.send().await.unwrap()).await;
    assert!(!metadata.headers.contains_key("content-encoding"));
    assert_eq!(metadata.json()["name"], "double");
}

#[tokio::test]
async fn a_client_that_asks_first_is_told_to_go_on() {
    let gateway = InferenceGateway::with_computing_double().await;
    let body = double_request(1, 1.0).to_string();
    let head = double_head(&format!(
        "Expect: 100-continue\r\nContent-Length: {}\r\n",
        body.len()
    ));
    let answer = gateway.send_raw(format!("{head}{body}").as_bytes()).await;
    assert!(
        answer.starts_with("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\n"),
        "{answer}"
    );
    // One that would send too much is told so instead.
    let head = double_head("Expect: 100-continue\r\nContent-Length: 9999999999\r\n");
    assert!(
        gateway
            .send_raw(head.as_bytes())
            .await
            .starts_with("HTTP/1.1 413 ")
    );
}
