//! A plan with names in place of the problem's indices, before its replicas have identities.

use std::{collections::BTreeMap, time::Duration};

use packhorse_cluster::{
    ByteCount, ComputeShare, DeviceId, DeviceKind, Explanation, ModelId, ReplicaId,
};

use super::planning_trouble::Fallback;
use crate::store::{StoredForecast, StoredReplica};

/// A plan with names, whose replicas have no identities yet.
pub(super) struct DraftPlan {
    /// The name of the policy that made the plan.
    pub(super) policy: &'static str,
    /// The time that planning took, in milliseconds.
    pub(super) solve_ms: f64,
    /// The replicas, by model, then device.
    pub(super) replicas: Vec<DraftReplica>,
    /// The forecasts, by model.
    pub(super) models: Vec<StoredForecast>,
    /// The reason why the plan was made by the fallback policy; none if it was made by the requested one.
    pub(super) fallback: Option<Fallback>,
    /// The explanations of the models in the problem, if they were requested.
    pub(super) explanations: BTreeMap<ModelId, Explanation>,
}

/// A replica of a draft.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct DraftReplica {
    /// The model that the replica serves.
    pub(super) model: ModelId,
    /// The device that the replica runs on.
    pub(super) device: DeviceId,
    /// The kind of the device.
    pub(super) device_kind: DeviceKind,
    /// The total memory of the device.
    pub(super) device_memory: ByteCount,
    /// The largest number of rows in one batch.
    pub(super) batch_size: u32,
    /// The share of the multiprocessors that the replica may use; none sets no limit.
    pub(super) compute_share: Option<ComputeShare>,
    /// The duty cycle of a time-shared replica.
    pub(super) duty_cycle: Option<Duration>,
    /// The device memory that the replica needs according to its profile; zero if unknown.
    pub(super) memory: ByteCount,
}

impl DraftReplica {
    /// Converts the replica into the form in which plans are stored.
    pub(super) fn stored(&self, id: ReplicaId) -> StoredReplica {
        StoredReplica {
            id,
            model: self.model.clone(),
            device: self.device.clone(),
            device_kind: self.device_kind.clone(),
            batch_size: self.batch_size,
            compute_share: self.compute_share,
            duty_cycle_ms: self.duty_cycle_ms(),
        }
    }

    /// Returns the duty cycle in milliseconds.
    pub(super) fn duty_cycle_ms(&self) -> Option<f64> {
        self.duty_cycle.map(|cycle| cycle.as_secs_f64() * 1e3)
    }
}
