//! What an inference client gets that cannot be answered.

use axum::{
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use packhorse_protocol::{EncodeError, MessageError, RequestError};
use packhorse_serving::Refusal;

use crate::{
    api::ApiError,
    driver::{NotServed, Unanswered},
};

/// A status and its message. What is only for now (503) says when to try again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct InferenceError {
    status: StatusCode,
    message: String,
}

/// When to try again what is refused, in seconds: by then a queue has emptied, or a replica started.
const RETRY_AFTER: HeaderValue = HeaderValue::from_static("1");

impl InferenceError {
    pub(super) fn new(status: StatusCode, message: impl Into<String>) -> Self {
        Self {
            status,
            message: message.into(),
        }
    }

    pub(super) fn bad_request(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, message)
    }

    pub(super) fn unavailable(message: impl Into<String>) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, message)
    }
}

impl IntoResponse for InferenceError {
    fn into_response(self) -> Response {
        let mut response = ApiError::new(self.status, self.message).into_response();
        match self.status {
            StatusCode::SERVICE_UNAVAILABLE => {
                response
                    .headers_mut()
                    .insert(header::RETRY_AFTER, RETRY_AFTER);
            }
            StatusCode::UNSUPPORTED_MEDIA_TYPE => {
                let understood = HeaderValue::from_static("gzip, deflate, identity");
                response
                    .headers_mut()
                    .insert(header::ACCEPT_ENCODING, understood);
            }
            _ => {}
        }
        response
    }
}

impl From<RequestError> for InferenceError {
    fn from(error: RequestError) -> Self {
        let status = match error {
            RequestError::Message(MessageError::HeadTooLong { .. }) => {
                StatusCode::PAYLOAD_TOO_LARGE
            }
            _ => StatusCode::BAD_REQUEST,
        };
        Self::new(status, error.to_string())
    }
}

impl From<MessageError> for InferenceError {
    fn from(error: MessageError) -> Self {
        RequestError::from(error).into()
    }
}

/// The request asked for a form that cannot say what the model answered.
impl From<EncodeError> for InferenceError {
    fn from(error: EncodeError) -> Self {
        Self::bad_request(format!("output {error}"))
    }
}

impl From<NotServed> for InferenceError {
    fn from(error: NotServed) -> Self {
        Self::new(StatusCode::NOT_FOUND, error.to_string())
    }
}

impl From<Unanswered> for InferenceError {
    fn from(unanswered: Unanswered) -> Self {
        let status = match unanswered {
            // It was removed between being found and being asked.
            Unanswered::Refused(Refusal::UnknownModel) => StatusCode::NOT_FOUND,
            Unanswered::Refused(_)
            | Unanswered::Busy { .. }
            | Unanswered::ShuttingDown
            | Unanswered::Lost => StatusCode::SERVICE_UNAVAILABLE,
            Unanswered::Expired => StatusCode::GATEWAY_TIMEOUT,
            Unanswered::Failed(_) => StatusCode::INTERNAL_SERVER_ERROR,
        };
        Self::new(status, unanswered.to_string())
    }
}
