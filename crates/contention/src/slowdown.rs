//! A model of how co-located replicas slow each other beyond [`Interference`](crate::Interference), learned from observations of
//! shared devices.

mod colocation;
mod gaussian;
mod posterior;
mod saturation;

use std::collections::{BTreeMap, BTreeSet};

use packhorse_cluster::{
    ComputeShare, DeviceKind, DeviceObservation, ModelId, Profile, ProfileTable, ReplicaObservation,
};

use self::{
    colocation::{ColocationSlowdown, Neighbour},
    posterior::{Effect, LinearizedMeasurement, ModelNumber, OperatingPoint, Posterior},
};
use crate::ComputeDemand;

pub use self::saturation::{BySaturation, SlowdownBesideSet};

/// The largest number of device kinds in a model. Of more, the least recently observed are forgotten.
const MAX_KINDS: usize = 32;
/// The largest number of replicas of a device that one observation is learned from, and the largest number of models whose own effects it
/// teaches: the busiest.
const MAX_MEASURED: usize = 16;
/// The relative standard error of an observation of infinitely many batches. An observation contains only busy fractions, from which
/// simultaneous activity is derived as if replicas were active independently of each other.
const MODEL_ERROR: f64 = 0.02;
/// The relative standard deviation of the slowdown of one batch.
const BATCH_ERROR: f64 = 0.3;
/// The part of its prior variance that an effect gets back with each observation.
const FORGETTING: f64 = 0.02;
/// The range of slowdowns that are learned from. Others have another cause, or come from a wrong profile.
const PLAUSIBLE_SLOWDOWNS: std::ops::RangeInclusive<f64> = 0.1..=100.0;
/// The least time of a batch alone, relative to its profile.
const MIN_PROFILE_FACTOR: f64 = 0.1;

/// A replica of a device, and how it uses the device.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ColocatedReplica<'a> {
    /// The replica's model.
    pub model: &'a ModelId,
    /// The compute demand of a typical batch.
    pub demand: ComputeDemand,
    /// The rows of a typical batch.
    pub rows: u32,
    /// The fraction of time in which it is computing, from 0 to 1.
    pub busy: f64,
}

impl<'a> ColocatedReplica<'a> {
    /// Takes the compute demand from the model's profile on the device. Without a profile, or without a utilisation in it, the replica
    /// counts as using the whole device.
    pub fn new(
        model: &'a ModelId,
        profile: Option<&Profile>,
        rows: u32,
        compute_share: Option<ComputeShare>,
        busy: f64,
    ) -> Self {
        Self {
            model,
            demand: ComputeDemand::with_optional_profile(profile, rows, compute_share),
            rows,
            busy,
        }
    }

    fn operating_point(&self) -> OperatingPoint {
        let share = self.demand.compute_share;
        OperatingPoint {
            log_rows: f64::from(self.rows.max(1)).log2().round() as u32,
            share_steps: share.map(|share| (share.get() / 5.0).round() as u32),
        }
    }
}

/// The time of a batch over its time alone on the device with the same share: an estimate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Slowdown {
    /// The expected slowdown; at least 1.
    pub mean: f64,
    /// The standard error of `mean`. The variance of single batches around the mean is not included.
    pub std_error: f64,
}

impl Slowdown {
    /// Returns the mean plus `k` standard errors.
    pub fn upper_confidence_bound(self, k: f64) -> f64 {
        self.mean + k * self.std_error
    }
}

/// The relative slowdown of a model's batches per 100 % of a neighbour's SM utilisation, beyond [`crate::Interference`]: an
/// estimate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sensitivity {
    /// The expected sensitivity; 0 without observations, and below 0 where [`crate::Interference`] overestimates.
    pub mean: f64,
    /// The standard error of `mean`.
    pub std_error: f64,
}

/// A regression model of the slowdown of co-located replicas.
///
/// [`crate::Interference`] covers multiprocessors and compute shares. Profiles do not contain how replicas contend for caches,
/// memory bandwidth, power and other resources; this model learns it. While a replica of model `i` and one of model `j` are active
/// at the same moment, `i` takes `1 + θᵢⱼ · uⱼ / 100` times as long as by [`crate::Interference`], with `uⱼ` the neighbour's
/// effective SM utilisation in percent, and several neighbours add up. That is iGniter's form, `1 + α · Σ c`, on the utilisation of
/// the multiprocessors, which every profile has, instead of the cache's. `α`, which iGniter has as a constant of model `i`, is here a
/// sum of effects per kind of device:
///
/// ```text
/// θᵢⱼ = common + sensitivityᵢ + pressureⱼ + pairᵢⱼ
/// ```
///
/// Therefore a pair that was never observed together is predicted from observations of each with other neighbours.
///
/// `common` is one effect while multiprocessors are free (`θ′`), and another while the active replicas need more than there are (`θ″`): an
/// H200 slowed small batches, which left 10 % of it free, by 1.5 times, and two replicas that needed 140 % by only 1.1 times beyond their
/// share. Beside active neighbours a batch takes, as a multiple of its time alone,
///
/// ```text
/// 1 + Σ θ′ᵢⱼ · uⱼ / 100                                 if S = uᵢ + Σ uⱼ ≤ 100, and otherwise the larger of
/// 1 + (100 − uᵢ) / Σ uⱼ · Σ θ′ᵢⱼ · uⱼ / 100   and   S / 100 · (1 + Σ θ″ᵢⱼ · uⱼ / 100)
/// ```
///
/// so that no neighbour slows a batch less by needing more. With `θ′ = θ″` it is the form above.
///
/// Further effects
/// of model `i` and of its operating point (rows of a batch and compute share, both rounded) are errors of its profile: the time
/// beyond the profile without any neighbour. Without them a stale profile would be mistaken for interference.
///
/// The effects are jointly Gaussian with prior mean 0: without observations, [`crate::Interference`] alone counts. The standard
/// error contains what is not known yet. A plan that leaves room for [`Slowdown::upper_confidence_bound`] has headroom where little
/// was observed, and less of it with each observation.
///
/// The model is deterministic and bounded: it has at most 256 effects per kind of device. Beyond that it forgets the least recently
/// observed, those of pairs and of operating points first. Old observations count less, because a driver, a model or a clock rate
/// may have changed since.
///
/// Source of the form: Xu et al., "iGniter: Interference-Aware GPU Resource Provisioning for Predictable DNN Inference in the
/// Cloud", TPDS 2023, section 3.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SlowdownModel {
    kinds: BTreeMap<DeviceKind, Posterior>,
    /// The number of observations so far.
    clock: u64,
    /// True if old observations count as much as new ones.
    keeps_all: bool,
}

impl SlowdownModel {
    /// Returns a model without observations in which old observations will count as much as new ones.
    pub fn without_forgetting() -> Self {
        Self {
            keeps_all: true,
            ..Self::default()
        }
    }

    /// Learns from these observations, the oldest of which comes first.
    pub fn from_observations<'a>(
        observations: impl IntoIterator<Item = &'a DeviceObservation>,
        profiles: &ProfileTable,
    ) -> Self {
        let mut model = Self::default();
        for observation in observations {
            model.observe(observation, profiles);
        }
        model
    }

    /// Learns from one device over one period. The profiles contain the compute demand of its batches. From a replica that is alone
    /// the model learns the error of its profile.
    ///
    /// Impossible values are ignored. A busy fraction outside 0 to 1 invalidates the whole observation, because busy fractions
    /// determine which replicas were active together; a replica without batches, or with an impossible slowdown or number of rows, is
    /// only a neighbour of the others.
    pub fn observe(&mut self, observation: &DeviceObservation, profiles: &ProfileTable) {
        let replicas = &observation.replicas;
        if !replicas.iter().all(|r| (0.0..=1.0).contains(&r.busy)) {
            return;
        }
        let measured = replicas.iter().map(|replica| {
            // Without a valid number of rows a replica still was a neighbour, but was not measured.
            let plausible = replica.mean_rows >= 1.0 && replica.mean_rows.is_finite();
            MeasuredSlowdown {
                batches: if plausible { replica.batches } else { 0 },
                slowdown: replica.slowdown,
            }
        });
        let replicas = colocated_replicas(observation, profiles);
        let measured: Vec<_> = replicas.into_iter().zip(measured).collect();
        self.update(&observation.kind, &measured);
    }

    /// Learns from the measured slowdowns of replicas that shared a device.
    pub fn update(
        &mut self,
        kind: &DeviceKind,
        device: &[(ColocatedReplica<'_>, MeasuredSlowdown)],
    ) {
        let mut device: Vec<&(ColocatedReplica<'_>, MeasuredSlowdown)> = device.iter().collect();
        // Sorted, so that the result does not depend on the order of the replicas.
        device.sort_by(|(a, x), (b, y)| {
            let order = b.busy.total_cmp(&a.busy).then_with(|| a.model.cmp(b.model));
            let utilization =
                |replica: &ColocatedReplica<'_>| replica.demand.effective_utilization();
            let order = order.then_with(|| utilization(a).total_cmp(&utilization(b)));
            order.then_with(|| x.slowdown.total_cmp(&y.slowdown))
        });
        let replicas: Vec<ColocatedReplica<'_>> =
            device.iter().map(|(replica, _)| *replica).collect();
        let subjects: Vec<(usize, MeasuredSlowdown)> = device
            .iter()
            .map(|(_, measured)| *measured)
            .enumerate()
            .filter(|(_, measured)| measured.is_plausible())
            .take(MAX_MEASURED)
            .collect();
        if subjects.is_empty() {
            return;
        }
        self.clock += 1;
        let posterior = self.kinds.entry(kind.clone()).or_default();
        let subject_models = subjects.iter().map(|(subject, _)| replicas[*subject].model);
        let busiest = replicas.iter().take(MAX_MEASURED);
        let learned: BTreeSet<&ModelId> = subject_models
            .chain(busiest.map(|replica| replica.model))
            .collect();
        let busiest_first = replicas.iter().map(|replica| replica.model);
        posterior.register(busiest_first.filter(|model| learned.contains(model)));
        let learned: BTreeSet<ModelNumber> = posterior.model_numbers(learned).into_iter().collect();
        let forgetting = if self.keeps_all { 0.0 } else { FORGETTING };
        posterior.update(self.clock, forgetting, |posterior| {
            let linearize = |(subject, measured): &(usize, MeasuredSlowdown)| {
                let mut neighbours = replicas.clone();
                let subject = neighbours.remove(*subject);
                let prediction = Prediction::new(posterior, &subject, &neighbours);
                measured.linearize(prediction.in_effects_of(&learned))
            };
            subjects.iter().map(linearize).collect()
        });
        self.forget_excess_kinds();
    }

    /// Predicts the slowdown of a replica beside its neighbours.
    pub fn predict(
        &self,
        kind: &DeviceKind,
        subject: &ColocatedReplica<'_>,
        neighbours: &[ColocatedReplica<'_>],
    ) -> Slowdown {
        let prior = Posterior::default();
        let posterior = self.kinds.get(kind).unwrap_or(&prior);
        let prediction = Prediction::new(posterior, subject, neighbours);
        Slowdown {
            mean: prediction.slowdown.max(1.0),
            std_error: posterior.variance(&prediction.gradient).sqrt(),
        }
    }

    /// Predicts the slowdown of each replica of an observed device, in the observation's order.
    pub fn predict_observed(
        &self,
        observation: &DeviceObservation,
        profiles: &ProfileTable,
    ) -> Vec<Slowdown> {
        let replicas = colocated_replicas(observation, profiles);
        let predict = |subject| {
            let mut neighbours = replicas.clone();
            let subject = neighbours.remove(subject);
            self.predict(&observation.kind, &subject, &neighbours)
        };
        (0..replicas.len()).map(predict).collect()
    }

    /// Estimates the sensitivity of a model to a neighbour of another model, for planners that calculate themselves when both are
    /// active.
    pub fn sensitivity(
        &self,
        kind: &DeviceKind,
        subject: &ModelId,
        neighbour: &ModelId,
    ) -> BySaturation<Sensitivity> {
        let prior = Posterior::default();
        let posterior = self.kinds.get(kind).unwrap_or(&prior);
        let numbers = posterior.model_numbers([subject, neighbour]);
        sensitivity_effects(numbers[0], numbers[1]).map(|effects| Sensitivity {
            mean: effects.iter().map(|effect| posterior.mean(*effect)).sum(),
            std_error: posterior
                .variance(&effects.map(|effect| (effect, 1.0)))
                .sqrt(),
        })
    }

    fn forget_excess_kinds(&mut self) {
        while self.kinds.len() > MAX_KINDS {
            let oldest = self
                .kinds
                .iter()
                .min_by_key(|(_, posterior)| posterior.last_update());
            let Some(kind) = oldest.map(|(kind, _)| kind.clone()) else {
                return;
            };
            self.kinds.remove(&kind);
        }
    }
}

/// The measured slowdown of a replica.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MeasuredSlowdown {
    /// The number of measured batches.
    pub batches: u64,
    /// Their mean time over their time alone on the device with the same share.
    pub slowdown: f64,
}

impl MeasuredSlowdown {
    fn is_plausible(self) -> bool {
        self.batches > 0 && PLAUSIBLE_SLOWDOWNS.contains(&self.slowdown)
    }

    fn linearize(self, prediction: Prediction) -> LinearizedMeasurement {
        let variance = MODEL_ERROR.powi(2) + BATCH_ERROR.powi(2) / self.batches as f64;
        LinearizedMeasurement {
            observed: self.slowdown,
            predicted: prediction.slowdown,
            noise_std: prediction.slowdown * variance.sqrt(),
            gradient: prediction.gradient,
        }
    }
}

/// The slowdown of a replica beside its neighbours for a posterior's means.
struct Prediction {
    slowdown: f64,
    /// The derivatives of `slowdown` by the effects.
    gradient: Vec<(Effect, f64)>,
}

impl Prediction {
    fn new(
        posterior: &Posterior,
        subject: &ColocatedReplica<'_>,
        neighbours: &[ColocatedReplica<'_>],
    ) -> Self {
        let models =
            std::iter::once(subject.model).chain(neighbours.iter().map(|other| other.model));
        let numbers = posterior.model_numbers(models);
        let (own, others) = (numbers[0], &numbers[1..]);
        let neighbours: Vec<Neighbour> = neighbours
            .iter()
            .zip(others)
            .map(|(neighbour, number)| Neighbour {
                utilization: neighbour.demand.effective_utilization(),
                busy: neighbour.busy.clamp(0.0, 1.0),
                sensitivity: sensitivity_effects(own, *number)
                    .map(|effects| effects.iter().map(|effect| posterior.mean(*effect)).sum()),
            })
            .collect();
        let colocation =
            ColocationSlowdown::new(subject.demand.effective_utilization(), &neighbours);
        let profile_effects = [
            Effect::ProfileError(own),
            Effect::OperatingPoint(own, subject.operating_point()),
        ];
        let profile_error: f64 = profile_effects
            .iter()
            .map(|effect| posterior.mean(*effect))
            .sum();
        let profile_factor = (1.0 + profile_error).max(MIN_PROFILE_FACTOR);
        let mut gradient =
            BTreeMap::from(profile_effects.map(|effect| (effect, colocation.slowdown)));
        for (derivative, number) in colocation.gradient.iter().zip(others) {
            let effects = sensitivity_effects(own, *number);
            for (effects, derivative) in [
                (effects.unsaturated, derivative.unsaturated),
                (effects.saturated, derivative.saturated),
            ] {
                for effect in effects {
                    *gradient.entry(effect).or_default() += derivative * profile_factor;
                }
            }
        }
        Self {
            slowdown: colocation.slowdown * profile_factor,
            gradient: gradient.into_iter().collect(),
        }
    }
}

impl Prediction {
    /// Returns the prediction with the effects of these models, and those of all models. The others are taken as they are: of a device with
    /// hundreds of replicas, most are idle.
    fn in_effects_of(mut self, models: &BTreeSet<ModelNumber>) -> Self {
        self.gradient
            .retain(|(effect, _)| effect.models().all(|model| models.contains(&model)));
        self
    }
}

/// The effects whose sum is the sensitivity of a model to a neighbour.
fn sensitivity_effects(subject: ModelNumber, neighbour: ModelNumber) -> BySaturation<[Effect; 4]> {
    let effects = |saturation| {
        [
            saturation,
            Effect::Sensitivity(subject),
            Effect::Pressure(neighbour),
            Effect::Pair(subject, neighbour),
        ]
    };
    BySaturation {
        unsaturated: effects(Effect::Unsaturated),
        saturated: effects(Effect::Saturated),
    }
}

fn colocated_replicas<'a>(
    observation: &'a DeviceObservation,
    profiles: &ProfileTable,
) -> Vec<ColocatedReplica<'a>> {
    let colocated = |replica: &'a ReplicaObservation| {
        let profile = profiles.get(&replica.model, &observation.kind);
        let (share, busy) = (replica.compute_share, replica.busy);
        ColocatedReplica::new(&replica.model, profile, typical_rows(replica), share, busy)
    };
    observation.replicas.iter().map(colocated).collect()
}

/// The mean rows of a replica's batches, rounded. The limit only keeps the number an integer: a profile is constant beyond its last row.
fn typical_rows(replica: &ReplicaObservation) -> u32 {
    replica.mean_rows.round().clamp(1.0, 1e6) as u32
}

#[cfg(test)]
mod tests;
