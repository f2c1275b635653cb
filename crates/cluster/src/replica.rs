//! A replica: the specification that a plan gives it, and its identity while it exists.

use std::time::Duration;

use crate::{ByteCount, ComputeShare, DeviceId, DeviceIndex, ModelId, ModelIndex, ReplicaId};

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

    /// Returns the same specification with another model and device.
    pub fn with_names<N, E>(&self, model: N, device: E) -> ReplicaSpec<N, E> {
        ReplicaSpec {
            model,
            device,
            batch_size: self.batch_size,
            compute_share: self.compute_share,
            duty_cycle: self.duty_cycle,
            memory: self.memory,
        }
    }
}

/// A replica with its identity. `M` is the model's name, or its program where the replica is to be run.
#[derive(Clone, Debug, PartialEq)]
pub struct Replica<M = ModelId> {
    /// The identity of the replica while it exists.
    pub id: ReplicaId,
    /// The specification of the replica.
    pub spec: ReplicaSpec<M>,
    /// The phase of the replica's life.
    pub phase: ReplicaPhase,
}

/// The phase of a replica's life, as the control plane decides it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ReplicaPhase {
    /// The replica shall serve: it gets batches as soon as its worker is ready.
    Serving,
    /// The replica gets no further batch. It is stopped once it has answered its last one. This is never revoked.
    Draining,
}
