//! The middleware that measures HTTP requests.

use axum::{
    extract::{MatchedPath, Request, State},
    http::Method,
    middleware::Next,
    response::Response,
};

use super::{handle::Telemetry, http_durations::HttpLabels};

/// Returns the name of a standard method, or `_OTHER`: a client must not be able to invent label values.
fn method_name(method: &Method) -> &'static str {
    match *method {
        Method::GET => "GET",
        Method::POST => "POST",
        Method::PUT => "PUT",
        Method::PATCH => "PATCH",
        Method::DELETE => "DELETE",
        Method::HEAD => "HEAD",
        Method::OPTIONS => "OPTIONS",
        _ => "_OTHER",
    }
}

/// A middleware that measures every request of its router.
pub async fn measure_http(
    State(telemetry): State<Telemetry>,
    request: Request,
    next: Next,
) -> Response {
    let clock = telemetry.clock();
    let begin = clock.now();
    let method = method_name(request.method());
    let route = request
        .extensions()
        .get::<MatchedPath>()
        .map(|path| path.as_str().to_owned());
    let response = next.run(request).await;
    let labels = HttpLabels {
        http_request_method: method,
        http_route: route.unwrap_or_default(),
        http_response_status_code: response.status().as_u16(),
    };
    let seconds = clock.now().saturating_since(begin).as_secs_f64();
    telemetry
        .http()
        .durations
        .get_or_create(&labels)
        .observe(seconds);
    response
}
