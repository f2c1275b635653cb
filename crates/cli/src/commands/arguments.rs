//! Parsers of arguments that several commands share.

use packhorse_cluster::RequestsPerSecond;

/// Parses a rate in requests per second.
pub(super) fn parse_rate(text: &str) -> Result<RequestsPerSecond, String> {
    let rate = text.parse().map_err(|_| "expected a number".to_owned())?;
    RequestsPerSecond::new(rate).map_err(|e| e.to_string())
}
