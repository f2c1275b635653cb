//! What was seen of replicas that share a device: the feedback from which placement learns how they slow each other.

use crate::{ComputeShare, DeviceKind, ModelId};

/// One device over one period. Also one that a single replica has to itself: that tells how far its profile is off.
#[derive(Clone, Debug, PartialEq)]
pub struct DeviceObservation {
    /// What kind of device.
    pub kind: DeviceKind,
    /// Every replica that computed on it in the period.
    pub replicas: Vec<ReplicaObservation>,
}

/// One replica of an observed device.
#[derive(Clone, Debug, PartialEq)]
pub struct ReplicaObservation {
    /// Which model.
    pub model: ModelId,
    /// The share of the multiprocessors it may use; `None` sets no limit.
    pub compute_share: Option<ComputeShare>,
    /// Batches that it computed in the period: the weight of what follows.
    pub batches: u64,
    /// Their mean rows.
    pub mean_rows: f64,
    /// The fraction of the period in which it was computing, from 0 to 1.
    pub busy: f64,
    /// The sum of their compute times over the sum of what is expected of each alone on the device with the same share: 1 is
    /// undisturbed.
    pub slowdown: f64,
}
