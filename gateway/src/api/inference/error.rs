//! The errors that an inference client gets.

use std::time::Duration;

use axum::{
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use packhorse_protocol::{EncodeError, MessageError, RequestError};
use packhorse_serving::{Refusal, RequestOutcome};

use super::work_pool::PoolFull;
use crate::{
    api::{
        ApiError,
        error::{ClientErrorMessage, INTERNAL_ERROR},
        web_policy::WebRefusal,
    },
    driver::{BatchFailure, FindModelError, UnansweredRequest},
    memory::MemoryExhausted,
};

/// A status and its message. A temporary error (503) contains the time after which to retry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct InferenceError {
    status: StatusCode,
    message: String,
    /// The time after which to retry, if the error is temporary; in the header it is rounded up to seconds.
    retry_after: Duration,
    /// True if that time is not the one of any such error.
    has_own_time: bool,
    /// True if a model had the request, so that it is recorded already.
    is_recorded: bool,
}

/// The time after which to retry where no better one is known.
const RETRY_AFTER: Duration = Duration::from_secs(1);

impl InferenceError {
    pub(in crate::api) fn new(status: StatusCode, message: impl Into<String>) -> Self {
        Self {
            status,
            message: message.into(),
            retry_after: RETRY_AFTER,
            has_own_time: false,
            is_recorded: false,
        }
    }

    /// Returns the error with another time after which to retry.
    #[must_use]
    pub(in crate::api) fn retry_after(self, retry_after: Duration) -> Self {
        Self {
            retry_after,
            has_own_time: true,
            ..self
        }
    }

    /// Returns the error with the time after which to retry that holds for the model, unless it is one of the client's own, or has such a time.
    #[must_use]
    pub(in crate::api) fn or_retry_after(self, retry_after: Duration) -> Self {
        if self.status == StatusCode::TOO_MANY_REQUESTS || self.has_own_time {
            self
        } else {
            self.retry_after(retry_after)
        }
    }

    pub(in crate::api) fn status(&self) -> StatusCode {
        self.status
    }

    pub(in crate::api) fn message(&self) -> &str {
        &self.message
    }

    /// Returns the time after which to retry, if that may help.
    pub(in crate::api) fn retries_after(&self) -> Option<Duration> {
        let is_temporary = matches!(
            self.status,
            StatusCode::SERVICE_UNAVAILABLE | StatusCode::TOO_MANY_REQUESTS
        );
        is_temporary.then_some(self.retry_after)
    }

    /// Returns true if there is no such thing.
    pub(in crate::api) fn is_not_found(&self) -> bool {
        self.status == StatusCode::NOT_FOUND
    }

    /// Returns true if the request was refused for now.
    pub(in crate::api) fn is_refusal(&self) -> bool {
        self.status == StatusCode::SERVICE_UNAVAILABLE
    }

    pub(in crate::api) fn bad_request(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, message)
    }

    pub(in crate::api) fn unavailable(message: impl Into<String>) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, message)
    }

    /// Returns the error of what ends because the gateway stops.
    pub(in crate::api) fn shutting_down() -> Self {
        Refusal::ShuttingDown.into()
    }

    /// Returns the error of a body that is larger than the limit, before or after decompression.
    pub(in crate::api) fn body_too_large(limit: u64) -> Self {
        let message = format!("the request body is larger than the limit of {limit} bytes");
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, message)
    }

    /// Returns the error of a body that paused, or took, too long.
    pub(in crate::api) fn body_too_slow(pause: Duration, whole: Duration) -> Self {
        let message = format!(
            "the request body arrived too slowly: it may pause for {pause:?} and take {whole:?} in all"
        );
        Self::new(StatusCode::REQUEST_TIMEOUT, message)
    }
}

impl From<WebRefusal> for InferenceError {
    fn from(refusal: WebRefusal) -> Self {
        Self::new(WebRefusal::STATUS, refusal.to_string())
    }
}

impl IntoResponse for InferenceError {
    fn into_response(self) -> Response {
        let mut response = ApiError::new(self.status, self.message).into_response();
        if self.is_recorded {
            response.extensions_mut().remove::<ClientErrorMessage>();
        }
        match self.status {
            StatusCode::SERVICE_UNAVAILABLE | StatusCode::TOO_MANY_REQUESTS => {
                let seconds = self.retry_after.as_secs_f64().ceil() as u64;
                response
                    .headers_mut()
                    .insert(header::RETRY_AFTER, seconds.into());
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

/// The requested form cannot represent the model's outputs: a failure of the model, not of the request.
impl From<EncodeError> for InferenceError {
    fn from(error: EncodeError) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, format!("output {error}"))
    }
}

impl From<MemoryExhausted> for InferenceError {
    fn from(error: MemoryExhausted) -> Self {
        Self::unavailable(error.to_string())
    }
}

impl From<PoolFull> for InferenceError {
    fn from(error: PoolFull) -> Self {
        Self::unavailable(error.to_string())
    }
}

impl From<Refusal> for InferenceError {
    fn from(refusal: Refusal) -> Self {
        let status = match refusal {
            // The model was removed after it was found.
            Refusal::UnknownModel => StatusCode::NOT_FOUND,
            Refusal::TenantPaused { .. } => StatusCode::TOO_MANY_REQUESTS,
            _ => StatusCode::SERVICE_UNAVAILABLE,
        };
        let error = Self {
            is_recorded: true,
            ..Self::new(status, refusal.to_string())
        };
        match refusal {
            Refusal::TenantPaused { retry_after } | Refusal::Loading { retry_after } => {
                error.retry_after(retry_after)
            }
            _ => error,
        }
    }
}

impl From<FindModelError> for InferenceError {
    fn from(error: FindModelError) -> Self {
        Self::new(StatusCode::NOT_FOUND, error.to_string())
    }
}

impl From<UnansweredRequest> for InferenceError {
    fn from(unanswered: UnansweredRequest) -> Self {
        let UnansweredRequest {
            outcome, failure, ..
        } = unanswered;
        match outcome {
            RequestOutcome::Refused(refusal) => refusal.into(),
            RequestOutcome::Expired => Self::new(
                StatusCode::GATEWAY_TIMEOUT,
                "the deadline passed before a replica was free",
            ),
            RequestOutcome::Lost => Self::unavailable(
                "the request was lost: its worker or the batch that it shared failed, or its model was removed, and it could not be answered elsewhere in time; retry later",
            ),
            RequestOutcome::Failed => Self::new(
                StatusCode::INTERNAL_SERVER_ERROR,
                failure_message(failure.as_deref()),
            ),
            RequestOutcome::Answered | RequestOutcome::Cancelled => {
                unreachable!("such a request is not unanswered: {outcome:?}")
            }
        }
    }
}

fn failure_message(failure: Option<&BatchFailure>) -> String {
    failure.map_or_else(|| INTERNAL_ERROR.to_owned(), ToString::to_string)
}

#[cfg(test)]
mod tests {
    use packhorse_wire::FailureKind;

    use super::*;
    use crate::telemetry::RequestCourse;

    #[test]
    fn every_end_without_an_answer_has_a_status_and_a_sentence() {
        let refused = RequestOutcome::Refused;
        for (outcome, status, message) in [
            (
                refused(Refusal::UnknownModel),
                404,
                "there is no such model",
            ),
            (
                refused(Refusal::NoReplica),
                503,
                "no replica of the model is ready; retry later",
            ),
            (
                refused(Refusal::QueueFull { limit: 7 }),
                503,
                "the model's queue is full: queue_limit is 7 requests; retry later",
            ),
            (
                refused(Refusal::CannotMeetDeadline),
                503,
                "no replica can answer before the deadline",
            ),
            (
                refused(Refusal::TenantPaused {
                    retry_after: Duration::from_millis(6500),
                }),
                429,
                "requests of this client ended workers of the model, or had them hang; the next one is taken in 7 s",
            ),
            (
                refused(Refusal::Loading {
                    retry_after: Duration::from_millis(1200),
                }),
                503,
                "the model is loaded from its file, which takes longer than a request of it may wait; it should be there in 2 s",
            ),
            (
                refused(Refusal::TooManyRequests { limit: 7 }),
                503,
                "the gateway is at its limit of 7 concurrent requests; retry later",
            ),
            (
                refused(Refusal::ShuttingDown),
                503,
                "the gateway is shutting down",
            ),
            (
                RequestOutcome::Expired,
                504,
                "the deadline passed before a replica was free",
            ),
            (
                RequestOutcome::Lost,
                503,
                "the request was lost: its worker or the batch that it shared failed, or its model was removed, and it could not be answered \
                 elsewhere in time; retry later",
            ),
        ] {
            let error = InferenceError::from(UnansweredRequest::from(outcome));
            assert_eq!(
                (error.status.as_u16(), error.message.as_str()),
                (status, message)
            );
        }
    }

    #[test]
    fn a_failed_request_shows_the_failure_of_its_batch() {
        let error = |kind, message: &str| {
            let message = message.to_owned();
            let unanswered = UnansweredRequest {
                model: None,
                outcome: RequestOutcome::Failed,
                failure: Some(BatchFailure::Worker { kind, message }.into()),
                course: RequestCourse::default(),
            };
            InferenceError::from(unanswered).message
        };
        assert_eq!(
            error(FailureKind::ModuleThrew, "the model threw: no"),
            "the model threw: no"
        );
        assert_eq!(
            error(
                FailureKind::TimedOut,
                "a batch of 3 was still running after 5000 ms"
            ),
            "the model took too long: a batch of 3 was still running after 5000 ms"
        );
    }
}
