//! The messages to the driver's task.

use std::{collections::BTreeMap, fmt, sync::Arc, time::Duration};

use packhorse_cluster::{ReplicaId, Time};
use packhorse_control::{ComputedWork, ServeChange};
use packhorse_serving::{ReplicaKey, RequestKey};
use tokio::sync::oneshot;

use super::request::SubmittedRequest;
use crate::workers::LinkEvent;

/// A message to the driver's task. The inbox needs no limit of its own: a request sends at most two messages, a link at most one
/// per batch that it was given.
#[derive(Debug)]
pub(super) enum DriverMessage {
    /// The control plane changed what shall be served.
    Serve(Vec<ServeChange>),
    /// A request arrived.
    Submit(Box<SubmittedRequest>),
    /// The client of a request stopped waiting.
    Cancel(RequestKey),
    /// Has the task panic.
    #[cfg(test)]
    Panic,
    /// Asks for the work of the replicas.
    GetWork(oneshot::Sender<BTreeMap<ReplicaId, ComputedWork>>),
    /// A link reported an event, at this time.
    Link(ReplicaKey, LinkEvent, Time),
    /// Ends the task once the last request is answered, or this time has passed; no further request is taken.
    Shutdown(Duration),
}

/// The way of messages into the inbox, for links: it does not keep the data plane alive.
#[derive(Clone)]
pub(super) struct Post(Arc<dyn Fn(DriverMessage) + Send + Sync>);

impl Post {
    pub(super) fn new(send: impl Fn(DriverMessage) + Send + Sync + 'static) -> Self {
        Self(Arc::new(send))
    }

    /// Sends a message, unless the data plane has ended.
    pub(super) fn send(&self, message: DriverMessage) {
        (self.0)(message);
    }
}

impl fmt::Debug for Post {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Post").finish_non_exhaustive()
    }
}
