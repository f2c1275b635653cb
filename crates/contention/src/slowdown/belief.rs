//! What is believed of the effects on one kind of device: a joint Gaussian, updated by recursive linear regression.
//!
//! A reading is a value that is about linear in a few effects. Conditioning a Gaussian on it is one step of recursive least squares
//! with the prior as the ridge (a Kalman filter with a static state). Two things are added:
//!
//! - *Forgetting*: before an update, every effect that takes part goes a little of the way back to its prior. Exponential
//!   forgetting inflates all of the covariance instead, which lets what is not observed grow without limit; this never leaves
//!   the prior's spread.
//! - *Outliers*: a reading more than three standard deviations off is believed less, as far as it is off (Huber's weight).

use std::collections::{BTreeMap, BTreeSet};

use packhorse_cluster::ModelId;

use super::gaussian::Gaussian;

/// How many effects are remembered. The covariance has the square of that, half a megabyte.
const LIMIT: usize = 256;
/// From so many standard deviations on a reading is an outlier.
const OUTLIER: f64 = 3.0;
/// How often an update is taken again around its own result: a slowdown is not linear in the effects where neighbours come and go.
const ROUNDS: usize = 3;

/// A model's number in a belief.
pub(super) type ModelNumber = u32;

/// Something that makes batches take longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Effect {
    /// Of anybody's company on anybody.
    Everyone,
    /// Of a model's batches, whoever is beside them: its profile is off.
    Alone(ModelNumber),
    /// Of anybody's company on a model.
    Sensitivity(ModelNumber),
    /// Of a model's company on anybody.
    Pressure(ModelNumber),
    /// Of a model's batches of about a size at about a share, beyond all its batches: rows of its profile are off.
    Point(ModelNumber, Point),
    /// On the first model, of the second one's company, beyond all that.
    Pair(ModelNumber, ModelNumber),
}

/// About how a replica runs: its rows to the nearest power of two, and its share in steps of 5 %.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Point {
    pub(super) log_rows: u32,
    pub(super) share_steps: Option<u32>,
}

impl Effect {
    /// Standard deviation where nothing was observed.
    fn prior(self) -> f64 {
        match self {
            Self::Everyone => 0.4,
            Self::Alone(_) | Self::Point(..) => 0.05,
            Self::Sensitivity(_) | Self::Pair(..) => 0.1,
            Self::Pressure(_) => 0.03,
        }
    }

    /// Whether it tells of less than all of a model.
    fn is_special(self) -> bool {
        matches!(self, Self::Pair(..) | Self::Point(..))
    }

    fn models(self) -> impl Iterator<Item = ModelNumber> {
        let (first, second) = match self {
            Self::Everyone => (None, None),
            Self::Alone(of) | Self::Sensitivity(of) | Self::Pressure(of) | Self::Point(of, _) => {
                (Some(of), None)
            }
            Self::Pair(subject, neighbour) => (Some(subject), Some(neighbour)),
        };
        first.into_iter().chain(second)
    }
}

/// A value that is about `value + Σ weightₑ · (effectₑ − what a belief says of it)`. No effect stands in it twice.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Reading {
    pub(super) weights: Vec<(Effect, f64)>,
    /// What was seen.
    pub(super) seen: f64,
    /// What the effects as that belief has them would have shown.
    pub(super) value: f64,
    /// Standard deviation of what is seen, were the effects known.
    pub(super) noise: f64,
}

impl Reading {
    /// How far what was seen is from what was to be.
    fn off(&self) -> f64 {
        self.seen - self.value
    }
}

/// See the module.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Belief {
    numbers: BTreeMap<ModelId, ModelNumber>,
    next_number: ModelNumber,
    /// Where an effect stands in `effects` and `joint`.
    slots: BTreeMap<Effect, usize>,
    effects: Vec<Known>,
    joint: Gaussian,
}

#[derive(Clone, Debug, PartialEq)]
struct Known {
    effect: Effect,
    updated: u64,
}

impl Belief {
    /// Gives models numbers to be known by.
    pub(super) fn know<'a>(&mut self, models: impl IntoIterator<Item = &'a ModelId>) {
        for model in models {
            if !self.numbers.contains_key(model) {
                self.numbers.insert(model.clone(), self.next_number);
                self.next_number += 1;
            }
        }
    }

    /// The models' numbers. Those that are not known get numbers for this once.
    pub(super) fn numbers<'a>(
        &self,
        models: impl IntoIterator<Item = &'a ModelId>,
    ) -> Vec<ModelNumber> {
        let mut unknown = BTreeMap::new();
        let number = |model: &'a ModelId| {
            self.numbers.get(model).copied().unwrap_or_else(|| {
                let next = ModelNumber::MAX - unknown.len() as ModelNumber;
                *unknown.entry(model).or_insert(next)
            })
        };
        models.into_iter().map(number).collect()
    }

    /// What is expected of an effect.
    pub(super) fn mean(&self, effect: Effect) -> f64 {
        let slot = self.slots.get(&effect);
        slot.map_or(0.0, |slot| self.joint.mean()[*slot])
    }

    /// The variance of `Σ weightₑ · effectₑ`. No effect stands there twice.
    pub(super) fn variance(&self, weights: &[(Effect, f64)]) -> f64 {
        let mut known = Vec::with_capacity(weights.len());
        let mut unknown = 0.0;
        for (effect, weight) in weights {
            match self.slots.get(effect) {
                Some(slot) => known.push((*slot, *weight)),
                None => unknown += (weight * effect.prior()).powi(2),
            }
        }
        self.joint.variance(&known) + unknown
    }

    /// When it was last updated.
    pub(super) fn updated(&self) -> u64 {
        self.effects
            .iter()
            .map(|known| known.updated)
            .max()
            .unwrap_or_default()
    }

    /// Learns from readings taken at the same time; `look` tells them around a belief, always of the same effects.
    /// `forgetting` is the part of its prior's variance that each of them gets back before.
    pub(super) fn learn(
        &mut self,
        now: u64,
        forgetting: f64,
        look: impl Fn(&Self) -> Vec<Reading>,
    ) {
        let first = look(self);
        let weights = first.iter().flat_map(|reading| &reading.weights);
        let slots = self.touch(
            weights.map(|(effect, _)| *effect).collect(),
            now,
            forgetting,
        );
        let noises: Vec<f64> = first.iter().map(|reading| self.doubtful(reading)).collect();
        // What the readings are to be told around is found on their own effects alone; the others have no say in it.
        let before = self.joint.part(&slots);
        let place = |slot| {
            slots
                .binary_search(&slot)
                .expect("slots has all of the readings' effects")
        };
        for _ in 1..ROUNDS {
            let readings = look(self);
            let around = self.joint.part(&slots);
            let mut part = before.clone();
            for (reading, noise) in readings.iter().zip(&noises) {
                let weights = self.weights(reading, place);
                part.condition(&weights, around.mean(), reading.off(), *noise);
            }
            self.joint.expect(&slots, part.mean());
        }
        let readings = look(self);
        let around = self.joint.mean().to_vec();
        self.joint.expect(&slots, before.mean());
        for (reading, noise) in readings.iter().zip(&noises) {
            let weights = self.weights(reading, |slot| slot);
            self.joint
                .condition(&weights, &around, reading.off(), *noise);
        }
        self.trim();
    }

    /// The weights of a reading by where its effects stand.
    fn weights(&self, reading: &Reading, place: impl Fn(usize) -> usize) -> Vec<(usize, f64)> {
        let weights = reading.weights.iter();
        weights
            .map(|(effect, weight)| (place(self.slots[effect]), *weight))
            .collect()
    }

    /// The noise of a reading, more where it is an outlier to what is believed before anything is learned from its time.
    fn doubtful(&self, reading: &Reading) -> f64 {
        let expected = (self.variance(&reading.weights) + reading.noise.powi(2)).sqrt();
        let off = reading.off().abs() / expected;
        reading.noise * (off / OUTLIER).max(1.0)
    }

    /// Makes room for effects, and lets what is known of them fade. Returns their slots, ascending.
    fn touch(&mut self, effects: BTreeSet<Effect>, now: u64, forgetting: f64) -> Vec<usize> {
        let mut slots = Vec::with_capacity(effects.len());
        for effect in effects {
            let slot = *self.slots.entry(effect).or_insert_with(|| {
                self.joint.add(effect.prior().powi(2));
                self.effects.push(Known {
                    effect,
                    updated: now,
                });
                self.effects.len() - 1
            });
            self.effects[slot].updated = now;
            let kept = (1.0 - forgetting).sqrt();
            self.joint.fade(slot, kept, effect.prior().powi(2));
            slots.push(slot);
        }
        slots.sort_unstable();
        slots
    }

    /// Forgets what was not observed for longest where there is more than the limit; first what tells of least.
    fn trim(&mut self) {
        while self.effects.len() > LIMIT {
            let worth = |slot: &usize| {
                let Known { effect, updated } = self.effects[*slot];
                (!effect.is_special(), updated, effect)
            };
            let Some(slot) = (0..self.effects.len()).min_by_key(worth) else {
                return;
            };
            let gone = self.effects.swap_remove(slot);
            self.slots.remove(&gone.effect);
            self.joint.remove(slot);
            if let Some(moved) = self.effects.get(slot) {
                self.slots.insert(moved.effect, slot);
            }
        }
        let known: BTreeSet<ModelNumber> = self
            .slots
            .keys()
            .flat_map(|effect| effect.models())
            .collect();
        self.numbers.retain(|_, number| known.contains(number));
    }

    /// How many effects there are.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.effects.len()
    }
}
