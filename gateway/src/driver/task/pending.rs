//! The requests and batches that have not ended.

use std::sync::Arc;

use packhorse_cluster::Time;
use packhorse_serving::{BatchKey, ReplicaKey, RequestKey};
use tokio::sync::{OwnedSemaphorePermit, oneshot};

use crate::{
    driver::{
        batch_failure::BatchFailure,
        request::{RequestResult, Submission},
        served_model::ServedModel,
        shape_class::Membership,
    },
    telemetry::{BatchIdentity, BatchStages, ReplicaNumber, RequestBatch, RequestCourse, Waits},
};

/// A request that has not ended.
#[derive(Debug)]
pub(super) struct PendingRequest {
    pub(super) submission: Submission,
    pub(super) answer: oneshot::Sender<RequestResult>,
    pub(super) arrived: Time,
    pub(super) membership: Membership,
    /// The model that its last batch was sent to.
    pub(super) model: Option<Arc<ServedModel>>,
    /// The reason why its batch failed, once it has.
    pub(super) failure: Option<Arc<BatchFailure>>,
    /// Its course until its last batch did not come back.
    pub(super) course: RequestCourse,
    /// The request's share of the request limit, released when the request ends.
    pub(super) permit: OwnedSemaphorePermit,
}

impl PendingRequest {
    /// Ends the request. Its share of the request limit is free before the client can know that it ended.
    pub(super) fn end(self, result: RequestResult) {
        drop(self.permit);
        // A client that has stopped waiting has sent a cancellation.
        let _ = self.answer.send(result);
    }
}

/// A batch that was dispatched and has not come back.
#[derive(Debug)]
pub(super) struct InFlightBatch {
    pub(super) model: Arc<ServedModel>,
    pub(super) replica: ReplicaKey,
    /// The requests in the order of their rows, with the number of rows of each. Some may have been cancelled since.
    pub(super) requests: Vec<(RequestKey, u32)>,
    pub(super) dispatched: Time,
    /// The time at which the last of the requests arrived.
    pub(super) last_arrival: Time,
    /// The time at which the weights of the model came to the device; zero if they were always there.
    pub(super) loaded: Time,
}

impl InFlightBatch {
    pub(super) fn rows(&self) -> u32 {
        self.requests.iter().map(|(_, rows)| rows).sum()
    }

    /// Returns the batch for the records.
    pub(super) fn identity(&self, key: BatchKey) -> BatchIdentity {
        BatchIdentity {
            key: key.0,
            replica: ReplicaNumber(self.replica.0),
            dispatched: self.dispatched,
            requests: u32::try_from(self.requests.len()).unwrap_or(u32::MAX),
            rows: self.rows(),
        }
    }

    /// Returns the course of a request of the batch.
    pub(super) fn course(
        &self,
        batch: RequestBatch,
        request: &PendingRequest,
        stages: BatchStages,
    ) -> RequestCourse {
        let waits = self.waits(request.arrived);
        RequestCourse {
            batch: Some(batch),
            decode: request.course.decode,
            cache: request.course.cache,
            lookup: request.course.lookup,
            inbox: request.course.inbox,
            load: waits.load.into(),
            batch_wait: waits.batch.into(),
            queue: waits.queue.into(),
            stages,
        }
    }

    /// Returns what a request of the batch waited for, which arrived then.
    pub(super) fn waits(&self, arrived: Time) -> Waits {
        Waits::new(arrived, self.loaded, self.last_arrival, self.dispatched)
    }
}
