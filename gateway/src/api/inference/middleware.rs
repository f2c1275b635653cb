//! The middleware of the inference listener: every request is measured, gets an identity, comes from no page of another site and is authorised, what is
//! refused is recorded, and a handler that panics is answered for.
//!
//! It is one middleware for all of this, because the router allocates a future and copies the services within for each: four of them cost as
//! much as the reading of a small request.

use std::{any::Any, panic::AssertUnwindSafe};

use axum::{
    extract::{Request, State},
    http::{Extensions, HeaderMap, StatusCode, request::Parts},
    middleware::Next,
    response::{IntoResponse as _, Response},
};
use futures_util::FutureExt as _;

use super::{
    authorize::authorize, body::IncomingBody, error::InferenceError, rejections::Asked,
    state::Inference,
};
use crate::{
    api::error::INTERNAL_ERROR,
    serve::HeldUntilSent,
    telemetry::{HttpMeasurement, RequestIdentity, Telemetry},
    tenant::tenant_name_of,
};

/// Answers a request. Its identity is also in the headers of the answer.
pub(in crate::api) async fn answer(
    State(inference): State<Inference>,
    mut request: Request,
    next: Next,
) -> Response {
    let telemetry = inference.data_plane.telemetry();
    let measurement = HttpMeasurement::begin(telemetry, &request);
    let identity = telemetry.identify(request.headers());
    let asked = Asked::of(&inference, &request);
    request.extensions_mut().insert(identity.clone());
    let admitted = match inference.web.refusal(&request) {
        None => authorize(&inference, &mut request).await,
        Some(refusal) => Err(refusal.into()),
    };
    let mut response = match admitted {
        Ok(used) => {
            let used = used.map(|used| (used, telemetry.clock().now()));
            let answered = AssertUnwindSafe(next.run(request)).catch_unwind().await;
            let mut response = answered.unwrap_or_else(|cause| panicked(&*cause));
            if let Some((used, begin)) = used {
                let now = telemetry.clock().now();
                let in_flight = used.answered(response.status(), now.saturating_since(begin));
                // A client that does not read its answers has them in flight.
                if let Some(in_flight) = in_flight.map(HeldUntilSent::new) {
                    response.extensions_mut().insert(in_flight);
                }
            }
            response
        }
        Err(error) => {
            let (parts, body) = request.into_parts();
            IncomingBody::new(&parts.headers, body).discard();
            error.into_response()
        }
    };
    if let Some(asked) = asked {
        asked.end(&inference, &identity, &response);
    }
    identity.write_to(response.headers_mut());
    measurement.end(telemetry, &response);
    response
}

/// Returns the identity that the request has, or a new one: requests of the admin listener have none.
pub(in crate::api) fn identity_of(
    extensions: &Extensions,
    headers: &HeaderMap,
    telemetry: &Telemetry,
) -> RequestIdentity {
    let identity = extensions.get::<RequestIdentity>().cloned();
    identity.unwrap_or_else(|| telemetry.identify(headers))
}

/// Returns the identity that the request has, or a new one, with the name of its tenant.
pub(super) fn sender_of(parts: &Parts, telemetry: &Telemetry) -> RequestIdentity {
    let identity = identity_of(&parts.extensions, &parts.headers, telemetry);
    identity.sent_by(tenant_name_of(&parts.extensions))
}

fn panicked(cause: &(dyn Any + Send)) -> Response {
    let text = cause
        .downcast_ref::<String>()
        .map(String::as_str)
        .or_else(|| cause.downcast_ref::<&str>().copied());
    tracing::error!(error = text.unwrap_or("no message"), "a handler panicked");
    InferenceError::new(StatusCode::INTERNAL_SERVER_ERROR, INTERNAL_ERROR).into_response()
}
