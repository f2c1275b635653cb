//! What all calls have in common: each is measured, gets an identity and comes from no page of another site; and the head of a call.

use std::{any::Any, panic::AssertUnwindSafe, time::Duration};

use axum::{
    extract::{Request, State},
    http::{HeaderMap, HeaderName, Method, StatusCode, header},
    middleware::Next,
    response::{IntoResponse as _, Response},
};
use futures_util::FutureExt as _;
use packhorse_cluster::Time;

use super::{
    compression::Compression,
    state::Grpc,
    status::{CallCount, Status},
};
use crate::{api::inference::error::InferenceError, telemetry::HttpMeasurement};

/// The header with the time that the client waits.
static TIMEOUT: HeaderName = HeaderName::from_static("grpc-timeout");

/// Answers a call. Its identity is also in the headers of the answer.
pub(super) async fn answer(State(grpc): State<Grpc>, mut request: Request, next: Next) -> Response {
    let telemetry = grpc.telemetry();
    let measurement = HttpMeasurement::begin(telemetry, &request);
    let identity = telemetry.identify(request.headers());
    request.extensions_mut().insert(identity.clone());
    let mut response = match refusal(&grpc, &request) {
        None => {
            let answered = AssertUnwindSafe(next.run(request)).catch_unwind().await;
            answered.unwrap_or_else(|cause| panicked(&*cause))
        }
        Some(error) => Status::from(error).into_response(),
    };
    identity.write_to(response.headers_mut());
    match response.extensions().get() {
        Some(CallCount::Once(status)) => measurement.end_as(telemetry, *status),
        Some(CallCount::ByRequest) => {}
        None => measurement.end(telemetry, &response),
    }
    response
}

/// Returns the reason why a call is refused, whatever it asks for.
fn refusal(grpc: &Grpc, request: &Request) -> Option<InferenceError> {
    if let Some(refusal) = grpc.web.refusal(request) {
        return Some(refusal.into());
    }
    let kind = request.headers().get(header::CONTENT_TYPE);
    let kind = kind.and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    let rest = kind.strip_prefix("application/grpc");
    let is_grpc = rest.is_some_and(|rest| {
        rest.is_empty() || rest.starts_with([';', ' ']) || rest.starts_with("+proto")
    });
    (request.method() == Method::POST && !is_grpc).then(|| {
        InferenceError::new(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            "this listener speaks gRPC: expected Content-Type application/grpc",
        )
    })
}

pub(super) async fn not_post() -> Response {
    Status::unimplemented("this listener speaks gRPC: expected the method POST").into_response()
}

pub(super) async fn no_such_method() -> Response {
    Status::unimplemented("there is no such service or method").into_response()
}

fn panicked(cause: &(dyn Any + Send)) -> Response {
    let text = cause
        .downcast_ref::<String>()
        .map(String::as_str)
        .or_else(|| cause.downcast_ref::<&str>().copied());
    tracing::error!(error = text.unwrap_or("no message"), "a handler panicked");
    Status::failed().into_response()
}

/// The part of a call's head that says how it is answered.
#[derive(Clone, Copy, Debug)]
pub(super) struct CallHead {
    /// The time at which the call arrived.
    pub(super) at: Time,
    /// The time that the client waits, if it says one.
    pub(super) patience: Option<Duration>,
    /// The compression of messages that are marked as compressed, and of their answers if the client accepts it.
    pub(super) compression: Compression,
}

impl CallHead {
    /// Reads the head of a call.
    ///
    /// # Errors
    /// The time that the client waits is malformed, or the compression is unknown.
    pub(super) fn read(at: Time, headers: &HeaderMap) -> Result<Self, InferenceError> {
        let patience = headers.get(&TIMEOUT).map(|value| {
            let time = value.to_str().ok().and_then(timeout);
            time.ok_or_else(|| {
                InferenceError::bad_request(
                    "grpc-timeout: expected 1 to 8 digits and one of the units H, M, S, m, u and n",
                )
            })
        });
        Ok(Self {
            at,
            patience: patience.transpose()?,
            compression: Compression::of(headers)?,
        })
    }
}

/// Reads the time that a client waits.
fn timeout(text: &str) -> Option<Duration> {
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    if !(1..=8).contains(&digits.len()) || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let count: u64 = digits.parse().ok()?;
    Some(match unit {
        "H" => Duration::from_secs(count * 3600),
        "M" => Duration::from_secs(count * 60),
        "S" => Duration::from_secs(count),
        "m" => Duration::from_millis(count),
        "u" => Duration::from_micros(count),
        "n" => Duration::from_nanos(count),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_that_a_client_waits_has_digits_and_a_unit() {
        assert_eq!(timeout("2500m"), Some(Duration::from_millis(2500)));
        assert_eq!(timeout("99999999H"), Some(Duration::from_hours(99_999_999)));
        assert_eq!(timeout("1u"), Some(Duration::from_micros(1)));
        for wrong in ["", "5", "S", "-1S", "1.5S", "123456789S", "1s", "1 S", "ä"] {
            assert_eq!(timeout(wrong), None, "{wrong}");
        }
    }
}
