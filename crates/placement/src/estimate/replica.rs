//! A replica with the state that the estimate computes for it.

use packhorse_cluster::ComputeShare;

use super::neighbours::RelativeSpeed;

/// A replica on a device, with its load, its speed and the fraction of its requests in time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EstimatedReplica {
    pub(crate) device: usize,
    pub(crate) model: usize,
    pub(crate) batch: u32,
    pub(crate) share: Option<ComputeShare>,
    /// Requests per second that arrive at the replica.
    pub(crate) arrival_rate: f64,
    /// Mean rows of a batch in the normal state.
    pub(crate) rows: f64,
    /// The fraction of time in which the replica computes.
    pub(crate) busy: f64,
    /// Percent of the device that a batch of `rows` uses while it computes.
    pub(crate) utilization: f64,
    /// Rows of a batch in the backlog state: as many as are in time, at most `batch`.
    pub(crate) backlog_rows: f64,
    /// Percent of the device that a batch of `backlog_rows` uses.
    pub(crate) backlog_utilization: f64,
    /// Rows of a batch during a burst.
    pub(crate) burst_rows: f64,
    /// Percent of the device that a batch of `burst_rows` uses.
    pub(crate) burst_utilization: f64,
    /// The speed during a burst, when all replicas of the model are busy.
    pub(crate) burst_speed: RelativeSpeed,
    /// The speed beside the neighbours in the normal state.
    pub(crate) speed: RelativeSpeed,
    /// Requests per second in batches of `backlog_rows` beside the neighbours.
    pub(crate) capacity: f64,
    /// Seconds that a full batch takes beside the neighbours.
    pub(crate) full_batch_seconds: f64,
    /// The times of its requests without a queue.
    pub(crate) estimate: ReplicaEstimate,
    /// True if the replica does not run yet.
    pub(crate) is_new: bool,
}

impl EstimatedReplica {
    /// Returns true if the replica has this model, batch size and share.
    pub(crate) fn matches(&self, model: usize, batch: u32, share: Option<ComputeShare>) -> bool {
        (self.model, self.batch, self.share) == (model, batch, share)
    }
}

/// The times of a replica's requests if no queue forms.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ReplicaEstimate {
    /// The fraction of requests in time.
    pub(super) in_time: f64,
    /// The fraction of requests in time if each that finds all replicas busy waits for one whole batch.
    pub(super) in_time_conservative: f64,
    /// Seconds that a request may wait in the queue.
    pub(super) patience: f64,
    /// The dispersion of the service times, in requests.
    pub(super) dispersion: f64,
    /// The latency in seconds of a request that waits longest.
    pub(super) latency: f64,
}
