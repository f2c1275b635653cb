//! Adding replicas to a device, the one that gains most per cost first.

use packhorse_cluster::ComputeShare;

use super::{CONTENT, Search, WORTH, settle, sizes};
use crate::{Budget, PlaceError};

/// How many of the replicas that could be added, those that promise most, are really tried.
const TRIED: usize = 6;
/// What a replica is charged for being there at all when gains are compared per cost, in devices.
const ENTRY: f64 = 0.1;
/// A replica that could be added to a device.
#[derive(Clone, Copy)]
pub(super) struct Idea {
    model: usize,
    batch: u32,
    /// What it may be worth, per cost.
    promise: f64,
    /// What it is charged for.
    cost: f64,
}

/// What of a device a replica is charged for when gains are compared.
#[derive(Clone, Copy)]
pub(super) enum Charge {
    Time,
    Memory,
}

/// How the replicas that are added to a device are chosen.
#[derive(Clone, Copy)]
pub(super) struct Taste {
    pub(super) charge: Charge,
    /// Whether chance has a say in what is tried.
    pub(super) shaken: bool,
    /// Whether it has one in what is taken, too.
    pub(super) bold: bool,
}

/// What gains most for the time of devices.
pub(super) const SOBER: Taste = Taste {
    charge: Charge::Time,
    shaken: false,
    bold: false,
};

impl Search<'_, '_, '_> {
    /// Adds replicas to a device while that pays: each time the one that gains most per cost.
    pub(super) fn fill(
        &mut self,
        device: usize,
        taste: Taste,
        budget: &mut Budget<'_>,
    ) -> Result<(), PlaceError> {
        loop {
            self.think_of(device, taste);
            let mut best: Option<(f64, Idea, Option<ComputeShare>)> = None;
            for i in 0..self.ideas.len() {
                let idea = self.ideas[i];
                let shares = self.shares(device, idea.model, idea.batch, None);
                for share in shares.map(Some).chain([None]) {
                    budget.spend(1)?;
                    self.trial.copy(&self.here);
                    self.trial.put(device, idea.model, idea.batch, share);
                    settle(&mut self.trial, device, &[], self.exact);
                    let gain = self.score.of(&self.trial) - self.value;
                    let per_cost = self.luck(taste.bold) * gain / idea.cost;
                    if gain > WORTH && best.is_none_or(|best| per_cost > best.0) {
                        best = Some((per_cost, idea, share));
                    }
                }
            }
            let Some((_, idea, share)) = best else {
                return Ok(());
            };
            self.here.put(device, idea.model, idea.batch, share);
            settle(&mut self.here, device, &[], self.exact);
            self.value = self.score.of(&self.here);
        }
    }

    /// The replicas that could be added to a device and promise most.
    fn think_of(&mut self, device: usize, taste: Taste) {
        let whole = self.world.problem.devices[device].memory.as_u64().max(1) as f64;
        let free = self.free_memory(device);
        self.ideas.clear();
        for (model, demand) in self.world.demands.iter().enumerate() {
            let fates = self.here.fates();
            let lacking = 1.0 - fates[model].stressed;
            let Some(service) = self
                .world
                .service(model, device)
                .filter(|_| lacking > CONTENT)
            else {
                continue;
            };
            let urgency = self.score.urgency(model, fates);
            for (batch, memory) in sizes(self.candidates, model, device) {
                if memory > free || batch > service.largest() || urgency <= 0.0 {
                    continue;
                }
                let rows = f64::from(batch);
                let carried = rows / service.seconds(rows, None) / demand.rate;
                let busy = f64::min(1.0, lacking / carried);
                let charged = match taste.charge {
                    Charge::Time => busy * service.utilization(rows, None) / 100.0,
                    Charge::Memory => memory.as_u64() as f64 / whole,
                };
                let cost = charged + ENTRY;
                let promise = self.luck(taste.shaken) * urgency * carried.min(lacking) / cost;
                self.ideas.push(Idea {
                    model,
                    batch,
                    promise,
                    cost,
                });
            }
        }
        self.ideas.sort_by(|a, b| b.promise.total_cmp(&a.promise));
        self.ideas.truncate(TRIED);
    }

    /// What something is taken for, relative to what it is.
    fn luck(&mut self, chance: bool) -> f64 {
        if chance {
            0.5 + self.random.unit()
        } else {
            1.0
        }
    }
}
