//! The specification of a replica, as a plan decides it, and a replica with an identity.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{
    BackboneId, ByteCount, ComputeShare, DeviceId, DeviceIndex, ModelId, ModelIndex, ReplicaId,
};

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
    /// The device memory that the replica needs according to its profile; `None` if unknown. Of replicas that share a worker the first has the
    /// memory of all, and the others have none.
    pub memory: Option<ByteCount>,
    /// The backbone that the replica shares with others on its device; `None` if it has a worker of its own.
    pub backbone: Option<BackboneId>,
    /// The replica's place in its device's pool; `None` if it has a worker of its own.
    pub pool: Option<PoolPlace>,
}

/// The place of a replica in the pool of its device, in which one worker process has many models, and not all of their weights at a time are on the
/// device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolPlace {
    /// The bytes of the replica's weights.
    #[serde(rename = "weights_bytes")]
    pub weights: ByteCount,
    /// The bytes of the device that the weights of all members may take together.
    #[serde(rename = "memory_bytes")]
    pub memory: ByteCount,
    /// The time to bring the weights to the device from where they are.
    pub load: Duration,
    /// The place of the weights at the start.
    pub residency: Residency,
}

impl PoolPlace {
    /// Returns the bytes of the device that the weights take at the start; `None` if they are not there.
    pub fn resident_bytes(&self) -> Option<ByteCount> {
        (self.residency == Residency::Resident).then_some(self.weights)
    }

    /// Returns the place without weights on the device.
    #[must_use]
    pub fn warm(self) -> Self {
        Self {
            residency: Residency::Warm,
            ..self
        }
    }
}

/// The place of a model's weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum Residency {
    /// In device memory.
    Resident,
    /// In the node's memory, ready to be copied.
    Warm,
    /// In a file of the node only, from which the program is loaded when it is asked for.
    Cold,
}

/// A replica in the output of a placement policy.
pub type PlannedReplica = ReplicaSpec<ModelIndex, DeviceIndex>;

/// A replica with an identity, from the plan that introduces it until its worker has ended.
#[derive(Clone, Debug, PartialEq)]
pub struct Replica<M = ModelId> {
    /// The identity of the replica while it exists.
    pub id: ReplicaId,
    /// The specification of the replica.
    pub spec: ReplicaSpec<M>,
    /// The phase of the replica.
    pub phase: ReplicaPhase,
    /// The identity of the worker that runs the replica, which is that of its first replica; `None` if the replica has one of its own.
    pub worker: Option<ReplicaId>,
}

/// The phase of a replica between the plan that introduces it and its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ReplicaPhase {
    /// The newest plan has the replica.
    Planned,
    /// Only an earlier plan has the replica. It serves until its successors do.
    Superseded,
    /// The replica gets no further batches, which is never revoked, and ends once it has answered those that it has.
    Draining,
}

impl<M> Replica<M> {
    /// Returns the identity of the worker: that of the replica itself unless it shares one.
    pub fn worker(&self) -> ReplicaId {
        self.worker.unwrap_or(self.id)
    }

    /// Returns true if the newest plan has the replica.
    pub fn is_planned(&self) -> bool {
        self.phase == ReplicaPhase::Planned
    }
}

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
            backbone: None,
            pool: None,
        }
    }

    /// Returns the specification with another notion of the model.
    pub fn with_model<N>(&self, model: N) -> ReplicaSpec<N, D>
    where
        D: Clone,
    {
        ReplicaSpec {
            model,
            device: self.device.clone(),
            batch_size: self.batch_size,
            compute_share: self.compute_share,
            duty_cycle: self.duty_cycle,
            memory: self.memory,
            backbone: self.backbone,
            pool: self.pool,
        }
    }
}
