//! Changing the replicas of a device, one by one.

use packhorse_cluster::ComputeShare;

use super::state::{MIN_GAIN, Search, solve_change};
use crate::{Budget, PlaceError, estimate::BatchCosts, goodput::batch_sizes::batch_sizes};

/// The batch size and the compute share of a replica.
type Setting = (u32, Option<ComputeShare>);

impl Search<'_, '_, '_> {
    /// Tries other batch sizes and compute shares for each replica of a device, and its removal.
    pub(super) fn tune(
        &mut self,
        device: usize,
        budget: &mut Budget<'_>,
    ) -> Result<(), PlaceError> {
        let mut index = self.current.range(device).start;
        for _ in self.current.range(device) {
            let replica = self.current.replicas()[index];
            let free = self.free_memory(device).saturating_add(self.memory(
                device,
                replica.model,
                replica.batch,
            ));
            let largest = self
                .inputs
                .batch_costs(replica.model, device)
                .map_or(0, BatchCosts::largest_batch);
            let batches = batch_sizes(self.candidates, replica.model, device);
            let batches = batches.filter(|&(batch, memory)| {
                batch != replica.batch && batch <= largest && memory <= free
            });
            let batches = batches.map(|(batch, _)| Some((batch, replica.share)));
            let shares = self.share_candidates(device, replica.model, replica.batch, Some(index));
            let shares = shares.map(Some).chain(replica.share.map(|_| None));
            let shares = shares.filter(|share| *share != replica.share);
            let shares = shares.map(|share| Some((replica.batch, share)));
            let mut best: Option<(f64, Option<Setting>)> = None;
            for setting in batches.chain(shares).chain([None]) {
                budget.spend(1)?;
                self.trial.copy_from(&self.current);
                self.trial.remove_replica(index);
                if let Some((batch, share)) = setting {
                    self.trial.add_replica(device, replica.model, batch, share);
                }
                solve_change(&mut self.trial, device, &[replica.model], self.solves_all);
                let value = self.score.value(&self.trial);
                if value > self.value + MIN_GAIN && best.is_none_or(|best| value > best.0) {
                    best = Some((value, setting));
                }
            }
            // A changed replica is the device's last: the next one has its index.
            let Some((value, _)) = best else {
                index += 1;
                continue;
            };
            self.current.remove_replica(index);
            if let Some((_, Some((batch, share)))) = best {
                self.current
                    .add_replica(device, replica.model, batch, share);
            }
            solve_change(&mut self.current, device, &[replica.model], self.solves_all);
            self.value = value;
        }
        Ok(())
    }
}
