//! The histogram `http.server.request.duration`, by OpenTelemetry's conventions.

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{family::Family, histogram::Histogram},
    registry::Registry,
};

/// The labels. All values are from closed sets: methods by name, templates of routes, status codes.
#[expect(
    clippy::struct_field_names,
    reason = "the names are the convention's own"
)]
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct HttpLabels {
    pub(super) http_request_method: &'static str,
    pub(super) http_route: String,
    pub(super) http_response_status_code: u16,
}

/// The bucket boundaries that the convention recommends, in seconds.
const BUCKETS: [f64; 14] = [
    0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
];

fn histogram() -> Histogram {
    Histogram::new(BUCKETS)
}

#[derive(Clone, Debug)]
pub(super) struct HttpDurations {
    pub(super) durations: Family<HttpLabels, Histogram, fn() -> Histogram>,
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
