//! A request between the HTTP handlers and the data plane, and what comes of it.

use std::sync::Arc;

use bytes::Bytes;
use packhorse_cluster::{Shape, Time};
use packhorse_protocol::Tensor;
use packhorse_serving::{Refusal, RequestId};
use tokio::sync::{OwnedSemaphorePermit, oneshot};

use super::catalog::ServedModel;

/// A valid request.
#[derive(Debug)]
pub(crate) struct Submission {
    /// The model it is for.
    pub(crate) model: Arc<ServedModel>,
    /// In the model's order, each as its signature wants it.
    pub(crate) inputs: Vec<Tensor>,
    /// Rows it adds to a batch.
    pub(crate) rows: u32,
    /// 0 for the default, else 1 is the most urgent.
    pub(crate) priority: u64,
    /// When the answer is due.
    pub(crate) deadline: Time,
}

/// A request on its way to the driver.
#[derive(Debug)]
pub(super) struct Submitted {
    pub(super) id: RequestId,
    pub(super) submission: Submission,
    pub(super) answer: oneshot::Sender<Result<Vec<OutputRows>, Unanswered>>,
    /// Its place among all requests, held until it ends.
    pub(super) place: OwnedSemaphorePermit,
}

/// A request's rows of one output. They agree with what the model declares of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct OutputRows {
    /// The rows' shape.
    pub(crate) shape: Shape,
    /// A slice of what the worker sent.
    pub(crate) data: Bytes,
}

/// Why there is no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Unanswered {
    /// The engine did not accept it.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// As many requests are under way as may.
    #[error("{limit} requests are under way, which is the limit")]
    Busy {
        /// The limit.
        limit: usize,
    },
    /// The gateway ends.
    #[error("the gateway is shutting down")]
    ShuttingDown,
    /// The deadline passed in the queue.
    #[error("the deadline passed before a replica was free")]
    Expired,
    /// Its worker was lost, and there was no time for another; or its model was removed.
    #[error("the worker was lost and there was no time to try another")]
    Lost,
    /// The module threw, or answered what it does not declare.
    #[error("{0}")]
    Failed(Arc<str>),
}
