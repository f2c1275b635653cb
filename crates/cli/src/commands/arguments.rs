//! Parsers of arguments that several commands share.

use std::time::Duration;

use packhorse_cluster::{IdError, ModelName, ModelVersion, Percent, RequestsPerSecond};
use time::{OffsetDateTime, format_description::well_known::Rfc3339};

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

/// Parses `on` or `off`.
pub(super) fn parse_on_off(text: &str) -> Result<bool, String> {
    match text {
        "on" => Ok(true),
        "off" => Ok(false),
        _ => Err("expected on or off".to_owned()),
    }
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

/// Parses a time: how long ago it is, such as `10m`, or the time itself, such as `2026-11-29T16:12:00Z`. The result is in milliseconds since 1970,
/// or before now if it is negative.
pub(super) fn parse_moment(text: &str) -> Result<i64, String> {
    if let Ok(ago) = parse_duration(text) {
        return Ok(-i64::try_from(ago.as_millis()).unwrap_or(i64::MAX).max(1));
    }
    let parsed = OffsetDateTime::parse(&text.replace(' ', "T"), &Rfc3339);
    let moment = parsed.map_err(|_| {
        "expected how long ago, such as 30s, 10m or 2h, or a time, such as 2026-11-29T16:12:00Z"
    })?;
    i64::try_from(moment.unix_timestamp_nanos() / 1_000_000)
        .ok()
        .filter(|ms| *ms >= 0)
        .ok_or_else(|| "expected a time since 1970".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_is_a_time_or_how_long_ago_it_is() {
        for (text, ms) in [
            ("10m", -600_000),
            ("0s", -1),
            ("2026-11-29T16:12:00Z", 1_795_968_720_000),
            ("2026-11-29 16:12:00.250Z", 1_795_968_720_250),
            ("2026-11-29T17:12:00+01:00", 1_795_968_720_000),
        ] {
            assert_eq!(parse_moment(text), Ok(ms), "{text}");
        }
        for text in ["", "10", "yesterday", "1960-01-01T00:00:00Z", "2026-11-29"] {
            assert!(parse_moment(text).is_err(), "{text}");
        }
    }

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
