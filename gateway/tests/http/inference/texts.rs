//! Texts in place of tokens, and calls of many texts.

use std::{fs, path::Path};

use packhorse_cluster::{Datatype, ModelSpec, Padding, Processing};
use packhorse_gateway::{api::inference::InferenceLimits, driver::DataPlaneConfig};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::{
    answer::Answer,
    inference_gateway::{InferenceGateway, model, tensor},
    worker::{Batch, output},
};

/// A model whose embedding is the first and the last number of a row's tokens, and how many there are.
pub(super) fn ends_model(tokenizer: &str) -> ModelSpec {
    let padding = Padding {
        axis: 1,
        value: 0.0,
    };
    let input = tensor("ids", Datatype::Int64, &[-1, -1], Some(padding));
    let ends = tensor("ends", Datatype::Fp32, &[-1, 3], None);
    let mut spec = model("ends:1", 4, input, ends);
    let processing = json!({
        "preprocess": {"text": {"kind": "text", "tokenizer": tokenizer, "max_length": 24, "inputs": {"ids": "ids"}}},
        "postprocess": {"ends": {"normalize": false}},
    });
    spec.processing = serde_json::from_value::<Processing>(processing)
        .unwrap()
        .into();
    spec.validate().unwrap();
    spec
}

pub(super) fn ends(batch: &Batch) -> Vec<(packhorse_wire::TensorHeader, Vec<u8>)> {
    let ids = batch.input::<i64>(0);
    let shape = batch.header.inputs[0].shape().clone();
    let (rows, width) = (shape.dims()[0], shape.dims()[1]);
    let row = |row: &[i64]| {
        let tokens: Vec<i64> = row.iter().copied().filter(|id| *id != 0).collect();
        [
            tokens[0] as f32,
            *tokens.last().unwrap() as f32,
            tokens.len() as f32,
        ]
    };
    let numbers: Vec<f32> = ids.chunks_exact(width as usize).flat_map(row).collect();
    vec![output(&[rows.cast_signed(), 3], &numbers)]
}

/// A gateway with the file of a tokenizer.
async fn gateway() -> (InferenceGateway, TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let digits = "5".repeat(64);
    let texts = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates/preprocess/tests/texts");
    fs::copy(texts.join("wordpiece.json"), folder.path().join(&digits)).unwrap();
    let config = DataPlaneConfig {
        files: folder.path().to_owned(),
        ..DataPlaneConfig::default()
    };
    let mut gateway = InferenceGateway::start_with(config, InferenceLimits::default()).await;
    gateway.add_model(ends_model(&format!("sha256:{digits}")));
    let worker = gateway.add_worker("ends:1", 0).await;
    worker.answer_all(ends);
    (gateway, folder)
}

async fn post(gateway: &InferenceGateway, path: &str, body: &Value) -> Answer {
    gateway.post(path, body.to_string()).await
}

#[tokio::test]
async fn a_text_of_a_request_becomes_the_tokens_of_its_model() {
    let (gateway, _folder) = gateway().await;
    let infer = async |texts: Value| {
        let text = json!({"name": "text", "datatype": "BYTES", "shape": [texts.as_array().unwrap().len()], "data": texts});
        post(
            &gateway,
            "/v2/models/ends/infer",
            &json!({"inputs": [text]}),
        )
        .await
    };
    let answer = infer(json!(["the dog", ""])).await;
    // [CLS] is 2, [SEP] is 3.
    assert_eq!(
        answer.ok(200)["outputs"][0]["data"],
        json!([2.0, 3.0, 4.0, 2.0, 3.0, 2.0])
    );
    let long = infer(json!(["the", "dog ".repeat(40)])).await;
    assert_eq!(
        long.error(400),
        "input \"text\", text 1: it has 42 tokens, over the limit of 24 that the model declares (max_length)"
    );
    let many = infer(json!(["a", "b", "c", "d", "e"])).await;
    assert!(
        many.error(400)
            .contains("texts of shape [5]: expected 1 to 4"),
        "{}",
        many.text()
    );
    let both = json!({"inputs": [
        {"name": "text", "datatype": "BYTES", "shape": [1], "data": ["a"]},
        {"name": "ids", "datatype": "INT64", "shape": [1, 1], "data": [7]},
    ]});
    let both = post(&gateway, "/v2/models/ends/infer", &both).await;
    assert!(both.error(400).contains("ids"), "{}", both.text());
    let tokens =
        json!({"inputs": [{"name": "ids", "datatype": "INT64", "shape": [1, 2], "data": [7, 9]}]});
    let tokens = post(&gateway, "/v2/models/ends/infer", &tokens).await;
    assert_eq!(tokens.ok(200)["outputs"][0]["data"], json!([7.0, 9.0, 2.0]));
}

#[tokio::test]
async fn a_call_is_a_hit_if_the_cache_has_all_of_its_texts() {
    let (mut gateway, _folder) = gateway().await;
    let mut spec = ends_model(&format!("sha256:{}", "5".repeat(64)));
    spec.cache = true;
    gateway.add_model(spec);
    gateway.settled().await;
    let ask = async |path: &str, call: Value| {
        let answer = post(&gateway, path, &call).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        let cache = &answer.headers["x-packhorse-cache"];
        (cache.to_str().unwrap().to_owned(), answer.json())
    };
    let call = json!({"model": "ends", "input": ["the dog", "a cat"]});
    let (cache, first) = ask("/v1/embeddings", call.clone()).await;
    assert_eq!(cache, "miss");
    assert_eq!(ask("/v1/embeddings", call).await, ("hit".to_owned(), first));
    // The same batch of texts.
    let call = json!({"inputs": ["the dog", "a cat"]});
    assert_eq!(ask("/tei/ends/embed", call).await.0, "hit");
    let call = json!({"model": "ends", "input": ["the dog", "a bird"]});
    assert_eq!(ask("/v1/embeddings", call).await.0, "miss");
}

#[tokio::test]
async fn a_call_of_many_texts_is_answered_in_their_order() {
    let (gateway, _folder) = gateway().await;
    let texts: Vec<String> = (0..40).map(|i| "the ".repeat(1 + i * 7 % 20)).collect();
    let call = json!({"model": "ends", "input": texts});
    let answer = post(&gateway, "/v1/embeddings", &call).await.ok(200);
    let tokens: Vec<u64> = (0..40).map(|i| 3 + i * 7 % 20).collect();
    for (item, tokens) in answer["data"].as_array().unwrap().iter().zip(&tokens) {
        assert_eq!(item["embedding"], json!([2.0, 3.0, *tokens as f64]));
    }
    assert_eq!(answer["usage"]["prompt_tokens"], tokens.iter().sum::<u64>());
}

#[tokio::test]
async fn a_wrong_text_of_a_call_is_named_and_errors_have_the_form_of_the_api() {
    let (gateway, _folder) = gateway().await;
    let call = json!({"model": "ends", "input": ["a", "dog ".repeat(40)]});
    let answer = post(&gateway, "/v1/embeddings", &call).await;
    let message =
        "text 1: it has 42 tokens, over the limit of 24 that the model declares (max_length)";
    let error =
        json!({"message": message, "type": "invalid_request_error", "param": null, "code": null});
    assert_eq!(answer.ok(400)["error"], error);
    let cut = json!({"inputs": ["a", "dog ".repeat(40)], "truncate": true});
    let cut = post(&gateway, "/tei/ends/embed", &cut).await.ok(200);
    assert_eq!(cut[1], json!([2.0, 3.0, 24.0]));
    let refused = post(
        &gateway,
        "/tei/ends/embed",
        &json!({"inputs": ["dog ".repeat(40)]}),
    )
    .await;
    assert_eq!(refused.ok(400)["error_type"], "Validation");
    let missing = post(&gateway, "/tei/nothing/embed", &json!({"inputs": "a"})).await;
    assert_eq!(missing.ok(404)["error_type"], "Validation");
    let large = json!({"model": "ends", "input": "a".repeat(9 << 20)});
    let large = post(&gateway, "/v1/embeddings", &large).await.ok(413);
    assert_eq!(
        large["error"]["message"],
        "the request body is larger than the limit of 8388608 bytes"
    );
    for (body, expected) in [
        ("{}", "missing field `model`"),
        (
            "{\"model\": \"ends\", \"input\": 5}",
            "input: invalid type: integer `5`, expected a text or a list of texts",
        ),
        ("no json", "expected ident"),
    ] {
        let answer = gateway
            .post("/v1/embeddings", body.to_owned())
            .await
            .ok(400);
        let message = answer["error"]["message"].as_str().unwrap();
        assert!(message.contains(expected), "{message}");
    }
}

#[tokio::test]
async fn a_model_whose_tokenizer_is_gone_says_so_and_takes_tokens() {
    let (gateway, folder) = gateway().await;
    // The model has read its own; another one with a file of its own finds none.
    let mut other = ends_model(&format!("sha256:{}", "6".repeat(64)));
    other.program.model = "other:1".parse().unwrap();
    let mut gateway = gateway;
    gateway.add_model(other);
    let worker = gateway.add_worker("other:1", 1).await;
    worker.answer_all(ends);
    let call = post(
        &gateway,
        "/v1/embeddings",
        &json!({"model": "other", "input": "a"}),
    )
    .await;
    let message = call.ok(500)["error"]["message"].clone();
    assert!(
        message
            .as_str()
            .unwrap()
            .starts_with("the tokenizer's file cannot be read"),
        "{message}"
    );
    let tokens =
        json!({"inputs": [{"name": "ids", "datatype": "INT64", "shape": [1, 2], "data": [7, 9]}]});
    post(&gateway, "/v2/models/other/infer", &tokens)
        .await
        .ok(200);
    drop(folder);
}

#[tokio::test]
async fn what_the_form_of_an_answer_cannot_have_is_a_failure_of_the_model() {
    let (mut gateway, _folder) = gateway().await;
    let mut other = ends_model(&format!("sha256:{}", "5".repeat(64)));
    other.program.model = "nan:1".parse().unwrap();
    gateway.add_model(other);
    let worker = gateway.add_worker("nan:1", 1).await;
    worker.answer_all(|batch| {
        let rows = batch.header.inputs[0].shape().dims()[0];
        let numbers = vec![f32::NAN; 3 * rows as usize];
        vec![output(&[rows.cast_signed(), 3], &numbers)]
    });
    let call = post(
        &gateway,
        "/v1/embeddings",
        &json!({"model": "nan", "input": "a"}),
    )
    .await;
    let error = call.ok(500)["error"].clone();
    assert_eq!(error["type"], "server_error");
    assert!(
        error["message"].as_str().unwrap().contains("not finite"),
        "{error}"
    );
}

#[tokio::test]
async fn documents_are_limited_and_a_query_is_named() {
    let (gateway, _folder) = gateway().await;
    let rank = async |query: &str, documents: Value| {
        let call = json!({"model": "ends", "query": query, "documents": documents});
        let answer = post(&gateway, "/v2/rerank", &call).await;
        answer.ok(400)["error"]["message"]
            .as_str()
            .unwrap()
            .to_owned()
    };
    let many = rank("q", json!(vec!["a"; 2049])).await;
    assert!(
        many.contains("more documents than the limit of 2048"),
        "{many}"
    );
    let wrong = rank("q", json!([5])).await;
    assert!(wrong.starts_with("documents[0]: "), "{wrong}");
    let none = rank("q", json!(["a"])).await;
    assert!(none.contains("scores of classes"), "{none}");
}
