//! The messages to the driver's task.

use std::{collections::BTreeMap, time::Duration};

use packhorse_cluster::{ReplicaId, Time};
use packhorse_serving::{ReplicaKey, RequestKey};
use tokio::sync::oneshot;

use super::{computed_work::ComputedWork, request::SubmittedRequest, target::Target};
use crate::workers::LinkEvent;

/// A message to the driver's task. The inbox needs no limit of its own: a request sends at most two messages, a link at most one
/// per batch that it was given.
#[derive(Debug)]
pub(super) enum DriverMessage {
    /// The target was replaced.
    SetTarget(Target),
    /// A request arrived.
    Submit(Box<SubmittedRequest>),
    /// The client of a request stopped waiting.
    Cancel(RequestKey),
    /// Asks for the work of the target's replicas.
    GetWork(oneshot::Sender<BTreeMap<ReplicaId, ComputedWork>>),
    /// A link reported an event, at this time.
    Link(ReplicaKey, LinkEvent, Time),
    /// Ends the task once the last request is answered, or this time has passed; no further request is taken.
    Shutdown(Duration),
}
