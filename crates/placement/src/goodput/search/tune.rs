//! Changing the replicas that a device has, one by one.

use packhorse_cluster::ComputeShare;

use super::{Search, WORTH, settle, sizes};
use crate::{Budget, PlaceError, estimate::Service};

/// The batch size and the compute share of a replica.
type Fit = (u32, Option<ComputeShare>);

impl Search<'_, '_, '_> {
    /// Tries other batch sizes and compute shares for each replica of a device, and to do without it.
    pub(super) fn tune(
        &mut self,
        device: usize,
        budget: &mut Budget<'_>,
    ) -> Result<(), PlaceError> {
        let mut place = self.here.range(device).start;
        for _ in self.here.range(device) {
            let slot = self.here.slots()[place];
            let free = self
                .free_memory(device)
                .saturating_add(self.memory(device, slot.model, slot.batch));
            let largest = self
                .world
                .service(slot.model, device)
                .map_or(0, Service::largest);
            let batches = sizes(self.candidates, slot.model, device).filter(|&(batch, memory)| {
                batch != slot.batch && batch <= largest && memory <= free
            });
            let batches = batches.map(|(batch, _)| Some((batch, slot.share)));
            let shares = self.shares(device, slot.model, slot.batch, Some(place));
            let shares = shares.map(Some).chain(slot.share.map(|_| None));
            let shares = shares.filter(|share| *share != slot.share);
            let shares = shares.map(|share| Some((slot.batch, share)));
            let mut best: Option<(f64, Option<Fit>)> = None;
            for other in batches.chain(shares).chain([None]) {
                budget.spend(1)?;
                self.trial.copy(&self.here);
                self.trial.take(place);
                if let Some((batch, share)) = other {
                    self.trial.put(device, slot.model, batch, share);
                }
                settle(&mut self.trial, device, &[slot.model], self.exact);
                let value = self.score.of(&self.trial);
                if value > self.value + WORTH && best.is_none_or(|best| value > best.0) {
                    best = Some((value, other));
                }
            }
            // What is changed stands last afterwards: the next one is where this one was.
            let Some((value, _)) = best else {
                place += 1;
                continue;
            };
            self.here.take(place);
            if let Some((_, Some((batch, share)))) = best {
                self.here.put(device, slot.model, batch, share);
            }
            settle(&mut self.here, device, &[slot.model], self.exact);
            self.value = value;
        }
        Ok(())
    }
}
