//! The answers of the servers: those of a model `x → y` whose output is one number.

use axum::{
    Json,
    http::{HeaderMap, header},
    response::{IntoResponse, Response},
};
use bytes::Bytes;
use serde_json::{Value, json};

/// The JSON part of an answer with a binary output.
const BINARY_HEAD: &str = r#"{"model_name":"sum","model_version":"1","outputs":[{"name":"y","datatype":"FP32","shape":[1,1],"parameters":{"binary_data_size":4}}]}"#;
/// An answer in JSON.
const JSON: &str = r#"{"model_name":"sum","model_version":"1","outputs":[{"name":"y","datatype":"FP32","shape":[1,1],"data":[0.0]}]}"#;
/// The header with the length of the JSON part.
const HEADER_LENGTH: &str = "inference-header-content-length";

/// Returns the model's signature.
pub(crate) async fn metadata() -> Json<Value> {
    Json(json!({
        "name": "sum", "versions": ["1"], "platform": "none",
        "inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, -1]}],
        "outputs": [{"name": "y", "datatype": "FP32", "shape": [-1, 1]}],
    }))
}

/// Returns the answer to a request with these headers, in its form.
pub(crate) fn answer(headers: &HeaderMap) -> Response {
    if !headers.contains_key(HEADER_LENGTH) {
        return ([(header::CONTENT_TYPE, "application/json")], JSON).into_response();
    }
    let body = Bytes::from([BINARY_HEAD.as_bytes(), &[0; 4]].concat());
    let headers = [
        (HEADER_LENGTH, BINARY_HEAD.len().to_string()),
        ("content-type", "application/octet-stream".to_owned()),
    ];
    (headers, body).into_response()
}
