//! Errors in the forms of other APIs.

use axum::{
    http::{HeaderValue, header},
    response::{IntoResponse as _, Response},
};
use serde::Serialize;

use crate::api::inference::error::InferenceError;

/// Returns an error with its status and headers, and this body as JSON.
pub(super) fn in_form(error: InferenceError, body: &impl Serialize) -> Response {
    let (mut parts, _) = error.into_response().into_parts();
    parts.headers.remove(header::CONTENT_LENGTH);
    let body = serde_json::to_vec(body).unwrap_or_default();
    let json = HeaderValue::from_static("application/json");
    parts.headers.insert(header::CONTENT_TYPE, json);
    Response::from_parts(parts, body.into())
}
