//! The end of a request, in the words of the API.

use packhorse_api::EndOfRequest;
use packhorse_serving::RequestOutcome;

use super::request_log::RequestRecord;

/// Returns the way in which a request ended.
pub(super) fn end_of(request: &RequestRecord) -> EndOfRequest {
    match request.outcome {
        RequestOutcome::Answered if request.latency <= request.slo => EndOfRequest::Answered,
        RequestOutcome::Answered => EndOfRequest::Late,
        RequestOutcome::Refused(_) => EndOfRequest::Refused,
        RequestOutcome::Expired => EndOfRequest::Expired,
        RequestOutcome::Lost => EndOfRequest::Lost,
        RequestOutcome::Failed => EndOfRequest::Failed,
        RequestOutcome::Cancelled => EndOfRequest::Cancelled,
    }
}

/// Returns the reason for an end without an answer.
pub(super) fn reason_of(request: &RequestRecord) -> Option<String> {
    match request.outcome {
        RequestOutcome::Refused(refusal) => Some(refusal.to_string()),
        RequestOutcome::Expired => Some("the deadline passed before it was answered".to_owned()),
        RequestOutcome::Lost => Some(
            "its worker or the batch that it shared failed, or its model was removed, and it could not be answered elsewhere in time"
                .to_owned(),
        ),
        RequestOutcome::Failed => {
            Some("its batch failed, or its answer could not be encoded".to_owned())
        }
        RequestOutcome::Cancelled => Some("its client stopped waiting".to_owned()),
        RequestOutcome::Answered => None,
    }
}
