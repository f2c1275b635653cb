//! The state of the search: the current placement with its value, and buffers.

use packhorse_cluster::{ByteCount, ComputeShare, DeviceIndex, ModelIndex};

use crate::{
    candidates::Candidates,
    estimate::{EstimateInputs, ModelEstimate, PlacementEstimate},
    goodput::{random::Random, score::Score, share_candidates::share_candidates},
};

/// The least gain of a change.
pub(super) const MIN_GAIN: f64 = 1e-6;
/// The fraction of a model's requests that may be late without a further replica being tried.
pub(super) const NEGLIGIBLE_LOSS: f64 = 1e-3;

/// The options that a search has beyond its usual moves.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::goodput) struct SearchOptions {
    /// Randomizes the choice of the replicas that are added, too, and not only of those that are tried.
    pub(in crate::goodput) random_choice: bool,
    /// Tries compute shares.
    pub(in crate::goodput) compute_shares: bool,
}

/// A replica that could be added to a device.
#[derive(Clone, Copy)]
pub(super) struct ReplicaCandidate {
    pub(super) model: usize,
    pub(super) batch: u32,
    /// An upper bound of the gain per cost.
    pub(super) priority: f64,
    /// The cost that gains are divided by, in devices.
    pub(super) cost: f64,
}

/// A local search over placements.
pub(in crate::goodput) struct Search<'s, 'w, 'a> {
    pub(super) inputs: &'w EstimateInputs<'a>,
    pub(super) candidates: &'s Candidates<'a>,
    pub(super) score: &'s Score,
    pub(super) current: PlacementEstimate<'w, 'a>,
    /// The value of the current placement.
    pub(super) value: f64,
    /// A variation of the current placement.
    pub(super) trial: PlacementEstimate<'w, 'a>,
    /// The placement before a change.
    pub(super) previous: PlacementEstimate<'w, 'a>,
    /// The placement before tuning.
    pub(super) untuned: PlacementEstimate<'w, 'a>,
    pub(super) random: Random,
    pub(super) replica_candidates: Vec<ReplicaCandidate>,
    pub(super) options: SearchOptions,
    /// True if the whole placement is solved again for each trial, and not only the changed device.
    pub(super) solves_all: bool,
}

impl<'s, 'w, 'a> Search<'s, 'w, 'a> {
    pub(in crate::goodput) fn new(
        inputs: &'w EstimateInputs<'a>,
        candidates: &'s Candidates<'a>,
        score: &'s Score,
    ) -> Self {
        let current = PlacementEstimate::new(inputs);
        Self {
            value: score.value(&current),
            inputs,
            candidates,
            score,
            current,
            trial: PlacementEstimate::new(inputs),
            previous: PlacementEstimate::new(inputs),
            untuned: PlacementEstimate::new(inputs),
            random: Random::new(),
            replica_candidates: Vec::new(),
            options: SearchOptions::default(),
            solves_all: false,
        }
    }

    pub(in crate::goodput) fn current(&self) -> &PlacementEstimate<'w, 'a> {
        &self.current
    }

    pub(in crate::goodput) fn devices(&self) -> usize {
        self.inputs.problem.devices.len()
    }

    /// Returns the value of the current placement.
    pub(in crate::goodput) fn value(&self) -> f64 {
        self.value
    }

    /// Returns true if the current placement serves every model at its expected rate.
    pub(in crate::goodput) fn serves_all(&self) -> bool {
        self.serves_all_by(|estimate| estimate.in_time_conservative)
    }

    /// Returns true if the current placement serves every model at more than its expected rate.
    pub(in crate::goodput) fn serves_all_with_headroom(&self) -> bool {
        self.serves_all_by(|estimate| estimate.stressed)
    }

    /// Returns the mean utilisation of the devices' multiprocessors by the current placement.
    pub(in crate::goodput) fn utilization(&self) -> f64 {
        let used = self
            .current
            .replicas()
            .iter()
            .map(|replica| replica.busy * replica.utilization / 100.0);
        used.sum::<f64>() / self.devices().max(1) as f64
    }

    fn serves_all_by(&self, in_time: impl Fn(&ModelEstimate) -> f64) -> bool {
        let mut models = self.current.models().iter().zip(&self.inputs.demands);
        models.all(|(estimate, demand)| {
            demand.rate <= 0.0 || in_time(estimate) >= 1.0 - NEGLIGIBLE_LOSS
        })
    }

    /// Sets the options of the changes that follow.
    pub(in crate::goodput) fn set_options(&mut self, options: SearchOptions) {
        self.options = options;
    }

    /// Makes a placement the current one.
    pub(in crate::goodput) fn move_to(&mut self, placement: &PlacementEstimate<'w, 'a>) {
        self.current.copy_from(placement);
        self.value = self.score.value(&self.current);
    }

    /// Solves the current placement as a whole.
    pub(super) fn solve(&mut self) {
        self.current.solve();
        self.value = self.score.value(&self.current);
    }

    /// Returns the compute shares to try for a replica: in the place of the one at `replaced`, or beside all.
    pub(super) fn share_candidates(
        &self,
        device: usize,
        model: usize,
        batch: u32,
        replaced: Option<usize>,
    ) -> impl Iterator<Item = ComputeShare> + use<> {
        let shares = self
            .options
            .compute_shares
            .then(|| share_candidates(&self.current, device, model, batch, replaced));
        shares.into_iter().flatten()
    }

    pub(super) fn free_memory(&self, device: usize) -> ByteCount {
        let on_device = self.current.on_device(device).iter();
        let used = on_device
            .map(|replica| self.memory(device, replica.model, replica.batch))
            .sum();
        self.inputs.problem.devices[device]
            .memory
            .saturating_sub(used)
    }

    pub(super) fn memory(&self, device: usize, model: usize, batch: u32) -> ByteCount {
        let profile = self
            .inputs
            .problem
            .profile(ModelIndex(model), DeviceIndex(device));
        profile
            .and_then(|profile| profile.memory(batch))
            .unwrap_or_default()
    }
}

/// Solves a placement after a change of a device: as a whole, or the device and the models that it has or had (`removed`).
pub(super) fn solve_change(
    estimate: &mut PlacementEstimate<'_, '_>,
    device: usize,
    removed: &[usize],
    solves_all: bool,
) {
    if solves_all {
        estimate.solve();
    } else {
        estimate.solve_device(device, removed);
    }
}
