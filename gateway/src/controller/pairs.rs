//! Tables of pairs that were measured beside each other on a device: what policies learn from before there is anything to observe.

use packhorse_cluster::{DeviceKind, DeviceObservation};
use packhorse_contention::PairTable;

use super::cluster::Cluster;
use crate::store::StoreError;

/// The most pairs of one kind of device: a policy learns from all of them within its time.
const MAX_PAIRS: usize = 1024;

/// Why a table is not taken.
#[derive(Debug, thiserror::Error)]
pub enum PairsError {
    /// It is too long.
    #[error("{0} pairs are over the limit of {MAX_PAIRS} for a kind of device")]
    TooMany(usize),
    /// The database failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl Cluster {
    /// Takes what was measured on a kind of device, in the place of what is there; a table without pairs takes it away.
    pub(super) async fn import_pairs(
        &mut self,
        kind: DeviceKind,
        pairs: PairTable,
    ) -> Result<(), PairsError> {
        if pairs.pairs.len() > MAX_PAIRS {
            return Err(PairsError::TooMany(pairs.pairs.len()));
        }
        self.store.put_pairs(&kind, &pairs).await?;
        let reason = format!("pairs that were measured on {kind} were imported");
        self.pairs.insert(kind, pairs);
        self.learn_from_pairs();
        self.request_plan(reason);
        Ok(())
    }

    /// Has what is assumed of devices begin with the tables that are there now.
    pub(super) fn learn_from_pairs(&mut self) {
        let measured: Vec<DeviceObservation> = self.measured().collect();
        self.observing.learn_anew(&measured, &self.profiles);
    }

    fn measured(&self) -> impl Iterator<Item = DeviceObservation> {
        let tables = self.pairs.iter();
        tables.flat_map(|(kind, pairs)| pairs.observations(kind, &self.profiles))
    }

    /// What policies may learn from, the oldest first: what was measured, then what was observed.
    pub(super) fn observations(&self) -> Vec<DeviceObservation> {
        self.measured().chain(self.observing.history()).collect()
    }
}
