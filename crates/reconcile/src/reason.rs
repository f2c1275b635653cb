//! The reasons why a task has no ready worker, and their text.

use std::{fmt, time::Duration};

/// The reason why a task has no ready worker. Statuses carry its `Display` text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The node has no device of this name.
    NoDevice(String),
    /// The device failed; with the cause as text.
    DeviceFailed(String),
    /// Other processes occupy the device: a measurement, or processes that are no longer wanted and have not ended.
    DeviceOccupied,
    /// The agent could not fetch the artifact; with the error as text.
    FetchFailed(String),
    /// The agent could not start the process; with the error as text.
    StartFailed(String),
    /// The worker was not ready within this time of its start and was killed.
    NotReady(Duration),
    /// The measurement did not end within this time and was stopped.
    NotMeasured(Duration),
    /// The inspection did not end within this time and was stopped.
    NotInspected(Duration),
    /// The worker's reports cannot be written; with the reason as text.
    CannotReport(String),
    /// The worker reported that it failed; with its own text.
    Reported(String),
    /// The gateway asked for a restart, because the worker answered and was broken all the same.
    RestartRequested,
    /// The process ended without a report of a failure.
    Exited(ExitCause),
}

/// The way in which a worker process ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ExitCause {
    /// The process ended with status 0, or its status is unknown.
    Ended,
    /// The process ended by itself because a batch exceeded its time limit.
    BatchTimedOut {
        /// The last line of the process's log.
        last_line: Option<String>,
    },
    /// The process ended with an exit status other than 0.
    Status {
        /// The exit status.
        code: i32,
        /// The last line of the process's log.
        last_line: Option<String>,
    },
    /// The process was killed by this signal.
    Signal(i32),
    /// The process, which ran others, too, ended while it worked for another model, or was killed because of it.
    WithNeighbour(String),
    /// The process, which had done other tasks before, ended in this way.
    AfterOthers(Box<ExitCause>),
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoDevice(name) => write!(f, "this node has no device {name:?}"),
            Self::DeviceOccupied => write!(f, "waiting for other processes on the device to end"),
            Self::NotReady(limit) => {
                let seconds = limit.as_secs();
                write!(
                    f,
                    "the worker was not ready within {seconds} s of its start"
                )
            }
            Self::NotMeasured(limit) => {
                let seconds = limit.as_secs();
                write!(f, "the measurement did not end within {seconds} s")
            }
            Self::NotInspected(limit) => {
                let seconds = limit.as_secs();
                write!(f, "the operators were not found within {seconds} s")
            }
            Self::CannotReport(reason) => {
                write!(f, "the worker cannot say whether it is ready: {reason}")
            }
            Self::RestartRequested => write!(f, "the worker is restarted on the gateway's request"),
            Self::DeviceFailed(text)
            | Self::FetchFailed(text)
            | Self::StartFailed(text)
            | Self::Reported(text) => f.write_str(text),
            Self::Exited(cause) => cause.fmt(f),
        }
    }
}

impl fmt::Display for ExitCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let last_line = match self {
            Self::Ended => return write!(f, "the worker ended"),
            Self::AfterOthers(cause) => {
                return write!(f, "after the tasks of other models, {cause}");
            }
            Self::WithNeighbour(model) => {
                return write!(f, "the pool worker ended while it worked for {model}");
            }
            Self::Signal(signal) => return write!(f, "the worker was killed by signal {signal}"),
            Self::BatchTimedOut { last_line } => {
                write!(f, "the worker ran a batch for longer than its limit")?;
                last_line
            }
            Self::Status { code, last_line } => {
                write!(f, "the worker ended with status {code}")?;
                last_line
            }
        };
        match last_line {
            Some(line) => write!(f, ": {line}"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_has_its_sentence() {
        let text = "text".to_owned();
        let last_line = Some("no memory".to_owned());
        for (reason, sentence) in [
            (
                Reason::NoDevice("gpu7".to_owned()),
                "this node has no device \"gpu7\"",
            ),
            (Reason::DeviceFailed(text.clone()), "text"),
            (
                Reason::DeviceOccupied,
                "waiting for other processes on the device to end",
            ),
            (Reason::FetchFailed(text.clone()), "text"),
            (Reason::StartFailed(text.clone()), "text"),
            (
                Reason::NotReady(Duration::from_mins(5)),
                "the worker was not ready within 300 s of its start",
            ),
            (
                Reason::NotMeasured(Duration::from_secs(80)),
                "the measurement did not end within 80 s",
            ),
            (
                Reason::NotInspected(Duration::from_mins(1)),
                "the operators were not found within 60 s",
            ),
            (
                Reason::CannotReport("no space".to_owned()),
                "the worker cannot say whether it is ready: no space",
            ),
            (Reason::Reported(text), "text"),
            (
                Reason::RestartRequested,
                "the worker is restarted on the gateway's request",
            ),
            (Reason::Exited(ExitCause::Ended), "the worker ended"),
            (
                Reason::Exited(ExitCause::Signal(9)),
                "the worker was killed by signal 9",
            ),
            (
                Reason::Exited(ExitCause::AfterOthers(Box::new(ExitCause::Signal(11)))),
                "after the tasks of other models, the worker was killed by signal 11",
            ),
            (
                Reason::Exited(ExitCause::WithNeighbour("m:1".to_owned())),
                "the pool worker ended while it worked for m:1",
            ),
            (
                Reason::Exited(ExitCause::Status {
                    code: 1,
                    last_line: None,
                }),
                "the worker ended with status 1",
            ),
            (
                Reason::Exited(ExitCause::Status {
                    code: 1,
                    last_line: last_line.clone(),
                }),
                "the worker ended with status 1: no memory",
            ),
            (
                Reason::Exited(ExitCause::BatchTimedOut { last_line }),
                "the worker ran a batch for longer than its limit: no memory",
            ),
        ] {
            assert_eq!(reason.to_string(), sentence);
        }
    }
}
