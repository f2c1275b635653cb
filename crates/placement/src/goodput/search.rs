//! The search: it fills the devices one after the other, then repeatedly empties one or two, fills them again, and keeps improvements.
//!
//! Source: large neighbourhood search, Shaw, "Using Constraint Programming and Local Search Methods to Solve Vehicle Routing
//! Problems", 1998.

mod fill;
mod state;
mod tune;

use crate::{Budget, PlaceError};

use fill::{CostMeasure, FillRule};
use state::MIN_GAIN;
pub(super) use state::{Search, SearchOptions};

/// The most times that all devices are filled.
const PASSES: usize = 2;

impl Search<'_, '_, '_> {
    /// Adds to every device the replicas that gain, and repeats from the solved placement until none gains more. Goes back to
    /// the placement before a pass that was no improvement.
    pub(super) fn fill_all(&mut self, budget: &mut Budget<'_>) -> Result<(), PlaceError> {
        self.solve();
        for _ in 0..PASSES {
            let old = self.value;
            self.previous.copy_from(&self.current);
            for device in 0..self.devices() {
                self.fill(device, FillRule::GREEDY, budget)?;
            }
            self.solve();
            if self.value <= old + MIN_GAIN {
                self.current.copy_from(&self.previous);
                self.value = old;
                break;
            }
        }
        Ok(())
    }

    /// Empties one or two devices, wholly or by half, and fills them again. Returns true if that is an improvement, and goes back
    /// otherwise. The placement is unchanged if the budget ends.
    pub(super) fn try_change(&mut self, budget: &mut Budget<'_>) -> Result<bool, PlaceError> {
        let old = self.value;
        self.previous.copy_from(&self.current);
        let changed = self.destroy_and_repair(budget);
        if changed.is_ok() && self.value > old + MIN_GAIN {
            return Ok(true);
        }
        self.current.copy_from(&self.previous);
        self.value = old;
        changed.map(|()| false)
    }

    /// Fills and tunes every device. With `solves_all` the whole placement is solved for each trial, which includes the effect of
    /// a device on others, and excludes effects of earlier placements.
    pub(super) fn polish(
        &mut self,
        solves_all: bool,
        budget: &mut Budget<'_>,
    ) -> Result<(), PlaceError> {
        self.solves_all = solves_all;
        let polished = self.fill_and_tune_all(budget);
        self.solves_all = false;
        self.solve();
        polished
    }

    fn fill_and_tune_all(&mut self, budget: &mut Budget<'_>) -> Result<(), PlaceError> {
        for _ in 0..PASSES {
            let old = self.value;
            for device in 0..self.devices() {
                self.fill(device, FillRule::GREEDY, budget)?;
                self.tune(device, budget)?;
            }
            if self.value <= old + MIN_GAIN {
                break;
            }
        }
        Ok(())
    }

    fn destroy_and_repair(&mut self, budget: &mut Budget<'_>) -> Result<(), PlaceError> {
        let devices = self.devices();
        let first = self.random.below(devices);
        let mut chosen = vec![first];
        if devices > 1 && self.random.below(3) > 0 {
            let second = self.random.below(devices - 1);
            chosen.push(second + usize::from(second >= first));
        }
        let wholly = self.random.below(2) == 0;
        for &device in &chosen {
            self.remove_replicas(device, wholly);
        }
        self.value = self.score.value(&self.current);
        let rule = self.draw_fill_rule();
        for &device in &chosen {
            self.fill(device, rule, budget)?;
        }
        let mut untuned_value = f64::NEG_INFINITY;
        if self.options.random_choice {
            self.solve();
            self.untuned.copy_from(&self.current);
            untuned_value = self.value;
        }
        for &device in &chosen {
            self.tune(device, budget)?;
        }
        self.solve();
        // The effect of devices on each other shows only when the whole placement is solved.
        if self.value < untuned_value {
            self.current.copy_from(&self.untuned);
            self.value = untuned_value;
        }
        Ok(())
    }

    fn draw_fill_rule(&mut self) -> FillRule {
        let random_choice = self.options.random_choice;
        let by_memory = random_choice && self.random.below(2) == 0;
        FillRule {
            cost: if by_memory {
                CostMeasure::Memory
            } else {
                CostMeasure::Time
            },
            random_candidates: true,
            random_choice,
        }
    }

    /// Removes all replicas of a device, or each with probability one half.
    fn remove_replicas(&mut self, device: usize, wholly: bool) {
        let on_device = self.current.on_device(device).iter();
        let models: Vec<usize> = on_device.map(|replica| replica.model).collect();
        for index in self.current.range(device).rev() {
            if wholly || self.random.below(2) == 0 {
                self.current.remove_replica(index);
            }
        }
        self.current.solve_device(device, &models);
    }
}
