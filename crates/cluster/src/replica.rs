//! The specification of a replica, as a plan decides it.

use std::time::Duration;

use crate::{ByteCount, ComputeShare, DeviceId, DeviceIndex, ModelId, ModelIndex};

/// The specification of a replica: one model on one device, as a plan decides it. Model and device are indices of a problem in the output
/// of a policy, and names everywhere else.
#[derive(Clone, Debug, PartialEq)]
pub struct ReplicaSpec<M = ModelId, D = DeviceId> {
    /// The model that the replica serves.
    pub model: M,
    /// The device that the replica runs on.
    pub device: D,
    /// The largest number of rows in one batch.
    pub batch_size: u32,
    /// The share of the multiprocessors that the replica may use; `None` sets no limit.
    pub compute_share: Option<ComputeShare>,
    /// The period in which a time-shared device gives this replica one turn; `None` if the device is not time-shared.
    pub duty_cycle: Option<Duration>,
    /// The device memory that the replica needs according to its profile; `None` if unknown.
    pub memory: Option<ByteCount>,
}

/// A replica in the output of a placement policy.
pub type PlannedReplica = ReplicaSpec<ModelIndex, DeviceIndex>;

impl<M, D> ReplicaSpec<M, D> {
    /// Creates a specification without compute share, duty cycle and known memory.
    pub fn new(model: M, device: D, batch_size: u32) -> Self {
        Self {
            model,
            device,
            batch_size,
            compute_share: None,
            duty_cycle: None,
            memory: None,
        }
    }
}
