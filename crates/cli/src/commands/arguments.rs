//! Parsers of arguments that several commands share.

use std::time::Duration;

use packhorse_cluster::{IdError, ModelName, ModelVersion, Percent, RequestsPerSecond};

/// NAME or NAME:VERSION; `None` is the newest version, or all, as the command says.
pub(super) type ModelReference = (ModelName, Option<ModelVersion>);

/// Parses NAME or NAME:VERSION.
pub(super) fn parse_model(text: &str) -> Result<ModelReference, IdError> {
    match text.split_once(':') {
        Some((name, version)) => Ok((name.parse()?, Some(version.parse()?))),
        None => Ok((text.parse()?, None)),
    }
}

/// Parses a rate in requests per second.
pub(super) fn parse_rate(text: &str) -> Result<RequestsPerSecond, String> {
    let rate = text.parse().map_err(|_| "expected a number".to_owned())?;
    RequestsPerSecond::new(rate).map_err(|e| e.to_string())
}

/// Parses a percentage from 0 to 100.
pub(super) fn parse_percent(text: &str) -> Result<Percent, String> {
    let percent = text.parse().map_err(|_| "expected a number".to_owned())?;
    Percent::new(percent).map_err(|e| e.to_string())
}

/// Parses a duration with its unit: `500ms`, `10s`, `2m`, `1h` or `30d`.
pub(super) fn parse_duration(text: &str) -> Result<Duration, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = match &text[digits.len()..] {
        "ms" => 1e-3,
        "s" => 1.0,
        "m" => 60.0,
        "h" => 3600.0,
        "d" => 86_400.0,
        _ => return Err("expected a number with its unit: ms, s, m, h or d".to_owned()),
    };
    let number: f64 = digits
        .parse()
        .map_err(|_| "expected a number with its unit: ms, s, m, h or d".to_owned())?;
    Duration::try_from_secs_f64(number * unit).map_err(|e| e.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_a_unit() {
        for (text, millis) in [
            ("500ms", 500),
            ("10s", 10_000),
            ("1.5s", 1500),
            ("2m", 120_000),
            ("1h", 3_600_000),
            ("30d", 2_592_000_000),
        ] {
            assert_eq!(parse_duration(text), Ok(Duration::from_millis(millis)));
        }
        for bad in ["", "10", "s", "10 s", "-1s", "10w", "infs"] {
            assert!(parse_duration(bad).is_err(), "{bad:?}");
        }
    }
}
