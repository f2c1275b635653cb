//! `http.server.request.duration` by OpenTelemetry's conventions, for any router.

use axum::{
    extract::{MatchedPath, Request, State},
    http::Method,
    middleware::Next,
    response::Response,
};
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{family::Family, histogram::Histogram},
    registry::Registry,
};

use super::Telemetry;

/// The labels. All of them are from closed sets: methods by name, templates of routes, status codes.
#[expect(
    clippy::struct_field_names,
    reason = "the names are the convention's own"
)]
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Labels {
    http_request_method: &'static str,
    http_route: String,
    http_response_status_code: u16,
}

/// The boundaries that the convention recommends, in seconds.
const BUCKETS: [f64; 14] = [
    0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
];

fn histogram() -> Histogram {
    Histogram::new(BUCKETS)
}

#[derive(Clone, Debug)]
pub(super) struct HttpDurations {
    durations: Family<Labels, Histogram, fn() -> Histogram>,
}

impl HttpDurations {
    pub(super) fn register(registry: &mut Registry) -> Self {
        let durations = Family::new_with_constructor(histogram as fn() -> Histogram);
        registry.register(
            "http_server_request_duration_seconds",
            "Time from the head of a request to the head of its response",
            durations.clone(),
        );
        Self { durations }
    }
}

/// The method's name if it is one of HTTP's own: a client must not be able to invent label values.
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

/// A middleware that measures every request of the router that it is laid around.
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
    let labels = Labels {
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
