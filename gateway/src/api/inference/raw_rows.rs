//! The common part of inputs of pictures and of texts: one of them for each row, and their errors.

use axum::http::StatusCode;
use packhorse_cluster::Program;
use packhorse_protocol::Tensor;

use super::error::InferenceError;

/// Checks that an input has one picture or text for each row, of which there are as many as the model takes.
pub(super) fn check_rows(
    input: &Tensor,
    program: &Program,
    what: &str,
) -> Result<u64, InferenceError> {
    let (count, limit) = (input.shape().elements(), program.rows_limit());
    if matches!(input.shape().dims(), [_] | [_, 1]) && (1..=u64::from(limit)).contains(&count) {
        return Ok(count);
    }
    let (name, shape) = (input.name(), input.shape());
    Err(InferenceError::bad_request(format!(
        "input {name:?}: {what}s of shape {shape}: expected 1 to {limit} in one dimension"
    )))
}

/// Returns the error of a request whose deadline passed before one of its pictures or texts was looked at.
pub(super) fn too_late(what: &str, index: usize) -> InferenceError {
    let message = format!("the deadline passed before {what} {index} was read");
    InferenceError::new(StatusCode::GATEWAY_TIMEOUT, message)
}

/// Returns the error of an input that is wrong.
pub(super) fn bad(name: &str, error: &dyn std::fmt::Display) -> InferenceError {
    InferenceError::bad_request(format!("input {name:?}: {error}"))
}
