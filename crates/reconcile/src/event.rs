//! The input and the output of a [`Reconciler`](crate::Reconciler).

use packhorse_cluster::{ArtifactDigest, WantedState};

use crate::{ExitCause, Task, TaskId, WorkerReport};

/// An input of a [`Reconciler`](crate::Reconciler).
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// The gateway granted the lease in this epoch; wanted states of older epochs are ignored from now on.
    Leased {
        /// The gateway's epoch.
        epoch: u64,
    },
    /// The gateway of another cluster granted the lease in this epoch, and proved that it may. Its epochs have nothing to do with those
    /// seen before. The workers serve on until it says what it wants, and those that it does not want for the grace time of
    /// [`Limits`](crate::Limits), as long as it needs nothing else on their devices: it may be there by mistake, with an empty store.
    ClusterChanged {
        /// The gateway's epoch.
        epoch: u64,
    },
    /// The gateway sent a wanted state.
    Wanted(WantedState),
    /// The artifact is in the cache: it was found there at the start, or fetched.
    Fetched(ArtifactDigest),
    /// The process was not started, because the artifact is not in the cache any more.
    ArtifactGone(TaskId, ArtifactDigest),
    /// The artifact could not be fetched; with the error as text.
    FetchFailed(ArtifactDigest, String),
    /// A worker of an earlier agent still runs; with its process id.
    Found(Task, u32),
    /// The process was started; with its process id.
    Started(TaskId, u32),
    /// The process could not be started; with the error as text.
    StartFailed(TaskId, String),
    /// The worker's report changed.
    Reported(TaskId, WorkerReport),
    /// The worker cannot report, with the reason as text; `None` once it can again. What it reported before may be out of date.
    ReportsFail(TaskId, Option<String>),
    /// The process ended.
    Exited(TaskId, ExitCause),
    /// The device, by its name within the node, failed, and with it every process on it; with the cause as text.
    DeviceFailed(String, String),
    /// The device, by its name within the node, accepts workers again.
    DeviceRecovered(String),
    /// The agent ends and stops its workers; nothing is wanted from now on.
    StopAll,
}

/// An output of a [`Reconciler`](crate::Reconciler): an action of the driver. Its outcome comes back as an [`Event`] if the
/// variant names one.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Fetch the artifact into the cache: [`Event::Fetched`] or [`Event::FetchFailed`].
    Fetch(ArtifactDigest),
    /// Remove the artifact from the cache.
    Evict(ArtifactDigest),
    /// Start a worker: [`Event::Started`], [`Event::StartFailed`] or [`Event::ArtifactGone`].
    Start(Task),
    /// Tell the worker to finish what it has and end: [`Event::Exited`].
    Terminate(TaskId),
    /// Kill the worker: [`Event::Exited`].
    Kill(TaskId),
    /// Remove the files of a task that has no process and is not wanted.
    Forget(TaskId),
}
