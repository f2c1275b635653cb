//! The end of a request of a load.

use std::{io, time::Duration};

use packhorse_api::{ErrorBody, ServerTiming};
use packhorse_client::{AnswerHead, ExchangeError};

/// The end of a request, with times since the start of the load.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct RequestEnd {
    pub(super) due: Duration,
    /// The time from which on nothing but the generator kept it from being sent: it was due, and a connection was free.
    pub(super) ready: Duration,
    pub(super) sent: Duration,
    pub(super) ended: Duration,
    pub(super) outcome: Outcome,
    pub(super) timing: Option<ServerTiming>,
}

/// The outcome of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Answered,
    /// The gateway did not accept the request: 429, or 503 with `Retry-After`.
    Refused(String),
    /// The deadline passed in the queue: 504.
    Expired(String),
    /// The request is invalid, or its model failed: any other status.
    Failed(String),
    /// A worker was lost (503 without `Retry-After`), or the connection or the answer.
    Lost(String),
}

impl Outcome {
    /// Returns the outcome of a request that was answered with this head and body, or not at all.
    pub(super) fn of(exchanged: Result<AnswerHead, ExchangeError>, body: &[u8]) -> Self {
        let head = match exchanged {
            Ok(head) if head.status == 200 => return Self::Answered,
            Ok(head) => head,
            Err(error) => return Self::Lost(lost(&error)),
        };
        let status = head.status;
        let text = match serde_json::from_slice::<ErrorBody>(body) {
            Ok(body) => format!("{status}: {}", body.error),
            Err(_) => status.to_string(),
        };
        match status {
            429 => Self::Refused(text),
            503 if head.retry_after => Self::Refused(text),
            503 => Self::Lost(text),
            504 => Self::Expired(text),
            _ => Self::Failed(text),
        }
    }
}

/// Returns an error's text, without the number that the operating system gives it.
fn lost(error: &ExchangeError) -> String {
    match error {
        ExchangeError::Broken(source) if source.kind() == io::ErrorKind::UnexpectedEof => {
            "the connection was lost: closed by the gateway".to_owned()
        }
        error => error.to_string(),
    }
}
