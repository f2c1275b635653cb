//! Records that devices and models keep of loads from files for requests that were refused.

use std::time::Duration;

use packhorse_cluster::Time;

/// The room of a device for a load.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SpareRoom {
    /// The bytes that are free, or of members that are not in use.
    pub(crate) unused: u64,
    /// Those, and the bytes of members for which nothing waits.
    pub(crate) waited_for_by_none: u64,
    /// True if a file is being read.
    pub(crate) is_reading: bool,
}

/// The beginning of a load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Beginning {
    /// Now, and it should be done at this time.
    Now {
        /// The time at which it should be done.
        loaded: Time,
        /// True if it goes before loads for requests that wait.
        is_overdue: bool,
    },
    /// At this time, if nothing changes before.
    At(Time),
    /// Not before something changes.
    Never,
}

/// The loads before another one, together.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LoadsBefore {
    /// The bytes of their weights.
    pub(crate) weights: u64,
    /// The time that they take.
    pub(crate) loads: Duration,
    /// The time after them in which no other begins.
    pub(crate) pauses: Duration,
}

/// The times that those are told who cannot wait for a model that is in files only.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AskedFor {
    /// The time at which the first of them came.
    pub(crate) since: Time,
    /// The time at which one that comes then should be answered.
    pub(crate) due: Time,
}
