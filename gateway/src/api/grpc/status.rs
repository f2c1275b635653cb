//! The statuses of gRPC, and which of them stands for which of HTTP.

use std::time::Duration;

use axum::{
    body::Body,
    http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};

use crate::api::{error::INTERNAL_ERROR, inference::error::InferenceError};

/// The content type of all answers.
pub(super) const CONTENT_TYPE: HeaderValue = HeaderValue::from_static("application/grpc");
/// The trailer with the code.
static STATUS: HeaderName = HeaderName::from_static("grpc-status");
/// The trailer with the message.
static MESSAGE: HeaderName = HeaderName::from_static("grpc-message");
/// The trailer with the time after which a client that retries may do so, in milliseconds.
static PUSHBACK: HeaderName = HeaderName::from_static("grpc-retry-pushback-ms");
/// The most bytes of a message, encoded: peers limit their headers.
const MESSAGE_LIMIT: usize = 4096;

/// The code of a status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Code {
    Ok = 0,
    InvalidArgument = 3,
    DeadlineExceeded = 4,
    NotFound = 5,
    PermissionDenied = 7,
    ResourceExhausted = 8,
    Unimplemented = 12,
    Internal = 13,
    Unavailable = 14,
    Unauthenticated = 16,
}

impl Code {
    /// Returns the code that stands for a status of HTTP.
    fn of(status: StatusCode) -> Self {
        match status {
            StatusCode::UNAUTHORIZED => Self::Unauthenticated,
            StatusCode::FORBIDDEN => Self::PermissionDenied,
            StatusCode::NOT_FOUND => Self::NotFound,
            StatusCode::METHOD_NOT_ALLOWED | StatusCode::UNSUPPORTED_MEDIA_TYPE => {
                Self::Unimplemented
            }
            StatusCode::REQUEST_TIMEOUT | StatusCode::GATEWAY_TIMEOUT => Self::DeadlineExceeded,
            StatusCode::PAYLOAD_TOO_LARGE | StatusCode::TOO_MANY_REQUESTS => {
                Self::ResourceExhausted
            }
            StatusCode::SERVICE_UNAVAILABLE => Self::Unavailable,
            status if status.is_client_error() => Self::InvalidArgument,
            _ => Self::Internal,
        }
    }
}

/// The status with which a call ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Status {
    code: Code,
    message: String,
    /// The time after which to retry, if that may help.
    retry_after: Option<Duration>,
    /// The status that HTTP would have, by which calls are counted.
    http: StatusCode,
}

/// The status as which a call is counted. An extension of answers.
#[derive(Clone, Copy, Debug)]
pub(super) enum CallCount {
    /// Once, with the status that HTTP would have.
    Once(StatusCode),
    /// By each of its requests, when that is answered.
    ByRequest,
}

impl Status {
    /// Returns the status of a call that was answered.
    pub(super) fn ok() -> Self {
        Self {
            code: Code::Ok,
            message: String::new(),
            retry_after: None,
            http: StatusCode::OK,
        }
    }

    /// Returns the status of what this server does not have.
    pub(super) fn unimplemented(message: impl Into<String>) -> Self {
        InferenceError::new(StatusCode::METHOD_NOT_ALLOWED, message).into()
    }

    /// Returns the status of a call on which this server failed.
    pub(super) fn failed() -> Self {
        InferenceError::new(StatusCode::INTERNAL_SERVER_ERROR, INTERNAL_ERROR).into()
    }

    /// Returns the status that HTTP would have.
    pub(super) fn http(&self) -> StatusCode {
        self.http
    }

    /// Returns the trailers.
    pub(super) fn trailers(&self) -> HeaderMap {
        let mut trailers = HeaderMap::with_capacity(3);
        trailers.insert(&STATUS, (self.code as u16).into());
        if !self.message.is_empty() {
            trailers.insert(&MESSAGE, encoded(&self.message));
        }
        if let Some(after) = self.retry_after {
            let millis = u64::try_from(after.as_millis()).unwrap_or(u64::MAX);
            trailers.insert(&PUSHBACK, millis.into());
        }
        trailers
    }
}

/// The status of a call that ended so.
impl From<Result<(), InferenceError>> for Status {
    fn from(ended: Result<(), InferenceError>) -> Self {
        ended.map_or_else(Self::from, |()| Self::ok())
    }
}

impl From<InferenceError> for Status {
    fn from(error: InferenceError) -> Self {
        let http = error.status();
        Self {
            code: Code::of(http),
            message: error.message().to_owned(),
            retry_after: error.retries_after(),
            http,
        }
    }
}

/// The answer of a call that has no message.
impl IntoResponse for Status {
    fn into_response(self) -> Response {
        let mut response = Response::new(Body::empty());
        *response.headers_mut() = self.trailers();
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, CONTENT_TYPE);
        response.extensions_mut().insert(CallCount::Once(self.http));
        response
    }
}

/// Returns a message in the form of a header: every byte that is no visible character of ASCII, and the percent sign, as `%XX`.
fn encoded(message: &str) -> HeaderValue {
    let mut text = String::with_capacity(message.len());
    for character in message.chars() {
        let mut buffer = [0; 4];
        let before = text.len();
        match character {
            ' '..='~' if character != '%' => text.push(character),
            other => {
                for byte in other.encode_utf8(&mut buffer).bytes() {
                    text.extend(["%", &hex::encode_upper([byte])]);
                }
            }
        }
        if text.len() > MESSAGE_LIMIT {
            text.truncate(before);
            break;
        }
    }
    HeaderValue::from_str(&text).expect("visible characters of ASCII and spaces are valid")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_status_of_http_has_a_code() {
        for (http, code) in [
            (400, Code::InvalidArgument),
            (401, Code::Unauthenticated),
            (403, Code::PermissionDenied),
            (404, Code::NotFound),
            (405, Code::Unimplemented),
            (408, Code::DeadlineExceeded),
            (413, Code::ResourceExhausted),
            (415, Code::Unimplemented),
            (429, Code::ResourceExhausted),
            (500, Code::Internal),
            (503, Code::Unavailable),
            (504, Code::DeadlineExceeded),
        ] {
            assert_eq!(
                Code::of(StatusCode::from_u16(http).unwrap()),
                code,
                "{http}"
            );
        }
    }

    #[test]
    fn a_message_is_encoded_and_cut_between_characters() {
        assert_eq!(
            encoded("50 % of \"naïve\"\n"),
            "50 %25 of \"na%C3%AFve\"%0A"
        );
        let long = encoded(&"ä".repeat(5000));
        assert_eq!(long.len(), MESSAGE_LIMIT / 6 * 6);
    }

    #[test]
    fn what_may_be_retried_says_when() {
        let busy: Status = InferenceError::unavailable("no").into();
        assert_eq!(busy.trailers()["grpc-retry-pushback-ms"], "1000");
        let bad: Status = InferenceError::bad_request("no").into();
        assert!(!bad.trailers().contains_key("grpc-retry-pushback-ms"));
        assert_eq!(bad.trailers()["grpc-status"], "3");
    }
}
