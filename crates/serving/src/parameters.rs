//! The properties of models and replicas that the engine decides with.

use std::{sync::Arc, time::Duration};

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
    /// The way in which it has the device.
    pub sharing: DeviceSharing,
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

/// The way in which a replica has its device.
#[derive(Clone, Debug, PartialEq)]
pub enum DeviceSharing {
    /// It computes whenever it has a batch, beside whoever else does.
    Concurrent,
    /// It takes turns with the other such replicas of the device, one batch at a time.
    Turns,
    /// It is a member of the device's pool: the engine decides among all of them which one computes, and whose weights the device holds.
    Pool(PoolMember),
}

impl DeviceSharing {
    /// Returns the sharing without a pool: by turns, or not.
    pub fn by_turns(turns: bool) -> Self {
        if turns { Self::Turns } else { Self::Concurrent }
    }
}

/// A replica as a member of its device's pool.
#[derive(Clone, Debug, PartialEq)]
pub struct PoolMember {
    /// The bytes of its weights.
    pub weights: u64,
    /// The bytes that the weights of all members on the device may have together.
    pub memory: u64,
    /// The time to bring its weights to the device from where they are.
    pub load: Duration,
    /// True if the device has its weights now.
    pub resident: bool,
    /// True if its weights are in a file only, and not in the memory of the device's node.
    pub on_disk: bool,
    /// The part of the multiprocessors, between 0 and 1, that a batch uses; entry `i` is for `i + 1` rows. Of missing ones it is 1.
    pub utilization: Arc<[f64]>,
}

impl PoolMember {
    /// Returns the part of the multiprocessors that a batch of `rows` rows uses.
    pub(crate) fn utilization(&self, rows: u32) -> f64 {
        let index = (rows as usize).saturating_sub(1);
        self.utilization.get(index).copied().unwrap_or(1.0)
    }
}
