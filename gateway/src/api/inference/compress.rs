//! The compression of answers.

use std::{convert::Infallible, future::ready};

use axum::{
    body::Body,
    extract::Request,
    http::{HeaderMap, header::ACCEPT_ENCODING},
    response::Response,
};
use tower::{Layer as _, ServiceExt as _, service_fn};
use tower_http::{CompressionLevel, compression::CompressionLayer};

/// Compresses an answer if its client accepts that. With a layer of the router every request would pass through its future, and few clients ask for
/// compression.
pub(super) async fn compress(headers: &HeaderMap, answer: Response) -> Response {
    if !headers.contains_key(ACCEPT_ENCODING) {
        return answer;
    }
    let mut request = Request::new(Body::empty());
    for encodings in headers.get_all(ACCEPT_ENCODING) {
        let headers = request.headers_mut();
        headers.append(ACCEPT_ENCODING, encodings.clone());
    }
    let mut answer = Some(answer);
    let answer = service_fn(move |_| {
        let answer = answer.take().expect("a service that is called once");
        ready(Ok::<_, Infallible>(answer))
    });
    let layer = CompressionLayer::new().quality(CompressionLevel::Fastest);
    let compressed = layer.layer(answer).oneshot(request).await;
    let compressed = compressed.unwrap_or_else(|never| match never {});
    compressed.map(Body::new)
}
