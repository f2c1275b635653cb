//! An HTTP server that reads bodies and answers.

use axum::{
    Router,
    extract::DefaultBodyLimit,
    http::{HeaderMap, StatusCode},
    response::{IntoResponse, Response},
    routing::{get, post},
};
use bytes::Bytes;
use serde::Deserialize;

use crate::{
    BODY_LIMIT,
    answer::{answer, metadata},
};

/// A request in JSON, as far as it is parsed.
#[derive(Deserialize)]
struct Request {
    inputs: Vec<Input>,
}

#[derive(Deserialize)]
struct Input {
    data: Vec<f32>,
}

/// Returns the routes.
pub(crate) fn routes(parse_json: bool) -> Router {
    let infer = if parse_json { post(parse) } else { post(read) };
    Router::new()
        .route("/v2/models/{model}", get(metadata))
        .route("/v2/models/{model}/infer", infer)
        .layer(DefaultBodyLimit::max(BODY_LIMIT))
}

async fn read(headers: HeaderMap, body: Bytes) -> Response {
    drop(body);
    answer(&headers)
}

async fn parse(headers: HeaderMap, body: Bytes) -> Response {
    match serde_json::from_slice::<Request>(&body) {
        // The numbers are used, so that they are parsed.
        Ok(request) if request.inputs.iter().any(|input| input.data.is_empty()) => {
            StatusCode::BAD_REQUEST.into_response()
        }
        Ok(_) => answer(&headers),
        Err(error) => (StatusCode::BAD_REQUEST, error.to_string()).into_response(),
    }
}
