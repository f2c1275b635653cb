//! A request between the HTTP handlers and the data plane, and its result.

use std::sync::Arc;

use packhorse_cluster::Time;
use packhorse_protocol::Tensor;
use packhorse_serving::{RequestKey, RequestOutcome, TenantKey};
use tokio::sync::{OwnedSemaphorePermit, oneshot};

use super::{
    batch::OutputRows, batch_failure::BatchFailure, requested_model::RequestedModel,
    served_model::ServedModel,
};
use crate::{telemetry::RequestCourse, tenant::TenantName};

/// A valid request.
#[derive(Debug)]
pub(crate) struct Submission {
    /// The model that shall answer it, or the family, of which the most accurate variant shall that can be in time.
    pub(crate) requested: RequestedModel,
    /// The tenant that sends it.
    pub(crate) tenant: TenantKey,
    /// The name of the tenant, for people.
    pub(crate) tenant_name: TenantName,
    /// The inputs in the model's order, each checked against its signature.
    pub(crate) inputs: Vec<Tensor>,
    /// The rows that it adds to a batch.
    pub(crate) rows: u32,
    /// The priority: 1 is the most urgent, 0 is the default.
    pub(crate) priority: u64,
    /// The time at which the answer is due.
    pub(crate) deadline: Time,
    /// The same, if the model has to be loaded from its file first.
    pub(crate) load_by: Time,
}

impl Submission {
    /// Returns the address of its first input's first byte; `None` if that has none.
    pub(super) fn address(&self) -> Option<usize> {
        let first = self.inputs.first()?.data().chunks().next()?;
        Some(first.as_ptr().addr())
    }
}

/// The result of a request.
pub(crate) type RequestResult = Result<AnsweredRequest, UnansweredRequest>;

/// The answer to a request.
#[derive(Debug)]
pub(crate) struct AnsweredRequest {
    /// The model that answered.
    pub(crate) model: Arc<ServedModel>,
    /// Its rows of each output, in the model's order.
    pub(crate) outputs: Vec<OutputRows>,
    /// Its course through the data plane.
    pub(crate) course: RequestCourse,
}

/// A request on its way to the driver.
#[derive(Debug)]
pub(super) struct SubmittedRequest {
    pub(super) key: RequestKey,
    pub(super) submission: Submission,
    /// The time at which it was put into the driver's inbox.
    pub(super) submitted: Time,
    pub(super) answer: oneshot::Sender<RequestResult>,
    /// The request's share of the request limit, held until it ends.
    pub(super) permit: OwnedSemaphorePermit,
}

/// The end of a request without an answer.
#[derive(Clone, Debug)]
pub(crate) struct UnansweredRequest {
    /// The way in which the request ended.
    pub(crate) outcome: RequestOutcome,
    /// The model that had it last; none if no batch of it was sent.
    pub(crate) model: Option<Arc<ServedModel>>,
    /// The reason why its batch failed, if the request ended as [`RequestOutcome::Failed`].
    pub(crate) failure: Option<Arc<BatchFailure>>,
    /// Its course through the data plane.
    pub(crate) course: RequestCourse,
}

impl From<RequestOutcome> for UnansweredRequest {
    fn from(outcome: RequestOutcome) -> Self {
        Self {
            outcome,
            model: None,
            failure: None,
            course: RequestCourse::default(),
        }
    }
}
