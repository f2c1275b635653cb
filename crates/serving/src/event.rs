//! The engine's input and output: events and actions.

use std::time::Duration;

use crate::{
    BatchKey, ModelKey, ModelLimits, ReplicaKey, ReplicaParameters, Request, RequestKey,
    RequestOutcome,
};

/// An event of the world around the engine.
///
/// Events about a replica, batch or request that the engine no longer has are ignored: they were on their way when it ended.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// A model takes requests from now on, or its limits changed.
    ModelUpdated {
        /// The model.
        model: ModelKey,
        /// Its limits.
        limits: ModelLimits,
    },
    /// A model is no longer served: its waiting requests end as [`RequestOutcome::Lost`], its batches in flight are still
    /// answered, its replicas drain.
    ModelRemoved {
        /// The model.
        model: ModelKey,
    },
    /// A replica is ready. A replica of an unknown model is given back at once ([`Action::ReplicaDrained`]).
    ReplicaReady {
        /// The replica.
        replica: ReplicaKey,
        /// Its parameters.
        parameters: ReplicaParameters,
    },
    /// A replica shall get no further batches; [`Action::ReplicaDrained`] follows once it holds none.
    ReplicaDraining {
        /// The replica.
        replica: ReplicaKey,
    },
    /// A replica is gone with the batches that it held: these are void, and their requests are tried again where time and
    /// attempts allow.
    ReplicaLost {
        /// The replica.
        replica: ReplicaKey,
    },
    /// A replica was found to have memory for smaller batches only. The batches that it holds are not touched; a limit above
    /// the present one changes nothing.
    BatchLimitLowered {
        /// The replica.
        replica: ReplicaKey,
        /// The most rows of a batch from now on, at least 1, of one request or of several.
        rows: u32,
    },
    /// A replica shares its device in time from now on, or no longer: see [`ReplicaParameters::time_shared`].
    TimeSharingChanged {
        /// The replica.
        replica: ReplicaKey,
        /// True if it takes turns with the other time-shared replicas of its device.
        time_shared: bool,
    },
    /// A request arrived.
    RequestArrived(Request),
    /// The client of a request stopped waiting. The request ends here without an [`Action::Finish`]; if it is being computed,
    /// the driver discards its rows.
    RequestCancelled {
        /// The request.
        request: RequestKey,
    },
    /// A batch was computed: every request of it that was not cancelled is answered.
    BatchCompleted {
        /// The batch.
        batch: BatchKey,
        /// The time for which the batch waited at the worker behind earlier ones.
        queue_wait: Duration,
        /// The time for which the worker computed it.
        compute: Duration,
    },
    /// A batch failed with an error of the model: its requests end as [`RequestOutcome::Failed`], without another try.
    BatchFailed {
        /// The batch.
        batch: BatchKey,
    },
    /// A batch was too large to be computed: its requests are tried again in other batches where time and attempts allow.
    BatchReturned {
        /// The batch.
        batch: BatchKey,
    },
}

/// An action that the driver shall carry out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Sends these requests as one batch, in this order.
    Dispatch {
        /// The batch's number.
        batch: BatchKey,
        /// The replica that computes it.
        replica: ReplicaKey,
        /// The batch's requests, at least one.
        requests: Vec<RequestKey>,
    },
    /// Tells the client that there will be no answer, and why. A request gets at most one of these.
    Finish {
        /// The request.
        request: RequestKey,
        /// The reason: refused, expired, lost or failed.
        outcome: RequestOutcome,
    },
    /// The draining replica holds nothing any more and is forgotten: it can be stopped.
    ReplicaDrained {
        /// The replica.
        replica: ReplicaKey,
    },
}
