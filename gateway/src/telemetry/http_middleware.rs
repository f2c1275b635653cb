//! The measurement of HTTP requests.

use axum::{
    extract::{MatchedPath, Request, State},
    http::{Method, StatusCode},
    middleware::Next,
    response::Response,
};
use packhorse_cluster::Time;

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

/// The measurement of a request that is being answered.
#[derive(Clone, Debug)]
pub(crate) struct HttpMeasurement {
    begin: Time,
    method: &'static str,
    route: Option<MatchedPath>,
}

impl HttpMeasurement {
    /// Begins with the head of a request.
    pub(crate) fn begin(telemetry: &Telemetry, request: &Request) -> Self {
        Self {
            begin: telemetry.clock().now(),
            method: method_name(request.method()),
            route: request.extensions().get().cloned(),
        }
    }

    /// Returns the measurement of a part of the request that arrived at a time.
    pub(crate) fn of_part(&self, begin: Time) -> Self {
        Self {
            begin,
            ..self.clone()
        }
    }

    /// Ends with the head of the response, and records the time between.
    pub(crate) fn end(self, telemetry: &Telemetry, response: &Response) {
        self.end_as(telemetry, response.status());
    }

    /// Ends with a status that the head of the response need not have, and records the time between.
    pub(crate) fn end_as(self, telemetry: &Telemetry, status: StatusCode) {
        let route = self.route.as_ref().map(MatchedPath::as_str);
        let labels = HttpLabels {
            http_request_method: self.method,
            http_route: route.unwrap_or_default().to_owned(),
            http_response_status_code: status.as_u16(),
        };
        let now = telemetry.clock().now();
        let seconds = now.saturating_since(self.begin).as_secs_f64();
        let durations = &telemetry.http().durations;
        durations.get_or_create(&labels).observe(seconds);
    }
}

/// A middleware that measures every request of its router.
pub async fn measure_http(
    State(telemetry): State<Telemetry>,
    request: Request,
    next: Next,
) -> Response {
    let measurement = HttpMeasurement::begin(&telemetry, &request);
    let response = next.run(request).await;
    measurement.end(&telemetry, &response);
    response
}
