//! The batch times that the gateway has learned, beside those of the profiles.

use std::{collections::BTreeMap, time::Duration};

use packhorse_cluster::{
    DeviceKind, DeviceObservation, ModelId, Profile, ProfileSource, Program, ReplicaObservation,
    Time,
};

use crate::{device_speeds::NEIGHBOUR_BUSY, state::State};

/// The deviation from the profile, relative to it, above which a learned time contradicts it.
const CONTRADICTION: f64 = 0.25;
/// The number of batches below which a learned time contradicts nothing.
const MIN_BATCHES: u64 = 100;
/// The age above which a learned time contradicts nothing.
const MAX_AGE: Duration = Duration::from_mins(10);

/// The time of a batch of a model on a kind of device.
#[derive(Clone, Debug, PartialEq)]
pub struct BatchTime {
    /// The kind of device.
    pub kind: DeviceKind,
    /// The rows of the batch, as in the profile.
    pub batch_size: u32,
    /// The time in the profile.
    pub profile: Duration,
    /// The source of the profile.
    pub source: ProfileSource,
    /// The time that was learned; `None` if no batch of about this size was observed.
    pub learned: Option<LearnedTime>,
}

/// The observed batches of a model of about one size on a kind of device.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LearnedTime {
    /// The number of batches.
    pub batches: u64,
    /// The time since the last of them was counted.
    pub age: Duration,
    /// The time of a batch over the profile's, neighbours included.
    pub ratio: f64,
    /// The same of the batches that were computed while no other replica was active on the device; `None` without any.
    pub alone: Option<f64>,
}

/// The reason why a learned time contradicts the profile.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum ContradictionCause {
    /// Neighbours on the device: alone a batch takes this many times as long as in the profile; none if it was never alone.
    Neighbours(Option<f64>),
    /// The inputs vary, and those of clients are longer than those that were measured.
    LongerInputs,
    /// The inputs vary, and those of clients are shorter than those that were measured.
    ShorterInputs,
    /// The inputs have the measured size, so that the device is slower than it was.
    SlowerDevice,
    /// The inputs have the measured size, so that the device was slower when the model was measured.
    FasterDevice,
}

/// The busy time of batches, and the time that they would have taken by the profile.
#[derive(Clone, Copy, Default)]
struct Work {
    busy: f64,
    expected: f64,
}

impl Work {
    fn add(&mut self, replica: &ReplicaObservation) {
        self.busy += replica.busy;
        self.expected += replica.busy / replica.slowdown;
    }

    fn ratio(self) -> Option<f64> {
        (self.expected > 0.0).then(|| self.busy / self.expected)
    }
}

/// The observations of one batch size.
#[derive(Clone, Copy, Default)]
struct Observed {
    batches: u64,
    last: Time,
    all: Work,
    alone: Work,
}

/// An observed replica.
#[derive(Clone, Copy)]
pub(crate) struct Sighting<'a> {
    at: Time,
    kind: &'a DeviceKind,
    replica: &'a ReplicaObservation,
    /// True if no other replica was active on the device.
    is_alone: bool,
}

/// Returns the observed replicas by model, as far as they say something about it. They are looked for once for all models: a device may have a
/// thousand.
pub(crate) fn sightings<'a>(
    observations: impl Iterator<Item = (Time, &'a DeviceObservation)>,
) -> BTreeMap<&'a ModelId, Vec<Sighting<'a>>> {
    let mut all: BTreeMap<&ModelId, Vec<Sighting<'_>>> = BTreeMap::new();
    for (at, device) in observations {
        let is_active = |replica: &&ReplicaObservation| replica.busy > NEIGHBOUR_BUSY;
        let active = device.replicas.iter().filter(is_active).count();
        for replica in &device.replicas {
            let is_plausible = replica.batches > 0
                && replica.mean_rows >= 1.0
                && replica.slowdown.is_finite()
                && replica.slowdown > 0.0;
            if is_plausible {
                all.entry(&replica.model).or_default().push(Sighting {
                    at,
                    kind: &device.kind,
                    replica,
                    is_alone: active == usize::from(is_active(&replica)),
                });
            }
        }
    }
    all
}

impl State {
    /// Returns the times of a model's batches on every kind of device for which it has a profile, by kind and batch size.
    pub(crate) fn batch_times(
        &self,
        now: Time,
        model: &ModelId,
        sightings: &[Sighting<'_>],
    ) -> Vec<BatchTime> {
        let mut times = Vec::new();
        for (kind, profile) in self.profiles.of_model(model) {
            let observed = observe(kind, profile, sightings);
            times.extend(profile.whole().iter().map(|row| BatchTime {
                kind: kind.clone(),
                batch_size: row.batch_size,
                profile: row.latency,
                source: profile.source(),
                learned: observed.get(&row.batch_size).and_then(|observed| {
                    Some(LearnedTime {
                        batches: observed.batches,
                        age: now.saturating_since(observed.last),
                        ratio: observed.all.ratio()?,
                        alone: observed.alone.ratio(),
                    })
                }),
            }));
        }
        times
    }
}

/// Sums the sightings of a model on a kind of device, each for the measured batch size that is nearest to its mean number of rows.
fn observe(
    kind: &DeviceKind,
    profile: &Profile,
    sightings: &[Sighting<'_>],
) -> BTreeMap<u32, Observed> {
    let distance = |size: u32, rows: f64| (f64::from(size) / rows).ln().abs();
    let nearest = |rows: f64| {
        let sizes = profile.whole().iter().map(|row| row.batch_size);
        sizes.min_by(|a, b| distance(*a, rows).total_cmp(&distance(*b, rows)))
    };
    let mut observed: BTreeMap<u32, Observed> = BTreeMap::new();
    for sighting in sightings.iter().filter(|sighting| sighting.kind == kind) {
        let replica = sighting.replica;
        let Some(size) = nearest(replica.mean_rows) else {
            continue;
        };
        let of_size = observed.entry(size).or_default();
        of_size.batches += replica.batches;
        of_size.last = of_size.last.max(sighting.at);
        of_size.all.add(replica);
        if sighting.is_alone {
            of_size.alone.add(replica);
        }
    }
    observed
}

impl BatchTime {
    /// Returns the learned time of a batch.
    pub fn learned_time(&self) -> Option<Duration> {
        let ratio = self.learned?.ratio;
        Duration::try_from_secs_f64(self.profile.as_secs_f64() * ratio).ok()
    }

    /// Returns true if the learned time contradicts a measured profile.
    pub fn contradicts_profile(&self) -> bool {
        self.source == ProfileSource::Measured
            && self.learned.is_some_and(|learned| {
                learned.batches >= MIN_BATCHES
                    && learned.age <= MAX_AGE
                    && is_contradiction(learned.ratio)
            })
    }

    /// Returns the cause of a contradiction, as far as it follows from what was observed; none if there is no contradiction.
    pub(crate) fn contradiction_cause(&self, program: &Program) -> Option<ContradictionCause> {
        let learned = self.learned.filter(|_| self.contradicts_profile())?;
        let is_slower = learned.ratio > 1.0;
        let by_neighbours = learned.alone.is_none_or(|alone| !is_contradiction(alone));
        Some(match (is_slower, program.has_variable_inputs()) {
            (true, _) if by_neighbours => ContradictionCause::Neighbours(learned.alone),
            (true, true) => ContradictionCause::LongerInputs,
            (true, false) => ContradictionCause::SlowerDevice,
            (false, true) => ContradictionCause::ShorterInputs,
            (false, false) => ContradictionCause::FasterDevice,
        })
    }
}

impl ContradictionCause {
    /// Returns the cause where variable inputs are known to have the measured size.
    pub(crate) fn with_measured_inputs(self) -> Self {
        match self {
            Self::LongerInputs => Self::SlowerDevice,
            Self::ShorterInputs => Self::FasterDevice,
            other => other,
        }
    }

    /// Returns true if neighbours slow the batches, which says nothing of the profile.
    pub(crate) fn is_by_neighbours(self) -> bool {
        matches!(self, Self::Neighbours(_))
    }
}

fn is_contradiction(ratio: f64) -> bool {
    (ratio - 1.0).abs() > CONTRADICTION
}

#[cfg(test)]
mod tests;
