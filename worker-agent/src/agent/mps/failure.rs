//! The failures of MPS on a GPU, and their text.

use std::{fmt, time::Duration};

use packhorse_cluster::ComputeShare;

use crate::process::ProcessFailure;

/// A failure of MPS on a GPU. The gateway gets its `Display` text.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum MpsFailure {
    /// The control daemon could not be started or did not execute a command; with the error as text.
    Control(String),
    /// The control daemon ended.
    DaemonEnded {
        /// The failure of its process, if it failed.
        failure: Option<ProcessFailure>,
        /// The last line of its output.
        last_line: Option<String>,
    },
    /// The control daemon did not answer in time after its start.
    DaemonSilent {
        /// The time limit.
        limit: Duration,
        /// The last line of its output.
        last_line: Option<String>,
    },
    /// The server failed because of a fault of a client.
    ServerFailed,
    /// The server was still failed long after its clients were killed.
    ServerNotRecovered,
    /// The daemon has no clients although this worker uses the GPU.
    NoClients {
        /// The worker's process id.
        pid: u32,
    },
    /// The compute share of this worker has no effect.
    ShareIgnored {
        /// The worker's process id.
        pid: u32,
        /// The worker's share.
        share: ComputeShare,
        /// The number of the GPU's multiprocessors, all of which the worker may use.
        multiprocessors: u32,
    },
}

impl fmt::Display for MpsFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let last_line = match self {
            Self::Control(error) => return f.write_str(error),
            Self::ServerFailed => {
                return f.write_str("a replica on this GPU caused a fatal fault of the MPS server");
            }
            Self::ServerNotRecovered => {
                return f.write_str("the MPS server did not recover from a fatal fault");
            }
            Self::NoClients { pid } => {
                return write!(f, "CUDA does not use MPS in worker {pid}");
            }
            Self::ShareIgnored {
                pid,
                share,
                multiprocessors,
            } => {
                return write!(
                    f,
                    "CUDA does not use MPS in worker {pid}: it has a compute share of {share} % and may use all {multiprocessors} \
                     multiprocessors"
                );
            }
            Self::DaemonEnded { failure, last_line } => {
                match failure {
                    Some(failure) => write!(f, "the MPS daemon {failure}")?,
                    None => f.write_str("the MPS daemon ended")?,
                }
                last_line
            }
            Self::DaemonSilent { limit, last_line } => {
                write!(f, "the MPS daemon did not answer within {limit:?}")?;
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
    fn every_failure_has_its_sentence() {
        let last_line = Some("no such device".to_owned());
        let share = ComputeShare::new(50.0).unwrap();
        for (failure, sentence) in [
            (MpsFailure::Control("text".to_owned()), "text"),
            (
                MpsFailure::DaemonEnded {
                    failure: None,
                    last_line: None,
                },
                "the MPS daemon ended",
            ),
            (
                MpsFailure::DaemonEnded {
                    failure: Some(ProcessFailure::Status(1)),
                    last_line: last_line.clone(),
                },
                "the MPS daemon ended with status 1: no such device",
            ),
            (
                MpsFailure::DaemonSilent {
                    limit: Duration::from_secs(10),
                    last_line,
                },
                "the MPS daemon did not answer within 10s: no such device",
            ),
            (
                MpsFailure::ServerFailed,
                "a replica on this GPU caused a fatal fault of the MPS server",
            ),
            (
                MpsFailure::ServerNotRecovered,
                "the MPS server did not recover from a fatal fault",
            ),
            (
                MpsFailure::NoClients { pid: 7 },
                "CUDA does not use MPS in worker 7",
            ),
            (
                MpsFailure::ShareIgnored {
                    pid: 7,
                    share,
                    multiprocessors: 132,
                },
                "CUDA does not use MPS in worker 7: it has a compute share of 50 % and may use all 132 multiprocessors",
            ),
        ] {
            assert_eq!(failure.to_string(), sentence);
        }
    }
}
