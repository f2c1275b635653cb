//! The end of a request.

use std::time::Duration;

/// The way in which a request ended. Every request has exactly one outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestOutcome {
    /// The model answered it.
    Answered,
    /// The request was never accepted.
    Refused(Refusal),
    /// The request was accepted, and then could no longer make its deadline.
    Expired,
    /// The request was accepted, but its worker, or the batch that it shared, failed with no time or attempts left for another one, or its model
    /// was removed.
    Lost,
    /// The model failed on the request alone; there was no other try.
    Failed,
    /// The request's client stopped waiting.
    Cancelled,
}

/// The reason why a request was refused at once. The last two are the driver's own; the engine never gives them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The model does not exist.
    #[error("there is no such model")]
    UnknownModel,
    /// No replica of the model is ready: not started yet, or being replaced.
    #[error("no replica of the model is ready; retry later")]
    NoReplica,
    /// The model's queue holds as many requests as its limit allows.
    #[error("the model's queue is full: queue_limit is {limit} requests; retry later")]
    QueueFull {
        /// The most requests that may wait.
        limit: usize,
    },
    /// No replica can answer before the deadline, by the estimate.
    #[error("no replica can answer before the deadline")]
    CannotMeetDeadline,
    /// The weights of the model are in files only, and loading them takes longer than the request may wait. They are loaded all the same.
    #[error(
        "the model is loaded from its file, which takes longer than a request of it may wait; it should be there in {} s",
        retry_after.as_secs_f64().ceil()
    )]
    Loading {
        /// The time until it should be loaded.
        retry_after: Duration,
    },
    /// Requests of the tenant ended workers of the model of late, so that it is refused for a while, or has one request at a time.
    #[error(
        "requests of this client ended workers of the model, or had them hang; the next one is taken in {} s",
        retry_after.as_secs_f64().ceil()
    )]
    TenantPaused {
        /// The time after which to retry.
        retry_after: Duration,
    },
    /// The driver holds as many requests as its limit allows.
    #[error("the gateway is at its limit of {limit} concurrent requests; retry later")]
    TooManyRequests {
        /// The most requests between arrival and answer.
        limit: usize,
    },
    /// The driver is ending.
    #[error("the gateway is shutting down")]
    ShuttingDown,
}
