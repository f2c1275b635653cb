//! The requests and batches that have not ended.

use std::sync::Arc;

use packhorse_cluster::Time;
use packhorse_serving::{ReplicaKey, RequestKey};
use tokio::sync::{OwnedSemaphorePermit, oneshot};

use crate::driver::{
    batch_failure::BatchFailure,
    catalog::ServedModel,
    request::{RequestResult, Submission},
    shape_class::Membership,
};

/// A request that has not ended.
pub(super) struct PendingRequest {
    pub(super) submission: Submission,
    pub(super) answer: oneshot::Sender<RequestResult>,
    pub(super) arrived: Time,
    pub(super) membership: Membership,
    /// The reason why its batch failed, once it has.
    pub(super) failure: Option<Arc<BatchFailure>>,
    /// The request's share of the request limit, released when the request ends.
    pub(super) _permit: OwnedSemaphorePermit,
}

/// A batch that was dispatched and has not come back.
pub(super) struct InFlightBatch {
    pub(super) model: Arc<ServedModel>,
    pub(super) replica: ReplicaKey,
    /// The requests in their order, with the rows of each. Some may have been cancelled since.
    pub(super) requests: Vec<(RequestKey, u32)>,
    pub(super) dispatched: Time,
}

impl InFlightBatch {
    pub(super) fn rows(&self) -> u32 {
        self.requests.iter().map(|(_, rows)| rows).sum()
    }
}
