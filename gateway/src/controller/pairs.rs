//! Measured pairs of models that share a device, from which policies learn before there are observations.

use packhorse_cluster::{DeviceKind, DeviceObservation};
use packhorse_contention::PairTable;

use super::{cluster::Cluster, plan_reason::PlanReason};
use crate::store::StoreError;

/// The largest number of pairs of one kind of device. A policy learns from all of them within its time limit.
const MAX_PAIRS: usize = 1024;

/// The reason why a table is refused.
#[derive(Debug, thiserror::Error)]
pub enum PairsError {
    /// The table has too many pairs.
    #[error("at most {MAX_PAIRS} pairs per kind of device are allowed, got {0}")]
    TooMany(usize),
    /// The database failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl Cluster {
    /// Replaces the pairs of a kind of device. A table without pairs removes them.
    pub(super) async fn import_pairs(
        &mut self,
        kind: DeviceKind,
        pairs: PairTable,
    ) -> Result<(), PairsError> {
        if pairs.pairs.len() > MAX_PAIRS {
            return Err(PairsError::TooMany(pairs.pairs.len()));
        }
        self.store.upsert_pairs(&kind, &pairs).await?;
        let reason = PlanReason::PairsImported(kind.clone());
        self.pairs.insert(kind, pairs);
        self.learn_from_pairs();
        self.request_plan(reason);
        Ok(())
    }

    /// Learns the slowdowns again, from the current pairs and then from the observations.
    pub(super) fn learn_from_pairs(&mut self) {
        let measured: Vec<DeviceObservation> = self.measured_pairs().collect();
        self.observer.relearn(&measured, &self.profiles);
    }

    fn measured_pairs(&self) -> impl Iterator<Item = DeviceObservation> {
        let tables = self.pairs.iter();
        tables.flat_map(|(kind, pairs)| pairs.observations(kind, &self.profiles))
    }

    /// Returns the observations for policies, the oldest first: the measured pairs, then those of the current run.
    pub(super) fn observations(&self) -> Vec<DeviceObservation> {
        self.measured_pairs()
            .chain(self.observer.history())
            .collect()
    }
}
