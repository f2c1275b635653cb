//! What a request gets that cannot be answered: a status and `{"error": ...}`, for every kind of failure.

use axum::{
    Json,
    extract::{FromRequest, FromRequestParts, Request},
    http::{HeaderValue, StatusCode, header, request::Parts},
    response::{IntoResponse, Response},
};
use bytes::Bytes;
use packhorse_api::ErrorBody;
use serde::de::DeserializeOwned;

/// An answer that is no success. Its message is for the client: it names field and limit, and nothing of the inside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiError {
    status: StatusCode,
    message: String,
}

impl ApiError {
    /// An error with its status.
    pub fn new(status: StatusCode, message: impl Into<String>) -> Self {
        Self {
            status,
            message: message.into(),
        }
    }

    /// The client sent what cannot be understood or is not allowed.
    pub fn bad_request(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, message)
    }

    /// What the path names does not exist.
    pub fn not_found(message: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, message)
    }

    /// What is asked does not go together with what is there.
    pub fn conflict(message: impl Into<String>) -> Self {
        Self::new(StatusCode::CONFLICT, message)
    }

    /// The same error, said of a field.
    #[must_use]
    pub fn about(self, field: &str) -> Self {
        Self {
            message: format!("{field}: {}", self.message),
            ..self
        }
    }

    /// Something inside failed. The reason is logged here, and only here; the client learns that it was not its fault.
    pub fn internal(error: &(dyn std::error::Error + 'static)) -> Self {
        let causes: Vec<String> = std::iter::successors(Some(error), |e| e.source())
            .map(ToString::to_string)
            .collect();
        tracing::error!(
            error = causes.join(": "),
            "a request failed inside the gateway"
        );
        Self::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            "the gateway failed inside; its log says why",
        )
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let body = Json(ErrorBody {
            error: self.message,
        });
        let mut response = (self.status, body).into_response();
        if self.status == StatusCode::UNAUTHORIZED {
            response
                .headers_mut()
                .insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}

/// A JSON body, whatever its `Content-Type` says. An error names the field.
#[derive(Clone, Copy, Debug)]
pub struct JsonBody<T>(pub T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequest<S> for JsonBody<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &S) -> Result<Self, ApiError> {
        let Body(bytes) = Body::from_request(request, state).await?;
        parse_json(&bytes).map(Self)
    }
}

/// A whole body, within the limit of its route.
#[derive(Clone, Debug)]
pub struct Body(pub Bytes);

impl<S: Send + Sync> FromRequest<S> for Body {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &S) -> Result<Self, ApiError> {
        match Bytes::from_request(request, state).await {
            Ok(bytes) => Ok(Self(bytes)),
            Err(e) if e.status() == StatusCode::PAYLOAD_TOO_LARGE => Err(ApiError::new(
                e.status(),
                "the body is over the limit of this route",
            )),
            Err(_) => Err(ApiError::new(
                StatusCode::REQUEST_TIMEOUT,
                "the body ended early or came too slowly",
            )),
        }
    }
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

fn parse_json<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, ApiError> {
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
