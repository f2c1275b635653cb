//! The identity of every request of the inference listener.

use axum::{
    extract::{Request, State},
    http::{Extensions, HeaderMap},
    middleware::Next,
    response::Response,
};

use crate::telemetry::{RequestIdentity, Telemetry};

/// Middleware that gives every request an identity, which is also in the headers of its answer.
pub(super) async fn identify(
    State(telemetry): State<Telemetry>,
    mut request: Request,
    next: Next,
) -> Response {
    let identity = telemetry.identify(request.headers());
    request.extensions_mut().insert(identity.clone());
    let mut response = next.run(request).await;
    identity.write_to(response.headers_mut());
    response
}

/// Returns the identity that the request has, or a new one: requests of the admin listener have none.
pub(super) fn identity_of(
    extensions: &Extensions,
    headers: &HeaderMap,
    telemetry: &Telemetry,
) -> RequestIdentity {
    let identity = extensions.get::<RequestIdentity>().cloned();
    identity.unwrap_or_else(|| telemetry.identify(headers))
}
