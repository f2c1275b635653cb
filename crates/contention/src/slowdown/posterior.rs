//! The posterior distribution of the effects on one kind of device: a joint Gaussian, updated by recursive linear regression.
//!
//! A measurement is approximately linear in a few effects. Conditioning a Gaussian on it is one step of recursive least squares
//! with the prior as the ridge (an extended Kalman filter with a static state). Two things are added:
//!
//! - *Forgetting*: before an update, every measured effect is moved a little of the way back to its prior. Exponential forgetting
//!   would inflate the whole covariance instead, so that the variance of effects that are not measured would grow without limit;
//!   here no variance exceeds its prior.
//! - *Outliers*: a measurement more than three standard deviations off has less weight, the further it is off (Huber's weight).

use std::collections::{BTreeMap, BTreeSet};

use packhorse_cluster::ModelId;

use super::gaussian::Gaussian;

/// The largest number of effects. The covariance has its square, half a megabyte.
const MAX_EFFECTS: usize = 256;
/// The number of standard deviations beyond which a measurement is an outlier.
const OUTLIER: f64 = 3.0;
/// The number of linearisations of an update, each around the result of the one before: a slowdown is not linear in the effects
/// where neighbours are active for a part of the time.
const LINEARIZATIONS: usize = 3;

/// A model's number in a posterior.
pub(super) type ModelNumber = u32;

/// An unknown part of a slowdown, relative to [`crate::Interference`] and to the profiles.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Effect {
    /// The effect of any neighbour on any model while multiprocessors are free.
    Unsaturated,
    /// The effect of any neighbour on any model while there are too few multiprocessors.
    Saturated,
    /// The error of a model's profile: the effect on all its batches, with or without neighbours.
    ProfileError(ModelNumber),
    /// The effect of any neighbour on a model, beyond the common one.
    Sensitivity(ModelNumber),
    /// The effect of a model on any neighbour, beyond the common one.
    Pressure(ModelNumber),
    /// The error of a model's profile at an operating point, beyond that of the whole profile.
    OperatingPoint(ModelNumber, OperatingPoint),
    /// The effect on the first model of the second as its neighbour, beyond all of the above.
    Pair(ModelNumber, ModelNumber),
}

/// The rows of a replica's batches and its compute share, both rounded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct OperatingPoint {
    /// The binary logarithm of the rows of a batch.
    pub(super) log_rows: u32,
    /// The compute share in steps of 5 %; `None` without a limit.
    pub(super) share_steps: Option<u32>,
}

impl Effect {
    /// The standard deviation before any measurement.
    fn prior_std(self) -> f64 {
        match self {
            Self::Unsaturated | Self::Saturated => 0.4,
            Self::ProfileError(_) | Self::OperatingPoint(..) => 0.05,
            Self::Sensitivity(_) | Self::Pair(..) => 0.1,
            Self::Pressure(_) => 0.03,
        }
    }

    /// Returns true if the effect concerns only some batches of a model, so that it is the first to be forgotten.
    fn is_specific(self) -> bool {
        matches!(self, Self::Pair(..) | Self::OperatingPoint(..))
    }

    /// Returns the models that the effect is one of; none for the common effects.
    pub(super) fn models(self) -> impl Iterator<Item = ModelNumber> {
        let (first, second) = match self {
            Self::Unsaturated | Self::Saturated => (None, None),
            Self::ProfileError(model)
            | Self::Sensitivity(model)
            | Self::Pressure(model)
            | Self::OperatingPoint(model, _) => (Some(model), None),
            Self::Pair(subject, neighbour) => (Some(subject), Some(neighbour)),
        };
        first.into_iter().chain(second)
    }
}

/// A measured slowdown, linearised around a posterior's means: approximately `predicted + Σ derivativeₑ · (effectₑ − meanₑ)`.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct LinearizedMeasurement {
    /// The derivatives by the effects. Each effect occurs at most once.
    pub(super) gradient: Vec<(Effect, f64)>,
    /// The measured slowdown.
    pub(super) observed: f64,
    /// The slowdown that the posterior's means predict.
    pub(super) predicted: f64,
    /// The standard deviation of `observed` for known effects.
    pub(super) noise_std: f64,
}

impl LinearizedMeasurement {
    fn residual(&self) -> f64 {
        self.observed - self.predicted
    }
}

/// The joint distribution of the effects on one kind of device.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Posterior {
    numbers: BTreeMap<ModelId, ModelNumber>,
    next_number: ModelNumber,
    /// The index of each effect in `effects` and `joint`.
    indices: BTreeMap<Effect, usize>,
    effects: Vec<TrackedEffect>,
    joint: Gaussian,
}

#[derive(Clone, Debug, PartialEq)]
struct TrackedEffect {
    effect: Effect,
    updated: u64,
}

impl Posterior {
    /// Assigns numbers to the models that have none.
    pub(super) fn register<'a>(&mut self, models: impl IntoIterator<Item = &'a ModelId>) {
        for model in models {
            if !self.numbers.contains_key(model) {
                self.numbers.insert(model.clone(), self.next_number);
                self.next_number += 1;
            }
        }
    }

    /// Returns the models' numbers. Models that are not registered have temporary ones.
    pub(super) fn model_numbers<'a>(
        &self,
        models: impl IntoIterator<Item = &'a ModelId>,
    ) -> Vec<ModelNumber> {
        let mut temporary = BTreeMap::new();
        let number = |model: &'a ModelId| {
            self.numbers.get(model).copied().unwrap_or_else(|| {
                let next = ModelNumber::MAX - temporary.len() as ModelNumber;
                *temporary.entry(model).or_insert(next)
            })
        };
        models.into_iter().map(number).collect()
    }

    /// The posterior mean of an effect.
    pub(super) fn mean(&self, effect: Effect) -> f64 {
        let index = self.indices.get(&effect);
        index.map_or(0.0, |index| self.joint.mean()[*index])
    }

    /// The posterior variance of `Σ weightₑ · effectₑ`. Each effect occurs at most once.
    pub(super) fn variance(&self, weights: &[(Effect, f64)]) -> f64 {
        let mut tracked = Vec::with_capacity(weights.len());
        let mut prior = 0.0;
        for (effect, weight) in weights {
            match self.indices.get(effect) {
                Some(index) => tracked.push((*index, *weight)),
                None => prior += (weight * effect.prior_std()).powi(2),
            }
        }
        self.joint.variance(&tracked) + prior
    }

    /// The time of the last update.
    pub(super) fn last_update(&self) -> u64 {
        self.effects
            .iter()
            .map(|tracked| tracked.updated)
            .max()
            .unwrap_or_default()
    }

    /// Updates the posterior with simultaneous measurements. `linearize` returns them linearised around a posterior's means, always
    /// in the same effects. `forgetting` is the part of its prior variance that each of these effects gets back before.
    pub(super) fn update(
        &mut self,
        now: u64,
        forgetting: f64,
        linearize: impl Fn(&Self) -> Vec<LinearizedMeasurement>,
    ) {
        let first = linearize(self);
        let mut effects = BTreeMap::new();
        for (effect, derivative) in first.iter().flat_map(|m| &m.gradient) {
            *effects.entry(*effect).or_default() |= derivative.abs() > 0.0;
        }
        let indices = self.prepare_effects(&effects, now, forgetting);
        let noises: Vec<f64> = first
            .iter()
            .map(|measurement| self.robust_noise_std(measurement))
            .collect();
        // The point of linearisation follows from the measured effects alone, so their marginal is enough to find it.
        let before = self.joint.marginal(&indices);
        let index_in_marginal = |index| {
            indices
                .binary_search(&index)
                .expect("indices has all measured effects")
        };
        for _ in 1..LINEARIZATIONS {
            let measurements = linearize(self);
            let around = self.joint.marginal(&indices);
            let mut marginal = before.clone();
            for (measurement, noise_std) in measurements.iter().zip(&noises) {
                let gradient = self.gradient(measurement, index_in_marginal);
                let residual = measurement.residual();
                marginal.condition(&gradient, around.mean(), residual, *noise_std);
            }
            self.joint.set_mean(&indices, marginal.mean());
        }
        let measurements = linearize(self);
        let around = self.joint.mean().to_vec();
        self.joint.set_mean(&indices, before.mean());
        for (measurement, noise_std) in measurements.iter().zip(&noises) {
            let gradient = self.gradient(measurement, |index| index);
            self.joint
                .condition(&gradient, &around, measurement.residual(), *noise_std);
        }
        self.forget_excess();
    }

    /// The gradient of a measurement by the indices of its effects, which `map` translates.
    fn gradient(
        &self,
        measurement: &LinearizedMeasurement,
        map: impl Fn(usize) -> usize,
    ) -> Vec<(usize, f64)> {
        let gradient = measurement.gradient.iter();
        gradient
            .map(|(effect, derivative)| (map(self.indices[effect]), *derivative))
            .collect()
    }

    /// The noise of a measurement, increased if it is an outlier by the posterior before the update.
    fn robust_noise_std(&self, measurement: &LinearizedMeasurement) -> f64 {
        let variance = self.variance(&measurement.gradient) + measurement.noise_std.powi(2);
        let deviations = measurement.residual().abs() / variance.sqrt();
        measurement.noise_std * (deviations / OUTLIER).max(1.0)
    }

    /// Adds the effects that are missing, and moves those that are measured, which are true, towards their priors. Returns their indices,
    /// ascending.
    fn prepare_effects(
        &mut self,
        effects: &BTreeMap<Effect, bool>,
        now: u64,
        forgetting: f64,
    ) -> Vec<usize> {
        let mut indices = Vec::with_capacity(effects.len());
        for (&effect, &measured) in effects {
            let prior = effect.prior_std().powi(2);
            let index = *self.indices.entry(effect).or_insert_with(|| {
                self.joint.push(prior);
                self.effects.push(TrackedEffect {
                    effect,
                    updated: now,
                });
                self.effects.len() - 1
            });
            self.effects[index].updated = now;
            if measured {
                self.joint.shrink(index, (1.0 - forgetting).sqrt(), prior);
            }
            indices.push(index);
        }
        indices.sort_unstable();
        indices
    }

    /// Forgets effects above the limit: specific ones first, and of these the least recently measured.
    fn forget_excess(&mut self) {
        while self.effects.len() > MAX_EFFECTS {
            let priority = |index: &usize| {
                let TrackedEffect { effect, updated } = self.effects[*index];
                (!effect.is_specific(), updated, effect)
            };
            let Some(index) = (0..self.effects.len()).min_by_key(priority) else {
                return;
            };
            let forgotten = self.effects.swap_remove(index);
            self.indices.remove(&forgotten.effect);
            self.joint.swap_remove(index);
            if let Some(moved) = self.effects.get(index) {
                self.indices.insert(moved.effect, index);
            }
        }
        let used: BTreeSet<ModelNumber> = self
            .indices
            .keys()
            .flat_map(|effect| effect.models())
            .collect();
        self.numbers.retain(|_, number| used.contains(number));
    }

    /// The number of effects.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.effects.len()
    }
}
