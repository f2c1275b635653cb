//! The time limits of worker processes.

use std::time::Duration;

/// The time limits of worker processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The time from telling a worker to end until it is killed.
    pub drain: Duration,
    /// The time from a worker's start until it must be ready.
    pub load: Duration,
    /// The time that a measurement may take in addition to its own time limit, loading included.
    pub measure_grace: Duration,
    /// The time that an inspection may take.
    pub inspect: Duration,
    /// The time for which the workers of the former cluster serve on when another one has taken the node over and does not want them.
    pub former_cluster: Duration,
}
