//! The messages to a driver.

use std::{collections::BTreeMap, fmt, sync::Arc, time::Duration};

use packhorse_cluster::{ReplicaId, Time};
use packhorse_control::ComputedWork;
use packhorse_serving::{ReplicaKey, RequestKey};
use tokio::sync::mpsc;

use super::{home::Home, request::SubmittedRequest};
use crate::workers::LinkEvent;

/// A message to a driver. The inbox needs no limit of its own: a request sends at most two messages, a link at most one per batch that it was given.
#[derive(Debug)]
pub(super) enum DriverMessage {
    /// A request arrived.
    Submit(Box<SubmittedRequest>),
    /// The client of a request stopped waiting. It goes to every driver: the request may wait for a fallback that its model no longer has.
    Cancel(RequestKey),
    /// Has the driver panic.
    #[cfg(test)]
    Panic,
    /// Asks for the work of the replicas.
    GetWork(mpsc::UnboundedSender<BTreeMap<ReplicaId, ComputedWork>>),
    /// The link to a replica of a model with this home reported an event, at this time.
    Link(Arc<Home>, ReplicaKey, LinkEvent, Time),
    /// Ends the driver once the last request is answered, or this time has passed; no further request is taken.
    Shutdown(Duration),
}

impl DriverMessage {
    /// Returns the home of the model that the message is for, if it is for one.
    pub(super) fn home(&self) -> Option<&Home> {
        match self {
            Self::Submit(request) => Some(&request.submission.requested.model.home),
            Self::Link(home, ..) => Some(home),
            Self::Cancel(_) | Self::GetWork(_) | Self::Shutdown(_) => None,
            #[cfg(test)]
            Self::Panic => None,
        }
    }
}

/// The way of messages into the inboxes, for links: it does not keep the data plane alive.
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
