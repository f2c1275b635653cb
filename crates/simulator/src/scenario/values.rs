//! The numbers of a scenario, checked against their ranges, and the errors that name field and range.

use std::time::Duration;

use packhorse_cluster::{ProblemError, ProfileError, RequestsPerSecond};

use crate::trace::TraceError;

/// The reason why a scenario cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum ScenarioError {
    /// The text is not TOML, or has unknown or missing keys. The message names line and key.
    #[error("{0}")]
    Toml(String),
    /// A value is out of its range.
    #[error("{field}: {problem}")]
    Field {
        /// The key as in the file, such as `models[2].slo_ms`.
        field: String,
        /// The allowed values, and the value found.
        problem: String,
    },
    /// A file that the scenario names cannot be read.
    #[error("{path}: {problem}")]
    Load {
        /// The path in the scenario.
        path: String,
        /// The error of the closure.
        problem: String,
    },
    /// A file with profiles is invalid.
    #[error("{path}")]
    Profiles {
        /// The path in the scenario.
        path: String,
        /// The first error in the file.
        #[source]
        source: ProfileError,
    },
    /// A file with a trace is invalid.
    #[error("{path}")]
    Trace {
        /// The path in the scenario.
        path: String,
        /// The first error in the file.
        #[source]
        source: TraceError,
    },
    /// The models contradict each other.
    #[error("the models do not form a valid placement problem")]
    Problem(#[source] ProblemError),
}

/// The largest number of devices in a scenario.
pub(super) const MAX_DEVICES: usize = 100_000;
/// The longest time in a scenario, in seconds.
const MAX_SECONDS: f64 = 1e7;

pub(super) fn field_error<T>(
    field: impl Into<String>,
    problem: impl Into<String>,
) -> Result<T, ScenarioError> {
    Err(ScenarioError::Field {
        field: field.into(),
        problem: problem.into(),
    })
}

/// Returns a number of `unit` seconds as a duration, if it is not negative and at most [`MAX_SECONDS`].
pub(super) fn duration(
    name: impl Into<String>,
    value: f64,
    unit: f64,
) -> Result<Duration, ScenarioError> {
    let seconds = value * unit;
    if (0.0..=MAX_SECONDS).contains(&seconds) {
        Ok(Duration::from_secs_f64(seconds))
    } else {
        field_error(
            name,
            format!("expected between 0 and {}, not {value}", MAX_SECONDS / unit),
        )
    }
}

/// A second, in seconds.
pub(super) const S: f64 = 1.0;
/// A millisecond, in seconds.
pub(super) const MS: f64 = 1e-3;

pub(super) fn positive(
    name: impl Into<String>,
    value: f64,
    limit: f64,
) -> Result<f64, ScenarioError> {
    if value > 0.0 && value <= limit {
        Ok(value)
    } else {
        field_error(
            name,
            format!("expected above 0 and at most {limit}, not {value}"),
        )
    }
}

/// Checks a bandwidth. Below a byte per second, a transmission may be longer than a [`Duration`].
pub(super) fn bandwidth(
    name: impl Into<String>,
    bytes_per_second: f64,
) -> Result<f64, ScenarioError> {
    const LIMIT: f64 = 1e15;
    if (1.0..=LIMIT).contains(&bytes_per_second) {
        return Ok(bytes_per_second);
    }
    field_error(
        name,
        format!("expected between 1 and {LIMIT}, not {bytes_per_second}"),
    )
}

pub(super) fn requests_per_second(
    name: impl Into<String>,
    value: f64,
) -> Result<RequestsPerSecond, ScenarioError> {
    RequestsPerSecond::new(value).or_else(|e| field_error(name, e.to_string()))
}
