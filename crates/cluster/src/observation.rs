//! Observations of devices, from which placement learns how much replicas that share a device slow each other.

use crate::{ComputeShare, DeviceKind, ModelId};

/// The observation of one device over one period. A device with a single replica is observed too: it shows the error of that replica's
/// profile.
#[derive(Clone, Debug, PartialEq)]
pub struct DeviceObservation {
    /// The kind of the device.
    pub kind: DeviceKind,
    /// Every replica that computed on the device in the period.
    pub replicas: Vec<ReplicaObservation>,
}

/// The observation of one replica of an observed device.
#[derive(Clone, Debug, PartialEq)]
pub struct ReplicaObservation {
    /// The replica's model.
    pub model: ModelId,
    /// The share of the multiprocessors that the replica may use; `None` sets no limit.
    pub compute_share: Option<ComputeShare>,
    /// The number of batches that it computed in the period, which is the weight of the fields below.
    pub batches: u64,
    /// The mean number of rows of these batches.
    pub mean_rows: f64,
    /// The fraction of the period in which it was computing, from 0 to 1.
    pub busy: f64,
    /// The sum of the batches' compute times over the sum of the times expected if the replica were alone on the device with the same
    /// share: 1 is undisturbed.
    pub slowdown: f64,
}
