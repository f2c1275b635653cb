//! The properties of models and replicas that the engine decides with.

use packhorse_contention::ServiceTimes;

use crate::{DeviceKey, ModelKey};

/// The limits of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModelLimits {
    /// The most rows of one batch; 1 for a model that does not batch.
    pub max_batch_rows: u32,
    /// The most bytes of the inputs of a batch that requests share. A request that alone has more is a batch by itself.
    pub max_batch_bytes: u64,
    /// The most requests that wait; a further one is refused.
    pub queue_limit: usize,
}

impl ModelLimits {
    /// The default of [`ModelLimits::queue_limit`], in requests.
    pub const DEFAULT_QUEUE_LIMIT: usize = 4096;
}

/// The parameters of a replica that is ready.
#[derive(Clone, Debug, PartialEq)]
pub struct ReplicaParameters {
    /// The model that it serves.
    pub model: ModelKey,
    /// The most rows that requests share in one batch here, at least 1 and at most the largest size of `service`. A request
    /// that alone has more is a batch by itself: the plan chose the batch size for speed, not to turn requests away.
    pub batch_size: u32,
    /// The most batches that its worker takes at a time, at least 1. It gets as many as keep it busy, between
    /// [`ReplicaParameters::LEAST_CREDITS`] and [`ReplicaParameters::MOST_CREDITS`], if the worker takes so many.
    pub in_flight: u32,
    /// The expected compute times of its batches, up to the most rows that its model takes.
    pub service: ServiceTimes,
    /// The device that it computes on.
    pub device: DeviceKey,
    /// True if it shares the device in time with other such replicas: they take turns, one batch at a time. If false, it computes
    /// whenever it has a batch. [`crate::Event::TimeSharingChanged`] changes it.
    pub time_shared: bool,
    /// True if its worker reads inputs from memory that it shares with the gateway. If false, they are transmitted to it.
    pub shares_memory: bool,
}

impl ReplicaParameters {
    /// The fewest batches that keep a replica busy: one computes while another one is on its way.
    pub const LEAST_CREDITS: u32 = 2;

    /// The most batches that a replica gets at a time, however long they travel: a batch that is bound early is bound to what was
    /// known then.
    pub const MOST_CREDITS: u32 = 16;
}
