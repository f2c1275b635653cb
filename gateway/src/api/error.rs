//! Errors of HTTP requests: a status and the body `{"error": ...}`.

use axum::{
    Json,
    extract::FromRequestParts,
    http::{HeaderValue, StatusCode, header, request::Parts},
    response::{IntoResponse, Response},
};
use packhorse_api::ErrorBody;
use serde::de::DeserializeOwned;

/// The message of an error inside the gateway.
pub(crate) const INTERNAL_ERROR: &str =
    "internal error of the gateway; the cause is in the gateway's log";

/// The error of an HTTP request. Its message is for the client: it names the field and the limit, and no internals.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiError {
    status: StatusCode,
    message: String,
}

impl ApiError {
    /// Creates an error with this status.
    pub fn new(status: StatusCode, message: impl Into<String>) -> Self {
        Self {
            status,
            message: message.into(),
        }
    }

    /// Creates the error of an invalid request.
    pub fn bad_request(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, message)
    }

    /// Creates the error of a path that names nothing.
    pub fn not_found(message: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, message)
    }

    /// Creates the error of a request that conflicts with the present state.
    pub fn conflict(message: impl Into<String>) -> Self {
        Self::new(StatusCode::CONFLICT, message)
    }

    /// Returns the error with the name of the field before its message.
    #[must_use]
    pub fn with_field(self, field: &str) -> Self {
        Self {
            message: format!("{field}: {}", self.message),
            ..self
        }
    }

    /// Returns true if the client's credential was refused.
    pub(crate) fn is_refusal(&self) -> bool {
        matches!(
            self.status,
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN
        )
    }

    /// Creates the error of an internal failure. The failure is logged here, and only here.
    pub fn internal(error: &(dyn std::error::Error + 'static)) -> Self {
        log(error);
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, INTERNAL_ERROR)
    }

    /// Creates the error of something that the gateway cannot do at present. The causes are logged here, and only here.
    pub fn unavailable(error: &(dyn std::error::Error + 'static)) -> Self {
        log(error);
        Self::new(StatusCode::SERVICE_UNAVAILABLE, error.to_string())
    }
}

/// Logs an error with its causes.
fn log(error: &(dyn std::error::Error + 'static)) {
    let causes: Vec<String> = std::iter::successors(Some(error), |e| e.source())
        .map(ToString::to_string)
        .collect();
    tracing::error!(
        error = causes.join(": "),
        "a request failed inside the gateway"
    );
}

/// The message of an answer with the status of a client's error, in its extensions.
#[derive(Clone, Debug)]
pub(crate) struct ClientErrorMessage(pub(crate) String);

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let is_clients = self.status.is_client_error();
        let message = is_clients.then(|| ClientErrorMessage(self.message.clone()));
        let body = Json(ErrorBody {
            error: self.message,
        });
        let mut response = (self.status, body).into_response();
        if let Some(message) = message {
            response.extensions_mut().insert(message);
        }
        if self.status == StatusCode::UNAUTHORIZED {
            response
                .headers_mut()
                .insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}

/// Runs a computation that may take milliseconds on a thread for blocking work, so that it delays no other connection.
///
/// # Errors
/// If the computation panicked.
pub(crate) async fn off_reactor<T: Send + 'static>(
    compute: impl FnOnce() -> T + Send + 'static,
) -> Result<T, ApiError> {
    tokio::task::spawn_blocking(compute)
        .await
        .map_err(|e| ApiError::internal(&e))
}

/// The parameters of a path.
#[derive(Clone, Copy, Debug)]
pub struct Path<T>(pub T);

impl<S: Send + Sync, T: DeserializeOwned + Send> FromRequestParts<S> for Path<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        axum::extract::Path::from_request_parts(parts, state)
            .await
            .map(|axum::extract::Path(value)| Self(value))
            .map_err(|e| ApiError::bad_request(e.body_text()))
    }
}

/// The parameters of a query.
#[derive(Clone, Copy, Debug)]
pub struct Query<T>(pub T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequestParts<S> for Query<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        axum::extract::Query::from_request_parts(parts, state)
            .await
            .map(|axum::extract::Query(value)| Self(value))
            .map_err(|e| ApiError::bad_request(e.body_text()))
    }
}

/// Parses a JSON object. An error names the field.
pub(crate) fn parse_json<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, ApiError> {
    // A struct could be read from an array, too, field by field.
    if matches!(bytes.trim_ascii_start().first(), Some(first) if *first != b'{') {
        return Err(ApiError::bad_request("the body: expected a JSON object"));
    }
    let mut reader = serde_json::Deserializer::from_slice(bytes);
    let value = serde_path_to_error::deserialize(&mut reader).map_err(|e| {
        let path = e.path().to_string();
        let problem = e.into_inner();
        ApiError::bad_request(match path.as_str() {
            "." | "?" => format!("invalid JSON: {problem}"),
            field => format!("{field}: {problem}"),
        })
    })?;
    reader
        .end()
        .map_err(|e| ApiError::bad_request(format!("invalid JSON: {e}")))?;
    Ok(value)
}

#[cfg(test)]
mod tests {
    use packhorse_api::{ModelChange, ModelRegistration};

    use super::*;

    fn message<T: DeserializeOwned + std::fmt::Debug>(json: &str) -> String {
        parse_json::<T>(json.as_bytes()).unwrap_err().message
    }

    #[test]
    fn errors_name_the_field() {
        assert!(message::<ModelChange>(r#"{"slo_ms":"fast"}"#).starts_with("slo_ms: "));
        assert!(message::<ModelChange>(r#"{"slo":1}"#).contains("`slo`"));
        assert!(message::<ModelChange>("{} {}").contains("trailing"));
        for other in ["[null, null]", "null", " 3", "\"{}\""] {
            let text = message::<ModelChange>(other);
            assert_eq!(text, "the body: expected a JSON object", "{other}");
        }
        assert!(message::<ModelChange>("").starts_with("invalid JSON"));
        assert!(message::<ModelChange>(r#"{"slo_ms":NaN}"#).starts_with("slo_ms: "));
        let registration = r#"{"name":"m","artifact":null,"max_batch_size":1,"slo_ms":1,"rate_rps":1,"outputs":[],
            "inputs":[{"name":"x","datatype":"FP99","shape":[-1]}]}"#;
        let text = message::<ModelRegistration>(registration);
        assert!(text.starts_with("inputs[0].datatype: "), "{text}");
    }

    #[test]
    fn nesting_bombs_are_refused() {
        let bomb = format!(r#"{{"slo_ms":{}"#, "[".repeat(1 << 20));
        let text = message::<ModelChange>(&bomb);
        assert!(text.len() < 200, "{text}");
    }
}
