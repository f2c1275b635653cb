//! Adding replicas to a device, the one with the largest gain per cost first.

use packhorse_cluster::ComputeShare;

use super::state::{MIN_GAIN, NEGLIGIBLE_LOSS, ReplicaCandidate, Search, solve_change};
use crate::{Budget, PlaceError, goodput::batch_sizes::batch_sizes};

/// The number of candidates that are tried, those with the highest priority first.
const TRIED: usize = 6;
/// The fixed part of a replica's cost, in devices.
const FIXED_COST: f64 = 0.1;

/// The part of a device that is the cost of a replica.
#[derive(Clone, Copy)]
pub(super) enum CostMeasure {
    Time,
    Memory,
}

/// The rule by which replicas are chosen to fill a device.
#[derive(Clone, Copy)]
pub(super) struct FillRule {
    pub(super) cost: CostMeasure,
    /// Randomizes the priorities of the candidates.
    pub(super) random_candidates: bool,
    /// Randomizes the gains of the candidates that are tried.
    pub(super) random_choice: bool,
}

impl FillRule {
    /// The largest gain per device time.
    pub(super) const GREEDY: Self = Self {
        cost: CostMeasure::Time,
        random_candidates: false,
        random_choice: false,
    };
}

impl Search<'_, '_, '_> {
    /// Adds replicas to a device while one gains: each time the one with the largest gain per cost.
    pub(super) fn fill(
        &mut self,
        device: usize,
        rule: FillRule,
        budget: &mut Budget<'_>,
    ) -> Result<(), PlaceError> {
        loop {
            self.find_candidates(device, rule);
            let mut best: Option<(f64, ReplicaCandidate, Option<ComputeShare>)> = None;
            for i in 0..self.replica_candidates.len() {
                let candidate = self.replica_candidates[i];
                let shares = self.share_candidates(device, candidate.model, candidate.batch, None);
                for share in shares.map(Some).chain([None]) {
                    budget.spend(1)?;
                    self.trial.copy_from(&self.current);
                    self.trial
                        .add_replica(device, candidate.model, candidate.batch, share);
                    solve_change(&mut self.trial, device, &[], self.solves_all);
                    let gain = self.score.value(&self.trial) - self.value;
                    let gain_per_cost =
                        self.random_factor(rule.random_choice) * gain / candidate.cost;
                    if gain > MIN_GAIN && best.is_none_or(|best| gain_per_cost > best.0) {
                        best = Some((gain_per_cost, candidate, share));
                    }
                }
            }
            let Some((_, candidate, share)) = best else {
                return Ok(());
            };
            self.current
                .add_replica(device, candidate.model, candidate.batch, share);
            solve_change(&mut self.current, device, &[], self.solves_all);
            self.value = self.score.value(&self.current);
        }
    }

    /// Sets the candidates for a device, those with the highest priority.
    fn find_candidates(&mut self, device: usize, rule: FillRule) {
        let memory_of_device = self.inputs.problem.devices[device].memory.as_u64().max(1) as f64;
        let free = self.free_memory(device);
        self.replica_candidates.clear();
        for (model, demand) in self.inputs.demands.iter().enumerate() {
            let estimates = self.current.models();
            let lacking = 1.0 - estimates[model].stressed;
            let Some(costs) = self
                .inputs
                .batch_costs(model, device)
                .filter(|_| lacking > NEGLIGIBLE_LOSS)
            else {
                continue;
            };
            let marginal_value = self.score.marginal_value(model, estimates);
            for (batch, memory) in batch_sizes(self.candidates, model, device) {
                if memory > free || batch > costs.largest_batch() || marginal_value <= 0.0 {
                    continue;
                }
                let rows = f64::from(batch);
                let carried = rows / costs.seconds(rows, None) / demand.rate;
                let busy = f64::min(1.0, lacking / carried);
                let part_of_device = match rule.cost {
                    CostMeasure::Time => busy * costs.utilization(rows, None) / 100.0,
                    CostMeasure::Memory => memory.as_u64() as f64 / memory_of_device,
                };
                let cost = part_of_device + FIXED_COST;
                let priority = self.random_factor(rule.random_candidates)
                    * marginal_value
                    * carried.min(lacking)
                    / cost;
                self.replica_candidates.push(ReplicaCandidate {
                    model,
                    batch,
                    priority,
                    cost,
                });
            }
        }
        self.replica_candidates
            .sort_by(|a, b| b.priority.total_cmp(&a.priority));
        self.replica_candidates.truncate(TRIED);
    }

    /// Returns a factor between 0.5 and 1.5, or 1 without randomness.
    fn random_factor(&mut self, is_random: bool) -> f64 {
        if is_random {
            0.5 + self.random.unit()
        } else {
            1.0
        }
    }
}
