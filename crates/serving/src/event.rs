//! What the engine is told and what it answers.

use std::time::Duration;

use packhorse_cluster::Time;
use packhorse_contention::ServiceTimes;

macro_rules! key {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub $inner);
    };
}

key!(
    /// A model version, by a number of the driver's choice.
    ModelKey(u32)
);
key!(
    /// A replica, by a number of the driver's choice. A key is not used again before its replica was lost or drained.
    ReplicaKey(u32)
);
key!(
    /// A request, by a number of the driver's choice. A number is not used again before its request ended.
    RequestId(u64)
);
key!(
    /// A batch, by a number of the engine's choice, never used twice.
    BatchId(u64)
);
key!(
    /// What requests must have in common to share a batch: the driver's number for their non-batch shapes.
    ShapeClass(u64)
);

/// What the engine must know of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModelLimits {
    /// The most rows of one batch; 1 for a model that does not batch.
    pub max_batch_rows: u32,
    /// The most requests that wait; one more is refused.
    pub queue_limit: usize,
}

impl ModelLimits {
    /// How many requests wait at most, where nobody says otherwise.
    pub const DEFAULT_QUEUE_LIMIT: usize = 4096;
}

/// A device, by a number that the driver gives it: replicas of one device slow each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DeviceKey(pub u32);

/// What the engine must know of a replica that is ready.
#[derive(Clone, Debug, PartialEq)]
pub struct ReplicaSpec {
    /// The model it serves.
    pub model: ModelKey,
    /// The most rows that requests share in one batch here, at least 1 and at most what `service` knows. A request that alone has
    /// more is a batch by itself: the plan chose the batch size for speed, not to turn requests away.
    pub batch_size: u32,
    /// How many batches it may hold at a time, at least 1: see [`ReplicaSpec::DEFAULT_CREDITS`].
    pub credits: u32,
    /// How long its batches should take, up to the most rows that it takes at all: those of its model.
    pub service: ServiceTimes,
    /// The device that it computes on.
    pub device: DeviceKey,
}

impl ReplicaSpec {
    /// One batch computing, one being copied.
    pub const DEFAULT_CREDITS: u32 = 2;
}

/// A request as it arrives. Valid by its model's signature: the driver has seen to that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// Its number.
    pub id: RequestId,
    /// The model it is for.
    pub model: ModelKey,
    /// Rows it adds to a batch, at least 1.
    pub rows: u32,
    /// Which requests it may share a batch with.
    pub class: ShapeClass,
    /// As Triton counts: 1 is the highest, larger is lower, 0 is the default, which lies between 2 and 4.
    pub priority: u64,
    /// When the answer is due.
    pub deadline: Time,
}

/// Something that happened.
///
/// Events about a replica, batch or request that the engine no longer knows are ignored: they were on their way when it ended.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// A model can be asked for from now on, or its limits changed.
    ModelUp {
        /// Which model.
        model: ModelKey,
        /// Its limits.
        limits: ModelLimits,
    },
    /// A model is no longer served: what waits ends as [`Outcome::Lost`], what is being computed is answered, its replicas
    /// drain.
    ModelGone {
        /// Which model.
        model: ModelKey,
    },
    /// A replica is ready. One of a model that is not there is given back at once ([`Action::Drained`]).
    ReplicaUp {
        /// Its key.
        replica: ReplicaKey,
        /// What it can do.
        spec: ReplicaSpec,
    },
    /// A replica shall get no further batches; [`Action::Drained`] follows once it has none.
    ReplicaDraining {
        /// Which replica.
        replica: ReplicaKey,
    },
    /// A replica is gone with whatever it held: its batches are void, their requests are tried again where time and attempts
    /// allow.
    ReplicaLost {
        /// Which replica.
        replica: ReplicaKey,
    },
    /// A replica was found to have memory for batches of at most so many rows, at least 1. What it holds is not touched; a limit above
    /// the one there is changes nothing.
    ReplicaFits {
        /// Which replica.
        replica: ReplicaKey,
        /// The most rows that it takes from now on, of one request or of several.
        rows: u32,
    },
    /// A request arrived.
    Arrive(Request),
    /// Nobody waits for this request any more. It ends here without an [`Action::Finish`]; if it is being computed, the driver
    /// throws its rows away.
    Cancel {
        /// Which request.
        request: RequestId,
    },
    /// A batch came back: every request of it that was not cancelled is answered.
    BatchDone {
        /// Which batch.
        batch: BatchId,
        /// How long it waited for those before it, once it was there.
        queue_wait: Duration,
        /// How long the worker computed it.
        compute: Duration,
    },
    /// A batch came back with an error of the module: its requests end as [`Outcome::Failed`], without another try.
    BatchFailed {
        /// Which batch.
        batch: BatchId,
    },
    /// A batch came back that was too large to be computed: its requests are tried again, in others, where time and attempts allow.
    BatchReturned {
        /// Which batch.
        batch: BatchId,
    },
}

/// Something the driver shall do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Send these requests as one batch, in this order.
    Dispatch {
        /// The batch's number.
        batch: BatchId,
        /// Where to.
        replica: ReplicaKey,
        /// Its requests, at least one.
        requests: Vec<RequestId>,
    },
    /// Tell the client that there will be no answer, and why. A request gets at most one of these.
    Finish {
        /// Which request.
        request: RequestId,
        /// Why.
        outcome: Outcome,
    },
    /// The draining replica holds nothing any more and is forgotten: it can be stopped.
    Drained {
        /// Which replica.
        replica: ReplicaKey,
    },
}

/// How a request ends that is not answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It was never accepted.
    Refused(Refusal),
    /// It was accepted, and then could no longer make its deadline.
    Expired,
    /// It was accepted, but what should have served it is gone: its worker, with no time or attempts left for another; or its
    /// model.
    Lost,
    /// The module threw.
    Failed,
}

/// Why a request is refused at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// There is no such model.
    #[error("unknown model")]
    UnknownModel,
    /// No replica of the model is ready: not started yet, or being replaced.
    #[error("no replica of the model is ready")]
    NoReplica,
    /// As many requests wait as may.
    #[error("the queue is full: {limit} requests wait")]
    QueueFull {
        /// The queue's limit.
        limit: usize,
    },
    /// By the estimate no replica can answer before the deadline.
    #[error("no replica can answer before the deadline")]
    Hopeless,
}
